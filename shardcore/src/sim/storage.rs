//! The durable side of one simulated broker: its disks, the recovery at each start, the book of its logs, and how far the
//! process is from serving them. Scope: one per durable simulation; it outlives the broker's processes.
//! Owns: the disks, the machine's boot id. Invariants: recovery, engines and the book are those of the broker; only the
//! carrying of operations and orders is done here.
//! Not here: the cores (`broker`), when a process ends (`world`).

use std::path::PathBuf;
use std::time::Duration;

use felix_logstore::driver::Driver;
use felix_logstore::recovery::{Recovery, Refusal, Refused};
use felix_runtime::clock::Tick;
use felix_runtime::file::{BufPool, VolumeId};
use felix_runtime::sim::{DiskFaults, SimDisk, SimRng};
use felix_wire::id::CoreId;

use super::disks::Disks;
use super::storage_plan::{End, ReadFaults, StoragePlan};
use crate::node::storage::{CarriesOrders, LogBook};
use crate::snapshot::{LogOrder, RecoveredVolume};
use crate::store::{StoreSettings, VolumeStart};
use crate::turn::disks::recovery_of;

const MIB: u64 = 1 << 20;
/// Buffers of one core for its disks, in bytes.
const POOL_BYTES: usize = 96 << 20;
/// Bytes on their way to the disk, per core and volume: the least that an engine takes.
const MEMORY_BYTES: usize = 32 << 20;

/// How far the process is.
pub enum Phase {
    /// There is none; one starts then.
    Down {
        until: Tick,
    },
    /// The first core looks at the volumes, and nobody is served by it.
    Recovering(Box<Recovering>),
    Up,
    /// Its cores close their logs. The next process starts that long after.
    Stopping {
        down: Duration,
    },
}

/// A recovery under way.
pub struct Recovering {
    recovery: Recovery,
    driver: Driver,
    found: Vec<RecoveredVolume>,
}

/// Orders about logs, with the cores they are for.
#[derive(Default)]
pub struct Orders(pub Vec<(CoreId, LogOrder)>);

impl CarriesOrders for Orders {
    fn order(&mut self, core: CoreId, order: LogOrder) {
        self.0.push((core, order));
    }
}

/// See the module.
pub struct Storage {
    pub plan: StoragePlan,
    pub disks: Disks,
    pub book: LogBook,
    pub orders: Orders,
    phase: Phase,
    rng: SimRng,
    /// Starts of the machine, which are its boot ids.
    boots: u8,
    cores: u16,
    entropy: u64,
    pool: BufPool,
    /// What goes wrong now.
    faults: DiskFaults,
    reads: ReadFaults,
    /// Operations fail by chance now, or for want of space.
    errors: bool,
    small: bool,
    /// They may have failed since the process started.
    fails: bool,
}

impl Storage {
    /// Empty volumes and a process that starts at once.
    pub fn new(plan: &StoragePlan, cores: u16) -> Storage {
        let sizes = vec![plan.volume_bytes; usize::from(plan.volumes)];
        let mut rng = SimRng::new(plan.seed);
        let disk = SimDisk::new(rng.next_u64(), &sizes, plan.sound);
        Storage {
            plan: plan.clone(),
            disks: Disks::new(disk, usize::from(cores)),
            book: LogBook::new(Vec::new(), [0; 16]),
            orders: Orders::default(),
            phase: Phase::Down { until: Tick::ZERO },
            rng,
            boots: 1,
            cores,
            entropy: 0,
            pool: BufPool::new(POOL_BYTES),
            faults: plan.sound,
            reads: ReadFaults::default(),
            errors: false,
            small: false,
            fails: false,
        }
    }

    /// How far the process is.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// When it has something to do by itself.
    pub fn next(&self) -> Option<Tick> {
        let starts = if let Phase::Down { until } = &self.phase { Some(*until) } else { None };
        starts.into_iter().chain(self.disks.next_due()).min()
    }

