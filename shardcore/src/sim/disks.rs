//! The simulated volumes of one broker, shared by its cores. Scope: one per simulation; they outlive the broker's process.
//! Owns: the machine's disks, whose operation is under which of their tokens, answers nobody has taken yet.
//! Invariants: an answer goes to the core that asked, under the token it chose; after a crash nobody is answered.
//! Not here: what is asked, when a crash is.

use std::collections::{BTreeMap, VecDeque};

use felix_runtime::clock::Tick;
use felix_runtime::file::{Disk, Done, Full, Op, Token};
use felix_runtime::sim::{SimDisk, SimRng};

/// See the module.
pub struct Disks {
    disk: SimDisk,
    asked: BTreeMap<Token, (usize, Token)>,
    next_token: u64,
    answers: Vec<VecDeque<Done>>,
}

/// The disks as one core has them.
pub struct Seat<'a> {
    disks: &'a mut Disks,
    core: usize,
}

impl Disks {
    /// `disk` for `cores` cores.
    pub fn new(disk: SimDisk, cores: usize) -> Disks {
        let answers = std::iter::repeat_with(VecDeque::new).take(cores).collect();
        Disks { disk, asked: BTreeMap::new(), next_token: 0, answers }
    }

    /// What a core asks and is answered.
    pub fn seat(&mut self, core: usize) -> Seat<'_> {
        Seat { disks: self, core }
    }

    /// The machine's disks, to change what goes wrong there.
    pub fn machine(&mut self) -> &mut SimDisk {
        &mut self.disk
    }

    /// Lets everything happen that is due at `now`, and hands out the answers.
    pub fn advance(&mut self, now: Tick) {
        self.disk.advance_to(now);
        while let Some(Done { token, result }) = self.disk.poll_done() {
            if let Some((core, token)) = self.asked.remove(&token) {
                self.answers[core].push_back(Done { token, result });
            }
        }
    }

    /// When something happens next by itself.
    pub fn next_due(&self) -> Option<Tick> {
        self.disk.next_due()
    }

    /// Whether an answer waits for that core.
    pub fn has_answer(&self, core: usize) -> bool {
        self.answers.get(core).is_some_and(|answers| !answers.is_empty())
    }

    /// The process is gone; what it asked of the kernel happens all the same.
    pub fn kill(&mut self) {
        self.disk.kill();
        self.forget();
    }

    /// Power is lost and comes back.
    pub fn lose_power(&mut self, rng: &mut SimRng) {
        self.disk.crash(rng);
        self.forget();
    }

    fn forget(&mut self) {
        self.asked.clear();
        self.answers.iter_mut().for_each(VecDeque::clear);
    }
}

impl Disk for Seat<'_> {
    fn submit(&mut self, token: Token, op: Op) -> Result<(), Full> {
        let own = Token(self.disks.next_token);
        match self.disks.disk.submit(own, op) {
            Ok(()) => {
                self.disks.next_token += 1;
                self.disks.asked.insert(own, (self.core, token));
                Ok(())
            }
            Err(Full { op, .. }) => Err(Full { token, op }),
        }
    }

    fn poll_done(&mut self) -> Option<Done> {
        self.disks.answers[self.core].pop_front()
    }

    fn in_flight(&self) -> usize {
        let asked = self.disks.asked.values().filter(|(core, _)| *core == self.core).count();
        asked + self.disks.answers[self.core].len()
    }
}
