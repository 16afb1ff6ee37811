//! Leases of the shards of a stream to the members of its consumer groups. Sans-io.
//! Scope: one [`Leases`] per core, over the groups of the streams whose shard 0 the core leads. Nothing of it is durable.
//! Owns: the groups that have members, and the numbers of leases and memberships.
//! Invariants: numbers never repeat and only grow, over the life of the process and, with a clock that is not set back
//! between two of them, over restarts; how many groups, members and bytes there are is bounded; a request is answered once.
//! Not here: who may join (`session::lease`), what a lease keeps others from doing (`projection::group`).

mod roster;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use felix_runtime::clock::Tick;
use felix_wire::client::ShardLease;
use felix_wire::id::{LeaseId, MembershipId, ShardIndex};
use felix_wire::limits::{CONSUMER_LEN_MAX, GROUP_TERM_MS_DEFAULT, GROUP_TERM_MS_MAX, GROUP_TERM_MS_MIN};
use slab::Slab;

use crate::shard::ask::{AskRefused, Asker, Reply};
use crate::snapshot::StreamUid;
use roster::{Roster, Told};

/// Members of one group.
pub const MEMBERS_MAX: usize = 256;
/// Groups with members of one core.
pub const ROSTERS_MAX: usize = 1_024;
/// Memory of all of them.
pub const BYTES_MAX: usize = 32 << 20;

/// Who a member is: the principal that it speaks for and the name that it gives itself, so that nobody can take the place
/// of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberName {
    pub name: Box<str>,
    pub principal: Arc<str>,
}

impl MemberName {
    fn bytes(&self) -> usize {
        self.name.len() + self.principal.len()
    }
}

/// A request to become a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    pub name: MemberName,
    /// Which run of it.
    pub instance: u64,
    pub term: Duration,
}

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub name: MemberName,
    pub session: MembershipId,
    pub released: Vec<ShardLease>,
    pub seen: Option<u64>,
    /// How long it waits for another version.
    pub wait: Duration,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseWhat {
    Join(Join),
    Heartbeat(Heartbeat),
    Leave { name: MemberName, session: MembershipId },
    Members,
}

/// A request about the members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseAsk {
    pub group: Box<str>,
    /// Of the stream.
    pub shards: u32,
    pub what: LeaseWhat,
}

impl LeaseAsk {
    /// Bytes it holds.
    pub fn held_bytes(&self) -> usize {
        let held = match &self.what {
            LeaseWhat::Join(join) => join.name.bytes(),
            LeaseWhat::Heartbeat(m) => m.name.bytes() + m.released.len() * size_of::<ShardLease>(),
            LeaseWhat::Leave { name, .. } => name.bytes(),
            LeaseWhat::Members => 0,
        };
        self.group.len() + held
    }
}

/// What a member holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasesView {
    pub session: MembershipId,
    pub version: u64,
    pub term: Duration,
    pub members: u32,
    pub leases: Vec<LeaseView>,
}

/// One lease of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseView {
    pub shard: ShardIndex,
    pub lease: LeaseId,
    pub left: Duration,
    /// It is to be released; heartbeats do not renew it.
    pub give_back: bool,
}

/// A member, for whoever looks at the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    pub name: MemberName,
    pub session: MembershipId,
    pub left: Duration,
    pub leases: Vec<LeaseView>,
}

/// Why a request is refused. Nothing of it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefused {
    #[error("a member has a name of 1 to {CONSUMER_LEN_MAX} bytes without control characters")]
    MemberName,
    #[error("a term has {GROUP_TERM_MS_MIN} to {GROUP_TERM_MS_MAX} milliseconds")]
    Term,
    #[error("the stream has no such shard")]
    NoSuchShard,
    #[error("the lease was never given out")]
    NeverHeld,
    #[error("the member is not known: it has to join")]
    UnknownMember,
    #[error("another instance of the member has taken its place")]
    MemberReplaced,
    #[error("the group has {MEMBERS_MAX} members")]
    TooManyMembers,
    #[error("the broker's core has {ROSTERS_MAX} groups with members")]
    TooManyGroups,
    #[error("the members of groups take all of the memory that they may")]
    TooMuchMemory,
}

