//! Watches of a cache shard: what each has been told, and what waits for it. Sans-io.
//! Scope: one [`Watches`] per cache shard. Owns: the queues of events, the newest events for those that come from behind.
//! Invariants: a watch gets every change of its keys from its start on, in offset order, each once, or is told where it
//! ended; the current values come before changes; a queue grows beyond its bound only by what one page of the log or the
//! newest events hold.
//! Not here: collecting current values (`retain`), reading the log (`shard`), how events are written (`session`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use felix_logstore::record::{Batch, BatchKind};
use felix_runtime::planted::{self, Defect};
use felix_wire::id::Offset;

use super::event::KeyEvent;
use super::expiry::Expiry;
use super::interest::{Interest, Interests};
use super::record::CacheRecord;
use crate::projection::record::BadRecord;

/// Watches of one shard.
pub const WATCHES_MAX: usize = 16_384;
/// Events kept of what was settled last, while a watch comes from behind; of a cache in memory while there is any watch,
/// because no log has them.
pub const RECENT_BYTES_MAX: usize = 1 << 20;

/// Names a watch of one shard; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u64);

/// Bound of a watch's queue.
#[derive(Debug, Clone, Copy)]
pub struct WatchLimits {
    pub events_max: usize,
    pub bytes_max: usize,
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFrom {
    /// What is settled from now on.
    Now,
    /// The current values, then what is settled from now on.
    Retained,
    /// The change at this offset.
    Offset(Offset),
}

/// Why there is no watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WatchRefused {
    #[error("the shard ends at {tail}")]
    InFuture { tail: Offset },
    #[error("the shard has {WATCHES_MAX} watches")]
    TooMany,
    /// Of a cache in memory: all its current values would be held for the watch.
    #[error("the current values are more than a watch may hold")]
    TooMuch,
}

/// What is told before the first event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Every change from here on is told.
    pub resume: Offset,
    /// The offset asked for is compacted away: current values come first.
    pub resnapshot: bool,
    /// How many current values come first.
    pub values: u64,
    /// They were asked for, so the client is told how many.
    pub counted: bool,
}

/// The next thing for a watch.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Event(Arc<KeyEvent>),
    /// The watch has ended: go on from here with another one.
    Lagged {
        resume_from: Offset,
    },
    /// The watch has ended: its log has a record that cannot be read.
    Unreadable(BadRecord),
    Nothing,
}

/// Where the record of a current value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    pub at: Offset,
    pub version: Offset,
    /// The number of its key in the table; the key may be another one when the version there is another one.
    pub slot: u32,
}

#[derive(Debug)]
enum Phase {
    /// Current values are being collected; see `retain`.
    Collecting,
    /// Current values come from the log, in the order in which they lie there.
    Values {
        left: VecDeque<Stored>,
        asked: bool,
    },
    /// Reads the log from `next` on, or waits for room to take the newest events.
    Behind {
        next: Offset,
        asked: bool,
    },
    Live,
    Lagged {
        resume_from: Offset,
    },
    Unreadable(BadRecord),
}

#[derive(Debug)]
struct Watch {
    interest: Interest,
    limits: WatchLimits,
    phase: Phase,
    queue: VecDeque<Arc<KeyEvent>>,
    bytes: usize,
    /// Where changes begin.
    resume: Offset,
    started: Option<Result<Started, WatchRefused>>,
}

impl Watch {
    /// Gives what it costs.
    fn push(&mut self, event: Arc<KeyEvent>) -> usize {
        let cost = event.cost();
        self.bytes += cost;
        self.queue.push_back(event);
        cost
    }

    fn is_full(&self) -> bool {
        self.queue.len() >= self.limits.events_max || self.bytes >= self.limits.bytes_max
    }

    /// Whether so much has left that reading should go on.
    fn has_room(&self) -> bool {
        self.queue.len() <= self.limits.events_max / 2 && self.bytes <= self.limits.bytes_max / 2
    }

    fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Lagged { .. } | Phase::Unreadable(_))
    }
}

/// See the module.
#[derive(Debug)]
pub struct Watches {
    in_memory: bool,
    watches: BTreeMap<WatchId, Watch>,
    next_id: u64,
    /// Bytes of all queues.
    queued_bytes: usize,
    interests: Interests,
    /// Those that are not live and have not ended.
    behind: BTreeSet<WatchId>,
    /// Everything that was settled from `recent_start` on.
    recent: VecDeque<Arc<KeyEvent>>,
    recent_bytes: usize,
    recent_start: Offset,
    settled_end: Offset,
    /// Watches with something for them that there was not, since it was last asked.
    ready: BTreeSet<WatchId>,
}

