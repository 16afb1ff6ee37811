//! Requests about consumer groups (client-protocol 14), and what they are answered. Scope: functions of a session.
//! Invariants: a group's right is checked before anything is looked up; a member is named by who asks and the name it gives
//! itself, so nobody can take the place of another.
//! Not here: the groups (`shard::group`), where a request goes (`turn::asking`).

use std::time::Duration;

use bytes::BytesMut;
use felix_wire::client::{
    Form, GroupDeadLetterList, GroupDeleted, GroupExtended, GroupInfo, GroupOffset, GroupPosition,
    GroupRecord, GroupRecords, Message, PageRecord, StartPosition, encode_page,
};
use felix_wire::control::Action as Right;
use felix_wire::features::Features;
use felix_wire::id::{LeaseId, RequestId, ShardIndex};

use super::cache::Answering;
use super::refusal::Refusal;
use super::stream::Stream;
use super::{Action, AskAction, Cx, not_leader, write_error};
use crate::access::Principal;
use crate::projection::group::{ConnectionId, Seek, check_member_name};
use crate::route::{Placing, RouteError, place};
use crate::shard::ask::{Ask, AskRefused, GroupAsk, GroupWhat, PolledRecord, Reply};

/// Where a request about a group is about.
struct Wanted<'m> {
    name: (&'m str, &'m str, &'m str),
    shard: ShardIndex,
    group: &'m str,
    lease: Option<LeaseId>,
    request_id: RequestId,
    right: Right,
}

/// What a poll is told of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordTold {
    skipped: bool,
    times: bool,
}

/// Hands a request about a group on, or refuses it. False when it is about something else.
pub(super) fn group_request(
    stream: &mut Stream,
    (principal, connection): (&Principal, ConnectionId),
    message: &Message<'_>,
    cx: &mut Cx<'_>,
) -> bool {
    let Some(wanted) = wanted(message) else { return false };
    if !stream.can_answer() {
        return true;
    }
    let what = match understood(message, (principal, connection), cx) {
        Ok(what) => what,
        Err(refusal) => {
            write_error(stream, &refusal);
            return true;
        }
    };
    hand_on(stream, principal, &wanted, what, cx);
    true
}

fn wanted<'m>(message: &'m Message<'_>) -> Option<Wanted<'m>> {
    macro_rules! of {
        ($m:ident, $right:ident) => {
            of!($m, $right, None)
        };
        ($m:ident, $right:ident, $lease:expr) => {
            Some(Wanted {
                name: (&$m.tenant_id, &$m.namespace, &$m.stream),
                shard: $m.shard,
                group: &$m.group,
                lease: $lease,
                request_id: $m.request_id,
                right: Right::$right,
            })
        };
    }
    match message {
        Message::GroupPoll(m) => of!(m, GroupConsume, m.lease),
        Message::GroupAck(m)
        | Message::GroupDeadLetter(m)
        | Message::GroupDiscard(m)
        | Message::GroupRedrive(m) => of!(m, GroupConsume, m.lease),
        Message::GroupNack(m) => of!(m, GroupConsume, m.lease),
        Message::GroupExtend(m) => of!(m, GroupConsume, m.lease),
        Message::GroupDeadLetters(m) => of!(m, GroupConsume),
        Message::GroupSeek(m) => of!(m, GroupManage),
        Message::GroupDescribe(m) | Message::GroupDelete(m) => of!(m, GroupManage),
        _ => None,
    }
}

fn understood(
    message: &Message<'_>,
    (principal, connection): (&Principal, ConnectionId),
    cx: &Cx<'_>,
) -> Result<GroupWhat, Refusal> {
    let ms = Duration::from_millis;
    Ok(match message {
        Message::GroupPoll(m) => {
            let member = m.consumer.as_deref().map(|name| member(principal, name)).transpose()?;
            let wait = if cx.draining { Duration::ZERO } else { ms(m.wait_ms).min(cx.limits.group_wait_max) };
            GroupWhat::Poll {
                connection,
                max_records: m.max_records,
                wait,
                visibility: ms(m.visibility_ms),
                reclaim: m.reclaim && member.is_some(),
                member,
            }
        }
        Message::GroupDeadLetter(GroupOffset { count: Some(_), .. })
        | Message::GroupDiscard(GroupOffset { count: Some(_), .. })
        | Message::GroupRedrive(GroupOffset { count: Some(_), .. }) => {
            return Err(Refusal::invalid("only an ack is of more than one record"));
        }
        Message::GroupAck(m) => GroupWhat::Ack { offset: m.offset, count: m.count.unwrap_or(1) },
        Message::GroupNack(m) => {
            GroupWhat::Nack { offset: m.offset, attempts: m.attempts, delay: ms(m.delay_ms) }
        }
        Message::GroupExtend(m) => {
            GroupWhat::Extend { offset: m.offset, attempts: m.attempts, by: ms(m.extend_ms) }
        }
        Message::GroupDeadLetter(m) => GroupWhat::DeadLetter { offset: m.offset },
        Message::GroupDeadLetters(_) => GroupWhat::DeadLetters,
        Message::GroupDiscard(m) => GroupWhat::Discard { offset: m.offset },
        Message::GroupRedrive(m) => GroupWhat::Redrive { offset: m.offset },
        Message::GroupSeek(m) => {
            let to = match m.start {
                StartPosition::Latest => Seek::Latest,
                StartPosition::Earliest => Seek::Earliest,
                StartPosition::Offset(offset) => Seek::Offset(offset),
            };
            GroupWhat::Seek { to, if_new: m.if_new }
        }
        Message::GroupDescribe(_) => GroupWhat::Describe,
        Message::GroupDelete(_) => GroupWhat::Delete,
        _ => return Err(Refusal::invalid("not a request about a group")),
    })
}

