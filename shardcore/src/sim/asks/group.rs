//! Requests of one consumer of a group. Scope: one per stream. Owns: the records that it holds and has not settled.
//! Invariants: a record that it was handed is acknowledged, given back or forgotten, as chance will; one that drains
//! acknowledges everything until the group has finished all there is.
//! Not here: the stream (`super`), whether answers can be true (`history::queue`).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::BytesMut;
use felix_wire::client::{
    GroupNack, GroupOffset, GroupPoll, GroupRecords, GroupRequest, GroupSeek, Message, StartPosition,
};
use felix_wire::id::{Offset, RequestId, ShardIndex};

use super::{Refused, Ticket};
use crate::sim::ask_plan::GroupPlan;
use crate::sim::broker::stream_name;
use crate::sim::client::Surroundings;
use crate::sim::credentials::{NAMESPACE, TENANT};
use crate::sim::history::GroupOf;
use crate::sim::history::queue::Handed;
use crate::sim::publisher::read_record;

/// How far one that drains has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Polling,
    /// A poll brought nothing: is there nothing?
    Describing,
    /// There is nothing: what are the dead letters?
    Listing,
}

/// See the module.
#[derive(Debug)]
pub struct GroupErrand {
    plan: GroupPlan,
    held: VecDeque<(u64, u32)>,
    stage: Stage,
    /// It has taken back what is held under its name, on the stream that it has now.
    reclaimed: bool,
    /// A record that it was handed some time.
    seen: Option<u64>,
}

impl GroupErrand {
    /// One that holds nothing.
    pub fn new(plan: GroupPlan) -> GroupErrand {
        let (held, stage) = (VecDeque::new(), Stage::Polling);
        GroupErrand { plan, held, stage, reclaimed: false, seen: None }
    }

    /// It has another stream.
    pub fn opened(&mut self) {
        self.reclaimed = false;
    }

    fn group(&self) -> GroupOf {
        ((self.plan.stream, self.plan.shard), self.plan.group)
    }

    /// The next request.
    pub fn request(
        &mut self,
        request_id: RequestId,
        around: &mut Surroundings<'_>,
        out: &mut BytesMut,
    ) -> Ticket {
        let group = self.group();
        while let Some((offset, attempts)) = self.held.pop_front() {
            match around.rng.below(100) {
                0..35 => {
                    let count = self.with_neighbours(offset);
                    return self.ack((offset, count), request_id, around, out);
                }
                _ if self.plan.drains => return self.ack((offset, 1), request_id, around, out),
                35..70 => return self.ack((offset, 1), request_id, around, out),
                70..85 => {
                    around.histories.queue(group).0.nacking(offset, around.now);
                    let delay_ms = if around.rng.chance(500_000) { 0 } else { around.rng.below(800) };
                    self.nack((offset, attempts), delay_ms, request_id, out);
                    return Ticket::Nack;
                }
                // Its claim lapses.
                _ => {}
            }
        }
        if self.plan.seek_ppm > 0 && around.rng.chance(self.plan.seek_ppm) {
            return self.seek(request_id, around, out);
        }
        match self.stage {
            Stage::Polling => self.poll(request_id, around, out),
            Stage::Describing => {
                self.message(Message::GroupDescribe, request_id, out);
                Ticket::Describe
            }
            Stage::Listing => {
                self.message(Message::GroupDeadLetters, request_id, out);
                Ticket::DeadLetters
            }
        }
    }

    /// Moves the group back, or forward to what somebody was handed.
    fn seek(&self, request_id: RequestId, around: &mut Surroundings<'_>, out: &mut BytesMut) -> Ticket {
        let to = self.seen.filter(|_| around.rng.chance(500_000));
        let number = around.histories.queue(self.group()).0.seeking(to.unwrap_or(0), around.now);
        let seek = GroupSeek {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream_name(self.plan.stream).into(),
            shard: ShardIndex(self.plan.shard),
            group: format!("g{}", self.plan.group).into(),
            start: to.map_or(StartPosition::Earliest, |to| StartPosition::Offset(Offset(to))),
            if_new: false,
            request_id,
        };
        Message::GroupSeek(seek).encode_frame(out);
        Ticket::Seek(number)
    }

    fn poll(&mut self, request_id: RequestId, around: &mut Surroundings<'_>, out: &mut BytesMut) -> Ticket {
        let holds = Duration::from_millis(self.plan.visibility_ms);
        let reclaims = self.plan.member.filter(|_| !std::mem::replace(&mut self.reclaimed, true));
        let queue = around.histories.queue(self.group()).0;
        let reclaim = reclaims.map(|member| queue.reclaiming(member, around.now));
        let poll = GroupPoll {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream_name(self.plan.stream).into(),
            shard: ShardIndex(self.plan.shard),
            group: format!("g{}", self.plan.group).into(),
            max_records: 1 + around.rng.below(u64::from(self.plan.records_max)) as u32,
            wait_ms: around.rng.below(self.plan.wait_ms + 1),
            request_id,
            consumer: self.plan.member.map(|member| format!("m{member}").into()),
            reclaim: reclaim.is_some(),
            visibility_ms: self.plan.visibility_ms,
            lease: None,
        };
        Message::GroupPoll(poll).encode_frame(out);
        Ticket::Poll { call: around.now, holds, reclaim }
    }

