//! The watches of one shard of a cache: who gets their events, and the pages of the log that they read. Sans-io.
//! Scope: functions of a shard of a cache, and what it holds for its watches. Owns: the asks for events that wait.
//! Invariants: a watch is answered once that it has begun or why not, and nothing comes before that; events are sent only
//! to who has asked for them, so that one who does not read is sent no more; watches read a few pages at a time, so that
//! other reads do not wait behind all of them.
//! Not here: which events there are (`projection::cache::watch`), the streams they are written to (`turn::watching`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use felix_logstore::record::Batch;
use felix_wire::id::{CoreId, Offset};

use super::CacheShard;
use crate::hash::HashState;
use crate::projection::cache::event::KeyEvent;
use crate::projection::cache::interest::Interest;
use crate::projection::cache::watch::{Next, Started, WatchFrom, WatchId, WatchLimits, WatchRefused};
use crate::projection::record::BadRecord;
use crate::shard::ShardCx;
use crate::shard::mail::{Ending, FromShard, PageLoss, ShardOutput, SubToken};
use crate::store::{PageFor, PageReader};

/// Bound of the queue of a watch while the core has memory for it.
pub const QUEUE_LIMITS: WatchLimits = WatchLimits { events_max: 1_024, bytes_max: 256 << 10 };
/// Bytes of the log read at once for a watch, and pages that the watches of a shard read at the same time.
const PAGE_BYTES: usize = 128 << 10;
const READS_MAX: usize = 4;
/// Keys looked at in one turn for watches that begin with the current values.
const COLLECT_SLOTS: u32 = 4_096;

/// What is asked about a watch. Its token names it at its sender.
#[derive(Debug)]
pub enum WatchAsk {
    /// Answered once, by `Started`, `Refused` or `Back`.
    Begin { interest: Interest, from: WatchFrom },
    /// Answered once, by `Events` or `Ended`, when there is something.
    Pull { bytes_max: usize },
    /// Nobody reads it any more. Not answered.
    End,
}

/// What is said about it.
#[derive(Debug)]
pub enum WatchTold {
    /// The shard is not served here at that generation, or not yet.
    Back(WatchAsk),
    Started(Started),
    Refused(WatchNo),
    /// One at least.
    Events(Vec<Arc<KeyEvent>>),
    /// Nothing more comes.
    Ended(WatchEnd),
}

/// Why there is no watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchNo {
    Refused(WatchRefused),
    /// The log says what cannot be, and nothing of the shard is served.
    Broken(Arc<str>),
}

/// Why one has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// Another one goes on from here.
    Lagged {
        resume_from: Offset,
    },
    /// What it wanted of the log cannot be read.
    Lost(PageLoss),
    /// A record of the log is none of a cache.
    Unreadable(BadRecord),
    Shard(Ending),
}

/// Who gets the events of a watch.
#[derive(Debug)]
struct Watcher {
    core: CoreId,
    token: SubToken,
    begun: bool,
    /// How much it has asked for and not got.
    wanted: Option<usize>,
    /// It stands in the line of those that want a page.
    in_line: bool,
    lost: Option<PageLoss>,
}

/// What a shard holds for its watches beside their events.
#[derive(Debug)]
pub struct Watchers {
    all: HashMap<WatchId, Watcher, HashState>,
    by_token: HashMap<(CoreId, SubToken), WatchId, HashState>,
    line: VecDeque<WatchId>,
    reads: usize,
    limits: WatchLimits,
    /// No page is read while all queues hold more than this.
    bytes_max: usize,
}

impl Default for Watchers {
    fn default() -> Watchers {
        let (all, by_token) = (HashMap::default(), HashMap::default());
        let (line, limits, bytes_max) = (VecDeque::new(), QUEUE_LIMITS, usize::MAX);
        Watchers { all, by_token, line, reads: 0, limits, bytes_max }
    }
}

impl Watchers {
    /// Pages of the log that are being read.
    #[cfg(any(test, feature = "sim"))]
    pub fn reads(&self) -> usize {
        self.reads
    }

    fn remove(&mut self, watch: WatchId) -> Option<Watcher> {
        let watcher = self.all.remove(&watch)?;
        self.by_token.remove(&(watcher.core, watcher.token));
        Some(watcher)
    }
}

