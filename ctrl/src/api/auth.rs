//! Who calls, and may they (control-plane-api 2.1 and 3.4).
//! Invariants: a token is verified with the keys of the tenant in the path, or of its own tenant on other routes; a
//! tenant that does not exist answers like a bad token.

use std::sync::Arc;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use felix_wire::control::{Action, Audience, Grants, Object, ObjectKind};

use super::error::ApiError;
use crate::clock;
use crate::metrics::ReasonLabel;
use crate::plane::Plane;
use crate::row;
use crate::tokens::{self, SigningKeys, TokenError};

/// A caller with a valid token of the tenant in the path.
pub struct TenantCaller(pub Caller);

/// A caller with a valid token of any tenant.
pub struct Caller {
    grants: Grants,
}

impl Caller {
    /// Refuses unless the token grants the action on the object.
    pub fn require(&self, action: Action, object: Object<'_>) -> Result<(), ApiError> {
        match self.allows(action, object) {
            true => Ok(()),
            false => Err(ApiError::forbidden()),
        }
    }

    /// Refuses unless the token grants the action on something of the family: what a filtered listing asks for.
    pub fn require_any(&self, action: Action, kind: ObjectKind) -> Result<(), ApiError> {
        match self.grants.holds_any(action, kind) {
            true => Ok(()),
            false => Err(ApiError::forbidden()),
        }
    }

    pub fn allows(&self, action: Action, object: Object<'_>) -> bool {
        self.grants.allows(action, object)
    }

    /// Refuses unless the token grants managing this node, or all of them.
    pub fn require_node(&self, node_id: &str) -> Result<(), ApiError> {
        match self.allows(Action::NodeManage, Object::Node { node_id }) {
            true => Ok(()),
            false => self.require(Action::NodeManage, Object::Cluster),
        }
    }
}

impl FromRequestParts<Arc<Plane>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, plane: &Arc<Plane>) -> Result<Caller, ApiError> {
        authenticate(plane, parts, None)
    }
}

impl FromRequestParts<Arc<Plane>> for TenantCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, plane: &Arc<Plane>) -> Result<TenantCaller, ApiError> {
        let params = RawPathParams::from_request_parts(parts, plane).await;
        let params = params.map_err(|_| ApiError::unauthorized())?;
        let tenant = params.iter().find(|(name, _)| *name == "tenant_id").map(|(_, value)| value.to_owned());
        let tenant = tenant.ok_or_else(ApiError::unauthorized)?;
        authenticate(plane, parts, Some(&tenant)).map(TenantCaller)
    }
}

fn authenticate(plane: &Plane, parts: &Parts, tenant: Option<&str>) -> Result<Caller, ApiError> {
    let refuse = |reason: &'static str| {
        plane.metrics.auth_rejected.get_or_create(&ReasonLabel { reason }).inc();
        ApiError::unauthorized()
    };
    let token = bearer(parts).ok_or_else(|| refuse("missing"))?;
    let own;
    let tenant = match tenant {
        Some(tenant) => tenant,
        None => {
            own = tokens::unverified_tenant(token).map_err(|e| refuse(e.as_str()))?;
            &own
        }
    };
    let keys: Option<SigningKeys> = plane.ledger.get(row::signing_keys(tenant))?;
    let verified = match keys {
        Some(keys) => keys.verify(token, tenant, Audience::ControlPlane, clock::wall().as_secs()),
        None => Err(TokenError::UnknownKey),
    };
    let (_, grants) = verified.map_err(|e| refuse(e.as_str()))?;
    Ok(Caller { grants })
}

fn bearer(parts: &Parts) -> Option<&str> {
    let value = parts.headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.trim_start())
}
