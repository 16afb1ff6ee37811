//! What one seed does to the disks of a broker: how its logs are written, what goes wrong and when the process ends.
//! Scope: one per durable simulation. Invariants: everything is drawn from the seed by a generator of its own, so that the
//! plan beside it is the one of the seed in memory; each seed leaves out about half of what can go wrong; after `heal_at`
//! nothing is made worse any more.

use std::time::Duration;

use felix_logstore::id::Fsync;
use felix_logstore::retention::Retention;
use felix_runtime::clock::Tick;
use felix_runtime::sim::{DiskFaults, SimRng};

use super::plan::{Happening, Plan};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const MS: Duration = Duration::from_millis(1);
/// Room for all logs of a plan, many times.
const VOLUME_BYTES: u64 = 512 * MIB;

/// How the broker's process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is told to, and closes its logs.
    Stop,
    /// From one moment to the next; what the kernel has stays.
    Kill,
    /// The machine loses power; what was not synced may be gone.
    Power,
}

/// Something that happens at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageHappening {
    /// The process ends, and another one starts that much later.
    Restart {
        how: End,
        down: Duration,
    },
    Delete {
        stream: usize,
    },
    /// The stream comes back under its name, as another life.
    Create {
        stream: usize,
    },
    /// Every volume has this size from now on.
    Size {
        bytes: u64,
    },
    /// What goes wrong with operations from now on.
    Faults(DiskFaults),
    /// What goes wrong with reads from now on, whatever else does.
    Reads(ReadFaults),
}

/// What goes wrong with reads, in parts per million of them. The bytes on the disk stay right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadFaults {
    /// They fail.
    pub error_ppm: u32,
    /// They bring less than they could.
    pub short_ppm: u32,
    /// They bring one wrong bit. Not often while a recovery reads, which looks twice: of what both times brings one in what was
    /// written last it takes for the torn end of a log.
    pub flip_ppm: u32,
}

/// Then about one recovery in a million meets two in a row where it matters.
const RECOVERY_FLIP_PPM_MAX: u32 = 1_000;

