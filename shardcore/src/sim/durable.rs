//! What a world with durable streams does beside one in memory: processes that end and start, streams that come back, disks
//! that fail and heal, and a look at every log when all is over. Scope: functions of a world.
//! Invariants: after healing nothing is made worse; a log that has failed is served again by another process; then every
//! shard takes writes, and every log is read from its beginning.
//! Not here: what is drawn (`storage_plan`), what a log must hold (`log_check`).

use std::time::Duration;

use felix_logstore::id::Fsync;
use felix_runtime::clock::Tick;
use felix_runtime::sim::Faults;

use super::ask_plan::{AskerPlan, last_askers};
use super::client::Client;
use super::log_check::{self, Facts, Life};
use super::plan::{ClientPlan, Plan, PublisherPlan, SubscriberPlan};
use super::storage_plan::{End, ReadFaults, StorageHappening};
use super::world::{COOL_DOWN, DEADLINE, LOOK, World};
use crate::turn::counters::Counter;

/// Processes that may be needed after healing because a log had failed.
const RESTARTS_MAX: u32 = 4;
/// Publishes to every shard when all is over.
const PROBES: u32 = 2;
/// So long after faults have healed, or a process has started, shards may refuse writes.
const HEALING: Duration = Duration::from_secs(2);
/// A process that was told to end is gone after this, and the next one is up.
const DOWN: Duration = Duration::from_millis(5);

/// What has happened that explains refusals and losses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Excuses {
    /// The streams are durable.
    pub durable: bool,
    /// A process has ended.
    pub restarted: bool,
    /// Disks have failed or had no space: logs may refuse writes.
    pub refused: bool,
    /// Opening files has failed: logs may not be readable for a while.
    pub unreadable: bool,
    /// Logs have failed, moved or ended: of some writes nobody may know the outcome.
    pub unsettled: bool,
    /// Power was lost, and acked records need not be synced.
    pub lossy: bool,
    /// Retention removes records.
    pub retention: bool,
}

/// Of a world with durable streams.
#[derive(Debug, Default)]
pub struct Durable {
    next: usize,
    /// Every life of every stream.
    pub lives: Vec<Vec<Life>>,
    /// When power was lost.
    pub losses: Vec<Tick>,
    /// Restarts because a log had failed.
    pub mended: u32,
    pub restarts: u64,
}

impl Durable {
    /// Before anything has happened.
    pub fn new(plan: &Plan) -> Durable {
        let first = Life { number: 1, created: Tick::ZERO, agreed: None };
        Durable { lives: vec![vec![first]; plan.shards.len()], ..Durable::default() }
    }
}

impl Excuses {
    /// What the plan explains from the beginning.
    pub fn new(plan: &Plan) -> Excuses {
        let Some(storage) = &plan.storage else { return Excuses::default() };
        let retention = storage.retention.bytes.is_some() || storage.retention.age_ms.is_some();
        Excuses { durable: true, retention, ..Excuses::default() }
    }
}

impl World {
    /// When the next thing of the storage plan happens.
    pub(super) fn next_storage(&self) -> Option<Tick> {
        let storage = self.plan.storage.as_ref()?;
        storage.happenings.get(self.durable.next).map(|(at, _)| *at)
    }

    /// Lets happen what the storage plan has for now.
    pub(super) fn happen_storage(&mut self) {
        while self.next_storage().is_some_and(|at| at <= self.now) {
            let Some(storage) = &self.plan.storage else { return };
            let (_, what) = storage.happenings[self.durable.next];
            self.durable.next += 1;
            self.happen_to_storage(what);
        }
    }

    fn happen_to_storage(&mut self, what: StorageHappening) {
        let (now, shared) = (self.now, &mut self.shared);
        match what {
            StorageHappening::Restart { how, down } => self.restart(how, down),
            StorageHappening::Delete { stream } => self.delete(stream),
            StorageHappening::Create { stream } => {
                if self.broker.create(now, stream) {
                    let number = self.broker.incarnation(stream);
                    shared.trace.note(now, "create", [stream as u64, number, 0]);
                    shared.gone[stream] = false;
                    shared.lives[stream] = number;
                    self.durable.lives[stream].push(Life { number, created: now, agreed: None });
                }
            }
            StorageHappening::Size { bytes } => {
                shared.trace.note(now, "volume size", [bytes, 0, 0]);
                shared.excuses.refused = true;
                if let Some(storage) = self.broker.storage_mut() {
                    storage.resize(bytes);
                }
            }
            StorageHappening::Faults(faults) => {
                let errors = faults.write_error_ppm + faults.sync_error_ppm + faults.other_error_ppm;
                shared.trace.note(now, "disk faults", [u64::from(errors), u64::from(faults.stall_ppm), 0]);
                shared.excuses.refused |= errors > 0;
                shared.excuses.unreadable |= faults.other_error_ppm > 0;
                shared.excuses.unsettled |= errors > 0;
                if let Some(storage) = self.broker.storage_mut() {
                    storage.set_faults(faults);
                }
            }
            StorageHappening::Reads(reads) => {
                let of = [reads.error_ppm, reads.short_ppm, reads.flip_ppm].map(u64::from);
                shared.trace.note(now, "read faults", of);
                let wrong = reads.error_ppm + reads.flip_ppm > 0;
                shared.excuses.unreadable |= wrong;
                shared.excuses.refused |= wrong;
                if let Some(storage) = self.broker.storage_mut() {
                    storage.set_reads(reads);
                }
            }
        }
    }

