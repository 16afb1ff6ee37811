//! Consumer groups of one stream: claiming records, settling them, and the group itself. Scope: per handle.
//! Owns: what each group request asks and what its answer means.
//! Invariants: a poll is never sent again when it may have claimed something; an ack may, since it says how things are to
//! be; a claim that is settled or extended is named with its delivery where the broker takes that.
//! Not here: polling all the time (`deliveries`), running handlers (`worker`).

mod ack;
pub(crate) mod deliveries;
mod holdings;
mod keeper;
pub(crate) mod lease;
mod poller;
mod roster;
mod unsettled;
pub(crate) mod worker;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use felix_wire::client::{
    GroupExtend, GroupNack, GroupOffset, GroupPoll, GroupRequest, GroupSeek, Message, ShardKind,
    StartPosition,
};
use felix_wire::features::Features;
use felix_wire::id::{LeaseId, Offset, RequestId, ShardIndex};
use felix_wire::limits::{CONSUMER_LEN_MAX, GROUP_POLL_RECORDS_MAX};

use crate::client::Client;
use crate::error::Error;
use crate::group::deliveries::DeliveriesBuilder;
use crate::group::unsettled::Unsettled;
use crate::group::worker::WorkerBuilder;
use crate::limits::GROUP_NAME_LEN_MAX;
use crate::name::StreamName;
use crate::request::{Ask, Place, Repeat, RequestError};

/// One delivery of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// The shard.
    pub shard: u32,
    /// The record.
    pub offset: Offset,
    /// Which delivery of the record this is, from 1.
    pub attempts: u32,
    /// The lease of the shard under which it was claimed, of a consumer that has leases: when a later one of the shard has
    /// begun, the claim is not settled but refused.
    pub lease: Option<LeaseId>,
}

/// A record that is claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// What it is settled by.
    pub claim: Claim,
    /// Its bytes.
    pub payload: Bytes,
    /// Offsets right before it that hold no record. They are no loss.
    pub skipped: u64,
    /// When it was appended, when the broker told.
    pub appended_at: Option<SystemTime>,
}

/// What one poll asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Poll {
    /// Most records, 1 to 1,000.
    pub max_records: u32,
    /// How long the broker waits for the first one; it may wait less.
    pub wait: Duration,
    /// Gives back first what this member holds from other connections; needs a name.
    pub reclaim: bool,
}

impl Default for Poll {
    fn default() -> Self {
        Self { max_records: 32, wait: Duration::from_secs(5), reclaim: false }
    }
}

/// A position to begin at or to go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SeekTo {
    /// The oldest record held.
    #[default]
    Earliest,
    /// The end: what is published from now on.
    Latest,
    /// This offset.
    Offset(Offset),
}

/// Where a group is on one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupPosition {
    /// The shard.
    pub shard: u32,
    /// The position.
    pub offset: Offset,
    /// The request moved it.
    pub moved: bool,
}

/// How a group is doing on one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupInfo {
    /// The shard.
    pub shard: u32,
    /// Everything below is finished; `None` for a group without a position.
    pub committed: Option<Offset>,
    /// The shard's next offset.
    pub tail: Offset,
    /// Records claimed now.
    pub in_flight: u64,
    /// Records owed again.
    pub owed: u64,
    /// Records on the dead letter list.
    pub dead_letters: u64,
}

/// A consumer group of a stream. Clones share everything. A group begins to be with its first poll, at the oldest record,
/// or with [`Group::create`].
#[derive(Clone)]
pub struct Group {
    place: Arc<Place>,
    name: Arc<str>,
    member: Option<Arc<str>>,
    visibility: Option<Duration>,
    unsettled: Arc<Unsettled>,
}

