//! Cores with logs over one simulated disk, seen from another core: what it sends and what it is answered.

mod caches;
mod compaction;
mod confirm;
mod groups;
mod leases;
mod returned;
mod streams;
mod watches;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use felix_logstore::driver::Driver;
use felix_logstore::engine::Reservations;
use felix_logstore::id::{Fsync, Run, ShardKey};
use felix_logstore::log::LogState;
use felix_logstore::recovery::{LOCK_WAIT, Recovery, RecoveryConfig};
use felix_logstore::retention::Retention;
use felix_runtime::clock::Tick;
use felix_runtime::file::{BufPool, Disk, DiskError, Done, Token, VolumeId};
use felix_runtime::sim::{DiskFaults, Fault, OpKind, SimDisk, SimRng};
use felix_wire::client::Records;
use felix_wire::error_code::ErrorCode;
use felix_wire::id::{CoreId, Generation, Incarnation, Offset, ProducerId, Sequence, ShardIndex};
use felix_wire::routing::KeyMapping;

use super::super::core::{Core, Mail};
use super::super::tests::bare_core;
use crate::projection::producer::ProducerIds;
use crate::session::refusal::Refusal;
use crate::shard::mail::{
    Bounce, Doubt, Job, JobToken, LanePos, NotWritten, NumberRefusal, PageLoss, Reader, ShardInput,
    ShardOutput, Start, SubToken, ToShard,
};
use crate::snapshot::{
    CoreLimits, FromCore, LogOrder, LogRole, Owner, Resource, Routes, ShardId, StreamName, StreamRoute,
    StreamUid, ToCore,
};
use crate::store::{LogSource, StoreSettings, VolumeStart};

const CORES: u16 = 3;
/// The core that is not there: the test speaks for it.
const ELSEWHERE: CoreId = CoreId(2);
const SHARD: ShardId = ShardId { stream: StreamUid(1), shard: ShardIndex(0) };
const MIB: u64 = 1 << 20;

fn settings(policy: Fsync) -> StoreSettings {
    StoreSettings {
        policy,
        flush_every: Duration::from_millis(250),
        segment_bytes_first: 64 << 10,
        segment_bytes_max: MIB,
        slot_bytes: MIB,
        memory_bytes_max: 32 << 20,
        space_low_bytes: 8 * MIB,
        space_high_bytes: 16 * MIB,
        retention: Retention::default(),
        retain_every: Duration::from_secs(1),
        compact_bytes_per_sec: 64 << 20,
    }
}

/// Cores of one broker, the disk they share, and what they said to the core elsewhere.
struct World {
    disk: SimDisk,
    cores: Vec<Core>,
    /// Whose operation is under which token of the disk.
    asked: BTreeMap<Token, (usize, Token)>,
    next_token: u64,
    now: Tick,
    /// Milliseconds since 1970, as the cores are told.
    unix_ms: u64,
    /// The lane from elsewhere, and what came back of it.
    at: LanePos,
    returned: VecDeque<Job>,
    incarnation: u64,
    answers: Vec<ShardOutput>,
    told: Vec<FromCore>,
}

impl World {
    /// No log becomes shorter from now on.
    fn keeps_logs(&mut self) {
        self.cores.iter_mut().for_each(|core| core.compacting.end());
    }

    fn new(policy: Fsync) -> World {
        World::over(SimDisk::new(1, &[256 * MIB], DiskFaults::none(Duration::from_micros(100))), policy, 1).0
    }

