//! Commits, keyed state and the log of the test broker's stream.

use std::collections::{BTreeMap, HashMap};

use felix_sdk::{Bytes, ErrorCode, Offset, shard_for};
use felix_wire::client::{
    Change, Commit, CommitOk, CursorErrorReason, Message, OffsetValue, PublishIf, PublishOk, RefusalReason,
    StateValue, StreamRead, StreamRecord, StreamRecords, SubscribeCursorError,
};
use felix_wire::id::{Sequence, ShardIndex};

use super::State;
use super::session::No;

/// Records of one page.
const PAGE: usize = 4;

/// By shard and key, and what producers have committed.
#[derive(Debug, Default)]
pub struct Commits {
    pub values: BTreeMap<(u32, String), (Bytes, u64)>,
    /// By shard and producer: the offset of each number.
    pub numbers: HashMap<(u32, u64), Vec<u64>>,
    pub last: Option<u64>,
}

/// Append time of a record, microseconds: its offset in milliseconds after one second.
fn appended(offset: u64) -> u64 {
    1_000_000 + offset * 1_000
}

/// What such a request is answered with; `None` for any other.
pub fn answer(s: &mut State, message: &Message<'_>) -> Option<Result<Message<'static>, No>> {
    Some(match message {
        Message::Commit(m) => commit(s, m),
        Message::StateGet(m) => {
            let shard = shard_of(s, Some(&m.entity_key), m.shard);
            let found = s.commits.values.get(&(shard, m.key.to_string())).cloned();
            let (value, version) = found.unzip();
            let as_of = s.commits.last;
            Ok(Message::StateValue(StateValue { value, version, as_of, request_id: m.request_id }))
        }
        Message::PublishIf(m) => publish_if(s, m),
        Message::StreamRead(m) => Ok(read(s, m)),
        Message::OffsetForTime(m) => {
            let tail = s.records[m.shard.get() as usize].len() as u64;
            let offset = (0..tail).find(|offset| appended(*offset) >= m.at_micros).map(Offset);
            Ok(Message::OffsetValue(OffsetValue { offset, request_id: m.request_id }))
        }
        _ => return None,
    })
}

fn shard_of(s: &State, key: Option<&Bytes>, named: Option<ShardIndex>) -> u32 {
    let hashed = shard_for(key.map(|key| &**key), s.shards, s.mapping);
    named.unwrap_or(hashed).get()
}

fn commit(s: &mut State, m: &Commit<'_>) -> Result<Message<'static>, No> {
    let shard = shard_of(s, Some(&m.entity_key), m.shard);
    let number = m.producer_id.zip(m.sequence).map(|(id, sequence)| (id.get(), sequence.get()));
    let ok = |offset| Ok(Message::CommitOk(CommitOk { request_id: m.request_id, offset: Offset(offset) }));
    if let Some((producer, sequence)) = number {
        let known = s.commits.numbers.entry((shard, producer)).or_default();
        if sequence > known.len() as u64 {
            let expected = Sequence(known.len() as u64);
            return Err(No::Number(RefusalReason::SequenceGap { expected }));
        }
        if let Some(offset) = known.get(sequence as usize) {
            return ok(*offset);
        }
    }
    let tail = s.records[shard as usize].len() as u64;
    if m.expected_offset.is_some_and(|expected| expected.get() != tail) {
        return Err(No::Number(RefusalReason::OffsetMismatch { tail: Offset(tail) }));
    }
    s.records[shard as usize].push(m.event.clone());
    for change in &m.changes {
        match change {
            Change::Put { key, value } => {
                s.commits.values.insert((shard, key.to_string()), (value.clone(), tail));
            }
            Change::Delete { key } => {
                s.commits.values.remove(&(shard, key.to_string()));
            }
        }
    }
    s.commits.last = Some(tail);
    if let Some((producer, _)) = number {
        s.commits.numbers.entry((shard, producer)).or_default().push(tail);
    }
    ok(tail)
}

fn publish_if(s: &mut State, m: &PublishIf<'_>) -> Result<Message<'static>, No> {
    let shard = shard_of(s, m.key.as_ref(), m.shard) as usize;
    let tail = Offset(s.records[shard].len() as u64);
    if m.expected_offset != tail {
        return Err(No::Number(RefusalReason::OffsetMismatch { tail }));
    }
    s.records[shard].extend(m.payloads.iter().map(Bytes::copy_from_slice));
    Ok(Message::PublishOk(PublishOk { request_id: m.request_id, offset: Some(tail) }))
}

fn read(s: &State, m: &StreamRead<'_>) -> Message<'static> {
    let log = &s.records[m.shard.get() as usize];
    let (from, tail) = (m.from.get(), log.len() as u64);
    let (reason, available) = match from {
        from if from < s.held_from => (CursorErrorReason::TooOld, s.held_from),
        from if from > tail => (CursorErrorReason::InFuture, tail),
        _ => {
            let most = if m.max_records == 0 { PAGE } else { PAGE.min(m.max_records as usize) };
            let end = m.end.map_or(tail, |end| end.get().min(tail)).min(from + most as u64);
            let record = |offset: u64| StreamRecord {
                offset: Offset(offset),
                payload: log[offset as usize].clone(),
                publisher: None,
                timestamp_micros: appended(offset),
            };
            return Message::StreamRecords(StreamRecords {
                records: (from..end).map(record).collect(),
                next_offset: Offset(end.max(from)),
                request_id: m.request_id,
            });
        }
    };
    let (requested, available) = (m.from, Offset(available));
    Message::SubscribeCursorError(SubscribeCursorError { reason, requested, available })
}

/// What a stream that keeps no such thing says.
pub fn not_durable() -> No {
    No::Code(ErrorCode::InvalidRequest, Some("not_durable"))
}
