//! `auth`: who a stream speaks for, and for how long (client-protocol 4).
//! Scope: functions of a session. Invariants: an identity is (tenant, subject); a newer token of it, on any stream of the
//! connection, replaces its rights and extends it; once its last token has run out it is served nothing.

use felix_runtime::clock::Tick;
use felix_runtime::quic::{Dir, StreamId, VarInt};
use felix_wire::client::{Auth, AuthOk, Message};
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::frame::Frame;

use super::acks::AckDialect;
use super::refusal::Refusal;
use super::stream::{ClientWords, Phase};
use super::{Cx, IDENTITIES_MAX, Identity, KEYS_WAIT, Session, write_error};
use crate::access::{Principal, TokenClock, Verdict};
use crate::turn::counters::Counter;
use crate::turn::tenants::Tenants;
use std::sync::Arc;

/// Flag bits this broker reads or writes.
const SERVER_FLAGS: Flags = Flags(0x1fff);
/// The part of what a connection may hold of unfinished frames that the header of one may claim, once its stream has
/// authenticated: a frame that is put together in one place is copied once.
const TRUSTED_SHARE: usize = 16;

/// What this broker serves; a bit is added by the code that serves it.
pub const SERVER_FEATURES: Features = Features::TOPOLOGY
    .union(Features::REDIRECT)
    .union(Features::STREAM_SHARDS)
    .union(Features::CACHE_DELETE)
    .union(Features::COUNTERS)
    .union(Features::CACHE_SHARDS)
    .union(Features::CACHE_CONDITIONAL)
    .union(Features::CACHE_WATCH)
    .union(Features::CACHE_WATCH_RETAINED)
    .union(Features::ERROR_CODES)
    .union(Features::SHARD_MOVED)
    .union(Features::UNSUPPORTED)
    .union(Features::PUBLISH_PIPELINE)
    .union(Features::STREAM_PUBLISH_WINDOW)
    .union(Features::SHARD_OWNERS)
    .union(Features::SUBSCRIBE_QUEUE)
    .union(Features::STREAM_DELETED)
    .union(Features::SUBSCRIPTION_LAGGED)
    .union(Features::IDEMPOTENT_PRODUCER)
    .union(Features::SEQUENCE_REUSED)
    .union(Features::PUBLISH_WIDTH)
    .union(Features::EXPLICIT_SHARD)
    .union(Features::INSPECT)
    .union(Features::CORE_HINTS)
    .union(Features::POSITIONS)
    .union(Features::ORDERED_ANSWERS)
    .union(Features::NUMBERED_WRITES)
    .union(Features::BINARY_MESSAGES)
    .union(Features::GROUP_LEASES)
    .union(Features::GROUP_RANGES);

/// What is served only where there are folders for logs.
const LOGGED: Features = Features::CONSUMER_GROUP
    .union(Features::GROUP_DEAD_LETTERS)
    .union(Features::GROUP_CONSUMER)
    .union(Features::GROUP_SKIPPED)
    .union(Features::GROUP_ADMIN)
    .union(Features::GROUP_CLAIM_CONTROL)
    .union(Features::GROUP_LEASES)
    .union(Features::GROUP_RANGES)
    .union(Features::ATOMIC_COMMIT)
    .union(Features::PUBLISH_CONDITIONAL)
    .union(Features::STREAM_READ)
    .union(Features::RECORD_TIMESTAMPS);

/// Bits only our own clients know; not announced to others.
const PRIVATE: Features = Features::CORE_HINTS
    .union(Features::POSITIONS)
    .union(Features::ORDERED_ANSWERS)
    .union(Features::NUMBERED_WRITES)
    .union(Features::BINARY_MESSAGES)
    .union(Features::GROUP_LEASES)
    .union(Features::GROUP_RANGES);

