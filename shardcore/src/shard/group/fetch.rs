//! Reading the records that a poll is handed. Scope: functions of the groups of a shard.
//! Invariants: a poll is answered with whole records, in the order in which they were handed out, up to a bound of bytes and
//! at least one; an offset without a record is passed over; one whose record cannot be read, or that no answer could hold,
//! becomes a dead letter, so that it is seen and holds up nothing.
//! Not here: which records those are (`projection::group`), what was read for the polls before (`ahead`).

use bytes::{Bytes, BytesMut};
use felix_logstore::record::{Batch, BatchKind};
use felix_wire::id::Offset;

use super::GroupShard;
use super::ahead::Plan;
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

/// What is known of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Unknown,
    Record {
        payload: Bytes,
        timestamp_ms: u64,
    },
    /// There is none at its offset.
    Gone,
    /// There is one that cannot be handed out.
    Dead,
}

/// Records being read for a poll.
#[derive(Debug)]
pub(super) struct Fetching {
    poll: PollId,
    wanted: Vec<Offset>,
    /// Of each in `wanted`.
    found: Vec<Found>,
    /// Places in `wanted`, lowest offset first; none when they are in that order.
    sorted: Option<Vec<usize>>,
    /// The first in `wanted` that nothing is known of.
    at: usize,
    /// Where the page that is being read ends at the latest.
    until: Offset,
    /// Where the next damage begins, as far as is known.
    until_max: Offset,
    bytes: usize,
}

/// How payloads are taken out of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Payloads {
    /// With a share of its memory.
    Shared,
    Copied,
}

/// Payloads of a page that are wanted: where each stands in `wanted`, its length and its time.
struct Copied {
    found: Vec<(usize, usize, u64)>,
    bytes: BytesMut,
}

impl Fetching {
    fn new(fetch: Fetch) -> Fetching {
        let wanted = fetch.offsets;
        let sorted = (!wanted.is_sorted()).then(|| {
            let mut places: Vec<usize> = (0..wanted.len()).collect();
            places.sort_unstable_by_key(|place| wanted[*place]);
            places
        });
        Fetching {
            poll: fetch.poll,
            found: vec![Found::Unknown; wanted.len()],
            wanted,
            sorted,
            at: 0,
            until: Offset(0),
            until_max: Offset(0),
            bytes: 0,
        }
    }

