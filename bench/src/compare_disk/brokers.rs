//! Brokers of a comparison and load runs against them. Scope: functions; each broker has one owner.
//! Invariants: a broker settles on commit, does not spin, and serves on the server's CPU; its load runs on the client's.
//! Not here: what is done with the results (`write`, `shards`, `history`).

use std::fs;
use std::time::{Duration, Instant};

use super::{DiskCompareError, Place};
use crate::cluster::DevBroker;
use crate::load::{self, LoadError, LoadPlan};
use crate::machine::pin_thread;
use crate::measure::LoadReport;
use crate::shape::Shape;
use crate::target::Target;

/// For publishing what has to be there before a case can be measured.
const PRELOAD_DEADLINE: Duration = Duration::from_secs(600);
/// A stream that was just made may take this long until it is served, on a busy machine.
const SERVED_DEADLINE: Duration = Duration::from_secs(60);
/// Segments of the write cases: the broker's default, or less, so that a log has two within what it keeps.
const SEGMENT_BYTES_MAX: u64 = 256 << 20;

/// `key=value` of every setting that is not the broker's default. With `kept_bytes`, a shard keeps no more than that, so
/// that its log uses blocks again.
pub fn settings(mtu: u16, kept_bytes: Option<u64>) -> Vec<String> {
    let mut settings =
        vec!["fsync=on_commit".to_owned(), "spin_us=0".to_owned(), format!("mtu_upper_bound={mtu}")];
    if let Some(bytes) = kept_bytes {
        settings.push(format!("segment_bytes={}", (bytes / 2).clamp(16 << 20, SEGMENT_BYTES_MAX)));
        settings.push(format!("retention_bytes={bytes}"));
        settings.push("retention_check_ms=100".to_owned());
    }
    settings
}

/// A broker in a folder of its own.
pub fn start(place: &Place<'_>, name: &str, kept_bytes: Option<u64>) -> Result<DevBroker, DiskCompareError> {
    let dir = place.folder.join(name);
    fs::create_dir(&dir).map_err(|error| DiskCompareError::Folder { dir: dir.clone(), error })?;
    let settings = settings(place.comparison.mtu, kept_bytes);
    let args: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    Ok(DevBroker::start(&dir, &place.comparison.server_cpu.to_string(), &args)?)
}

/// Where a load of `stream` goes. The token is read now.
pub fn target(broker: &DevBroker, stream: &str) -> Result<Target, DiskCompareError> {
    Ok(Target::from_ready(broker.ready(), stream)?)
}

/// One load run on CPU `client_cpu`.
pub fn load(
    client_cpu: usize,
    broker: &DevBroker,
    stream: &'static str,
    shape: &Shape,
) -> Result<LoadReport, DiskCompareError> {
    let target = target(broker, stream)?;
    let plan = LoadPlan { name: "broker".to_owned(), target, shape: shape.clone() };
    on_cpu(client_cpu, stream, move || load::run(&plan))
}

/// Runs `work` on a thread that stays on `cpu`.
pub fn on_cpu<T: Send + 'static>(
    cpu: usize,
    what: &'static str,
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, DiskCompareError> {
    let thread = std::thread::spawn(move || {
        pin_thread(cpu);
        work()
    });
    let outcome = thread.join().map_err(|_| DiskCompareError::Thread("the load"))?;
    outcome.map_err(|error| DiskCompareError::Load { what, error })
}

/// Publishes batches of `shape` until `bytes` of payload are in the stream, which may have just been made.
pub fn preload(
    client_cpu: usize,
    broker: &DevBroker,
    stream: &'static str,
    shape: &Shape,
    bytes: u64,
) -> Result<(), DiskCompareError> {
    let shape = Shape { warmup_s: 0.0, duration_s: 0.5, ..shape.clone() };
    let begun = Instant::now();
    let mut published = 0;
    while published < bytes {
        if begun.elapsed() > PRELOAD_DEADLINE {
            let waited_s = PRELOAD_DEADLINE.as_secs();
            return Err(DiskCompareError::Preload { wanted_bytes: bytes, waited_s });
        }
        match load(client_cpu, broker, stream, &shape) {
            Ok(report) => {
                let refused = report.refused_batches + report.unanswered_batches;
                published += (report.sent_batches - refused) * shape.batch_bytes();
            }
            Err(error) if published == 0 && is_not_served(&error) && begun.elapsed() < SERVED_DEADLINE => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_not_served(error: &DiskCompareError) -> bool {
    matches!(error, DiskCompareError::Load { error: LoadError::Refused { what: "the stream", .. }, .. })
}
