//! Every layout two processes share. No I/O, no async, no clock.
//!
//! A stream is a run of frames (`frame`); a frame's `flags` choose between one JSON message (`client::Message`) and
//! a binary layout (`client::BinaryPublish`, `client::PublishAck`, `client::EventBatch`). Both ends must agree on
//! ids, limits, feature bits, error codes and on which shard a key belongs to; all of that is here and nothing else.
//! Bytes from the other side never panic and never make us allocate more than a small multiple of themselves.

pub mod client;
pub mod control;
mod cursor;
pub mod error_code;
pub mod features;
pub mod flags;
pub mod frame;
pub mod generated;
pub mod id;
pub mod limits;
pub mod routing;

pub use error_code::{ErrorCode, ErrorDetail, RetryClass};
pub use features::Features;
pub use flags::Flags;
pub use frame::{DecodeError, Frame, FrameHeader, FrameReader, HEADER_LEN};
pub use id::{
    CoreId, Generation, Incarnation, LeaseId, MembershipId, NodeId, Offset, ProducerId, RequestId, Sequence,
    ShardIndex, SubscriptionId,
};
pub use routing::{KeyMapping, key_hash, shard_for};
