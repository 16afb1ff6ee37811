//! Requests about a key of a cache in their binary form, read in one pass. Scope: functions of `binary`.
//! Invariants: what is read here is what the verifier of `flatbuffers` accepts, under the same limits (`tests/binary_messages.rs`
//! compares the two on damaged heads); no bytes panic.
//! Not here: all other heads, which are verified first and read then (`decode`): these requests are many and small.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use super::decode::STRAY_TAIL;
use super::{DAMAGED, HEAD_PREFIX_LEN, apparent_size_max, fb};
use crate::client::cache::CacheCondition;
use crate::client::key_request::{KeyRequest, KeyWhat};
use crate::frame::DecodeError;
use crate::id::{ProducerId, RequestId, Sequence};

/// Bytes of a field of a vtable, and of what comes before the first one.
const VFIELD: usize = 2;
const VFIELDS_FROM: u16 = 4;

impl<'a> KeyRequest<'a> {
    /// Reads the payload of a frame with the flags `BINARY_MESSAGE`; `None` when it is of another kind, or too damaged to
    /// tell: [`crate::client::Message::decode_binary`] says which.
    ///
    /// # Errors
    /// `Malformed` for a request about a key whose head is damaged, or that has a tail and may have none.
    #[must_use]
    pub fn read(payload: &'a [u8]) -> Option<Result<KeyRequest<'a>, DecodeError>> {
        let (head_len, rest) = payload.split_first_chunk::<HEAD_PREFIX_LEN>()?;
        let (head, tail) = rest.split_at_checked(u32::from_be_bytes(*head_len) as usize)?;
        let mut reader = Reader { head, left: apparent_size_max(head) };
        let root = reader.table_at(0)?;
        let request_id = RequestId(reader.u64(&root, fb::Head::VT_REQUEST_ID)?.unwrap_or(0));
        let body = reader.field(&root, fb::Head::VT_BODY)??;
        let kind = reader.field(&root, fb::Head::VT_BODY_TYPE)??;
        let kind = fb::Body(*reader.range(kind, 1)?.first()?);
        if !(fb::Body::CachePut.0..=fb::Body::CounterGet.0).contains(&kind.0) {
            return None;
        }
        let stray = !tail.is_empty() && !matches!(kind, fb::Body::CachePut | fb::Body::CachePutIf);
        let request = body_of(&mut reader, (kind, request_id), body, tail);
        Some(request.ok_or(DAMAGED).and_then(|request| if stray { Err(STRAY_TAIL) } else { Ok(request) }))
    }
}

fn body_of<'a>(
    reader: &mut Reader<'a>,
    (kind, request_id): (fb::Body, RequestId),
    body: usize,
    value: &'a [u8],
) -> Option<KeyRequest<'a>> {
    let body = reader.table_at(body)?;
    // The key is the first member of every one of them.
    let key = reader.field(&body, fb::CacheGet::VT_KEY)??;
    let key = reader.table_at(key)?;
    let tenant = reader.text(&key, fb::Key::VT_TENANT)?;
    let namespace = reader.text(&key, fb::Key::VT_NAMESPACE)?;
    let cache = reader.text(&key, fb::Key::VT_CACHE)?;
    let key = reader.text(&key, fb::Key::VT_KEY)?;
    let what = match kind {
        fb::Body::CachePut => KeyWhat::Put { ttl_ms: reader.u64(&body, fb::CachePut::VT_TTL_MS)? },
        fb::Body::CacheGet => KeyWhat::Get,
        fb::Body::CacheDelete => KeyWhat::Delete,
        fb::Body::CachePutIf => {
            let ttl_ms = reader.u64(&body, fb::CachePutIf::VT_TTL_MS)?;
            let version = reader.u64(&body, fb::CachePutIf::VT_VERSION)?;
            let condition = version.map_or(CacheCondition::Absent, CacheCondition::Version);
            KeyWhat::PutIf { ttl_ms, condition }
        }
        fb::Body::CacheDeleteIf => {
            KeyWhat::DeleteIf { version: reader.u64(&body, fb::CacheDeleteIf::VT_VERSION)?.unwrap_or(0) }
        }
        fb::Body::CounterAdd => KeyWhat::Add {
            delta: reader.u64(&body, fb::CounterAdd::VT_DELTA)?.unwrap_or(0).cast_signed(),
            producer_id: reader.u64(&body, fb::CounterAdd::VT_PRODUCER_ID)?.map(ProducerId),
            sequence: reader.u64(&body, fb::CounterAdd::VT_SEQUENCE)?.map(Sequence),
        },
        fb::Body::CounterGet => KeyWhat::CounterGet,
        _ => return None,
    };
    let request_id = Some(request_id);
    Some(KeyRequest { tenant, namespace, cache, key, request_id, value, what })
}

