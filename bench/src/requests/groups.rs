//! Records of one shard's group, page by page: claimed by a poll, finished each by an ack. Scope: one run.
//! Invariants: one poll is unanswered at a time, and it is asked behind the acks of the page before it; every record has the
//! length of the shape; when none is left the group begins with the first record again.
//! Not here: when requests are sent (`talk`), publishing the records (`load`).

use std::collections::VecDeque;

use bytes::BytesMut;
use felix_wire::client::{Form, GroupOffset, GroupPoll, GroupSeek, Message, StartPosition};
use felix_wire::id::{Offset, RequestId, ShardIndex};

use super::talk::{Done, Work};
use super::{PAGE_RECORDS, RequestPlan};
use crate::target::Target;

const GROUP: &str = "bench";

/// What is asked when nothing is left to finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Seek,
    Poll,
    /// The answer of one of them.
    Wait,
}

/// See the module.
pub struct Pages {
    target: Target,
    record_bytes: usize,
    claimed: VecDeque<Offset>,
    next: Next,
    begun: bool,
}

impl Pages {
    pub fn new(plan: &RequestPlan) -> Pages {
        Pages {
            target: plan.target.clone(),
            record_bytes: plan.shape.record_bytes as usize,
            claimed: VecDeque::new(),
            next: Next::Seek,
            begun: false,
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
            (Some(offset), _) => Message::GroupAck(GroupOffset {
                tenant_id,
                namespace,
                stream,
                shard,
                group,
                offset,
                request_id,
                lease: None,
            }),
            (None, Next::Wait) => return false,
            (None, Next::Seek) => Message::GroupSeek(GroupSeek {
                tenant_id,
                namespace,
                stream,
                shard,
                group,
                start: StartPosition::Earliest,
                if_new: false,
                request_id,
            }),
            (None, Next::Poll) => Message::GroupPoll(GroupPoll {
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
            }),
        };
        if !matches!(message, Message::GroupAck(_)) {
            self.next = Next::Wait;
        }
        message.encode_frame_as(form, out);
        true
    }

    fn answered(&mut self, message: &Message<'_>) -> Option<(RequestId, Done)> {
        match message {
            Message::GroupRecords(page) => {
                if page.records.iter().any(|record| record.payload.len() != self.record_bytes) {
                    return None;
                }
                self.claimed.extend(page.records.iter().map(|record| record.offset));
                self.next = if page.records.is_empty() { Next::Seek } else { Next::Poll };
                self.begun |= !page.records.is_empty();
                Some((page.request_id, Done::Aside))
            }
            Message::GroupPosition(position) => {
                self.next = Next::Poll;
                Some((position.request_id, Done::Aside))
            }
            Message::CacheOk(ok) => Some((ok.request_id, Done::Counted(self.record_bytes as u64))),
            _ => None,
        }
    }

    fn is_prepared(&self) -> bool {
        self.begun
    }
}
