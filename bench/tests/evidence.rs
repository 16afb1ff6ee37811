//! The pages that claim something name the test that shows it; here each name is looked for.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace folder").to_owned()
}

/// Names of every function of the Rust and Python sources.
fn functions(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), "target" | ".git" | ".venv") {
                functions(&path, names);
            }
        } else if name.ends_with(".rs") || name.ends_with(".py") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            for part in text.split("fn ").chain(text.split("def ")).skip(1) {
                let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
                names.insert(part[..end].to_owned());
            }
        }
    }
}

/// Backticked names in the last column of the page's tables.
fn claims(page: &str) -> Vec<String> {
    let rows = page.lines().filter(|l| l.starts_with('|') && l.ends_with('|'));
    let last = rows.filter_map(|l| l.trim_matches('|').rsplit(" | ").next());
    last.flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|name| name.contains('_') && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_test_named_as_evidence_exists() {
    let root = root();
    let mut known = BTreeSet::new();
    functions(&root, &mut known);
    for page in ["docs/guarantees.md", "docs/projections.md", "docs/status.md"] {
        let text = std::fs::read_to_string(root.join(page)).expect("the page");
        let named = claims(&text);
        assert!(named.len() > 10, "{page} names no tests");
        let missing: Vec<_> = named.iter().filter(|name| !known.contains(*name)).collect();
        assert!(missing.is_empty(), "{page} names tests that are not there: {missing:?}");
    }
}
