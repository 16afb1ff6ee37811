//! The queue projection: the consumer groups of one shard (semantics 5, client-protocol 14). Sans-io.
//! Scope: one [`GroupsCore`] per shard of a durable stream, on the core that owns it; it has a log of its own beside the
//! shard's.
//! Owns: the groups; which of them wait for a time or for records; how far compaction of their log is.
//! Invariants: what a group's log says makes its durable state again (`tests.rs`); a change is in the log before the answer
//! that tells of it; claims are in memory only, so at worst a record is handed out again.
//! Not here: reading the records that are handed out (`shard`), members' names (`session`).

pub mod claims;
mod compact;
pub mod durable;
mod one;
pub mod ranges;
pub mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use felix_logstore::record::{Batch, BatchKind};
use felix_runtime::clock::Tick;
use felix_runtime::planted::{self, Defect};
use felix_wire::id::{LeaseId, Offset};
use felix_wire::limits::{CONSUMER_LEN_MAX, GROUP_POLL_RECORDS_MAX};
use slab::Slab;

use crate::projection::record::BadRecord;
pub use claims::{ConnectionId, PollId};
use compact::Compacting;
pub use compact::GroupStep;
use durable::Durable;
use one::{Extent, Group, Outcome};
use record::{Change, NAME_BYTES_MAX};

/// Groups of one shard.
pub const GROUPS_MAX: usize = 1_024;
/// Polls of one group that wait or are being read for.
pub const POLLS_MAX: usize = 4_096;
/// Ranges of dead letters of one group; records that would need more are kept unfinished.
pub const DEAD_RANGES_MAX: usize = 65_536;
/// Connections and members of one group that are remembered to have reclaimed; beyond it nobody reclaims.
pub const RECLAIMS_MAX: usize = 16_384;
/// Claims that end in one step.
const LAPSES_MAX: usize = 2_048;
/// A group that nobody uses so long keeps only what its log says.
const IDLE: Duration = Duration::from_secs(600);

/// How the groups of a shard behave.
#[derive(Debug, Clone, Copy)]
pub struct GroupSettings {
    /// How long a claim holds when the poll does not say.
    pub visibility: Duration,
    /// The longest claim, extension or delay.
    pub visibility_max: Duration,
    /// Times a record is handed out before it is a dead letter; at least 1.
    pub attempts_max: u32,
    /// Records of one group that are handed out, or are unfinished when new ones are wanted.
    pub in_flight_max: usize,
}

impl Default for GroupSettings {
    fn default() -> GroupSettings {
        GroupSettings {
            visibility: Duration::from_secs(30),
            visibility_max: Duration::from_secs(12 * 3_600),
            attempts_max: 5,
            in_flight_max: 10_000,
        }
    }
}

/// A request for records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poll {
    pub id: PollId,
    pub connection: ConnectionId,
    /// At least 1; more than [`GROUP_POLL_RECORDS_MAX`] are as many.
    pub max_records: u32,
    /// Zero is the group's own.
    pub visibility: Duration,
    /// Until when it waits for a first record; none answers at once.
    pub wait_until: Option<Tick>,
    /// Who asks: principal and name, as one string of bytes.
    pub member: Option<Box<[u8]>>,
    /// Give back what this member holds from other connections.
    pub reclaim: bool,
    /// The lease of the shard under which it asks.
    pub lease: Option<LeaseId>,
}

/// Records to be read for a poll, in the order in which they are to be answered: as many as fit its answer, at least one.
/// Say [`GroupsCore::fetched`] then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    pub poll: PollId,
    pub offsets: Vec<Offset>,
}

/// A record that is handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handed {
    pub offset: Offset,
    /// Which time it is, from 1.
    pub attempts: u32,
    /// Offsets right before it that have no record.
    pub skipped_before: u64,
}

/// What the groups want of the shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupOutput {
    Fetch(Fetch),
    /// Answer the poll without records.
    Empty(PollId),
}

/// What a group looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupInfo {
    /// Everything below is finished; none for a group without a position.
    pub committed: Option<Offset>,
    pub tail: Offset,
    pub in_flight: u64,
    pub owed: u64,
    pub dead_letters: u64,
}

/// Where a group is to be put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    Earliest,
    Latest,
    Offset(Offset),
}