impl CacheShard {
    /// Something about a watch of `from`. Afterwards `tell_watches`.
    pub fn watch(&mut self, from: (CoreId, SubToken), ask: WatchAsk, cx: &mut ShardCx<'_>) {
        match ask {
            WatchAsk::Begin { interest, from: start } => self.begin_watch(from, interest, start, cx),
            WatchAsk::Pull { bytes_max } => {
                let Some(watch) = self.watchers.by_token.get(&from).copied() else { return };
                if let Some(watcher) = self.watchers.all.get_mut(&watch) {
                    watcher.wanted = Some(bytes_max);
                }
                self.serve_watch(watch, cx);
            }
            WatchAsk::End => {
                if let Some(watch) = self.watchers.by_token.get(&from).copied() {
                    self.forget_watch(watch);
                }
            }
        }
    }

    fn begin_watch(
        &mut self,
        (core, token): (CoreId, SubToken),
        interest: Interest,
        from: WatchFrom,
        cx: &mut ShardCx<'_>,
    ) {
        if let Some(why) = &self.broken {
            let no = WatchTold::Refused(WatchNo::Broken(Arc::clone(why)));
            return self.tell_watch((core, token), no, cx);
        }
        if self.is_replaying() {
            let back = WatchTold::Back(WatchAsk::Begin { interest, from });
            return self.tell_watch((core, token), back, cx);
        }
        match self.cache.watch(interest, from, self.watchers.limits) {
            Ok(watch) => {
                let watcher = Watcher { core, token, begun: false, wanted: None, in_line: false, lost: None };
                self.watchers.all.insert(watch, watcher);
                self.watchers.by_token.insert((core, token), watch);
            }
            Err(why) => {
                self.tell_watch((core, token), WatchTold::Refused(WatchNo::Refused(why)), cx);
            }
        }
    }

    /// Whether `tell_watches` has something to do.
    pub fn is_watch_ready(&self) -> bool {
        self.cache.is_watch_ready()
    }

    /// Sends the watches what there is for them that there was not before.
    pub fn tell_watches(&mut self, cx: &mut ShardCx<'_>) {
        for watch in self.cache.take_ready() {
            self.serve_watch(watch, cx);
        }
    }

    /// Whether current values are being collected for watches.
    pub fn is_collecting(&self) -> bool {
        self.cache.is_collecting()
    }

    /// Goes on with that for a while. Afterwards `tell_watches`.
    pub fn collect(&mut self) {
        self.cache.collect(COLLECT_SLOTS);
    }

    /// How many watches there are, and the bytes of their queues.
    pub fn watches(&self) -> (usize, usize) {
        (self.cache.watches(), self.cache.watch_bytes())
    }

    /// What each queue may hold from now on, `QUEUE_LIMITS` at most, and all together before their log is read.
    pub fn set_watch_bytes_max(&mut self, each: usize, all: usize) {
        self.watchers.bytes_max = all;
        let bytes_max = each.min(QUEUE_LIMITS.bytes_max);
        if self.watchers.limits.bytes_max != bytes_max {
            self.watchers.limits.bytes_max = bytes_max;
            self.cache.set_watch_limits(self.watchers.limits);
        }
    }

    /// Goes on reading for watches. When they wait for others that hold too much and do not take it, those that hold most
    /// end, and can go on from where they are told. Afterwards `tell_watches`.
    pub fn relieve_watches(&mut self, cx: &mut ShardCx<'_>) {
        if self.watchers.line.is_empty() {
            return;
        }
        if self.watchers.reads == 0 && self.cache.watch_bytes() > self.watchers.bytes_max {
            let mut sizes: Vec<(usize, WatchId)> =
                self.cache.watch_sizes().map(|(watch, bytes)| (bytes, watch)).collect();
            sizes.sort_unstable();
            while self.cache.watch_bytes() > self.watchers.bytes_max / 2
                && let Some((_, watch)) = sizes.pop()
            {
                self.cache.lag_watch(watch);
            }
        }
        self.read_for_watches(cx);
    }

    /// Tells one watch that it has begun, and sends it what it has asked for.
    fn serve_watch(&mut self, watch: WatchId, cx: &mut ShardCx<'_>) {
        let Some(watcher) = self.watchers.all.get_mut(&watch) else { return self.cache.unwatch(watch) };
        let to = (watcher.core, watcher.token);
        match self.cache.take_started(watch) {
            Some(Ok(started)) => {
                watcher.begun = true;
                self.tell_watch(to, WatchTold::Started(started), cx);
            }
            Some(Err(why)) => {
                self.forget_watch(watch);
                return self.tell_watch(to, WatchTold::Refused(WatchNo::Refused(why)), cx);
            }
            None if !watcher.begun => return,
            None => {}
        }
        self.send_events(watch, to, cx);
        self.want_page(watch, cx);
    }

