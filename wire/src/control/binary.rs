//! The FlatBuffers form of the assignment feed, asked for by `Accept: application/x-flatbuffers`.
//! Owns: conversion both ways; the documents of this module's parent stay the only types others see.
//! Invariants: input is verified before it is read, with limits that follow its size; what encodes decodes to the same.

use flatbuffers::{FlatBufferBuilder, ForwardsUOffset, Vector, VerifierOptions, WIPOffset};

use super::{
    Assignment, AssignmentChange, AssignmentKey, AssignmentOp, AssignmentState, Changes, KeyRouting,
    MoveReason, ResourceKind, Snapshot,
};
use crate::generated::assignment::felix::assignment as fb;

/// Media type of this form.
pub const MEDIA_TYPE: &str = "application/x-flatbuffers";

/// Deepest nesting of tables: feed, changes, change, assignment, key.
const DEPTH_MAX: usize = 8;
/// Smallest table a buffer can hold: a vtable offset.
const TABLE_BYTES_MIN: usize = 4;

/// Why bytes are not a feed document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BinaryError {
    #[error("the document is not of this form")]
    Identifier,
    #[error("the document is damaged: {0}")]
    Invalid(String),
    #[error("the document holds {0} where another was expected")]
    OtherBody(&'static str),
    #[error("the document holds an unknown value of {0}")]
    UnknownValue(&'static str),
}

type Fbb<'a> = FlatBufferBuilder<'a>;

/// The snapshot as one buffer.
pub fn encode_snapshot(snapshot: &Snapshot<Assignment>) -> Vec<u8> {
    let mut b = FlatBufferBuilder::new();
    let items: Vec<_> = snapshot.items.iter().map(|item| put_assignment(&mut b, item)).collect();
    let items = Some(b.create_vector(&items));
    let body = fb::Snapshot::create(&mut b, &fb::SnapshotArgs { next_seq: snapshot.next_seq, items });
    finish(b, fb::Body::Snapshot, body.as_union_value())
}

/// The changes as one buffer.
pub fn encode_changes(changes: &Changes<AssignmentChange>) -> Vec<u8> {
    let mut b = FlatBufferBuilder::new();
    let items: Vec<_> = changes.items.iter().map(|item| put_change(&mut b, item)).collect();
    let items = Some(b.create_vector(&items));
    let body = fb::Changes::create(&mut b, &fb::ChangesArgs { next_seq: changes.next_seq, items });
    finish(b, fb::Body::Changes, body.as_union_value())
}

/// Reads what [`encode_snapshot`] wrote; arbitrary bytes are an error.
pub fn decode_snapshot(bytes: &[u8]) -> Result<Snapshot<Assignment>, BinaryError> {
    let feed = verified(bytes)?;
    let body = feed.body_as_snapshot().ok_or(BinaryError::OtherBody("changes"))?;
    let items = body.items().iter().map(take_assignment).collect::<Result<_, _>>()?;
    Ok(Snapshot { items, next_seq: body.next_seq() })
}

/// Reads what [`encode_changes`] wrote; arbitrary bytes are an error.
pub fn decode_changes(bytes: &[u8]) -> Result<Changes<AssignmentChange>, BinaryError> {
    let feed = verified(bytes)?;
    let body = feed.body_as_changes().ok_or(BinaryError::OtherBody("a snapshot"))?;
    let items = body.items().iter().map(take_change).collect::<Result<_, _>>()?;
    Ok(Changes { items, next_seq: body.next_seq() })
}

fn verified(bytes: &[u8]) -> Result<fb::Feed<'_>, BinaryError> {
    // Length first: the identifier check of the library reads bytes 4 to 8 unasked.
    if bytes.len() < 8 || !fb::feed_buffer_has_identifier(bytes) {
        return Err(BinaryError::Identifier);
    }
    // Our encoder shares no bytes but vtables, so what the tables show may be a small multiple of the buffer; more is an
    // attempt to make few bytes decode into many.
    let limits = VerifierOptions {
        max_depth: DEPTH_MAX,
        max_tables: bytes.len() / TABLE_BYTES_MIN,
        max_apparent_size: bytes.len().saturating_mul(4),
        ignore_missing_null_terminator: false,
    };
    fb::root_as_feed_with_opts(&limits, bytes).map_err(|e| BinaryError::Invalid(e.to_string()))
}

fn finish(mut b: Fbb<'_>, body_type: fb::Body, body: WIPOffset<flatbuffers::UnionWIPOffset>) -> Vec<u8> {
    let feed = fb::Feed::create(&mut b, &fb::FeedArgs { body_type, body: Some(body) });
    fb::finish_feed_buffer(&mut b, feed);
    b.finished_data().to_vec()
}

fn put_key<'a>(b: &mut Fbb<'a>, key: &AssignmentKey) -> WIPOffset<fb::Key<'a>> {
    let args = fb::KeyArgs {
        tenant_id: Some(b.create_string(&key.tenant_id)),
        namespace: Some(b.create_string(&key.namespace)),
        stream: Some(b.create_string(&key.stream)),
        shard: key.shard,
        kind: match key.kind {
            ResourceKind::Stream => fb::Kind::Stream,
            ResourceKind::Cache => fb::Kind::Cache,
        },
    };
    fb::Key::create(b, &args)
}

