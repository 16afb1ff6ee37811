//! Who may do what. Sans-io: time and keys are arguments.
//! Scope: one per core. Owns: the cache of verified tokens, bounded and by expiry.
//! Invariants: a `Granted` is made here only; a principal leaves here only for a token whose signature, issuer, audience,
//! tenant and times were checked; every refusal of a token is the same message.
//! Not here: where a granted request goes (`route`), when an identity ends (`session`).

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use felix_wire::control::{Action, Audience, Claims, Grants, Object, ObjectKind, TOKEN_ISSUER};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};

use crate::snapshot::Keys;

/// Verified tokens remembered per core; one entry is a few hundred bytes.
const CACHE_ENTRIES_MAX: usize = 16_384;
/// A token longer than this is not looked at: permissions of a reasonable token take a few KiB.
const TOKEN_BYTES_MAX: usize = 60 << 10;

/// Something the caller was found to be allowed to do.
#[derive(Clone, Copy, Debug)]
pub struct Granted<T>(T);

impl<T> Granted<T> {
    /// What was granted.
    pub fn get(&self) -> &T {
        &self.0
    }

    /// The same right, about what `f` finds for it.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Granted<U> {
        Granted(f(self.0))
    }

    /// Like `map`, for what may not be found.
    pub fn try_map<'t, U, E>(&'t self, f: impl FnOnce(&'t T) -> Result<U, E>) -> Result<Granted<U>, E> {
        f(&self.0).map(Granted)
    }
}

/// Who a verified token stands for.
#[derive(Debug)]
pub struct Principal {
    pub tenant: Arc<str>,
    pub subject: Arc<str>,
    pub grants: Grants,
    /// Seconds since 1970.
    pub expires_s: u64,
}

/// Outcome of looking at a token.
#[derive(Debug)]
pub enum Verdict {
    Accepted(Arc<Principal>),
    /// The signature cannot be checked without a newer key set.
    NeedKeys {
        kid: Arc<str>,
    },
    /// Why is for logs and metrics only.
    Refused {
        why: &'static str,
    },
}

/// A right that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("forbidden")]
pub struct Forbidden;

/// See the module.
#[derive(Default)]
pub struct Access {
    cache: HashMap<[u8; 32], Arc<Principal>, foldhash::fast::RandomState>,
}

impl Access {
    /// Checks `token` for `tenant`. `final_try` refuses instead of asking for keys again.
    pub fn verify(
        &mut self,
        tenant: &str,
        token: &str,
        clock: TokenClock,
        keys: &Keys,
        final_try: bool,
    ) -> Verdict {
        let id = cache_key(tenant, token);
        if let Some(principal) = self.cache.get(&id) {
            if principal.expires_s.saturating_add(clock.leeway_s) > clock.now_s {
                return Verdict::Accepted(Arc::clone(principal));
            }
            self.cache.remove(&id);
            return Verdict::Refused { why: "expired" };
        }
        let verdict = verify(tenant, token, clock, keys, final_try);
        if let Verdict::Accepted(principal) = &verdict {
            self.remember(id, principal, clock.now_s);
        }
        verdict
    }

    /// Forgets every token: the keys or revocations changed.
    pub fn forget_all(&mut self) {
        self.cache.clear();
    }

    fn remember(&mut self, id: [u8; 32], principal: &Arc<Principal>, now_s: u64) {
        if self.cache.len() >= CACHE_ENTRIES_MAX {
            self.cache.retain(|_, p| p.expires_s > now_s);
        }
        if self.cache.len() >= CACHE_ENTRIES_MAX {
            self.cache.clear();
        }
        self.cache.insert(id, Arc::clone(principal));
    }
}

/// Wall clock of a check and its tolerance, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct TokenClock {
    pub now_s: u64,
    pub leeway_s: u64,
}

impl Principal {
    /// May it do `action` on the stream? A stream of another tenant is always forbidden (client-protocol 11.1).
    pub fn stream<T>(
        &self,
        action: Action,
        name: (&str, &str, &str),
        what: T,
    ) -> Result<Granted<T>, Forbidden> {
        let (tenant, namespace, stream) = name;
        if tenant != &*self.tenant || !self.grants.allows_stream(action, tenant, namespace, stream) {
            return Err(Forbidden);
        }
        Ok(Granted(what))
    }

    /// May it do `action` on a key of the cache? A cache of another tenant is always forbidden (client-protocol 11.1).
    pub fn cache_key<T>(
        &self,
        action: Action,
        name: (&str, &str, &str),
        key: &[u8],
        what: T,
    ) -> Result<Granted<T>, Forbidden> {
        let (tenant, namespace, cache) = name;
        let allowed = self.grants.allows_cache_key(action, tenant, namespace, cache, key);
        if tenant == &*self.tenant && allowed { Ok(Granted(what)) } else { Err(Forbidden) }
    }

    /// May it do `action` on every key of the cache that begins with `prefix`? Never in another tenant.
    pub fn cache_prefix<T>(
        &self,
        action: Action,
        name: (&str, &str, &str),
        prefix: &[u8],
        what: T,
    ) -> Result<Granted<T>, Forbidden> {
        let (tenant, namespace, cache) = name;
        let allowed = self.grants.allows_cache_prefix(action, tenant, namespace, cache, prefix);
        if tenant == &*self.tenant && allowed { Ok(Granted(what)) } else { Err(Forbidden) }
    }

