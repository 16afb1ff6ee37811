//! The disks of a core: its volumes, the recovery of them all by the first core, and the way of each operation of its log
//! engines to a file and back. Scope: one per core thread that has volumes.
//! Owns: the open files; on the first core also the locks of the volumes, until everything of it is closed.
//! Invariants: nothing is written before recovery has ended; an operation the disks had no room for goes first next time.
//! Not here: what is asked (`felix_logstore`), when (`run`).

use std::path::PathBuf;
use std::time::Duration;

use felix_logstore::driver::Driver;
use felix_logstore::recovery::{LOCK_WAIT, Recovery, RecoveryConfig};
use felix_runtime::clock::Tick;
use felix_runtime::executor::CoreIo;
use felix_runtime::failpoint::{self, Phase};
use felix_runtime::file::{BufPool, Disk, Files, FilesSettings, Full, Op, Token, VolumeId};
use felix_wire::id::CoreId;

use super::core::Core;
use crate::snapshot::RecoveredVolume;
use crate::store::{StoreSettings, VolumeStart};

/// Recovery looks again at least this often; its operations wake it earlier.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Received and dropped at once while nobody is served.
const DROP_BYTES: usize = 1 << 20;

/// Where a core's logs are.
#[derive(Clone, Debug)]
pub struct CoreStorage {
    pub settings: StoreSettings,
    pub files: FilesSettings,
    /// The volumes, in the same order on every core.
    pub roots: Vec<PathBuf>,
    /// The kernel's boot id.
    pub boot: [u8; 16],
    /// Random; another one for every core and start.
    pub entropy: u64,
}

/// What the first core found, or why the volumes cannot be used.
pub type RecoveryOutcome = Result<Vec<RecoveredVolume>, String>;

/// See the module.
pub struct Disks {
    pub core: CoreId,
    files: Files,
    settings: StoreSettings,
    held: Option<(Token, Op)>,
}

impl Disks {
    /// Opens the volumes. The first core recovers them too.
    ///
    /// # Errors
    /// The volume that cannot be used for direct I/O, or that there is no ring.
    pub fn open(
        storage: CoreStorage,
        core: CoreId,
        io: &mut CoreIo,
    ) -> Result<(Disks, Option<RecoveryOutcome>), String> {
        let files = Files::new(io, storage.files);
        let mut files = files.map_err(|error| format!("no ring for the disks: {error}"))?;
        for root in &storage.roots {
            let opened = files.open_volume(root);
            opened.map_err(|error| format!("{}: {error}", root.display()))?;
        }
        let recovered = match core {
            CoreId(0) => Some(recover_all(&storage, &mut files, io)),
            _ => None,
        };
        Ok((Disks { core, files, settings: storage.settings, held: None }, recovered))
    }

    /// Opens the core's engines over recovered volumes.
    ///
    /// # Errors
    /// As `Core::open_store`.
    pub fn open_store(
        &self,
        core: &mut Core,
        volumes: &[VolumeStart],
        now: Tick,
    ) -> Result<(), &'static str> {
        core.open_store(self.settings.clone(), volumes, self.files.pool(), now)
    }

    /// Hands the core what has been answered. True when there was something.
    pub fn answers(&mut self, core: &mut Core, now: Tick) -> bool {
        let mut any = false;
        while let Some(done) = self.files.poll_done() {
            core.complete_disk(now, done);
            any = true;
        }
        any
    }

    /// Starts what the core asks for, as far as there is room. True when it asked.
    pub fn ask(&mut self, core: &mut Core) -> bool {
        let mut any = false;
        while let Some((token, op)) = self.held.take().or_else(|| core.poll_disk()) {
            any = true;
            if let Err(Full { token, op }) = self.files.submit(token, op) {
                self.held = Some((token, op));
                break;
            }
        }
        self.files.hand_over();
        any
    }

    /// Waits for what is in flight and closes every file.
    pub fn close(self) {
        self.files.close();
    }
}

/// Waits while nobody is served. Datagrams are dropped: one that is left in the socket would end every wait at once, and
/// the core would do nothing else.
pub(super) fn wait_unserved(io: &mut CoreIo, until: Tick) {
    // An error of the socket is found by the core's own loop.
    let _ = io.udp.recv(DROP_BYTES, |_| {});
    io.wait(Some(until));
}

fn recover_all(storage: &CoreStorage, files: &mut Files, io: &mut CoreIo) -> RecoveryOutcome {
    failpoint::enter(Phase::Recovery);
    let mut volumes = Vec::with_capacity(storage.roots.len());
    for (index, root) in (0..).zip(&storage.roots) {
        let began = io.now();
        let mut recovery = recovery_of(index, (storage.boot, storage.entropy), files.pool());
        let mut driver = Driver::default();
        let found = loop {
            if let Some(result) = driver.recover(files, &mut recovery) {
                break result.map_err(|error| format!("{}: {error}", root.display()))?;
            }
            files.hand_over();
            wait_unserved(io, io.now() + LOOK_AGAIN);
        };
        let took = io.now().saturating_since(began);
        tracing::info!(
            volume = %root.display(),
            logs = found.logs.len(),
            refused = found.refused.len(),
            torn = found.torn.len(),
            took_ms = took.as_millis(),
            "recovered"
        );
        // `found.lock` stays open with the files of this core.
        volumes.push(RecoveredVolume::from(found));
    }
    failpoint::enter(Phase::Run);
    Ok(volumes)
}

/// The recovery of a volume. `start`: the kernel's boot id and a random number of this start.
pub fn recovery_of(volume: u16, start: ([u8; 16], u64), pool: &BufPool) -> Recovery {
    let config = RecoveryConfig {
        volume: VolumeId(volume),
        boot: start.0,
        entropy: start.1.wrapping_add(u64::from(volume)),
        first_token: 0,
        lock_wait: LOCK_WAIT,
    };
    Recovery::new(config, pool.clone())
}