/// Why a request is refused. Nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GroupRefused {
    #[error("a group has a name of 1 to {NAME_BYTES_MAX} bytes without control characters")]
    GroupName,
    #[error("a member has a name of 1 to {CONSUMER_LEN_MAX} bytes")]
    MemberName,
    #[error("a poll asks for at least one record")]
    NoRecords,
    #[error("an ack is of 1 to {GROUP_POLL_RECORDS_MAX} records")]
    AckCount,
    #[error("the shard has {GROUPS_MAX} groups")]
    TooManyGroups,
    #[error("the group has {POLLS_MAX} polls")]
    TooManyPolls,
    #[error("the record was never handed out")]
    NeverHandedOut,
    #[error("the claim is not known any more")]
    StaleClaim,
    #[error("a later lease of the shard has taken its place")]
    StaleLease,
    #[error("the record is no dead letter of the group")]
    NotListed,
    #[error("the list of dead letters is full")]
    TooManyDeadLetters,
    #[error("the group has too many unfinished records")]
    TooManyUnfinished,
    #[error("the shard ends at {tail}")]
    InFuture { tail: Offset },
    #[error("the shard begins at {start}")]
    TooOld { start: Offset },
}

/// Checks the name of a group.
///
/// # Errors
/// `GroupName`.
pub fn check_group_name(name: &str) -> Result<(), GroupRefused> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
    if fits { Ok(()) } else { Err(GroupRefused::GroupName) }
}

/// Checks the name that a member gives itself.
///
/// # Errors
/// `MemberName`.
pub fn check_member_name(name: &str) -> Result<(), GroupRefused> {
    if (1..=CONSUMER_LEN_MAX).contains(&name.len()) { Ok(()) } else { Err(GroupRefused::MemberName) }
}

/// Changes of one group that are to be appended to the log of groups: an answer that tells of them, or of what they led
/// to, waits until they are settled.
#[must_use = "changes that are not claimed are forgotten by the next start"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    group: Box<str>,
    changes: Vec<Change>,
}

impl Draft {
    /// Appends the payload of its record to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        record::encode(&self.group, &self.changes, out);
    }
}

/// See the module.
///
/// Memory: a group has at most twice `in_flight_max` unfinished records of about 200 bytes, [`DEAD_RANGES_MAX`] ranges of
/// dead letters, [`POLLS_MAX`] polls and [`RECLAIMS_MAX`] names; what is finished out of order takes a range between
/// two unfinished records.
#[derive(Debug)]
pub struct GroupsCore {
    settings: GroupSettings,
    names: BTreeMap<Box<str>, usize>,
    groups: Slab<(Box<str>, Group)>,
    /// Of each group that has one.
    deadlines: BTreeSet<(Tick, usize)>,
    deadline_of: BTreeMap<usize, Tick>,
    /// Groups with polls that wait.
    waiting: BTreeSet<usize>,
    /// Groups with changes in no draft.
    changed: BTreeSet<usize>,
    polls: BTreeMap<PollId, usize>,
    extent: Extent,
    found_end: u64,
    claimed_end: Offset,
    compacting: Compacting,
    idle_next: usize,
}

