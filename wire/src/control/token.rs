//! Token claims, key sets, and the documents that hand tokens out (control-plane-api 2).

use serde::{Deserialize, Serialize};

/// `iss` of every Felix token.
pub const TOKEN_ISSUER: &str = "felix-auth";

/// Who a token is for; a token is for exactly one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Audience {
    #[default]
    #[serde(rename = "felix-broker")]
    Broker,
    #[serde(rename = "felix-controlplane")]
    ControlPlane,
}

impl Audience {
    pub fn as_str(self) -> &'static str {
        match self {
            Audience::Broker => "felix-broker",
            Audience::ControlPlane => "felix-controlplane",
        }
    }
}

/// The claims of a Felix token (2.1). Times are seconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    pub iss: String,
    /// One string, never a list.
    pub aud: String,
    /// Principal id.
    pub sub: String,
    /// Tenant id.
    pub tid: String,
    pub iat: u64,
    pub exp: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbf: Option<u64>,
    #[serde(default)]
    pub perms: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jti: Option<String>,
    /// The gateway that presents a delegated token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<ActClaim>,
    /// The gateway that may delegate this token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_act: Option<ActClaim>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActClaim {
    pub sub: String,
}

/// A public Ed25519 key (RFC 8037).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jwk {
    pub kty: String,
    pub crv: String,
    pub alg: String,
    #[serde(rename = "use")]
    pub use_: String,
    pub kid: String,
    /// The 32 key bytes, base64url without padding.
    pub x: String,
}

impl Jwk {
    /// The document of an Ed25519 verification key; `x` is base64url without padding.
    pub fn ed25519(kid: String, x: String) -> Jwk {
        let text = str::to_owned;
        Jwk { kty: text("OKP"), crv: text("Ed25519"), alg: text("EdDSA"), use_: text("sig"), kid, x }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jwks {
    pub keys: Vec<Jwk>,
}

/// An outside identity provider a tenant trusts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdpIssuer {
    pub issuer: String,
    #[serde(default)]
    pub audiences: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    #[serde(default)]
    pub claim_mappings: ClaimMappings,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimMappings {
    #[serde(default = "sub")]
    pub subject_claim: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups_claim: Option<String>,
}

impl Default for ClaimMappings {
    fn default() -> ClaimMappings {
        ClaimMappings { subject_claim: sub(), groups_claim: None }
    }
}

/// A role's (or principal's) right.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PolicyRule {
    pub subject: String,
    pub object: String,
    pub action: String,
}

/// Membership of a user or group in a role.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupingRule {
    pub user: String,
    pub role: String,
}

/// Body of `POST /internal/bootstrap/tenants/{t}/initialize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootstrapRequest {
    #[serde(default)]
    pub display_name: String,
    #[serde(default)]
    pub idp_issuers: Vec<IdpIssuer>,
    #[serde(default)]
    pub initial_admin_principals: Vec<String>,
    #[serde(default)]
    pub policies: Vec<PolicyRule>,
    #[serde(default)]
    pub groupings: Vec<GroupingRule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootstrapAnswer {
    pub tenant_id: String,
    pub kid: String,
    pub jwks_url: String,
    pub status: String,
}

/// Body of `POST /internal/bootstrap/tenants/{t}/dev-token`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevTokenRequest {
    /// `sub` of the token.
    pub principal: String,
    /// Permission strings; what they imply is added (3.3).
    #[serde(default)]
    pub permissions: Vec<String>,
    /// Life of the token; absent means the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    #[serde(default)]
    pub audience: Audience,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevTokenAnswer {
    pub felix_token: String,
    /// Seconds from now.
    pub expires_in: u64,
    /// Always `Bearer`.
    pub token_type: String,
}

fn sub() -> String {
    "sub".to_owned()
}
