//! felix-ctrl: who owns which shard. One process, plain tokio and axum; brokers and people reach it over HTTP.
//! Owns: tenants, namespaces, streams, caches, brokers, assignments, signing keys, and the order of their changes.
//! Invariants: nothing is acknowledged before it is durable; generations and incarnations only rise; each placement
//! write is conditional on the state it was planned on.
//! Not here: any record (brokers hold those), the documents themselves (`felix_wire::control`).
//!
//! Reading order: `store` (rows), `ledger` (decisions over rows), `feed`, `catalog`, `registry`, `lease`, `placement`
//! (pure, usable alone), `assignment`, `tokens`, `plane`, `reconcile`, `api`, `service`.

pub mod api;
pub mod assignment;
pub mod catalog;
pub mod clock;
pub mod config;
pub mod feed;
pub mod lease;
pub mod ledger;
pub mod limits;
pub mod metrics;
pub mod placement;
pub mod plane;
pub mod reconcile;
pub mod registry;
pub mod row;
pub mod service;
pub mod store;
pub mod tokens;
