//! What the clients may see. Scope: one per simulation. Owns: the fate of every record as its publisher knows it, and what
//! every subscription was given.
//! Invariants checked at once: per subscription and publishing stream records come in publish order, none twice; a record
//! refused as not written is never seen; offsets rise, and one offset of one life of a shard is one record for everybody.
//! Checked at the end: what was acked (or sent unacked on a connection that lived) reached every subscription that was
//! there before it was sent and is owed everything; gaps are counted by the broker.

use std::collections::{BTreeMap, BTreeSet};

use felix_runtime::clock::Tick;

/// A shard of a stream.
pub type ShardKey = (usize, u32);

/// One record: the publishing stream it was sent on, and its number among those for the same shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId {
    pub lane: u32,
    pub seq: u64,
}

/// What the publisher knows of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Sent, and an answer is owed, or none will come because the connection went.
    Unknown,
    /// Sent without asking for an answer.
    Unacked,
    Acked,
    Refused,
}

/// A record as its publisher knows it.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub at: Tick,
    pub fate: Fate,
    /// When it was answered last.
    pub answered: Option<Tick>,
    /// Where its publisher was told that it is.
    pub offset: Option<u64>,
}

/// Where a subscription was given a record.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Of the shard's offsets.
    pub life: u64,
    pub offset: u64,
    /// Offsets right before it that were told to hold nothing.
    pub skipped: u64,
}

/// A record where somebody saw it first.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub record: RecordId,
    pub at: Tick,
}

/// Everything a subscription from the beginning was given.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    pub start: u64,
    pub records: BTreeMap<u64, RecordId>,
}

/// What one subscription was given, over all its resumptions.
#[derive(Debug, Default)]
pub struct Reader {
    pub shard: ShardKey,
    /// Everything sent from here on must come; none when nothing is owed.
    pub owed_since: Option<Tick>,
    /// It began while its shard was moving: the old core may still take records that only its own readers get.
    pub began_in_move: bool,
    last: BTreeMap<u32, u64>,
    seen: BTreeSet<RecordId>,
    /// The next offset and the life it belongs to, for subscriptions with positions.
    position: Option<(u64, u64)>,
    pub gaps: u64,
    /// The first of them: life, the offset that was due, the one that came.
    pub gap_at: Option<(u64, u64, u64)>,
    pub records: u64,
    /// For one that looks at the whole log.
    pub kept: Option<Kept>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Model {
    sent: BTreeMap<(ShardKey, u32), Vec<Sent>>,
    lanes: u32,
    readers: Vec<Reader>,
    /// By shard and generation: what lies at each offset.
    log: BTreeMap<(ShardKey, u64), BTreeMap<u64, Seen>>,
    /// Of durable streams: what was given to anybody, and when first.
    given: BTreeMap<(ShardKey, RecordId), Tick>,
    durable: bool,
    /// First offset told to a publisher, and the record there.
    told: Vec<(ShardKey, u64, RecordId)>,
    pub acked: u64,
    pub refused: u64,
    /// Subscriptions that ended and went on exactly where they were told to.
    pub went_on: u64,
    /// Those that were told that this is not held any more.
    pub too_old: u64,
    /// Offsets that subscriptions were told to hold no record.
    pub skipped: u64,
}

impl Reader {
    /// The next offset, for one that is told offsets.
    pub fn next(&self) -> Option<u64> {
        self.position.map(|(_, next)| next)
    }
}

impl Model {
    /// A model in which nothing was sent.
    pub fn new(durable: bool) -> Model {
        Model { durable, ..Model::default() }
    }

    /// A new publishing stream.
    pub fn lane(&mut self) -> u32 {
        self.lanes += 1;
        self.lanes
    }

    /// A new subscription.
    pub fn new_reader(&mut self, shard: ShardKey) -> usize {
        self.readers.push(Reader { shard, ..Reader::default() });
        self.readers.len() - 1
    }

    /// The subscription with that number.
    pub fn reader(&self, id: usize) -> &Reader {
        &self.readers[id]
    }