/// Where a table is, and its vtable.
struct Table {
    at: usize,
    vtable: usize,
    vtable_len: usize,
}

/// Reads a head as the verifier of `flatbuffers` does: every stretch lies in the head and is counted each time it is met.
struct Reader<'a> {
    head: &'a [u8],
    /// Bytes that may still be met.
    left: usize,
}

impl<'a> Reader<'a> {
    #[inline]
    fn range(&mut self, at: usize, len: usize) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(len)?;
        self.head.get(at..at.checked_add(len)?)
    }

    /// A number, where numbers of its size may be.
    #[inline]
    fn number<const LEN: usize>(&mut self, at: usize) -> Option<[u8; LEN]> {
        let range = self.range(at, LEN)?;
        if at.is_multiple_of(LEN) { range.first_chunk().copied() } else { None }
    }

    /// Where the offset at `at` leads.
    #[inline]
    fn offset(&mut self, at: usize) -> Option<usize> {
        at.checked_add(u32::from_le_bytes(self.number(at)?) as usize)
    }

    #[inline]
    fn table_at(&mut self, at: usize) -> Option<Table> {
        let table = self.offset(at)?;
        self.table(table)
    }

    #[inline]
    fn table(&mut self, at: usize) -> Option<Table> {
        let back = i32::from_le_bytes(self.number(at)?);
        let distance = back.unsigned_abs() as usize;
        let vtable = if back > 0 { at.checked_sub(distance) } else { at.checked_add(distance) }?;
        let vtable_len = usize::from(u16::from_le_bytes(self.number(vtable)?));
        self.range(vtable, vtable_len)?;
        vtable_len.is_multiple_of(VFIELD).then_some(Table { at, vtable, vtable_len })
    }

    /// Where a member of a table is. The outer `None` is damage.
    #[inline]
    #[expect(clippy::option_option, reason = "damage and absence are different")]
    fn field(&mut self, table: &Table, field: u16) -> Option<Option<usize>> {
        debug_assert!(field >= VFIELDS_FROM);
        if usize::from(field) >= table.vtable_len {
            return Some(None);
        }
        let distance = u16::from_le_bytes(self.number(table.vtable.checked_add(usize::from(field))?)?);
        Some((distance > 0).then(|| table.at.saturating_add(usize::from(distance))))
    }

    #[expect(clippy::option_option, reason = "damage and absence are different")]
    #[inline]
    fn u64(&mut self, table: &Table, field: u16) -> Option<Option<u64>> {
        match self.field(table, field)? {
            Some(at) => Some(Some(u64::from_le_bytes(self.number(at)?))),
            None => Some(None),
        }
    }

    /// A text that has to be there.
    #[inline]
    fn text(&mut self, table: &Table, field: u16) -> Option<&'a str> {
        let at = self.field(table, field)??;
        let at = self.offset(at)?;
        let len = u32::from_le_bytes(self.number(at)?) as usize;
        let from = at.checked_add(size_of::<u32>())?;
        let bytes = self.range(from, len)?;
        let ends = self.head.get(from.checked_add(len)?) == Some(&0);
        std::str::from_utf8(bytes).ok().filter(|_| ends)
    }
}
