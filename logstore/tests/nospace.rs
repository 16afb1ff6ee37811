//! A volume that really becomes full: a tmpfs of 64 MiB in a mount namespace of its own where the machine allows that,
//! otherwise the real disk behind a quota of as many bytes. The test says which of the two it ran.

mod machine;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::Sender;
use std::time::Duration;

use felix_logstore::engine::{Engine, EngineConfig, Event, LogId};
use felix_logstore::id::ShardKey;
use felix_logstore::log::{AppendMeta, ClaimError, LogConfig};
use felix_logstore::record::BatchKind;
use felix_logstore::retention::Retention;
use felix_wire::id::{Generation, Incarnation, Offset};
use machine::*;

const VOLUME_BYTES: u64 = 64 << 20;
const LOW_BYTES: u64 = 6 << 20;
const HIGH_BYTES: u64 = 16 << 20;
const RECORD_BYTES: usize = 24_000;
/// Names the directory with the tmpfs to the copy of this test that runs in the namespace.
const ON_TMPFS: &str = "FELIX_TEST_TMPFS";
const NAME: &str = "a_volume_that_becomes_full_refuses_writes_first_and_loses_nothing";

fn key(name: u128) -> ShardKey {
    ShardKey { name, incarnation: Incarnation(1) }
}

fn logs_config() -> LogConfig {
    LogConfig {
        segment_bytes_first: 1 << 20,
        segment_bytes_max: 1 << 20,
        retention: Retention { bytes: Some(4 << 20), age_ms: None },
        ..LogConfig::default()
    }
}

fn record(name: u128, offset: u64) -> Vec<u8> {
    let mut bytes = vec![(offset * 7) as u8; RECORD_BYTES];
    bytes[..8].copy_from_slice(&offset.to_le_bytes());
    bytes[8] = name as u8;
    bytes
}

/// Publishes to `logs` in turn until a claim is refused for want of space.
async fn fill(core: &mut Core, engine: &mut Engine, logs: &[(u128, LogId)]) {
    for turn in 0.. {
        assert!(turn < 20_000, "the volume is never full");
        let (name, log) = logs[turn % logs.len()];
        match engine.claim(log, BatchKind::Data, NonZeroU32::MIN, RECORD_BYTES) {
            Ok(claim) => {
                let bytes = record(name, claim.base().0);
                let meta = AppendMeta { generation: Generation(1), timestamp_ms: 1, producer: None };
                engine.append(log, claim, meta, std::iter::once((1, bytes.as_slice()))).expect("there");
                core.turn(engine);
            }
            Err(ClaimError::NoRoom) => {
                core.until(engine, |_, events| {
                    // It comes too when the answer will be another one now.
                    events.iter().any(|event| matches!(event, Event::Room { .. }))
                })
                .await;
            }
            Err(ClaimError::NoSpace) => return,
            Err(error) => panic!("{error}"),
        }
        core.events.retain(|event| matches!(event, Event::Space { .. }));
    }
}

async fn settled(core: &mut Core, engine: &mut Engine, logs: &[(u128, LogId)]) {
    core.until(engine, |engine, _| {
        logs.iter().all(|(_, log)| engine.log(*log).is_some_and(|log| log.is_settled()))
    })
    .await;
}

/// Everything from the start on is there, byte by byte.
async fn check(core: &mut Core, engine: &mut Engine, logs: &[(u128, LogId)]) {
    for (name, log) in logs {
        let start = engine.log(*log).expect("there").start().0;
        let records = core.read_all(engine, *log).await;
        assert!(!records.is_empty());
        for (at, found) in records.iter().enumerate() {
            assert!(*found == record(*name, start + at as u64), "log {name} at {}", start + at as u64);
        }
    }
}

async fn free_bytes(core: &mut Core, engine: &mut Engine) -> u64 {
    let before = engine.counts().space_asked;
    core.until(engine, |engine, _| engine.counts().space_asked > before + 1).await;
    engine.counts().free_bytes
}

/// Waits until claims go on, which nobody asked for.
async fn resumed(core: &mut Core, engine: &mut Engine) {
    core.until(engine, |_, events| events.iter().any(|event| matches!(event, Event::Space { writes: true })))
        .await;
    core.events.clear();
}

fn small(config: &mut EngineConfig) {
    config.slot_bytes = 1 << 20;
    config.space_low_bytes = LOW_BYTES;
    config.space_high_bytes = HIGH_BYTES;
    config.space_every = Duration::from_millis(20);
}