    fn message(
        &self,
        make: fn(GroupRequest<'static>) -> Message<'static>,
        request_id: RequestId,
        out: &mut BytesMut,
    ) {
        let request = GroupRequest {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream_name(self.plan.stream).into(),
            shard: ShardIndex(self.plan.shard),
            group: format!("g{}", self.plan.group).into(),
            request_id,
        };
        make(request).encode_frame(out);
    }

    /// How many records from this one on are to be acked with it: those that are held next, as long as they follow.
    fn with_neighbours(&mut self, offset: u64) -> u32 {
        let mut count = 1;
        while self.held.front().is_some_and(|(next, _)| *next == offset + u64::from(count)) {
            self.held.pop_front();
            count += 1;
        }
        count
    }

    fn ack(
        &self,
        (offset, count): (u64, u32),
        request_id: RequestId,
        around: &mut Surroundings<'_>,
        out: &mut BytesMut,
    ) -> Ticket {
        let queue = around.histories.queue(self.group()).0;
        (offset..offset + u64::from(count)).for_each(|offset| queue.acking(offset));
        let ack = GroupOffset {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream_name(self.plan.stream).into(),
            shard: ShardIndex(self.plan.shard),
            group: format!("g{}", self.plan.group).into(),
            offset: Offset(offset),
            request_id,
            lease: None,
            count: (count > 1).then_some(count),
        };
        Message::GroupAck(ack).encode_frame(out);
        Ticket::Ack { offset, count }
    }

    fn nack(&self, (offset, attempts): (u64, u32), delay_ms: u64, request_id: RequestId, out: &mut BytesMut) {
        let nack = GroupNack {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream_name(self.plan.stream).into(),
            shard: ShardIndex(self.plan.shard),
            group: format!("g{}", self.plan.group).into(),
            offset: Offset(offset),
            request_id,
            delay_ms,
            attempts,
            lease: None,
        };
        Message::GroupNack(nack).encode_frame(out);
    }

    /// An answer. False when there is nothing more to do.
    ///
    /// # Errors
    /// It is none, or what it says cannot be.
    pub fn answer(
        &mut self,
        ticket: Ticket,
        message: &Message<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<bool, String> {
        let group = self.group();
        match (ticket, message) {
            (Ticket::Poll { .. }, Message::GroupRecords(records)) => self.polled(ticket, records, around)?,
            (Ticket::Ack { offset, count }, Message::CacheOk(_)) => {
                let queue = around.histories.queue(group).0;
                (offset..offset + u64::from(count)).for_each(|offset| queue.acked(offset, around.now));
            }
            (Ticket::Nack, Message::CacheOk(_)) => {}
            (Ticket::Seek(number), Message::GroupPosition(position)) => {
                let queue = around.histories.queue(group).0;
                queue.sought(number, (position.offset.0, position.moved), around.now)?;
            }
            (Ticket::Describe, Message::GroupInfo(info)) => {
                let done = info.committed == Some(info.tail) && info.in_flight + info.owed == 0;
                let none = info.committed.is_none() && info.tail == Offset(0);
                self.stage = if done || none { Stage::Listing } else { Stage::Polling };
            }
            (Ticket::DeadLetters, Message::GroupDeadLetterList(list)) => {
                let dead = list.offsets.iter().map(|offset| offset.0).collect();
                around.histories.queue(group).0.dead = Some(dead);
                return Ok(false);
            }
            (ticket, other) => return Err(format!("{} is no answer to {ticket:?}", other.type_name())),
        }
        Ok(true)
    }

    fn polled(
        &mut self,
        ticket: Ticket,
        records: &GroupRecords<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<(), String> {
        let Ticket::Poll { call, holds, reclaim } = ticket else { return Ok(()) };
        let (group, ret) = (self.group(), around.now);
        if let Some(reclaim) = reclaim {
            around.histories.queue(group).0.reclaimed(reclaim, ret);
        }
        for polled in &records.records {
            let record = read_record(&polled.payload, group.0)?;
            around.model.seen_in_group(group.0, record)?;
            let member = self.plan.member;
            let handed = Handed { record, attempts: polled.attempts, call, ret, holds, member };
            let (queue, rules) = around.histories.queue(group);
            let rules = *rules;
            queue.handed(polled.offset.0, handed, &rules).map_err(|why| format!("{group:?}: {why}"))?;
            self.held.push_back((polled.offset.0, polled.attempts));
            self.seen = Some(polled.offset.0);
        }
        if self.plan.drains && records.records.is_empty() {
            self.stage = Stage::Describing;
        }
        Ok(())
    }

    /// A request was refused, or its answer is lost.
    pub fn refused(&mut self, ticket: Ticket, refused: &Refused, around: &mut Surroundings<'_>) {
        let queue = around.histories.queue(self.group()).0;
        match ticket {
            Ticket::Poll { .. } if refused.unknown => queue.lost_polls += 1,
            Ticket::Seek(number) if !refused.unknown => queue.not_sought(number),
            _ => {}
        }
    }
}
