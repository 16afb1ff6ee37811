//! Every bound and deadline of the client, each with its reason. Scope: per process.
//! Owns: constants only.
//! Not here: the bounds of the protocol itself (felix-wire `limits`).

use std::time::Duration;

use felix_wire::limits::{FRAME_PAYLOAD_MAX, KEY_LEN_MAX, NAME_LEN_MAX};

/// One address is given up after this long (client-protocol 6).
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// An answer to one request is awaited this long (client-protocol 11.2).
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The oldest unanswered publish of a stream is awaited this long (client-protocol 10.4).
pub const ACK_TIMEOUT: Duration = Duration::from_secs(30);

/// How long "unknown stream" is taken for "not known yet": creation reaches brokers by a feed.
pub const NOT_FOUND_PATIENCE: Duration = Duration::from_secs(3);

/// Publishes that were refused with nothing written are sent again for this long.
pub const RETRY_REFUSED: Duration = Duration::from_secs(5);

/// Idempotent publishes are sent again until this long after acceptance, whatever became of the earlier copies. Longer
/// than a broker takes to start.
pub const RETRY_IDEMPOTENT: Duration = Duration::from_secs(60);

/// Unsettled batches of one producer on one shard, all of which the shard remembers (client-protocol 10.8): any of them
/// can be sent again.
pub const PRODUCER_BATCHES_MAX: u64 = 64;

/// What is tried within a retry time gets at least this long.
pub const ATTEMPT_MIN: Duration = Duration::from_secs(1);

/// How many times longer than a new stream one that was there is taken for "not known yet": a broker that has just been
/// started reads the catalog first.
pub const KNOWN_BEFORE_FACTOR: u32 = 10;

/// One call of a token provider (client-protocol 4.2).
pub const TOKEN_PROVIDER_TIMEOUT: Duration = Duration::from_secs(30);

/// After a failed refresh the provider is left alone for this long (client-protocol 4.2).
pub const TOKEN_REFRESH_PAUSE: Duration = Duration::from_secs(5);

/// Address families and hosts are tried this far apart, so a silent first one costs little.
pub const DIAL_STAGGER: Duration = Duration::from_millis(250);

/// A handshake nobody answered is begun again after this long, beside the first one.
pub const DIAL_AGAIN: Duration = Duration::from_secs(1);

/// How long a running subscription asks for a token that is accepted, when tokens can be renewed.
pub const IDENTITY_PATIENCE: Duration = Duration::from_secs(30);

/// A shard owner that could not be reached is left alone for this long (client-protocol 17.2).
pub const OWNER_PAUSE: Duration = Duration::from_secs(30);

/// Redirects followed for one request (client-protocol 17.3).
pub const REDIRECT_HOPS_MAX: usize = 3;

/// First and longest wait between two attempts to reach a broker.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// See [`BACKOFF_FIRST`].
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Silence after which a PING is sent, and after which the connection is dead (client-protocol 1.1).
pub const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// See [`KEEP_ALIVE`].
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(6);

/// Largest datagram looked for: ten of them are one segmented send.
pub const MTU_UPPER_BOUND: u16 = 6_500;
/// Datagram size until the path is known; every network carries it.
pub const MTU_INITIAL: u16 = 1_200;

/// Unread bytes one stream may hold; a paused subscription holds no more than this in the transport.
pub const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// Unread bytes of a connection without subscriptions. Each subscription adds one stream window, so
/// all of them may be paused and one more stream still has room.
pub const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Bytes written and not yet acknowledged by the transport, per connection.
pub const SEND_WINDOW_BYTES: u64 = 8 << 20;
/// Subscriptions of one connection; more of them get another one.
pub const EVENT_STREAMS_PER_CONNECTION: u32 = 1_024;
/// Event streams the broker may have open on one connection: those that have just ended may not be given back yet.
pub const EVENT_STREAMS_MAX: u32 = 2 * EVENT_STREAMS_PER_CONNECTION;
/// Publish streams of one connection; more of them get another one. Brokers allow 1,024 streams (client-protocol 1.1), and
/// requests need some.
pub const LANES_PER_CONNECTION: u32 = 768;
/// Connections to one core of a broker. Only thousands of publish streams or subscriptions need more than one.
pub const CONNECTIONS_PER_CORE: usize = 8;
/// Requests unanswered on one stream, at a broker that answers in order.
pub const ORDERED_REQUESTS_PER_STREAM: usize = 64;
/// Request streams of one connection to such a broker: one that waits for lost packets does not hold up the others.
pub const ORDERED_STREAMS_PER_CONNECTION: usize = 4;
/// Request streams of one connection to any other broker: one request each (client-protocol 12). With the publish streams
/// and those that wait it is less than brokers allow.
pub const REQUEST_STREAMS_PER_CONNECTION: usize = 64;
/// Streams of one connection whose request may wait at the broker for something to happen.
pub const WAITING_STREAMS_PER_CONNECTION: usize = 128;
/// A request stream that nobody used for so long is ended.
pub const REQUEST_STREAM_IDLE: Duration = Duration::from_secs(60);
/// Numbered writes of one handle that are on their way, each under its own producer: a shard remembers 4,096.
pub const NUMBERED_WRITES_MAX: usize = 64;
/// Producers that one write is tried under, when shards do not know them.
pub const NEW_PRODUCERS_MAX: u32 = 3;

