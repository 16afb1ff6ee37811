//! Requests about what a shard keeps beside its records, and their answers: the same values by call on one core and by
//! mailbox between two. Scope: values.
//! Invariants: a request gets exactly one answer, `ShardOutput::Answered` or `ShardOutput::AskBack`; one that comes back
//! changed nothing.
//! Not here: who asked and how the answer is written (`session`), when it is asked again (`turn::asking`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_runtime::clock::Tick;
use felix_wire::client::Records;
use felix_wire::id::{CoreId, LeaseId, Offset, ProducerId, Sequence};

use super::mail::{Doubt, NotWritten};
use crate::lease::{LeaseAsk, LeaseRefused, LeasesView, MemberView};
use crate::projection::cache::Condition;
use crate::projection::group::{ConnectionId, GroupInfo, GroupRefused, Handed, Seek};

/// What a request takes in memory beside its key and value.
const ASK_OVERHEAD_BYTES: usize = 128;

/// Names a request at its sender; meaningless to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// One with a number counts once, however often it comes.
    CounterAdd {
        key: Bytes,
        delta: i64,
        number: Option<(ProducerId, Sequence)>,
    },
    CounterGet {
        key: Bytes,
    },
    Group(Box<GroupAsk>),
    /// For the core that leads shard 0 of the stream.
    Lease(Box<LeaseAsk>),
    Stream(Box<StreamAsk>),
}

/// A request about the records of a durable shard that is no plain publish and no subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamAsk {
    /// An atomic commit.
    Commit {
        /// As the log is to hold it.
        record: Bytes,
        /// The next offset that there has to be.
        expected: Option<Offset>,
        /// One with a number is made once, however often it comes.
        number: Option<(ProducerId, Sequence)>,
    },
    /// A publish when the next offset is `expected`.
    PublishIf { records: Records, expected: Offset },
    /// A key of the state that commits have put.
    State { key: Bytes },
    /// Records from `from` on, in front of `end`.
    Read { from: Offset, end: Option<Offset>, records_max: usize, bytes_max: usize },
    /// The first record that was appended then or later; milliseconds since 1970.
    TimeOf { at_ms: u64 },
    /// Where the records begin and end.
    Ends,
}

/// A record that was read from the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRecord {
    pub offset: Offset,
    pub payload: Bytes,
    /// Milliseconds since 1970.
    pub timestamp_ms: u64,
}

/// A request about a consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupAsk {
    pub group: Box<str>,
    /// Of whom polls or settles under one.
    pub lease: Option<LeaseId>,
    pub what: GroupWhat,
}

/// What is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupWhat {
    Poll {
        connection: ConnectionId,
        max_records: u32,
        /// How long it waits for a first record.
        wait: Duration,
        /// Zero is the group's own.
        visibility: Duration,
        member: Option<Box<[u8]>>,
        reclaim: bool,
    },
    Ack {
        offset: Offset,
        count: u32,
    },
    Nack {
        offset: Offset,
        attempts: u32,
        delay: Duration,
    },
    Extend {
        offset: Offset,
        attempts: u32,
        by: Duration,
    },
    DeadLetter {
        offset: Offset,
    },
    DeadLetters,
    Discard {
        offset: Offset,
    },
    Redrive {
        offset: Offset,
    },
    Seek {
        to: Seek,
        if_new: bool,
    },
    Describe,
    Delete,
}

/// A record that a poll is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolledRecord {
    pub handed: Handed,
    pub payload: Bytes,
    /// Milliseconds since 1970.
    pub timestamp_ms: u64,
}

impl Ask {
    /// Whether it is about something of a stream, and not of a cache.
    pub fn is_of_stream(&self) -> bool {
        matches!(self, Ask::Group(_) | Ask::Lease(_) | Ask::Stream(_))
    }

    /// Bytes it holds.
    pub fn bytes(&self) -> usize {
        let held = match self {
            Ask::CachePut { key, value, .. } => key.len() + value.len(),
            Ask::CacheGet { key }
            | Ask::CacheDelete { key, .. }
            | Ask::CounterAdd { key, .. }
            | Ask::CounterGet { key } => key.len(),
            Ask::Group(ask) => {
                let member = match &ask.what {
                    GroupWhat::Poll { member, .. } => member.as_ref().map_or(0, |member| member.len()),
                    _ => 0,
                };
                ask.group.len() + member
            }
            Ask::Lease(ask) => ask.held_bytes(),
            Ask::Stream(ask) => ask.held_bytes(),
        };
        held + ASK_OVERHEAD_BYTES
    }
}

impl StreamAsk {
    /// Bytes it holds.
    pub fn held_bytes(&self) -> usize {
        match self {
            StreamAsk::Commit { record, .. } => record.len(),
            StreamAsk::PublishIf { records, .. } => records.encoded_len(),
            StreamAsk::State { key } => key.len(),
            StreamAsk::Read { .. } | StreamAsk::TimeOf { .. } | StreamAsk::Ends => 0,
        }
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
    /// What a poll gets, maybe nothing.
    Polled(Vec<PolledRecord>),
    /// How long a claim holds from now on.
    Extended(Duration),
    DeadLetters(Vec<Offset>),
    Position {
        offset: Offset,
        moved: bool,
    },
    Group(GroupInfo),
    Existed(bool),
    /// What a member of a group holds.
    Leases(Box<LeasesView>),
    Members(Vec<MemberView>),
    /// Written, from this offset on.
    Placed(Offset),
    /// The next offset was another one; nothing was written.
    OffsetMismatch {
        tail: Offset,
    },
    /// A key of the state. `as_of`: the last commit that the answer reflects.
    State {
        value: Option<Bytes>,
        version: Option<Offset>,
        as_of: Option<Offset>,
    },
    /// A page of the log, and where the next one begins.
    Records {
        records: Vec<ReadRecord>,
        next: Offset,
    },
    /// Where a time begins, if anything was appended then or later.
    TimeOf(Option<Offset>),
    /// The offset asked for is below what is held (`available` is the oldest) or above (`available` is the end).
    Cursor {
        too_old: bool,
        requested: Offset,
        available: Offset,
    },
    /// Where the records begin and end.
    Ends {
        start: Offset,
        end: Offset,
    },
    Refused(AskRefused),
}

impl Reply {
    /// Bytes of the value, when it answers a read: one that is not answered can simply be asked again.
    pub fn read_bytes(&self) -> Option<usize> {
        match self {
            // The value of a delete has no version.
            Reply::Value { value: Some(value), version: Some(_) } => Some(value.len()),
            // Its records come again when their claims lapse.
            Reply::Polled(records) => Some(records.iter().map(|record| record.payload.len()).sum()),
            Reply::State { value, .. } => value.as_ref().map(Bytes::len),
            Reply::Records { records, .. } => Some(records.iter().map(|record| record.payload.len()).sum()),
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
    /// What the answer needs is damaged in the log, between these offsets.
    Damaged {
        from: Offset,
        next: Offset,
    },
    /// The log says what cannot be, and nothing of the shard is served.
    Broken(Arc<str>),
    Group(GroupRefused),
    Lease(LeaseRefused),
}

/// A request that waits at the owner.
#[derive(Debug)]
pub struct Parked {
    pub asker: Asker,
    pub ask: Ask,
    pub since: Tick,
}
