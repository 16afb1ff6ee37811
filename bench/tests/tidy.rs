//! The rules about this repository that a program can check: sizes, who depends on whom, what may appear where.
//! Each exception names its rule, its file and its reason; one that is not needed any more is a failure too, so the list
//! only shrinks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines a source file may have.
const LINES_MAX: usize = 800;

/// Crates and what each may depend on, of ours. Development dependencies may point up and are not looked at.
const EDGES: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("runtime", &[]),
    ("logstore", &["wire", "runtime"]),
    ("replica", &["wire", "runtime"]),
    ("shardcore", &["wire", "runtime", "logstore", "replica"]),
    ("ctrl", &["wire"]),
    ("sdk", &["wire"]),
    ("bench", &["sdk", "wire", "runtime"]),
];

/// Edges beyond those, allowed when the dependency is optional.
const OPTIONAL_EDGES: &[(&str, &str)] = &[
    // The simulator drives the pure modules of the control plane.
    ("shardcore", "ctrl"),
];

/// Parts of shardcore that get time and bytes as arguments. In `turn`, the one loop and its disks are apart.
const SANS_IO: &[&str] = &[
    "shardcore/src/lease/",
    "shardcore/src/session/",
    "shardcore/src/shard/",
    "shardcore/src/projection/",
    "shardcore/src/access.rs",
    "shardcore/src/access/",
    "shardcore/src/route.rs",
    "shardcore/src/route/",
    "shardcore/src/turn/",
];
const NOT_SANS_IO: &[&str] =
    &["shardcore/src/turn/run.rs", "shardcore/src/turn/run/", "shardcore/src/turn/disks.rs"];

/// What such a part must not name. Addresses are plain values and may be named.
const IO_NAMES: &[&str] = &[
    "tokio",
    "glommio",
    "Instant::now",
    "SystemTime",
    "std::fs",
    "std::io::",
    "std::thread",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "Clock::start",
    "rand::",
    ".await",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    Length,
    Header,
    Unsafe,
    Glommio,
    Edge,
    SansIo,
    LeftOver,
    Name,
    Anyhow,
}

/// Rule, file, reason.
const EXCEPTIONS: &[(Rule, &str, &str)] = &[
    (Rule::Length, "wire/src/generated/assignment.rs", "made by flatc, never edited"),
    (Rule::Header, "wire/src/generated/assignment.rs", "made by flatc, never edited"),
    (Rule::Unsafe, "wire/src/generated/assignment.rs", "made by flatc, never edited"),
    (Rule::Length, "wire/src/generated/request.rs", "made by flatc, never edited"),
    (Rule::Header, "wire/src/generated/request.rs", "made by flatc, never edited"),
    (Rule::Unsafe, "wire/src/generated/request.rs", "made by flatc, never edited"),
];

/// One Rust file.
struct Source {
    /// From the root of the repository, with `/`.
    path: String,
    text: String,
    /// The same with comments and literals blanked, line by line.
    code: String,
}

impl Source {
    /// Test code: files of tests, wherever they are.
    fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs") || self.path.contains("/benches/")
    }

    /// What runs outside of tests: everything before an inline test module, which comes last in a file.
    fn shipped(&self) -> &str {
        if self.is_test() {
            return "";
        }
        self.code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    for (name, _) in EDGES {
        collect(&root().join(name), name, &mut found);
    }
    assert!(found.len() > EDGES.len(), "the sources were found");
    found
}

fn collect(folder: &Path, path: &str, found: &mut Vec<Source>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{path}/{name}");
        if entry.path().is_dir() {
            if name != "target" {
                collect(&entry.path(), &path, found);
            }
        } else if name.ends_with(".rs")
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            let code = code_only(&text);
            found.push(Source { path, text, code });
        }
    }
}

/// The text with comments, strings and character literals replaced by spaces; lines stay where they are.
fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
            continue;
        }
        out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    out
}

