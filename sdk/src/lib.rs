//! The Felix client: publishing to and subscribing to streams over QUIC.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use felix_sdk::{Client, Start};
//!
//! let client = Client::builder()
//!     .broker("localhost:7000")
//!     .ca_file("ca.pem")
//!     .tenant("t1")
//!     .namespace("default")
//!     .token_file("token")
//!     .connect()
//!     .await?;
//! let mut events = client.subscribe("orders").from(Start::Earliest).open().await?;
//! let publisher = client.publisher("orders").open().await?;
//! let receipt = publisher.send("hello", Some("customer-1".into())).await?;
//! println!("stored at {:?}", receipt.await?.offset);
//! while let Some(event) = events.next().await {
//!     println!("{:?}", event?.payload);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! On a stream that is on disk, publishes are numbered by default ([`Idempotence`]): a publisher sends them again through a
//! lost connection or a restart of the broker, in order, and the shard stores each once. A subscription goes on by itself
//! after the last record it handed out; [`Subscription::next_item`] also tells when its broker is away and back.
//!
//! Caches ([`Client::cache`]) and counters beside them ([`Client::counters`]), consumer groups ([`Client::group`], with
//! [`Group::worker`] for handlers, to which the broker deals the shards of a stream), commits with keyed state
//! ([`Client::state`]) and pages of a log ([`Client::log`]) are asked for with single requests. Any number may be on their
//! way; each says what is known of its outcome ([`RequestError`]), and is sent again only when that cannot apply it twice.
//!
//! Everything runs on the tokio runtime of the caller. What the broker is asked, and what its answers mean, is
//! decided by machines without I/O (`publish::lane`, `subscribe::cursor`, `request::plan`, `request::pipe`,
//! `cache::watch::cursor`, `group::roster`, `group::holdings`, `token`); the tasks around them only carry.

mod address;
mod backoff;
mod broker;
mod cache;
#[cfg(feature = "cli")]
pub mod cli;
mod client;
mod connection;
mod counter;
mod error;
mod group;
pub mod limits;
mod log;
mod name;
mod publish;
mod request;
mod state;
mod subscribe;
mod tls;
mod token;
mod topology;

pub use bytes::Bytes;
pub use cache::watch::{Change, Watch, WatchBuilder, WatchError, WatchItem, WatchNotice, WatchStart};
pub use cache::{Cache, Condition, Conditional, Entry};
pub use client::{Client, ClientBuilder};
pub use connection::Deadlines;
pub use counter::Counters;
pub use error::{CursorReason, Error, ProducerEnd, PublishError, Refusal, SubscribeError, TryPublishError};
pub use felix_wire::error_code::{ErrorCode, RetryClass};
pub use felix_wire::id::{CoreId, LeaseId, Offset};
pub use felix_wire::routing::{KeyMapping, shard_for};
pub use group::deliveries::{Deliveries, DeliveriesBuilder, PollError};
pub use group::lease::{GroupMember, MemberLease};
pub use group::worker::{Settle, WorkerBuilder, WorkerReport};
pub use group::{Claim, Delivery, Group, GroupInfo, GroupPosition, Poll, SeekTo};
pub use log::{Log, LogRecord, Page, PageLimits, Target};
pub use name::StreamName;
pub use publish::{AckMode, BatchLimits, Idempotence, Published, Publisher, PublisherBuilder, Receipt};
pub use request::{ConditionError, ReadError, RequestError};
pub use state::{CommitBuilder, Committed, State, StateEntry};
pub use subscribe::{
    Event, Gap, Item, Notice, Position, Positions, ShardProgress, Shards, Start, SubscribeBuilder,
    Subscription,
};
pub use token::TokenResult;
pub use topology::{BrokerInfo, ShardOwner, StreamShards};
