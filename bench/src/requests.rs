//! Loads of single requests: caches, counters and consumer groups, many unanswered on one stream of one connection. Scope:
//! one run. Owns: what such a run is given.
//! Invariants: answers come in the order of their requests and carry their numbers, or the run fails; requests of a run's
//! preparation are answered before its window begins; a run ends, since every wait in it has a deadline.
//! Not here: the server that takes them and keeps nothing (`sink`), publishing (`load`).

pub mod compare;
mod groups;
mod keyed;
pub mod restart;
mod talk;
#[cfg(test)]
mod tests;

use felix_wire::client::Form;
use serde::{Deserialize, Serialize};

use crate::load::LoadError;
use crate::measure::LoadReport;
use crate::shape::Shape;
use crate::target::Target;

/// What is asked, over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// The value of a key that has one.
    CacheGet,
    /// A key is set.
    CachePut,
    /// One is added to a counter.
    CounterAdd,
    /// Records of a consumer group are claimed, a page at a time, and each of them finished. What counts are records that
    /// were finished; when none is left the group begins with the first one again.
    GroupPage,
}

impl RequestKind {
    /// In results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RequestKind::CacheGet => "cache get",
            RequestKind::CachePut => "cache put",
            RequestKind::CounterAdd => "counter add",
            RequestKind::GroupPage => "group poll and ack",
        }
    }
}

/// Keys that a run reads and writes in turn, unless it says otherwise.
pub const KEYS: usize = 1_024;
/// Records of one poll.
pub const PAGE_RECORDS: u32 = 64;

/// One run.
#[derive(Debug, Clone)]
pub struct RequestPlan {
    /// What the result calls the target.
    pub name: String,
    /// Its stream names the cache, or the stream whose group it is.
    pub target: Target,
    pub kind: RequestKind,
    /// Keys that are read or written in turn.
    pub keys: usize,
    /// How requests are written; the other side must read it.
    pub form: Form,
    /// `record_bytes` is the length of a value or record, `inflight` what is unanswered; batches have one record, and there is
    /// one stream.
    pub shape: Shape,
}

/// The workload of single requests: values of 256 bytes, 64 unanswered.
#[must_use]
pub fn usual_shape() -> Shape {
    Shape {
        name: "requests".to_owned(),
        record_bytes: 256,
        batch_records: 1,
        inflight: 64,
        ..Shape::canonical()
    }
}

/// Runs the plan on the calling thread, which should stay on a CPU of its own. A batch of the report is an answered request,
/// of a group a finished record.
///
/// # Errors
/// The shape has more than one stream or record, or the server cannot be reached, does not read that form, went away or
/// answered wrongly. Refused requests are no error: the report counts them.
pub fn run(plan: &RequestPlan) -> Result<LoadReport, LoadError> {
    plan.shape.check()?;
    talk::check(&plan.shape)?;
    match plan.kind {
        RequestKind::GroupPage => talk::run(plan, groups::Pages::new(plan)),
        _ => talk::run(plan, keyed::Keyed::new(plan)),
    }
}

/// The same for a server that keeps nothing: there is nothing to read that would have to be written first.
///
/// # Errors
/// As `run`.
pub fn run_unprepared(plan: &RequestPlan) -> Result<LoadReport, LoadError> {
    plan.shape.check()?;
    talk::check(&plan.shape)?;
    match plan.kind {
        RequestKind::GroupPage => talk::run(plan, groups::Pages::new(plan)),
        _ => talk::run(plan, keyed::Keyed::unprepared(plan)),
    }
}
