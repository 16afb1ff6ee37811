//! The half of a shard whose stream is durable: claims in its log, answers from what the log has settled. Sans-io.
//! Scope: one per durable shard that is served. Owns: what is claimed and not settled.
//! Invariants: a publish is answered only from the log's own word that it is settled; nothing unsettled is readable; what
//! was claimed in order is answered in order.
//! Not here: the ring of what is settled (`ring`), the bytes on their way to the disk (`felix_logstore`).

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use felix_logstore::log::{AppendMeta, ClaimError};
use felix_logstore::record::{Batch, BatchKind, Record};
use felix_runtime::clock::Tick;
use felix_wire::client::{Records, RecordsBuilder};
use felix_wire::id::{CoreId, Generation, Offset, ProducerId, Sequence};

use super::claimer::Claimer;
use super::journal::NoClaim;
use super::mail::NotWritten;
use super::ring::{Page, Slot};
use crate::projection::commit::record::event_of;
use crate::store::{LogAt, Store};

/// A batch that is claimed and not settled.
#[derive(Debug)]
pub struct Claimed {
    pub to: CoreId,
    pub claimer: Claimer,
    pub base: Offset,
    /// What readers see.
    pub records: Records,
    /// The record of a commit, of which `records` has the event.
    pub commit: Option<Bytes>,
    since: Tick,
    /// It was answered "not known": what becomes of it nobody waits for.
    pub given_up: bool,
}

impl Claimed {
    /// One past its last offset.
    pub fn end(&self) -> Offset {
        Offset(self.base.0 + u64::from(self.records.count()))
    }

    /// Bytes it holds.
    fn bytes(&self) -> usize {
        self.records.encoded_len() + self.commit.as_ref().map_or(0, Bytes::len)
    }
}

/// What is to be written as one batch.
#[derive(Debug, Clone)]
pub struct Write {
    pub records: Records,
    /// The record of a commit, of which `records` has the event: it is what is written.
    pub commit: Option<Bytes>,
    pub producer: Option<(ProducerId, Sequence)>,
}

/// See the module.
#[derive(Debug)]
pub struct Logged {
    at: LogAt,
    /// Offsets that no record will ever have: those between the end found by recovery and the next claim.
    gap: (Offset, Offset),
    claimed: VecDeque<Claimed>,
    claimed_bytes: usize,
    /// A claim found no room.
    pub full: bool,
    stopped: bool,
}

impl Logged {
    /// A shard over a log in which nothing is in flight and that does not leave this core; else none. Gives the offset of its next record too.
    pub fn open(store: &Store, at: LogAt) -> Option<(Logged, Offset)> {
        let log = store.at_rest(at)?;
        let end = log.settled_end();
        let next = log.skips_to().unwrap_or(end);
        let stopped = log.stopped().is_some();
        let (claimed, claimed_bytes) = (VecDeque::new(), 0);
        Some((Logged { at, gap: (end, next), claimed, claimed_bytes, full: false, stopped }, next))
    }

    /// Where its log is.
    pub fn at(&self) -> LogAt {
        self.at
    }

    /// Bytes of what is claimed and not settled.
    pub fn claimed_bytes(&self) -> usize {
        self.claimed_bytes
    }

    /// The first offset that can be read.
    pub fn start(&self, store: &Store) -> Offset {
        store.log(self.at).map_or(Offset(0), |log| log.start())
    }

    /// Where reading goes on when it has come to offsets without records.
    pub fn behind_gap(&self, from: Offset) -> Option<Offset> {
        (self.gap.0 <= from && from < self.gap.1).then_some(self.gap.1)
    }

    /// Where the records end, when the shard's next offset is `end`: offsets without records at the end are not waited for.
    pub fn records_end(&self, end: Offset) -> Offset {
        if end == self.gap.1 { self.gap.0 } else { end }
    }

