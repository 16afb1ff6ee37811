//! What clients and brokers say to each other (client-protocol 21), one file per family.
//! Owns: the list of JSON messages and how a payload becomes one. Binary layouts are in `publish_frame`,
//! `publish_ack` and `events`, and `binary` has a second form of some messages; a frame's flags say which of them it is, 0
//! says JSON.
//! Invariants: decoding borrows names from the payload; member order and spelling of what is written are those of
//! the protocol's table, byte for byte.
//! Not here: who may send what, and when (the session).

pub mod auth;
pub mod binary;
pub mod cache;
pub mod commit;
pub mod counter;
pub mod events;
pub mod group;
pub mod inspect;
mod json;
pub mod key_request;
pub mod lease;
pub mod publish;
pub mod publish_ack;
pub mod publish_frame;
pub mod read;
pub mod records;
pub mod reply;
mod scan;
pub mod subscribe;
pub mod topology;

use std::borrow::Cow;

use bytes::{BufMut, BytesMut};
use serde::Serialize;

use crate::flags::Flags;
use crate::frame::{DecodeError, FrameHeader, HEADER_LEN};
use crate::id::RequestId;

pub use auth::{Auth, AuthOk};
pub use binary::{Form, PageRecord, encode_page, encode_value};
pub use cache::{
    CacheCondition, CacheConditionResult, CacheDelete, CacheDeleteIf, CacheEvent, CacheGet, CacheOk,
    CachePut, CachePutIf, CacheValue, CacheWatch, CacheWatchLagged, CacheWatchStarted,
};
pub use commit::{Change, Commit, CommitOk, StateGet, StateValue};
pub use counter::{CounterAdd, CounterGet, CounterValue};
pub use events::{Event, EventBatch, EventIter, encode_shared_head};
pub use group::{
    GroupDeadLetterList, GroupDeleted, GroupExtend, GroupExtended, GroupInfo, GroupNack, GroupOffset,
    GroupPoll, GroupPosition, GroupRecord, GroupRecords, GroupRequest, GroupSeek,
};
pub use inspect::{ShardInspect, ShardInspectInfo, SubscriptionsList, SubscriptionsListInfo};
pub use key_request::{KeyRequest, KeyWhat};
pub use lease::{
    GroupHeartbeat, GroupJoin, GroupLeases, GroupLeave, GroupMemberList, GroupMembers, LeaseView, MemberView,
    ShardLease,
};
pub use publish::{
    AckRequest, ProducerInit, ProducerInitOk, Publish, PublishBatch, PublishError, PublishIdempotent,
    PublishIf, PublishOk, PublishRefused, PublishWidth, RefusalReason,
};
pub use publish_ack::{AckCode, AckOutcome, AckOwner, PublishAck, encode_ok};
pub use publish_frame::{
    AckMode, BinaryPublish, EncodeError, PublishAgain, PublishDecodeError, PublishHead, encode_names,
    encode_publish, encode_publish_head, publish_frame_len,
};
pub use read::{OffsetForTime, OffsetValue, StreamRead, StreamRecord, StreamRecords};
pub use records::{RECORD_PREFIX_LEN, Records, RecordsBuilder, RecordsIter};
pub use reply::{Error, Extension, NotLeader, RawJson, Unsupported};
pub use subscribe::{
    CursorErrorReason, EventBatchJson, EventJson, EventStreamHello, ShardMoved, StartPosition, StreamDeleted,
    Subscribe, SubscribeCursorError, Subscribed, SubscriptionLagged,
};
pub use topology::{
    Broker, CacheShards, CacheShardsView, ShardKind, ShardOwner, ShardOwners, ShardOwnersView, StreamShards,
    StreamShardsView, TopologyView,
};

/// A request or answer whose type this build does not know. Not a failure: a broker answers `unsupported`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownMessage<'a> {
    /// The member `type`.
    pub type_name: Cow<'a, str>,
    /// The member `request_id`, when it is a u64.
    pub request_id: Option<RequestId>,
}