impl ReadFaults {
    /// `faults` with these reads.
    pub fn over(self, faults: DiskFaults, recovering: bool) -> DiskFaults {
        DiskFaults {
            read_error_ppm: self.error_ppm,
            short_read_ppm: self.short_ppm.max(faults.short_read_ppm),
            flip_ppm: if recovering { self.flip_ppm.min(RECOVERY_FLIP_PPM_MAX) } else { self.flip_ppm },
            ..faults
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct StoragePlan {
    pub policy: Fsync,
    pub flush_every: Duration,
    pub segment_bytes_first: u64,
    pub segment_bytes_max: u64,
    pub volumes: u16,
    pub volume_bytes: u64,
    /// Of every stream.
    pub retention: Retention,
    pub retain_every: Duration,
    /// A disk on which nothing goes wrong but time.
    pub sound: DiskFaults,
    /// By client and publisher, as the plan beside it has them: whether it numbers its batches.
    pub numbered: Vec<Vec<bool>>,
    pub happenings: Vec<(Tick, StorageHappening)>,
    /// A restart when everything has healed, before the logs are looked at.
    pub last: Option<End>,
    /// Of the disks' own chance.
    pub seed: u64,
}

impl StoragePlan {
    /// What the seed of `plan` does beside it.
    pub fn draw(plan: &Plan) -> StoragePlan {
        let mut rng = SimRng::new(plan.seed ^ 0xd15c_fe11);
        let rng = &mut rng;
        let policies = [Fsync::OnCommit, Fsync::OnCommit, Fsync::OnCommit, Fsync::Periodic, Fsync::None];
        let latency = Duration::from_micros(20 + rng.below(400));
        let sound = if on(rng) { DiskFaults::slow(latency) } else { DiskFaults::none(latency) };
        let of_client = |client: &super::plan::ClientPlan, rng: &mut SimRng| {
            client.publishers.iter().map(|_| on(rng)).collect()
        };
        let mut storage = StoragePlan {
            policy: policies[rng.below(5) as usize],
            flush_every: MS * (20 + rng.below(400) as u32),
            segment_bytes_first: 64 * KIB,
            segment_bytes_max: (64 * KIB) << rng.below(5),
            volumes: 1 + rng.below(2) as u16,
            volume_bytes: VOLUME_BYTES,
            retention: retention(rng),
            retain_every: MS * (100 + rng.below(900) as u32),
            sound,
            numbered: plan.clients.iter().map(|client| of_client(client, rng)).collect(),
            happenings: Vec::new(),
            last: [None, Some(End::Stop), Some(End::Kill), Some(End::Power)][rng.below(4) as usize],
            seed: rng.next_u64(),
        };
        storage.happenings = happenings(rng, plan, sound);
        storage.happenings.extend(wrong_reads(plan));
        storage.happenings.sort_by_key(|(at, _)| *at);
        storage
    }

    /// The same without reads that go wrong: what the seed was before they were drawn.
    pub fn drop_read_faults(&mut self) {
        self.happenings.retain(|(_, what)| !matches!(what, StorageHappening::Reads(_)));
    }

    /// Whether something of that kind is planned.
    pub fn has(&self, pick: impl Fn(&StorageHappening) -> bool) -> bool {
        self.happenings.iter().any(|(_, what)| pick(what))
    }
}

fn on(rng: &mut SimRng) -> bool {
    rng.chance(500_000)
}

fn chance(rng: &mut SimRng, percent: u32) -> bool {
    rng.chance(percent * 10_000)
}

fn before(rng: &mut SimRng, at: Tick) -> Tick {
    Tick(rng.below(at.as_nanos()))
}

fn retention(rng: &mut SimRng) -> Retention {
    if chance(rng, 70) {
        return Retention::default();
    }
    let bytes = on(rng).then(|| (64 * KIB) << rng.below(4));
    let age_ms = on(rng).then(|| 1_000 + rng.below(3_000));
    Retention { bytes, age_ms }
}

fn happenings(rng: &mut SimRng, plan: &Plan, sound: DiskFaults) -> Vec<(Tick, StorageHappening)> {
    let heal_at = plan.heal_at;
    let mut all = Vec::new();
    if chance(rng, 70) {
        let ends = [End::Stop, End::Kill, End::Kill, End::Power, End::Power];
        for _ in 0..1 + rng.below(4) {
            let how = ends[rng.below(5) as usize];
            let down = if on(rng) { MS } else { MS * rng.below(500) as u32 };
            all.push((before(rng, heal_at), StorageHappening::Restart { how, down }));
        }
    }
    let deleted = plan.happenings.iter().filter_map(|(at, what)| match what {
        Happening::Delete { stream } => Some((*at, *stream)),
        _ => None,
    });
    let mut deleted: Vec<(Tick, usize)> = deleted.collect();
    if chance(rng, 30) {
        for _ in 0..1 + rng.below(3) {
            let (at, stream) = (before(rng, heal_at), rng.below(plan.shards.len() as u64) as usize);
            all.push((at, StorageHappening::Delete { stream }));
            deleted.push((at, stream));
        }
    }
    for (at, stream) in deleted {
        if chance(rng, 80) {
            let later = if on(rng) { rng.duration(MS * 20) } else { rng.duration(MS * 1_000) };
            all.push(((at + later).min(heal_at), StorageHappening::Create { stream }));
        }
    }
    if chance(rng, 25) {
        all.push((before(rng, heal_at), StorageHappening::Size { bytes: MIB << (2 + rng.below(6)) }));
    }
    if chance(rng, 25) {
        all.push((before(rng, heal_at), StorageHappening::Faults(wrong(rng, sound))));
        if on(rng) {
            all.push((before(rng, heal_at), StorageHappening::Faults(sound)));
        }
    }
    if chance(rng, 25) {
        let stalls = DiskFaults { stall_ppm: 50_000, stall: MS * (10 << rng.below(9)), ..sound };
        all.push((before(rng, heal_at), StorageHappening::Faults(stalls)));
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

/// Writes and syncs that fail now and then.
fn wrong(rng: &mut SimRng, sound: DiskFaults) -> DiskFaults {
    let mut ppm = || if rng.chance(500_000) { 0 } else { 200 << rng.below(8) };
    DiskFaults { write_error_ppm: ppm(), sync_error_ppm: ppm(), other_error_ppm: ppm() / 4, ..sound }
}

/// Reads that fail or bring wrong bytes, for some time. They are drawn by a generator of their own, so that the rest of a seed
/// is what it was without them.
fn wrong_reads(plan: &Plan) -> Vec<(Tick, StorageHappening)> {
    let mut rng = SimRng::new(plan.seed ^ 0x4ead_fa11);
    let rng = &mut rng;
    let mut all = Vec::new();
    if !chance(rng, 35) {
        return all;
    }
    let mut ppm = || if rng.chance(400_000) { 0 } else { 1_000 << rng.below(8) };
    let faults = ReadFaults { error_ppm: ppm(), short_ppm: ppm(), flip_ppm: ppm() };
    let from = before(rng, plan.heal_at);
    all.push((from, StorageHappening::Reads(faults)));
    if on(rng) {
        let until = from + rng.duration(plan.heal_at.saturating_since(from));
        all.push((until, StorageHappening::Reads(ReadFaults::default())));
    }
    all
}
