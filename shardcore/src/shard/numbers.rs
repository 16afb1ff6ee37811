//! Numbered publishes of one shard: what is known of their producers, and how that comes out of the log. Sans-io.
//! Scope: one per shard. Owns: the producers' state, and the reading of it.
//! Invariants: no numbered publish is decided before everything the log held when the shard was opened has been read;
//! a second copy of a publish is answered when the first one is settled, and never appended; where the log is damaged,
//! nothing is appended for a producer that may have batches there.
//! Not here: the rules of the numbers (`projection::producer`).

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use felix_logstore::record::Batch;
use felix_runtime::clock::Tick;
use felix_runtime::planted::{self, Defect};
use felix_wire::client::Records;
use felix_wire::id::{CoreId, Offset, ProducerId, Sequence};

use super::claimer::Claimer;
use super::mail::{NotWritten, NumberRefusal};
use crate::projection::producer::{Digest, Numbered, OwnIds, ProducerCore, Verdict};

/// How far the producers of a shard are known.
#[derive(Debug)]
enum State {
    /// Nobody has published with a number yet.
    Unread,
    /// Being read from the log, from `at` up to `until`.
    Reading {
        producers: Box<ProducerCore>,
        at: Offset,
        until: Offset,
    },
    Known(Box<ProducerCore>),
    /// The log could not be read; it is tried again from this moment on.
    Lost {
        again: Tick,
    },
}

/// A log that could not be read is not read again before.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Whose batches may be among damaged ones.
#[derive(Debug)]
struct Damage {
    /// Every damaged range ends here or before.
    end: Offset,
    /// What is below was in the log before this process began.
    found_end: Offset,
    own_ids: OwnIds,
}

impl Damage {
    /// Whether everything that counts of the producer is known: its newest batch lies behind the damage, or there is none
    /// and its id is younger than what is damaged.
    fn spares(&self, producers: &ProducerCore, producer: ProducerId) -> bool {
        match producers.newest_of(producer) {
            Some(newest) => newest >= self.end,
            None => self.end <= self.found_end && self.own_ids.has(producer),
        }
    }
}

/// A second copy whose first one is on its way.
#[derive(Debug)]
struct Waiter {
    to: CoreId,
    claimer: Claimer,
    base: Offset,
    end: Offset,
    since: Tick,
}

/// What a number is of.
#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    Records(&'a Records),
    /// The record of a commit.
    Commit(&'a Bytes),
}

impl Content<'_> {
    fn count(self) -> Option<NonZeroU32> {
        match self {
            Content::Records(records) => NonZeroU32::new(records.count()),
            Content::Commit(_) => Some(NonZeroU32::MIN),
        }
    }

    fn digest(self) -> Digest {
        match self {
            Content::Records(records) => Digest::of(records),
            Content::Commit(record) => Digest::of([record]),
        }
    }
}

/// A numbered write.
#[derive(Debug, Clone, Copy)]
pub struct Sent<'a> {
    pub claimer: Claimer,
    pub producer: Option<(ProducerId, Sequence)>,
    pub content: Content<'a>,
}

/// What to do with a publish.
#[derive(Debug)]
pub enum Numbering {
    /// Append it; it is this batch of its producer.
    Append(Numbered),
    /// The log has to be read first, from here up to there.
    Read(Offset, Offset),
    /// It is being read.
    Wait,
    /// It is there, from this offset on.
    Settled(Offset),
    /// It is answered with its first copy.
    WithFirst,
    Refused(NotWritten),
}

/// See the module.
#[derive(Debug)]
pub struct Numbers {
    state: State,
    /// Of a shard with a log; its end is 0 when nothing is damaged.
    damage: Option<Damage>,
    waiters: Vec<Waiter>,
}

impl Numbers {
    /// Of a shard in memory, where nobody can have published before.
    pub fn in_memory() -> Numbers {
        Numbers { state: State::Known(Box::new(ProducerCore::new())), damage: None, waiters: Vec::new() }
    }

    /// Of a shard with a log, which is read when it is needed. What is below `found_end` was in it before this process gave
    /// its first id.
    pub fn in_log(found_end: Offset, own_ids: OwnIds) -> Numbers {
        if planted::is(Defect::ProducersForgotten) {
            return Numbers::in_memory();
        }
        let damage = Damage { end: Offset(0), found_end, own_ids };
        Numbers { state: State::Unread, damage: Some(damage), waiters: Vec::new() }
    }

    /// Decides a numbered publish of core `from`. `held`: what the shard holds, from its start to its settled end.
    pub fn check(
        &mut self,
        (from, now): (CoreId, Tick),
        job: Sent<'_>,
        (start, settled_end): (Offset, Offset),
    ) -> Numbering {
        let (Some((producer, sequence)), Some(count)) = (job.producer, job.content.count()) else {
            return Numbering::Refused(NotWritten::Number(NumberRefusal::Unknown));
        };
        let producers = match &self.state {
            State::Known(producers) => producers,
            State::Reading { .. } => return Numbering::Wait,
            State::Lost { again } if now < *again => return Numbering::Refused(NotWritten::Unreadable),
            State::Unread | State::Lost { .. } if start == settled_end => {
                self.state = State::Known(Box::new(ProducerCore::new()));
                return self.check((from, now), job, (start, settled_end));
            }
            State::Unread | State::Lost { .. } => {
                let producers = Box::new(ProducerCore::new());
                self.state = State::Reading { producers, at: start, until: settled_end };
                return Numbering::Read(start, settled_end);
            }
        };
        let sent = Numbered { producer, sequence, count, digest: job.content.digest() };
        let verdict = producers.check(&sent, settled_end);
        // What the shard has can be answered, and so can what is older than that.
        let open = matches!(verdict, Verdict::Append | Verdict::Gap { .. } | Verdict::Unknown);
        if let Some(damage) = self.damage.as_ref().filter(|damage| open && damage.end > Offset(0))
            && !damage.spares(producers, producer)
        {
            return Numbering::Refused(NotWritten::Damaged { next: damage.end });
        }
        match verdict {
            Verdict::Append => Numbering::Append(sent),
            Verdict::Duplicate { base, settled: true, .. } => Numbering::Settled(base),
            Verdict::Duplicate { base, end, .. } => {
                self.waiters.push(Waiter { to: from, claimer: job.claimer, base, end, since: now });
                Numbering::WithFirst
            }
            Verdict::Gap { expected } => {
                Numbering::Refused(NotWritten::Number(NumberRefusal::Gap { expected }))
            }
            Verdict::Expired => Numbering::Refused(NotWritten::Number(NumberRefusal::Expired)),
            Verdict::Reused => Numbering::Refused(NotWritten::Number(NumberRefusal::Reused)),
            Verdict::Unknown => Numbering::Refused(NotWritten::Number(NumberRefusal::Unknown)),
        }
    }