    /// Recovers the disk, starts the cores, and gives what was found beside.
    /// `boot`: the machine's starts.
    fn over(mut disk: SimDisk, policy: Fsync, boot: u8) -> (World, Vec<LogState>) {
        let (run, logs) = recover(&mut disk, boot);
        let pool = BufPool::new(96 << 20);
        let limits = Arc::new(CoreLimits { ring_bytes_max: 64 << 10, ..CoreLimits::default() });
        let now = disk.now();
        let reservations = Reservations::default();
        let open = |id: u16| {
            let mut core = bare_core(id, CORES, &limits);
            let (entropy, reservations) = (u64::from(id) + 10 * run.0, reservations.clone());
            let start = VolumeStart { run, boot: [boot; 16], entropy, reservations };
            core.open_store(settings(policy), &[start], &pool, now).expect("sound settings");
            core
        };
        let world = World {
            cores: vec![open(0), open(1)],
            disk,
            asked: BTreeMap::new(),
            next_token: 0,
            now,
            unix_ms: 1_000,
            at: LanePos { epoch: 0, seq: 0 },
            returned: VecDeque::new(),
            incarnation: 1,
            answers: Vec::new(),
            told: Vec::new(),
        };
        (world, logs)
    }

    /// The process dies; another one takes over what the disk holds.
    fn restart(mut self, policy: Fsync) -> World {
        self.disk.kill();
        World::take_over(self.incarnation, World::over(self.disk, policy, 1))
    }

    /// Power is lost, and a process of the machine's next start takes over.
    fn lose_power(mut self, policy: Fsync) -> World {
        self.disk.crash(&mut SimRng::new(1));
        World::take_over(self.incarnation, World::over(self.disk, policy, 2))
    }

    fn take_over(incarnation: u64, (mut world, logs): (World, Vec<LogState>)) -> World {
        let log =
            logs.into_iter().find(|log| log.key.incarnation.0 == incarnation).expect("the log is there");
        world.incarnation = incarnation;
        world.serve(0, LogSource::Recovered(Box::new(log)));
        world
    }

    /// As [`World::restart`], with a bit of the payload of the batch at offset `hit` turned meanwhile.
    fn restart_damaged(self, policy: Fsync, hit: u64) -> World {
        let incarnation = self.incarnation;
        // The recovery of the first start brings every batch to its segment.
        let mut world = self.restart(policy);
        world.disk.kill();
        let mut image = world.disk.image();
        let mut hits = 0;
        for (path, _) in image.files() {
            let bytes = image.read(&path).expect("it is listed");
            if !path.as_str().contains("shards/") {
                continue;
            }
            let begins = |at: &usize| {
                bytes[*at..].starts_with(b"FLXB") && bytes[at + 24..at + 32] == hit.to_le_bytes()
            };
            for at in (4_096..bytes.len().saturating_sub(128)).step_by(8).filter(begins) {
                image.flip_bit(&path, (at as u64 + 110) * 8).expect("it is there");
                hits += 1;
            }
        }
        assert_eq!(hits, 1, "one batch at offset {hit}");
        let disk = SimDisk::from_image(1, image, DiskFaults::none(Duration::from_micros(100)));
        World::take_over(incarnation, World::over(disk, policy, 1))
    }

    /// The answer to a record that says `token`.
    fn answer(&mut self, token: u64, producer: Option<(ProducerId, Sequence)>) -> ShardOutput {
        self.publish(0, token, producer);
        self.run(Duration::from_millis(20));
        let answer = self.answers.pop().expect("an answer");
        assert!(self.answers.is_empty(), "{:?} and {answer:?}", self.answers);
        answer
    }

    /// The offset at which that record is stored.
    fn stored(&mut self, token: u64, producer: Option<(ProducerId, Sequence)>) -> u64 {
        match self.answer(token, producer) {
            ShardOutput::Published { base, logged: true, .. } => base.0,
            other => panic!("not stored: {other:?}"),
        }
    }

    fn route(&self, owner: Owner) -> Arc<StreamRoute> {
        let name = StreamName { tenant: "t".into(), namespace: "n".into(), stream: "s".into() };
        Arc::new(StreamRoute {
            resource: Resource::Stream,
            uid: StreamUid(self.incarnation),
            name,
            incarnation: Incarnation(self.incarnation),
            mapping: KeyMapping::Modulo,
            log: Some(Retention::default()),
            owners: vec![owner],
        })
    }

