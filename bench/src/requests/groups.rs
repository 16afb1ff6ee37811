//! Records of one shard's group, page by page: claimed by polls, finished by an ack for every run of neighbours that
//! came together. Scope: one run.
//! Invariants: at most [`POLLS`] polls are unanswered; every record has the length of the shape; when none is left, and
//! everything asked is answered, the group begins with the first record again.
//! Not here: when requests are sent (`talk`), publishing the records (`load`).

use std::collections::VecDeque;

use bytes::BytesMut;
use felix_wire::client::{Form, GroupOffset, GroupPoll, GroupSeek, Message, StartPosition};
use felix_wire::id::{Offset, RequestId, ShardIndex};
use felix_wire::limits::GROUP_POLL_RECORDS_MAX;

use super::talk::{Done, Work};
use super::{PAGE_RECORDS, RequestPlan};
use crate::target::Target;

const GROUP: &str = "bench";
/// Polls that are unanswered at once, as a consumer has them that reads ahead.
const POLLS: u32 = 64;
/// Records of one ack at most: pages that came together are finished together.
const ACK_RECORDS_MAX: u32 = GROUP_POLL_RECORDS_MAX;

/// What is asked when nothing is left to finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// When everything is answered.
    Seek,
    Poll,
    /// The answer to the seek.
    Wait,
}

/// See the module.
pub struct Pages {
    target: Target,
    record_bytes: usize,
    /// Runs that are to be finished: the first record of each, and how many.
    claimed: VecDeque<(Offset, u32)>,
    /// Records of each unanswered ack.
    acking: VecDeque<u32>,
    polls: u32,
    next: Next,
    begun: bool,
}

impl Pages {
    pub fn new(plan: &RequestPlan) -> Pages {
        Pages {
            target: plan.target.clone(),
            record_bytes: plan.shape.record_bytes as usize,
            claimed: VecDeque::new(),
            acking: VecDeque::new(),
            polls: 0,
            next: Next::Seek,
            begun: false,
        }
    }

    fn claim(&mut self, offset: Offset) {
        match self.claimed.back_mut() {
            Some((first, count)) if first.0 + u64::from(*count) == offset.0 && *count < ACK_RECORDS_MAX => {
                *count += 1;
            }
            _ => self.claimed.push_back((offset, 1)),
        }
    }
}

impl Work for Pages {
    fn ask(&mut self, request_id: RequestId, form: Form, out: &mut BytesMut) -> bool {
        let (tenant_id, namespace, stream) = (
            self.target.tenant.as_str().into(),
            self.target.namespace.as_str().into(),
            self.target.stream.as_str().into(),
        );
        let (shard, group) = (ShardIndex(0), GROUP.into());
        let message = match (self.claimed.pop_front(), self.next) {
            (Some((offset, count)), _) => {
                self.acking.push_back(count);
                Message::GroupAck(GroupOffset {
                    tenant_id,
                    namespace,
                    stream,
                    shard,
                    group,
                    offset,
                    request_id,
                    lease: None,
                    count: Some(count),
                })
            }
            (None, Next::Seek) if self.polls == 0 && self.acking.is_empty() => {
                self.next = Next::Wait;
                Message::GroupSeek(GroupSeek {
                    tenant_id,
                    namespace,
                    stream,
                    shard,
                    group,
                    start: StartPosition::Earliest,
                    if_new: false,
                    request_id,
                })
            }
            (None, Next::Poll) if self.polls < POLLS => {
                self.polls += 1;
                Message::GroupPoll(GroupPoll {
                    tenant_id,
                    namespace,
                    stream,
                    shard,
                    group,
                    max_records: PAGE_RECORDS,
                    wait_ms: 0,
                    request_id,
                    consumer: None,
                    reclaim: false,
                    visibility_ms: 0,
                    lease: None,
                })
            }
            (None, _) => return false,
        };
        message.encode_frame_as(form, out);
        true
    }

    fn answered(&mut self, message: &Message<'_>) -> Option<(RequestId, Done)> {
        match message {
            Message::GroupRecords(page) => {
                if page.records.iter().any(|record| record.payload.len() != self.record_bytes) {
                    return None;
                }
                self.polls = self.polls.checked_sub(1)?;
                page.records.iter().for_each(|record| self.claim(record.offset));
                if page.records.is_empty() {
                    self.next = Next::Seek;
                }
                self.begun |= !page.records.is_empty();
                Some((page.request_id, Done::Aside))
            }
            Message::GroupPosition(position) => {
                self.next = Next::Poll;
                Some((position.request_id, Done::Aside))
            }
            Message::CacheOk(ok) => {
                let times = self.acking.pop_front()?;
                Some((ok.request_id, Done::Counted { times, bytes: self.record_bytes as u64 }))
            }
            _ => None,
        }
    }

    fn is_prepared(&self) -> bool {
        self.begun
    }
}
