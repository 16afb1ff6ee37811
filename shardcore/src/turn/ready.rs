//! Whose turn it is to be read: deficit round robin over tenants, first come first served inside one. Sans-io.
//! Scope: one per core. Owns: the streams with something to read.
//! Invariants: a stream is queued once; a tenant with little to read is served within one round of the others' quanta.
//! Not here: how much may be read in a turn (`turn::core`).

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use felix_runtime::quic::{ConnKey, StreamId};

use crate::hash::HashState;

/// Bytes a tenant may read per round.
pub const QUANTUM_BYTES: usize = 256 << 10;

type Entry = (ConnKey, StreamId);

#[derive(Debug, Default)]
struct Lineup {
    streams: VecDeque<Entry>,
    deficit: isize,
    queued: bool,
}

/// See the module. The empty tenant stands for streams that have not authenticated.
#[derive(Debug, Default)]
pub struct Ready {
    tenants: HashMap<Arc<str>, Lineup, HashState>,
    round: VecDeque<Arc<str>>,
    waiting: HashSet<Entry, HashState>,
    nobody: Option<Arc<str>>,
}

impl Ready {
    /// Queues a stream, unless it is queued already.
    pub fn push(&mut self, tenant: Option<&Arc<str>>, entry: Entry) {
        if !self.waiting.insert(entry) {
            return;
        }
        let tenant = match tenant {
            Some(tenant) => Arc::clone(tenant),
            None => Arc::clone(self.nobody.get_or_insert_with(|| Arc::from(""))),
        };
        let lineup = self.tenants.entry(Arc::clone(&tenant)).or_default();
        lineup.streams.push_back(entry);
        if !std::mem::replace(&mut lineup.queued, true) {
            lineup.deficit = 0;
            self.round.push_back(tenant);
        }
    }

    /// The next stream to read and how many bytes of it.
    pub fn pop(&mut self) -> Option<(Entry, usize)> {
        loop {
            let tenant = self.round.front().map(Arc::clone)?;
            let lineup = self.tenants.get_mut(&tenant)?;
            if lineup.streams.is_empty() {
                self.round.pop_front();
                self.tenants.remove(&tenant);
                continue;
            }
            if lineup.deficit <= 0 {
                lineup.deficit += QUANTUM_BYTES as isize;
                self.round.rotate_left(1);
                continue;
            }
            let budget = usize::try_from(lineup.deficit).unwrap_or(1);
            let entry = lineup.streams.pop_front()?;
            self.waiting.remove(&entry);
            return Some((entry, budget));
        }
    }

    /// What a stream of `tenant` read.
    pub fn charge(&mut self, tenant: Option<&Arc<str>>, bytes: usize) {
        let key = tenant.map_or("", |t| t);
        if let Some(lineup) = self.tenants.get_mut(key) {
            lineup.deficit -= isize::try_from(bytes).unwrap_or(isize::MAX);
        }
    }

    /// Nothing to read.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