async fn become_full(mut core: Core, tell: Sender<Vec<(Offset, Offset)>>) -> Core {
    let (mut engine, _) = core.engine_with(small, &logs_config()).await;
    let mut logs = Vec::new();
    for name in 1..=3 {
        logs.push((name, core.create_as(&mut engine, key(name), logs_config()).await));
    }
    // `Core::turn` fails on the first operation the disk refuses: claims are refused before that.
    fill(&mut core, &mut engine, &logs).await;
    settled(&mut core, &mut engine, &logs).await;
    let free = free_bytes(&mut core, &mut engine).await;
    assert!(free > LOW_BYTES / 2 && free < HIGH_BYTES, "{free} bytes are left");
    check(&mut core, &mut engine, &logs).await;

    // Retention goes on, and writes after it.
    core.events.clear();
    assert!(engine.retain(logs[0].1, 0, Offset(u64::MAX)));
    assert!(engine.retain(logs[1].1, 0, Offset(u64::MAX)));
    resumed(&mut core, &mut engine).await;
    fill(&mut core, &mut engine, &logs).await;
    settled(&mut core, &mut engine, &logs).await;
    check(&mut core, &mut engine, &logs).await;

    // Deletion does.
    core.events.clear();
    let (_, gone) = logs.remove(2);
    engine.delete(gone);
    resumed(&mut core, &mut engine).await;
    fill(&mut core, &mut engine, &logs).await;
    settled(&mut core, &mut engine, &logs).await;
    let bounds = logs.iter().map(|(_, log)| {
        let machine = engine.log(*log).expect("there");
        (machine.start(), machine.settled_end())
    });
    tell.send(bounds.collect()).expect("somebody waits");
    core
}

/// The next process finds everything, on the full disk that one left that did not stop in order.
async fn find_again(mut core: Core, bounds: Vec<(Offset, Offset)>) -> Core {
    let (mut engine, recovered) = core.engine_with(small, &logs_config()).await;
    assert!(recovered.refused.is_empty(), "{:?}", recovered.refused);
    assert!(engine.find(key(3)).is_none());
    let mut logs = Vec::new();
    for (name, bounds) in (1..).zip(bounds) {
        let log = engine.find(key(name)).expect("there");
        let machine = engine.log(log).expect("there");
        assert_eq!((machine.start(), machine.settled_end()), bounds, "log {name}");
        logs.push((name, log));
    }
    check(&mut core, &mut engine, &logs).await;
    core
}

fn whole_story(root: &Path, quota_bytes: Option<u64>) {
    let (tell, told) = std::sync::mpsc::channel();
    on_volume(root, quota_bytes, move |core| become_full(core, tell));
    let bounds = told.recv().expect("it came to its end");
    on_volume(root, None, move |core| find_again(core, bounds));
}

/// Runs this test again in a mount namespace with a tmpfs. None when the machine has no such thing for us.
fn on_tmpfs(dir: &Path) -> Option<std::process::Output> {
    let program = std::env::current_exe().expect("a name");
    let script = r#"mount -t tmpfs -o size=64m felix-test "$1" || exit 99; shift; exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(dir).arg(program);
    command.args(["--exact", NAME, "--nocapture"]).env(ON_TMPFS, dir);
    let output = command.output().ok()?;
    (output.status.code() != Some(99) && output.status.code() != Some(1)).then_some(output)
}

#[test]
fn a_volume_that_becomes_full_refuses_writes_first_and_loses_nothing() {
    if let Some(dir) = std::env::var_os(ON_TMPFS) {
        whole_story(&PathBuf::from(dir), None);
        println!("no space: ran on a tmpfs of 64 MiB");
        return;
    }
    let dir = Dir::new("nospace");
    match on_tmpfs(&dir.0) {
        Some(output) => {
            let told = String::from_utf8_lossy(&output.stdout);
            print!("{told}{}", String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success() && told.contains("ran on a tmpfs"), "{}", output.status);
        }
        None => {
            println!("no space: no tmpfs can be mounted here, running behind a quota of 64 MiB");
            whole_story(&dir.0, Some(VOLUME_BYTES));
            println!("no space: ran behind a quota");
        }
    }
}

/// The same behind a quota, wherever the other one ran.
#[test]
fn a_quota_that_is_used_up_refuses_writes_first_and_loses_nothing() {
    let dir = Dir::new("quota");
    whole_story(&dir.0, Some(VOLUME_BYTES));
}
