//! The noun-verb commands: one file per noun, each verb one request (control-plane-api 13.3). Scope: per command.
//! Verbs about keys, groups and commits go to the brokers, the others to the control plane.
//! Not here: publishing and subscribing (`publish`, `subscribe`), the requests themselves (`api`).

pub mod cache;
pub mod commit;
pub mod counter;
pub mod group;
pub mod namespace;
pub mod node;
mod served;
pub mod shard;
pub mod stream;
pub mod tenant;
pub mod token;

use super::api::{Answer, Api};
use super::failure::{Failure, Kind, Outcome};
use super::output::{Format, OutputArgs, confirm, remark};
use super::settings::Settings;

/// What every verb needs.
pub struct Context {
    pub settings: Settings,
    pub format: Format,
}

/// An entry that is not in a listing.
fn absent(what: &str, name: &str) -> Failure {
    Failure::new(Kind::NotFound, format!("there is no {what} `{name}`"))
}

/// Shows what a create answered, and says whether it is new.
fn show_created<T: serde::Serialize>(format: Format, answer: &Answer<T>) -> Outcome {
    remark(if answer.created { "created" } else { "exists already, with these settings" });
    format.one(&answer.document)
}