    /// Claims offsets for a batch and appends it to the log. Gives the first offset; it is answered when it is settled.
    ///
    /// # Errors
    /// Nothing was claimed, and the batch is given back.
    pub fn write(
        &mut self,
        store: &mut Store,
        (to, claimer): (CoreId, Claimer),
        write: Write,
        (generation, unix_ms, since): (Generation, u64, Tick),
    ) -> Result<Offset, (NoClaim, Write)> {
        if self.stopped {
            return Err((NoClaim::Refused(NotWritten::Stopped), write));
        }
        let at = self.at;
        let (Some(engine), Some(count)) = (store.engine(at), NonZeroU32::new(write.records.count())) else {
            return Err((NoClaim::Gone, write));
        };
        let (kind, bytes) = match &write.commit {
            Some(commit) => (BatchKind::Commit, commit.len()),
            None => (BatchKind::Data, write.records.payload_bytes()),
        };
        let claim = match engine.claim(at.log, kind, count, bytes) {
            Ok(claim) => claim,
            Err(why) => {
                let why = match why {
                    ClaimError::NoRoom => {
                        self.full = true;
                        NoClaim::Full
                    }
                    ClaimError::Unknown => NoClaim::Gone,
                    ClaimError::NoSpace => NoClaim::Refused(store.why_no_space(at.volume)),
                    ClaimError::Stopped(_) => NoClaim::Refused(NotWritten::Stopped),
                    ClaimError::TooLarge => NoClaim::Refused(NotWritten::TooLarge),
                };
                return Err((why, write));
            }
        };
        let base = claim.base();
        let Write { records, commit, producer } = write;
        let meta = AppendMeta { generation, timestamp_ms: unix_ms, producer };
        let batch = match &commit {
            Some(commit) => engine.append(at.log, claim, meta, std::iter::once((unix_ms, commit.as_ref()))),
            None => engine.append(at.log, claim, meta, records.iter().map(|payload| (unix_ms, payload))),
        };
        assert!(batch.is_some(), "a log that gave a claim is there for its append");
        let given_up = false;
        let claimed = Claimed { to, claimer, base, records, commit, since, given_up };
        store.note_batch(claimed.bytes());
        self.claimed_bytes += claimed.bytes();
        self.claimed.push_back(claimed);
        Ok(base)
    }

    /// Whether the log takes nothing until the next start.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The offset that the next record gets.
    pub fn next(&self, store: &Store) -> Offset {
        let next = |log: &felix_logstore::log::Log| log.skips_to().unwrap_or(log.claimed_end());
        store.log(self.at).map_or(Offset(0), next)
    }

    /// The next batch that lies below `end`, which is settled.
    pub fn pop_settled(&mut self, end: Offset) -> Option<Claimed> {
        let settled = self.claimed.front().is_some_and(|claimed| claimed.end() <= end);
        let claimed = settled.then(|| self.claimed.pop_front()).flatten()?;
        self.claimed_bytes -= claimed.bytes();
        Some(claimed)
    }

    /// What has been claimed for at least `wait` and is not settled: whoever sent it is to be told that its outcome is not known.
    /// It stays claimed, and is settled when the disk answers.
    pub fn give_up(&mut self, now: Tick, wait: Duration) -> impl Iterator<Item = (CoreId, Claimer)> {
        let late = self.claimed.iter_mut().take_while(move |claimed| claimed.since + wait <= now);
        late.filter(|claimed| !claimed.given_up).map(|claimed| {
            claimed.given_up = true;
            (claimed.to, claimed.claimer)
        })
    }

    /// The log has failed, or leaves: of what is claimed nobody can say whether it is there. Gives those who still wait.
    pub fn stop(&mut self) -> impl Iterator<Item = Claimed> + use<> {
        self.stopped = true;
        self.claimed_bytes = 0;
        std::mem::take(&mut self.claimed).into_iter().filter(|claimed| !claimed.given_up)
    }
}

/// The records of batches as a page that ends at `next` or where the last batch does.
pub fn page_of(batches: &[Batch], from: Offset) -> Page {
    let mut page = Page { slots: Vec::with_capacity(batches.len()), next: from };
    for batch in batches {
        let head = batch.head();
        page.next = page.next.max(head.end());
        if !matches!(head.kind, BatchKind::Data | BatchKind::Commit) {
            continue;
        }
        let mut run = RecordsBuilder::with_capacity(batch.bytes().len());
        for record in batch.records() {
            match head.kind {
                BatchKind::Commit => run.push(&event_seen(&record)),
                _ => run.push(&record.payload),
            }
        }
        page.slots.push(Slot { base: head.base, records: run.finish() });
    }
    page
}

/// What readers see of a commit. One that cannot be read, though its checksum is right, keeps its place and is empty.
fn event_seen(record: &Record) -> Bytes {
    event_of(&record.payload).unwrap_or_else(|fault| {
        tracing::error!(offset = %record.offset, %fault, "the event of a commit cannot be read");
        Bytes::new()
    })
}
