//! An engine on the real disk of the machine that runs the tests.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use felix_logstore::driver::Driver;
use felix_logstore::engine::{Engine, EngineConfig, Event, LogId, ReadId};
use felix_logstore::id::{Fsync, ShardKey};
use felix_logstore::log::{AppendMeta, ClaimError, Log, LogConfig};
use felix_logstore::record::BatchKind;
use felix_logstore::recovery::{LOCK_WAIT, Recovered, Recovery, RecoveryConfig};
use felix_runtime::clock::Clock;
use felix_runtime::executor::{CoreIo, CoreSpec, spawn_core};
use felix_runtime::file::{Disk, Done, Files, FilesSettings, Full, Op, Token, VolumeId};
use felix_runtime::udp::{BufferSizes, DEFAULT_PINNED_BYTES, ReusePortGroup};
use felix_runtime::waker::CoreWaker;
use felix_wire::id::{CoreId, Generation, Incarnation};

use quota::Quota;

pub mod quota;

/// How long a test waits for one thing before it fails.
pub const LONG: Duration = Duration::from_secs(60);
const SETTINGS: FilesSettings = FilesSettings { ops_max: 128, pool_bytes: 48 << 20 };
pub const KEY: ShardKey = ShardKey { name: 0xfe11, incarnation: Incarnation(1) };

/// A directory that is removed with its value.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(test: &str) -> Dir {
        let name = format!("felix-log-{}-{test}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a directory for the test");
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // What is left then lies in the target folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The real disk, perhaps with less space than it has.
pub struct RealDisk {
    files: Files,
    quota: Option<Quota>,
}

impl Disk for RealDisk {
    fn submit(&mut self, token: Token, op: Op) -> Result<(), Full> {
        match &mut self.quota {
            Some(quota) => quota.submit(&mut self.files, token, op),
            None => self.files.submit(token, op),
        }
    }

    fn poll_done(&mut self) -> Option<Done> {
        match &mut self.quota {
            Some(quota) => quota.poll_done(&mut self.files),
            None => self.files.poll_done(),
        }
    }

    fn in_flight(&self) -> usize {
        self.files.in_flight()
    }
}

pub struct Core {
    pub io: CoreIo,
    pub disk: RealDisk,
    pub volume: VolumeId,
    pub driver: Driver,
    pub events: VecDeque<Event>,
}

impl Core {
    pub async fn recover(&mut self) -> Recovered {
        let config = RecoveryConfig {
            volume: self.volume,
            boot: [1; 16],
            entropy: u64::from(std::process::id()),
            first_token: 1 << 40,
            lock_wait: LOCK_WAIT,
        };
        let mut recovery = Recovery::new(config, self.disk.files.pool().clone());
        let mut driver = Driver::default();
        let until = self.io.now() + LONG;
        loop {
            if let Some(result) = driver.recover(&mut self.disk, &mut recovery) {
                return result.expect("the volume can be used");
            }
            assert!(self.io.now() < until, "recovery does not end");
            self.disk.files.hand_over();
            self.io.wait(Some(until));
        }
    }

    pub async fn engine(&mut self) -> (Engine, Recovered) {
        self.engine_with(|_| {}, &log_config()).await
    }

    pub async fn engine_with(
        &mut self,
        change: impl FnOnce(&mut EngineConfig),
        logs: &LogConfig,
    ) -> (Engine, Recovered) {
        let mut recovered = self.recover().await;
        assert!(recovered.refused.is_empty(), "{:?}", recovered.refused);
        let mut config =
            EngineConfig::new(self.volume, CoreId(0), recovered.run, [1; 16], 7 * recovered.run.0);
        config.slot_bytes = 4 << 20;
        config.space_low_bytes = 1;
        config.space_high_bytes = 2;
        change(&mut config);
        let now = self.io.now();
        let mut engine =
            Engine::new(config, self.disk.files.pool().clone(), now).expect("a sound configuration");
        for state in std::mem::take(&mut recovered.logs) {
            engine.adopt(Log::from_state(state, logs.clone())).expect("room");
        }
        (engine, recovered)
    }

    pub fn turn(&mut self, engine: &mut Engine) {
        let others = self.driver.turn(&mut self.disk, engine, self.io.now());
        assert!(others.is_empty(), "only the engine asks");
        while let Some(event) = engine.poll_event() {
            assert!(!matches!(event, Event::DiskTrouble { .. } | Event::Stopped { .. }), "{event:?}");
            self.events.push_back(event);
        }
    }

