//! What a member of a group asks of whoever deals the stream's shards. Scope: per handle.
//! Owns: the requests to join, to stay and to leave, and to look at the members.
//! Invariants: all of them go to the leader of shard 0; joining again with the same instance is the same membership.
//! Not here: what becomes of the leases (`holdings`), when to ask (`keeper`).

use std::borrow::Cow;
use std::time::Duration;

use felix_wire::client::{
    GroupHeartbeat, GroupJoin, GroupLeases, GroupLeave, GroupMemberList, GroupMembers, LeaseView, Message,
    ShardLease,
};
use felix_wire::features::Features;
use felix_wire::id::{LeaseId, MembershipId, RequestId};

use crate::group::{Group, done, millis};
use crate::request::{Ask, Repeat, RequestError};

/// The leader of this shard deals all of them.
const DEALER: u32 = 0;

/// A member of a group that takes shards by lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// The name it has given itself.
    pub name: String,
    /// Who it is.
    pub principal: String,
    /// How long it still counts as alive without another sign of it.
    pub left: Duration,
    /// What it holds, by shard.
    pub leases: Vec<MemberLease>,
}

/// A shard that a member holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberLease {
    /// The shard.
    pub shard: u32,
    /// Which of its leases.
    pub lease: LeaseId,
    /// How long it still holds without another sign of its member.
    pub left: Duration,
    /// It has been asked back for another member.
    pub given_back: bool,
}

/// One stay in a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stay<'a> {
    pub(crate) member: &'a str,
    pub(crate) session: MembershipId,
}

impl Group {
    /// The members of the group that take its shards by lease, by name; those that poll shards by themselves are not among
    /// them.
    ///
    /// # Errors
    /// As [`RequestError`] says.
    pub async fn members(&self) -> Result<Vec<GroupMember>, RequestError> {
        let ask = Ask::new("group_members", Features::GROUP_LEASES, DEALER, Repeat::Read);
        let message = |request_id| {
            let (tenant_id, namespace, stream) = self.names();
            let group = Cow::Borrowed(&*self.name);
            Message::GroupMembers(GroupMembers { tenant_id, namespace, stream, group, request_id })
        };
        self.place.answer(ask, message, members).await
    }

    /// Whether the broker in use deals shards to members.
    pub(crate) async fn is_leased_by_brokers(&self) -> Result<bool, RequestError> {
        Ok(self.place.features().await?.contains(Features::GROUP_LEASES))
    }

    /// Becomes a member, or is one already as this instance.
    pub(crate) async fn join(
        &self,
        member: &str,
        instance: u64,
        term: Option<Duration>,
    ) -> Result<GroupLeases, RequestError> {
        let ask = Ask::new("group_join", Features::GROUP_LEASES, DEALER, Repeat::Same);
        let message = |request_id| {
            let (tenant_id, namespace, stream) = self.names();
            Message::GroupJoin(GroupJoin {
                tenant_id,
                namespace,
                stream,
                group: Cow::Borrowed(&self.name),
                member: Cow::Borrowed(member),
                instance,
                term_ms: term.map(millis),
                request_id,
            })
        };
        self.place.answer(ask, message, leases).await
    }

    /// Stays a member, and says which leases it ends. With `seen` the answer waits for another version.
    pub(crate) async fn heartbeat(
        &self,
        stay: Stay<'_>,
        released: &[ShardLease],
        (seen, wait): (Option<u64>, Duration),
    ) -> Result<GroupLeases, RequestError> {
        let mut ask = Ask::new("group_heartbeat", Features::GROUP_LEASES, DEALER, Repeat::Same);
        ask.waits = (!wait.is_zero()).then_some(wait);
        let message = |request_id| {
            let (tenant_id, namespace, stream) = self.names();
            Message::GroupHeartbeat(GroupHeartbeat {
                tenant_id,
                namespace,
                stream,
                group: Cow::Borrowed(&self.name),
                member: Cow::Borrowed(stay.member),
                session: stay.session,
                released: released.to_vec(),
                seen,
                wait_ms: millis(wait),
                request_id,
            })
        };
        self.place.answer(ask, message, leases).await
    }

    /// Ends a membership; what it held is free.
    pub(crate) async fn leave(&self, stay: Stay<'_>) -> Result<(), RequestError> {
        let ask = Ask::new("group_leave", Features::GROUP_LEASES, DEALER, Repeat::Same);
        let message = |request_id| {
            let (tenant_id, namespace, stream) = self.names();
            Message::GroupLeave(GroupLeave {
                tenant_id,
                namespace,
                stream,
                group: Cow::Borrowed(&self.name),
                member: Cow::Borrowed(stay.member),
                session: stay.session,
                request_id,
            })
        };
        self.place.answer(ask, message, done).await
    }
}

fn leases(answer: &Message<'_>) -> Option<(Option<RequestId>, GroupLeases)> {
    match answer {
        Message::GroupLeases(leases) => Some((Some(leases.request_id), leases.clone())),
        _ => None,
    }
}

fn members(answer: &Message<'_>) -> Option<(Option<RequestId>, Vec<GroupMember>)> {
    let Message::GroupMemberList(GroupMemberList { members, request_id }) = answer else { return None };
    let lease = |lease: &LeaseView| MemberLease {
        shard: lease.shard.get(),
        lease: lease.lease,
        left: Duration::from_millis(lease.left_ms),
        given_back: lease.give_back,
    };
    let member = |member: &felix_wire::client::MemberView<'_>| GroupMember {
        name: member.member.to_string(),
        principal: member.principal.to_string(),
        left: Duration::from_millis(member.left_ms),
        leases: member.leases.iter().map(lease).collect(),
    };
    Some((Some(*request_id), members.iter().map(member).collect()))
}