    /// The log comes from `source` to the core, which leads the shard.
    fn serve(&mut self, core: u16, source: LogSource) {
        let owner = Owner::Here { core: CoreId(core), generation: Generation(1) };
        let route = self.route(owner);
        let key = route.log_key(LogRole::Records, ShardIndex(0));
        let order = LogOrder::Open { key, volume: 0, source };
        self.cores[usize::from(core)].handle_admin(self.now, ToCore::Log(order));
        let routes = Arc::new(Routes::new(u64::from(core) + self.incarnation, [route], [Arc::from("t")]));
        for core in &mut self.cores {
            core.handle_admin(self.now, ToCore::Routes(Arc::clone(&routes)));
        }
        self.run(Duration::from_millis(20));
    }

    fn ask(&mut self, core: usize, what: ShardInput) {
        let shard = ShardId { stream: StreamUid(self.incarnation), ..SHARD };
        let to = ToShard { shard, generation: Generation(1), what };
        self.cores[core].set_time(self.unix_ms);
        self.cores[core].handle_mail(self.now, ELSEWHERE, Mail::ToShard(to));
    }

    /// One record that says `token`, in a lane that never broke.
    fn publish(&mut self, core: usize, token: u64, producer: Option<(ProducerId, Sequence)>) {
        let records = Records::from_payloads([token.to_be_bytes()]);
        self.send(core, Job { token: JobToken(token), records, producer });
    }

    fn send(&mut self, core: usize, job: Job) {
        let at = self.at;
        self.at.seq += 1;
        self.ask(core, ShardInput::Publish { at, job });
    }

    /// Turns only, until nobody has anything to say: the disk does nothing.
    fn turn(&mut self) {
        loop {
            let before = self.at;
            self.turn_once();
            if self.at == before {
                return;
            }
        }
    }

    fn turn_once(&mut self) {
        for from in 0..self.cores.len() {
            while self.cores[from].turn(self.now, self.unix_ms) {}
            while let Some((token, op)) = self.cores[from].poll_disk() {
                let own = Token(self.next_token);
                self.next_token += 1;
                self.asked.insert(own, (from, token));
                self.disk.submit(own, op).expect("room for every operation");
            }
            while let Some(mail) = self.cores[from].poll_mail(ELSEWHERE) {
                let Mail::FromShard(answer) = mail else { continue };
                match answer.what {
                    ShardOutput::Bounced { job, why: Bounce::Full } => self.returned.push_back(job),
                    // What came back is sent again in its order, as a lane does.
                    ShardOutput::Room => {
                        self.at = LanePos { epoch: self.at.epoch + 1, seq: 0 };
                        for job in std::mem::take(&mut self.returned) {
                            self.send(from, job);
                        }
                    }
                    other => self.answers.push(other),
                }
            }
            while let Some(message) = self.cores[from].poll_admin() {
                self.told.push(message);
            }
        }
    }