macro_rules! messages {
    ($($(#[$doc:meta])* $variant:ident $(($body:ty))? = $name:literal;)*) => {
        /// One JSON message, either direction.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Message<'a> {
            $($(#[$doc])* $variant $(($body))?,)*
            /// A type this build does not know.
            Unknown(UnknownMessage<'a>),
        }

        impl Message<'_> {
            /// The member `type`.
            #[must_use]
            pub fn type_name(&self) -> &str {
                match self {
                    $(messages!(@pattern Self::$variant $(, _body: $body)?) => $name,)*
                    Self::Unknown(unknown) => &unknown.type_name,
                }
            }
        }

        impl<'a> Message<'a> {
            /// Reads the members of a message whose type is known to be `type_name`.
            fn decode_as(type_name: &str, text: &'a str) -> Option<Result<Self, DecodeError>> {
                match type_name {
                    $($name => Some(messages!(@decode text, $variant $(, $body)?)),)*
                    _ => None,
                }
            }

            fn write_json(&self, out: &mut BytesMut) {
                match self {
                    $(messages!(@pattern Self::$variant $(, body: $body)?) =>
                        messages!(@encode out, $name $(, body: $body)?),)*
                    Self::Unknown(unknown) => json::write_message(
                        out,
                        &unknown.type_name,
                        &UnknownBody { request_id: unknown.request_id },
                    ),
                }
            }
        }
    };
    (@pattern Self::$variant:ident) => { Self::$variant };
    (@pattern Self::$variant:ident, $binding:ident: $body:ty) => { Self::$variant($binding) };
    (@decode $text:ident, $variant:ident) => {
        json::read::<NoMembers>($text).map(|NoMembers {}| Self::$variant)
    };
    (@decode $text:ident, $variant:ident, $body:ty) => { json::read::<$body>($text).map(Self::$variant) };
    (@encode $out:ident, $name:literal) => { json::write_message($out, $name, &NoMembers {}) };
    (@encode $out:ident, $name:literal, $binding:ident: $body:ty) => {
        json::write_message($out, $name, $binding)
    };
}

messages! {
    /// First frame of every stream.
    Auth(Auth<'a>) = "auth";
    /// Success, to a client that announced flags.
    AuthOk(AuthOk) = "auth_ok";
    /// Success, to a client that announced nothing.
    Ok = "ok";
    /// Refusal without a request id.
    Error(Error<'a>) = "error";
    /// Answer to a type the broker does not know.
    Unsupported(Unsupported<'a>) = "unsupported";
    /// Reserved area.
    Extension(Extension<'a>) = "extension";
    /// Another broker leads the shard.
    NotLeader(NotLeader<'a>) = "not_leader";
    /// Asks for the brokers of the cluster.
    Topology = "topology";
    /// The brokers of the cluster.
    TopologyView(TopologyView<'a>) = "topology_view";
    /// Asks for the width of a stream.
    StreamShards(StreamShards<'a>) = "stream_shards";
    /// The width of a stream.
    StreamShardsView(StreamShardsView) = "stream_shards_view";
    /// Asks for the width of a cache.
    CacheShards(CacheShards<'a>) = "cache_shards";
    /// The width of a cache.
    CacheShardsView(CacheShardsView) = "cache_shards_view";
    /// Asks who owns the shards of a stream or cache.
    ShardOwners(ShardOwners<'a>) = "shard_owners";
    /// Who owns the shards.
    ShardOwnersView(ShardOwnersView<'a>) = "shard_owners_view";
    /// Declares by which width the keyed batches that follow were routed.
    PublishWidth(PublishWidth<'a>) = "publish_width";
    /// One record.
    Publish(Publish<'a>) = "publish";
    /// Some records.
    PublishBatch(PublishBatch<'a>) = "publish_batch";
    /// A publish was taken.
    PublishOk(PublishOk) = "publish_ok";
    /// A publish was refused.
    PublishError(PublishError<'a>) = "publish_error";
    /// Asks for a producer id.
    ProducerInit(ProducerInit) = "producer_init";
    /// A producer id.
    ProducerInitOk(ProducerInitOk) = "producer_init_ok";
    /// A numbered batch of a producer.
    PublishIdempotent(PublishIdempotent<'a>) = "publish_idempotent";
    /// A batch that must start at an offset.
    PublishIf(PublishIf<'a>) = "publish_if";
    /// A numbered or conditional publish was refused.
    PublishRefused(PublishRefused<'a>) = "publish_refused";
    /// Reads one shard of a stream from a position on.
    Subscribe(Subscribe<'a>) = "subscribe";
    /// The subscription stands.
    Subscribed(Subscribed) = "subscribed";
    /// The position is not held.
    SubscribeCursorError(SubscribeCursorError) = "subscribe_cursor_error";
    /// First frame of an event stream.
    EventStreamHello(EventStreamHello) = "event_stream_hello";
    /// Last frame of an event stream: the shard went elsewhere.
    ShardMoved(ShardMoved<'a>) = "shard_moved";
    /// Last frame of an event stream: the stream is gone.
    StreamDeleted(StreamDeleted) = "stream_deleted";
    /// Last frame of an event stream: the subscriber was too slow.
    SubscriptionLagged(SubscriptionLagged) = "subscription_lagged";
    /// One event as JSON.
    Event(EventJson<'a>) = "event";
    /// Some events as JSON.
    EventBatch(EventBatchJson<'a>) = "event_batch";
    /// Writes a cache key.
    CachePut(CachePut<'a>) = "cache_put";
    /// Reads a cache key.
    CacheGet(CacheGet<'a>) = "cache_get";
    /// Removes a cache key.
    CacheDelete(CacheDelete<'a>) = "cache_delete";
    /// A cache value, or none.
    CacheValue(CacheValue<'a>) = "cache_value";
    /// Done; also the answer to group acks.
    CacheOk(CacheOk) = "cache_ok";
    /// Writes a cache key under a condition.
    CachePutIf(CachePutIf<'a>) = "cache_put_if";
    /// Removes a cache key at a version.
    CacheDeleteIf(CacheDeleteIf<'a>) = "cache_delete_if";
    /// Whether a condition held.
    CacheConditionResult(CacheConditionResult) = "cache_condition_result";
    /// Follows a key or a prefix.
    CacheWatch(CacheWatch<'a>) = "cache_watch";
    /// The watch stands.
    CacheWatchStarted(CacheWatchStarted) = "cache_watch_started";
    /// One change of a watched key.
    CacheEvent(CacheEvent<'a>) = "cache_event";
    /// Last frame of a watch: it was too slow.
    CacheWatchLagged(CacheWatchLagged) = "cache_watch_lagged";
    /// Adds to a counter.
    CounterAdd(CounterAdd<'a>) = "counter_add";
    /// Reads a counter.
    CounterGet(CounterGet<'a>) = "counter_get";
    /// A counter's sum.
    CounterValue(CounterValue) = "counter_value";
    /// One event with state changes, all or nothing.
    Commit(Commit<'a>) = "commit";
    /// The commit's offset.
    CommitOk(CommitOk) = "commit_ok";
    /// Reads keyed state.
    StateGet(StateGet<'a>) = "state_get";
    /// A state value, or none.
    StateValue(StateValue) = "state_value";
    /// Claims records of a group.
    GroupPoll(GroupPoll<'a>) = "group_poll";
    /// Claimed records.
    GroupRecords(GroupRecords<'a>) = "group_records";
    /// Finishes a record.
    GroupAck(GroupOffset<'a>) = "group_ack";
    /// Gives a record back.
    GroupNack(GroupNack<'a>) = "group_nack";
    /// Holds a claim longer.
    GroupExtend(GroupExtend<'a>) = "group_extend";
    /// How long the claim holds.
    GroupExtended(GroupExtended) = "group_extended";
    /// Makes a record a dead letter.
    GroupDeadLetter(GroupOffset<'a>) = "group_dead_letter";
    /// Asks for the dead letters.
    GroupDeadLetters(GroupRequest<'a>) = "group_dead_letters";
    /// The dead letters.
    GroupDeadLetterList(GroupDeadLetterList) = "group_dead_letter_list";
    /// Takes a dead letter off the list.
    GroupDiscard(GroupOffset<'a>) = "group_discard";
    /// Makes a dead letter owed again.
    GroupRedrive(GroupOffset<'a>) = "group_redrive";
    /// Moves the group's position.
    GroupSeek(GroupSeek<'a>) = "group_seek";
    /// The group's position.
    GroupPosition(GroupPosition) = "group_position";
    /// Asks about a group.
    GroupDescribe(GroupRequest<'a>) = "group_describe";
    /// Removes a group.
    GroupDelete(GroupRequest<'a>) = "group_delete";
    /// About a group.
    GroupInfo(GroupInfo) = "group_info";
    /// Whether there was a group to remove.
    GroupDeleted(GroupDeleted) = "group_deleted";
    /// Makes a member of a group.
    GroupJoin(GroupJoin<'a>) = "group_join";
    /// Keeps a member and its leases.
    GroupHeartbeat(GroupHeartbeat<'a>) = "group_heartbeat";
    /// What a member holds.
    GroupLeases(GroupLeases) = "group_leases";
    /// Ends a membership with its leases.
    GroupLeave(GroupLeave<'a>) = "group_leave";
    /// Asks for the members of a group.
    GroupMembers(GroupMembers<'a>) = "group_members";
    /// The members of a group.
    GroupMemberList(GroupMemberList<'a>) = "group_member_list";
    /// Asks for the first record at or after a time.
    OffsetForTime(OffsetForTime<'a>) = "offset_for_time";
    /// An offset, or none.
    OffsetValue(OffsetValue) = "offset_value";
    /// Reads a page of committed records.
    StreamRead(StreamRead<'a>) = "stream_read";
    /// A page of records.
    StreamRecords(StreamRecords<'a>) = "stream_records";
    /// Asks how a shard is doing.
    ShardInspect(ShardInspect<'a>) = "shard_inspect";
    /// How a shard is doing.
    ShardInspectInfo(Box<ShardInspectInfo<'a>>) = "shard_inspect_info";
    /// Asks for the subscriptions of a node.
    SubscriptionsList(Box<SubscriptionsList<'a>>) = "subscriptions_list";
    /// The subscriptions of a node.
    SubscriptionsListInfo(Box<SubscriptionsListInfo<'a>>) = "subscriptions_list_info";
}

/// The body of a message that is only its type.
#[derive(Serialize, serde::Deserialize)]
struct NoMembers {}

/// What is kept of a message of unknown type.
#[derive(Serialize)]
struct UnknownBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<RequestId>,
}

impl<'a> Message<'a> {
    /// Reads the payload of a frame with flags 0. Members may come in any order, unknown ones are ignored.
    ///
    /// # Errors
    /// `Malformed` for anything but one JSON object with a string member `type` and, for a known type, its
    /// members: bytes that are not UTF-8, a repeated member, nesting over `JSON_DEPTH_MAX`, a number out of its
    /// range, base64 outside client-protocol 5.2.
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let text =
            std::str::from_utf8(payload).map_err(|_| DecodeError::Malformed("the JSON is not UTF-8"))?;
        let envelope = scan::scan(text)?;
        match Self::decode_as(&envelope.type_name, text) {
            Some(decoded) => decoded,
            None => {
                json::check_grammar(text)?;
                let request_id = envelope.request_id.map(RequestId);
                Ok(Self::Unknown(UnknownMessage { type_name: envelope.type_name, request_id }))
            }
        }
    }

    /// Appends the whole frame to `out` and returns its payload length in bytes, which the caller compares with
    /// what the peer takes.
    ///
    /// # Panics
    /// When the payload is longer than 32 bits can say.
    pub fn encode_frame(&self, out: &mut BytesMut) -> usize {
        let start = out.len();
        out.put_bytes(0, HEADER_LEN);
        self.write_json(out);
        finish_frame(out, start, Flags::JSON)
    }
}

/// Fills in the header of a frame that begins at `start` and ends with `out`; returns its payload length.
fn finish_frame(out: &mut BytesMut, start: usize, flags: Flags) -> usize {
    let length = out.len() - start - HEADER_LEN;
    assert!(length <= u32::MAX as usize, "a frame over 32 bits");
    let header = FrameHeader { flags: flags.bits(), length: length as u32 };
    out[start..start + HEADER_LEN].copy_from_slice(&header.encode());
    length
}

#[cfg(test)]
mod tests;