impl Watches {
    /// Without watches, of a shard that ends at `end`.
    pub fn new(in_memory: bool, end: Offset) -> Watches {
        Watches {
            in_memory,
            watches: BTreeMap::new(),
            next_id: 0,
            queued_bytes: 0,
            interests: Interests::default(),
            behind: BTreeSet::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            recent_start: end,
            settled_end: end,
            ready: BTreeSet::new(),
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.watches.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// The lowest offset from which changes can be told without the log.
    pub fn recent_start(&self) -> Offset {
        self.recent_start
    }

    /// Adds a watch whose changes begin at `resume`. `collect`: current values come first, and are being collected.
    pub fn add(
        &mut self,
        interest: Interest,
        limits: WatchLimits,
        resume: Offset,
        collect: bool,
    ) -> Result<WatchId, WatchRefused> {
        if self.watches.len() >= WATCHES_MAX {
            return Err(WatchRefused::TooMany);
        }
        self.let_go();
        let id = WatchId(self.next_id);
        self.next_id += 1;
        let phase = if collect { Phase::Collecting } else { Phase::Behind { next: resume, asked: false } };
        let started =
            (!collect).then_some(Ok(Started { resume, resnapshot: false, values: 0, counted: false }));
        let queue = VecDeque::new();
        let watch = Watch { interest: interest.clone(), limits, phase, queue, bytes: 0, resume, started };
        self.watches.insert(id, watch);
        self.interests.add(&interest, id);
        self.fall_behind(id);
        if !collect {
            self.ready.insert(id);
            self.join(id);
        }
        Ok(id)
    }

    /// The current values of a watch were collected: `held` are told first, then those in the log.
    pub fn collected(
        &mut self,
        id: WatchId,
        held: Vec<Arc<KeyEvent>>,
        mut stored: Vec<Stored>,
        counted: bool,
    ) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        let values = (held.len() + stored.len()) as u64;
        watch.started = Some(Ok(Started { resume: watch.resume, resnapshot: !counted, values, counted }));
        held.into_iter().for_each(|event| self.queued_bytes += watch.push(event));
        stored.sort_unstable_by_key(|stored| stored.at);
        watch.phase = match stored.is_empty() {
            true => Phase::Behind { next: watch.resume, asked: false },
            false => Phase::Values { left: stored.into(), asked: false },
        };
        self.ready.insert(id);
        self.join(id);
    }

    /// The current values of a watch cannot be collected; whoever takes that removes the watch.
    pub fn refuse(&mut self, id: WatchId, why: WatchRefused) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        watch.started = Some(Err(why));
        watch.phase = Phase::Lagged { resume_from: watch.resume };
        self.ready.insert(id);
        self.caught_up(id);
    }

    /// What a watch follows, and where its changes begin.
    pub fn of(&self, id: WatchId) -> Option<(&Interest, Offset)> {
        self.watches.get(&id).map(|watch| (&watch.interest, watch.resume))
    }

    /// Changes the bounds of all queues. What is over them already stays until it is taken.
    pub fn set_limits(&mut self, limits: WatchLimits) {
        self.watches.values_mut().for_each(|watch| watch.limits = limits);
    }

    /// Bytes in all queues; watches of one shard share events.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Records that watches will still read as current values.
    pub fn stored(&self) -> usize {
        let left = |watch: &Watch| match &watch.phase {
            Phase::Values { left, .. } => left.len(),
            _ => 0,
        };
        self.watches.values().map(left).sum()
    }

    /// What is to be told before the first event, once.
    pub fn take_started(&mut self, id: WatchId) -> Option<Result<Started, WatchRefused>> {
        self.watches.get_mut(&id)?.started.take()
    }

    /// Ends a watch.
    pub fn remove(&mut self, id: WatchId) {
        if let Some(watch) = self.watches.remove(&id) {
            self.queued_bytes -= watch.bytes;
            self.interests.remove(&watch.interest, id);
        }
        self.ready.remove(&id);
        self.caught_up(id);
    }

    /// Whether there are such as [`Self::take_ready`] gives.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The watches with something for them that there was not when this was asked last.
    pub fn take_ready(&mut self) -> BTreeSet<WatchId> {
        std::mem::take(&mut self.ready)
    }