    /// Everything, for that long.
    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.turn();
            let timeouts = self.cores.iter_mut().filter_map(Core::next_timeout);
            let due = timeouts.chain(self.disk.next_due()).min().unwrap_or(until).min(until);
            self.now = due.max(self.now + Duration::from_nanos(1));
            self.disk.advance_to(self.now);
            while let Some(done) = self.disk.poll_done() {
                let Some((core, token)) = self.asked.remove(&done.token) else { continue };
                self.cores[core].complete_disk(self.now, Done { token, result: done.result });
            }
            if self.now >= until {
                return self.turn();
            }
        }
    }

    /// Answers to publishes since the last call: token, and the offset if it was written.
    fn settled(&mut self) -> Vec<(u64, Option<u64>)> {
        let answers = std::mem::take(&mut self.answers);
        let settled = answers.into_iter().filter_map(|answer| match answer {
            ShardOutput::Published { token, base, logged: true } => Some((token.0, Some(base.0))),
            ShardOutput::Unknown { token, .. } => Some((token.0, None)),
            ShardOutput::Subscribed { .. } | ShardOutput::Page { .. } => None,
            other => panic!("another answer: {other:?}"),
        });
        settled.collect()
    }

    /// The records from `from` on, by the pages a subscription below its feed asks for.
    fn read(&mut self, core: usize, from: u64) -> Vec<u64> {
        let token = SubToken(99);
        let mut at = from;
        let mut found = Vec::new();
        self.ask(core, ShardInput::Subscribe { token, start: Start::At(Offset(from)), hold: false });
        self.run(Duration::from_millis(10));
        let mut end = None;
        for answer in std::mem::take(&mut self.answers) {
            if let ShardOutput::Subscribed { end: told, .. } = answer {
                end = Some(told.0);
            }
        }
        let end = end.expect("a subscription from an offset that is held");
        while at < end {
            let pull =
                ShardInput::Pull { reader: Reader::CatchUp(token), from: Offset(at), bytes_max: 4_096 };
            self.ask(core, pull);
            self.run(Duration::from_millis(10));
            for answer in std::mem::take(&mut self.answers) {
                let ShardOutput::Page { page, .. } = answer else { panic!("no page: {answer:?}") };
                for slot in page.slots.iter().filter(|slot| slot.end().0 > at) {
                    let skip = at.saturating_sub(slot.base.0) as usize;
                    found.extend(slot.records.iter().skip(skip).map(number));
                }
                at = at.max(page.next.0);
            }
        }
        found
    }
}

fn number(payload: &[u8]) -> u64 {
    payload.first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes))
}

fn recover(disk: &mut SimDisk, boot: u8) -> (Run, Vec<LogState>) {
    let entropy = disk.counts().answered;
    let config = RecoveryConfig {
        volume: VolumeId(0),
        boot: [boot; 16],
        entropy,
        first_token: 0,
        lock_wait: LOCK_WAIT,
    };
    let mut recovery = Recovery::new(config, BufPool::new(32 << 20));
    let mut driver = Driver::default();
    loop {
        if let Some(result) = driver.recover(disk, &mut recovery) {
            let found = result.expect("the volume can be used");
            assert!(found.refused.is_empty(), "{:?}", found.refused);
            return (found.run, found.logs);
        }
        let due = disk.next_due().expect("recovery waits for the disk only");
        disk.advance_to(due);
    }
}

#[test]
fn a_publish_is_answered_when_its_bytes_are_durable_and_not_before() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    for token in 0..3 {
        world.publish(0, token, None);
    }
    for _ in 0..10 {
        world.turn();
    }
    assert_eq!(world.settled(), [], "the disk has not answered");
    assert_eq!(world.cores[0].shards[&SHARD].end(), Offset(0), "and nothing can be read");
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(0, Some(0)), (1, Some(1)), (2, Some(2))]);
    assert_eq!(world.read(0, 1), [1, 2]);
}

#[test]
fn what_was_answered_is_there_after_a_kill_and_offsets_go_on() {
    for policy in [Fsync::OnCommit, Fsync::Periodic, Fsync::None] {
        let mut world = World::new(policy);
        world.serve(0, LogSource::New);
        for token in 0..200 {
            world.publish(0, token, None);
            world.run(Duration::from_millis(1));
        }
        assert_eq!(world.settled().len(), 200);
        let mut world = world.restart(policy);
        let base = {
            world.publish(0, 200, None);
            world.run(Duration::from_millis(400));
            world.settled()[0].1.expect("written")
        };
        assert!(base >= 200, "{base}");
        assert_eq!(world.read(0, 0), (0..=200).collect::<Vec<_>>());
    }
}

