//! The members of the consumer groups of the streams whose shard 0 a core leads. Scope: functions of a core.
//! Invariants: a request is carried out while the core leads that shard at the generation that it names, or comes back;
//! with the shard its memberships end.
//! Not here: who holds what (`crate::lease`), who asks (`turn::asking`).

use felix_runtime::clock::Tick;
use felix_wire::id::{Generation, ShardIndex};

use super::core::Core;
use super::counters::Counter;
use crate::lease::{LeaseAnswer, LeaseAsk, Leases};
use crate::shard::ask::{Ask, Asker};
use crate::shard::mail::{FromShard, ShardOutput};
use crate::snapshot::ShardId;

/// Of which shard the leader has the members of a stream's groups.
const LEASING: ShardIndex = ShardIndex(0);

impl Core {
    /// A request about the members of a group of a stream.
    pub(super) fn handle_lease_ask(
        &mut self,
        now: Tick,
        asker: Asker,
        (id, generation): (ShardId, Generation),
        ask: LeaseAsk,
    ) {
        let served = self.shards.get(&id).is_some_and(|shard| shard.generation() == generation);
        if !served || id.shard != LEASING {
            let what = ShardOutput::AskBack { token: asker.token, ask: Ask::Lease(Box::new(ask)) };
            return self.shard_out.push((asker.core, FromShard { shard: id, generation, what }));
        }
        self.with_leases(|leases, out| leases.ask(asker, (id.stream, ask), now, out));
    }

    fn with_leases(&mut self, change: impl FnOnce(&mut Leases, &mut Vec<LeaseAnswer>)) {
        let mut answers = Vec::new();
        change(&mut self.leases, &mut answers);
        for LeaseAnswer { stream, asker, reply } in answers {
            let shard = ShardId { stream, shard: LEASING };
            let generation = self.shards.get(&shard).map_or(Generation(0), |shard| shard.generation());
            let what = ShardOutput::Answered { token: asker.token, reply };
            self.shard_out.push((asker.core, FromShard { shard, generation, what }));
        }
    }

    /// Nobody waits for a heartbeat any more.
    pub(super) fn cancel_heartbeat(&mut self, now: Tick, asker: Asker, id: ShardId) {
        if id.shard == LEASING {
            self.with_leases(|leases, out| leases.cancel(asker, id.stream, now, out));
        }
    }

    /// All heartbeats that wait are answered: the broker is about to end.
    pub(super) fn end_heartbeats(&mut self, now: Tick) {
        self.with_leases(|leases, out| leases.answer_all(now, out));
    }

    /// A shard is led here no more.
    pub(super) fn close_leases(&mut self, id: ShardId) {
        if id.shard == LEASING {
            self.with_leases(|leases, out| leases.close(id.stream, out));
        }
    }

    /// Ends terms and waits whose time has come.
    pub(super) fn run_leases(&mut self, now: Tick) {
        if self.leases.next_deadline().is_some_and(|due| due <= now) {
            self.with_leases(|leases, out| leases.tick(now, out));
            self.route_outputs(now);
        }
    }

    /// Says how many members there are.
    pub(super) fn count_leases(&self) {
        let (groups, members) = self.leases.counts();
        self.counters.set(Counter::GroupRosters, groups as u64);
        self.counters.set(Counter::GroupMembers, members as u64);
    }
}
