//! The load generator: one thread that publishes, and reads back when asked to, through the client protocol.
//! Scope: one run. Owns: what a run is given (`LoadPlan`) and why it can fail (`LoadError`).
//! Invariants: a run ends: every wait in it has a deadline; what it counts as answered was answered.
//! Not here: starting the server (`cluster`, `sink`), results (`measure`).

mod ask;
mod frames;
mod history;
mod idle;
mod lane;
mod pace;
mod reader;
mod run;
#[cfg(test)]
mod tests;
pub(crate) mod window;

use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use felix_wire::client::{Auth, Message};
use felix_wire::features::Features;
use felix_wire::flags::Flags;

use crate::measure::LoadReport;
use crate::shape::Shape;
use crate::target::Target;

pub use frames::STAMP_BYTES;
pub use history::{HistoryPlan, HistoryReport, read_history};

/// Flag bits the generator reads.
const CLIENT_FLAGS: Flags = Flags(0x1fff);
/// Feature bits the generator acts on.
const CLIENT_FEATURES: Features = Features::ERROR_CODES
    .union(Features::UNSUPPORTED)
    .union(Features::PUBLISH_PIPELINE)
    .union(Features::STREAM_PUBLISH_WINDOW)
    .union(Features::STREAM_SHARDS)
    .union(Features::SHARD_OWNERS)
    .union(Features::SUBSCRIBE_QUEUE)
    .union(Features::SHARD_MOVED)
    .union(Features::STREAM_DELETED)
    .union(Features::CORE_HINTS);

/// One run.
#[derive(Debug, Clone)]
pub struct LoadPlan {
    /// What the result calls the target.
    pub name: String,
    pub target: Target,
    pub shape: Shape,
}

/// Why a run came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Shape(#[from] crate::shape::ShapeError),
    #[error("socket: {0}")]
    Io(#[from] std::io::Error),
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("the connection ended: {0}")]
    Closed(String),
    /// The server refused something the run cannot do without.
    #[error("{what} was refused: {message}")]
    Refused { what: &'static str, message: String },
    #[error("the server sent what it may not send: {0}")]
    Protocol(String),
    #[error("stream {stream} has {width} shards, the shape writes to {wanted}")]
    TooFewShards { stream: String, width: u32, wanted: u32 },
    #[error(
        "every shard that the server told the core of is on one core, so no connection lands on a wrong one"
    )]
    OneCore,
    /// Generators that start together must all be ready before.
    #[error("not every connection was ready when the run was to begin")]
    Late,
    #[error("{what} took longer than {waited_s} s")]
    TimedOut { what: &'static str, waited_s: u64 },
}

/// Runs the plan on the calling thread, which should stay on a CPU of its own.
///
/// # Errors
/// The run could not be begun, or the server broke the protocol or went away. Refused or unanswered publishes and lost
/// records are no errors: the report counts them.
pub fn run(plan: &LoadPlan) -> Result<LoadReport, LoadError> {
    plan.shape.check()?;
    run::Run::begin(plan, None)?.finish()
}

/// The same, with publishing begun at `start` by this machine's clock.
///
/// # Errors
/// As `run`; `Late` when the connections were not ready by then.
pub fn run_at(plan: &LoadPlan, start: SystemTime) -> Result<LoadReport, LoadError> {
    plan.shape.check()?;
    run::Run::begin(plan, Some(start))?.finish()
}

/// The first frame of every stream.
pub(crate) fn auth_frame(target: &Target) -> Bytes {
    let (lo, hi) = CLIENT_FEATURES.words(true);
    let mut out = BytesMut::new();
    Message::Auth(Auth {
        tenant_id: target.tenant.as_str().into(),
        token: target.token.as_str().into(),
        client_flags: Some(CLIENT_FLAGS),
        client_features: Some(lo),
        client_features_hi: hi,
    })
    .encode_frame(&mut out);
    out.freeze()
}