    /// Offsets from `base` on were claimed for the batch.
    pub fn claimed(&mut self, sent: &Numbered, base: Offset) {
        if let State::Known(producers) = &mut self.state {
            producers.claimed(sent, base);
        }
    }

    /// A page of the log, which ends at `next`. Gives where the next one begins and the reading ends; none when the
    /// producers are known.
    pub fn take_page(&mut self, batches: &[Batch], next: Offset) -> Option<(Offset, Offset)> {
        let State::Reading { producers, at, until } = &mut self.state else { return None };
        for batch in batches.iter().filter(|batch| batch.head().base < *until) {
            if let Some((numbered, base)) = Numbered::from_log(batch) {
                producers.replay(&numbered, base);
            }
        }
        *at = (*at).max(next);
        if *at < *until {
            return Some((*at, *until));
        }
        let known = std::mem::take(producers);
        self.state = State::Known(known);
        None
    }

    /// Retention has removed the beginning of what is being read; the reading goes on at `start`. None when nothing is
    /// being read.
    pub fn lost_until(&mut self, start: Offset) -> Option<(Offset, Offset)> {
        self.take_page(&[], start)
    }

    /// What is being read is damaged up to `next`; the reading goes on there. None when nothing is being read.
    pub fn damaged_until(&mut self, next: Offset) -> Option<(Offset, Offset)> {
        if let (State::Reading { .. }, Some(damage)) = (&self.state, &mut self.damage) {
            damage.end = damage.end.max(next);
        }
        self.take_page(&[], next)
    }

    /// The log could not be read: numbered publishes are refused, others go on. After a while it is tried again.
    pub fn reading_failed(&mut self, now: Tick) {
        if matches!(self.state, State::Reading { .. }) {
            self.state = State::Lost { again: now + READ_AGAIN };
        }
    }

    /// Nothing below `start` is held any more.
    pub fn forget_below(&mut self, start: Offset) {
        if let Some(damage) = self.damage.as_mut().filter(|damage| damage.end <= start) {
            damage.end = Offset(0);
        }
        if let State::Known(producers) = &mut self.state {
            producers.forget_below(start);
        }
    }

    /// The second copies whose first one lies below `end`: whom to answer, with which offset.
    pub fn settled(&mut self, end: Offset) -> Vec<(CoreId, Claimer, Offset)> {
        if self.waiters.is_empty() {
            return Vec::new();
        }
        let settled = self.waiters.extract_if(.., |waiter| waiter.end <= end);
        settled.map(|waiter| (waiter.to, waiter.claimer, waiter.base)).collect()
    }

    /// The second copies that have waited for at least `wait`: their outcome is not known yet.
    pub fn give_up(&mut self, now: Tick, wait: Duration) -> impl Iterator<Item = (CoreId, Claimer)> {
        let late = self.waiters.extract_if(.., move |waiter| waiter.since + wait <= now);
        late.map(|waiter| (waiter.to, waiter.claimer))
    }

    /// All second copies that wait: nobody can say any more whether the first one is there.
    pub fn stop(&mut self) -> impl Iterator<Item = (CoreId, Claimer)> + use<> {
        std::mem::take(&mut self.waiters).into_iter().map(|waiter| (waiter.to, waiter.claimer))
    }
}

#[cfg(test)]
mod tests {
    use felix_wire::client::RecordsBuilder;

    use super::*;
    use crate::shard::mail::JobToken;

    #[test]
    fn a_log_that_could_not_be_read_is_read_again_after_a_while() {
        let mut records = RecordsBuilder::with_capacity(16);
        records.push(b"a");
        let producer = Some((ProducerId(7), Sequence(0)));
        let records = records.finish();
        let claimer = Claimer::Publish(JobToken(1));
        let job = Sent { claimer, content: Content::Records(&records), producer };
        let held = (Offset(0), Offset(9));
        let mut numbers = Numbers::in_log(Offset(9), OwnIds::new(5, 1));
        let ask = |numbers: &mut Numbers, at| numbers.check((CoreId(0), at), job, held);
        assert!(matches!(ask(&mut numbers, Tick::ZERO), Numbering::Read(Offset(0), Offset(9))));
        numbers.reading_failed(Tick::ZERO);
        let refused = ask(&mut numbers, Tick::ZERO + READ_AGAIN / 2);
        assert!(matches!(refused, Numbering::Refused(NotWritten::Unreadable)), "{refused:?}");
        let again = ask(&mut numbers, Tick::ZERO + READ_AGAIN);
        assert!(matches!(again, Numbering::Read(Offset(0), Offset(9))), "{again:?}");
    }
}