/// Who asks, and the name that it gives itself.
fn member(principal: &Principal, name: &str) -> Result<Box<[u8]>, Refusal> {
    check_member_name(name).map_err(|why| Refusal::of_ask(&AskRefused::Group(why)))?;
    let mut member = principal.subject.as_bytes().to_vec();
    member.push(0);
    member.extend_from_slice(name.as_bytes());
    Ok(member.into())
}

fn hand_on(
    stream: &mut Stream,
    principal: &Principal,
    wanted: &Wanted<'_>,
    what: GroupWhat,
    cx: &mut Cx<'_>,
) {
    let Wanted { name, shard, group, lease, request_id, right } = *wanted;
    let Ok(granted) = principal.group(right, name, group, ()) else {
        return write_error(stream, &Refusal::forbidden());
    };
    let Some(route) = cx.routes.stream(name, cx.scratch) else {
        return write_error(stream, &Refusal::no_stream(cx.routes));
    };
    if !route.is_durable() {
        return write_error(stream, &Refusal::invalid("consumer groups need a durable stream"));
    }
    let placed = match place(route, Placing::Shard(shard)) {
        Ok(placed) => placed,
        Err(RouteError::OtherNode { node, addr, generation })
            if stream.features.contains(Features::REDIRECT) =>
        {
            let form = stream.asked.form;
            not_leader(node, addr, generation).encode_frame_as(form, stream.answers());
            return;
        }
        Err(error) => return write_error(stream, &Refusal::from_route(&error)),
    };
    let told = RecordTold {
        skipped: stream.features.contains(Features::GROUP_SKIPPED),
        times: stream.features.contains(Features::RECORD_TIMESTAMPS),
    };
    let answering = match what {
        GroupWhat::Poll { .. } => Answering::Polled { request_id, told },
        GroupWhat::Extend { .. }
        | GroupWhat::DeadLetters
        | GroupWhat::Seek { .. }
        | GroupWhat::Describe
        | GroupWhat::Delete => Answering::Group { request_id },
        GroupWhat::Ack { .. }
        | GroupWhat::Nack { .. }
        | GroupWhat::DeadLetter { .. }
        | GroupWhat::Discard { .. }
        | GroupWhat::Redrive { .. } => Answering::Ok { request_id },
    };
    let slot = stream.asked.open();
    let ask = Ask::Group(Box::new(GroupAsk { group: group.into(), lease, what }));
    let place = granted.map(|()| placed);
    cx.actions.push(Action::Ask(Box::new(AskAction { stream: stream.id, place, slot, ask, answering })));
}

/// Writes what a poll gets.
pub(super) fn write_polled(
    records: &[PolledRecord],
    (request_id, told): (RequestId, RecordTold),
    form: Form,
    out: &mut BytesMut,
) {
    if form == Form::Binary {
        let times = told.times && !records.is_empty();
        let records = records.iter().map(|record| page_record(record, told));
        return encode_page((request_id, times), records, out);
    }
    let record = |record: &PolledRecord| GroupRecord {
        offset: record.handed.offset,
        payload: record.payload.clone(),
        attempts: record.handed.attempts,
        skipped_before: Some(record.handed.skipped_before).filter(|skipped| told.skipped && *skipped > 0),
        publisher: None,
        timestamp_micros: told.times.then(|| record.timestamp_ms.saturating_mul(1_000)),
    };
    let records = records.iter().map(record).collect();
    Message::GroupRecords(GroupRecords { records, request_id }).encode_frame_as(form, out);
}

fn page_record(record: &PolledRecord, told: RecordTold) -> PageRecord<'_> {
    PageRecord {
        offset: record.handed.offset,
        attempts: record.handed.attempts,
        skipped_before: if told.skipped { record.handed.skipped_before } else { 0 },
        timestamp_micros: if told.times { record.timestamp_ms.saturating_mul(1_000) } else { 0 },
        payload: &record.payload,
    }
}

/// The answer of another request about a group, when there is one of that kind.
pub(super) fn group_answer(reply: &Reply, request_id: RequestId) -> Option<Message<'static>> {
    Some(match reply {
        Reply::Extended(by) => {
            let visible_ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
            Message::GroupExtended(GroupExtended { visible_ms, request_id })
        }
        Reply::DeadLetters(offsets) => {
            Message::GroupDeadLetterList(GroupDeadLetterList { offsets: offsets.clone(), request_id })
        }
        Reply::Position { offset, moved } => {
            Message::GroupPosition(GroupPosition { offset: *offset, moved: *moved, request_id })
        }
        Reply::Group(info) => Message::GroupInfo(GroupInfo {
            committed: info.committed,
            tail: info.tail,
            in_flight: info.in_flight,
            owed: info.owed,
            dead_letters: info.dead_letters,
            request_id,
        }),
        Reply::Existed(existed) => Message::GroupDeleted(GroupDeleted { existed: *existed, request_id }),
        _ => return None,
    })
}