    fn restart(&mut self, how: End, down: Duration) {
        if !self.broker.end(self.now, how, down) {
            return;
        }
        let shared = &mut self.shared;
        shared.trace.note(self.now, "process ends", [how as u64, down.as_micros() as u64, 0]);
        shared.excuses.restarted = true;
        shared.excuses.unsettled |= how == End::Stop;
        self.durable.restarts += 1;
        if how == End::Power {
            self.durable.losses.push(self.now);
            let synced = self.plan.storage.as_ref().is_none_or(|storage| storage.policy == Fsync::OnCommit);
            shared.excuses.lossy |= !synced;
        }
    }

    /// Every core knows of every stream.
    pub(super) fn lives_agreed(&mut self) {
        for life in self.durable.lives.iter_mut().filter_map(|lives| lives.last_mut()) {
            life.agreed.get_or_insert(self.now);
        }
    }

    /// Runs a plan with durable streams to its end.
    pub(super) fn run_durable(&mut self) -> Result<(), String> {
        self.until(self.plan.heal_at)?;
        self.net.set_faults(Faults::none(Duration::from_millis(1)));
        if let Some(storage) = self.broker.storage_mut() {
            storage.heal();
        }
        self.shared.trace.note(self.now, "healed", [0; 3]);
        self.until(self.now + HEALING)?;
        self.come_to_rest()?;
        if let Some(how) = self.plan.storage.as_ref().and_then(|storage| storage.last) {
            self.restart(how, DOWN);
            self.until(self.now + DOWN + HEALING)?;
            self.come_to_rest()?;
        }
        self.write_to_all()?;
        self.ask_all()?;
        self.read_all()?;
        self.look_at_logs()?;
        self.shared.histories.check(&self.shared.model)?;
        let now = self.now;
        for client in &mut self.clients {
            client.close(now);
        }
        self.until(self.now + COOL_DOWN)?;
        let held = self.broker.held(true);
        if !held.is_empty() {
            return Err(format!("an idle broker holds {held:?}"));
        }
        Ok(())
    }

    /// Waits until nothing is to be done any more, three looks in a row.
    fn come_to_rest(&mut self) -> Result<(), String> {
        let deadline = self.now + DEADLINE;
        let mut quiet = 0;
        while quiet < 3 {
            let stuck = self.shared.excuses.unreadable && self.clients.iter().any(Client::is_stuck);
            if self.broker.has_stopped_log() || stuck {
                self.durable.mended += 1;
                if self.durable.mended > RESTARTS_MAX {
                    return Err("a log fails on a sound disk".to_owned());
                }
                self.clients.iter_mut().for_each(Client::unstick);
                self.restart(End::Kill, DOWN);
            }
            match self.unfinished() {
                Some(why) if self.now >= deadline => {
                    return Err(format!("not done after {DEADLINE:?}: {why}"));
                }
                Some(_) => quiet = 0,
                None => quiet += 1,
            }
            self.until(self.now + LOOK)?;
        }
        Ok(())
    }

    /// The shards of the streams that are there.
    fn there(&self) -> Vec<(usize, u32)> {
        self.plan.all_shards().filter(|(stream, _)| !self.shared.gone[*stream]).collect()
    }

    fn probe(
        &mut self,
        publishers: Vec<PublisherPlan>,
        subscribers: Vec<SubscriberPlan>,
        askers: Vec<AskerPlan>,
    ) {
        let plan = ClientPlan {
            ours: true,
            publishers,
            subscribers,
            askers,
            watchers: Vec::new(),
            token_life_s: 1_000,
            renews: true,
        };
        self.plan.clients.push(plan);
        let index = self.clients.len();
        let mut client = Client::new(index, &self.plan, self.zero, self.broker.addr, &mut self.shared.rng);
        client.probes = true;
        self.clients.push(client);
    }

