//! Requests about what a shard keeps beside its records, and their answers: the same values by call on one core and by
//! mailbox between two. Scope: values.
//! Invariants: a request gets exactly one answer, `ShardOutput::Answered` or `ShardOutput::AskBack`; one that comes back
//! changed nothing.
//! Not here: who asked and how the answer is written (`session`), when it is asked again (`turn::asking`).

use std::sync::Arc;

use bytes::Bytes;
use felix_runtime::clock::Tick;
use felix_wire::id::{CoreId, Offset};

use super::mail::{Doubt, NotWritten};
use crate::projection::cache::Condition;

/// What a request takes in memory beside its key and value.
const ASK_OVERHEAD_BYTES: usize = 128;

/// Names a request at its sender; meaningless to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AskToken(pub u64);

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    pub core: CoreId,
    pub token: AskToken,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    CacheGet {
        key: Bytes,
    },
    /// With a condition other than `Always` the answer says whether it held.
    CachePut {
        key: Bytes,
        value: Bytes,
        ttl_ms: Option<u64>,
        condition: Condition,
    },
    /// Without a condition the answer tells the value that was removed.
    CacheDelete {
        key: Bytes,
        condition: Condition,
    },
    CounterAdd {
        key: Bytes,
        delta: i64,
    },
    CounterGet {
        key: Bytes,
    },
}

impl Ask {
    /// Bytes it holds.
    pub fn bytes(&self) -> usize {
        let held = match self {
            Ask::CachePut { key, value, .. } => key.len() + value.len(),
            Ask::CacheGet { key }
            | Ask::CacheDelete { key, .. }
            | Ask::CounterAdd { key, .. }
            | Ask::CounterGet { key } => key.len(),
        };
        held + ASK_OVERHEAD_BYTES
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// What a key has, or had before its delete.
    Value {
        value: Option<Bytes>,
        version: Option<Offset>,
    },
    /// It is written as its log promises.
    Written,
    /// Whether a condition held, and the version there is now.
    Condition {
        applied: bool,
        version: Option<Offset>,
    },
    /// The sum of a counter; none when nothing was ever added.
    Sum(Option<i64>),
    Refused(AskRefused),
}

impl Reply {
    /// Bytes of the value, when it answers a read: one that is not answered can simply be asked again.
    pub fn read_bytes(&self) -> Option<usize> {
        match self {
            // The value of a delete has no version.
            Reply::Value { value: Some(value), version: Some(_) } => Some(value.len()),
            _ => None,
        }
    }
}

/// Why a request was refused. Nothing of it happened, except as `Unknown` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskRefused {
    /// The request makes no sense, and why.
    Invalid(Arc<str>),
    /// A bound of what is kept.
    Limit(Arc<str>),
    /// The shard is not keeping up.
    Overloaded,
    NotWritten(NotWritten),
    /// Whether it happened is not known.
    Unknown(Doubt),
    /// What the answer needs cannot be read from the log.
    Unreadable,
    /// The log says what cannot be, and nothing of the shard is served.
    Broken(Arc<str>),
}

/// A request that waits at the owner.
#[derive(Debug)]
pub struct Parked {
    pub asker: Asker,
    pub ask: Ask,
    pub since: Tick,
}
