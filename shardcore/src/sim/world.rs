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
use super::plan::{Happening, Plan};
use super::trace::Trace;
use crate::snapshot::SlowSubscriber;
use crate::turn::counters::Counter;

/// After the network has healed, everything must be done within this.
const DEADLINE: Duration = Duration::from_secs(30);
/// How often it is looked whether everything is done.
const LOOK: Duration = Duration::from_millis(100);
/// Idle time-outs and draining connections are over after this.
const COOL_DOWN: Duration = Duration::from_secs(24);

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

/// See the module.
pub struct World {
    plan: Plan,
    now: Tick,
    broker: Broker,
    clients: Vec<Client>,
    net: SimNet,
    rng: SimRng,
    model: Model,
    trace: Trace,
    deleted: Vec<bool>,
    generations: Vec<Vec<u64>>,
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
        World {
            now: Tick::ZERO,
            broker,
            clients,
            net: SimNet::new(rng.next_u64(), plan.faults),
            rng,
            model: Model::default(),
            trace: Trace::default(),
            deleted: vec![false; plan.shards.len()],
            generations: plan.shards.iter().map(|n| vec![1; *n as usize]).collect(),
            next_happening: 0,
            draining: false,
            plan,
        }
    }

    /// Keeps every line for a failure.
    #[must_use]
    pub fn keeping_all(mut self) -> World {
        self.trace.keep = usize::MAX;
        self
    }

    /// Runs the plan to its end.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn run(mut self) -> Result<Report, Failure> {
        match self.run_all() {
            Ok(()) => Ok(self.report()),
            Err(what) => Err(Failure { seed: self.plan.seed, at: self.now, what, last: self.trace.last() }),
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
        &self.model
    }

    fn run_all(&mut self) -> Result<(), String> {
        self.until(self.plan.heal_at)?;
        self.net.set_faults(Faults::none(Duration::from_millis(1)));
        self.trace.note(self.now, "healed", [0; 3]);
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
            let next = [happening, clients, self.broker.next(), self.net.next_delivery()];
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
        while let Some(delivery) = self.net.poll(self.now) {
            if delivery.to == self.broker.addr {
                self.broker.receive(delivery);
            } else if let Some(client) = self.clients.iter_mut().find(|c| c.addr == delivery.to) {
                client.receive(self.now, delivery);
            }
        }
        self.broker.run(self.now, &mut self.net, &mut self.trace)?;
        let moving = !self.broker.agrees();
        if !moving {
            self.model.agreed(self.now);
        }
        for client in &mut self.clients {
            let mut around = Surroundings {
                now: self.now,
                heal_at: self.plan.heal_at,
                rng: &mut self.rng,
                model: &mut self.model,
                trace: &mut self.trace,
                shards: &self.plan.shards,
                deleted: &self.deleted,
                moving,
                generations: &self.generations,
            };
            client.step(&mut self.net, &mut around)?;
        }
        Ok(())
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Move { stream, shard, core } => {
                self.trace.note(self.now, "move", [stream as u64, u64::from(shard), u64::from(core)]);
                self.broker.move_shard(self.now, (stream, shard), core);
                if let Some((_, generation)) = self.broker.place(stream, shard) {
                    self.generations[stream][shard as usize] = generation;
                }
            }
            Happening::Delete { stream } => {
                self.trace.note(self.now, "delete", [stream as u64, 0, 0]);
                self.deleted[stream] = true;
                self.broker.delete(self.now, stream);
            }
            Happening::Pause { core, time } => {
                self.trace.note(self.now, "pause", [u64::from(core), time.as_micros() as u64, 0]);
                self.broker.pause(core, self.now + time);
            }
            Happening::Kill { client, silent } => {
                self.trace.note(self.now, "kill", [client as u64, u64::from(silent), 0]);
                let mut around = Surroundings {
                    now: self.now,
                    heal_at: self.plan.heal_at,
                    rng: &mut self.rng,
                    model: &mut self.model,
                    trace: &mut self.trace,
                    shards: &self.plan.shards,
                    deleted: &self.deleted,
                    moving: false,
                    generations: &self.generations,
                };
                self.clients[client].end(self.now, silent, &mut self.net, &mut around);
            }
            Happening::Drain => {
                self.trace.note(self.now, "drain", [0; 3]);
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
        self.plan.limits.slow_subscriber == SlowSubscriber::Block
    }

    /// Whether publishes nobody asked an answer for must arrive too.
    fn unacked_count(&self) -> bool {
        self.plan.clients.iter().all(|c| c.renews || c.token_life_s >= 1_000)
    }

    /// What is still to be waited for.
    fn unfinished(&self) -> Option<String> {
        if self.draining {
            return (!self.broker.is_drained()).then(|| "a core is not drained".to_owned());
        }
        for client in self.clients.iter().filter(|c| !c.dead) {
            for publisher in &client.publishers {
                if publisher.wire.is_some() {
                    let wire = publisher.wire.and_then(|key| client.wires.get(&key));
                    let held = self.broker.held(true);
                    return Some(format!("client {}: {publisher:?} on {wire:?}; {held:?}", client.index));
                }
            }
            if let Some(at) = client.subscribers.iter().position(super::subscriber::Subscriber::is_pending) {
                return Some(format!("client {}: subscription {at} is not there", client.index));
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
        self.model.readers().find_map(|(id, reader)| {
            let missing = self.model.missing(id, self.unacked_count());
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
            && let Some((id, reader)) = self.model.readers().find(|(_, r)| r.gaps > 0)
        {
            return Err(format!(
                "reader {id} lacks records under Block: {:?} in {:?}",
                reader.gap_at, reader.shard
            ));
        }
        if !self.plan.has(|h| matches!(h, Happening::Move { .. }))
            && let Some(wrong) = self.model.mistold()
        {
            return Err(wrong);
        }
        Ok(())
    }

    /// Once every subscription has ended: what was skipped was counted, and without skipping nothing lacks.
    fn check_drops(&self) -> Result<(), String> {
        let dropped = self.broker.count(Counter::SubscribeDropped);
        let gaps: u64 = self.model.readers().map(|(_, r)| r.gaps).sum();
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
            hash: self.trace.hash(),
            happened: self.trace.len(),
            acked: self.model.acked,
            refused: self.model.refused,
            delivered: self.model.readers().map(|(_, r)| r.records).sum(),
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
                ("went on where told", self.model.went_on),
                ("started too old", self.model.too_old),
                ("expired", u64::from(!self.unacked_count())),
            ],
        }
    }
}
