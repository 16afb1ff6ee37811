//! One simulation: a broker, its clients and the network, moved from one thing that happens to the next. Scope: one seed.
//! Owns: time. Invariants: nothing here reads a clock or chance that does not follow from the seed; a run ends, because
//! after `heal_at` nothing is made worse and there is a deadline.
//! Not here: what is drawn (`plan`), what is right (`check`).

use std::time::{Duration, Instant};

use felix_runtime::clock::Tick;
use felix_runtime::sim::{Faults, SimNet, SimRng};

use super::broker::Broker;
use super::check::Model;
use super::client::{Client, Surroundings};
use super::durable::{Durable, Excuses};
use super::history::Histories;
use super::plan::{Happening, Plan};
use super::trace::Trace;
use crate::snapshot::SlowSubscriber;
use crate::turn::counters::Counter;

/// After the network has healed, everything must be done within this.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);
/// How often it is looked whether everything is done.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// Idle time-outs and draining connections are over after this.
pub(super) const COOL_DOWN: Duration = Duration::from_secs(24);

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    pub hash: u64,
    pub happened: u64,
    pub acked: u64,
    pub refused: u64,
    pub delivered: u64,
    /// What the run met, by name.
    pub met: Vec<(&'static str, u64)>,
}

/// What went wrong and what came before.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed} at {at}: {what}")]
pub struct Failure {
    pub seed: u64,
    pub at: Tick,
    pub what: String,
    pub last: Vec<String>,
}

/// What every client sees of the world.
pub(super) struct Shared {
    pub rng: SimRng,
    pub model: Model,
    pub histories: Histories,
    pub trace: Trace,
    shards: Vec<u32>,
    heal_at: Tick,
    /// Streams that were deleted at some time, and that are now.
    pub deleted: Vec<bool>,
    pub gone: Vec<bool>,
    pub lives: Vec<u64>,
    /// The same of caches.
    caches_deleted: Vec<bool>,
    pub caches_gone: Vec<bool>,
    cache_lives: Vec<u64>,
    generations: Vec<Vec<u64>>,
    pub excuses: Excuses,
}

impl Shared {
    /// What a client needs for a step. `probes`: it is there after healing.
    fn around(&mut self, now: Tick, moving: bool, probes: bool) -> Surroundings<'_> {
        Surroundings {
            now,
            heal_at: if probes { Tick::MAX } else { self.heal_at },
            rng: &mut self.rng,
            model: &mut self.model,
            histories: &mut self.histories,
            trace: &mut self.trace,
            shards: &self.shards,
            deleted: &self.deleted,
            moving,
            generations: &self.generations,
            lives: &self.lives,
            gone: &self.gone,
            caches_deleted: &self.caches_deleted,
            caches_gone: &self.caches_gone,
            cache_lives: &self.cache_lives,
            excuses: &self.excuses,
        }
    }
}

/// See the module.
pub struct World {
    pub(super) plan: Plan,
    pub(super) now: Tick,
    pub(super) zero: Instant,
    pub(super) broker: Broker,
    pub(super) clients: Vec<Client>,
    pub(super) net: SimNet,
    pub(super) shared: Shared,
    pub(super) durable: Durable,
    next_happening: usize,
    draining: bool,
}

impl World {
    /// The world of a plan, before anything has happened.
    pub fn new(plan: Plan) -> World {
        let zero = Instant::now();
        let mut rng = SimRng::new(plan.seed);
        let broker = Broker::new(&plan, zero, &mut rng);
        let clients =
            (0..plan.clients.len()).map(|i| Client::new(i, &plan, zero, broker.addr, &mut rng)).collect();
        let streams = plan.shards.len();
        let caches = plan.asks.as_ref().map_or(Vec::new(), |asks| asks.caches.clone());
        let net = SimNet::new(rng.next_u64(), plan.faults);
        let shared = Shared {
            rng,
            model: Model::new(plan.storage.is_some()),
            histories: Histories::new(&caches, plan.asks.as_ref().map_or(0, |asks| asks.keys)),
            trace: Trace::default(),
            shards: plan.shards.clone(),
            heal_at: plan.heal_at,
            deleted: vec![false; streams],
            gone: vec![false; streams],
            lives: vec![1; streams],
            caches_deleted: vec![false; caches.len()],
            caches_gone: vec![false; caches.len()],
            cache_lives: vec![1; caches.len()],
            generations: plan.shards.iter().map(|n| vec![1; *n as usize]).collect(),
            excuses: Excuses::new(&plan),
        };
        World {
            now: Tick::ZERO,
            zero,
            broker,
            clients,
            net,
            shared,
            durable: Durable::new(&plan),
            next_happening: 0,
            draining: false,
            plan,
        }
    }

