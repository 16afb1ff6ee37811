//! `/internal/bootstrap`: a tenant's first day, and development tokens (control-plane-api 2.6). Own listener, own token.
//! Invariants: a tenant is bootstrapped once, in one write; development tokens exist only where they were switched on,
//! which the configuration allows on a loopback bind only.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use axum::Json;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::HeaderName;
use axum::http::request::Parts;
use felix_wire::control::{
    Action, BootstrapAnswer, BootstrapRequest, Claims, DevTokenAnswer, DevTokenRequest, GroupingRule,
    ObjectPattern, Permission, PolicyRule, TOKEN_ISSUER, Tenant, expand_implied,
};

use super::error::ApiError;
use super::request::Document;
use crate::catalog::{self, CatalogError};
use crate::clock;
use crate::ledger::Tx;
use crate::limits::{BOOTSTRAP_ITEMS_MAX, TEXT_BYTES_MAX, TOKEN_PERMISSIONS_MAX, TOKEN_TTL_MAX};
use crate::metrics::OutcomeLabels;
use crate::plane::{BootstrapSettings, Plane};
use crate::row;
use crate::tokens::SigningKeys;

const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-felix-bootstrap-token");
/// Role of the principals a tenant begins with.
const ADMIN_ROLE: &str = "role:tenant-admin";

/// A caller that holds the bootstrap token.
pub struct Operator {
    settings: BootstrapSettings,
}

/// A caller that may be given development tokens.
pub struct Developer;

impl FromRequestParts<Arc<Plane>> for Developer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, plane: &Arc<Plane>) -> Result<Developer, ApiError> {
        match Operator::from_request_parts(parts, plane).await?.settings.dev_tokens {
            true => Ok(Developer),
            false => Err(ApiError::not_enabled("development tokens are not enabled")),
        }
    }
}

impl FromRequestParts<Arc<Plane>> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, plane: &Arc<Plane>) -> Result<Operator, ApiError> {
        let Some(settings) = plane.settings.bootstrap.clone() else {
            return Err(ApiError::not_enabled("bootstrap is not enabled"));
        };
        let given = parts.headers.get(TOKEN_HEADER).map(|value| value.as_bytes()).unwrap_or_default();
        let accepted = [Some(&settings.token), settings.token_previous.as_ref()];
        // Both are compared, in a time that does not depend on where they differ.
        let matches =
            accepted.into_iter().flatten().filter(|token| same_secret(given, token.as_bytes())).count();
        if matches == 0 {
            count(plane, "refused", "token");
            return Err(ApiError::unauthorized());
        }
        Ok(Operator { settings })
    }
}

/// Anything under `/internal/bootstrap` on the public listener.
pub async fn not_here() -> ApiError {
    ApiError::not_enabled("bootstrap is not enabled on this listener")
}

pub async fn initialize(
    State(plane): State<Arc<Plane>>,
    _operator: Operator,
    Path(tenant): Path<String>,
    Document(body): Document<BootstrapRequest>,
) -> Result<Json<BootstrapAnswer>, ApiError> {
    check_bootstrap(&tenant, &body).inspect_err(|_| count(&plane, "refused", "invalid"))?;
    let fresh = SigningKeys::generate()?;
    let id = tenant.clone();
    let written = plane.ledger.write(move |tx| seed(tx, &id, &body, &fresh)).await?;
    let Some(kid) = written else {
        count(&plane, "refused", "already_initialized");
        return Err(ApiError::already_initialized());
    };
    count(&plane, "done", "none");
    tracing::info!(tenant, kid, "a tenant was bootstrapped");
    Ok(Json(BootstrapAnswer {
        jwks_url: format!("/v1/tenants/{tenant}/.well-known/jwks.json"),
        tenant_id: tenant,
        kid,
        status: "initialized".to_owned(),
    }))
}

pub async fn dev_token(
    State(plane): State<Arc<Plane>>,
    _developer: Developer,
    Path(tenant): Path<String>,
    Document(body): Document<DevTokenRequest>,
) -> Result<Json<DevTokenAnswer>, ApiError> {
    let perms = granted(&tenant, &body)?;
    let ttl_seconds = body.ttl_seconds.unwrap_or(plane.settings.token_ttl.as_secs());
    if !(1..=TOKEN_TTL_MAX.as_secs()).contains(&ttl_seconds) {
        return Err(ApiError::invalid("ttl_seconds must be 1 second to 30 days"));
    }
    if body.principal.is_empty() || body.principal.len() > TEXT_BYTES_MAX {
        return Err(ApiError::invalid("principal must be 1 to 512 bytes"));
    }
    let keys: Option<SigningKeys> = plane.ledger.get(row::signing_keys(&tenant))?;
    let keys = keys.ok_or_else(|| ApiError::not_found("the tenant does not exist"))?;
    let iat = clock::wall().as_secs();
    let claims = Claims {
        iss: TOKEN_ISSUER.to_owned(),
        aud: body.audience.as_str().to_owned(),
        sub: body.principal,
        tid: tenant,
        iat,
        exp: iat + ttl_seconds,
        nbf: None,
        perms,
        jti: Some(hex::encode(rand::random::<[u8; 16]>())),
        act: None,
        may_act: None,
    };
    let felix_token = keys.sign(&claims)?;
    Ok(Json(DevTokenAnswer { felix_token, expires_in: ttl_seconds, token_type: "Bearer".to_owned() }))
}

