//! Engines of several cores over one volume: together they keep to the space that is to stay free.

mod support;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use felix_logstore::engine::{Engine, Event, LogId, Reservations};
use felix_logstore::id::Fsync;
use felix_logstore::log::{AppendMeta, ClaimError, LogConfig};
use felix_logstore::record::BatchKind;
use felix_runtime::file::Disk;
use felix_runtime::sim::{DiskFaults, SimDisk, SimRng};
use felix_wire::id::{CoreId, Generation};
use support::*;

const MIB: u64 = 1 << 20;
const CORES: u16 = 3;
const BYTES: u64 = 96 * MIB;
const LOW: u64 = 8 * MIB;

/// The engines of a broker on one disk whose operations take any time.
struct Cores {
    disk: SimDisk,
    engines: Vec<Engine>,
    logs: Vec<(usize, LogId)>,
    told: Vec<VecDeque<Event>>,
}

impl Cores {
    fn start(seed: u64) -> Cores {
        let faults =
            DiskFaults { jitter: Duration::from_millis(3), ..DiskFaults::slow(Duration::from_micros(50)) };
        let mut disk = AnyDisk::Plain(SimDisk::new(seed, &[BYTES], faults));
        let recovered = recover(&mut disk, 1);
        let AnyDisk::Plain(disk) = disk else { unreachable!("it is plain") };
        let reservations = Reservations::default();
        let mut cores = Cores { disk, engines: Vec::new(), logs: Vec::new(), told: Vec::new() };
        for core in 0..CORES {
            let mut config = engine_config(&recovered, 1);
            config.core = CoreId(core);
            config.entropy ^= u64::from(core) << 32;
            config.first_token = u64::from(core) << 48;
            config.space_low_bytes = LOW;
            config.space_high_bytes = 2 * LOW;
            config.space_every = Duration::from_millis(5);
            config.pool_fill_bytes = MIB;
            config.reservations = reservations.clone();
            let now = cores.disk.now();
            cores.engines.push(Engine::new(config, pool(), now).expect("a sound configuration"));
            cores.told.push(VecDeque::new());
        }
        cores
    }

    fn turn(&mut self) {
        let now = self.disk.now();
        loop {
            while let Some(done) = self.disk.poll_done() {
                let core = (done.token.0 >> 48) as usize;
                assert!(self.engines[core].complete(now, done), "its own");
            }
            let mut any = false;
            for (core, engine) in self.engines.iter_mut().enumerate() {
                engine.poll(now);
                while let Some((token, op)) = engine.poll_op() {
                    self.disk.submit(token, op).expect("room for every operation");
                    any = true;
                }
                while let Some(event) = engine.poll_event() {
                    assert!(!matches!(event, Event::DiskTrouble { .. } | Event::Stopped { .. }), "{event:?}");
                    self.told[core].push_back(event);
                }
            }
            if !any {
                return;
            }
        }
    }

    fn step(&mut self) {
        self.turn();
        let timeouts = self.engines.iter().filter_map(Engine::next_timeout);
        let next = timeouts.chain(self.disk.next_due()).min().expect("something is due");
        let next = next.max(self.disk.now() + Duration::from_nanos(1));
        self.disk.advance_to(next);
        self.turn();
    }

    fn create(&mut self, core: usize, name: u128) {
        let config = LogConfig {
            policy: Fsync::OnCommit,
            segment_bytes_first: MIB,
            segment_bytes_max: 4 * MIB,
            ..LogConfig::default()
        };
        let log = self.engines[core].create(key(name, 1), config).expect("a new key");
        self.logs.push((core, log));
    }

    /// Publishes to all logs, in any order, until every core refuses for want of space.
    fn fill(&mut self, rng: &mut SimRng) {
        let payload = vec![7; 40_000];
        let mut refused = vec![false; self.engines.len()];
        for _ in 0..200_000 {
            let (core, log) = self.logs[rng.below(self.logs.len() as u64) as usize];
            match self.engines[core].claim(log, BatchKind::Data, NonZeroU32::MIN, payload.len()) {
                Ok(claim) => {
                    let meta = AppendMeta { generation: Generation(1), timestamp_ms: 1, producer: None };
                    let one = std::iter::once((1, payload.as_slice()));
                    self.engines[core].append(log, claim, meta, one).expect("there");
                }
                Err(ClaimError::NoRoom) => self.step(),
                Err(ClaimError::NoSpace) => {
                    refused[core] |= !self.engines[core].has_space();
                    self.step();
                }
                Err(error) => panic!("{error}"),
            }
            if refused.iter().all(|refused| *refused) {
                return;
            }
        }
        panic!("the volume is never full");
    }

    /// Bytes that no file has.
    fn free(&self) -> u64 {
        BYTES - self.disk.image().files().iter().map(|(_, len)| *len).sum::<u64>()
    }
}

#[test]
fn engines_of_one_volume_together_leave_what_is_to_stay_free() {
    for seed in 0..12 {
        let mut rng = SimRng::new(seed);
        let mut cores = Cores::start(seed);
        for name in 0..9 {
            cores.create(name as usize % usize::from(CORES), name);
        }
        for _ in 0..200 {
            cores.step();
        }
        // A core that refuses may find that others have given back what they kept for later; it goes on then.
        let mut fills = 0;
        while cores.engines.iter().any(Engine::has_space) {
            cores.fill(&mut rng);
            for _ in 0..2_000 {
                cores.step();
            }
            fills += 1;
            assert!(fills < 10, "seed {seed}: it never stays full");
        }
        let free = cores.free();
        assert!((LOW..2 * LOW).contains(&free), "seed {seed}: {free} bytes are free");
        // Space comes back: so do writes, by themselves.
        let (core, log) = cores.logs.remove(0);
        cores.engines[core].delete(log);
        let (core, log) = cores.logs.remove(3);
        cores.engines[core].delete(log);
        let mut steps = 0;
        while !cores.engines.iter().all(Engine::has_space) {
            cores.step();
            steps += 1;
            assert!(steps < 100_000, "seed {seed}: writes never go on");
        }
    }
}
