//! Requests about a key of a cache, whichever form they came in. Scope: values that borrow from a message or its bytes.
//! Owns: what the seven of them have in common.
//! Not here: their JSON form (`cache`, `counter`), reading the binary one (`binary::key_request`).

use std::borrow::Cow;

use bytes::Bytes;

use super::Message;
use super::cache::{CacheCondition, CacheDelete, CacheDeleteIf, CacheGet, CachePut, CachePutIf};
use super::counter::{CounterAdd, CounterGet};
use crate::id::{ProducerId, RequestId, Sequence};

/// A request about a key (client-protocol 12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRequest<'a> {
    pub tenant: &'a str,
    pub namespace: &'a str,
    pub cache: &'a str,
    pub key: &'a str,
    /// JSON requests of some kinds may come without.
    pub request_id: Option<RequestId>,
    /// The value of those that bring one, else empty.
    pub value: &'a [u8],
    pub what: KeyWhat,
}

/// What is asked about the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyWhat {
    Get,
    Put { ttl_ms: Option<u64> },
    Delete,
    PutIf { ttl_ms: Option<u64>, condition: CacheCondition },
    DeleteIf { version: u64 },
    Add { delta: i64, producer_id: Option<ProducerId>, sequence: Option<Sequence> },
    CounterGet,
}

impl KeyWhat {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self, KeyWhat::Get | KeyWhat::CounterGet)
    }
}

impl<'a> KeyRequest<'a> {
    /// The request of a message, if it is one about a key; and its value, if it brings one.
    #[must_use]
    pub fn of(message: &'a Message<'_>) -> Option<(KeyRequest<'a>, Option<&'a Bytes>)> {
        macro_rules! of {
            ($m:ident, $id:expr, $value:expr, $what:expr) => {{
                let value: Option<&Bytes> = $value;
                let request = KeyRequest {
                    tenant: &$m.tenant_id,
                    namespace: &$m.namespace,
                    cache: &$m.cache,
                    key: &$m.key,
                    request_id: $id,
                    value: value.map_or(&[], |value| value),
                    what: $what,
                };
                Some((request, value))
            }};
        }
        match message {
            Message::CacheGet(m) => of!(m, m.request_id, None, KeyWhat::Get),
            Message::CachePut(m) => {
                of!(m, m.request_id, Some(&m.value), KeyWhat::Put { ttl_ms: m.ttl_ms })
            }
            Message::CacheDelete(m) => of!(m, m.request_id, None, KeyWhat::Delete),
            Message::CachePutIf(m) => {
                let (ttl_ms, condition) = (m.ttl_ms, m.condition);
                of!(m, Some(m.request_id), Some(&m.value), KeyWhat::PutIf { ttl_ms, condition })
            }
            Message::CacheDeleteIf(m) => {
                of!(m, Some(m.request_id), None, KeyWhat::DeleteIf { version: m.version })
            }
            Message::CounterAdd(m) => {
                let (delta, producer_id, sequence) = (m.delta, m.producer_id, m.sequence);
                of!(m, Some(m.request_id), None, KeyWhat::Add { delta, producer_id, sequence })
            }
            Message::CounterGet(m) => of!(m, Some(m.request_id), None, KeyWhat::CounterGet),
            _ => None,
        }
    }

    /// The message; `value` is its value as it may be held.
    pub(super) fn into_message(self, value: Bytes) -> Message<'a> {
        let KeyRequest { tenant, namespace, cache, key, request_id, what, .. } = self;
        let [tenant_id, namespace, cache, key] = [tenant, namespace, cache, key].map(Cow::Borrowed);
        let id = request_id.unwrap_or(RequestId(0));
        match what {
            KeyWhat::Get => Message::CacheGet(CacheGet { tenant_id, namespace, cache, key, request_id }),
            KeyWhat::Put { ttl_ms } => {
                Message::CachePut(CachePut { tenant_id, namespace, cache, key, value, request_id, ttl_ms })
            }
            KeyWhat::Delete => {
                Message::CacheDelete(CacheDelete { tenant_id, namespace, cache, key, request_id })
            }
            KeyWhat::PutIf { ttl_ms, condition } => {
                let request_id = id;
                let of =
                    CachePutIf { tenant_id, namespace, cache, key, value, ttl_ms, condition, request_id };
                Message::CachePutIf(of)
            }
            KeyWhat::DeleteIf { version } => {
                let request_id = id;
                let of = CacheDeleteIf { tenant_id, namespace, cache, key, version, request_id };
                Message::CacheDeleteIf(of)
            }
            KeyWhat::Add { delta, producer_id, sequence } => {
                let request_id = id;
                let of =
                    CounterAdd { tenant_id, namespace, cache, key, delta, request_id, producer_id, sequence };
                Message::CounterAdd(of)
            }
            KeyWhat::CounterGet => {
                Message::CounterGet(CounterGet { tenant_id, namespace, cache, key, request_id: id })
            }
        }
    }
}