impl Client {
    /// A group of a stream. Nothing is asked yet.
    ///
    /// # Errors
    /// [`Error::Config`] for a name of a group that is not 1 to 255 bytes without control characters, and when the stream
    /// has no namespace and the client no default.
    pub fn group(&self, stream: impl Into<StreamName>, group: &str) -> Result<Group, Error> {
        if group.is_empty() || group.len() > GROUP_NAME_LEN_MAX || group.chars().any(char::is_control) {
            let most = GROUP_NAME_LEN_MAX;
            return Err(Error::config(format!(
                "a group's name has 1 to {most} bytes and no control characters"
            )));
        }
        let place = Place::new(self.shared.clone(), stream.into(), ShardKind::Stream)?;
        let unsettled = Arc::default();
        Ok(Group { place, name: group.into(), member: None, visibility: None, unsettled })
    }
}

impl Group {
    /// Polls under this name, so that its successor can reclaim what it holds.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] for a name that has not 1 to 128 bytes.
    pub fn member(mut self, name: &str) -> Result<Self, RequestError> {
        if name.is_empty() || name.len() > CONSUMER_LEN_MAX {
            return Err(RequestError::invalid(format!("a member's name has 1 to {CONSUMER_LEN_MAX} bytes")));
        }
        self.member = Some(name.into());
        Ok(self)
    }

