//! Directories for inspections: written by the engine through the disk of this machine, or from a simulated disk at rest.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use felix_logstore::driver::Driver;
use felix_logstore::engine::{Engine, EngineConfig, Event, LogId};
use felix_logstore::id::ShardKey;
use felix_logstore::log::{AppendMeta, ClaimError, Log, LogConfig};
use felix_logstore::record::BatchKind;
use felix_logstore::recovery::{LOCK_WAIT, Recovered, Recovery, RecoveryConfig};
use felix_runtime::clock::Clock;
use felix_runtime::executor::{CoreIo, CoreSpec, spawn_core};
use felix_runtime::file::{Files, FilesSettings};
use felix_runtime::sim::DiskImage;
use felix_runtime::udp::{BufferSizes, DEFAULT_PINNED_BYTES, ReusePortGroup};
use felix_runtime::waker::CoreWaker;
use felix_wire::id::{CoreId, Generation};

/// How long a test waits for one thing before it fails.
const LONG: Duration = Duration::from_secs(60);
const SETTINGS: FilesSettings = FilesSettings { ops_max: 128, pool_bytes: 48 << 20 };

/// A directory below the target folder that is removed with its value.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("felix-inspect-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a directory for the test");
        Dir(path)
    }

    /// With the files of an image, whose empty blocks stay holes.
    pub fn of(image: &DiskImage) -> Dir {
        use std::os::unix::fs::FileExt;
        let dir = Dir::new();
        for name in ["slots", "shards", "pool"] {
            std::fs::create_dir_all(dir.0.join(name)).expect("a directory");
        }
        for (path, len) in image.files() {
            let full = dir.0.join(path.as_str());
            std::fs::create_dir_all(full.parent().expect("a parent")).expect("a directory");
            let file = std::fs::File::create(full).expect("a file");
            file.set_len(len).expect("a length");
            let bytes = image.read(&path).expect("it is listed");
            for (number, block) in bytes.chunks(4_096).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    file.write_all_at(block, number as u64 * 4_096).expect("a write");
                }
            }
        }
        dir
    }

    /// Every file below it with all of its bytes, and every directory.
    pub fn contents(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let mut found = BTreeMap::new();
        let mut left = vec![self.0.clone()];
        while let Some(dir) = left.pop() {
            for entry in std::fs::read_dir(&dir).expect("a directory").flatten() {
                let path = entry.path();
                let is_dir = path.is_dir();
                let bytes = (!is_dir).then(|| std::fs::read(&path).expect("a file"));
                found.insert(path.clone(), bytes);
                if is_dir {
                    left.push(path);
                }
            }
        }
        found
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // What is left then lies in the target folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the engine wrote for one log: batches of so many records of so many bytes.
pub struct Publishing {
    pub key: ShardKey,
    pub batches: Vec<(u32, usize)>,
}

/// Writes with the real engine on the real disk, and stops it in order.
pub fn publish(dir: &Path, logs: Vec<Publishing>) {
    let group = ReusePortGroup::bind(([127, 0, 0, 1], 0).into(), 1, BufferSizes::default()).expect("a port");
    let spec = CoreSpec {
        index: 0,
        cpu: None,
        spin: Duration::ZERO,
        name: "test-inspect".to_owned(),
        pinned_bytes: DEFAULT_PINNED_BYTES,
        clock: Clock::start(),
        waker: CoreWaker::new(),
    };
    let root = dir.to_owned();
    let socket = group.sockets.into_iter().next().expect("one socket");
    let join = spawn_core(spec, socket, move |io| async move { write(io, &root, &logs).await });
    join.expect("the core starts").join().expect("the core ends");
}

async fn write(mut io: CoreIo, root: &Path, logs: &[Publishing]) {
    let mut files = Files::new(&mut io, SETTINGS).expect("a ring");
    let volume = files.open_volume(root).expect("a usable volume");
    let config = RecoveryConfig {
        volume,
        boot: [1; 16],
        entropy: u64::from(std::process::id()),
        first_token: 1 << 40,
        lock_wait: LOCK_WAIT,
    };
    let mut recovery = Recovery::new(config, files.pool().clone());
    let mut driver = Driver::default();
    let until = io.now() + LONG;
    let recovered: Recovered = loop {
        if let Some(result) = driver.recover(&mut files, &mut recovery) {
            break result.expect("the volume can be used");
        }
        assert!(io.now() < until, "recovery does not end");
        files.hand_over();
        io.wait(Some(until));
    };
    assert!(recovered.refused.is_empty(), "{:?}", recovered.refused);
    let mut config = EngineConfig::new(volume, CoreId(0), recovered.run, [1; 16], 7 * recovered.run.0);
    (config.slot_bytes, config.space_low_bytes, config.space_high_bytes) = (1 << 20, 1, 2);
    let mut engine = Engine::new(config, files.pool().clone(), io.now()).expect("a sound configuration");
    for state in recovered.logs {
        engine.adopt(Log::from_state(state, log_config())).expect("room");
    }
    let mut core = Core { io, files, driver, engine };
    for log in logs {
        let id = match core.engine.find(log.key) {
            Some(id) => id,
            None => {
                let id = core.engine.create(log.key, log_config()).expect("a new key");
                core.until(|event| matches!(event, Event::Created { log } if *log == id)).await;
                id
            }
        };
        for (number, (count, bytes)) in log.batches.iter().enumerate() {
            core.publish(id, number, *count, *bytes).await;
        }
    }
    core.engine.close();
    core.until(|event| matches!(event, Event::Closed)).await;
    core.files.close();
}

struct Core {
    io: CoreIo,
    files: Files,
    driver: Driver,
    engine: Engine,
}

impl Core {
    async fn until(&mut self, done: impl Fn(&Event) -> bool) {
        let until = self.io.now() + LONG;
        loop {
            self.driver.turn(&mut self.files, &mut self.engine, self.io.now());
            while let Some(event) = self.engine.poll_event() {
                assert!(
                    !matches!(event, Event::DiskTrouble { .. } | Event::CreateFailed { .. }),
                    "{event:?}"
                );
                if done(&event) {
                    return;
                }
            }
            assert!(self.io.now() < until, "it does not come");
            let timeout = self.engine.next_timeout().map_or(until, |timeout| timeout.min(until));
            self.files.hand_over();
            self.io.wait(Some(timeout));
        }
    }

    async fn publish(&mut self, log: LogId, number: usize, count: u32, bytes: usize) {
        let records: Vec<Vec<u8>> =
            (0..count).map(|record| vec![(number as u8) ^ (record as u8); bytes]).collect();
        let count = NonZeroU32::new(count).expect("records");
        loop {
            match self.engine.claim(log, BatchKind::Data, count, bytes * records.len()) {
                Ok(claim) => {
                    let end = claim.base().0 + u64::from(count.get());
                    let meta = AppendMeta { generation: Generation(1), timestamp_ms: 1, producer: None };
                    let records = records.iter().map(|record| (1, record.as_slice()));
                    self.engine.append(log, claim, meta, records).expect("there");
                    let settled = |event: &Event| matches!(event, Event::Settled { log: of, end: to } if *of == log && to.0 >= end);
                    return self.until(settled).await;
                }
                Err(ClaimError::NoRoom) => self.until(|event| matches!(event, Event::Room { .. })).await,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn log_config() -> LogConfig {
    LogConfig { segment_bytes_max: 256 << 10, ..LogConfig::default() }
}
