//! What the consumers of one group of one shard were handed and what they said to it (reliability I15, I16). Scope: one per
//! group.
//! Checked with each poll: a record was published, and is the same for everybody; what was acknowledged does not come again,
//! unless the group was moved back; a record that somebody holds is nobody else's until its time is over, it is given back,
//! its member takes back what it held, or the group is moved; attempts only rise, and never above what there may be. Checked
//! at the end: every record was handed out, and again when the group was moved before it, or is a dead letter that had all its
//! attempts; nothing is both acknowledged and a dead letter.
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
    /// Under this name.
    pub member: Option<u32>,
}

/// Something that was asked of the whole group. Between `call` and `ret` it happened, or at any time behind `call`.
#[derive(Clone, Copy, Debug)]
struct Asked {
    call: Tick,
    ret: Option<Tick>,
}

impl Asked {
    fn at(call: Tick) -> Asked {
        Asked { call, ret: None }
    }

    /// Whether it may have happened behind `from` and before `to`.
    fn may_be_within(&self, from: Tick, to: Tick) -> bool {
        self.call <= to && self.ret.is_none_or(|ret| ret >= from)
    }
}

/// The group is to begin at `to`.
#[derive(Clone, Copy, Debug)]
struct Seek {
    to: u64,
    asked: Asked,
    refused: bool,
}

/// What happens to the claims of a group beside polls and acks.
#[derive(Debug, Default)]
struct Moves {
    seeks: Vec<Seek>,
    /// By the member that takes back what it holds.
    reclaims: Vec<(u32, Asked)>,
}

impl Moves {
    fn seeks(&self) -> impl Iterator<Item = &Seek> {
        self.seeks.iter().filter(|seek| !seek.refused)
    }

    /// Whether what `before` claimed may not be held any more when `now` is handed out, because of one of these.
    fn may_void(&self, before: &Handed, now: &Handed) -> bool {
        let within = |asked: &Asked| {
            asked.may_be_within(before.call, now.ret) || asked.may_be_within(now.call, before.ret)
        };
        let mut reclaims = self.reclaims.iter();
        self.seeks().any(|seek| within(&seek.asked))
            || reclaims.any(|(member, asked)| before.member == Some(*member) && within(asked))
    }

    /// Whether the record at `offset` may be unfinished again though it was finished.
    fn may_bring_back(&self, offset: u64, first: Option<&Handed>, until: Tick) -> bool {
        let from = first.map_or(Tick::ZERO, |first| first.call);
        self.seeks().any(|seek| seek.to <= offset && seek.asked.may_be_within(from, until))
    }

    fn may_skip(&self, offset: u64) -> bool {
        self.seeks().any(|seek| seek.to > offset)
    }

