//! Carries operations between a disk and an engine or a recovery. Scope: one per engine or recovery.
//! Owns: the operation that the disk had no room for.
//! Invariants: operations are handed over in the order in which they were made; every answer reaches whoever asked.
//! Not here: when to call it (the core's turn), the disk.

use felix_runtime::clock::Tick;
use felix_runtime::file::{Disk, Done, Full, Op, Token};

use crate::engine::Engine;
use crate::recovery::{Recovered, Recovery, RecoveryError};

/// See the module.
#[derive(Debug, Default)]
pub struct Driver {
    held: Option<(Token, Op)>,
}

impl Driver {
    /// Hands answers to the engine, lets it do what it can, and hands its operations to the disk, until nothing moves.
    /// Answers to tokens of others come back.
    pub fn turn(&mut self, disk: &mut impl Disk, engine: &mut Engine, now: Tick) -> Vec<Done> {
        let mut others = Vec::new();
        loop {
            while let Some(done) = disk.poll_done() {
                let kept = Done { token: done.token, result: done.result.clone() };
                if !engine.complete(now, done) {
                    others.push(kept);
                }
            }
            engine.poll(now);
            if !self.submit(disk, || engine.poll_op()) {
                return others;
            }
        }
    }

    /// The same for a recovery; gives what it came to when it is over.
    pub fn recover(
        &mut self,
        disk: &mut impl Disk,
        recovery: &mut Recovery,
    ) -> Option<Result<Recovered, RecoveryError>> {
        loop {
            while let Some(done) = disk.poll_done() {
                recovery.complete(done);
            }
            if let Some(result) = recovery.poll_result() {
                return Some(result);
            }
            if !self.submit(disk, || recovery.poll_op()) {
                return None;
            }
        }
    }

    /// Hands over operations until there is none or no room. True when any was taken.
    fn submit(&mut self, disk: &mut impl Disk, mut next: impl FnMut() -> Option<(Token, Op)>) -> bool {
        let mut any = false;
        while let Some((token, op)) = self.held.take().or_else(&mut next) {
            match disk.submit(token, op) {
                Ok(()) => any = true,
                Err(Full { token, op }) => {
                    self.held = Some((token, op));
                    break;
                }
            }
        }
        any
    }
}