    /// Keeps every line for a failure.
    #[must_use]
    pub fn keeping_all(mut self) -> World {
        self.shared.trace.keep = usize::MAX;
        self
    }

    /// Runs the plan to its end.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn run(mut self) -> Result<Report, Failure> {
        match self.run_all() {
            Ok(()) => Ok(self.report()),
            Err(what) => {
                Err(Failure { seed: self.plan.seed, at: self.now, what, last: self.shared.trace.last() })
            }
        }
    }

    /// Its clients.
    #[cfg(test)]
    pub fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// What they saw.
    #[cfg(test)]
    pub fn model(&self) -> &Model {
        &self.shared.model
    }

    fn run_all(&mut self) -> Result<(), String> {
        if self.plan.storage.is_some() {
            return self.run_durable();
        }
        self.until(self.plan.heal_at)?;
        self.net.set_faults(Faults::none(Duration::from_millis(1)));
        self.shared.trace.note(self.now, "healed", [0; 3]);
        let deadline = self.plan.heal_at + DEADLINE;
        // Three times in a row: a token may be renewed, or run out, at the moment of the first look.
        let mut quiet = 0;
        while quiet < 3 {
            match self.unfinished() {
                Some(why) if self.now >= deadline => {
                    return Err(format!("not done after {DEADLINE:?}: {why}"));
                }
                Some(_) => quiet = 0,
                None => quiet += 1,
            }
            self.until(self.now + LOOK)?;
        }
        self.check_losses()?;
        let now = self.now;
        for client in &mut self.clients {
            client.close(now);
        }
        self.until(self.now + COOL_DOWN)?;
        let held = self.broker.held(true);
        if !held.is_empty() {
            return Err(format!("an idle broker holds {held:?}"));
        }
        self.check_drops()
    }

    /// Lets everything happen that happens before `end`.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn until(&mut self, end: Tick) -> Result<(), String> {
        loop {
            self.settle()?;
            let happening = self.plan.happenings.get(self.next_happening).map(|(at, _)| *at);
            let clients = self.clients.iter_mut().filter_map(|c| c.next(self.now)).min();
            let storage = self.next_storage();
            let next = [happening, clients, self.broker.next(), self.net.next_delivery(), storage];
            let next = next.into_iter().flatten().min().unwrap_or(Tick::MAX);
            if next > end {
                self.now = end;
                return Ok(());
            }
            // What is due at once was just looked at: a moment passes.
            self.now = next.max(self.now + Duration::from_nanos(1));
        }
    }

    /// Lets everything happen that happens now.
    fn settle(&mut self) -> Result<(), String> {
        while let Some((at, what)) = self.plan.happenings.get(self.next_happening).copied() {
            if at > self.now {
                break;
            }
            self.next_happening += 1;
            self.happen(what);
        }
        self.happen_storage();
        while let Some(delivery) = self.net.poll(self.now) {
            if delivery.to == self.broker.addr {
                self.broker.receive(delivery);
            } else if let Some(client) = self.clients.iter_mut().find(|c| c.addr == delivery.to) {
                client.receive(self.now, delivery);
            }
        }
        #[cfg(test)]
        let ran = super::cost::counted(|| self.broker.run(self.now, &mut self.net, &mut self.shared.trace));
        #[cfg(not(test))]
        let ran = self.broker.run(self.now, &mut self.net, &mut self.shared.trace);
        ran?;
        let moving = !self.broker.agrees();
        let (rules, excuses) = (&mut self.shared.histories.rules, &self.shared.excuses);
        rules.attempts_max = self.plan.limits.groups.attempts_max;
        (rules.lossy, rules.unsteady, rules.unreadable) =
            (excuses.lossy, excuses.refused, excuses.unreadable);
        if moving {
            // Claims are gone with their core, or with the process.
            self.shared.histories.void_claims(self.now);
        } else {
            self.shared.model.agreed(self.now);
            self.shared.histories.agreed(self.now);
            self.lives_agreed();
        }
        for client in &mut self.clients {
            let mut around = self.shared.around(self.now, moving, client.probes);
            client.step(&mut self.net, &mut around)?;
        }
        Ok(())
    }

    /// Takes a stream away.
    pub(super) fn delete(&mut self, stream: usize) {
        self.shared.trace.note(self.now, "delete", [stream as u64, 0, 0]);
        self.shared.deleted[stream] = true;
        self.shared.gone[stream] = true;
        self.shared.excuses.unsettled = true;
        self.broker.delete(self.now, stream);
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Move { stream, shard, core } => {
                self.shared.trace.note(self.now, "move", [stream as u64, u64::from(shard), u64::from(core)]);
                self.broker.move_shard(self.now, (stream, shard), core);
                self.shared.histories.void_claims(self.now);
                if let Some((_, generation)) = self.broker.place(stream, shard) {
                    self.shared.generations[stream][shard as usize] = generation;
                }
                self.shared.excuses.unsettled = true;
            }
            Happening::MoveCache { cache, shard, core } => {
                self.shared.trace.note(
                    self.now,
                    "move cache",
                    [cache as u64, u64::from(shard), u64::from(core)],
                );
                self.broker.move_cache(self.now, (cache, shard), core);
                self.shared.excuses.unsettled = true;
            }
            Happening::DeleteCache { cache } => {
                self.shared.trace.note(self.now, "delete cache", [cache as u64, 0, 0]);
                if self.broker.delete_cache(self.now, cache) {
                    self.shared.histories.cache_deleted(cache, self.now);
                    (self.shared.caches_deleted[cache], self.shared.caches_gone[cache]) = (true, true);
                    self.shared.excuses.unsettled = true;
                }
            }
            Happening::CreateCache { cache } => {
                self.shared.trace.note(self.now, "create cache", [cache as u64, 0, 0]);
                if let Some(life) = self.broker.create_cache(self.now, cache) {
                    self.shared.cache_lives[cache] = life;
                    self.shared.caches_gone[cache] = false;
                }
            }
            Happening::Delete { stream } => self.delete(stream),
            Happening::Pause { core, time } => {
                self.shared.trace.note(self.now, "pause", [u64::from(core), time.as_micros() as u64, 0]);
                self.broker.pause(core, self.now + time);
            }
            Happening::Kill { client, silent } => {
                self.shared.trace.note(self.now, "kill", [client as u64, u64::from(silent), 0]);
                let mut around = self.shared.around(self.now, false, false);
                self.clients[client].end(self.now, silent, &mut self.net, &mut around);
            }
            Happening::Drain => {
                self.shared.trace.note(self.now, "drain", [0; 3]);
                self.draining = true;
                self.broker.drain(self.now);
                for client in &mut self.clients {
                    client.drained = true;
                }
            }
        }
    }

    /// Whether subscriptions are owed everything by policy.
    fn blocks(&self) -> bool {
        if self.shared.excuses.durable {
            // What does not fit a queue is read from the log, as long as it is there.
            return !self.shared.excuses.retention;
        }
        self.plan.limits.slow_subscriber == SlowSubscriber::Block
    }

    /// Whether publishes nobody asked an answer for must arrive too.
    fn unacked_count(&self) -> bool {
        let lives = !self.shared.excuses.durable;
        lives && self.plan.clients.iter().all(|c| c.renews || c.token_life_s >= 1_000)
    }

    /// What is still to be waited for.
    pub(super) fn unfinished(&self) -> Option<String> {
        if self.draining {
            return (!self.broker.is_drained()).then(|| "a core is not drained".to_owned());
        }
        if !self.broker.is_up() {
            return Some("the broker is not up".to_owned());
        }
        for client in self.clients.iter().filter(|c| !c.dead) {
            for publisher in &client.publishers {
                if publisher.wire.is_some() {
                    let wire = publisher.wire.and_then(|key| client.wires.get(&key));
                    let held = self.broker.held(true);
                    return Some(format!("client {}: {publisher:?} on {wire:?}; {held:?}", client.index));
                }
            }
            if let Some(asker) = client.askers.iter().find(|asker| asker.wire.is_some() || asker.is_busy()) {
                return Some(format!("client {}: {asker:?}", client.index));
            }
            if let Some(at) = client.subscribers.iter().position(super::subscriber::Subscriber::is_pending) {
                return Some(format!("client {}: subscription {at} is not there", client.index));
            }
            if let Some(at) = client.subscribers.iter().position(|s| s.is_reading(&self.shared.model)) {
                return Some(format!("client {}: subscription {at} is behind", client.index));
            }
            if let Some(watcher) = client.watchers.iter().find(|watcher| watcher.is_pending()) {
                return Some(format!("client {}: {watcher:?} is not there", client.index));
            }
            if !client.is_written() {
                return Some(format!("client {}: not everything is written", client.index));
            }
        }
        let silent = self.clients.iter().any(|c| c.dead);
        let held = self.broker.held(false);
        if !held.is_empty() && !silent {
            return Some(format!("the broker holds {held:?}"));
        }
        if self.blocks() {
            return self.first_missing();
        }
        None
    }

    fn first_missing(&self) -> Option<String> {
        self.shared.model.readers().find_map(|(id, reader)| {
            let missing = self.shared.model.missing(id, self.unacked_count());
            let first = missing.first()?;
            let (count, shard) = (missing.len(), reader.shard);
            Some(format!(
                "reader {id} of {shard:?} lacks {count}, first {first:?} (it has {})",
                reader.records
            ))
        })
    }

    fn check_losses(&self) -> Result<(), String> {
        if self.blocks()
            && let Some((id, reader)) = self.shared.model.readers().find(|(_, r)| r.gaps > 0)
        {
            return Err(format!(
                "reader {id} lacks records under Block: {:?} in {:?}",
                reader.gap_at, reader.shard
            ));
        }
        if !self.plan.has(|h| matches!(h, Happening::Move { .. }))
            && let Some(wrong) = self.shared.model.mistold()
        {
            return Err(wrong);
        }
        Ok(())
    }

    /// Once every subscription has ended: what was skipped was counted, and without skipping nothing lacks.
    fn check_drops(&self) -> Result<(), String> {
        let dropped = self.broker.count(Counter::SubscribeDropped);
        let gaps: u64 = self.shared.model.readers().map(|(_, r)| r.gaps).sum();
        if gaps > dropped {
            return Err(format!("{gaps} records lack between others and {dropped} are counted"));
        }
        if dropped == 0
            && !self.draining
            && let Some(missing) = self.first_missing()
        {
            return Err(format!("nothing was dropped, but {missing}"));
        }
        Ok(())
    }

    fn report(&self) -> Report {
        let planned = |pick: fn(&Happening) -> bool| u64::from(self.plan.has(pick));
        let counted = |counter| self.broker.count(counter);
        Report {
            hash: self.shared.trace.hash(),
            happened: self.shared.trace.len(),
            acked: self.shared.model.acked,
            refused: self.shared.model.refused,
            delivered: self.shared.model.readers().map(|(_, r)| r.records).sum(),
            met: vec![
                ("block", u64::from(self.blocks())),
                ("move", planned(|h| matches!(h, Happening::Move { .. }))),
                ("delete", planned(|h| matches!(h, Happening::Delete { .. }))),
                ("pause", planned(|h| matches!(h, Happening::Pause { .. }))),
                ("kill", planned(|h| matches!(h, Happening::Kill { .. }))),
                ("drain", planned(|h| matches!(h, Happening::Drain))),
                ("cross-core publish", counted(Counter::CrossCorePublishes)),
                ("bounce", counted(Counter::PublishesBounced)),
                ("overloaded", counted(Counter::PublishesExpired)),
                ("stray", counted(Counter::StrayDatagrams)),
                ("dropped for a subscriber", counted(Counter::SubscribeDropped)),
                ("auth refused", counted(Counter::AuthRefused)),
                ("went on where told", self.shared.model.went_on),
                ("started too old", self.shared.model.too_old),
                ("expired", u64::from(!self.unacked_count())),
            ]
            .into_iter()
            .filter(|(what, _)| self.may_meet(what))
            .chain(self.met_durable())
            .collect(),
        }
    }
}