    /// Every shard takes writes.
    fn write_to_all(&mut self) -> Result<(), String> {
        let publisher = |(stream, shard)| PublisherPlan {
            stream,
            only: Some(shard),
            publishes: PROBES,
            batch_max: 1,
            payload_max: 100,
            acked: 100,
            json: 0,
            depth: 1,
            pace: Duration::ZERO,
            reads_from: Tick::ZERO,
            numbered: false,
        };
        let shards = self.there();
        let publishers = shards.iter().copied().map(publisher).collect();
        let before = (self.shared.model.acked, self.shared.model.refused);
        self.probe(publishers, Vec::new(), Vec::new());
        self.come_to_rest()?;
        let acked = self.shared.model.acked - before.0;
        let refused = self.shared.model.refused - before.1;
        let owed = u64::from(PROBES) * shards.len() as u64;
        if (acked, refused) != (owed, 0) {
            return Err(format!(
                "of {owed} publishes to healed shards {acked} were acked, {refused} refused"
            ));
        }
        Ok(())
    }

    /// Every key and counter is read, and every group finishes what there is.
    fn ask_all(&mut self) -> Result<(), String> {
        let Some(asks) = &self.plan.asks else { return Ok(()) };
        let askers = last_askers(asks, &self.shared.caches_gone, &self.there(), self.now);
        self.probe(Vec::new(), Vec::new(), askers);
        self.come_to_rest()
    }

    /// Every log is read from its beginning.
    fn read_all(&mut self) -> Result<(), String> {
        let subscriber = |(stream, shard)| SubscriberPlan {
            stream,
            shard,
            begins: self.now,
            earliest: true,
            stalled: (Tick::MAX, Tick::MAX),
            keeps: true,
        };
        let subscribers = self.there().into_iter().map(subscriber).collect();
        self.probe(Vec::new(), subscribers, Vec::new());
        self.come_to_rest()
    }

    /// Whether a run with such a plan can meet it at all.
    pub(super) fn may_meet(&self, what: &str) -> bool {
        let in_memory = ["block", "drain", "dropped for a subscriber", "expired"];
        // What a plan of requests leaves out, and what so few publishes do not meet.
        let streams = ["delete", "started too old", "stream came back", "retention", "overloaded"];
        let durable = self.plan.storage.is_none() || !in_memory.contains(&what);
        durable && (self.plan.asks.is_none() || !streams.contains(&what))
    }

    /// What a run with durable streams met, by name.
    pub(super) fn met_durable(&self) -> Vec<(&'static str, u64)> {
        let Some(storage) = &self.plan.storage else { return Vec::new() };
        let ends = |end| {
            let ends = |what: &StorageHappening| matches!(what, StorageHappening::Restart { how, .. } if *how == end);
            u64::from(storage.has(ends) || storage.last == Some(end))
        };
        let reads = |wrong: fn(&ReadFaults) -> bool| {
            u64::from(storage.has(|what| matches!(what, StorageHappening::Reads(reads) if wrong(reads))))
        };
        let numbered = storage.numbered.iter().flatten().filter(|numbered| **numbered).count();
        let asked = if self.plan.asks.is_some() { self.shared.histories.met() } else { Vec::new() };
        let met = vec![
            ("stopped", ends(End::Stop)),
            ("killed", ends(End::Kill)),
            ("power lost", ends(End::Power)),
            ("restarts", self.durable.restarts),
            ("acks before the sync", u64::from(storage.policy != Fsync::OnCommit)),
            ("stream came back", self.shared.lives.iter().map(|life| life - 1).sum()),
            ("disk too small", u64::from(storage.has(|what| matches!(what, StorageHappening::Size { .. })))),
            ("reads failed", reads(|reads| reads.error_ppm > 0)),
            ("reads brought wrong bits", reads(|reads| reads.flip_ppm > 0)),
            ("a log failed", u64::from(self.durable.mended)),
            ("retention", u64::from(self.shared.excuses.retention)),
            ("numbered publisher", numbered as u64),
            ("outcome unknown", self.broker.count(Counter::PublishesUnknown)),
            ("offsets without records", self.shared.model.skipped),
        ];
        met.into_iter().chain(asked).collect()
    }

    fn look_at_logs(&self) -> Result<(), String> {
        let model = &self.shared.model;
        if let Some((id, reader)) = model.readers().find(|(_, reader)| reader.gaps > 0) {
            let (gap, shard) = (reader.gap_at, reader.shard);
            return Err(format!("reader {id} of {shard:?} was not given what lies in {gap:?}"));
        }
        let Some(storage) = &self.plan.storage else { return Ok(()) };
        let facts = Facts {
            now: self.now,
            policy: storage.policy,
            retention: storage.retention,
            losses: &self.durable.losses,
            lives: &self.durable.lives,
        };
        let looked = log_check::check(model, &facts)?;
        let there = self.there().len();
        if looked != there {
            return Err(format!("{looked} logs of {there} were read"));
        }
        Ok(())
    }
}