/// Checks the name that a member gives itself.
///
/// # Errors
/// `MemberName`.
pub fn check_member(name: &str) -> Result<(), LeaseRefused> {
    let fits = (1..=CONSUMER_LEN_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
    if fits { Ok(()) } else { Err(LeaseRefused::MemberName) }
}

/// The term that a member asks for, or the one of a member that asks for none.
///
/// # Errors
/// `Term`.
pub fn check_term(term_ms: Option<u64>) -> Result<Duration, LeaseRefused> {
    let term_ms = term_ms.unwrap_or(GROUP_TERM_MS_DEFAULT);
    let fits = (GROUP_TERM_MS_MIN..=GROUP_TERM_MS_MAX).contains(&term_ms);
    if fits { Ok(Duration::from_millis(term_ms)) } else { Err(LeaseRefused::Term) }
}

/// Numbers of leases and memberships: microseconds since 1970 as the process counts them, and one more than the last at
/// least.
#[derive(Debug, Default)]
pub struct Numbers {
    start_us: u64,
    newest: u64,
}

impl Numbers {
    fn take(&mut self, now: Tick) -> u64 {
        self.newest = self.start_us.saturating_add(now.as_micros()).max(self.newest + 1);
        self.newest
    }

    /// The largest that was given out.
    fn newest(&self) -> u64 {
        self.newest
    }
}

/// An answer, and the stream it is about.
#[derive(Debug, PartialEq, Eq)]
pub struct LeaseAnswer {
    pub stream: StreamUid,
    pub asker: Asker,
    pub reply: Reply,
}

/// One group of one stream.
type Key = (StreamUid, Box<str>);

#[derive(Debug)]
struct Kept {
    key: Key,
    roster: Roster,
    bytes: usize,
    due: Option<Tick>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Leases {
    numbers: Numbers,
    keys: BTreeMap<Key, usize>,
    rosters: Slab<Kept>,
    due: BTreeSet<(Tick, usize)>,
    bytes: usize,
}

impl Leases {
    /// Says which time it is, once, before anything is asked. `unix_ms`: milliseconds since 1970.
    pub fn begin(&mut self, now: Tick, unix_ms: u64) {
        if self.numbers.start_us == 0 {
            self.numbers.start_us = unix_ms.saturating_mul(1_000).saturating_sub(now.as_micros());
        }
    }

    /// Groups with members, and their members.
    pub fn counts(&self) -> (usize, usize) {
        (self.rosters.len(), self.rosters.iter().map(|(_, kept)| kept.roster.len()).sum())
    }

    /// Memory of the groups, about, bytes; [`BYTES_MAX`] at most.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A request about a group of a stream. It is answered in `out`, now or, for a heartbeat that waits, later.
    pub fn ask(
        &mut self,
        asker: Asker,
        (stream, ask): (StreamUid, LeaseAsk),
        now: Tick,
        out: &mut Vec<LeaseAnswer>,
    ) {
        let LeaseAsk { group, shards, what } = ask;
        let key = (stream, group);
        let done = match what {
            LeaseWhat::Join(join) => self.join((asker, join), (key, shards), now, out),
            LeaseWhat::Heartbeat(heartbeat) => match self.keys.get(&key).copied() {
                Some(at) => self.with(at, out, |roster, numbers, told| {
                    roster.widen(shards);
                    roster.heartbeat((asker, &heartbeat), now, numbers, told)
                }),
                None => Err(LeaseRefused::UnknownMember),
            },
            LeaseWhat::Leave { name, session } => {
                if let Some(at) = self.keys.get(&key).copied() {
                    self.with(at, out, |roster, numbers, told| {
                        roster.leave((&name, session), now, numbers, told);
                    });
                }
                out.push(LeaseAnswer { stream, asker, reply: Reply::Written });
                Ok(())
            }
            LeaseWhat::Members => {
                let at = self.keys.get(&key).copied();
                let members = at.and_then(|at| self.rosters.get(at)).map(|kept| kept.roster.members(now));
                out.push(LeaseAnswer { stream, asker, reply: Reply::Members(members.unwrap_or_default()) });
                Ok(())
            }
        };
        if let Err(why) = done {
            out.push(LeaseAnswer { stream, asker, reply: Reply::Refused(AskRefused::Lease(why)) });
        }
    }

    fn join(
        &mut self,
        (asker, join): (Asker, Join),
        (key, shards): (Key, u32),
        now: Tick,
        out: &mut Vec<LeaseAnswer>,
    ) -> Result<(), LeaseRefused> {
        let known = self.keys.get(&key).copied();
        let roster = known.and_then(|at| self.rosters.get(at)).map(|kept| &kept.roster);
        if roster.is_none_or(|roster| !roster.has(&join.name)) {
            let mut more = Roster::bytes_of_member(&join.name);
            if known.is_none() {
                more += Roster::new(shards).bytes() + 2 * key.1.len();
            }
            if self.bytes + more > BYTES_MAX {
                return Err(LeaseRefused::TooMuchMemory);
            }
        }
        let at = match known {
            Some(at) => at,
            None if self.rosters.len() >= ROSTERS_MAX => return Err(LeaseRefused::TooManyGroups),
            None => {
                let roster = Roster::new(shards);
                let at = self.rosters.insert(Kept { key: key.clone(), roster, bytes: 0, due: None });
                self.keys.insert(key, at);
                at
            }
        };
        self.with(at, out, |roster, numbers, told| {
            roster.widen(shards);
            roster.join((asker, join), now, numbers, told)
        })
    }

    /// Does something with a group, then notes what it takes and when it wants to be looked at; one without members goes.
    fn with<T>(
        &mut self,
        at: usize,
        out: &mut Vec<LeaseAnswer>,
        work: impl FnOnce(&mut Roster, &mut Numbers, &mut Vec<Told>) -> T,
    ) -> T {
        let Kept { key, roster, bytes, due } = &mut self.rosters[at];
        let (stream, mut told) = (key.0, Vec::new());
        let done = work(roster, &mut self.numbers, &mut told);
        if let Some(before) = due.take() {
            self.due.remove(&(before, at));
        }
        self.bytes -= *bytes;
        if roster.is_empty() {
            let kept = self.rosters.remove(at);
            self.keys.remove(&kept.key);
        } else {
            *bytes = roster.bytes() + 2 * key.1.len();
            self.bytes += *bytes;
            *due = roster.next_deadline();
            self.due.extend(due.map(|due| (due, at)));
        }
        let reply = |told| match told {
            Ok(view) => Reply::Leases(Box::new(view)),
            Err(why) => Reply::Refused(AskRefused::Lease(why)),
        };
        out.extend(told.into_iter().map(|(asker, told)| LeaseAnswer { stream, asker, reply: reply(told) }));
        done
    }

    /// Nobody waits for the answer of a heartbeat any more; it is answered.
    pub fn cancel(&mut self, asker: Asker, stream: StreamUid, now: Tick, out: &mut Vec<LeaseAnswer>) {
        let of_stream = self.rosters.iter().filter(|(_, kept)| kept.key.0 == stream);
        let waits = of_stream.filter_map(|(at, kept)| Some((at, kept.roster.waits(asker)?)));
        for (at, member) in waits.collect::<Vec<_>>() {
            self.with(at, out, |roster, _, told| roster.answer_waiting(Some(member), now, told));
        }
    }

    /// All heartbeats that wait are answered: the broker is about to end.
    pub fn answer_all(&mut self, now: Tick, out: &mut Vec<LeaseAnswer>) {
        let all: Vec<usize> = self.rosters.iter().map(|(at, _)| at).collect();
        for at in all {
            self.with(at, out, |roster, _, told| roster.answer_waiting(None, now, told));
        }
    }

    /// The core leads shard 0 of a stream no more: nobody is a member of its groups here.
    pub fn close(&mut self, stream: StreamUid, out: &mut Vec<LeaseAnswer>) {
        let groups = self.keys.range((stream, Box::default())..).take_while(|(key, _)| key.0 == stream);
        for at in groups.map(|(_, at)| *at).collect::<Vec<_>>() {
            self.with(at, out, |roster, _, told| roster.close(told));
        }
    }

    /// When [`Self::tick`] wants to be called.
    pub fn next_deadline(&self) -> Option<Tick> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Ends terms and waits whose time has come.
    pub fn tick(&mut self, now: Tick, out: &mut Vec<LeaseAnswer>) {
        while let Some((_, at)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.with(at, out, |roster, numbers, told| roster.advance(now, numbers, told));
        }
    }
}
