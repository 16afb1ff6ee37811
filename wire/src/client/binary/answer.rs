//! Answers to requests about keys, written into heads that were built once. Scope: functions of `binary`.
//! Invariants: what is written is what the builder writes for the same message (`tests/binary_messages.rs` compares the two).
//! Not here: all other messages (`encode`): these answers are many and differ in numbers only.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::borrow::Cow;
use std::sync::OnceLock;

use bytes::{Bytes, BytesMut};
use flatbuffers::FlatBufferBuilder;

use super::{Form, Tail, begin_frame, encode};
use crate::client::Message;
use crate::client::cache::{CacheConditionResult, CacheOk, CacheValue};
use crate::client::counter::CounterValue;
use crate::id::RequestId;

/// Numbers that stand where those of a message go, and nowhere else in a head.
const REQUEST_ID: RequestId = RequestId(0x5265_7175_6573_7421);
const NUMBER: u64 = 0x4e75_6d62_6572_2121;

/// The heads, by what they say besides numbers.
static HEADS: OnceLock<[Head; 8]> = OnceLock::new();

/// A head without its numbers, and where they go.
#[derive(Default)]
struct Head {
    bytes: Vec<u8>,
    request_id_at: usize,
    number_at: Option<usize>,
}

impl Head {
    fn of(message: &Message<'_>) -> Head {
        let mut builder = FlatBufferBuilder::new();
        if encode::head(message, &mut builder).is_none() {
            return Head::default();
        }
        let bytes = builder.finished_data().to_vec();
        let find = |number: u64| bytes.windows(size_of::<u64>()).position(|at| at == number.to_le_bytes());
        let (request_id_at, number_at) = (find(REQUEST_ID.0), find(NUMBER));
        request_id_at.map_or_else(Head::default, |request_id_at| Head { bytes, request_id_at, number_at })
    }
}

fn heads() -> &'static [Head; 8] {
    let value = |found: bool, version| {
        let value = found.then(Bytes::new);
        let [tenant_id, namespace, cache, key] = [const { Cow::Borrowed("") }; 4];
        let request_id = Some(REQUEST_ID);
        Message::CacheValue(CacheValue { tenant_id, namespace, cache, key, value, request_id, version })
    };
    let condition = |applied, version| {
        Message::CacheConditionResult(CacheConditionResult { applied, version, request_id: REQUEST_ID })
    };
    HEADS.get_or_init(|| {
        [
            Message::CacheOk(CacheOk { request_id: REQUEST_ID }),
            value(false, None),
            value(true, None),
            value(true, Some(NUMBER)),
            condition(true, Some(NUMBER)),
            condition(false, Some(NUMBER)),
            condition(false, None),
            Message::CounterValue(CounterValue { value: Some(NUMBER.cast_signed()), request_id: REQUEST_ID }),
        ]
        .map(|message| Head::of(&message))
    })
}

/// Which head a message has, and its numbers. `None` for one that has none of them.
fn shape(message: &Message<'_>) -> Option<(usize, RequestId, Option<u64>)> {
    Some(match message {
        Message::CacheOk(m) => (0, m.request_id, None),
        Message::CacheValue(m) => {
            let index = value_head(m.value.is_some(), m.version)?;
            (index, m.request_id?, m.version)
        }
        Message::CacheConditionResult(m) => {
            let index = match (m.applied, m.version) {
                (true, Some(_)) => 4,
                (false, Some(_)) => 5,
                (false, None) => 6,
                (true, None) => return None,
            };
            (index, m.request_id, m.version)
        }
        Message::CounterValue(m) => (7, m.request_id, Some(m.value?.cast_unsigned())),
        _ => return None,
    })
}

/// Appends the frame of such an answer up to its tail, which is given. `None`, with nothing appended, for another message.
pub(super) fn write(message: &Message<'_>, out: &mut BytesMut) -> Option<Bytes> {
    let (index, request_id, number) = shape(message)?;
    let tail = match message {
        Message::CacheValue(CacheValue { value: Some(value), .. }) => Tail::Value(value),
        _ => Tail::Nothing,
    };
    write_head(index, (request_id, number), (tail.len(), tail.room()), out)?;
    match tail {
        Tail::Value(value) => Some(value.clone()),
        Tail::Nothing | Tail::Payloads(_) => Some(Bytes::new()),
    }
}

/// Appends the frame up to its tail of so many bytes, and makes room for so many. `None`, with nothing appended, when there is
/// no such head: the builder leaves a number out that is the default of its member.
fn write_head(
    index: usize,
    (request_id, number): (RequestId, Option<u64>),
    tail: (usize, usize),
    out: &mut BytesMut,
) -> Option<()> {
    let head = heads().get(index).filter(|head| !head.bytes.is_empty() && request_id.0 != 0)?;
    let from = begin_frame(out, &head.bytes, tail);
    let numbers = [Some((head.request_id_at, request_id.0)), head.number_at.zip(number)];
    for (at, number) in numbers.into_iter().flatten() {
        if let Some(place) = out.get_mut(from + at..from + at + size_of::<u64>()) {
            place.copy_from_slice(&number.to_le_bytes());
        }
    }
    Some(())
}

/// Appends the whole frame of a `cache_value` in the binary form.
///
/// # Panics
/// When it is longer than 32 bits can say.
pub fn encode_value(
    (request_id, version): (RequestId, Option<u64>),
    value: Option<&[u8]>,
    out: &mut BytesMut,
) {
    let tail = value.unwrap_or(&[]);
    let written = value_head(value.is_some(), version)
        .and_then(|index| write_head(index, (request_id, version), (tail.len(), tail.len()), out));
    if written.is_some() {
        return out.extend_from_slice(tail);
    }
    let [tenant_id, namespace, cache, key] = [const { Cow::Borrowed("") }; 4];
    let (value, request_id) = (value.map(Bytes::copy_from_slice), Some(request_id));
    let message =
        Message::CacheValue(CacheValue { tenant_id, namespace, cache, key, value, request_id, version });
    message.encode_frame_as(Form::Binary, out);
}

fn value_head(found: bool, version: Option<u64>) -> Option<usize> {
    match (found, version) {
        (false, None) => Some(1),
        (true, None) => Some(2),
        (true, Some(_)) => Some(3),
        (false, Some(_)) => None,
    }
}