    /// A change was settled.
    pub fn tell(&mut self, key: &[u8], value: Option<&Bytes>, at: Offset, expiry: Expiry) {
        if self.watches.is_empty() {
            return;
        }
        let mut event = None;
        let make = || Arc::new(KeyEvent::new(key.into(), value.cloned(), at, expiry));
        let (watches, ready, queued_bytes) = (&mut self.watches, &mut self.ready, &mut self.queued_bytes);
        let mut overrun = Vec::new();
        self.interests.of(key, |id| {
            let Some(watch) = watches.get_mut(&id).filter(|watch| matches!(watch.phase, Phase::Live)) else {
                return;
            };
            if watch.is_full() {
                let next = if planted::is(Defect::WatchGap) { Offset(at.0 + 1) } else { at };
                watch.phase = Phase::Behind { next, asked: false };
                overrun.push(id);
            } else {
                *queued_bytes += watch.push(event.get_or_insert_with(make).clone());
                ready.insert(id);
            }
        });
        for id in overrun {
            self.settled_end = self.settled_end.max(at);
            self.fall_behind(id);
        }
        if self.keeps_recent() {
            let event = event.unwrap_or_else(make);
            self.recent_bytes += event.cost();
            self.recent.push_back(event);
            while self.recent_bytes > RECENT_BYTES_MAX {
                let Some(oldest) = self.recent.pop_front() else { break };
                self.recent_bytes -= oldest.cost();
                self.recent_start = Offset(oldest.at.0 + 1);
            }
        }
    }

    /// Everything below `end` is settled, and was told.
    pub fn settled(&mut self, end: Offset) {
        self.settled_end = self.settled_end.max(end);
        self.let_go();
    }

    /// The next thing for a watch.
    pub fn next(&mut self, id: WatchId) -> Next {
        let Some(watch) = self.watches.get_mut(&id) else { return Next::Nothing };
        if let Some(event) = watch.queue.pop_front() {
            watch.bytes -= event.cost();
            self.queued_bytes -= event.cost();
            self.join(id);
            return Next::Event(event);
        }
        match watch.phase {
            Phase::Lagged { resume_from } => Next::Lagged { resume_from },
            Phase::Unreadable(bad) => Next::Unreadable(bad),
            _ => Next::Nothing,
        }
    }

    /// Whether [`Self::wants_page`] would give something.
    pub fn needs_page(&self, id: WatchId) -> bool {
        let Some(watch) = self.watches.get(&id).filter(|watch| watch.has_room()) else { return false };
        match &watch.phase {
            Phase::Values { asked, .. } => !asked,
            Phase::Behind { asked, .. } => !asked && !self.in_memory,
            _ => false,
        }
    }

    /// Where a watch wants the log to be read, when it does; answer with [`Self::take_page`] or [`Self::no_page`].
    pub fn wants_page(&mut self, id: WatchId) -> Option<Offset> {
        let watch = self.watches.get_mut(&id)?;
        let room = watch.has_room();
        match &mut watch.phase {
            Phase::Values { left, asked: asked @ false } if room => {
                *asked = true;
                left.front().map(|stored| stored.at)
            }
            Phase::Behind { next, asked: asked @ false } if room && !self.in_memory => {
                *asked = true;
                Some(*next)
            }
            _ => None,
        }
    }

    /// The page a watch wanted; the log was read up to `end`.
    pub fn take_page(&mut self, id: WatchId, batches: &[Batch], end: Offset) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        self.queued_bytes -= watch.bytes;
        if let Err(bad) = watch.read(batches, end) {
            watch.phase = Phase::Unreadable(bad);
        }
        self.queued_bytes += watch.bytes;
        self.ready.insert(id);
        if self.watches.get(&id).is_some_and(Watch::has_ended) {
            self.caught_up(id);
        }
        self.join(id);
    }

    /// The log begins at `start`, behind what a watch wanted. The watch ends, unless `find` says where compaction has put
    /// the current values that lay below.
    pub fn no_page(&mut self, id: WatchId, start: Offset, find: impl Fn(Stored) -> Option<Offset>) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        let resume_from = match &mut watch.phase {
            Phase::Values { left, asked } => {
                *asked = false;
                match move_values(left, start, find) {
                    Ok(()) => return,
                    Err(resume_from) => resume_from,
                }
            }
            Phase::Behind { next, .. } => *next,
            _ => return,
        };
        watch.phase = Phase::Lagged { resume_from };
        self.ready.insert(id);
        self.caught_up(id);
    }

    /// Ends a watch that holds what others need. Nothing it has not taken is lost to another one that goes on from where it
    /// is told to.
    pub fn lag(&mut self, id: WatchId) {
        let Some(watch) = self.watches.get_mut(&id).filter(|watch| !watch.has_ended()) else { return };
        let resume_from = match (&watch.phase, watch.queue.front()) {
            (Phase::Collecting, _) => return,
            // From the very beginning there are either all changes or the current values.
            (Phase::Values { .. }, _) => Offset(0),
            (_, Some(event)) if event.at < watch.resume => Offset(0),
            (_, Some(event)) => event.at,
            (Phase::Behind { next, .. }, None) => *next,
            (_, None) => return,
        };
        watch.queue.clear();
        self.queued_bytes -= std::mem::take(&mut watch.bytes);
        watch.phase = Phase::Lagged { resume_from };
        self.ready.insert(id);
        self.caught_up(id);
    }

    /// The watches and what their queues hold, bytes.
    pub fn sizes(&self) -> impl Iterator<Item = (WatchId, usize)> {
        self.watches.iter().map(|(id, watch)| (*id, watch.bytes))
    }

    /// Lets a watch go on with the newest events when it has come to them and has room.
    fn join(&mut self, id: WatchId) {
        let Some(watch) = self.watches.get_mut(&id) else { return };
        let Phase::Behind { next, asked: false } = watch.phase else { return };
        if !watch.has_room() {
            return;
        }
        if next < self.recent_start {
            if self.in_memory {
                watch.phase = Phase::Lagged { resume_from: next };
                self.ready.insert(id);
                self.caught_up(id);
            }
            return;
        }
        let first = self.recent.partition_point(|event| event.at < next);
        for event in self.recent.iter().skip(first) {
            if watch.interest.covers(&event.key) {
                self.queued_bytes += watch.push(event.clone());
            }
        }
        watch.phase = Phase::Live;
        if !watch.queue.is_empty() {
            self.ready.insert(id);
        }
        self.caught_up(id);
    }

    fn fall_behind(&mut self, id: WatchId) {
        self.let_go();
        self.behind.insert(id);
    }

    /// Whether somebody may need what was settled last.
    fn keeps_recent(&self) -> bool {
        !self.behind.is_empty() || (self.in_memory && !self.watches.is_empty())
    }

    /// Drops what was settled last, when nobody needs it.
    fn let_go(&mut self) {
        if !self.keeps_recent() {
            self.recent.clear();
            self.recent_bytes = 0;
            self.recent_start = self.settled_end;
        }
    }

    fn caught_up(&mut self, id: WatchId) {
        self.behind.remove(&id);
        self.let_go();
    }
}