    /// May it do `action` on the group? A group of another tenant is always forbidden.
    pub fn group<T>(
        &self,
        action: Action,
        name: (&str, &str, &str),
        group: &str,
        what: T,
    ) -> Result<Granted<T>, Forbidden> {
        let (tenant, namespace, stream) = name;
        let allowed = self.grants.allows_group(action, tenant, namespace, stream, group);
        if tenant == &*self.tenant && allowed { Ok(Granted(what)) } else { Err(Forbidden) }
    }

    /// May it look into the shards of a stream or cache? Whoever manages it, or may see the cluster, in its own tenant.
    pub fn inspects<T>(
        &self,
        name: (&str, &str, &str),
        is_cache: bool,
        what: T,
    ) -> Result<Granted<T>, Forbidden> {
        let (tenant, namespace, name) = name;
        let manages = match is_cache {
            true => self.grants.allows_cache(Action::CacheManage, tenant, namespace, name),
            false => self.grants.allows_stream(Action::StreamManage, tenant, namespace, name),
        };
        let seen = manages || self.grants.allows(Action::NodeView, Object::Cluster);
        if tenant == &*self.tenant && seen { Ok(Granted(what)) } else { Err(Forbidden) }
    }

    /// May it see how wide a cache is? Any right on caches of the tenant will do, since one may be on some keys only.
    pub fn sees_cache<T>(&self, name: (&str, &str, &str), what: T) -> Result<Granted<T>, Forbidden> {
        let any = [Action::CacheRead, Action::CacheWrite, Action::CacheManage];
        let seen = any.iter().any(|action| self.grants.holds_any(*action, ObjectKind::Cache));
        if name.0 == &*self.tenant && seen { Ok(Granted(what)) } else { Err(Forbidden) }
    }

    /// May it see that the stream exists: any right on it will do (stream_shards, shard_owners).
    pub fn sees_stream<T>(&self, name: (&str, &str, &str), what: T) -> Result<Granted<T>, Forbidden> {
        let any = [Action::StreamPublish, Action::StreamSubscribe, Action::StreamManage];
        let (tenant, namespace, stream) = name;
        let seen = any.iter().any(|a| self.grants.allows_stream(*a, tenant, namespace, stream));
        if tenant == &*self.tenant && seen { Ok(Granted(what)) } else { Err(Forbidden) }
    }
}

fn cache_key(tenant: &str, token: &str) -> [u8; 32] {
    let mut bytes = Vec::with_capacity(tenant.len() + 1 + token.len());
    bytes.extend_from_slice(tenant.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(token.as_bytes());
    let mut id = [0; 32];
    id.copy_from_slice(digest(&SHA256, &bytes).as_ref());
    id
}

fn verify(tenant: &str, token: &str, clock: TokenClock, keys: &Keys, final_try: bool) -> Verdict {
    let refused = |why| Verdict::Refused { why };
    if token.len() > TOKEN_BYTES_MAX {
        return refused("too long");
    }
    let Ok(header) = jsonwebtoken::decode_header(token.as_bytes()) else { return refused("malformed") };
    if header.alg != Algorithm::EdDSA {
        return refused("algorithm");
    }
    let Some(kid) = header.kid else { return refused("no key id") };
    let known = keys.tenants.get(tenant);
    let key = known.and_then(|t| t.keys.iter().find(|(id, _)| **id == *kid)).map(|(_, key)| key);
    let Some(key) = key else {
        return if final_try { refused("unknown key") } else { Verdict::NeedKeys { kid: kid.into() } };
    };
    match check_claims(tenant, token, clock, key) {
        Ok(principal) => Verdict::Accepted(Arc::new(principal)),
        Err(why) => refused(why),
    }
}

fn check_claims(
    tenant: &str,
    token: &str,
    clock: TokenClock,
    key: &DecodingKey,
) -> Result<Principal, &'static str> {
    // Times are checked below against our own clock; the library would read the system's.
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.required_spec_claims.clear();
    validation.set_audience(&[Audience::Broker.as_str()]);
    validation.set_issuer(&[TOKEN_ISSUER]);
    let data = jsonwebtoken::decode::<Claims>(token.as_bytes(), key, &validation)
        .map_err(|_| "signature or claims")?;
    let claims = data.claims;
    if claims.iss != TOKEN_ISSUER || claims.aud != Audience::Broker.as_str() {
        return Err("issuer or audience");
    }
    if claims.tid != tenant {
        return Err("other tenant");
    }
    if claims.exp.saturating_add(clock.leeway_s) <= clock.now_s {
        return Err("expired");
    }
    if claims.nbf.is_some_and(|nbf| nbf > clock.now_s.saturating_add(clock.leeway_s)) {
        return Err("not yet valid");
    }
    let grants = Grants::from_claims(&claims).map_err(|_| "unknown permission")?;
    Ok(Principal {
        tenant: tenant.into(),
        subject: claims.sub.as_str().into(),
        grants,
        expires_s: claims.exp,
    })
}
