//! Signing and checking Felix tokens (control-plane-api 2.1). Scope: pure over keys and time.
//! Owns: what a valid token is. Invariants: EdDSA over Ed25519 only, whatever the token asks for; `exp` is always
//! checked, `nbf` when there, both with 5 s of leeway; the audience is one exact string; a caller learns only that a
//! token is not valid, the reason is for metrics.
//! Not here: which tenant's keys to take (`api::auth`), key storage (`store`).
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use aws_lc_rs::digest;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use felix_wire::control::{Audience, Claims, Grants, Jwk, Jwks, TOKEN_ISSUER};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

use crate::limits::TOKEN_BYTES_MAX;

/// How far a verifier's clock may be off (architecture 7).
pub const LEEWAY_SECONDS: u64 = 5;

/// The signing keys of one tenant, as stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SigningKeys {
    pub current: SigningKey,
    /// Keys that sign nothing and still verify.
    #[serde(default)]
    pub verify_only: Vec<VerifyKey>,
}

/// A key pair that signs.
#[derive(Clone, Serialize, Deserialize)]
pub struct SigningKey {
    pub kid: String,
    /// PKCS #8 document, base64.
    private: String,
    /// 32 bytes, base64url without padding.
    public: String,
}

/// A key that only verifies.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VerifyKey {
    pub kid: String,
    /// 32 bytes, base64url without padding.
    public: String,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey").field("kid", &self.kid).finish_non_exhaustive()
    }
}

/// Why no key was made or nothing was signed: the crypto library failed, or the stored key is damaged.
#[derive(Debug, thiserror::Error)]
#[error("signing failed: {0}")]
pub struct SigningError(String);

/// Why a token is not valid. For metrics and tests: clients get one message for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    Malformed,
    Algorithm,
    UnknownKey,
    Signature,
    Issuer,
    Audience,
    Tenant,
    Expired,
    NotYetValid,
    Permission,
}

impl TokenError {
    /// Label of the rejection in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            TokenError::Malformed => "malformed",
            TokenError::Algorithm => "algorithm",
            TokenError::UnknownKey => "unknown_key",
            TokenError::Signature => "signature",
            TokenError::Issuer => "issuer",
            TokenError::Audience => "audience",
            TokenError::Tenant => "tenant",
            TokenError::Expired => "expired",
            TokenError::NotYetValid => "not_yet_valid",
            TokenError::Permission => "permission",
        }
    }
}

impl SigningKeys {
    /// A fresh key pair from the system's random source.
    pub fn generate() -> Result<SigningKeys, SigningError> {
        let pair = Ed25519KeyPair::generate().map_err(|_| SigningError("no key was generated".to_owned()))?;
        let document = pair.to_pkcs8().map_err(|_| SigningError("the key has no document".to_owned()))?;
        let public = pair.public_key().as_ref();
        let fingerprint = digest::digest(&digest::SHA256, public);
        let kid: String = hex::encode(fingerprint.as_ref()).chars().take(32).collect();
        let private = STANDARD.encode(document.as_ref());
        let current = SigningKey { kid, private, public: URL_SAFE_NO_PAD.encode(public) };
        Ok(SigningKeys { current, verify_only: Vec::new() })
    }

    /// Signs the claims with the current key.
    pub fn sign(&self, claims: &Claims) -> Result<String, SigningError> {
        let document = STANDARD.decode(&self.current.private).map_err(|e| SigningError(e.to_string()))?;
        let header = Header { kid: Some(self.current.kid.clone()), ..Header::new(Algorithm::EdDSA) };
        jsonwebtoken::encode(&header, claims, &EncodingKey::from_ed_der(&document))
            .map_err(|e| SigningError(e.to_string()))
    }

    /// The published key set: the current key and every one that still verifies.
    pub fn jwks(&self) -> Jwks {
        let keys = self.verifying().map(|(kid, x)| Jwk::ed25519(kid.to_owned(), x.to_owned())).collect();
        Jwks { keys }
    }

    fn verifying(&self) -> impl Iterator<Item = (&str, &str)> {
        let current = (self.current.kid.as_str(), self.current.public.as_str());
        let others = self.verify_only.iter().map(|key| (key.kid.as_str(), key.public.as_str()));
        std::iter::once(current).chain(others)
    }

    /// Checks a token of `tenant` for `audience` at `now` (seconds since the Unix epoch) and compiles what it grants.
    pub fn verify(
        &self,
        token: &str,
        tenant: &str,
        audience: Audience,
        now: u64,
    ) -> Result<(Claims, Grants), TokenError> {
        let header = header_of(token)?;
        if header.alg != Algorithm::EdDSA {
            return Err(TokenError::Algorithm);
        }
        let kid = header.kid.ok_or(TokenError::UnknownKey)?;
        let (_, x) = self.verifying().find(|(k, _)| *k == kid).ok_or(TokenError::UnknownKey)?;
        let key = DecodingKey::from_ed_components(x).map_err(|_| TokenError::UnknownKey)?;
        // Signature only: the claims are checked below, on the caller's clock and with the rules of this page.
        let mut signature_only = Validation::new(Algorithm::EdDSA);
        signature_only.required_spec_claims.clear();
        signature_only.validate_exp = false;
        signature_only.validate_aud = false;
        let claims = jsonwebtoken::decode::<Claims>(token, &key, &signature_only)
            .map_err(|e| match e.kind() {
                jsonwebtoken::errors::ErrorKind::InvalidSignature => TokenError::Signature,
                _ => TokenError::Malformed,
            })?
            .claims;
        check_claims(&claims, tenant, audience, now)?;
        let grants = Grants::from_claims(&claims).map_err(|_| TokenError::Permission)?;
        Ok((claims, grants))
    }
}

/// The tenant a token says it is of. It only selects the keys to verify the token with.
pub fn unverified_tenant(token: &str) -> Result<String, TokenError> {
    #[derive(Deserialize)]
    struct Tid {
        tid: String,
    }
    header_of(token)?;
    let payload = token.split('.').nth(1).ok_or(TokenError::Malformed)?;
    let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_| TokenError::Malformed)?;
    serde_json::from_slice::<Tid>(&payload).map(|claims| claims.tid).map_err(|_| TokenError::Malformed)
}

fn header_of(token: &str) -> Result<Header, TokenError> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(TokenError::Malformed);
    }
    jsonwebtoken::decode_header(token).map_err(|_| TokenError::Malformed)
}

fn check_claims(claims: &Claims, tenant: &str, audience: Audience, now: u64) -> Result<(), TokenError> {
    if claims.iss != TOKEN_ISSUER {
        return Err(TokenError::Issuer);
    }
    if claims.aud != audience.as_str() {
        return Err(TokenError::Audience);
    }
    if claims.tid != tenant {
        return Err(TokenError::Tenant);
    }
    if now >= claims.exp.saturating_add(LEEWAY_SECONDS) {
        return Err(TokenError::Expired);
    }
    if claims.nbf.is_some_and(|nbf| nbf > now.saturating_add(LEEWAY_SECONDS)) {
        return Err(TokenError::NotYetValid);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