#[test]
fn a_failed_write_leaves_the_outcome_unknown_and_the_log_refuses_until_the_next_start() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    world.publish(0, 0, None);
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(0, Some(0))]);
    world.disk.choose_faults(|asked| {
        let slot = asked.path.is_some_and(|path| path.as_str().contains("slots/"));
        (slot && asked.kind == OpKind::Write).then_some(Fault::Error(DiskError::Io { errno: 5 }))
    });
    world.publish(0, 1, None);
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(1, None)], "nobody can say whether it is there");
    world.publish(0, 2, None);
    world.run(Duration::from_millis(20));
    let refused = std::mem::take(&mut world.answers);
    assert!(
        matches!(refused[..], [ShardOutput::Refused { token: JobToken(2), why: NotWritten::Stopped }]),
        "{refused:?}"
    );
    assert_eq!(world.read(0, 0), [0], "what was answered stays readable");
    world.disk.choose_faults(|_| None);
    let mut world = world.restart(Fsync::OnCommit);
    world.publish(0, 3, None);
    world.run(Duration::from_millis(20));
    assert!(matches!(world.settled()[..], [(3, Some(_))]));
    let read = world.read(0, 0);
    assert!(read == [0, 3] || read == [0, 1, 3], "{read:?}");
}

/// It was never tried again, and its shard not served until the next start of the broker.
#[test]
fn a_log_that_could_not_be_made_is_made_when_the_disk_works_again() {
    let mut world = World::new(Fsync::OnCommit);
    world.disk.choose_faults(|asked| {
        (asked.kind == OpKind::MakeDir).then_some(Fault::Error(DiskError::Io { errno: 5 }))
    });
    world.serve(0, LogSource::New);
    world.run(Duration::from_millis(20));
    assert!(!world.cores[0].shards.contains_key(&SHARD), "there is no log");
    world.disk.choose_faults(|_| None);
    world.run(Duration::from_millis(500));
    world.publish(0, 1, None);
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(1, Some(0))]);
}

#[test]
fn a_reader_below_the_ring_is_served_from_the_log() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    for token in 0..300u64 {
        let mut payload = vec![0; 1_500];
        payload[..8].copy_from_slice(&token.to_be_bytes());
        let records = Records::from_payloads([payload]);
        world.send(0, Job { token: JobToken(token), records, producer: None });
        world.run(Duration::from_micros(300));
    }
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled().len(), 300);
    assert!(world.cores[0].shards[&SHARD].ring_bytes() <= 64 << 10, "the ring holds the newest only");
    assert_eq!(world.read(0, 0), (0..300).collect::<Vec<_>>());
}

#[test]
fn a_numbered_publish_sent_again_is_stored_once_also_after_a_kill() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    let numbered = |sequence| Some((ProducerId(7), Sequence(sequence)));
    world.publish(0, 10, numbered(0));
    world.turn();
    // Again while the first is on its way.
    let again = Records::from_payloads([10u64.to_be_bytes()]);
    world.send(0, Job { token: JobToken(99), records: again, producer: numbered(0) });
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(10, Some(0)), (99, Some(0))]);
    world.publish(0, 11, numbered(1));
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(11, Some(1))]);
    let mut world = world.restart(Fsync::OnCommit);
    world.publish(0, 11, numbered(1));
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(11, Some(1))], "after the log was read");
    world.publish(0, 13, numbered(3));
    world.publish(0, 12, numbered(2));
    world.run(Duration::from_millis(20));
    let gap = NotWritten::Number(NumberRefusal::Gap { expected: Sequence(2) });
    let answers = std::mem::take(&mut world.answers);
    assert!(
        matches!(&answers[..], [
            ShardOutput::Refused { token: JobToken(13), why },
            ShardOutput::Published { token: JobToken(12), base: Offset(2), .. },
        ] if *why == gap),
        "{answers:?}"
    );
    assert_eq!(world.read(0, 0), [10, 11, 12]);
}