fn put_assignment<'a>(b: &mut Fbb<'a>, a: &Assignment) -> WIPOffset<fb::Assignment<'a>> {
    let replicas: Vec<_> = a.replicas.iter().map(|id| b.create_string(id)).collect();
    let args = fb::AssignmentArgs {
        key: Some(put_key(b, &a.key)),
        leader: Some(b.create_string(&a.leader)),
        replicas: Some(b.create_vector(&replicas)),
        generation: a.generation,
        incarnation: a.incarnation,
        state: match a.state {
            AssignmentState::Assigning => fb::State::Assigning,
            AssignmentState::Active => fb::State::Active,
            AssignmentState::Draining => fb::State::Draining,
        },
        successor: a.successor.as_ref().map(|id| b.create_string(id)),
        joining: a.joining.as_ref().map(|id| b.create_string(id)),
        move_started_at_millis: a.move_started_at_millis,
        move_reason: match a.move_reason {
            None => fb::MoveReason::None,
            Some(MoveReason::Drain) => fb::MoveReason::Drain,
            Some(MoveReason::Balance) => fb::MoveReason::Balance,
            Some(MoveReason::Operator) => fb::MoveReason::Operator,
            Some(MoveReason::Replace) => fb::MoveReason::Replace,
        },
        routing: match a.routing {
            None | Some(KeyRouting::Modulo) => fb::Routing::Modulo,
            Some(KeyRouting::JumpHash) => fb::Routing::JumpHash,
        },
    };
    fb::Assignment::create(b, &args)
}

fn put_change<'a>(b: &mut Fbb<'a>, change: &AssignmentChange) -> WIPOffset<fb::Change<'a>> {
    let args = fb::ChangeArgs {
        seq: change.seq,
        op: match change.op {
            AssignmentOp::Assigned => fb::Op::Assigned,
            AssignmentOp::Updated => fb::Op::Updated,
            AssignmentOp::Unassigned => fb::Op::Unassigned,
        },
        key: Some(put_key(b, &change.key)),
        assignment: change.assignment.as_ref().map(|a| put_assignment(b, a)),
        generation: change.generation,
        incarnation: change.incarnation,
    };
    fb::Change::create(b, &args)
}

fn take_key(key: fb::Key<'_>) -> Result<AssignmentKey, BinaryError> {
    Ok(AssignmentKey {
        tenant_id: key.tenant_id().to_owned(),
        namespace: key.namespace().to_owned(),
        kind: match key.kind() {
            fb::Kind::Stream => ResourceKind::Stream,
            fb::Kind::Cache => ResourceKind::Cache,
            _ => return Err(BinaryError::UnknownValue("kind")),
        },
        stream: key.stream().to_owned(),
        shard: key.shard(),
    })
}

fn take_assignment(a: fb::Assignment<'_>) -> Result<Assignment, BinaryError> {
    Ok(Assignment {
        key: take_key(a.key())?,
        leader: a.leader().to_owned(),
        replicas: a.replicas().map(take_strings).unwrap_or_default(),
        generation: a.generation(),
        state: match a.state() {
            fb::State::Assigning => AssignmentState::Assigning,
            fb::State::Active => AssignmentState::Active,
            fb::State::Draining => AssignmentState::Draining,
            _ => return Err(BinaryError::UnknownValue("state")),
        },
        successor: a.successor().map(str::to_owned),
        joining: a.joining().map(str::to_owned),
        move_started_at_millis: a.move_started_at_millis(),
        move_reason: match a.move_reason() {
            fb::MoveReason::None => None,
            fb::MoveReason::Drain => Some(MoveReason::Drain),
            fb::MoveReason::Balance => Some(MoveReason::Balance),
            fb::MoveReason::Operator => Some(MoveReason::Operator),
            fb::MoveReason::Replace => Some(MoveReason::Replace),
            _ => return Err(BinaryError::UnknownValue("move_reason")),
        },
        routing: match a.routing() {
            fb::Routing::Modulo => None,
            fb::Routing::JumpHash => Some(KeyRouting::JumpHash),
            _ => return Err(BinaryError::UnknownValue("routing")),
        },
        incarnation: a.incarnation(),
    })
}

fn take_strings(list: Vector<'_, ForwardsUOffset<&str>>) -> Vec<String> {
    list.iter().map(str::to_owned).collect()
}

fn take_change(change: fb::Change<'_>) -> Result<AssignmentChange, BinaryError> {
    Ok(AssignmentChange {
        seq: change.seq(),
        op: match change.op() {
            fb::Op::Assigned => AssignmentOp::Assigned,
            fb::Op::Updated => AssignmentOp::Updated,
            fb::Op::Unassigned => AssignmentOp::Unassigned,
            _ => return Err(BinaryError::UnknownValue("op")),
        },
        key: take_key(change.key())?,
        assignment: change.assignment().map(take_assignment).transpose()?,
        generation: change.generation(),
        incarnation: change.incarnation(),
    })
}

#[cfg(test)]
mod tests;
