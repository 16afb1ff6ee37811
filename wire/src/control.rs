//! The documents of the control-plane API, the token claims and the permission language. Scope: values, no state.
//! Owns: what `felix-ctrl`, brokers and command lines say to each other over HTTP (control-plane-api 1-7).
//! Invariants: an unknown JSON member is ignored; an unset optional member is left out; a permission that does not
//! parse grants nothing.
//! Not here: who may call what (felix-ctrl), signatures of tokens (the process that mints or checks them).
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod assignment;
#[cfg(feature = "peer")]
pub mod binary;
mod catalog;
mod grants;
mod name;
mod node;
mod page;
mod permission;
mod token;

pub use assignment::{
    Assignment, AssignmentChange, AssignmentKey, AssignmentOp, AssignmentState, MoveReason, ResourceKind,
};
pub use catalog::{
    Cache, CacheChange, CacheCreate, CacheKey, CachePatch, CatalogOp, Consistency, Delivery, KeyRouting,
    Namespace, NamespaceChange, NamespaceCreate, NamespaceKey, Retention, Stream, StreamChange, StreamCreate,
    StreamKey, StreamKind, StreamPatch, Tenant, TenantChange, TenantCreate,
};
pub use grants::Grants;
pub use name::{NAME_BYTES_MAX, NODE_ID_BYTES_MAX, NameError, NameKind, check_name, check_node_id};
pub use node::{
    Capacity, Heartbeat, HeartbeatAnswer, Lifecycle, Node, NodePlacement, NodeSpec, NodeStatus, NodeView,
    RegisterAnswer, RegisterNode,
};
pub use page::{Changes, ErrorBody, Page, Snapshot, SystemFeatures, SystemHealth, SystemInfo};
pub use permission::{
    Action, ActionSet, Object, ObjectKind, ObjectPattern, Permission, PermissionError, expand_implied,
};
pub use token::{
    ActClaim, Audience, BootstrapAnswer, BootstrapRequest, ClaimMappings, Claims, DevTokenAnswer,
    DevTokenRequest, GroupingRule, IdpIssuer, Jwk, Jwks, PolicyRule, TOKEN_ISSUER,
};