    /// How long claims hold, at least a millisecond; the broker's default without it. The broker has a bound, 12 hours.
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.visibility = Some(visibility.max(Duration::from_millis(1)));
        self
    }

    /// How many shards the stream has.
    ///
    /// # Errors
    /// `not_found` for a stream that is not known, else what asking said.
    pub async fn shard_count(&self) -> Result<u32, RequestError> {
        self.place.shard_count().await
    }

    /// Claims records of one shard; none when there is nothing within the time to wait.
    ///
    /// # Errors
    /// As [`RequestError`] says. With an unknown outcome, and when the call is cancelled, records may be claimed, and are
    /// owed again when that lapses.
    pub async fn poll(&self, shard: u32, poll: Poll) -> Result<Vec<Delivery>, RequestError> {
        self.poll_under(None, shard, poll).await
    }

    pub(crate) async fn poll_under(
        &self,
        lease: Option<LeaseId>,
        shard: u32,
        poll: Poll,
    ) -> Result<Vec<Delivery>, RequestError> {
        if !(1..=GROUP_POLL_RECORDS_MAX).contains(&poll.max_records) {
            let most = GROUP_POLL_RECORDS_MAX;
            return Err(RequestError::invalid(format!("a poll is for 1 to {most} records")));
        }
        if poll.reclaim && self.member.is_none() {
            return Err(RequestError::invalid("only a member with a name can reclaim"));
        }
        let mut needs = Features::CONSUMER_GROUP;
        if self.member.is_some() {
            needs = needs.union(Features::GROUP_CONSUMER);
        }
        if self.visibility.is_some() {
            needs = needs.union(Features::GROUP_CLAIM_CONTROL);
        }
        let mut ask = self.ask("group_poll", needs, shard, Repeat::Twice).await?;
        ask.waits = Some(poll.wait);
        let message = |request_id| {
            let (tenant_id, namespace, stream) = self.names();
            Message::GroupPoll(GroupPoll {
                tenant_id,
                namespace,
                stream,
                shard: ShardIndex(shard),
                group: Cow::Borrowed(&self.name),
                max_records: poll.max_records,
                wait_ms: millis(poll.wait),
                request_id,
                consumer: self.member.as_deref().map(Cow::Borrowed),
                reclaim: poll.reclaim,
                visibility_ms: self.visibility.map_or(0, millis),
                lease,
            })
        };
        let mut records = self.place.answer(ask, message, records).await?;
        for Delivery { claim, .. } in &mut records {
            (claim.shard, claim.lease) = (shard, lease);
            self.unsettled.claimed(*claim);
        }
        Ok(records)
    }

    /// Finishes a record. Doing so twice is no error.
    ///
    /// # Errors
    /// As [`RequestError`] says; code `stale_claim` when the claim is not known any more.
    pub async fn ack(&self, claim: Claim) -> Result<(), RequestError> {
        let acked = async {
            let ask = self.ask("group_ack", Features::CONSUMER_GROUP, claim.shard, Repeat::Same).await?;
            self.place.answer(ask, |id| Message::GroupAck(self.claimed(claim, id)), done).await
        };
        self.settled(claim, acked).await
    }

    /// Gives a record back: it is owed again, after `delay` if there is one.
    ///
    /// # Errors
    /// As [`RequestError`] says; code `stale_claim` when the claim has lapsed or the record was handed out again.
    pub async fn nack(&self, claim: Claim, delay: impl Into<Option<Duration>>) -> Result<(), RequestError> {
        self.settled(claim, self.give_back(claim, delay.into())).await
    }

    /// Runs a settlement of a claim; when it has been answered, the claim does not count any more.
    async fn settled(
        &self,
        claim: Claim,
        settlement: impl Future<Output = Result<(), RequestError>>,
    ) -> Result<(), RequestError> {
        let answer = settlement.await;
        self.unsettled.settled(claim);
        answer
    }

    async fn give_back(&self, claim: Claim, delay: Option<Duration>) -> Result<(), RequestError> {
        let delay = delay.filter(|delay| !delay.is_zero());
        let controls = Features::GROUP_CLAIM_CONTROL;
        let named = self.place.features().await?.contains(controls);
        let needs = if delay.is_some() { controls } else { Features::NONE };
        let needs = needs.union(Features::CONSUMER_GROUP);
        let ask = self.ask("group_nack", needs, claim.shard, Repeat::Twice).await?;
        let message = |request_id| {
            let (tenant_id, namespace, stream) = self.names();
            Message::GroupNack(GroupNack {
                tenant_id,
                namespace,
                stream,
                shard: ShardIndex(claim.shard),
                group: Cow::Borrowed(&self.name),
                offset: claim.offset,
                request_id,
                delay_ms: delay.map_or(0, millis),
                attempts: if named { claim.attempts } else { 0 },
                lease: claim.lease,
            })
        };
        self.place.answer(ask, message, done).await
    }

    /// Holds a claim for `by` from now on; answers how long it holds, which the broker may have bounded.
    ///
    /// # Errors
    /// As [`Group::nack`].
    pub async fn extend(&self, claim: Claim, by: Duration) -> Result<Duration, RequestError> {
        let needs = Features::CONSUMER_GROUP.union(Features::GROUP_CLAIM_CONTROL);
        let ask = self.ask("group_extend", needs, claim.shard, Repeat::Read).await?;
        let message = |request_id| {
            let (tenant_id, namespace, stream) = self.names();
            Message::GroupExtend(GroupExtend {
                tenant_id,
                namespace,
                stream,
                shard: ShardIndex(claim.shard),
                group: Cow::Borrowed(&self.name),
                offset: claim.offset,
                attempts: claim.attempts,
                extend_ms: millis(by),
                request_id,
                lease: claim.lease,
            })
        };
        let read = |answer: &Message<'_>| match answer {
            Message::GroupExtended(extended) => Some((Some(extended.request_id), extended.visible_ms)),
            _ => None,
        };
        self.place.answer(ask, message, read).await.map(Duration::from_millis)
    }

    /// Puts a record on the dead letter list and finishes it.
    ///
    /// # Errors
    /// As [`RequestError`] says.
    pub async fn dead_letter(&self, shard: u32, offset: Offset) -> Result<(), RequestError> {
        let needs = Features::CONSUMER_GROUP.union(Features::GROUP_CLAIM_CONTROL);
        let ask = self.ask("group_dead_letter", needs, shard, Repeat::Same).await?;
        self.place.answer(ask, |id| Message::GroupDeadLetter(self.record(shard, offset, id)), done).await
    }

    /// Makes a dead letter of a claimed record.
    pub(crate) async fn bury(&self, claim: Claim) -> Result<(), RequestError> {
        let buried = async {
            let needs = Features::CONSUMER_GROUP.union(Features::GROUP_CLAIM_CONTROL);
            let ask = self.ask("group_dead_letter", needs, claim.shard, Repeat::Same).await?;
            self.place.answer(ask, |id| Message::GroupDeadLetter(self.claimed(claim, id)), done).await
        };
        self.settled(claim, buried).await
    }

    /// The dead letters of one shard, lowest offset first.
    ///
    /// # Errors
    /// As [`RequestError`] says.
    pub async fn dead_letters(&self, shard: u32) -> Result<Vec<Offset>, RequestError> {
        let ask = self.ask("group_dead_letters", Features::GROUP_DEAD_LETTERS, shard, Repeat::Read).await?;
        let read = |answer: &Message<'_>| match answer {
            Message::GroupDeadLetterList(list) => Some((Some(list.request_id), list.offsets.clone())),
            _ => None,
        };
        self.place.answer(ask, |id| Message::GroupDeadLetters(self.request(shard, id)), read).await
    }

    /// Takes a dead letter off the list for good.
    ///
    /// # Errors
    /// As [`RequestError`] says; code `not_found` when it is not on the list.
    pub async fn discard(&self, shard: u32, offset: Offset) -> Result<(), RequestError> {
        let ask = self.ask("group_discard", Features::GROUP_DEAD_LETTERS, shard, Repeat::Twice).await?;
        self.place.answer(ask, |id| Message::GroupDiscard(self.record(shard, offset, id)), done).await
    }

    /// Takes a dead letter off the list and hands it out again, with its attempts counted anew.
    ///
    /// # Errors
    /// As [`Group::discard`].
    pub async fn redrive(&self, shard: u32, offset: Offset) -> Result<(), RequestError> {
        let ask = self.ask("group_redrive", Features::GROUP_DEAD_LETTERS, shard, Repeat::Twice).await?;
        self.place.answer(ask, |id| Message::GroupRedrive(self.record(shard, offset, id)), done).await
    }

    /// Gives the group a position on every shard where it has none. Where it has one, that stays.
    ///
    /// # Errors
    /// As [`RequestError`] says; shards before the one that failed are done.
    pub async fn create(&self, at: SeekTo) -> Result<Vec<GroupPosition>, RequestError> {
        let mut positions = Vec::new();
        for shard in 0..self.shard_count().await? {
            positions.push(self.seek_to(shard, at, true).await?);
        }
        Ok(positions)
    }

    /// Moves the group's position on one shard. Claims that stand are void.
    ///
    /// # Errors
    /// As [`RequestError`] says.
    pub async fn seek(&self, shard: u32, to: SeekTo) -> Result<GroupPosition, RequestError> {
        self.seek_to(shard, to, false).await
    }

    /// How the group is doing on one shard.
    ///
    /// # Errors
    /// As [`RequestError`] says.
    pub async fn describe(&self, shard: u32) -> Result<GroupInfo, RequestError> {
        let ask = self.ask("group_describe", Features::GROUP_ADMIN, shard, Repeat::Read).await?;
        let read = |answer: &Message<'_>| match answer {
            Message::GroupInfo(info) => {
                let &felix_wire::client::GroupInfo {
                    committed,
                    tail,
                    in_flight,
                    owed,
                    dead_letters,
                    request_id,
                } = info;
                let info = GroupInfo { shard: 0, committed, tail, in_flight, owed, dead_letters };
                Some((Some(request_id), info))
            }
            _ => None,
        };
        let info = self.place.answer(ask, |id| Message::GroupDescribe(self.request(shard, id)), read).await?;
        Ok(GroupInfo { shard, ..info })
    }

    /// Removes the group on every shard; true when there was one on any.
    ///
    /// # Errors
    /// As [`RequestError`] says; shards before the one that failed are done.
    pub async fn delete(&self) -> Result<bool, RequestError> {
        let read = |answer: &Message<'_>| match answer {
            Message::GroupDeleted(deleted) => Some((Some(deleted.request_id), deleted.existed)),
            _ => None,
        };
        let mut existed = false;
        for shard in 0..self.shard_count().await? {
            let ask = self.ask("group_delete", Features::GROUP_ADMIN, shard, Repeat::Twice).await?;
            existed |=
                self.place.answer(ask, |id| Message::GroupDelete(self.request(shard, id)), read).await?;
        }
        Ok(existed)
    }

    /// Polling the shards all the time, those that the broker leases to it or all, as a stream of records.
    pub fn deliveries(&self) -> DeliveriesBuilder {
        DeliveriesBuilder::new(self.clone())
    }

    /// Running a handler for every record, with its claim held and settled.
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(self.clone())
    }

    async fn seek_to(&self, shard: u32, to: SeekTo, if_new: bool) -> Result<GroupPosition, RequestError> {
        // A position that is given to a group without one is the same the second time.
        let repeat = if if_new { Repeat::Same } else { Repeat::Twice };
        let ask = self.ask("group_seek", Features::GROUP_ADMIN, shard, repeat).await?;
        let start = match to {
            SeekTo::Earliest => StartPosition::Earliest,
            SeekTo::Latest => StartPosition::Latest,
            SeekTo::Offset(offset) => StartPosition::Offset(offset),
        };
        let message = |request_id| {
            let (tenant_id, namespace, stream) = self.names();
            let (shard, group) = (ShardIndex(shard), Cow::Borrowed(&*self.name));
            Message::GroupSeek(GroupSeek {
                tenant_id,
                namespace,
                stream,
                shard,
                group,
                start,
                if_new,
                request_id,
            })
        };
        let read = |answer: &Message<'_>| match answer {
            Message::GroupPosition(position) => {
                Some((Some(position.request_id), (position.offset, position.moved)))
            }
            _ => None,
        };
        let (offset, moved) = self.place.answer(ask, message, read).await?;
        Ok(GroupPosition { shard, offset, moved })
    }

    async fn ask(
        &self,
        what: &'static str,
        needs: Features,
        shard: u32,
        repeat: Repeat,
    ) -> Result<Ask, RequestError> {
        let shards = self.shard_count().await?;
        if shard >= shards {
            return Err(RequestError::invalid(format!(
                "the stream has {shards} shards, there is no shard {shard}"
            )));
        }
        Ok(Ask::new(what, needs, shard, repeat))
    }

    fn names(&self) -> (Cow<'_, str>, Cow<'_, str>, Cow<'_, str>) {
        let name = self.place.name();
        (self.place.tenant().into(), name.namespace().into(), name.stream().into())
    }

    fn record(&self, shard: u32, offset: Offset, request_id: RequestId) -> GroupOffset<'_> {
        let (tenant_id, namespace, stream) = self.names();
        let (shard, group) = (ShardIndex(shard), Cow::Borrowed(&*self.name));
        GroupOffset {
            tenant_id,
            namespace,
            stream,
            shard,
            group,
            offset,
            request_id,
            lease: None,
            count: None,
        }
    }

    fn claimed(&self, claim: Claim, request_id: RequestId) -> GroupOffset<'_> {
        GroupOffset { lease: claim.lease, ..self.record(claim.shard, claim.offset, request_id) }
    }

    fn request(&self, shard: u32, request_id: RequestId) -> GroupRequest<'_> {
        let (tenant_id, namespace, stream) = self.names();
        let (shard, group) = (ShardIndex(shard), Cow::Borrowed(&*self.name));
        GroupRequest { tenant_id, namespace, stream, shard, group, request_id }
    }
}

fn done(answer: &Message<'_>) -> Option<(Option<RequestId>, ())> {
    match answer {
        Message::CacheOk(ok) => Some((Some(ok.request_id), ())),
        _ => None,
    }
}

/// Shards are filled in by the caller, who knows them.
fn records(answer: &Message<'_>) -> Option<(Option<RequestId>, Vec<Delivery>)> {
    let Message::GroupRecords(page) = answer else { return None };
    let delivery = |record: &felix_wire::client::GroupRecord<'_>| Delivery {
        claim: Claim { shard: 0, offset: record.offset, attempts: record.attempts, lease: None },
        payload: record.payload.clone(),
        skipped: record.skipped_before.unwrap_or(0),
        appended_at: record.timestamp_micros.and_then(time),
    };
    Some((Some(page.request_id), page.records.iter().map(delivery).collect()))
}

/// A time that the system cannot say is as good as none.
pub(crate) fn time(micros: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(micros))
}

/// Whole milliseconds, rounded up; brokers bound them long before 64 bits do.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
