//! Reading the records that a poll is handed. Scope: functions of the groups of a shard.
//! Invariants: a poll is answered with whole records, in the order in which they were handed out, up to a bound of bytes and
//! at least one; an offset without a record is passed over; one whose record cannot be read, or that no answer could hold,
//! becomes a dead letter, so that it is seen and holds up nothing.
//! Not here: which records those are (`projection::group`).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use felix_logstore::record::{Batch, BatchKind};
use felix_wire::id::Offset;

use super::GroupShard;
use crate::projection::commit::record::event_of;
use crate::projection::group::{Fetch, PollId};
use crate::shard::ShardCx;
use crate::shard::ask::{AskRefused, PolledRecord, Reply};
use crate::shard::mail::PageLoss;
use crate::store::{PageFor, PageReader};

/// Payload bytes of an answer, unless a single record is larger (client-protocol 14).
const ANSWER_BYTES: usize = 4 << 20;
/// A record that no answer could hold as base64.
const RECORD_BYTES_MAX: usize = 11 << 20;

/// Records being read for a poll.
#[derive(Debug)]
pub(super) struct Fetching {
    poll: PollId,
    wanted: Vec<Offset>,
    /// The first in `wanted` that nothing is known of.
    at: usize,
    /// Where the page that is being read ends at the latest.
    until: Offset,
    /// Where the next damage begins, as far as is known.
    until_max: Offset,
    missing: BTreeSet<Offset>,
    found: BTreeMap<Offset, (Bytes, u64)>,
    gone: BTreeSet<Offset>,
    dead: Vec<Offset>,
    bytes: usize,
}

impl Fetching {
    fn new(fetch: Fetch) -> Fetching {
        Fetching {
            poll: fetch.poll,
            missing: fetch.offsets.iter().copied().collect(),
            wanted: fetch.offsets,
            at: 0,
            until: Offset(0),
            until_max: Offset(0),
            found: BTreeMap::new(),
            gone: BTreeSet::new(),
            dead: Vec::new(),
            bytes: 0,
        }
    }

    /// The next range to read, if anything is left to read.
    fn next(&mut self) -> Option<(Offset, Offset)> {
        while self.wanted.get(self.at).is_some_and(|offset| !self.missing.contains(offset)) {
            self.at += 1;
        }
        if self.bytes >= ANSWER_BYTES {
            return None;
        }
        let from = *self.wanted.get(self.at)?;
        let run = self.wanted[self.at..].iter().zip(from.0..).take_while(|(offset, next)| offset.0 == *next);
        self.until = Offset(from.0 + run.count() as u64);
        if self.until_max > from {
            self.until = self.until.min(self.until_max);
        }
        Some((from, self.until))
    }

    fn take(&mut self, batches: &[Batch]) {
        let from = self.wanted.get(self.at).copied().unwrap_or(self.until);
        for batch in batches {
            let kind = batch.head().kind;
            if !matches!(kind, BatchKind::Data | BatchKind::Commit) {
                continue;
            }
            for record in batch.records() {
                if !self.missing.remove(&record.offset) {
                    continue;
                }
                let payload = match kind {
                    BatchKind::Commit => event_of(&record.payload).ok(),
                    _ => Some(record.payload.clone()),
                };
                match payload.filter(|payload| payload.len() <= RECORD_BYTES_MAX) {
                    Some(payload) => {
                        // It must not hold on to the batch.
                        self.bytes += payload.len();
                        let payload = Bytes::copy_from_slice(&payload);
                        self.found.insert(record.offset, (payload, record.timestamp_ms));
                    }
                    None => self.dead.push(record.offset),
                }
            }
        }
        let read_to = batches.last().map_or(self.until, |batch| batch.head().end());
        self.pass_over(from, read_to.min(self.until).max(Offset(from.0 + 1)));
    }

    /// Offsets in `from..to` that were not found have no record.
    fn pass_over(&mut self, from: Offset, to: Offset) {
        let none: Vec<Offset> = self.missing.range(from..to).copied().collect();
        for offset in none {
            self.missing.remove(&offset);
            self.gone.insert(offset);
        }
    }

