//! What the consumers of one group of one shard were handed and what they said to it (reliability I15). Scope: one per group.
//! Checked with each poll: a record was published, and is the same for everybody; what was acknowledged does not come again;
//! a record that somebody holds is nobody else's until its time is over or it is given back; attempts only rise, and never
//! above what there may be. Checked at the end: every record was handed out, or is a dead letter that had all its attempts;
//! nothing is both acknowledged and a dead letter.
//! Claims are in the memory of the broker: when its process ends, or a shard moves, they are void, and so is their number.
//! Not here: what is polled and acknowledged (`asks`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use felix_runtime::clock::Tick;

use crate::sim::check::RecordId;

/// A record that a poll was answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    pub record: RecordId,
    pub attempts: u32,
    /// When the poll was asked and answered: it was claimed in between, for so long.
    pub call: Tick,
    pub ret: Tick,
    pub holds: Duration,
}

/// One record of the group, by its offset.
#[derive(Debug, Default)]
struct Item {
    handed: Vec<Handed>,
    /// When the first answer came that it is finished.
    acked: Option<Tick>,
    /// It was held when that came, so it was finished by it. One that had become a dead letter is finished too.
    acked_held: bool,
    /// It was asked to be finished.
    maybe_acked: bool,
    /// When it was first asked to be given back.
    nacked: Option<Tick>,
}

/// What is true of all groups while they are asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub attempts_max: u32,
    /// Claims of polls that were asked before are void, and their attempts may not be counted.
    pub void_until: Tick,
    /// Power loss may have taken what was acknowledged.
    pub lossy: bool,
    /// Disks fail: groups may begin again from their log at any time.
    pub unsteady: bool,
    /// Records may become dead letters because they cannot be read.
    pub unreadable: bool,
}

impl Item {
    /// What is wrong with handing it out so.
    fn fault(&self, now: &Handed, rules: &Rules) -> Option<&'static str> {
        if self.handed.iter().any(|before| before.record != now.record) {
            return Some("it is two records");
        }
        if self.acked.is_some_and(|at| at < now.call) && !rules.lossy {
            return Some("it was finished");
        }
        if now.attempts == 0 || now.attempts > rules.attempts_max {
            return Some("there are not so many attempts");
        }
        let certain = |before: &&Handed| !rules.unsteady && before.call.min(now.call) > rules.void_until;
        for before in self.handed.iter().filter(certain) {
            let given_back = self.nacked.is_some_and(|at| at < now.ret.max(before.ret));
            let apart = now.ret >= before.call + before.holds || before.ret >= now.call + now.holds;
            if !apart && !given_back {
                return Some("two hold it at once");
            }
            if before.ret < now.call && before.attempts >= now.attempts {
                return Some("attempts do not rise");
            }
        }
        None
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct QueueHistory {
    items: BTreeMap<u64, Item>,
    /// Polls that may have claimed records that nobody was given.
    pub lost_polls: u64,
    /// The dead letters, when all is over.
    pub dead: Option<BTreeSet<u64>>,
}

impl QueueHistory {
    /// A poll was answered with a record at `offset`.
    ///
    /// # Errors
    /// What it breaks.
    pub fn handed(&mut self, offset: u64, now: Handed, rules: &Rules) -> Result<(), String> {
        let item = self.items.entry(offset).or_default();
        if let Some(fault) = item.fault(&now, rules) {
            return Err(format!("offset {offset} was handed out: {now:?}, after {item:?}: {fault}"));
        }
        item.handed.push(now);
        Ok(())
    }

    /// A record is about to be acknowledged.
    pub fn acking(&mut self, offset: u64) {
        self.items.entry(offset).or_default().maybe_acked = true;
    }

    /// It was answered that it is finished.
    pub fn acked(&mut self, offset: u64, now: Tick) {
        let item = self.items.entry(offset).or_default();
        item.acked.get_or_insert(now);
        let last = item.handed.iter().max_by_key(|handed| handed.attempts);
        let held = last.is_some_and(|last| now < last.call + last.holds) && item.nacked.is_none();
        item.acked_held |= held;
    }

    /// A record is about to be given back.
    pub fn nacking(&mut self, offset: u64, now: Tick) {
        self.items.entry(offset).or_default().nacked.get_or_insert(now);
    }

    /// So many deliveries, and so many that were acknowledged.
    pub fn counts(&self) -> (u64, u64) {
        let handed = self.items.values().map(|item| item.handed.len() as u64).sum();
        (handed, self.items.values().filter(|item| item.acked.is_some()).count() as u64)
    }