    /// The same, to be changed.
    pub fn reader_mut(&mut self, id: usize) -> &mut Reader {
        &mut self.readers[id]
    }

    /// A record is about to be sent; its number.
    pub fn send(&mut self, now: Tick, shard: ShardKey, lane: u32, acked: bool) -> u64 {
        let all = self.sent.entry((shard, lane)).or_default();
        let fate = if acked { Fate::Unknown } else { Fate::Unacked };
        all.push(Sent { at: now, fate, answered: None, offset: None });
        all.len() as u64 - 1
    }

    /// An answer for `count` records from `first` on, which lie from `offset` on.
    pub fn settle(
        &mut self,
        now: Tick,
        (shard, first, count): (ShardKey, RecordId, u64),
        fate: Fate,
        offset: Option<u64>,
    ) {
        match fate {
            Fate::Acked => self.acked += count,
            Fate::Refused => self.refused += count,
            Fate::Unknown | Fate::Unacked => {}
        }
        let Some(all) = self.sent.get_mut(&(shard, first.lane)) else { return };
        for (at, sent) in (0..).zip(all.iter_mut().skip(first.seq as usize).take(count as usize)) {
            sent.fate = fate;
            sent.answered = Some(now);
            sent.offset = offset.map(|offset| offset + at);
        }
        if let Some(offset) = offset {
            self.told.push((shard, offset, first));
        }
    }

    /// `count` records from `first` on are sent again: nobody knows what becomes of them.
    pub fn resend(&mut self, shard: ShardKey, first: RecordId, count: u64) {
        let Some(all) = self.sent.get_mut(&(shard, first.lane)) else { return };
        for sent in all.iter_mut().skip(first.seq as usize).take(count as usize) {
            sent.fate = Fate::Unknown;
        }
    }

    /// Every record that was sent.
    pub fn sent(&self) -> impl Iterator<Item = (ShardKey, RecordId, &Sent)> {
        self.sent.iter().flat_map(|((shard, lane), all)| {
            let id = |seq| RecordId { lane: *lane, seq };
            (0..).zip(all).map(move |(seq, sent)| (*shard, id(seq), sent))
        })
    }

    /// What is known of one record.
    pub fn sent_one(&self, shard: ShardKey, record: RecordId) -> Option<&Sent> {
        self.sent.get(&(shard, record.lane))?.get(usize::try_from(record.seq).ok()?)
    }

    /// What anybody saw at the offsets of a life.
    pub fn seen(&self, shard: ShardKey, life: u64) -> impl Iterator<Item = (u64, Seen)> {
        self.log.get(&(shard, life)).into_iter().flatten().map(|(offset, seen)| (*offset, *seen))
    }

    /// What was given to anybody of durable streams, and when first.
    pub fn given(&self) -> impl Iterator<Item = (ShardKey, RecordId, Tick)> {
        self.given.iter().map(|((shard, record), at)| (*shard, *record, *at))
    }

    /// A consumer of a group was handed a record.
    ///
    /// # Errors
    /// It was never sent, or refused as not written.
    pub fn seen_in_group(&self, shard: ShardKey, record: RecordId) -> Result<(), String> {
        match self.sent_one(shard, record).map(|sent| sent.fate) {
            None => Err(format!("{record:?} of {shard:?} was never sent there")),
            Some(Fate::Refused) => Err(format!("{record:?} of {shard:?} was refused as not written")),
            Some(_) => Ok(()),
        }
    }

    /// The connection of a publishing stream is gone: nobody knows what became of what was not answered.
    pub fn abandon(&mut self, lane: u32) {
        for ((_, of), all) in &mut self.sent {
            if *of == lane {
                for sent in all.iter_mut().filter(|s| s.fate == Fate::Unacked) {
                    sent.fate = Fate::Unknown;
                }
            }
        }
    }