/// Bytes of a group's name.
pub const GROUP_NAME_LEN_MAX: usize = 255;
/// Records that a consumer has claimed and not handed out, unless it says otherwise.
pub const GROUP_PREFETCH: usize = 32;
/// How long a poll of a consumer waits at the broker, unless it says otherwise: a stop waits for it.
pub const GROUP_POLL_WAIT: Duration = Duration::from_secs(2);
/// How long a consumer waits for the broker to hear that it leaves its group.
pub const GROUP_LEAVE_PATIENCE: Duration = Duration::from_secs(2);
/// Handlers of a worker that run at the same time, unless it says otherwise.
pub const WORKER_CONCURRENCY: usize = 16;
/// How long a worker's claims hold before they are extended, unless its group says otherwise.
pub const WORKER_VISIBILITY: Duration = Duration::from_secs(30);
/// How long a worker that is stopped waits for its handlers, unless it says otherwise.
pub const WORKER_STOP_PATIENCE: Duration = Duration::from_secs(30);
/// After that a worker gives back the records of handlers that it has ended, for so long.
pub const WORKER_GIVE_BACK: Duration = Duration::from_secs(10);

/// Shards a subscription asks for at once when it is opened, so that each has its own deadline.
pub const OPENING_MAX: usize = 128;
/// An event stream nobody asked for is closed after this long.
pub const UNCLAIMED_STREAM_AGE: Duration = Duration::from_secs(30);

/// Asked of the system for a connection's socket, each way. Half of it is the kernel's own overhead.
pub const UDP_BUFFER_BYTES: usize = 8 << 20;
/// Bytes of accepted and unsettled records per publisher.
pub const PUBLISH_BUDGET_BYTES: u32 = 4 << 20;
/// Charged for each accepted send besides its bytes, so that empty records are bounded too.
pub const PUBLISH_ITEM_OVERHEAD_BYTES: usize = 64;
/// Publishes of one shard on the wire and unanswered, when the broker grants more.
pub const PUBLISH_IN_FLIGHT_MAX: usize = 1_024;
/// Records merged into one frame unless the publisher says otherwise.
pub const BATCH_RECORDS_MAX: usize = 1_024;
/// Bytes merged into one frame unless the publisher says otherwise.
pub const BATCH_BYTES_MAX: usize = 256 << 10;
/// Most bytes of records merged into one frame, whatever its names and key are.
pub const FRAME_RUN_BYTES_MAX: usize = FRAME_PAYLOAD_MAX as usize - 3 * NAME_LEN_MAX - KEY_LEN_MAX - 64;
/// Encoded bytes waiting for the transport; beyond it records stay unmerged in the lane's queue.
pub const WRITE_AHEAD_BYTES: usize = 512 << 10;
/// Records and values of at least this size are handed to the transport without a copy.
pub const ZERO_COPY_BYTES: usize = 32 << 10;
/// How often the shards of a stream are asked for while unacknowledged records are sent (client-protocol 6).
pub const ROUTE_REFRESH: Duration = Duration::from_secs(5);
/// Times one send may be routed again because its shard count was outdated.
pub const REROUTES_MAX: u32 = 8;
/// A stream that was flushed waits this long for the broker's end of it.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// Event bytes a subscription holds for a reader that is busy; beyond it streams are not read.
pub const SUBSCRIPTION_BUFFER_BYTES: u32 = 4 << 20;
/// Event frames a subscription holds for a reader that is busy.
pub const SUBSCRIPTION_BUFFER_FRAMES: usize = 1_024;
/// Chunks taken from the transport in one read.
pub const READ_CHUNKS: usize = 32;
