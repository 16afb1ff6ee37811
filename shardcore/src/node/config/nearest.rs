//! The known name closest to a misspelt one. Scope: pure function over names.
//! Not here: what happens then (an error for the file, a warning for the environment).

/// The name of `known` that takes the fewest single-letter edits from `name`, if that is few for its length.
/// A `-` counts as a `_`, and case does not count.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let name = plain(name);
    let far = name.chars().count().max(4).div_ceil(3);
    known
        .into_iter()
        .map(|candidate| (distance(&name, &plain(candidate)), candidate))
        .filter(|(edits, _)| *edits <= far)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Whether the name is one or two edits away from a known one: a slip, whatever else it may look like.
pub fn is_slip<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> bool {
    known.into_iter().any(|candidate| distance(name, candidate) <= 2)
}

/// Insertions, deletions and replacements between two names (one row of the table at a time).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_a_stranger_finds_none() {
        let known = ["tls_cert", "tls_key", "quic_bind", "shed"];
        assert_eq!(nearest("tls-crt", known), Some("tls_cert"));
        assert_eq!(nearest("QUIC_BIND", known), Some("quic_bind"));
        assert_eq!(nearest("shd", known), Some("shed"));
        assert_eq!(nearest("completely_else", known), None);
    }

    #[test]
    fn distance_counts_single_letter_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
