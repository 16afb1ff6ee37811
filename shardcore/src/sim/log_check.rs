//! What a log must hold when everything is over (reliability I1, I4, I9-I12, I21). Scope: one look at a model.
//! Checked, for the life of a stream that is there at the end: every record there was sent, not refused, and not acked in an
//! earlier life; what was acked, or given to a subscription, lies where it was told to lie. Only power loss excuses that it
//! does not, only where acks do not wait for the sync, and then for all of what came after it too.
//! Not here: order, duplicates and gaps, which the model checks with each record that comes.

use std::collections::BTreeMap;

use felix_logstore::id::Fsync;
use felix_logstore::retention::Retention;
use felix_runtime::clock::Tick;

use super::check::{Fate, Kept, Model, RecordId, Seen, ShardKey};

/// One life of a stream's name.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    pub number: u64,
    pub created: Tick,
    /// From here on every core knows it.
    pub agreed: Option<Tick>,
}

/// What has happened to the logs.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub now: Tick,
    pub policy: Fsync,
    pub retention: Retention,
    /// When power was lost.
    pub losses: &'a [Tick],
    /// By stream, oldest first.
    pub lives: &'a [Vec<Life>],
}

/// A record that somebody was told of.
#[derive(Clone, Copy, Debug)]
struct Promise {
    record: RecordId,
    offset: u64,
    /// When its publisher sent it, and when it was told first. It was written at some time in between.
    sent: Tick,
    at: Tick,
}

impl Promise {
    /// The power loss that may have taken it.
    fn loss(&self, losses: &[Tick]) -> Option<Tick> {
        losses.iter().copied().find(|loss| *loss > self.sent)
    }

    /// Whether it was written before that loss, and after any other.
    fn is_of(&self, loss: Tick, losses: &[Tick]) -> bool {
        self.at < loss && self.loss(losses) == Some(loss)
    }
}

/// Checks every log that was read from its beginning; gives how many there were.
///
/// # Errors
/// The first thing that is not as it must be.
pub fn check(model: &Model, facts: &Facts<'_>) -> Result<usize, String> {
    let mut looked = 0;
    for (_, reader) in model.readers() {
        let Some(kept) = &reader.kept else { continue };
        let life = facts.lives[reader.shard.0].last().ok_or("a stream without a life")?;
        let Some(agreed) = life.agreed else { return Err("a stream that no core knows".to_owned()) };
        check_held(model, reader.shard, kept, (life, agreed))?;
        check_start(model, reader.shard, kept, (agreed, facts))?;
        check_promised(promises(model, reader.shard, (life, agreed)), reader.shard, kept, facts)?;
        check_given(model, reader.shard, kept, (agreed, facts))?;
        looked += 1;
    }
    Ok(looked)
}

/// What is there may be there.
fn check_held(
    model: &Model,
    shard: ShardKey,
    kept: &Kept,
    (life, agreed): (&Life, Tick),
) -> Result<(), String> {
    for (offset, record) in &kept.records {
        let sent = model.sent_one(shard, *record).ok_or_else(|| format!("{record:?} was never sent"))?;
        let told = format!("{shard:?} offset {offset} is {record:?}, {sent:?}");
        if sent.fate == Fate::Refused {
            return Err(format!("{told}: it was refused as not written"));
        }
        if sent.fate == Fate::Acked && sent.answered.is_some_and(|at| at < life.created) {
            return Err(format!("{told}: that was in an earlier life, which ended before {}", life.created));
        }
        if sent.fate == Fate::Acked && sent.at > agreed && sent.offset != Some(*offset) {
            return Err(format!("{told}: it was told to lie elsewhere"));
        }
    }
    Ok(())
}

/// Retention may remove what lies before the start, and nothing else may.
fn check_start(
    model: &Model,
    shard: ShardKey,
    kept: &Kept,
    (agreed, facts): (Tick, &Facts<'_>),
) -> Result<(), String> {
    let Retention { bytes, age_ms } = facts.retention;
    if kept.start > 0 && bytes.is_none() && age_ms.is_none() {
        return Err(format!("{shard:?} begins at {} and nothing removes records", kept.start));
    }
    let Some(age_ms) = age_ms.filter(|_| bytes.is_none()) else { return Ok(()) };
    for (_, record, sent) in model.sent().filter(|(of, _, sent)| *of == shard && sent.at > agreed) {
        let young = facts.now.saturating_since(sent.at).as_millis() < u128::from(age_ms);
        if young && sent.fate == Fate::Acked && sent.offset.is_some_and(|offset| offset < kept.start) {
            return Err(format!("{shard:?}: {record:?} was removed before it was {age_ms} ms old: {sent:?}"));
        }
    }
    Ok(())
}

/// Everything that somebody was told lies at an offset of this life, by offset.
fn promises(model: &Model, shard: ShardKey, (life, agreed): (&Life, Tick)) -> Vec<Promise> {
    let acked = model.sent().filter_map(|(of, record, sent)| {
        let counts = of == shard && sent.fate == Fate::Acked && sent.at > agreed;
        let (offset, at) = sent.offset.zip(sent.answered).filter(|_| counts)?;
        Some(Promise { record, offset, sent: sent.at, at })
    });
    let seen = model.seen(shard, life.number);
    let seen = seen.filter_map(|(offset, Seen { record, at })| {
        Some(Promise { record, offset, sent: model.sent_one(shard, record)?.at, at })
    });
    let mut all: Vec<Promise> = acked.chain(seen).collect();
    all.sort_by_key(|promise| (promise.offset, promise.at));
    all
}

/// What somebody was told is there is there.
fn check_promised(
    promises: Vec<Promise>,
    shard: ShardKey,
    kept: &Kept,
    facts: &Facts<'_>,
) -> Result<(), String> {
    // By power loss: the first offset that it took.
    let mut gone: BTreeMap<Tick, Promise> = BTreeMap::new();
    for promise in promises.into_iter().filter(|promise| promise.offset >= kept.start) {
        let found = kept.records.get(&promise.offset);
        if found == Some(&promise.record) {
            let took = gone.iter().find(|(loss, _)| promise.is_of(**loss, facts.losses));
            if let Some((_, before)) = took {
                return Err(format!("{shard:?}: {before:?} is gone and {promise:?} behind it is not"));
            }
            continue;
        }
        let told = format!("{shard:?}: {promise:?} is not there, but {found:?}");
        match promise.loss(facts.losses) {
            _ if facts.policy == Fsync::OnCommit => return Err(format!("{told}; acks wait for the sync")),
            None => return Err(format!("{told}; no power was lost since")),
            // An offset that somebody saw is not given to another record.
            Some(_) if found.is_some() => return Err(told),
            Some(loss) if promise.is_of(loss, facts.losses) => {
                gone.entry(loss).or_insert(promise);
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// What subscriptions that are told no offsets were given is there too.
fn check_given(
    model: &Model,
    shard: ShardKey,
    kept: &Kept,
    (agreed, facts): (Tick, &Facts<'_>),
) -> Result<(), String> {
    if kept.start > 0 {
        return Ok(());
    }
    let held: std::collections::BTreeSet<RecordId> = kept.records.values().copied().collect();
    for (_, record, at) in model.given().filter(|(of, ..)| *of == shard) {
        let Some(sent) = model.sent_one(shard, record).map(|sent| sent.at) else { continue };
        let lost = facts.policy != Fsync::OnCommit && facts.losses.iter().any(|loss| *loss > sent);
        if sent > agreed && !lost && !held.contains(&record) {
            return Err(format!("{shard:?}: {record:?} was given to somebody at {at} and is not there"));
        }
    }
    Ok(())
}
