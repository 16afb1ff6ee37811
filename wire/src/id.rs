//! Newtypes for the numbers and names that two processes exchange.
//! Owns: their text and JSON form (plain numbers, plain strings) and the shape of a node id.
//! Invariants: a `NodeId` always satisfies `NodeId::new`; a number newtype holds every value of its integer.
//! Not here: what the numbers mean to a shard or a session.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits::NODE_ID_LEN_MAX;

macro_rules! number_id {
    ($($(#[$doc:meta])* $name:ident($int:ty);)*) => {$(
        $(#[$doc])*
        #[derive(
            Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $int);

        impl $name {
            /// The bare number.
            #[must_use]
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<$int> for $name {
            fn from(value: $int) -> Self {
                Self(value)
            }
        }
    )*};
}

number_id! {
    /// Position of one record in its shard's log, counted from 0.
    Offset(u64);
    /// Ownership epoch of a shard: grows with every assignment that changes the leader.
    Generation(u64);
    /// Which life of a reused name this is (stream, cache or node).
    Incarnation(u64);
    /// Shard of a stream or cache, counted from 0.
    ShardIndex(u32);
    /// Pinned core of one node, counted from 0.
    CoreId(u16);
    /// Names one request on one QUIC stream; chosen by the client.
    RequestId(u64);
    /// Names one subscription or watch; chosen by the broker, unique in its process.
    SubscriptionId(u64);
    /// Names one idempotent producer; random, uses all 64 bits.
    ProducerId(u64);
    /// Number of a batch of one producer on one shard, counted from 0.
    Sequence(u64);
    /// One grant of a shard to a member of a consumer group; a later one of the same shard has a larger number.
    LeaseId(u64);
    /// One membership in a consumer group; a later one of the same name has a larger number.
    MembershipId(u64);
}

/// Name of a broker process: 1 to 253 characters of `a-z`, `0-9`, `-`, `.`, `_` (control-plane-api 1).
/// Cloning shares the text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(Arc<str>);

/// The text is not a node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a node id is 1 to {NODE_ID_LEN_MAX} characters of a-z, 0-9, '-', '.', '_'")]
pub struct InvalidNodeId;

impl NodeId {
    /// Checks the text and takes a copy of it.
    ///
    /// # Errors
    /// `InvalidNodeId` when it is empty, too long or has another character.
    pub fn new(text: &str) -> Result<Self, InvalidNodeId> {
        let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_');
        if text.is_empty() || text.len() > NODE_ID_LEN_MAX || !text.bytes().all(allowed) {
            return Err(InvalidNodeId);
        }
        Ok(Self(Arc::from(text)))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for NodeId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for NodeId {
    type Error = InvalidNodeId;

    fn try_from(text: String) -> Result<Self, InvalidNodeId> {
        Self::new(&text)
    }
}

impl std::str::FromStr for NodeId {
    type Err = InvalidNodeId;

    fn from_str(text: &str) -> Result<Self, InvalidNodeId> {
        Self::new(text)
    }
}

impl From<NodeId> for String {
    fn from(id: NodeId) -> Self {
        String::from(&*id.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_id_outside_the_alphabet_is_refused() {
        assert_eq!(NodeId::new("broker-b.eu_1").map(|id| id.to_string()), Ok("broker-b.eu_1".to_string()));
        for bad in ["", "Broker", "a b", "ä", &"x".repeat(NODE_ID_LEN_MAX + 1)] {
            assert_eq!(NodeId::new(bad), Err(InvalidNodeId), "{bad:?}");
        }
        assert!(serde_json::from_str::<NodeId>("\"UP\"").is_err());
    }

    #[test]
    fn a_number_id_keeps_all_64_bits_in_json() {
        let text = serde_json::to_string(&ProducerId(u64::MAX)).expect("number");
        assert_eq!(text, "18446744073709551615");
        assert_eq!(serde_json::from_str::<ProducerId>(&text).expect("number"), ProducerId(u64::MAX));
    }
}
