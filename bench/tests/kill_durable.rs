//! A broker with durable streams, synced on commit, is killed again and again: at random times and at named places
//! (`durable::places`). Over the same folder it comes back with every acknowledged record at its offset, with the same
//! bytes, and with nothing that was not sent.
//!
//! `FELIX_KILLS=1000` kills that often, `SEED=n` replays the choices (not the timing).

mod durable;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use durable::ledger::{Content, Ledger};
use durable::places::{DELETING, PLACES, Place};
use durable::reading::{Live, read};
use durable::writing::Writer;
use durable::{DEADLINE, Running, SMALL_FILES, Stage, was_killed};
use felix_sdk::Client;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const SHARDS: u32 = 4;
/// Deaths one stream goes through; then it is deleted and there is another.
const DEATHS_OF_A_STREAM: u32 = 8;
/// A place that was not reached by then is not waited for.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// What a shard keeps of every fourth stream.
const RETENTION_BYTES: u64 = 3 << 20;
/// A death that is not at a place comes within this time.
const LONGEST_WRITING_MS: u64 = 600;

/// What has been done so far.
#[derive(Default)]
struct Tally {
    kills: u32,
    orderly: u32,
    /// Places that ended the broker, and those that were waited for in vain.
    reached: BTreeMap<&'static str, u32>,
    missed: BTreeMap<&'static str, u32>,
    acked: usize,
    unknown: usize,
    starts: u32,
    start_ms_max: u128,
}

struct Run {
    stage: Stage,
    rng: StdRng,
    kills_wanted: u32,
    tally: Tally,
    /// Places in the order in which their turn comes.
    turn: usize,
    deletions: usize,
    broker: Option<Running>,
    verbose: bool,
}

/// One stream and those who use it.
struct Life {
    name: String,
    client: Client,
    writer: Writer,
    live: Live,
    numbered: bool,
    /// Retention removes what is old.
    trimmed: bool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_every_kill_and_nothing_else_appears() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("SEED").unwrap_or_else(rand::random);
    let kills_wanted = u32::try_from(number("FELIX_KILLS").unwrap_or(100)).unwrap();
    eprintln!("SEED={seed}");
    let began = Instant::now();
    let mut run = Run {
        stage: Stage::set(&SMALL_FILES),
        rng: StdRng::seed_from_u64(seed),
        kills_wanted,
        tally: Tally::default(),
        turn: 0,
        deletions: 0,
        broker: None,
        verbose: number("FELIX_KILLS_VERBOSE").is_some(),
    };
    run.start(None);
    let mut life = 0;
    while run.tally.kills < kills_wanted {
        life += 1;
        if let Err(why) = run.live(life).await {
            panic!("SEED={seed}, stream {life}, after {} kills: {why}", run.tally.kills);
        }
    }
    run.broker.take().unwrap().stop();
    run.stage.assert_no_complaint();
    run.tally.show(began.elapsed());
    if kills_wanted >= 100 {
        assert!(run.tally.reached.len() >= 20, "SEED={seed}: only {:?} were reached", run.tally.reached);
    }
}

impl Run {
    /// A stream from its making to its deletion.
    async fn live(&mut self, number: u64) -> Result<(), String> {
        // Always the same: nothing of an earlier life may show.
        let name = "s".to_owned();
        let trimmed = number.is_multiple_of(4);
        if trimmed {
            self.stage.stream_of_bytes(&name, SHARDS, RETENTION_BYTES);
        } else {
            self.stage.stream(&name, SHARDS);
        }
        let client = self.stage.client().await;
        let numbered = number % 2 == 1;
        let ledger = Ledger::new(number, SHARDS);
        let mut writer = Writer::open(&client, &name, numbered, ledger).await;
        // The first record comes when the stream is served, so the reader has seen all of it.
        let live = Live::open(&client, &name, writer.ledger.clone()).await;
        let ends = writer.append_to_each().await?;
        self.only_this_life()?;
        let mut life = Life { name, client, writer, live, numbered, trimmed };
        life.verify(&ends).await?;
        for _ in 0..DEATHS_OF_A_STREAM {
            if self.tally.kills >= self.kills_wanted {
                break;
            }
            self.die_and_return(&mut life).await?;
        }
        self.tally.acked += life.writer.ledger.lock().unwrap().acked();
        self.tally.unknown += life.writer.ledger.lock().unwrap().unknown();
        self.delete(&life)
    }