    fn send_events(&mut self, watch: WatchId, to: (CoreId, SubToken), cx: &mut ShardCx<'_>) {
        let Some(watcher) = self.watchers.all.get_mut(&watch) else { return };
        let Some(bytes_max) = watcher.wanted else { return };
        let (mut events, mut bytes) = (Vec::new(), 0);
        let mut end = None;
        while bytes < bytes_max {
            match self.cache.next_event(watch) {
                Next::Event(event) => {
                    bytes += event.cost();
                    events.push(event);
                    continue;
                }
                Next::Nothing => end = watcher.lost.map(WatchEnd::Lost),
                Next::Lagged { resume_from } => end = Some(WatchEnd::Lagged { resume_from }),
                Next::Unreadable(bad) => end = Some(WatchEnd::Unreadable(bad)),
            }
            break;
        }
        if !events.is_empty() {
            watcher.wanted = None;
            self.tell_watch(to, WatchTold::Events(events), cx);
        }
        if let Some(end) = end {
            self.forget_watch(watch);
            self.tell_watch(to, WatchTold::Ended(end), cx);
        }
    }

    /// Has the log read for a watch that wants it, when it is its turn.
    fn want_page(&mut self, watch: WatchId, cx: &mut ShardCx<'_>) {
        let Some(watcher) = self.watchers.all.get_mut(&watch) else { return };
        if watcher.in_line || watcher.lost.is_some() || !self.cache.needs_page(watch) {
            return;
        }
        watcher.in_line = true;
        self.watchers.line.push_back(watch);
        self.read_for_watches(cx);
    }

    fn read_for_watches(&mut self, cx: &mut ShardCx<'_>) {
        let Some(((cache, _), store)) = self.logs.as_ref().zip(cx.store.as_deref_mut()) else { return };
        while self.watchers.reads < READS_MAX
            && self.cache.watch_bytes() <= self.watchers.bytes_max
            && let Some(watch) = self.watchers.line.pop_front()
        {
            let Some(watcher) = self.watchers.all.get_mut(&watch) else { continue };
            watcher.in_line = false;
            let Some(from) = self.cache.wants_page(watch) else { continue };
            let until = self.cache.settled_end();
            let reader = PageReader::Watch { watch, until };
            let page = PageFor { shard: self.id, reader, from, life: self.life };
            let bytes = PAGE_BYTES.min(self.watchers.limits.bytes_max / 2);
            store.read(cache.at(), page, until, bytes.max(1));
            self.watchers.reads += 1;
        }
    }

    /// A page that a watch wanted, read up to `until` or the end of its last batch. Afterwards `tell_watches`.
    pub fn watch_page(
        &mut self,
        (watch, until): (WatchId, Offset),
        read: Result<&[Batch], &PageLoss>,
        cx: &mut ShardCx<'_>,
    ) {
        self.watchers.reads -= 1;
        match read {
            Ok(batches) => {
                let end = batches.last().map_or(until, |batch| batch.head().end());
                self.cache.take_page(watch, batches, end);
            }
            Err(PageLoss::TooOld(start)) => self.cache.no_page(watch, *start),
            Err(loss) => {
                if let Some(watcher) = self.watchers.all.get_mut(&watch) {
                    watcher.lost = Some(*loss);
                }
            }
        }
        self.serve_watch(watch, cx);
        self.read_for_watches(cx);
    }

    /// The shard ends: all watches are told.
    pub(super) fn end_watches(&mut self, why: Ending, cx: &mut ShardCx<'_>) {
        for (watch, watcher) in std::mem::take(&mut self.watchers.all) {
            self.cache.unwatch(watch);
            let told = WatchTold::Ended(WatchEnd::Shard(why));
            self.tell_watch((watcher.core, watcher.token), told, cx);
        }
        self.watchers = Watchers::default();
    }

    fn forget_watch(&mut self, watch: WatchId) {
        self.watchers.remove(watch);
        self.cache.unwatch(watch);
    }

    fn tell_watch(&self, (core, token): (CoreId, SubToken), told: WatchTold, cx: &mut ShardCx<'_>) {
        let what = ShardOutput::Watch { token, told };
        cx.out.push((core, FromShard { shard: self.id, generation: self.generation, what }));
    }
}
