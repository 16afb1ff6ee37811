//! Names of resources and nodes (control-plane-api 1.1). Checked where something is created, never on look-up.

/// Longest tenant, namespace, stream or cache name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest node id, in bytes: the length limit of a DNS name, which a peer certificate must carry.
pub const NODE_ID_BYTES_MAX: usize = 253;

/// What a refused name was meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    Tenant,
    Namespace,
    Stream,
    Cache,
    Node,
}

impl std::fmt::Display for NameKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NameKind::Tenant => "tenant id",
            NameKind::Namespace => "namespace",
            NameKind::Stream => "stream name",
            NameKind::Cache => "cache name",
            NameKind::Node => "node id",
        })
    }
}

/// Why a name was refused. The name itself is never repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("invalid {kind}: it is empty")]
    Empty { kind: NameKind },
    #[error("invalid {kind}: {len} bytes, at most {max} are allowed")]
    TooLong { kind: NameKind, len: usize, max: usize },
    #[error("invalid {kind}: the first character must be a letter or a digit")]
    FirstCharacter { kind: NameKind },
    #[error("invalid {kind}: the character at byte {at} is not allowed (use {allowed})")]
    Character { kind: NameKind, at: usize, allowed: &'static str },
}

/// Accepts 1 to 128 ASCII letters, digits, `-`, `_`, `.`, the first a letter or digit.
pub fn check_name(kind: NameKind, name: &str) -> Result<(), NameError> {
    check_length(kind, name, NAME_BYTES_MAX)?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if let Some(at) = name.bytes().position(|b| !allowed(b)) {
        return Err(NameError::Character { kind, at, allowed: "letters, digits, '-', '_' and '.'" });
    }
    if !name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric()) {
        return Err(NameError::FirstCharacter { kind });
    }
    Ok(())
}

/// Accepts 1 to 253 lowercase letters, digits, `-`, `.`, `_`.
pub fn check_node_id(id: &str) -> Result<(), NameError> {
    let kind = NameKind::Node;
    check_length(kind, id, NODE_ID_BYTES_MAX)?;
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    match id.bytes().position(|b| !allowed(b)) {
        Some(at) => {
            Err(NameError::Character { kind, at, allowed: "lowercase letters, digits, '-', '_' and '.'" })
        }
        None => Ok(()),
    }
}

fn check_length(kind: NameKind, name: &str, max: usize) -> Result<(), NameError> {
    match name.len() {
        0 => Err(NameError::Empty { kind }),
        len if len > max => Err(NameError::TooLong { kind, len, max }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_allowed_alphabet_pass_up_to_the_limit() {
        for name in ["a", "0", "A.b-c_d", "orders", &"x".repeat(128)] {
            assert_eq!(check_name(NameKind::Stream, name), Ok(()), "{name}");
        }
        for id in ["broker-0", "a.b_c", "_x", &"n".repeat(253)] {
            assert_eq!(check_node_id(id), Ok(()), "{id}");
        }
    }

    #[test]
    fn other_names_are_refused_with_the_reason() {
        let kind = NameKind::Tenant;
        assert_eq!(check_name(kind, ""), Err(NameError::Empty { kind }));
        assert!(matches!(check_name(kind, &"x".repeat(129)), Err(NameError::TooLong { len: 129, .. })));
        for first in ["-a", ".a", "..", "_a"] {
            assert_eq!(check_name(kind, first), Err(NameError::FirstCharacter { kind }), "{first}");
        }
        for (name, at) in [("a/b", 1), ("a b", 1), ("ab*", 2), ("é", 0), ("a:b", 1), ("a\0", 1)] {
            assert!(
                matches!(check_name(kind, name), Err(NameError::Character { at: a, .. }) if a == at),
                "{name}"
            );
        }
        assert!(matches!(check_node_id("Broker"), Err(NameError::Character { at: 0, .. })));
        assert!(matches!(check_node_id(&"n".repeat(254)), Err(NameError::TooLong { len: 254, .. })));
    }
}