    /// The next range to read, if anything is left to read.
    fn next(&mut self) -> Option<(Offset, Offset)> {
        while self.found.get(self.at).is_some_and(|found| *found != Found::Unknown) {
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

    /// Where a record that is not known yet stands in `wanted`.
    fn unknown(&self, offset: Offset) -> Option<usize> {
        let place = match &self.sorted {
            None => self.wanted.binary_search(&offset).ok()?,
            Some(places) => places[places.binary_search_by_key(&offset, |place| self.wanted[*place]).ok()?],
        };
        (self.found[place] == Found::Unknown).then_some(place)
    }

    /// What stands in batches from the one on that has the next record: they say everything of the offsets up to their end.
    fn take(&mut self, batches: &[Batch], payloads: Payloads) {
        let from = self.wanted.get(self.at).copied().unwrap_or(self.until);
        let batches = &batches[..batches.partition_point(|batch| batch.head().base < self.until)];
        match payloads {
            Payloads::Shared => self.share(batches),
            Payloads::Copied => self.copy_all(batches),
        }
        let read_to = batches.last().map_or(self.until, |batch| batch.head().end());
        self.settle(from, read_to.min(self.until).max(Offset(from.0 + 1)), &Found::Gone);
    }

    fn share(&mut self, batches: &[Batch]) {
        for batch in batches {
            let kind = batch.head().kind;
            if !matches!(kind, BatchKind::Data | BatchKind::Commit) {
                continue;
            }
            for record in batch.records() {
                let Some(place) = self.unknown(record.offset) else { continue };
                let timestamp_ms = record.timestamp_ms;
                let payload = match kind {
                    BatchKind::Commit => event_of(&record.payload).ok(),
                    _ => Some(record.payload),
                };
                let payload = payload.filter(|payload| payload.len() <= RECORD_BYTES_MAX);
                self.bytes += payload.as_ref().map_or(0, Bytes::len);
                self.found[place] =
                    payload.map_or(Found::Dead, |payload| Found::Record { payload, timestamp_ms });
            }
        }
    }

    /// So that payloads do not hold on to their batches.
    fn copy_all(&mut self, batches: &[Batch]) {
        let bytes: usize = batches.iter().map(|batch| batch.bytes().len()).sum();
        let mut copy = Copied { found: Vec::new(), bytes: BytesMut::with_capacity(bytes.min(ANSWER_BYTES)) };
        for batch in batches {
            match batch.head().kind {
                BatchKind::Data => {
                    for record in batch.record_refs() {
                        self.copy(record.offset, record.timestamp_ms, Some(record.payload), &mut copy);
                    }
                }
                BatchKind::Commit => {
                    for record in batch.records() {
                        let event = event_of(&record.payload).ok();
                        self.copy(record.offset, record.timestamp_ms, event.as_deref(), &mut copy);
                    }
                }
                _ => {}
            }
        }
        self.bytes += copy.bytes.len();
        let mut bytes = copy.bytes.freeze();
        for (place, len, timestamp_ms) in copy.found {
            self.found[place] = Found::Record { payload: bytes.split_to(len), timestamp_ms };
        }
    }

    /// A record that was read; none when its bytes say nothing that could be handed out.
    fn copy(&mut self, offset: Offset, timestamp_ms: u64, payload: Option<&[u8]>, copy: &mut Copied) {
        let Some(place) = self.unknown(offset) else { return };
        match payload.filter(|payload| payload.len() <= RECORD_BYTES_MAX) {
            Some(payload) => {
                copy.bytes.extend_from_slice(payload);
                copy.found.push((place, payload.len(), timestamp_ms));
            }
            None => self.found[place] = Found::Dead,
        }
    }

    /// Offsets in `from..to` that are not known are `found`.
    fn settle(&mut self, from: Offset, to: Offset, found: &Found) {
        for (_, known) in self.wanted.iter().zip(&mut self.found).filter(|(at, _)| (from..to).contains(at)) {
            if *known == Found::Unknown {
                known.clone_from(found);
            }
        }
    }

    /// Which are so, in offset order.
    fn which(&self, what: &Found) -> Vec<Offset> {
        let those = self.wanted.iter().zip(&self.found).filter(|(_, found)| *found == what);
        let mut offsets: Vec<Offset> = those.map(|(offset, _)| *offset).collect();
        offsets.sort_unstable();
        offsets
    }

    /// What goes into the answer, in its order.
    fn taken(&self) -> Vec<Offset> {
        let mut bytes = 0;
        let mut taken = Vec::with_capacity(self.wanted.len());
        for (offset, found) in self.wanted.iter().zip(&self.found) {
            let Found::Record { payload, .. } = found else { continue };
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
        loop {
            let Some(fetching) = self.fetches.get_mut(slot) else { return };
            let left = ANSWER_BYTES.saturating_sub(fetching.bytes).max(1);
            let (Some((from, until)), Some(store)) = (fetching.next(), cx.store.as_deref_mut()) else {
                self.fetched(slot, cx);
                return self.read_ahead(cx);
            };
            if let Some(batches) = self.ahead.batches(from) {
                // These are kept anyway, and the poll is answered soon.
                fetching.take(batches, Payloads::Shared);
                continue;
            }
            let bad_ahead = fetching.until_max > from;
            let (until, bytes_max) = match self.ahead.plan((from, until), bad_ahead, slot) {
                Plan::Wait => return,
                Plan::Ahead { bytes } => (self.groups.records_end().max(until), bytes),
                Plan::Apart { bytes } => (until, bytes.min(left)),
            };
            let page = PageFor {
                shard: self.id,
                reader: PageReader::Poll { slot: Some(slot) },
                from,
                life: self.life,
            };
            return store.read(self.records, page, until, bytes_max);
        }
    }

    /// Has the next page read while the one that is there is used up.
    fn read_ahead(&mut self, cx: &mut ShardCx<'_>) {
        let end = self.groups.records_end();
        let Some(store) = cx.store.as_deref_mut() else { return };
        if let Some((from, bytes)) = self.ahead.next(end) {
            let reader = PageReader::Poll { slot: None };
            let page = PageFor { shard: self.id, reader, from, life: self.life };
            store.read(self.records, page, end, bytes);
        }
    }

    /// The page of a poll, or of those that come, was read, or cannot be.
    pub fn poll_page(
        &mut self,
        slot: Option<usize>,
        read: Result<&[Batch], &PageLoss>,
        cx: &mut ShardCx<'_>,
    ) {
        let waiting = self.ahead.read(slot, read.unwrap_or_default());
        if let Some(slot) = slot {
            self.take_page(slot, read, cx);
        }
        for slot in waiting {
            self.fetch_on(slot, cx);
        }
        self.flush(cx);
    }

    fn take_page(&mut self, slot: usize, read: Result<&[Batch], &PageLoss>, cx: &mut ShardCx<'_>) {
        let Some(fetching) = self.fetches.get_mut(slot) else { return };
        let from = fetching.wanted.get(fetching.at).copied().unwrap_or(fetching.until);
        match read {
            Ok(batches) => fetching.take(batches, Payloads::Copied),
            Err(PageLoss::TooOld(start)) => {
                fetching.settle(Offset(0), (*start).max(Offset(from.0 + 1)), &Found::Gone);
            }
            // What is before the damage can be read.
            Err(PageLoss::Damaged { from: bad, .. }) if *bad > from => fetching.until_max = *bad,
            Err(PageLoss::Damaged { next, .. }) => {
                fetching.settle(from, (*next).max(Offset(from.0 + 1)), &Found::Dead);
            }
            Err(PageLoss::Unreadable) => {
                let poll = self.fetches.remove(slot).poll;
                self.groups.cancel(poll, cx.now, &mut self.outputs);
                return self.end_poll(poll, Reply::Refused(AskRefused::Unreadable));
            }
        }
        self.fetch_on(slot, cx);
    }

    /// All that was to be read was: the poll is answered, or waits again.
    fn fetched(&mut self, slot: usize, cx: &mut ShardCx<'_>) {
        let fetching = self.fetches.remove(slot);
        let poll = fetching.poll;
        let group = self.polls.get(&poll).map(|open| open.group.clone());
        for offset in fetching.which(&Found::Dead) {
            tracing::error!(%offset, "a record of a group cannot be handed out: it is a dead letter");
            if let Some(group) = &group {
                // A list that is full keeps it unfinished, and it is tried again.
                let _ = self.groups.dead_letter(group, offset, cx.now, &mut self.outputs);
            }
        }
        let (taken, gone) = (fetching.taken(), fetching.which(&Found::Gone));
        let handed = self.groups.fetched(poll, (&taken, &gone), cx.now, &mut self.outputs);
        let Some(handed) = handed else { return };
        let mut found = fetching.wanted.into_iter().zip(fetching.found);
        let records = handed.into_iter().filter_map(|handed| {
            // They are handed out in the order in which they were wanted.
            let (_, found) = found.find(|(offset, _)| *offset == handed.offset)?;
            let Found::Record { payload, timestamp_ms } = found else { return None };
            Some(PolledRecord { handed, payload, timestamp_ms })
        });
        self.end_poll(poll, Reply::Polled(records.collect()));
    }
}