    /// The last time from which on the record at `offset` was certainly to be handed out once more.
    fn due_again(&self, offset: u64) -> Option<Tick> {
        let back = self.seeks().filter(|seek| seek.to <= offset && seek.asked.ret.is_some());
        let last = back.map(|seek| seek.asked.call).max()?;
        let skipped =
            self.seeks().any(|seek| seek.to > offset && seek.asked.ret.is_none_or(|ret| ret >= last));
        (!skipped).then_some(last)
    }
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
    fn fault(&self, offset: u64, now: &Handed, (rules, moves): (&Rules, &Moves)) -> Option<&'static str> {
        if self.handed.iter().any(|before| before.record != now.record) {
            return Some("it is two records");
        }
        let again = moves.may_bring_back(offset, self.handed.first(), now.ret);
        if self.acked.is_some_and(|at| at < now.call) && !rules.lossy && !again {
            return Some("it was finished");
        }
        if now.attempts == 0 || now.attempts > rules.attempts_max {
            return Some("there are not so many attempts");
        }
        let certain = |before: &&Handed| !rules.unsteady && before.call.min(now.call) > rules.void_until;
        for before in self.handed.iter().filter(certain).filter(|before| !moves.may_void(before, now)) {
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
    moves: Moves,
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
        if let Some(fault) = item.fault(offset, &now, (rules, &self.moves)) {
            let moves = &self.moves;
            return Err(format!(
                "offset {offset} was handed out: {now:?}, after {item:?}, {moves:?}: {fault}"
            ));
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

    /// The group is about to be moved. Gives the number of that.
    pub fn seeking(&mut self, to: u64, now: Tick) -> usize {
        self.moves.seeks.push(Seek { to, asked: Asked::at(now), refused: false });
        self.moves.seeks.len() - 1
    }

    /// It was.
    ///
    /// # Errors
    /// To somewhere else.
    pub fn sought(&mut self, number: usize, (to, moved): (u64, bool), now: Tick) -> Result<(), String> {
        let Some(seek) = self.moves.seeks.get_mut(number) else { return Ok(()) };
        seek.asked.ret = Some(now);
        if moved && to == seek.to { Ok(()) } else { Err(format!("moved to {to} ({moved}): {seek:?}")) }
    }

    /// It was not.
    pub fn not_sought(&mut self, number: usize) {
        if let Some(seek) = self.moves.seeks.get_mut(number) {
            seek.refused = true;
        }
    }

    /// A member is about to take back what is held under its name. Gives the number of that.
    pub fn reclaiming(&mut self, member: u32, now: Tick) -> usize {
        self.moves.reclaims.push((member, Asked::at(now)));
        self.moves.reclaims.len() - 1
    }

    /// It has.
    pub fn reclaimed(&mut self, number: usize, now: Tick) {
        if let Some((_, asked)) = self.moves.reclaims.get_mut(number) {
            asked.ret = Some(now);
        }
    }

    /// How often it was moved, and how often a member took back what it held.
    pub fn moves(&self) -> (u64, u64) {
        (self.moves.seeks().count() as u64, self.moves.reclaims.len() as u64)
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
            let back = self.moves.may_bring_back(*offset, handed.first(), Tick::MAX);
            let acked = item.is_some_and(|item| item.acked_held) && !back;
            let due_again = self.moves.due_again(*offset).filter(|_| !rules.lossy && !dead.contains(offset));
            if let Some(at) = due_again.filter(|at| handed.iter().all(|handed| handed.ret < *at)) {
                return Err(format!(
                    "offset {offset} was not handed out since the group was moved at {at}: {item:?}"
                ));
            }
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
                false if self.moves.may_skip(*offset) => {}
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
        Handed { record, attempts, call: Tick(call), ret: Tick(ret), holds, member: None }
    }

    #[test]
    fn a_member_takes_back_what_it_held_itself_and_a_move_frees_everything() {
        let twice = |member: Option<u32>, moved: bool| {
            let mut queue = QueueHistory::default();
            queue.handed(4, Handed { member, ..handed(1, S, S + 1) }, &RULES).unwrap();
            let reclaim = queue.reclaiming(7, Tick(2 * S));
            queue.reclaimed(reclaim, Tick(2 * S + 1));
            if moved {
                let seek = queue.seeking(0, Tick(2 * S));
                queue.sought(seek, (0, true), Tick(2 * S + 1)).unwrap();
            }
            queue.handed(4, handed(2, 3 * S, 3 * S + 1), &RULES)
        };
        assert_eq!((twice(Some(7), false), twice(None, true)), (Ok(()), Ok(())));
        assert!(twice(Some(8), false).is_err(), "of another member");
        assert!(twice(None, false).is_err(), "without a name");
        let mut queue = QueueHistory::default();
        let seek = queue.seeking(9, Tick(S));
        assert!(queue.sought(seek, (8, true), Tick(S + 1)).is_err(), "elsewhere");
    }

    #[test]
    fn what_was_finished_is_handed_out_again_when_the_group_is_moved_back_and_only_then() {
        let records = BTreeMap::from([(4, RecordId { lane: 1, seq: 7 })]);
        let run = |seeks: &[(u64, u64)], again: Option<u64>| {
            let mut queue = QueueHistory { dead: Some(BTreeSet::new()), ..QueueHistory::default() };
            queue.handed(4, handed(1, 10 * S, 10 * S + 1), &RULES).unwrap();
            queue.acking(4);
            queue.acked(4, Tick(11 * S));
            for (to, at) in seeks {
                let seek = queue.seeking(*to, Tick(at * S));
                queue.sought(seek, (*to, true), Tick(at * S + 1)).unwrap();
            }
            if let Some(at) = again {
                queue.handed(4, handed(1, at * S, at * S + 1), &RULES)?;
            }
            queue.check(&records, &RULES)
        };
        assert!(run(&[], Some(20)).is_err(), "nobody moved it");
        assert!(run(&[(0, 5)], Some(20)).is_err(), "it was moved before");
        assert!(run(&[(5, 15)], Some(20)).is_err(), "it was moved behind it");
        assert_eq!((run(&[(4, 15)], Some(20)), run(&[], None)), (Ok(()), Ok(())));
        assert!(run(&[(4, 15)], None).is_err(), "it was not handed out again");
        assert_eq!(run(&[(4, 15), (5, 16)], None), Ok(()), "it was passed over then");
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
