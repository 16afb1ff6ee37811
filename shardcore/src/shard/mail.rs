//! What goes to a shard and what comes back: the same values by call on one core and by mailbox between two.
//! Scope: values. A publish carries item and byte credit of its pair of cores, and gets exactly one answer
//! (`Published`, `Bounced`, `Refused` or `Unknown`), which gives the credit back.

use felix_wire::client::Records;
use felix_wire::id::{Generation, Offset, ProducerId, Sequence};

use super::ask::{Ask, AskToken, Reply};
use super::cache::watch::{WatchAsk, WatchTold};
use super::ring::Page;
use crate::snapshot::ShardId;

/// Names a publish at its sender; meaningless to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobToken(pub u64);

/// Names a subscription or a watch at its sender; meaningless to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubToken(pub u64);

/// Where a publish stands in its lane. The owner takes a run from its beginning (`seq` 0) without a hole, so that what
/// was sent behind a publish that came back comes back too, whoever sent that one back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePos {
    /// A new one begins when everything of the one before is back.
    pub epoch: u32,
    /// Counts the publishes sent in the epoch.
    pub seq: u32,
}

impl LanePos {
    /// The position behind so many publishes.
    pub fn behind(self, publishes: u32) -> LanePos {
        LanePos { seq: self.seq.wrapping_add(publishes), ..self }
    }
}

/// One batch on its way to the owner. Records are never empty.
#[derive(Debug)]
pub struct Job {
    pub token: JobToken,
    pub records: Records,
    /// An idempotent producer and the number of this batch.
    pub producer: Option<(ProducerId, Sequence)>,
}

/// Where a subscription begins (client-protocol 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Latest,
    Earliest,
    At(Offset),
}

/// Which cursor a pull moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The feed of the asking core: the answer waits until there is something, and everything from `from` on is pinned.
    Live,
    /// One subscription that is below its feed: answered at once; pinned only if it was subscribed with `hold`.
    CatchUp(SubToken),
}

/// To the owner of a shard, with the sender's core beside it.
#[derive(Debug)]
pub struct ToShard {
    pub shard: ShardId,
    /// The generation the sender's routes name; another one is `Moved`.
    pub generation: Generation,
    pub what: ShardInput,
}

/// See `ToShard`.
#[derive(Debug)]
pub enum ShardInput {
    Publish {
        at: LanePos,
        job: Job,
    },
    /// `hold`: what the subscription has not been sent stays in the ring until `Release`.
    Subscribe {
        token: SubToken,
        start: Start,
        hold: bool,
    },
    Pull {
        reader: Reader,
        from: Offset,
        bytes_max: usize,
    },
    /// The subscription reads with its feed from now on, or has ended.
    Release {
        token: SubToken,
    },
    /// The core has no subscription left.
    Unlink,
    /// Answered once, by `Answered` or `AskBack`.
    Ask {
        token: AskToken,
        ask: Ask,
    },
    /// Nobody waits for the answer of a request any more; it is answered all the same.
    Cancel {
        token: AskToken,
    },
    /// About a watch of a cache.
    Watch {
        token: SubToken,
        ask: WatchAsk,
    },
}

/// Why a publish came back. Nothing was claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounce {
    /// The ring is pinned to its bound; `Room` follows.
    Full,
    /// Not this core, or not this generation. Newer routes follow.
    Moved,
}

/// Why a publish was refused for good. Nothing was claimed for it, or what was is gone unseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotWritten {
    /// The volume of the log is nearly full.
    NoSpace,
    /// The folder of the log's volume is not there any more.
    VolumeGone,
    /// The log needs another file, and none can be made.
    NoFile,
    /// The log failed and takes no writes until the process has started again.
    Stopped,
    /// More than a batch of the log can hold.
    TooLarge,
    /// What the log says of producers cannot be read.
    Unreadable,
    /// Offsets below this one are damaged, and batches of the producer may be among them.
    Damaged { next: Offset },
    /// Its number does not fit what the shard knows of its producer.
    Number(NumberRefusal),
    /// The stream was deleted, and the log with all that is in it.
    Deleted,
}

/// Why nobody can say whether a publish is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The log failed.
    LogFailed,
    /// The disk has not confirmed it in time; it may do so later.
    Unconfirmed,
    /// The shard is led elsewhere, or at a later generation.
    Moved,
}

/// Why a numbered publish was refused (client-protocol 10.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberRefusal {
    Gap { expected: Sequence },
    Expired,
    Reused,
    Unknown,
}

/// Why a page below the ring could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageLoss {
    /// Retention has removed it; this is the oldest offset held.
    TooOld(Offset),
    /// The bytes of offsets `from..next` are not what was written; from `next` on it can be read.
    Damaged { from: Offset, next: Offset },
    /// The disk does not give the bytes.
    Unreadable,
}

/// Why the subscriptions of a shard end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Deleted,
    Moved,
}

/// From the owner of a shard.
#[derive(Debug)]
pub struct FromShard {
    pub shard: ShardId,
    pub generation: Generation,
    pub what: ShardOutput,
}

/// See `FromShard`.
#[derive(Debug)]
pub enum ShardOutput {
    /// Appended from `base` on; `logged`: in a log, and settled there.
    Published {
        token: JobToken,
        base: Offset,
        logged: bool,
    },
    /// Refused for good.
    Refused {
        token: JobToken,
        why: NotWritten,
    },
    /// Whether it is in the log is not known.
    Unknown {
        token: JobToken,
        why: Doubt,
    },
    Bounced {
        job: Job,
        why: Bounce,
    },
    /// Claims are possible again.
    Room,
    Subscribed {
        token: SubToken,
        start: Offset,
        end: Offset,
        /// What is there below this offset is history.
        live: Offset,
        logged: bool,
    },
    /// The start lies outside what is held: below (`available` is the oldest) or above (`available` is the end).
    SubscribeRefused {
        token: SubToken,
        too_old: bool,
        requested: Offset,
        available: Offset,
    },
    /// The shard is not served here at that generation.
    SubscribeMoved {
        token: SubToken,
    },
    Page {
        reader: Reader,
        page: Page,
    },
    /// There is no page for a subscription that reads below its feed.
    PageLost {
        token: SubToken,
        why: PageLoss,
    },
    Answered {
        token: AskToken,
        reply: Reply,
    },
    /// Nothing came of it: the shard is not served here at that generation, or not yet.
    AskBack {
        token: AskToken,
        ask: Ask,
    },
    Watch {
        token: SubToken,
        told: WatchTold,
    },
    /// `rest`: what the asking core was not sent, and what was held for its subscriptions; empty when the stream is gone.
    Ended {
        why: Ending,
        rest: Page,
    },
}
