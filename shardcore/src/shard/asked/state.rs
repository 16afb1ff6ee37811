//! The state that commits have put, as a shard keeps it: read from the stream's own log when it is first asked for, kept up to
//! date from then on, let go when nobody asks. Sans-io. Scope: one per shard. Owns: the machine of the state.
//! Invariants: a value is told only when everything that is settled was taken; where the log is damaged, a key is told only
//! when it was put behind the damage.
//! Not here: what a commit does to keys (`projection::commit`), commits on their way (`super`).

use std::time::Duration;

use bytes::Bytes;
use felix_logstore::record::Batch;
use felix_runtime::clock::Tick;
use felix_wire::id::Offset;

use super::Step;
use crate::projection::commit::{Found, StateCore};
use crate::shard::ask::{AskRefused, Reply};
use crate::shard::mail::PageLoss;

/// Bytes of the log read at once.
pub(super) const PAGE_BYTES: usize = 4 << 20;
/// Values that a shard keeps in memory; the others are read from the log.
const HOT_BYTES_MAX: usize = 1 << 20;
/// State that nobody has asked for so long leaves memory.
const REST_AFTER: Duration = Duration::from_secs(600);
/// A log that could not be read is not read again before.
const READ_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
enum Known {
    /// Nobody has asked.
    #[default]
    No,
    /// Being read from the log; `at` is where the next page begins.
    Reading {
        core: Box<StateCore>,
        at: Offset,
    },
    Yes(Box<StateCore>),
    /// The log could not be read, and may be from then on.
    Lost {
        again: Tick,
    },
    /// It cannot be kept.
    Refused(AskRefused),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ShardState {
    known: Known,
    /// Every damaged range lies between these offsets.
    damage: Option<(Offset, Offset)>,
    used: Tick,
}

/// What came of looking for a key.
#[derive(Debug)]
pub(super) enum Looked {
    Done(Reply),
    /// The log has to be read first, from here, of what is below.
    Begin {
        from: Offset,
        until: Offset,
    },
    /// It is being read.
    Wait,
    /// The value is in the log.
    InLog(StateRead),
}

impl ShardState {
    /// Looks for a key. `held`: where the log begins, and where what is settled ends.
    pub(super) fn get(&mut self, key: &Bytes, held: (Offset, Offset), now: Tick) -> Looked {
        self.used = now;
        let core = match &mut self.known {
            Known::Yes(core) => core,
            Known::Reading { .. } => return Looked::Wait,
            Known::Lost { again } if now < *again => {
                return Looked::Done(Reply::Refused(AskRefused::Unreadable));
            }
            Known::Refused(why) => return Looked::Done(Reply::Refused(why.clone())),
            Known::No | Known::Lost { .. } => {
                let (start, end) = held;
                let core = Box::new(StateCore::new(HOT_BYTES_MAX, start));
                self.damage = None;
                if start >= end {
                    self.known = Known::Yes(core);
                    return self.get(key, held, now);
                }
                self.known = Known::Reading { core, at: start };
                return Looked::Begin { from: start, until: end };
            }
        };
        let damage = self.damage;
        let sure = |at: Offset| damage.is_none_or(|(_, next)| at >= next);
        let unsure = || {
            let (from, next) = damage.unwrap_or_default();
            Looked::Done(Reply::Refused(AskRefused::Damaged { from, next }))
        };
        match core.get(key) {
            // It may have been put where the log is damaged.
            Found::Absent { .. } if damage.is_some() => unsure(),
            Found::Absent { as_of } => Looked::Done(Reply::State { value: None, version: None, as_of }),
            Found::Here { version, .. } | Found::InLog { version, .. } if !sure(version) => unsure(),
            Found::Here { value, version, as_of } => {
                let (value, version) = (Some(value.clone()), Some(version));
                Looked::Done(Reply::State { value, version, as_of })
            }
            Found::InLog { version, as_of } => Looked::InLog(StateRead { key: key.clone(), version, as_of }),
        }
    }