    /// What is on the disk are the logs of the stream that is there, and none of an earlier one.
    fn only_this_life(&self) -> Result<(), String> {
        let end = Instant::now() + DEADLINE;
        while self.stage.log_folders().len() != SHARDS as usize {
            if Instant::now() > end {
                return Err(format!("{:?} are on the disk", self.stage.log_folders()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Deletes the stream, dies on the way, and comes back without it.
    fn delete(&mut self, life: &Life) -> Result<(), String> {
        let place = &DELETING[self.deletions % DELETING.len()];
        self.deletions += 1;
        self.kill_now();
        self.start(Some(place));
        self.stage.delete(&life.name);
        if let Some(mut broker) = self.broker.take() {
            let status = broker.wait_for(PATIENCE);
            broker.kill();
            self.count(Some(place), status)?;
        }
        self.start(None);
        let end = Instant::now() + DEADLINE;
        let broker = self.broker.as_ref().ok_or("no broker")?;
        loop {
            // A broker that died before it wrote the deletion down has never heard of it: the log waits for its namesake.
            let left = self.stage.log_folders().len();
            if left as f64 == broker.metric("felix_log_unclaimed") {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("{:?} are left of a deleted stream", self.stage.log_folders()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The broker writes, dies and comes back; a third of the times it does so again before anything is written.
    async fn die_and_return(&mut self, life: &mut Life) -> Result<(), String> {
        let place = self.rng.random_bool(0.6).then(|| self.next_place());
        match place {
            Some(place) if place.name.starts_with("recovery.") => {
                self.write_and_kill(life, None).await?;
                self.start(Some(place));
            }
            Some(place) if place.name.starts_with("stop.") => self.write_and_stop(life, place).await?,
            _ => self.write_and_kill(life, place).await?,
        }
        if self.broker.is_none() {
            self.start(None);
        }
        life.writer.settle().await?;
        let ends = life.writer.append_to_each().await?;
        let content = life.verify(&ends).await?;
        if self.rng.random_bool(0.3) {
            // Nothing has changed since: the second start finds what the first found.
            self.kill_now();
            self.start(None);
            let again = life.verify(&ends).await?;
            same(&again, &content, life.trimmed).map_err(|why| format!("a second start: {why}"))?;
        }
        Ok(())
    }

    fn next_place(&mut self) -> &'static Place {
        let place = &PLACES[self.turn % PLACES.len()];
        self.turn += 1;
        place
    }

    /// Writes until the broker is dead: at `place` if it is reached, otherwise at a random time.
    async fn write_and_kill(&mut self, life: &mut Life, place: Option<&'static Place>) -> Result<(), String> {
        if let Some(place) = place {
            // It has to be started with the place.
            self.kill_now();
            self.start(Some(place));
        }
        let Some(mut broker) = self.broker.take() else {
            // It was reached before anything was written.
            return Ok(());
        };
        let wait = match place {
            Some(_) => PATIENCE,
            None => Duration::from_millis(self.rng.random_range(0..LONGEST_WRITING_MS)),
        };
        let killing = tokio::task::spawn_blocking(move || {
            let status = broker.wait_for(wait);
            broker.kill();
            status
        });
        let mut ended = None;
        let over = async { ended = Some(killing.await) };
        life.writer.write_until(&mut self.rng, over).await?;
        let by_itself = ended.and_then(Result::ok).flatten();
        self.count(place, by_itself)
    }

    /// Writes a while, then stops the broker in order, and `place` ends it on the way.
    async fn write_and_stop(&mut self, life: &mut Life, place: &'static Place) -> Result<(), String> {
        self.kill_now();
        self.start(Some(place));
        let Some(mut broker) = self.broker.take() else { return Ok(()) };
        let wait = tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..200)));
        life.writer.write_until(&mut self.rng, wait).await?;
        broker.terminate();
        let waiting = tokio::task::spawn_blocking(move || broker.wait());
        let mut ended = None;
        life.writer.write_until(&mut self.rng, async { ended = Some(waiting.await) }).await?;
        let status = ended.and_then(Result::ok).ok_or("the broker was not waited for")?;
        if was_killed(status) {
            return self.count(Some(place), Some(status));
        }
        if !status.success() {
            return Err(format!("a stopped broker left with {status}"));
        }
        self.tally.orderly += 1;
        *self.tally.missed.entry(place.name).or_default() += 1;
        Ok(())
    }

    fn count(
        &mut self,
        place: Option<&'static Place>,
        by_itself: Option<std::process::ExitStatus>,
    ) -> Result<(), String> {
        self.tally.kills += 1;
        match (place, by_itself) {
            (Some(place), Some(status)) if was_killed(status) => {
                *self.tally.reached.entry(place.name).or_default() += 1;
            }
            (_, Some(status)) => return Err(format!("the broker ended by itself with {status}")),
            (Some(place), None) => *self.tally.missed.entry(place.name).or_default() += 1,
            (None, None) => {}
        }
        Ok(())
    }

    fn kill_now(&mut self) {
        if let Some(mut broker) = self.broker.take() {
            broker.kill();
            self.tally.kills += 1;
        }
    }

    /// Starts the broker; where it dies on the way, at `place`, there is none afterwards.
    fn start(&mut self, place: Option<&'static Place>) {
        let failpoint =
            place.map(|place| format!("{}:{}", place.name, self.rng.random_range(1..=place.times)));
        if self.verbose {
            eprintln!("{} kills, {failpoint:?}", self.tally.kills);
        }
        let began = Instant::now();
        let started = tokio::task::block_in_place(|| self.stage.start(failpoint.as_deref()));
        self.tally.starts += 1;
        self.tally.start_ms_max = self.tally.start_ms_max.max(began.elapsed().as_millis());
        match (started, place) {
            (Ok(running), Some(place)) if place.name.starts_with("recovery.") => {
                *self.tally.missed.entry(place.name).or_default() += 1;
                self.broker = Some(running);
            }
            (Ok(running), _) => self.broker = Some(running),
            (Err(status), Some(place)) if was_killed(status) => {
                self.tally.kills += 1;
                *self.tally.reached.entry(place.name).or_default() += 1;
            }
            (Err(status), _) => panic!("the broker ended with {status}\n{}", self.stage.log()),
        }
    }
}

impl Life {
    /// Reads everything there is, compares it with what was published and with what the live reader saw.
    async fn verify(&mut self, ends: &BTreeMap<u32, u64>) -> Result<Content, String> {
        let end = Instant::now() + DEADLINE;
        let content = loop {
            match read(&self.client, &self.name, &self.writer.ledger, ends).await {
                // A broker that has just come back removes what was due, perhaps before a slow reader: that begins anew.
                Err(why) if self.trimmed && why.contains("no longer held") && Instant::now() < end => {}
                read => break read?,
            }
        };
        let seen = self.live.reached(ends).await?;
        same(&seen, &content, self.trimmed).map_err(|why| format!("the live reader: {why}"))?;
        let ledger = self.writer.ledger.lock().unwrap();
        // It has seen everything since the first record, also what retention has removed.
        ledger.check(&seen)?;
        if self.numbered && ledger.unknown() > 0 {
            let why = ledger.why_unknown.as_deref().unwrap_or_default();
            return Err(format!("{} records of a producer have an unknown outcome: {why}", ledger.unknown()));
        }
        Ok(content)
    }
}

/// Two readers found the same; where old records are removed, at least of what both still found.
fn same(one: &Content, other: &Content, trimmed: bool) -> Result<(), String> {
    let none = BTreeMap::new();
    for shard in 0..SHARDS {
        let (one, other) = (one.get(&shard).unwrap_or(&none), other.get(&shard).unwrap_or(&none));
        let first = |held: &BTreeMap<u64, _>| held.first_key_value().map(|(offset, _)| *offset);
        let from = if trimmed { first(one).max(first(other)).unwrap_or(0) } else { 0 };
        if !one.range(from..).eq(other.range(from..)) {
            return Err(format!("shard {shard} from {from}: {} records and {}", one.len(), other.len()));
        }
    }
    Ok(())
}

impl Tally {
    fn show(&self, took: Duration) {
        eprintln!(
            "{} kills, {} orderly stops, {} starts (longest {} ms), {} records acked, {} unknown, {:.0} s",
            self.kills,
            self.orderly,
            self.starts,
            self.start_ms_max,
            self.acked,
            self.unknown,
            took.as_secs_f64()
        );
        eprintln!("{} places reached: {:?}", self.reached.len(), self.reached);
        let missed: BTreeSet<_> =
            self.missed.keys().filter(|name| !self.reached.contains_key(*name)).collect();
        eprintln!("never reached: {missed:?}");
    }
}
