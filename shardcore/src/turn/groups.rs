//! The consumer groups of the shards of a core: opening them when they are first asked for, what their logs and those of the
//! streams tell, their deadlines. Scope: functions of a core.
//! Invariants: groups are served beside a durable shard of the same generation, and end with it; their log is opened only
//! when the admin thread said where it comes from.
//! Not here: what a request does (`shard::group`), who asks (`turn::asking`).

use felix_logstore::record::Batch;
use felix_runtime::clock::Tick;
use felix_wire::id::{Generation, Offset};

use super::core::Core;
use super::counters::Counter;
use crate::shard::ask::{Ask, Asker, GroupAsk};
use crate::shard::group::GroupShard;
use crate::shard::mail::{Ending, FromShard, PageLoss, ShardOutput};
use crate::shard::{Shard, ShardCx};
use crate::snapshot::{LogRole, ShardId};
use crate::store::{PageFor, PageReader};

impl Core {
    /// A request about a group of a shard of this core.
    pub(super) fn handle_group_ask(
        &mut self,
        now: Tick,
        asker: Asker,
        (id, generation): (ShardId, Generation),
        ask: GroupAsk,
    ) {
        let served = self.shards.get(&id).is_some_and(|shard| shard.generation() == generation)
            && self.open_groups(now, id, generation);
        if !served {
            let what = ShardOutput::AskBack { token: asker.token, ask: Ask::Group(Box::new(ask)) };
            return self.shard_out.push((asker.core, FromShard { shard: id, generation, what }));
        }
        self.with_groups(now, id, |groups, cx| groups.ask(asker, ask, cx));
    }

    /// Whether the groups of a shard are there, or could be opened.
    fn open_groups(&mut self, now: Tick, id: ShardId, generation: Generation) -> bool {
        if self.groups.contains_key(&id) {
            return true;
        }
        let Some(key) = self.routes.route(id.stream).map(|route| route.log_key(LogRole::Groups, id.shard))
        else {
            return false;
        };
        let (Some(shard), Some(store)) = (self.shards.get(&id), &mut self.store) else { return false };
        let granted = &mut self.granted;
        let log = store.find(key).or_else(|| {
            let (volume, source) = granted.remove(&key)?;
            let config = store.whole_config();
            store.bring(volume, key, source, config)
        });
        let Some((log, records)) = log.zip(shard.records(store)) else { return false };
        self.lives += 1;
        let life = (id, generation, self.lives);
        let Some(groups) = GroupShard::open(life, self.limits.groups, store, log, records) else {
            return false;
        };
        store.serve(log, id, LogRole::Groups);
        self.groups.insert(id, groups);
        self.with_groups(now, id, |groups, cx| groups.read_on(cx));
        true
    }

    /// Runs `change` on the groups of a shard, if they are there; what they say is sent with what the shards say.
    pub(super) fn with_groups<T>(
        &mut self,
        now: Tick,
        id: ShardId,
        change: impl FnOnce(&mut GroupShard, &mut ShardCx<'_>) -> T,
    ) -> Option<T> {
        let groups = self.groups.get_mut(&id)?;
        let mut cx = ShardCx {
            free_bytes: 0,
            store: self.store.as_mut(),
            unix_ms: self.unix_ms,
            now,
            out: &mut self.shard_out,
        };
        let done = change(groups, &mut cx);
        let due = groups.next_deadline();
        self.groups_due = [self.groups_due, due].into_iter().flatten().min();
        Some(done)
    }

    /// Nobody waits for a poll any more.
    pub(super) fn cancel_poll(&mut self, now: Tick, asker: Asker, id: ShardId) {
        self.with_groups(now, id, |groups, cx| groups.cancel(asker, cx));
    }

    /// All polls are answered: the broker is about to end.
    pub(super) fn end_polls(&mut self, now: Tick) {
        let ids: Vec<ShardId> = self.groups.keys().copied().collect();
        for id in ids {
            self.with_groups(now, id, |groups, cx| groups.cancel_all(cx));
        }
        self.end_heartbeats(now);
        self.route_outputs(now);
    }

    /// The records of a shard end elsewhere now, or begin there.
    pub(super) fn tell_groups(&mut self, now: Tick, id: ShardId, start: Option<Offset>) {
        if self.groups.is_empty() {
            return;
        }
        let Some(end) = self.shards.get(&id).map(Shard::records_end) else { return };
        self.with_groups(now, id, |groups, cx| match start {
            Some(start) => groups.shard_starts(start, cx),
            None => groups.shard_ends(end, cx),
        });
    }

    /// The log of groups has settled everything below `end`.
    pub(super) fn groups_settled(&mut self, now: Tick, id: ShardId, end: Offset) {
        self.with_groups(now, id, |groups, cx| groups.settled(end, cx));
    }

    /// It has room again.
    pub(super) fn groups_log_has_room(&mut self, now: Tick, id: ShardId) {
        self.with_groups(now, id, |groups, cx| groups.log_has_room(cx));
    }

    /// It takes no more.
    pub(super) fn groups_log_stopped(&mut self, now: Tick, id: ShardId) {
        self.with_groups(now, id, |groups, cx| groups.log_stopped(cx));
    }

    /// A page that groups wanted was read, or cannot be.
    pub(super) fn groups_page(&mut self, now: Tick, page: PageFor, read: Result<&[Batch], &PageLoss>) {
        if self.groups.get(&page.shard).is_none_or(|groups| groups.life() != page.life) {
            return;
        }
        self.with_groups(now, page.shard, |groups, cx| match page.reader {
            PageReader::Poll { slot } => groups.poll_page(slot, read, cx),
            _ => groups.replay_page(read, cx),
        });
    }

    /// Ends the groups of a shard: everything is answered.
    pub(super) fn close_groups(&mut self, now: Tick, id: ShardId, why: Ending) {
        let Some(mut groups) = self.groups.remove(&id) else { return };
        if let Some(store) = &mut self.store {
            store.unserve(groups.log());
        }
        let mut cx = ShardCx {
            free_bytes: 0,
            store: self.store.as_mut(),
            unix_ms: self.unix_ms,
            now,
            out: &mut self.shard_out,
        };
        groups.close(why, &mut cx);
    }

    /// Claims, delays and waits of groups whose time has come end.
    pub(super) fn run_groups(&mut self, now: Tick) {
        if self.groups_due.is_none_or(|due| due > now) {
            return;
        }
        self.groups_due = None;
        let ids: Vec<ShardId> = self.groups.keys().copied().collect();
        for id in ids {
            self.with_groups(now, id, |groups, cx| groups.handle_deadline(cx));
        }
        self.route_outputs(now);
    }

    /// What has waited too long.
    pub(super) fn sweep_groups(&mut self, now: Tick) {
        let waits = (self.limits.publish_queue_wait, self.limits.publish_confirm_wait);
        let ids: Vec<ShardId> = self.groups.keys().copied().collect();
        for id in ids {
            let Some(end) = self.shards.get(&id).map(Shard::records_end) else { continue };
            self.with_groups(now, id, |groups, cx| groups.handle_timeout(waits, end, cx));
        }
        let counts = self.groups.values().map(GroupShard::counts);
        let (groups, polls) = counts.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        self.counters.set(Counter::Groups, groups as u64);
        self.counters.set(Counter::GroupPolls, polls as u64);
        let unread = self.caches.values().filter(|cache| cache.is_unread()).count()
            + self.groups.values().filter(|groups| groups.is_unread()).count();
        self.counters.set(Counter::ShardsUnread, unread as u64);
        self.count_leases();
        self.route_outputs(now);
    }
}
