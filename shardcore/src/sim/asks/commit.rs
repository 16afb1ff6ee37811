//! Atomic commits to one shard of a stream, and questions about the state that they make. Scope: one per stream of requests.
//! Invariants: the event of a commit is a record of a lane of its own, so that it is looked for in the log as any other; the
//! value that it puts names it.
//! Not here: the stream (`super`), whether answers can be true (`history::commit`).

use bytes::{Bytes, BytesMut};
use felix_wire::client::{Change, Commit, Message, StateGet};
use felix_wire::id::{RequestId, ShardIndex};

use super::{Refused, Ticket};
use crate::sim::ask_plan::CommitPlan;
use crate::sim::broker::stream_name;
use crate::sim::check::{Fate, RecordId, ShardKey};
use crate::sim::client::Surroundings;
use crate::sim::credentials::{NAMESPACE, TENANT};
use crate::sim::history::commit::{Changes, Told};
use crate::sim::publisher::{RECORD_HEAD, read_record, record};

/// See the module.
#[derive(Debug)]
pub struct CommitErrand {
    plan: CommitPlan,
    /// For one that reads every key.
    next_key: u32,
    again: Vec<u32>,
}

impl CommitErrand {
    /// One that has committed nothing.
    pub fn new(plan: CommitPlan) -> CommitErrand {
        CommitErrand { plan, next_key: 0, again: Vec::new() }
    }

    fn shard(&self) -> ShardKey {
        (self.plan.stream, self.plan.shard)
    }

    /// The next request.
    pub fn request(
        &mut self,
        request_id: RequestId,
        around: &mut Surroundings<'_>,
        out: &mut BytesMut,
    ) -> Ticket {
        let reads = self.plan.reads_all || around.rng.chance(400_000);
        if !reads {
            return self.commit(request_id, around, out);
        }
        let key = match self.plan.reads_all {
            true => self.again.pop().unwrap_or_else(|| {
                self.next_key += 1;
                self.next_key - 1
            }),
            false => around.rng.below(u64::from(self.plan.keys)) as u32,
        };
        let get = StateGet {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream_name(self.plan.stream).into(),
            entity_key: Bytes::from_static(b"entity"),
            key: format!("k{key}").into(),
            request_id,
            shard: Some(ShardIndex(self.plan.shard)),
        };
        Message::StateGet(get).encode_frame(out);
        Ticket::State { key, call: around.now }
    }

    fn commit(&self, request_id: RequestId, around: &mut Surroundings<'_>, out: &mut BytesMut) -> Ticket {
        let shard = self.shard();
        let lane = around.model.lane();
        let made = RecordId { lane, seq: around.model.send(around.now, shard, lane, true) };
        let first = around.rng.below(u64::from(self.plan.keys)) as u32;
        let count = 1 + around.rng.below(u64::from(self.plan.keys)) as u32;
        let keys = (0..count).map(|next| (first + next) % self.plan.keys);
        let changes: Changes = keys.map(|key| (key, around.rng.chance(800_000))).collect();
        let value = Bytes::from(record(made, shard, RECORD_HEAD + around.rng.below(300) as usize));
        let change = |(key, puts): &(u32, bool)| match puts {
            true => Change::Put { key: format!("k{key}").into(), value: value.clone() },
            false => Change::Delete { key: format!("k{key}").into() },
        };
        let commit = Commit {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream_name(self.plan.stream).into(),
            entity_key: Bytes::from_static(b"entity"),
            event: value.clone(),
            changes: changes.iter().map(change).collect(),
            request_id,
            expected_offset: None,
            shard: Some(ShardIndex(self.plan.shard)),
            producer_id: None,
            sequence: None,
        };
        Message::Commit(commit).encode_frame(out);
        around.histories.commits.commit(shard, made, changes);
        Ticket::Commit(made)
    }

    /// An answer.
    ///
    /// # Errors
    /// It is none, or has a value that nobody committed.
    pub fn answer(
        &mut self,
        ticket: Ticket,
        message: &Message<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<(), String> {
        let shard = self.shard();
        match (ticket, message) {
            (Ticket::Commit(made), Message::CommitOk(ok)) => {
                around.model.settle(around.now, (shard, made, 1), Fate::Acked, Some(ok.offset.0));
                around.histories.commits.committed(shard, made, ok.offset.0, around.now);
            }
            (Ticket::State { key, call }, Message::StateValue(state)) => {
                let value = match (&state.value, state.version) {
                    (Some(value), Some(version)) => Some((read_record(value, shard)?, version)),
                    (None, None) => None,
                    (value, version) => {
                        return Err(format!("a value without its version: {value:?} {version:?}"));
                    }
                };
                around.histories.commits.told(Told { shard, key, call, value, as_of: state.as_of });
            }
            (ticket, other) => return Err(format!("{} is no answer to {ticket:?}", other.type_name())),
        }
        Ok(())
    }

    /// A request was refused, or its answer is lost.
    pub fn refused(&mut self, ticket: Ticket, refused: &Refused, around: &mut Surroundings<'_>) {
        match ticket {
            Ticket::Commit(made) if !refused.unknown => {
                around.model.settle(around.now, (self.shard(), made, 1), Fate::Refused, None);
            }
            Ticket::State { key, .. } if self.plan.reads_all => self.again.push(key),
            _ => {}
        }
    }
}