    fn bury(&mut self, from: Offset, to: Offset) {
        let lost: Vec<Offset> = self.missing.range(from..to).copied().collect();
        for offset in lost {
            self.missing.remove(&offset);
            self.dead.push(offset);
        }
    }

    /// What goes into the answer, in its order.
    fn taken(&self) -> Vec<Offset> {
        let mut bytes = 0;
        let mut taken = Vec::new();
        for offset in &self.wanted {
            let Some((payload, _)) = self.found.get(offset) else { continue };
            bytes += payload.len();
            if bytes > ANSWER_BYTES && !taken.is_empty() {
                break;
            }
            taken.push(*offset);
        }
        taken
    }
}

impl GroupShard {
    pub(super) fn fetch(&mut self, fetch: Fetch, cx: &mut ShardCx<'_>) {
        let slot = self.fetches.insert(Fetching::new(fetch));
        self.fetch_on(slot, cx);
    }

    fn fetch_on(&mut self, slot: usize, cx: &mut ShardCx<'_>) {
        let Some(fetching) = self.fetches.get_mut(slot) else { return };
        let left = ANSWER_BYTES.saturating_sub(fetching.bytes).max(1);
        match (fetching.next(), cx.store.as_deref_mut()) {
            (Some((from, until)), Some(store)) => {
                let (reader, life) = (PageReader::Poll { slot }, self.life);
                store.read(self.records, PageFor { shard: self.id, reader, from, life }, until, left);
            }
            _ => self.fetched(slot, cx),
        }
    }

    /// The page of a poll was read, or cannot be.
    pub fn poll_page(&mut self, slot: usize, read: Result<&[Batch], &PageLoss>, cx: &mut ShardCx<'_>) {
        let Some(fetching) = self.fetches.get_mut(slot) else { return };
        let from = fetching.wanted.get(fetching.at).copied().unwrap_or(fetching.until);
        match read {
            Ok(batches) => fetching.take(batches),
            Err(PageLoss::TooOld(start)) => {
                fetching.pass_over(Offset(0), (*start).max(Offset(from.0 + 1)));
            }
            // What is before the damage can be read.
            Err(PageLoss::Damaged { from: bad, .. }) if *bad > from => fetching.until_max = *bad,
            Err(PageLoss::Damaged { next, .. }) => fetching.bury(from, (*next).max(Offset(from.0 + 1))),
            Err(PageLoss::Unreadable) => {
                let poll = self.fetches.remove(slot).poll;
                self.groups.cancel(poll, cx.now, &mut self.outputs);
                self.end_poll(poll, Reply::Refused(AskRefused::Unreadable));
                return self.flush(cx);
            }
        }
        self.fetch_on(slot, cx);
        self.flush(cx);
    }

    /// All that was to be read was: the poll is answered, or waits again.
    fn fetched(&mut self, slot: usize, cx: &mut ShardCx<'_>) {
        let mut fetching = self.fetches.remove(slot);
        let poll = fetching.poll;
        let group = self.polls.get(&poll).map(|open| open.group.clone());
        for offset in &fetching.dead {
            tracing::error!(%offset, "a record of a group cannot be handed out: it is a dead letter");
            if let Some(group) = &group {
                // A list that is full keeps it unfinished, and it is tried again.
                let _ = self.groups.dead_letter(group, *offset, cx.now, &mut self.outputs);
            }
        }
        let (taken, gone) = (fetching.taken(), fetching.gone.iter().copied().collect::<Vec<_>>());
        let handed = self.groups.fetched(poll, (&taken, &gone), cx.now, &mut self.outputs);
        let Some(handed) = handed else { return };
        let records = handed.into_iter().filter_map(|handed| {
            let (payload, timestamp_ms) = fetching.found.remove(&handed.offset)?;
            Some(PolledRecord { handed, payload, timestamp_ms })
        });
        self.end_poll(poll, Reply::Polled(records.collect()));
    }
}