    /// Looks at everything when the group says that it has finished all there is; `records` is what the log has.
    ///
    /// # Errors
    /// What is not as it must be.
    pub fn check(&self, records: &BTreeMap<u64, RecordId>, rules: &Rules) -> Result<(), String> {
        let Some(dead) = &self.dead else { return Err("nobody has asked for its dead letters".to_owned()) };
        for (offset, record) in records {
            let item = self.items.get(offset);
            let handed = item.map_or(&[][..], |item| &item.handed[..]);
            if let Some(other) = handed.iter().find(|handed| handed.record != *record) {
                return Err(format!("offset {offset} is {record:?} and was handed out as {other:?}"));
            }
            let acked = item.is_some_and(|item| item.acked_held);
            match dead.contains(offset) {
                true if acked && !rules.lossy => {
                    return Err(format!("offset {offset} was acknowledged and is a dead letter: {item:?}"));
                }
                true => {
                    let most = handed.iter().map(|handed| handed.attempts).max().unwrap_or(0);
                    if most < rules.attempts_max && self.lost_polls == 0 && !rules.unreadable {
                        return Err(format!("offset {offset} is a dead letter too early: {item:?}"));
                    }
                }
                false if handed.is_empty() => {
                    return Err(format!("offset {offset}, {record:?}, was never handed out"));
                }
                false if !item.is_some_and(|item| item.maybe_acked) => {
                    return Err(format!(
                        "offset {offset} is finished and nobody has asked for that: {item:?}"
                    ));
                }
                false => {}
            }
        }
        if let Some(offset) = dead.iter().find(|offset| !records.contains_key(offset))
            && !rules.lossy
        {
            return Err(format!("dead letter {offset} is no record"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const RULES: Rules =
        Rules { attempts_max: 3, void_until: Tick::ZERO, lossy: false, unsteady: false, unreadable: false };

    fn handed(attempts: u32, call: u64, ret: u64) -> Handed {
        let (record, holds) = (RecordId { lane: 1, seq: 7 }, Duration::from_secs(10));
        Handed { record, attempts, call: Tick(call), ret: Tick(ret), holds }
    }

    #[test]
    fn a_record_is_held_by_one_until_its_time_is_over_or_it_is_given_back() {
        let twice = |attempts, call, nacked: bool| {
            let mut queue = QueueHistory::default();
            queue.handed(4, handed(1, S, S + 1), &RULES).unwrap();
            if nacked {
                queue.nacking(4, Tick(S + 2));
            }
            queue.handed(4, handed(attempts, call, call + 1), &RULES)
        };
        assert!(twice(2, 2 * S, false).is_err(), "too early");
        assert_eq!((twice(2, 2 * S, true), twice(2, 11 * S, false)), (Ok(()), Ok(())));
        assert!(twice(1, 11 * S, false).is_err(), "the same attempt");
        assert!(twice(4, 11 * S, false).is_err(), "too many attempts");
    }

    #[test]
    fn claims_are_void_when_the_process_ends_and_what_was_acknowledged_is_not() {
        let rules = Rules { void_until: Tick(2 * S), ..RULES };
        let mut queue = QueueHistory::default();
        queue.handed(4, handed(1, S, S + 1), &RULES).unwrap();
        queue.handed(4, handed(1, 3 * S, 3 * S + 1), &rules).unwrap();
        queue.acking(4);
        queue.acked(4, Tick(3 * S + 2));
        assert!(
            queue
                .handed(4, handed(1, 5 * S, 5 * S + 1), &Rules { void_until: Tick(4 * S), ..RULES })
                .is_err()
        );
    }

    #[test]
    fn at_the_end_every_record_was_handed_out_or_is_a_dead_letter_for_a_reason() {
        let records = BTreeMap::from([(4, RecordId { lane: 1, seq: 7 })]);
        let check = |fill: &dyn Fn(&mut QueueHistory), dead: &[u64]| {
            let dead = Some(dead.iter().copied().collect());
            let mut queue = QueueHistory { dead, ..QueueHistory::default() };
            fill(&mut queue);
            queue.check(&records, &RULES)
        };
        assert!(check(&|_| {}, &[]).is_err(), "never handed out");
        let once = |queue: &mut QueueHistory| queue.handed(4, handed(1, S, S + 1), &RULES).unwrap();
        assert!(check(&once, &[]).is_err(), "never acknowledged");
        assert!(check(&once, &[4]).is_err(), "a dead letter after one attempt");
        let acked = |queue: &mut QueueHistory| {
            once(queue);
            queue.acking(4);
            queue.acked(4, Tick(2 * S));
        };
        assert_eq!(check(&acked, &[]), Ok(()));
        assert!(check(&acked, &[4]).is_err(), "acknowledged and dead");
        let often = |queue: &mut QueueHistory| {
            let hand = |queue: &mut QueueHistory, n: u64| {
                queue.handed(4, handed(n as u32, n * 20 * S, n * 20 * S + 1), &RULES)
            };
            (1..=3).for_each(|n| hand(queue, n).unwrap());
        };
        assert_eq!(check(&often, &[4]), Ok(()));
    }
}