/// Where the comment or literal that begins at `at` ends; `at` itself when none begins there.
fn literal_end(chars: &[char], at: usize) -> usize {
    let is = |offset: usize, wanted: char| chars.get(at + offset) == Some(&wanted);
    let find = |from: usize, end: &dyn Fn(usize) -> bool| {
        (from..chars.len()).find(|i| end(*i)).unwrap_or(chars.len())
    };
    let word_before = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match chars[at] {
        '/' if is(1, '/') => find(at, &|i| chars[i] == '\n'),
        '/' if is(1, '*') => block_comment_end(chars, at),
        '"' => quoted_end(chars, at, '"'),
        'r' if !word_before && (is(1, '"') || is(1, '#')) => {
            let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
            if !is(1 + hashes, '"') {
                return at;
            }
            let closes = |i: usize| chars[i] == '"' && chars[i + 1..].iter().take(hashes).all(|c| *c == '#');
            (find(at + 2 + hashes, &closes) + 1 + hashes).min(chars.len())
        }
        // A lifetime has no second quote after one character.
        '\'' if is(1, '\\') || is(2, '\'') => quoted_end(chars, at, '\''),
        _ => at,
    }
}

fn quoted_end(chars: &[char], at: usize, quote: char) -> usize {
    let mut i = at + 1;
    while i < chars.len() && chars[i] != quote {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0_usize, at);
    while i < chars.len() {
        let pair = (chars[i], chars.get(i + 1).copied().unwrap_or_default());
        match pair {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                i += 1;
                continue;
            }
        }
        i += 2;
        if depth == 0 {
            return i;
        }
    }
    i
}

/// Lines of `code` that hold `word` as a whole word.
fn lines_with(code: &str, word: &str) -> Vec<usize> {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let whole = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + word.len()..]);
            let starts = !word.starts_with(char::is_alphanumeric) || !part(before.chars().next_back());
            starts && (!word.ends_with(char::is_alphanumeric) || !part(after.chars().next()))
        })
    };
    code.lines().enumerate().filter(|(_, line)| whole(line)).map(|(number, _)| number + 1).collect()
}

/// Fails with every violation that has no exception, and with every exception that has no violation.
fn settle(rule: Rule, violations: Vec<(String, String)>) {
    let excused: BTreeSet<&str> =
        EXCEPTIONS.iter().filter(|(of, _, _)| *of == rule).map(|(_, path, _)| *path).collect();
    let broken: BTreeSet<&str> = violations.iter().map(|(path, _)| path.as_str()).collect();
    let open: Vec<String> = violations
        .iter()
        .filter(|(path, _)| !excused.contains(path.as_str()))
        .map(|(path, what)| format!("  {path}: {what}"))
        .collect();
    assert!(open.is_empty(), "{rule:?}:\n{}", open.join("\n"));
    let unused: Vec<_> = excused.difference(&broken).collect();
    assert!(unused.is_empty(), "{rule:?}: exceptions nobody needs: {unused:?}");
}

#[test]
fn no_file_is_longer_than_one_can_read() {
    let long = sources().into_iter().filter_map(|source| {
        let lines = source.text.lines().count();
        (lines > LINES_MAX).then(|| (source.path, format!("{lines} lines, {LINES_MAX} are allowed")))
    });
    settle(Rule::Length, long.collect());
}

#[test]
fn every_module_says_what_it_is() {
    let header = |text: &str| text.lines().take(3).any(|line| line.starts_with("//!"));
    let silent = sources()
        .into_iter()
        // Tests beside the code and fuzz targets are about the module they are named after.
        .filter(|source| !(source.is_test() && source.path.contains("/src/")))
        .filter(|source| !source.path.contains("/fuzz_targets/"))
        .filter(|source| !header(&source.text))
        .map(|source| (source.path, "no //! header".to_owned()));
    settle(Rule::Header, silent.collect());
}

#[test]
fn unsafe_code_is_in_runtime_only() {
    let found =
        sources().into_iter().filter(|source| !source.path.starts_with("runtime/")).filter_map(|source| {
            let lines = lines_with(&source.code, "unsafe");
            (!lines.is_empty()).then(|| (source.path, format!("unsafe in line {lines:?}")))
        });
    settle(Rule::Unsafe, found.collect());
}

#[test]
fn glommio_is_in_runtime_only() {
    let mut found: Vec<(String, String)> = sources()
        .into_iter()
        .filter(|source| !source.path.starts_with("runtime/"))
        .filter(|source| !lines_with(&source.code, "glommio").is_empty())
        .map(|source| (source.path, "names glommio".to_owned()))
        .collect();
    for (name, manifest) in manifests() {
        if name != "runtime" && dependencies(&manifest).contains_key("glommio") {
            found.push((format!("{name}/Cargo.toml"), "depends on glommio".to_owned()));
        }
    }
    settle(Rule::Glommio, found);
}

