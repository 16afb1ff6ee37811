//! Requests about the members of a consumer group and the shards that are leased to them. Scope: functions of a session.
//! Invariants: the right to consume the group is checked before anything is looked up, to manage it for who looks at its
//! members; a request goes to whoever leads shard 0 of the stream.
//! Not here: the members (`crate::lease`), where a request goes (`turn::asking`).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use felix_wire::client::{GroupLeases, GroupMemberList, LeaseView, MemberView, Message};
use felix_wire::control::Action as Right;
use felix_wire::features::Features;
use felix_wire::id::{RequestId, ShardIndex};

use super::cache::Answering;
use super::refusal::Refusal;
use super::stream::Stream;
use super::{Action, AskAction, Cx, not_leader, write_error};
use crate::access::Principal;
use crate::lease::{self, Heartbeat, Join, LeaseAsk, LeaseRefused, LeaseWhat, MemberName};
use crate::projection::group::check_group_name;
use crate::route::{Placing, RouteError, place};
use crate::shard::ask::{Ask, AskRefused, Reply};

/// What a request is about.
struct Wanted<'m> {
    name: (&'m str, &'m str, &'m str),
    group: &'m str,
    request_id: RequestId,
    right: Right,
}

/// Hands a request about the members of a group on, or refuses it. False when it is about something else.
pub(super) fn lease_request(
    stream: &mut Stream,
    principal: &Principal,
    message: &Message<'_>,
    cx: &mut Cx<'_>,
) -> bool {
    let Some(wanted) = wanted(message) else { return false };
    if stream.can_answer()
        && let Err(refusal) = hand_on(stream, principal, (&wanted, message), cx)
    {
        write_error(stream, &refusal);
    }
    true
}

fn wanted<'m>(message: &'m Message<'_>) -> Option<Wanted<'m>> {
    macro_rules! of {
        ($m:ident, $right:ident) => {
            Some(Wanted {
                name: (&$m.tenant_id, &$m.namespace, &$m.stream),
                group: &$m.group,
                request_id: $m.request_id,
                right: Right::$right,
            })
        };
    }
    match message {
        Message::GroupJoin(m) => of!(m, GroupConsume),
        Message::GroupHeartbeat(m) => of!(m, GroupConsume),
        Message::GroupLeave(m) => of!(m, GroupConsume),
        Message::GroupMembers(m) => of!(m, GroupManage),
        _ => None,
    }
}

fn hand_on(
    stream: &mut Stream,
    principal: &Principal,
    (wanted, message): (&Wanted<'_>, &Message<'_>),
    cx: &mut Cx<'_>,
) -> Result<(), Refusal> {
    let Wanted { name, group, request_id, right } = *wanted;
    let granted = principal.group(right, name, group, ()).map_err(|_| Refusal::forbidden())?;
    check_group_name(group).map_err(|why| Refusal::of_ask(&AskRefused::Group(why)))?;
    let what = understood(message, principal, cx).map_err(|why| Refusal::of_ask(&AskRefused::Lease(why)))?;
    let route = cx.routes.stream(name, cx.scratch).ok_or_else(|| Refusal::no_stream(cx.routes))?;
    if !route.is_durable() {
        return Err(Refusal::invalid("consumer groups need a durable stream"));
    }
    let placed = match place(route, Placing::Shard(ShardIndex(0))) {
        Ok(placed) => placed,
        Err(RouteError::OtherNode { node, addr, generation })
            if stream.features.contains(Features::REDIRECT) =>
        {
            not_leader(node, addr, generation).encode_frame(stream.answers());
            return Ok(());
        }
        Err(error) => return Err(Refusal::from_route(&error)),
    };
    let answering = match what {
        LeaseWhat::Leave { .. } => Answering::Ok { request_id },
        LeaseWhat::Join(_) | LeaseWhat::Heartbeat(_) | LeaseWhat::Members => Answering::Lease { request_id },
    };
    let ask = Ask::Lease(Box::new(LeaseAsk { group: group.into(), shards: route.shards(), what }));
    let slot = stream.asked.open();
    let place = granted.map(|()| placed);
    cx.actions.push(Action::Ask(Box::new(AskAction { stream: stream.id, place, slot, ask, answering })));
    Ok(())
}

fn understood(message: &Message<'_>, principal: &Principal, cx: &Cx<'_>) -> Result<LeaseWhat, LeaseRefused> {
    let named = |name: &str| {
        lease::check_member(name)?;
        Ok(MemberName { name: name.into(), principal: Arc::clone(&principal.subject) })
    };
    Ok(match message {
        Message::GroupJoin(m) => LeaseWhat::Join(Join {
            name: named(&m.member)?,
            instance: m.instance,
            term: lease::check_term(m.term_ms)?,
        }),
        Message::GroupHeartbeat(m) => LeaseWhat::Heartbeat(Heartbeat {
            name: named(&m.member)?,
            session: m.session,
            released: m.released.clone(),
            seen: m.seen,
            wait: match cx.draining {
                true => Duration::ZERO,
                false => Duration::from_millis(m.wait_ms).min(cx.limits.group_wait_max),
            },
        }),
        Message::GroupLeave(m) => LeaseWhat::Leave { name: named(&m.member)?, session: m.session },
        _ => LeaseWhat::Members,
    })
}

/// The answer of such a request, when there is one of that kind.
pub(super) fn lease_answer(reply: &Reply, request_id: RequestId) -> Option<Message<'_>> {
    let leases = |leases: &[lease::LeaseView]| leases.iter().map(lease_view).collect();
    Some(match reply {
        Reply::Leases(view) => Message::GroupLeases(GroupLeases {
            session: view.session,
            version: view.version,
            term_ms: millis(view.term),
            members: view.members,
            leases: leases(&view.leases),
            request_id,
        }),
        Reply::Members(members) => {
            let member = |member: &lease::MemberView| MemberView {
                member: Cow::Owned(member.name.name.to_string()),
                principal: Cow::Owned(member.name.principal.to_string()),
                session: member.session,
                left_ms: millis(member.left),
                leases: leases(&member.leases),
            };
            let members = members.iter().map(member).collect();
            Message::GroupMemberList(GroupMemberList { members, request_id })
        }
        _ => return None,
    })
}

fn lease_view(view: &lease::LeaseView) -> LeaseView {
    let lease::LeaseView { shard, lease, left, give_back } = *view;
    LeaseView { shard, lease, left_ms: millis(left), give_back }
}

/// Whole milliseconds, rounded down: nobody is to believe in a lease that has ended.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
