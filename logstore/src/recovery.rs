//! From what a volume holds to logs that can be written again. Scope: one per volume and start, before any engine.
//! Owns: the order (locks, slots, pieces, judgement, then writing), and every refusal.
//! Invariants: nothing is judged before every copy was looked at; what is known to have been durable and is not there is a
//! refusal that names the log, the file and the byte; what is above may be cut off; a crash at any moment inside leaves what
//! the next recovery needs; a second recovery finds the same; nothing is relied on that could only be read; one read that
//! fails or brings a wrong bit changes nothing.
//! Not here: writing to logs (`engine`). It never appends to a file of an earlier process and never uses one again.

mod doubt;
pub(crate) mod evidence;
mod finish;
mod look;
pub(crate) mod picture;
mod replay;
mod shard;
pub(crate) mod slots;

use std::time::Duration;

use felix_runtime::file::{BufPool, DiskError, DiskPath, Done, FileId, Op, Token, VolumeId};
use felix_wire::id::Offset;

use crate::engine::Reservations;
use crate::id::{Run, ShardKey};
use crate::log::LogState;
use crate::script::{Desk, Scripts};

/// How long recovery waits for the locks of a process that is gone.
pub const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Settings of one recovery.
#[derive(Debug, Clone, Copy)]
pub struct RecoveryConfig {
    pub volume: VolumeId,
    /// The kernel's boot id.
    pub boot: [u8; 16],
    /// Random; another one at every start.
    pub entropy: u64,
    /// Tokens from here on are the recovery's.
    pub first_token: u64,
    /// Usually [`LOCK_WAIT`].
    pub lock_wait: Duration,
}

/// A volume that is ready to be written.
#[derive(Debug)]
pub struct Recovered {
    /// The number of this process's use of the volume.
    pub run: Run,
    /// Locked for as long as it is open; to be closed when everything else is.
    pub lock: FileId,
    /// By key.
    pub logs: Vec<LogState>,
    /// Logs that cannot be served. Their files are left as they are.
    pub refused: Vec<Refused>,
    /// Logs whose last bytes were cut off because they had not been durable: where they end now.
    pub torn: Vec<(ShardKey, Offset)>,
}

/// A log that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("log {key}: {path} at byte {byte}: {why}")]
pub struct Refused {
    pub key: ShardKey,
    pub path: DiskPath,
    pub byte: u64,
    pub why: Refusal,
}

/// Why a log is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Offsets up to `durable` were acknowledged; what is readable ends at `found`.
    #[error("damaged: durable up to {durable}, readable up to {found}")]
    Damaged { found: Offset, durable: Offset },
    #[error("the segment is missing")]
    SegmentMissing,
    #[error("the head of the segment is damaged")]
    HeadDamaged,
    #[error("the directory of the log is missing")]
    DirectoryMissing,
    /// Written by a later version of this program.
    #[error("version {0} is not known")]
    Version(u32),
    #[error("{0}")]
    Disk(DiskError),
}

/// Why a volume cannot be used at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// Another process uses the volume, or one that is gone still has writes in flight.
    #[error("{path} is locked by another process")]
    Locked { path: DiskPath },
    #[error("{path}: slot version {version} is not known")]
    Version { path: DiskPath, version: u32 },
    #[error("{path}: {error}")]
    Disk { path: DiskPath, error: DiskError },
}

/// A recovery under way. See the module.
pub struct Recovery {
    desk: Desk,
    scripts: Scripts<Result<Recovered, RecoveryError>>,
}

impl Recovery {
    /// Begins. `pool` must hold 8 MiB.
    #[must_use]
    pub fn new(config: RecoveryConfig, pool: BufPool) -> Recovery {
        let desk = Desk::new(config.first_token, pool, Reservations::default());
        let mut scripts = Scripts::new(desk.clone());
        let own = desk.clone();
        scripts.start(async move { finish::recover(&own, config).await });
        Recovery { desk, scripts }
    }

    /// The next operation to carry out.
    pub fn poll_op(&mut self) -> Option<(Token, Op)> {
        self.scripts.retry_starved();
        self.desk.poll_op()
    }

    /// Takes an answer. False when the token is not of this recovery.
    pub fn complete(&mut self, done: Done) -> bool {
        self.scripts.answer(done)
    }

    /// What it came to, once.
    pub fn poll_result(&mut self) -> Option<Result<Recovered, RecoveryError>> {
        self.scripts.poll_ended()
    }
}