    /// A subscription was given a record.
    ///
    /// # Errors
    /// What it breaks.
    pub fn deliver(
        &mut self,
        now: Tick,
        reader: usize,
        record: RecordId,
        position: Option<Position>,
    ) -> Result<(), String> {
        let held = &mut self.readers[reader];
        let shard = held.shard;
        held.records += 1;
        let fate = self.sent.get(&(shard, record.lane)).and_then(|all| all.get(record.seq as usize));
        match fate.map(|s| s.fate) {
            None => return Err(format!("{record:?} of {shard:?} was never sent there")),
            Some(Fate::Refused) => return Err(format!("{record:?} of {shard:?} was refused as not written")),
            Some(_) => {}
        }
        if let Some(last) = held.last.insert(record.lane, record.seq)
            && last >= record.seq
        {
            return Err(format!(
                "reader {reader} of {shard:?} got {record:?} after number {last} of its lane"
            ));
        }
        held.seen.insert(record);
        if self.durable {
            self.given.entry((shard, record)).or_insert(now);
        }
        let Some(Position { life, offset, skipped }) = position else { return Ok(()) };
        self.skipped += skipped;
        if let Some(kept) = &mut held.kept {
            kept.records.insert(offset, record);
        }
        if let Some((before, next)) = held.position.filter(|(before, _)| *before == life) {
            if offset < next {
                return Err(format!("reader {reader}: offset {offset} of life {before} after {next}"));
            }
            if offset < next + skipped {
                return Err(format!(
                    "reader {reader}: {skipped} offsets from {next} on hold nothing, but {offset} does"
                ));
            }
            if offset > next + skipped {
                held.gaps += offset - next - skipped;
                held.gap_at.get_or_insert((life, next, offset));
            }
        }
        held.position = Some((life, offset + 1));
        let seen = Seen { record, at: now };
        let known = self.log.entry((shard, life)).or_default().entry(offset).or_insert(seen).record;
        if known != record {
            return Err(format!("offset {offset} of {shard:?} life {life} is {known:?} and {record:?}"));
        }
        Ok(())
    }

    /// A subscription stands at `offset` of a life of its shard: a jump from there counts as a gap.
    pub fn stand(&mut self, reader: usize, life: u64, offset: u64) {
        let held = &mut self.readers[reader];
        if held.position.is_none_or(|(before, _)| before != life) {
            held.position = Some((life, offset));
        }
    }

    /// Every core knows where the shards are.
    pub fn agreed(&mut self, now: Tick) {
        for reader in self.readers.iter_mut().filter(|r| r.began_in_move) {
            reader.began_in_move = false;
            reader.owed_since = reader.owed_since.map(|_| now);
        }
    }

    /// Records that a subscription is owed and was not given. `unacked` counts those sent without asking for an answer.
    pub fn missing(&self, reader: usize, unacked: bool) -> Vec<RecordId> {
        let held = &self.readers[reader];
        let Some(since) = held.owed_since else { return Vec::new() };
        let owed = |fate| fate == Fate::Acked || (unacked && fate == Fate::Unacked);
        let mut missing = Vec::new();
        for ((_, lane), all) in self.sent.iter().filter(|((shard, _), _)| *shard == held.shard) {
            for (seq, _) in all.iter().enumerate().filter(|(_, s)| s.at > since && owed(s.fate)) {
                let record = RecordId { lane: *lane, seq: seq as u64 };
                if !held.seen.contains(&record) {
                    missing.push(record);
                }
            }
        }
        missing
    }

    /// Every subscription's number.
    pub fn readers(&self) -> impl Iterator<Item = (usize, &Reader)> {
        self.readers.iter().enumerate()
    }

    /// Offsets that publishers were told and that subscriptions saw another record at. Only where no shard had two lives.
    pub fn mistold(&self) -> Option<String> {
        self.told.iter().find_map(|(shard, offset, record)| {
            let seen = &self.log.get(&(*shard, 1))?.get(offset)?.record;
            (seen != record)
                .then(|| format!("{shard:?} offset {offset} was told for {record:?} and is {seen:?}"))
        })
    }
}