    /// A page of the log, or why there is none; `end` is where what is settled ends now. Gives what is to be read next.
    pub(super) fn take_page(
        &mut self,
        read: Result<&[Batch], PageLoss>,
        end: Offset,
        now: Tick,
    ) -> Option<(Offset, Offset)> {
        let Known::Reading { core, at } = &mut self.known else { return None };
        match read {
            Ok(batches) => {
                for batch in batches {
                    if let Err(why) = take(core, batch) {
                        self.refuse(why);
                        return None;
                    }
                }
                // No batch at all: there is none up to the end, where offsets without records may follow.
                *at = batches.last().map_or(end, |batch| batch.head().end()).max(*at);
            }
            Err(PageLoss::TooOld(start)) => {
                core.log_starts(start);
                *at = start.max(*at);
            }
            Err(PageLoss::Damaged { from, next }) => {
                let known = self.damage.unwrap_or((from, next));
                self.damage = Some((known.0.min(from), known.1.max(next)));
                *at = next.max(*at);
            }
            Err(PageLoss::Unreadable) => {
                self.known = Known::Lost { again: now + READ_AGAIN };
                return None;
            }
        }
        if *at < end {
            return Some((*at, end));
        }
        if let Known::Reading { core, .. } = std::mem::take(&mut self.known) {
            self.known = Known::Yes(core);
        }
        None
    }

    /// A commit is settled. What is being read from the log comes from there.
    pub(super) fn committed(&mut self, record: &Bytes, at: Offset) {
        let Known::Yes(core) = &mut self.known else { return };
        if !core.has_room(record.len()) {
            return self.refuse(too_many());
        }
        core.claimed(record.clone(), at);
        if let Err(error) = core.settle(Offset(at.0 + 1)) {
            self.refuse(AskRefused::Broken(error.to_string().into()));
        }
    }

    /// Nothing below `start` is held any more.
    pub(super) fn log_starts(&mut self, start: Offset) {
        self.damage = self.damage.filter(|(_, next)| *next > start);
        if let Known::Yes(core) | Known::Reading { core, .. } = &mut self.known {
            core.log_starts(start);
        }
    }

    /// Lets it go when nobody has asked for long.
    pub(super) fn rest(&mut self, now: Tick) {
        if matches!(self.known, Known::Yes(_)) && self.used + REST_AFTER <= now {
            self.known = Known::No;
        }
    }

    fn refuse(&mut self, why: AskRefused) {
        tracing::error!(?why, "the state of a shard cannot be served");
        self.known = Known::Refused(why);
    }
}

fn take(core: &mut StateCore, batch: &Batch) -> Result<(), AskRefused> {
    if !core.has_room(batch.bytes().len()) {
        return Err(too_many());
    }
    core.replay(batch).map_err(|error| AskRefused::Broken(error.to_string().into()))
}

fn too_many() -> AskRefused {
    AskRefused::Limit("the state of the shard has too many keys".into())
}

/// The value of a key, on its way from the log.
#[derive(Debug)]
pub(super) struct StateRead {
    key: Bytes,
    version: Offset,
    as_of: Option<Offset>,
}

impl StateRead {
    pub(super) fn step(&self) -> Step {
        Step::Read { from: self.version, until: Offset(self.version.0 + 1), bytes_max: 1 }
    }

    pub(super) fn take(&self, read: Result<&[Batch], PageLoss>, state: &mut ShardState) -> Step {
        let (version, as_of) = (self.version, self.as_of);
        let gone = Reply::State { value: None, version: None, as_of };
        let batches = match read {
            Ok(batches) => batches,
            Err(PageLoss::TooOld(_)) => return Step::Done(gone),
            Err(PageLoss::Damaged { from, next }) => {
                return Step::Done(Reply::Refused(AskRefused::Damaged { from, next }));
            }
            Err(PageLoss::Unreadable) => return Step::Done(Reply::Refused(AskRefused::Unreadable)),
        };
        let mut records = batches.iter().flat_map(Batch::records);
        let record = records.find(|record| record.offset == version);
        let value = match (&mut state.known, record) {
            (Known::Yes(core), Some(record)) => core.read_back(&self.key, version, &record.payload).ok(),
            // It was let go meanwhile; the record says the same.
            (_, Some(record)) => {
                let mut core = StateCore::new(0, version);
                core.read_back(&self.key, version, &record.payload).ok()
            }
            (_, None) => None,
        };
        Step::Done(match value {
            // It must not hold on to the batch.
            Some(value) => {
                let (value, version) = (Some(Bytes::copy_from_slice(&value)), Some(version));
                Reply::State { value, version, as_of }
            }
            None => Reply::Refused(AskRefused::Unreadable),
        })
    }
}