/// The asked permissions with what they imply.
fn granted(tenant: &str, body: &DevTokenRequest) -> Result<Vec<String>, ApiError> {
    let mut permissions = Vec::with_capacity(body.permissions.len());
    for text in body.permissions.iter().take(TOKEN_PERMISSIONS_MAX + 1) {
        let permission = Permission::parse(text).map_err(|e| ApiError::invalid(e.to_string()))?;
        check_tenant(tenant, &permission.object)?;
        permissions.push(permission);
    }
    let expanded = expand_implied(&permissions);
    if expanded.len() > TOKEN_PERMISSIONS_MAX {
        return Err(ApiError::invalid("a token holds at most 256 permissions"));
    }
    Ok(expanded.iter().map(ToString::to_string).collect())
}

fn check_tenant(tenant: &str, object: &ObjectPattern) -> Result<(), ApiError> {
    match object.tenant() {
        Some(other) if other != tenant => Err(ApiError::invalid("an object names another tenant")),
        _ => Ok(()),
    }
}

/// Writes tenant, keys and rules. None when the tenant was bootstrapped before.
fn seed(
    tx: &mut Tx<'_>,
    tenant: &str,
    body: &BootstrapRequest,
    fresh: &SigningKeys,
) -> Result<Option<String>, CatalogError> {
    if tx.get::<BootstrapRequest>(&row::bootstrap(tenant))?.is_some() {
        return Ok(None);
    }
    let kid = match tx.get::<SigningKeys>(&row::signing_keys(tenant))? {
        Some(keys) => keys.current.kid,
        None => {
            let created = Tenant { tenant_id: tenant.to_owned(), display_name: body.display_name.clone() };
            catalog::create_tenant(tx, &created, fresh)?;
            fresh.current.kid.clone()
        }
    };
    let mut seeded = body.clone();
    let own = format!("tenant:{tenant}");
    let rule = |action: Action, object: &str| PolicyRule {
        subject: ADMIN_ROLE.to_owned(),
        object: object.to_owned(),
        action: action.as_str().to_owned(),
    };
    for action in
        [Action::TenantManage, Action::RbacView, Action::RbacPolicyManage, Action::RbacAssignmentManage]
    {
        seeded.policies.push(rule(action, &own));
    }
    seeded.policies.push(rule(Action::NsManage, &format!("namespace:{tenant}/*")));
    for principal in &body.initial_admin_principals {
        seeded.groupings.push(GroupingRule { user: principal.clone(), role: ADMIN_ROLE.to_owned() });
    }
    seeded.policies.sort();
    seeded.policies.dedup();
    seeded.groupings.sort();
    seeded.groupings.dedup();
    tx.put(row::bootstrap(tenant), &seeded);
    Ok(Some(kid))
}

fn check_bootstrap(tenant: &str, body: &BootstrapRequest) -> Result<(), ApiError> {
    let counts = [
        body.idp_issuers.len(),
        body.initial_admin_principals.len(),
        body.policies.len(),
        body.groupings.len(),
    ];
    if counts.into_iter().any(|n| n > BOOTSTRAP_ITEMS_MAX) {
        return Err(ApiError::invalid("a list holds more than 1024 entries"));
    }
    let named = |text: &String| !text.is_empty() && text.len() <= TEXT_BYTES_MAX;
    let issuers = body.idp_issuers.iter().map(|idp| &idp.issuer);
    if !issuers.clone().all(named) || issuers.clone().any(|issuer| issuer.contains('#')) {
        return Err(ApiError::invalid("an issuer must be 1 to 512 bytes without '#'"));
    }
    let groupings = body.groupings.iter().flat_map(|rule| [&rule.user, &rule.role]);
    if !body.initial_admin_principals.iter().chain(groupings).all(named) {
        return Err(ApiError::invalid("a principal or role must be 1 to 512 bytes"));
    }
    for rule in &body.policies {
        let permission = Action::parse(&rule.action)
            .and_then(|action| Permission::new(action, ObjectPattern::parse(&rule.object)?))
            .map_err(|e| ApiError::invalid(e.to_string()))?;
        check_tenant(tenant, &permission.object)?;
        if !named(&rule.subject) {
            return Err(ApiError::invalid("the subject of a policy must be 1 to 512 bytes"));
        }
    }
    Ok(())
}

/// Compares fingerprints, so that the time tells neither where secrets differ nor how long they are.
fn same_secret(given: &[u8], expected: &[u8]) -> bool {
    let (given, expected) = (digest(&SHA256, given), digest(&SHA256, expected));
    aws_lc_rs::constant_time::verify_slices_are_equal(given.as_ref(), expected.as_ref()).is_ok()
}

fn count(plane: &Plane, outcome: &'static str, reason: &'static str) {
    plane.metrics.bootstrap_attempts.get_or_create(&OutcomeLabels { outcome, reason }).inc();
}
