//! Who is answered when offsets that were claimed are settled, or are not. Scope: values.
//! Invariants: a claimer gets exactly one answer; a publish and a request say the same in their own words.
//! Not here: when it is answered (`shard`).

use felix_wire::id::Offset;

use super::ask::{AskRefused, AskToken, Reply};
use super::mail::{Doubt, JobToken, NotWritten, ShardOutput};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimer {
    /// A publish of a lane.
    Publish(JobToken),
    /// An atomic commit or a conditional publish.
    Ask(AskToken),
}

impl Claimer {
    /// It is there from `base` on. `logged`: in a log, and settled there.
    pub fn written(self, base: Offset, logged: bool) -> ShardOutput {
        match self {
            Claimer::Publish(token) => ShardOutput::Published { token, base, logged },
            Claimer::Ask(token) => ShardOutput::Answered { token, reply: Reply::Placed(base) },
        }
    }

    /// Whether it is there is not known.
    pub fn unknown(self, why: Doubt) -> ShardOutput {
        match self {
            Claimer::Publish(token) => ShardOutput::Unknown { token, why },
            Claimer::Ask(token) => {
                ShardOutput::Answered { token, reply: Reply::Refused(AskRefused::Unknown(why)) }
            }
        }
    }

    /// It is not there.
    pub fn refused(self, why: NotWritten) -> ShardOutput {
        match self {
            Claimer::Publish(token) => ShardOutput::Refused { token, why },
            Claimer::Ask(token) => {
                ShardOutput::Answered { token, reply: Reply::Refused(AskRefused::NotWritten(why)) }
            }
        }
    }
}