/// Looks where the values are now that lay below `start`, which are the first ones. When one of them is nowhere any more:
/// its version, from which another watch gets all current values, because it lies below the log's start too.
fn move_values(
    left: &mut VecDeque<Stored>,
    start: Offset,
    find: impl Fn(Stored) -> Option<Offset>,
) -> Result<(), Offset> {
    let below = left.partition_point(|stored| stored.at < start);
    let mut moved = Vec::with_capacity(below);
    for stored in left.drain(..below) {
        let at = find(stored).filter(|at| *at >= start).ok_or(stored.version)?;
        moved.push(Stored { at, ..stored });
    }
    moved.sort_unstable_by_key(|stored| stored.at);
    let behind = moved.first().zip(left.back()).is_none_or(|(first, last)| last.at < first.at);
    left.extend(moved);
    if !behind {
        left.make_contiguous().sort_unstable_by_key(|stored| stored.at);
    }
    Ok(())
}

impl Watch {
    fn read(&mut self, batches: &[Batch], end: Offset) -> Result<(), BadRecord> {
        for batch in batches.iter().filter(|batch| batch.head().kind == BatchKind::Data) {
            for record in batch.records() {
                let bad = |fault| BadRecord { offset: record.offset, fault };
                let wanted = match &self.phase {
                    Phase::Values { left, .. } => {
                        left.front().is_some_and(|stored| stored.at == record.offset)
                    }
                    Phase::Behind { next, .. } => record.offset >= *next,
                    _ => false,
                };
                if wanted {
                    let found = CacheRecord::decode(&record.payload).map_err(bad)?;
                    self.take_record(found, &record.payload, record.offset);
                }
            }
        }
        match &mut self.phase {
            Phase::Values { left, asked } => {
                *asked = false;
                match left.front() {
                    None => self.phase = Phase::Behind { next: self.resume, asked: false },
                    // The log was read past it, and it was not there: another watch gets all current values.
                    Some(stored) if stored.at < end => {
                        self.phase = Phase::Lagged { resume_from: stored.version };
                    }
                    Some(_) => {}
                }
            }
            Phase::Behind { next, asked } => (*next, *asked) = ((*next).max(end), false),
            _ => {}
        }
        Ok(())
    }

    fn take_record(&mut self, record: CacheRecord<'_>, payload: &Bytes, offset: Offset) {
        let values = match &mut self.phase {
            Phase::Values { left, .. } => left.pop_front().is_some(),
            _ => false,
        };
        let (key, value, at, expiry) = match record {
            CacheRecord::Put { key, value, expiry } => (key, Some(value), offset, expiry),
            CacheRecord::Copy { key, value, expiry, version } if values => {
                (key, Some(value), version, expiry)
            }
            // Compaction changes nothing.
            CacheRecord::Copy { .. } => return,
            CacheRecord::Delete { key } => (key, None, offset, Expiry::NEVER),
        };
        if self.interest.covers(key) {
            let value = value.map(|value| payload.slice_ref(value));
            self.push(Arc::new(KeyEvent::new(key.into(), value, at, expiry)));
        }
    }
}
