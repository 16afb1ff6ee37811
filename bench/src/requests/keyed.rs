//! Requests about keys of one cache or its counters, key after key. Scope: one run.
//! Invariants: keys that are read were written before the window; every value has the length of the shape.
//! Not here: when they are sent (`talk`).

use std::fmt::Write;

use bytes::{Bytes, BytesMut};
use felix_wire::client::{CacheGet, CachePut, CounterAdd, Form, Message};
use felix_wire::id::RequestId;

use super::talk::{Done, Work};
use super::{RequestKind, RequestPlan};
use crate::target::Target;

/// See the module.
pub struct Keyed {
    target: Target,
    kind: RequestKind,
    /// How many, and the one that is asked about.
    keys: usize,
    key: String,
    value: Bytes,
    /// Puts that have to be asked and answered before values can be read.
    to_fill: usize,
    unfilled: usize,
    next: usize,
}

impl Keyed {
    pub fn new(plan: &RequestPlan) -> Keyed {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut noise = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 56) as u8
        };
        let to_fill = if plan.kind == RequestKind::CacheGet { plan.keys } else { 0 };
        Keyed {
            target: plan.target.clone(),
            kind: plan.kind,
            keys: plan.keys,
            key: String::new(),
            value: (0..plan.shape.record_bytes).map(|_| noise()).collect(),
            to_fill,
            unfilled: to_fill,
            next: 0,
        }
    }

    /// For a server that answers with values it was not given.
    pub fn unprepared(plan: &RequestPlan) -> Keyed {
        Keyed { to_fill: 0, unfilled: 0, ..Keyed::new(plan) }
    }
}

fn write_key(out: &mut String, number: usize) -> std::fmt::Result {
    write!(out, "key-{number:04}")
}

/// The name of a key.
pub(super) fn key_of(number: usize) -> String {
    let mut key = String::new();
    // Writing to text does not fail.
    let _ = write_key(&mut key, number);
    key
}

impl Work for Keyed {
    fn ask(&mut self, id: RequestId, form: Form, out: &mut BytesMut) -> bool {
        let fills = self.to_fill > 0;
        if !fills && self.unfilled > 0 {
            return false;
        }
        self.key.clear();
        if write_key(&mut self.key, self.next).is_err() {
            return false;
        }
        let Target { tenant, namespace, stream: cache, .. } = &self.target;
        let (tenant_id, namespace, cache) =
            (tenant.as_str().into(), namespace.as_str().into(), cache.as_str().into());
        let key = self.key.as_str().into();
        self.next = (self.next + 1) % self.keys;
        self.to_fill -= usize::from(fills);
        let kind = if fills { RequestKind::CachePut } else { self.kind };
        let message = match kind {
            RequestKind::CachePut => Message::CachePut(CachePut {
                tenant_id,
                namespace,
                cache,
                key,
                value: self.value.clone(),
                request_id: Some(id),
                ttl_ms: None,
            }),
            RequestKind::CounterAdd => Message::CounterAdd(CounterAdd {
                tenant_id,
                namespace,
                cache,
                key,
                delta: 1,
                request_id: id,
                producer_id: None,
                sequence: None,
            }),
            RequestKind::CacheGet | RequestKind::GroupPage => {
                Message::CacheGet(CacheGet { tenant_id, namespace, cache, key, request_id: Some(id) })
            }
        };
        message.encode_frame_as(form, out);
        true
    }

    fn answered(&mut self, message: &Message<'_>) -> Option<(RequestId, Done)> {
        let bytes = self.value.len() as u64;
        match message {
            Message::CacheOk(ok) if self.unfilled > 0 => {
                self.unfilled -= 1;
                Some((ok.request_id, Done::Aside))
            }
            // What a sink says to anything that tells no value.
            Message::CacheOk(ok) if self.kind != RequestKind::CacheGet => {
                Some((ok.request_id, Done::Counted { times: 1, bytes }))
            }
            Message::CacheValue(found) if self.kind == RequestKind::CacheGet && self.unfilled == 0 => {
                let whole = found.value.as_ref().is_some_and(|value| value.len() as u64 == bytes);
                found.request_id.filter(|_| whole).map(|id| (id, Done::Counted { times: 1, bytes }))
            }
            Message::CounterValue(sum) if self.kind == RequestKind::CounterAdd => {
                sum.value.map(|_| (sum.request_id, Done::Counted { times: 1, bytes: 8 }))
            }
            _ => None,
        }
    }

    fn is_prepared(&self) -> bool {
        self.unfilled == 0
    }
}
