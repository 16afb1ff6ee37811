//! What happened, as one number and as the last lines before a failure. Scope: one per simulation.
//! Invariants: the hash follows from times, kinds, ids and sizes only, never from what TLS made up, so that one seed has
//! one hash.

use std::collections::VecDeque;
use std::fmt;

use felix_runtime::clock::Tick;

/// Lines kept for a failure, unless all are asked for.
const LAST: usize = 200;

#[derive(Clone, Copy, Debug)]
struct Line {
    at: Tick,
    what: &'static str,
    numbers: [u64; 3],
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = self.numbers;
        write!(f, "{:>14}  {:<22} {a} {b} {c}", self.at.to_string(), self.what)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    lines: u64,
    last: VecDeque<Line>,
    /// Lines kept.
    pub keep: usize,
}

impl Default for Trace {
    fn default() -> Trace {
        Trace { hash: 0xcbf2_9ce4_8422_2325, lines: 0, last: VecDeque::with_capacity(LAST), keep: LAST }
    }
}

impl Trace {
    /// Something happened.
    pub fn note(&mut self, at: Tick, what: &'static str, numbers: [u64; 3]) {
        for word in [at.as_nanos(), what.len() as u64, numbers[0], numbers[1], numbers[2]] {
            self.hash = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.hash ^= self.hash >> 32;
        }
        for byte in what.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.lines += 1;
        // Datagrams would push everything else out.
        if self.keep > LAST || !what.starts_with("net ") {
            if self.last.len() >= self.keep {
                self.last.pop_front();
            }
            self.last.push_back(Line { at, what, numbers });
        }
    }

    /// One number for everything so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many things happened.
    pub fn len(&self) -> u64 {
        self.lines
    }

    /// The newest lines, oldest first.
    pub fn last(&self) -> Vec<String> {
        self.last.iter().map(Line::to_string).collect()
    }
}
