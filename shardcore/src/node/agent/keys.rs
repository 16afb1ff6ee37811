//! The verification keys of each tenant, and when to ask for them. Sans-io. Scope: per process, on the admin thread.
//! Owns: the key sets fetched so far and the questions in flight.
//! Invariants: at most `FETCHES_MAX` questions at once and one for each tenant; an unknown key id costs one question
//! per tenant and `RETRY_AFTER`, however many tokens name it; a failed question leaves the keys as they are; every
//! request is answered, by `Answered` now or by the change that its question makes (control-plane-api 2.2).
//! Not here: checking tokens (`access`), HTTP (`api`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use felix_runtime::Tick;
use felix_wire::control::Jwks;
use jsonwebtoken::DecodingKey;

use crate::snapshot::{KEYS_STAND_FOR, Keys, TenantKeys};

/// A key set is asked again after this long: a retired key verifies at most that much longer.
const FRESH_FOR: Duration = Duration::from_secs(3_600);
/// An outcome, good or bad, stands for this long before an unknown key id leads to a new question.
const RETRY_AFTER: Duration = KEYS_STAND_FOR;
/// Questions at once.
pub const FETCHES_MAX: usize = 8;
/// Tenants that may wait for a question; more are answered with what is there.
const WAITING_MAX: usize = 1_024;
/// Keys taken from one set: the current one and those that only verify; more are not needed by any rotation.
const KEYS_PER_TENANT_MAX: usize = 64;

#[derive(Default)]
struct Entry {
    keys: Option<TenantKeys>,
    in_flight: bool,
    waiting: bool,
    /// End of the last question, and whether it failed.
    asked_at: Option<Tick>,
    /// When the keys were fetched.
    fetched_at: Option<Tick>,
}

impl Entry {
    fn snapshot(&self) -> TenantKeys {
        TenantKeys { fetched_at: self.fetched_at, ..self.keys.clone().unwrap_or_default() }
    }
}

/// What a core's request leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Send the cores a snapshot now: nothing better will come soon.
    Answer,
    /// A question is in flight or waiting; its outcome is the answer.
    Wait,
}

/// Key sets by tenant.
#[derive(Default)]
pub struct KeyCache {
    tenants: BTreeMap<Arc<str>, Entry>,
    queue: VecDeque<Arc<str>>,
    in_flight: usize,
    version: u64,
    changed: bool,
}

impl KeyCache {
    /// A core met a token of `tenant` with the unknown key `kid`. `known` says whether the catalog holds the tenant;
    /// for others nobody is asked.
    pub fn request(&mut self, tenant: &Arc<str>, kid: &str, known: bool, now: Tick) -> Request {
        if !known {
            return Request::Answer;
        }
        let entry = self.tenants.entry(Arc::clone(tenant)).or_default();
        if entry.in_flight || entry.waiting {
            return Request::Wait;
        }
        let has = entry.keys.as_ref().is_some_and(|k| k.keys.iter().any(|(id, _)| **id == *kid));
        let recent = entry.asked_at.is_some_and(|at| now.saturating_since(at) < RETRY_AFTER);
        if has || recent || self.queue.len() >= WAITING_MAX {
            return Request::Answer;
        }
        entry.waiting = true;
        self.queue.push_back(Arc::clone(tenant));
        Request::Wait
    }

    /// The next tenant to ask for. It counts as asked until `fetched`.
    pub fn next_fetch(&mut self, now: Tick) -> Option<Arc<str>> {
        if self.in_flight >= FETCHES_MAX {
            return None;
        }
        let tenant = match self.queue.pop_front() {
            Some(tenant) => tenant,
            None => self.stale(now)?,
        };
        let entry = self.tenants.entry(Arc::clone(&tenant)).or_default();
        entry.waiting = false;
        entry.in_flight = true;
        self.in_flight += 1;
        Some(tenant)
    }

    /// When a key set gets stale next.
    pub fn next_due(&self) -> Option<Tick> {
        let due = |entry: &Entry| {
            if entry.in_flight || entry.waiting {
                return None;
            }
            let stale = entry.fetched_at? + FRESH_FOR;
            Some(entry.asked_at.map_or(stale, |at| stale.max(at + RETRY_AFTER)))
        };
        self.tenants.values().filter_map(due).min()
    }

    /// The outcome of a question; `None` is a failure. Cores get a snapshot either way.
    pub fn fetched(&mut self, tenant: &Arc<str>, jwks: Option<&Jwks>, now: Tick) {
        self.changed = true;
        let Some(entry) = self.tenants.get_mut(tenant) else { return };
        if std::mem::take(&mut entry.in_flight) {
            self.in_flight -= 1;
        }
        entry.asked_at = Some(now);
        if let Some(jwks) = jwks {
            entry.fetched_at = Some(now);
            entry.keys = Some(usable(jwks));
        }
    }

    /// Forgets tenants that the catalog no longer holds.
    pub fn retain(&mut self, known: impl Fn(&str) -> bool) {
        let before = self.tenants.len();
        self.tenants.retain(|tenant, entry| entry.in_flight || entry.waiting || known(tenant));
        self.changed |= self.tenants.len() != before;
    }

    /// Whether a new snapshot is due since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// A snapshot of all keys, newer than every one before. A tenant that was asked for and has none is in it, empty.
    pub fn snapshot(&mut self) -> Keys {
        self.version += 1;
        let tenants = self
            .tenants
            .iter()
            .filter(|(_, entry)| entry.asked_at.is_some())
            .map(|(tenant, entry)| (Arc::clone(tenant), entry.snapshot()))
            .collect();
        Keys { version: self.version, tenants }
    }

    fn stale(&self, now: Tick) -> Option<Arc<str>> {
        self.tenants
            .iter()
            .find(|(_, entry)| {
                !entry.in_flight
                    && entry.fetched_at.is_some_and(|at| now.saturating_since(at) >= FRESH_FOR)
                    && entry.asked_at.is_none_or(|at| now.saturating_since(at) >= RETRY_AFTER)
            })
            .map(|(tenant, _)| Arc::clone(tenant))
    }
}

/// The Ed25519 signing keys of a set; anything else in it cannot verify a Felix token.
fn usable(jwks: &Jwks) -> TenantKeys {
    let keys = jwks
        .keys
        .iter()
        .filter(|key| key.kty == "OKP" && key.crv == "Ed25519" && key.alg == "EdDSA" && key.use_ == "sig")
        .filter_map(|key| Some((Arc::from(key.kid.as_str()), DecodingKey::from_ed_components(&key.x).ok()?)))
        .take(KEYS_PER_TENANT_MAX)
        .collect();
    TenantKeys { keys, fetched_at: None }
}