/// The offsets between the records and the next one were read for producers without end, in one turn of the core.
#[test]
fn a_numbered_publish_right_after_a_power_loss_is_decided() {
    let mut world = World::new(Fsync::None);
    world.serve(0, LogSource::New);
    world.publish(0, 0, Some((ProducerId(7), Sequence(0))));
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(0, Some(0))]);
    world.disk.choose_faults(|asked| {
        (asked.kind == OpKind::Presize).then_some(Fault::Stall(Duration::from_millis(100)))
    });
    let mut world = world.lose_power(Fsync::None);
    world.publish(0, 1, Some((ProducerId(8), Sequence(0))));
    world.turn();
    assert_eq!(world.settled(), [], "its segment is not there yet");
    world.run(Duration::from_millis(500));
    let settled = world.settled();
    assert!(matches!(settled[..], [(1, Some(offset))] if offset > 1_000), "{settled:?}");
}

#[test]
fn a_log_moves_to_another_core_with_all_it_holds() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    for token in 0..50 {
        world.publish(0, token, None);
    }
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled().len(), 50);
    let key = world.route(Owner::Nobody { reason: "moving" }).log_key(LogRole::Records, ShardIndex(0));
    world.cores[0].handle_admin(world.now, ToCore::Log(LogOrder::Release { key }));
    world.run(Duration::from_millis(50));
    let released = world.told.drain(..).find_map(|told| match told {
        FromCore::LogReleased { source, .. } => Some(source),
        _ => None,
    });
    world.answers.clear();
    world.serve(1, released.expect("the log was given away"));
    world.publish(1, 50, None);
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(50, Some(50))]);
    assert_eq!(world.read(1, 0), (0..=50).collect::<Vec<_>>());
}

/// A publish is in flight, and a second copy of it waits for the first, when the log is taken away.
fn answers_when_the_log_goes(order: impl Fn(ShardKey) -> LogOrder) -> Vec<ShardOutput> {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    let numbered = |sequence| Some((ProducerId(5), Sequence(sequence)));
    world.publish(0, 0, numbered(0));
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(0, Some(0))]);
    for token in [1, 2] {
        let records = Records::from_payloads([b"the same"]);
        world.send(0, Job { token: JobToken(token), records, producer: numbered(1) });
    }
    world.turn();
    let key = world.route(Owner::Nobody { reason: "moving" }).log_key(LogRole::Records, ShardIndex(0));
    world.cores[0].handle_admin(world.now, ToCore::Log(order(key)));
    world.run(Duration::from_millis(50));
    std::mem::take(&mut world.answers)
}

#[test]
fn what_was_on_its_way_when_its_stream_was_deleted_is_told_so() {
    let answers =
        answers_when_the_log_goes(|key| LogOrder::Delete { key, volume: 0, source: LogSource::New });
    assert!(
        matches!(
            answers[..],
            [
                ShardOutput::Refused { token: JobToken(1), why: NotWritten::Deleted },
                ShardOutput::Refused { token: JobToken(2), why: NotWritten::Deleted }
            ]
        ),
        "{answers:?}"
    );
    let told = Refusal::not_written(NotWritten::Deleted);
    assert_eq!((told.code, &*told.message), (ErrorCode::NotFound, "the stream was deleted"));
}

#[test]
fn what_was_on_its_way_when_its_shard_moved_has_an_unknown_outcome_and_no_log_failed() {
    let answers = answers_when_the_log_goes(|key| LogOrder::Release { key });
    assert!(
        matches!(
            answers[..],
            [
                ShardOutput::Unknown { token: JobToken(1), why: Doubt::Moved },
                ShardOutput::Unknown { token: JobToken(2), why: Doubt::Moved }
            ]
        ),
        "{answers:?}"
    );
    assert_eq!(Refusal::outcome_unknown(Doubt::Moved).code, ErrorCode::LeadershipLost);
}