    pub async fn until(
        &mut self,
        engine: &mut Engine,
        mut done: impl FnMut(&Engine, &VecDeque<Event>) -> bool,
    ) {
        let until = self.io.now() + LONG;
        loop {
            self.turn(engine);
            if done(engine, &self.events) {
                return;
            }
            assert!(self.io.now() < until, "it does not come");
            let timeout = engine.next_timeout().map_or(until, |timeout| timeout.min(until));
            self.disk.files.hand_over();
            self.io.wait(Some(timeout));
        }
    }

    pub async fn create(&mut self, engine: &mut Engine) -> LogId {
        self.create_as(engine, KEY, log_config()).await
    }

    pub async fn create_as(&mut self, engine: &mut Engine, key: ShardKey, config: LogConfig) -> LogId {
        let log = engine.create(key, config).expect("a new key");
        let made = |event: &Event| matches!(event, Event::Created { log: made } if *made == log);
        self.until(engine, |_, events| events.iter().any(made)).await;
        log
    }

    /// Publishes batches of one record, as many as fit in `in_flight`, and waits until all are durable.
    pub async fn publish(&mut self, engine: &mut Engine, log: LogId, records: &[Vec<u8>], in_flight: u64) {
        let first = engine.log(log).expect("there").claimed_end().0;
        let mut next = 0;
        while next < records.len() {
            let settled = engine.log(log).expect("there").settled_end().0;
            let record = &records[next];
            let room = first + next as u64 - settled < in_flight;
            if room {
                match engine.claim(log, BatchKind::Data, NonZeroU32::MIN, record.len()) {
                    Ok(claim) => {
                        let meta = AppendMeta { generation: Generation(1), timestamp_ms: 1, producer: None };
                        let one = std::iter::once((1, record.as_slice()));
                        engine.append(log, claim, meta, one).expect("there");
                        next += 1;
                        continue;
                    }
                    Err(ClaimError::NoRoom) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            self.until(engine, |engine, events| {
                let moved = engine.log(log).expect("there").settled_end().0 > settled;
                moved || events.iter().any(|event| matches!(event, Event::Room { .. }))
            })
            .await;
            self.events.clear();
        }
        self.until(engine, |engine, _| engine.log(log).expect("there").is_settled()).await;
    }

    pub async fn read_all(&mut self, engine: &mut Engine, log: LogId) -> Vec<Vec<u8>> {
        let end = engine.log(log).expect("there").settled_end();
        let mut at = engine.log(log).expect("there").start();
        let mut records = Vec::new();
        while at < end {
            engine.read(ReadId(at.0), log, at, end, 1 << 20);
            let page = |event: &Event| matches!(event, Event::Page { .. } | Event::ReadFailed { .. });
            self.until(engine, |_, events| events.iter().any(page)).await;
            let found = self.events.iter().position(page).expect("a page");
            match self.events.remove(found) {
                Some(Event::Page { batches, .. }) => {
                    for batch in batches {
                        records.extend(batch.records().map(|record| record.payload.to_vec()));
                        at = batch.head().end();
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        records
    }
}

pub fn log_config() -> LogConfig {
    LogConfig { policy: Fsync::OnCommit, segment_bytes_max: 16 << 20, ..LogConfig::default() }
}

pub fn on_core<F, Fut>(dir: &Dir, test: F)
where
    F: FnOnce(Core) -> Fut + Send + 'static,
    Fut: Future<Output = Core> + 'static,
{
    on_volume(&dir.0, None, test);
}

/// The same on any directory; with `quota_bytes` it has no more space than that.
pub fn on_volume<F, Fut>(root: &Path, quota_bytes: Option<u64>, test: F)
where
    F: FnOnce(Core) -> Fut + Send + 'static,
    Fut: Future<Output = Core> + 'static,
{
    let group =
        ReusePortGroup::bind(([127, 0, 0, 1], 0).into(), 1, BufferSizes::default()).expect("a free port");
    let spec = CoreSpec {
        index: 0,
        cpu: None,
        spin: Duration::ZERO,
        name: "test-log".to_owned(),
        pinned_bytes: DEFAULT_PINNED_BYTES,
        clock: Clock::start(),
        waker: CoreWaker::new(),
    };
    let root = root.to_owned();
    let socket = group.sockets.into_iter().next().expect("one socket");
    let join = spawn_core(spec, socket, move |mut io| async move {
        let mut files = Files::new(&mut io, SETTINGS).expect("a ring");
        let volume = files.open_volume(&root).expect("a usable volume");
        let disk = RealDisk { files, quota: quota_bytes.map(Quota::new) };
        let core = Core { io, disk, volume, driver: Driver::default(), events: VecDeque::new() };
        let core = test(core).await;
        core.disk.files.close();
    });
    join.expect("the core starts").join().expect("the core ends");
}