#[test]
fn crates_depend_on_those_below_them_only() {
    let mut found = Vec::new();
    for (name, manifest) in manifests() {
        let allowed = EDGES.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, to)| to);
        for (dependency, optional) in dependencies(&manifest) {
            let Some(to) = dependency.strip_prefix("felix-") else { continue };
            let extra = optional && OPTIONAL_EDGES.contains(&(name.as_str(), to));
            if !allowed.contains(&to) && !extra {
                found.push((format!("{name}/Cargo.toml"), format!("depends on {to}")));
            }
        }
    }
    settle(Rule::Edge, found);
}

#[test]
fn machines_of_the_broker_do_no_io() {
    let sans_io = |path: &str| {
        SANS_IO.iter().any(|part| path.starts_with(part))
            && !NOT_SANS_IO.iter().any(|part| path.starts_with(part))
    };
    let mut found = Vec::new();
    for source in sources().into_iter().filter(|source| sans_io(&source.path)) {
        for name in IO_NAMES {
            let lines = lines_with(source.shipped(), name);
            if !lines.is_empty() {
                found.push((source.path.clone(), format!("{name} in line {lines:?}")));
            }
        }
    }
    settle(Rule::SansIo, found);
}

#[test]
fn nothing_is_left_for_later_in_the_code() {
    let mut found = Vec::new();
    for source in sources() {
        for word in ["todo!", "dbg!", "unimplemented!", "#[ignore"] {
            let lines = lines_with(&source.code, word);
            if !lines.is_empty() {
                found.push((source.path.clone(), format!("{word} in line {lines:?}")));
            }
        }
    }
    settle(Rule::LeftOver, found);
}

#[test]
fn names_say_what_a_thing_is() {
    let vague = ["utils", "util", "common", "helpers", "helper", "misc"];
    let mut found = Vec::new();
    for source in sources() {
        let parts = source.path.trim_end_matches(".rs").split('/');
        found.extend(
            parts
                .filter(|part| vague.contains(part))
                .map(|part| (source.path.clone(), format!("called {part}"))),
        );
        for kind in ["struct ", "enum ", "trait ", "type "] {
            let named = source.code.match_indices(kind).filter(|(at, _)| {
                let rest = &source.code[at + kind.len()..];
                let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                name.ends_with("Manager")
            });
            found.extend(named.map(|_| (source.path.clone(), "a Manager".to_owned())));
        }
    }
    settle(Rule::Name, found);
}

#[test]
fn anyhow_is_in_binaries_and_tests_only() {
    let binary = |path: &str| path.ends_with("/src/main.rs") || path.contains("/src/bin/");
    let found = sources()
        .into_iter()
        .filter(|source| source.path.contains("/src/") && !binary(&source.path))
        .filter(|source| !lines_with(source.shipped(), "anyhow").is_empty())
        .map(|source| (source.path, "names anyhow".to_owned()));
    settle(Rule::Anyhow, found.collect());
}

/// The manifest of each crate.
fn manifests() -> Vec<(String, toml::Table)> {
    EDGES
        .iter()
        .map(|(name, _)| {
            let path = root().join(name).join("Cargo.toml");
            let text =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let table = text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            ((*name).to_owned(), table)
        })
        .collect()
}

/// Dependencies of a crate (not those of its tests), and whether each is optional.
fn dependencies(manifest: &toml::Table) -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    let mut take = |table: &toml::Table| {
        if let Some(dependencies) = table.get("dependencies").and_then(toml::Value::as_table) {
            for (name, value) in dependencies {
                let optional = value.get("optional").and_then(toml::Value::as_bool).unwrap_or(false);
                found.insert(name.clone(), optional);
            }
        }
    };
    take(manifest);
    if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
        targets.values().filter_map(toml::Value::as_table).for_each(&mut take);
    }
    found
}

#[test]
fn comments_and_literals_are_not_code() {
    let text = "let a = \"unsafe\"; // unsafe\nlet b = r#\"un\"safe\"#; /* unsafe /* x */ unsafe */\nlet c = '\"'; unsafe {}\nfn f<'a>(x: &'a str) { b\"unsafe\" }";
    let code = code_only(text);
    assert_eq!(lines_with(&code, "unsafe"), [3]);
    assert_eq!(code.lines().count(), text.lines().count());
    assert!(code.contains("fn f<'a>(x: &'a str)"));
    assert!(
        lines_with("#![deny(unsafe_op_in_unsafe_fn)]", "unsafe").is_empty(),
        "a part of a word is not the word"
    );
    assert_eq!(lines_with("x.await?\nawaiting", ".await"), [1]);
}