#[test]
fn a_deleted_life_is_gone_and_the_next_one_begins_empty() {
    let mut world = World::new(Fsync::OnCommit);
    for incarnation in 1..=20 {
        world.incarnation = incarnation;
        world.serve(0, LogSource::New);
        world.publish(0, incarnation, None);
        world.run(Duration::from_millis(20));
        assert_eq!(world.settled(), [(incarnation, Some(0))]);
        assert_eq!(world.read(0, 0), [incarnation]);
        let key = world.route(Owner::Nobody { reason: "moving" }).log_key(LogRole::Records, ShardIndex(0));
        let order = LogOrder::Delete { key, volume: 0, source: LogSource::New };
        world.cores[0].handle_admin(world.now, ToCore::Log(order));
        world.run(Duration::from_millis(50));
        let deleted =
            world.told.drain(..).any(|told| matches!(told, FromCore::LogDeleted { key: k } if k == key));
        assert!(deleted, "its files are gone");
        world.answers.clear();
    }
    world.disk.kill();
    assert!(recover(&mut world.disk, 1).1.is_empty(), "no life is left on the disk");
}

#[test]
fn writes_to_a_volume_that_is_nearly_full_are_refused_and_go_on_when_there_is_space() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    world.publish(0, 0, None);
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(0, Some(0))]);
    world.disk.set_volume_bytes(VolumeId(0), 12 * MIB);
    world.run(Duration::from_secs(2));
    world.publish(0, 1, None);
    world.run(Duration::from_millis(20));
    let answers = std::mem::take(&mut world.answers);
    assert!(
        matches!(answers[..], [ShardOutput::Refused { token: JobToken(1), why: NotWritten::NoSpace }]),
        "{answers:?}"
    );
    assert_eq!(world.read(0, 0), [0], "reading goes on");
    world.disk.set_volume_bytes(VolumeId(0), 256 * MIB);
    world.run(Duration::from_secs(2));
    world.publish(0, 2, None);
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(2, Some(1))]);
}

#[test]
fn a_volume_whose_folder_is_gone_is_not_told_as_full_and_goes_on_when_it_is_back() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    world.disk.choose_faults(|asked| {
        let by_name = matches!(
            asked.kind,
            OpKind::Open | OpKind::Rename | OpKind::Unlink | OpKind::List | OpKind::Space
        );
        by_name.then_some(Fault::Error(DiskError::Missing))
    });
    let mut refused = None;
    for token in 0..200 {
        let records = Records::from_payloads([vec![7; 20_000]]);
        world.send(0, Job { token: JobToken(token), records, producer: None });
        world.run(Duration::from_millis(20));
        // What waits for room in vain is refused as late, and the next one is tried again.
        world.returned.clear();
        world.at = LanePos { epoch: world.at.epoch + 1, seq: 0 };
        refused = std::mem::take(&mut world.answers).into_iter().find_map(|answer| match answer {
            ShardOutput::Refused { why, .. } => Some(why),
            _ => None,
        });
        if refused.is_some() {
            break;
        }
    }
    assert_eq!(refused, Some(NotWritten::VolumeGone));
    world.disk.choose_faults(|_| None);
    world.run(Duration::from_secs(2));
    world.answers.clear();
    world.publish(0, 1_000, None);
    world.run(Duration::from_millis(20));
    assert!(matches!(world.settled()[..], [(1_000, Some(_))]));
}

#[test]
fn a_range_that_cannot_be_read_is_told_and_others_go_on() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    for token in 0..20 {
        world.publish(0, token, None);
    }
    world.run(Duration::from_millis(20));
    let mut world = world.restart(Fsync::OnCommit);
    world.disk.choose_faults(|asked| {
        (asked.kind == OpKind::Read).then_some(Fault::Error(DiskError::Io { errno: 5 }))
    });
    let token = SubToken(1);
    world.ask(0, ShardInput::Subscribe { token, start: Start::Earliest, hold: false });
    world.ask(0, ShardInput::Pull { reader: Reader::CatchUp(token), from: Offset(3), bytes_max: 4_096 });
    world.run(Duration::from_millis(20));
    let lost =
        |answer: &ShardOutput| matches!(answer, ShardOutput::PageLost { why: PageLoss::Unreadable, .. });
    assert!(world.answers.iter().any(lost), "{:?}", world.answers);
    world.answers.clear();
    world.publish(0, 20, None);
    world.run(Duration::from_millis(20));
    assert_eq!(world.settled(), [(20, Some(20))]);
}