impl Session {
    /// The first frame of a stream.
    pub(super) fn authenticate(&mut self, id: StreamId, frame: Frame, cx: &mut Cx<'_>) {
        let message = if frame.flags == 0 { Message::decode(&frame.payload).ok() } else { None };
        let Some(Message::Auth(auth)) = message else {
            if message.is_none() {
                self.violation(cx);
            }
            return self.refuse_auth(id, &Refusal::unauthenticated(), "no auth first", cx);
        };
        let words = client_words(&auth);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.dialect.codes = words.features.contains(Features::ERROR_CODES);
        }
        if cx.draining {
            return self.refuse_auth(id, &Refusal::draining(), "draining", cx);
        }
        self.check_token(id, (&auth.tenant_id, &auth.token), words, None, cx);
    }

    /// Newer keys or routes are there: streams that wait for keys are decided by them, or go on waiting.
    pub fn keys_changed(&mut self, cx: &mut Cx<'_>) -> Vec<StreamId> {
        let waiting = |p: &Phase| matches!(p, Phase::WaitingKeys { .. });
        let ids: Vec<StreamId> = self.streams.values().filter(|s| waiting(&s.phase)).map(|s| s.id).collect();
        for id in &ids {
            let Some(stream) = self.streams.get_mut(id) else { continue };
            let phase = std::mem::replace(&mut stream.phase, Phase::Silent);
            if let Phase::WaitingKeys { tenant, token, client, since } = phase {
                self.check_token(*id, (&tenant, &token), client, Some(since), cx);
            }
            self.flush(*id, cx);
        }
        ids
    }

    /// Streams that have waited for keys for too long are refused: it is not the token that is at fault.
    pub(super) fn refuse_waiting(&mut self, cx: &mut Cx<'_>) {
        self.keys_due = None;
        let mut late = Vec::new();
        for stream in self.streams.values() {
            let Phase::WaitingKeys { since, .. } = stream.phase else { continue };
            if cx.now >= since + KEYS_WAIT {
                late.push(stream.id);
            } else {
                let due = since + KEYS_WAIT;
                self.keys_due = Some(self.keys_due.map_or(due, |at| at.min(due)));
            }
        }
        for id in late {
            self.refuse_auth(id, &Refusal::no_keys(), "no key set in time", cx);
            self.flush(id, cx);
        }
    }

    /// Whether a stream waits for keys.
    pub fn waits_for_keys(&self) -> bool {
        self.streams.values().any(|s| matches!(s.phase, Phase::WaitingKeys { .. }))
    }

    fn check_token(
        &mut self,
        id: StreamId,
        (tenant, token): (&str, &str),
        words: ClientWords,
        asked: Option<Tick>,
        cx: &mut Cx<'_>,
    ) {
        let clock = TokenClock { now_s: cx.now_s, leeway_s: cx.limits.token_leeway.as_secs() };
        // Before the catalog has been read the tenant may be there.
        let asks = !cx.routes.is_known() || cx.routes.has_tenant(tenant);
        let answered = asked.is_some_and(|since| cx.keys.answers(tenant, since));
        match cx.access.verify(tenant, token, clock, cx.keys, answered || !asks) {
            Verdict::Accepted(principal) => self.accept(id, principal, words, cx),
            Verdict::Refused { why } => self.refuse_auth(id, &Refusal::unauthenticated(), why, cx),
            Verdict::NeedKeys { kid } => {
                let Some(stream) = self.streams.get_mut(&id) else { return };
                let tenant: Arc<str> = tenant.into();
                let since = asked.unwrap_or(cx.now);
                stream.phase = Phase::WaitingKeys {
                    tenant: Arc::clone(&tenant),
                    token: token.into(),
                    client: words,
                    since,
                };
                let due = since + KEYS_WAIT;
                self.keys_due = Some(self.keys_due.map_or(due, |at| at.min(due)));
                if asked.is_none() {
                    cx.actions.push(super::Action::NeedKeys { tenant, kid });
                }
            }
        }
    }

    fn accept(&mut self, id: StreamId, principal: Arc<Principal>, words: ClientWords, cx: &mut Cx<'_>) {
        if !self.is_authenticated() {
            // Strangers get fewer, as each costs memory.
            cx.quic.set_max_concurrent_streams(self.key, Dir::Bi, cx.limits.streams_max);
            // Out of the core's budget; a connection that comes too late keeps the small window it has.
            let left = cx.limits.windows_bytes_max.saturating_sub(*cx.windows_bytes);
            let window = (cx.limits.conn_window as usize).min(left);
            if window > cx.limits.conn_window_before_auth as usize {
                *cx.windows_bytes += window;
                self.window_bytes = window;
                cx.quic.set_receive_window(self.key, window as u64);
            }
        }
        let Some(identity) = self.identity_of(principal, cx.tenants) else {
            return self.refuse_auth(id, &Refusal::limit("too many identities"), "too many identities", cx);
        };
        self.no_identity_since = None;
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.phase = Phase::Open { identity };
        stream.reader.set_max_payload(cx.limits.frame_bytes_max);
        stream.reader.trust(cx.limits.partial_frame_bytes_max / TRUSTED_SHARE);
        stream.features = words.features;
        if words.features.contains(Features::BINARY_MESSAGES) {
            stream.reader.take_binary_messages();
        }
        let ordered = words.features.contains(Features::PUBLISH_PIPELINE);
        stream.dialect = AckDialect {
            ordered,
            codes: words.features.contains(Features::ERROR_CODES),
            flags: words.flags.map_or(Flags::UNANNOUNCED, |f| f),
            reads_reused: words.features.contains(Features::SEQUENCE_REUSED),
            positions: words.features.contains(Features::POSITIONS),
        };
        cx.counters.add(Counter::AuthAccepted, 1);
        if id.dir() == Dir::Uni {
            return; // never answered (client-protocol 7.4)
        }
        if words.flags.is_none() {
            Message::Ok.encode_frame(stream.answers());
            return;
        }
        let hints = words.features.contains(Features::CORE_HINTS);
        let served = if cx.limits.has_logs { SERVER_FEATURES.union(LOGGED) } else { SERVER_FEATURES };
        let told = if words.features.intersection(PRIVATE) == Features::NONE {
            served.without(PRIVATE)
        } else {
            served
        };
        let (lo, hi) = told.words(words.extended);
        let answer = AuthOk {
            server_flags: SERVER_FLAGS,
            server_features: Some(lo),
            server_features_hi: hi,
            listener_ports: None,
            publish_window: ordered.then_some(cx.limits.publish_window),
            cores: hints.then_some(u32::from(cx.cores)),
            core: hints.then_some(cx.core),
        };
        Message::AuthOk(answer).encode_frame(stream.answers());
    }

    fn refuse_auth(&mut self, id: StreamId, refusal: &Refusal, why: &'static str, cx: &mut Cx<'_>) {
        cx.counters.add(Counter::AuthRefused, 1);
        tracing::debug!(why, "a stream was not authenticated");
        let Some(stream) = self.streams.get_mut(&id) else { return };
        write_error(stream, refusal);
        if !stream.read_done {
            cx.quic.stop_sending(self.key, id, VarInt::from_u32(0));
        }
        self.read_no_more(id);
    }

    /// Nothing when the connection speaks for too many already.
    fn identity_of(&mut self, principal: Arc<Principal>, tenants: &mut Tenants) -> Option<usize> {
        let same =
            |i: &Identity| i.principal.tenant == principal.tenant && i.principal.subject == principal.subject;
        let Some(at) = self.identities.iter().position(same) else {
            if self.identities.len() >= IDENTITIES_MAX {
                return None;
            }
            let tenant = tenants.slot(&principal.tenant);
            self.identities.push(Identity { principal, tenant, expired: false });
            return Some(self.identities.len() - 1);
        };
        let held = &mut self.identities[at];
        if principal.expires_s >= held.principal.expires_s {
            held.principal = principal;
        }
        held.expired = false;
        Some(at)
    }

    /// Marks identities whose last token has run out, and returns them.
    pub(super) fn expire_identities(&mut self, cx: &mut Cx<'_>) -> Vec<usize> {
        let leeway = cx.limits.token_leeway.as_secs();
        let mut ended = Vec::new();
        for (at, identity) in self.identities.iter_mut().enumerate() {
            if !identity.expired && identity.principal.expires_s.saturating_add(leeway) <= cx.now_s {
                identity.expired = true;
                ended.push(at);
            }
        }
        if !ended.is_empty() && self.identities.iter().all(|i| i.expired) {
            self.no_identity_since.get_or_insert(cx.now);
        }
        ended
    }
}

fn client_words(auth: &Auth<'_>) -> ClientWords {
    ClientWords {
        flags: auth.client_flags,
        features: Features::announced(auth.client_features, auth.client_features_hi),
        extended: auth.client_features.is_some_and(|lo| lo & Features::EXTENDED.lo != 0),
    }
}
