//! Requests about the keys of a cache. Scope: one per stream. Owns: the versions that it was told last.
//! Invariants: the bytes of a value say which put of which key wrote it.
//! Not here: the stream (`super`), whether answers can be true (`history::register`).

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use felix_wire::client::{
    CacheCondition, CacheDelete, CacheDeleteIf, CacheGet, CachePut, CachePutIf, Message,
};
use felix_wire::id::RequestId;

use super::{Refused, Ticket};
use crate::sim::ask_plan::CachePlan;
use crate::sim::broker::cache_name;
use crate::sim::client::Surroundings;
use crate::sim::credentials::{NAMESPACE, TENANT};
use crate::sim::history::register::{KeyAsk, KeyTold, Outcome};

/// Bytes of a value that say what wrote it.
const VALUE_HEAD: usize = 12;

/// See the module.
#[derive(Debug)]
pub struct CacheErrand {
    plan: CachePlan,
    versions: BTreeMap<u32, u64>,
    /// For one that reads every key.
    next_key: u32,
    again: Vec<u32>,
}

impl CacheErrand {
    /// One that knows of nothing yet.
    pub fn new(plan: CachePlan) -> CacheErrand {
        CacheErrand { plan, versions: BTreeMap::new(), next_key: 0, again: Vec::new() }
    }

    /// The next request.
    pub fn request(
        &mut self,
        request_id: RequestId,
        around: &mut Surroundings<'_>,
        out: &mut BytesMut,
    ) -> Ticket {
        let (key, what) =
            if self.plan.reads_all { (self.key_to_read(), KeyAsk::Get) } else { self.draw(around) };
        let op = around.histories.ask_key((self.plan.cache, key), around.now, what);
        let pad = around.rng.below(self.plan.value_max.max(1) as u64) as usize;
        self.message(key, what, || value(key, op, pad), request_id).encode_frame(out);
        Ticket::Key(key, op)
    }

    fn key_to_read(&mut self) -> u32 {
        self.again.pop().unwrap_or_else(|| {
            self.next_key += 1;
            self.next_key - 1
        })
    }

    fn draw(&self, around: &mut Surroundings<'_>) -> (u32, KeyAsk) {
        let rng = &mut *around.rng;
        let key = rng.below(u64::from(self.plan.keys)) as u32;
        let ttl_ms = rng.chance(self.plan.ttl_ppm).then(|| rng.below(6_000));
        let known = self.versions.get(&key).copied();
        let what = match (rng.below(12), known) {
            (0..4, _) => KeyAsk::Get,
            (4..7, _) => KeyAsk::Put { ttl_ms },
            (7, _) => KeyAsk::PutIfAbsent { ttl_ms },
            (8..10, Some(version)) => KeyAsk::PutIf { version, ttl_ms },
            (10, Some(version)) => KeyAsk::DeleteIf { version },
            (11, _) => KeyAsk::Delete,
            _ => KeyAsk::Get,
        };
        (key, what)
    }

    /// A request; `value`: the bytes that it puts, if it does.
    fn message(
        &self,
        key: u32,
        what: KeyAsk,
        value: impl FnOnce() -> Bytes,
        request_id: RequestId,
    ) -> Message<'static> {
        let (tenant_id, namespace) = (TENANT.into(), NAMESPACE.into());
        let (cache, key) = (cache_name(self.plan.cache).into(), format!("k{key}").into());
        let (condition, ttl_ms) = match what {
            KeyAsk::Get => {
                let request_id = Some(request_id);
                return Message::CacheGet(CacheGet { tenant_id, namespace, cache, key, request_id });
            }
            KeyAsk::Put { ttl_ms } => {
                let (value, request_id) = (value(), Some(request_id));
                let put = CachePut { tenant_id, namespace, cache, key, value, request_id, ttl_ms };
                return Message::CachePut(put);
            }
            KeyAsk::Delete => {
                let request_id = Some(request_id);
                return Message::CacheDelete(CacheDelete { tenant_id, namespace, cache, key, request_id });
            }
            KeyAsk::DeleteIf { version } => {
                let delete = CacheDeleteIf { tenant_id, namespace, cache, key, version, request_id };
                return Message::CacheDeleteIf(delete);
            }
            KeyAsk::Wipe => unreachable!("nobody asks that"),
            KeyAsk::PutIfAbsent { ttl_ms } => (CacheCondition::Absent, ttl_ms),
            KeyAsk::PutIf { version, ttl_ms } => (CacheCondition::Version(version), ttl_ms),
        };
        let value = value();
        let put = CachePutIf { tenant_id, namespace, cache, key, value, ttl_ms, condition, request_id };
        Message::CachePutIf(put)
    }

    /// An answer.
    ///
    /// # Errors
    /// It is none, or has a value that nobody wrote.
    pub fn answer(
        &mut self,
        ticket: Ticket,
        message: &Message<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<(), String> {
        let Ticket::Key(key, op) = ticket else { return Err(format!("{ticket:?} of a cache")) };
        let told = match message {
            Message::CacheValue(m) => {
                let put = m.value.as_ref().map(|value| put_of(key, value)).transpose()?;
                if let Some(version) = m.version {
                    self.versions.insert(key, version);
                }
                KeyTold::Value(put, m.version)
            }
            Message::CacheOk(_) => KeyTold::Written,
            Message::CacheConditionResult(m) => {
                match m.version {
                    Some(version) => self.versions.insert(key, version),
                    None => self.versions.remove(&key),
                };
                KeyTold::Condition { applied: m.applied, version: m.version }
            }
            other => return Err(format!("{} is no answer about a key", other.type_name())),
        };
        around.histories.key_done((self.plan.cache, key), op, Outcome::Told(around.now, told));
        Ok(())
    }

    /// A request was refused, or its answer is lost.
    pub fn refused(&mut self, ticket: Ticket, refused: &Refused, around: &mut Surroundings<'_>) {
        if let Ticket::Key(key, op) = ticket {
            around.histories.key_done((self.plan.cache, key), op, refused.outcome());
            if self.plan.reads_all {
                self.again.push(key);
            }
        }
    }
}

fn value(key: u32, op: usize, pad: usize) -> Bytes {
    let mut value = Vec::with_capacity(VALUE_HEAD + pad);
    value.extend_from_slice(&key.to_be_bytes());
    value.extend_from_slice(&(op as u64).to_be_bytes());
    value.resize(VALUE_HEAD + pad, (op % 251) as u8);
    value.into()
}

/// Which put wrote a value.
pub fn put_of(key: u32, value: &[u8]) -> Result<usize, String> {
    let read = || {
        let named = u32::from_be_bytes(value.get(..4)?.try_into().ok()?);
        let op = u64::from_be_bytes(value.get(4..VALUE_HEAD)?.try_into().ok()?);
        let filled = value.get(VALUE_HEAD..)?.iter().all(|byte| u64::from(*byte) == op % 251);
        (named == key && filled).then_some(op as usize)
    };
    read().ok_or_else(|| format!("a value of {} bytes that was never put to key {key}", value.len()))
}