    /// Whether logs can be opened.
    pub fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up)
    }

    /// What logs are to be like.
    pub fn settings(&self) -> StoreSettings {
        StoreSettings {
            policy: self.plan.policy,
            flush_every: self.plan.flush_every,
            segment_bytes_first: self.plan.segment_bytes_first,
            segment_bytes_max: self.plan.segment_bytes_max,
            slot_bytes: MIB,
            memory_bytes_max: MEMORY_BYTES,
            space_low_bytes: 2 * MIB,
            space_high_bytes: 4 * MIB,
            retention: self.plan.retention,
            retain_every: self.plan.retain_every,
            compact_bytes_per_sec: 64 << 20,
        }
    }

    /// Memory of a core for its disks.
    pub fn pool() -> BufPool {
        BufPool::new(POOL_BYTES)
    }

    /// A process begins to look at the volumes.
    pub fn start(&mut self) {
        let roots = (0..self.plan.volumes).map(|volume| PathBuf::from(format!("/volume-{volume}")));
        self.book = LogBook::new(roots.collect(), [self.boots; 16]);
        self.pool = Storage::pool();
        self.entropy = self.rng.next_u64();
        self.fails = self.errors || self.small;
        self.phase = Phase::Recovering(Box::new(self.recover(Vec::new())));
        self.apply_faults();
    }

    fn recover(&self, found: Vec<RecoveredVolume>) -> Recovering {
        let volume = found.len() as u16;
        let recovery = recovery_of(volume, ([self.boots; 16], self.entropy), &self.pool);
        Recovering { recovery, driver: Driver::default(), found }
    }

    /// Lets the recovery do what it can. Gives what every core is to open its engines with once it has ended.
    ///
    /// # Errors
    /// A volume that cannot be used.
    pub fn poll_recovered(&mut self) -> Result<Option<Vec<Vec<VolumeStart>>>, String> {
        loop {
            let Phase::Recovering(at) = &mut self.phase else { return Ok(None) };
            let Some(result) = at.driver.recover(&mut self.disks.seat(0), &mut at.recovery) else {
                return Ok(None);
            };
            let found = result.map_err(|error| error.to_string())?;
            let excused = |refused: &Refused| self.fails && matches!(refused.why, Refusal::Disk(_));
            if let Some(refused) = found.refused.iter().find(|refused| !excused(refused)) {
                return Err(format!("recovery refused {refused}"));
            }
            at.found.push(RecoveredVolume::from(found));
            let found = std::mem::take(&mut at.found);
            if found.len() < usize::from(self.plan.volumes) {
                self.phase = Phase::Recovering(Box::new(self.recover(found)));
                continue;
            }
            let rng = &mut self.rng;
            let starts = self.book.recovered(found, self.cores, || rng.next_u64());
            self.phase = Phase::Up;
            self.apply_faults();
            return Ok(Some(starts));
        }
    }

    /// The cores were told to close their logs.
    pub fn stopping(&mut self, down: Duration) {
        self.phase = Phase::Stopping { down };
    }

    /// The process is gone, in one way or another.
    pub fn ended(&mut self, how: End, until: Tick) {
        match how {
            // Nothing is in flight, and what is open is closed with the process.
            End::Stop | End::Kill => self.disks.kill(),
            End::Power => {
                self.disks.lose_power(&mut self.rng);
                self.boots += 1;
            }
        }
        self.orders.0.clear();
        self.phase = Phase::Down { until };
    }

    /// Nothing goes wrong any more.
    pub fn heal(&mut self) {
        self.set_faults(self.plan.sound);
        self.set_reads(ReadFaults::default());
        self.resize(self.plan.volume_bytes);
    }

    /// What goes wrong from now on, but for reads.
    pub fn set_faults(&mut self, faults: DiskFaults) {
        self.faults = faults;
        self.apply_faults();
    }

    /// What goes wrong with reads from now on.
    pub fn set_reads(&mut self, reads: ReadFaults) {
        self.reads = reads;
        self.apply_faults();
    }

    fn apply_faults(&mut self) {
        let recovering = matches!(self.phase, Phase::Recovering(_));
        let faults = self.reads.over(self.faults, recovering);
        let errors = faults.write_error_ppm + faults.sync_error_ppm + faults.other_error_ppm;
        self.errors = errors + faults.read_error_ppm > 0;
        self.fails |= self.errors;
        self.disks.machine().set_faults(faults);
    }

    /// Every volume has this size from now on.
    pub fn resize(&mut self, bytes: u64) {
        self.small = bytes < self.plan.volume_bytes;
        self.fails |= self.small;
        for volume in 0..self.plan.volumes {
            self.disks.machine().set_volume_bytes(VolumeId(volume), bytes);
        }
    }

    /// Whether operations have failed since the process started: then it may not be able to start.
    pub fn fails(&self) -> bool {
        self.fails
    }
}