impl GroupsCore {
    /// Groups of a shard whose records lie between `start` and `end`; what lies below `end` was there before this process
    /// began.
    pub fn new(settings: GroupSettings, start: Offset, end: Offset) -> GroupsCore {
        GroupsCore {
            settings,
            names: BTreeMap::new(),
            groups: Slab::new(),
            deadlines: BTreeSet::new(),
            deadline_of: BTreeMap::new(),
            waiting: BTreeSet::new(),
            changed: BTreeSet::new(),
            polls: BTreeMap::new(),
            extent: Extent { start: start.0, end: end.0 },
            found_end: end.0,
            claimed_end: Offset(0),
            compacting: Compacting::default(),
            idle_next: 0,
        }
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// One past the last record that can be read.
    pub fn records_end(&self) -> Offset {
        Offset(self.extent.end)
    }

    /// What the log says of a group.
    pub fn durable(&self, group: &str) -> Option<&Durable> {
        self.names.get(group).and_then(|at| self.groups.get(*at)).map(|(_, group)| &group.durable)
    }

    /// Takes what a batch of the groups' log says, in offset order, before anything else happens; [`Self::replayed`] ends
    /// that.
    ///
    /// # Errors
    /// The first record that cannot be read; what is before it was taken.
    pub fn replay(&mut self, batch: &Batch) -> Result<(), BadRecord> {
        if batch.head().kind == BatchKind::Data {
            for record in batch.records() {
                let (name, changes) = record::decode(&record.payload)
                    .map_err(|fault| BadRecord { offset: record.offset, fault })?;
                self.replay_changes(name, &changes);
            }
        }
        self.claimed_end = self.claimed_end.max(batch.head().end());
        Ok(())
    }

    fn replay_changes(&mut self, name: &str, changes: &[Change]) {
        let at = match self.names.get(name) {
            Some(at) => *at,
            None => self.add(name, Durable::default()),
        };
        let Some((_, group)) = self.groups.get_mut(at) else { return };
        let forgotten = |change: &&Change| match change {
            Change::Done { .. } => planted::is(Defect::AckForgotten),
            Change::Position { .. } => planted::is(Defect::SeekForgotten),
            _ => false,
        };
        changes.iter().filter(|change| !forgotten(change)).for_each(|change| group.durable.apply(*change));
    }

    /// The groups' log was read to its end.
    pub fn replayed(&mut self) {
        let all: Vec<usize> = self.groups.iter().map(|(at, _)| at).collect();
        for at in all {
            let Some((_, group)) = self.groups.get_mut(at) else { continue };
            let durable = std::mem::take(&mut group.durable);
            if durable == Durable::default() {
                self.remove(at);
            } else {
                *group = Group::new(durable, self.extent, self.found_end);
            }
        }
    }

    fn add(&mut self, name: &str, durable: Durable) -> usize {
        let group = Group::new(durable, self.extent, self.found_end);
        let at = self.groups.insert((name.into(), group));
        self.names.insert(name.into(), at);
        at
    }

    fn remove(&mut self, at: usize) {
        if let Some((name, _)) = self.groups.try_remove(at) {
            self.names.remove(&name);
        }
        if let Some(deadline) = self.deadline_of.remove(&at) {
            self.deadlines.remove(&(deadline, at));
        }
        self.waiting.remove(&at);
        self.changed.remove(&at);
    }

    /// The group with this name, made if it is not there.
    fn at(&mut self, name: &str) -> Result<usize, GroupRefused> {
        check_group_name(name)?;
        if let Some(at) = self.names.get(name) {
            return Ok(*at);
        }
        if self.groups.len() >= GROUPS_MAX {
            return Err(GroupRefused::TooManyGroups);
        }
        Ok(self.add(name, Durable::default()))
    }

    /// Does something with a group, then notes what it wants next.
    fn with<T>(
        &mut self,
        at: usize,
        now: Tick,
        out: &mut Vec<GroupOutput>,
        work: impl FnOnce(&mut Group, Extent, &GroupSettings, &mut Vec<Outcome>) -> T,
    ) -> T {
        let (extent, settings) = (self.extent, self.settings);
        let (_, group) = &mut self.groups[at];
        let mut outcomes = Vec::new();
        let done = work(group, extent, &settings, &mut outcomes);
        group.pump(now, extent, &settings, &mut outcomes);
        let (deadline, waits, changed) = (group.next_deadline(), group.waiting() > 0, group.has_changes());
        for outcome in outcomes {
            out.push(match outcome {
                Outcome::Fetch(fetch) => GroupOutput::Fetch(fetch),
                Outcome::Empty(poll) => {
                    self.polls.remove(&poll);
                    GroupOutput::Empty(poll)
                }
            });
        }
        if self.deadline_of.get(&at).copied() != deadline {
            if let Some(before) = self.deadline_of.remove(&at) {
                self.deadlines.remove(&(before, at));
            }
            if let Some(deadline) = deadline {
                self.deadline_of.insert(at, deadline);
                self.deadlines.insert((deadline, at));
            }
        }
        note(&mut self.waiting, at, waits);
        note(&mut self.changed, at, changed);
        done
    }

    /// Takes a poll; it is answered by [`Self::fetched`] or [`GroupOutput::Empty`].
    ///
    /// # Errors
    /// What is wrong with it, or `TooManyGroups`, `TooManyPolls`, `StaleLease`.
    pub fn poll(
        &mut self,
        group: &str,
        mut poll: Poll,
        now: Tick,
        out: &mut Vec<GroupOutput>,
    ) -> Result<(), GroupRefused> {
        if poll.max_records == 0 {
            return Err(GroupRefused::NoRecords);
        }
        poll.max_records = poll.max_records.min(GROUP_POLL_RECORDS_MAX);
        let (at, id) = (self.at(group)?, poll.id);
        self.polls.insert(id, at);
        let taken =
            self.with(at, now, out, |group, extent, settings, _| group.poll(poll, (now, extent), settings));
        if taken.is_err() {
            self.polls.remove(&id);
        }
        taken
    }

    /// Whether a lease is as good as any that has polled; none always is.
    ///
    /// # Errors
    /// `StaleLease` when a larger one has polled the group.
    pub fn check_lease(&self, group: &str, lease: Option<LeaseId>) -> Result<(), GroupRefused> {
        let known = self.names.get(group).and_then(|at| self.groups.get(*at));
        known.map_or(Ok(()), |(_, group)| group.check_lease(lease))
    }

    /// What was read for a poll: `taken` go out, in order; `gone` (in offset order) have no record and never will. The
    /// rest is owed. Gives what to answer with; none when the poll waits again or is not wanted any more.
    pub fn fetched(
        &mut self,
        poll: PollId,
        (taken, gone): (&[Offset], &[Offset]),
        now: Tick,
        out: &mut Vec<GroupOutput>,
    ) -> Option<Vec<Handed>> {
        let at = *self.polls.get(&poll)?;
        let handed =
            self.with(at, now, out, |group, extent, _, _| group.fetched(poll, (taken, gone), now, extent));
        if handed.is_some() {
            self.polls.remove(&poll);
        }
        handed
    }

    /// A poll is not wanted any more.
    pub fn cancel(&mut self, poll: PollId, now: Tick, out: &mut Vec<GroupOutput>) {
        if let Some(at) = self.polls.remove(&poll) {
            self.with(at, now, out, |group, _, _, _| group.cancel(poll));
        }
    }

    /// A connection is gone: its polls are not wanted any more. What it holds is held until its time.
    pub fn connection_gone(&mut self, connection: ConnectionId, now: Tick, out: &mut Vec<GroupOutput>) {
        let all: Vec<usize> = self.groups.iter().map(|(at, _)| at).collect();
        for at in all {
            let gone = self.with(at, now, out, |group, _, _, _| group.connection_gone(connection));
            gone.iter().for_each(|poll| {
                self.polls.remove(poll);
            });
        }
    }

    /// The group that a request about a record names.
    fn known(&self, group: &str, offset: Offset) -> Result<usize, GroupRefused> {
        check_group_name(group)?;
        self.names.get(group).copied().ok_or(if offset.0 >= self.extent.end || offset.0 >= self.found_end {
            GroupRefused::NeverHandedOut
        } else {
            GroupRefused::StaleClaim
        })
    }

    /// Finishes `count` records from `offset` on, 1 to [`GROUP_POLL_RECORDS_MAX`]: all of them or none. May be told when all
    /// changes of before and now are settled.
    ///
    /// # Errors
    /// `AckCount`; `NeverHandedOut`, `StaleClaim` of the first that cannot be finished.
    pub fn ack(
        &mut self,
        group: &str,
        (offset, count): (Offset, u32),
        now: Tick,
        out: &mut Vec<GroupOutput>,
    ) -> Result<(), GroupRefused> {
        if !(1..=GROUP_POLL_RECORDS_MAX).contains(&count) {
            return Err(GroupRefused::AckCount);
        }
        let at = self.known(group, offset)?;
        self.with(at, now, out, |group, extent, _, _| group.ack(offset.0, count, now, extent))
    }

    /// Gives a record back, to be handed out again after `delay`; with `attempts` other than 0 only if that claim holds.
    ///
    /// # Errors
    /// `NeverHandedOut`, `StaleClaim`.
    pub fn nack(
        &mut self,
        group: &str,
        (offset, attempts): (Offset, u32),
        delay: Duration,
        now: Tick,
        out: &mut Vec<GroupOutput>,
    ) -> Result<(), GroupRefused> {
        let at = self.known(group, offset)?;
        self.with(at, now, out, |group, extent, settings, _| {
            group.nack((offset.0, attempts), delay, (now, extent), settings)
        })
    }

    /// Lets a claim hold until `by` from now. Gives how long that is: the longest claim at most.
    ///
    /// # Errors
    /// `NeverHandedOut`, `StaleClaim`.
    pub fn extend(
        &mut self,
        group: &str,
        (offset, attempts): (Offset, u32),
        by: Duration,
        now: Tick,
        out: &mut Vec<GroupOutput>,
    ) -> Result<Duration, GroupRefused> {
        let at = self.known(group, offset)?;
        self.with(at, now, out, |group, extent, settings, _| {
            group.extend((offset.0, attempts), by, (now, extent), settings)
        })
    }

    /// Makes a record a dead letter by hand. Told as an ack is.
    ///
    /// # Errors
    /// `NeverHandedOut`, `StaleClaim` when it is finished, `TooManyDeadLetters`.
    pub fn dead_letter(
        &mut self,
        group: &str,
        offset: Offset,
        now: Tick,
        out: &mut Vec<GroupOutput>,
    ) -> Result<(), GroupRefused> {
        let at = self.known(group, offset)?;
        self.with(at, now, out, |group, extent, _, _| group.dead_letter(offset.0, now, extent))
    }

    /// Dead letters, lowest first, `most` at most. Told as an ack is.
    ///
    /// # Errors
    /// `GroupName`.
    pub fn dead_letters(&self, group: &str, most: usize) -> Result<Vec<Offset>, GroupRefused> {
        check_group_name(group)?;
        let listed = self.durable(group).into_iter().flat_map(|durable| durable.dead().offsets());
        Ok(listed.take(most).map(Offset).collect())
    }

    /// Takes a dead letter off the list. Told as an ack is.
    ///
    /// # Errors
    /// `NotListed`.
    pub fn discard(
        &mut self,
        group: &str,
        offset: Offset,
        now: Tick,
        out: &mut Vec<GroupOutput>,
    ) -> Result<(), GroupRefused> {
        check_group_name(group)?;
        let at = *self.names.get(group).ok_or(GroupRefused::NotListed)?;
        self.with(at, now, out, |group, extent, _, _| group.discard(offset.0, now, extent))
    }

    /// Takes a dead letter off the list, to be handed out again as if for the first time. Told as an ack is.
    ///
    /// # Errors
    /// `NotListed`, `TooManyUnfinished`.
    pub fn redrive(
        &mut self,
        group: &str,
        offset: Offset,
        now: Tick,
        out: &mut Vec<GroupOutput>,
    ) -> Result<(), GroupRefused> {
        check_group_name(group)?;
        let at = *self.names.get(group).ok_or(GroupRefused::NotListed)?;
        self.with(at, now, out, |group, extent, settings, _| group.redrive(offset.0, (now, extent), settings))
    }

    /// Moves a group, or makes it at that place; claims are void. With `if_new` only a group without a position. Gives where
    /// it is, and whether it was moved. Told as an ack is.
    ///
    /// # Errors
    /// `InFuture`, `TooOld`, `GroupName`, `TooManyGroups`.
    pub fn seek(
        &mut self,
        group: &str,
        (to, if_new): (Seek, bool),
        now: Tick,
        out: &mut Vec<GroupOutput>,
    ) -> Result<(Offset, bool), GroupRefused> {
        let Extent { start, end } = self.extent;
        let to = match to {
            Seek::Earliest => start,
            Seek::Latest => end,
            Seek::Offset(at) if at.0 > end => return Err(GroupRefused::InFuture { tail: Offset(end) }),
            Seek::Offset(at) if at.0 < start => return Err(GroupRefused::TooOld { start: Offset(start) }),
            Seek::Offset(at) => at.0,
        };
        let at = self.at(group)?;
        let (position, moved) =
            self.with(at, now, out, |group, extent, _, _| group.seek(to, if_new, (now, extent)));
        Ok((Offset(position), moved))
    }

    /// Looks at a group, whether it is there or not. Told as an ack is.
    ///
    /// # Errors
    /// `GroupName`.
    pub fn describe(&self, group: &str) -> Result<GroupInfo, GroupRefused> {
        check_group_name(group)?;
        let known = self.names.get(group).and_then(|at| self.groups.get(*at));
        Ok(known.map_or_else(|| Group::default().info(self.extent), |(_, group)| group.info(self.extent)))
    }

    /// Forgets a group; its polls are answered empty. Whether it was there. Told as an ack is.
    ///
    /// # Errors
    /// `GroupName`.
    pub fn delete(
        &mut self,
        group: &str,
        now: Tick,
        out: &mut Vec<GroupOutput>,
    ) -> Result<bool, GroupRefused> {
        check_group_name(group)?;
        let Some(at) = self.names.get(group).copied() else { return Ok(false) };
        Ok(self.with(at, now, out, |group, extent, _, outcomes| group.delete(extent, outcomes)))
    }

    /// Records up to `end` can be read.
    pub fn shard_ends(&mut self, end: Offset, now: Tick, out: &mut Vec<GroupOutput>) {
        self.extent.end = self.extent.end.max(end.0);
        if !self.waiting.is_empty() {
            let waiting: Vec<usize> = self.waiting.iter().copied().collect();
            waiting.into_iter().for_each(|at| self.with(at, now, out, |_, _, _, _| ()));
        }
    }

    /// The shard begins at `start` now: what lies below can be neither handed out nor listed.
    pub fn shard_starts(&mut self, start: Offset, now: Tick, out: &mut Vec<GroupOutput>) {
        if start.0 <= self.extent.start {
            return;
        }
        self.extent.start = start.0;
        self.extent.end = self.extent.end.max(start.0);
        let all: Vec<usize> = self.groups.iter().map(|(at, _)| at).collect();
        all.into_iter()
            .for_each(|at| self.with(at, now, out, |group, extent, _, _| group.shard_starts(extent)));
    }

    /// When [`Self::tick`] wants to be called next.
    pub fn next_deadline(&self) -> Option<Tick> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Ends claims, delays and waits whose time has come, a bounded number of them; when more are left the next deadline is
    /// in the past still.
    pub fn tick(&mut self, now: Tick, out: &mut Vec<GroupOutput>) {
        let mut budget = LAPSES_MAX;
        while let Some((_, at)) = self.deadlines.first().copied().filter(|(due, _)| *due <= now) {
            let spent = self
                .with(at, now, out, |group, extent, settings, _| group.lapse(now, settings, extent, budget));
            budget = budget.saturating_sub(spent.max(1));
            if budget == 0 {
                return;
            }
        }
    }

    /// Looks at some groups and drops what is only in memory of those nobody uses. To be called now and then.
    pub fn rest(&mut self, now: Tick) {
        let idle = IDLE.max(self.settings.visibility.saturating_mul(2));
        let from = self.idle_next;
        let some: Vec<usize> =
            self.groups.iter().map(|(at, _)| at).filter(|at| *at >= from).take(64).collect();
        self.idle_next = some.last().map_or(0, |last| last + 1);
        for at in some {
            let Some((_, group)) = self.groups.get_mut(at) else { continue };
            if group.idle_since().is_some_and(|since| since + idle <= now) {
                group.rest(self.extent);
                if group.durable == Durable::default() {
                    self.remove(at);
                }
            }
        }
    }

    /// The changes that are in no record yet, one draft for each group: append them all, in one batch, then say
    /// [`Self::claimed`].
    pub fn take_drafts(&mut self) -> Vec<Draft> {
        let mut drafts = Vec::new();
        for at in std::mem::take(&mut self.changed) {
            let Some((name, group)) = self.groups.get_mut(at) else { continue };
            drafts.push(Draft { group: name.clone(), changes: group.take_changes() });
            // One that was deleted, and that nobody polls.
            if group.durable == Durable::default() && group.idle_since().is_some() {
                self.remove(at);
            }
        }
        drafts
    }

    /// Drafts were appended; the groups' log ends at `end` now.
    pub fn claimed(&mut self, end: Offset) {
        self.claimed_end = self.claimed_end.max(end);
    }

    /// One past the last record of the groups' log that was claimed. An answer that is not of a new draft waits until this
    /// is settled.
    pub fn claimed_end(&self) -> Offset {
        self.claimed_end
    }
}

fn note(set: &mut BTreeSet<usize>, at: usize, there: bool) {
    if there {
        set.insert(at);
    } else {
        set.remove(&at);
    }
}