#[test]
fn a_damaged_batch_ends_reading_with_its_range_and_what_is_behind_is_served() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    for token in 0..20 {
        assert_eq!(world.stored(token, None), token);
    }
    let mut world = world.restart_damaged(Fsync::OnCommit, 7);
    let token = SubToken(1);
    world.ask(0, ShardInput::Subscribe { token, start: Start::Earliest, hold: false });
    world.run(Duration::from_millis(20));
    world.answers.clear();
    for (from, pages) in [(0, true), (7, false)] {
        let pull =
            ShardInput::Pull { reader: Reader::CatchUp(token), from: Offset(from), bytes_max: 64 << 10 };
        world.ask(0, pull);
        world.run(Duration::from_millis(20));
        let due = match &world.answers[..] {
            [ShardOutput::Page { page, .. }] => pages && page.next == Offset(7),
            [ShardOutput::PageLost { why, .. }] => {
                !pages && *why == PageLoss::Damaged { from: Offset(7), next: Offset(8) }
            }
            _ => false,
        };
        assert!(due, "from {from}: {:?}", world.answers);
        world.answers.clear();
    }
    assert_eq!(world.stored(20, None), 20);
    assert_eq!(world.read(0, 8), (8..=20).collect::<Vec<_>>());
}

#[test]
fn a_numbered_publish_to_a_damaged_log_is_refused_only_where_its_batches_may_be_in_the_damage() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    let of = |producer, sequence| Some((ProducerId(producer), Sequence(sequence)));
    let sent = [of(7, 0), of(7, 1), of(8, 0), None, of(8, 1), of(9, 0), of(7, 2)];
    for (token, producer) in (0..).zip(sent) {
        assert_eq!(world.stored(token, producer), token);
    }
    let mut world = world.restart_damaged(Fsync::OnCommit, 4);
    let refused = |answer: ShardOutput| {
        let next = Offset(5);
        matches!(answer, ShardOutput::Refused { why: NotWritten::Damaged { next: told }, .. } if told == next)
    };
    assert!(refused(world.answer(4, of(8, 1))), "it is there, in the damage");
    assert!(refused(world.answer(50, of(8, 2))));
    assert!(refused(world.answer(51, of(77, 0))), "it may be there");
    assert_eq!(world.stored(2, of(8, 0)), 2, "the first copy can be read");
    assert_eq!(world.stored(6, of(7, 2)), 6);
    assert_eq!(world.stored(7, of(7, 3)), 7, "what came behind the damage was the next one before");
    assert_eq!(world.stored(8, of(9, 1)), 8);
    assert_eq!(world.stored(9, None), 9);
    let own = ProducerIds::new(1, CoreId(2)).take().0;
    let gone = NotWritten::Number(NumberRefusal::Unknown);
    let unknown = world.answer(52, of(own, 1));
    assert!(matches!(unknown, ShardOutput::Refused { why, .. } if why == gone), "{unknown:?}");
    assert_eq!(world.stored(10, of(own, 0)), 10, "its id was given after the start, the damage is older");
    assert_eq!(world.stored(11, of(own, 1)), 11);
    assert_eq!(world.stored(11, of(own, 1)), 11);
    // Retention removes what is damaged.
    let at = world.cores[0].shards[&SHARD].log().expect("a log");
    let store = world.cores[0].store.as_mut().expect("logs");
    store.engine(at).expect("there").move_start(at.log, Offset(5));
    world.run(Duration::from_millis(20));
    assert_eq!(world.stored(12, of(77, 0)), 12);
}
