//! What a core counts. Scope: one block per core, written by the core, read by the admin thread.
//! Owns: the list of numbers with their public names (semantics 11). Not here: how they are served (`node::metrics`).

use felix_runtime::counters::CounterWriter;

/// Whether a number only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

macro_rules! counters {
    ($($name:ident $kind:ident $public:literal $help:literal;)*) => {
        /// One number of a core.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($name,)* }

        impl Counter {
            /// All of them, in the order of their cells.
            pub const ALL: &[Counter] = &[$(Counter::$name,)*];

            /// Name without the prefix `felix_`; a counter's without `_total`.
            pub fn name(self) -> &'static str {
                match self { $(Counter::$name => $public,)* }
            }

            /// One line for people.
            pub fn help(self) -> &'static str {
                match self { $(Counter::$name => $help,)* }
            }

            /// Whether it only grows.
            pub fn kind(self) -> Kind {
                match self { $(Counter::$name => Kind::$kind,)* }
            }
        }
    };
}

counters! {
    Turns Counter "broker_turns" "Turns of the core's loop.";
    FramesIn Counter "broker_frames" "Frames read on authenticated streams.";
    PublishRequests Counter "publish_requests" "Publishes read.";
    PublishRecords Counter "publish_records" "Records of the publishes read.";
    PublishBytes Counter "publish_bytes" "Payload bytes of the publishes read.";
    JsonPublishes Counter "broker_json_publishes" "Publishes read in JSON.";
    PublishesWritten Counter "publish_written" "Publishes appended.";
    PublishesRefused Counter "publish_refused" "Publishes refused with nothing written.";
    PublishesDropped Counter "publish_dropped" "Unacknowledged publishes refused: nobody was told.";
    PublishesShed Counter "publish_shed" "Unacknowledged publishes of a full shard shed (only with shed on).";
    PublishesUnknown Counter "publish_unknown" "Publishes whose log failed while they were on their way to the disk.";
    PublishesExpired Counter "publish_expired" "Acked publishes refused because their shard had no room in time.";
    PublishesBounced Counter "publish_bounced" "Publishes that an owner sent back for want of room or after a move.";
    PublishesParked Gauge "broker_ingress_queue_depth" "Publishes that wait for their shard.";
    CrossCorePublishes Counter "broker_cross_core_publishes" "Publishes sent to another core of this node.";
    EventFrames Counter "delivered_frames" "Event frames written.";
    EventBytes Counter "delivered_bytes" "Bytes of event frames written.";
    SubscribeDropped Counter "subscribe_dropped" "Records skipped for subscribers that did not keep up.";
    Subscriptions Gauge "sub_active" "Live subscriptions.";
    SubscriberDisconnects Counter "subscriber_disconnect" "Subscriptions that ended.";
    Connections Gauge "connections" "Connections held.";
    ConnectionsRefused Counter "quic_connections_refused" "Connections turned away before they were admitted.";
    HandshakeFailures Counter "quic_handshake_failures" "Connections that ended before they were established.";
    AuthAccepted Counter "auth_accepted" "Streams authenticated.";
    AuthRefused Counter "auth_refused" "Streams refused.";
    AuthTimeouts Counter "quic_auth_timeout" "Connections on which nothing authenticated in time.";
    StreamsRefused Counter "streams_refused" "Streams over the bound before authentication.";
    FramesGivenUp Counter "frames_given_up" "Unfinished frames given up for want of memory.";
    ProtocolViolations Counter "protocol_violations" "Frames that broke the protocol.";
    Datagrams Counter "udp_datagrams" "Datagrams received.";
    StrayDatagrams Counter "udp_stray_datagrams" "Datagrams passed to the core that owns their connection.";
    RingBytes Gauge "ring_bytes" "Bytes held in replay rings.";
    Shards Gauge "shards" "Shards served.";
    LogReadErrors Counter "log_read_errors" "Reads of a log that found damage or were refused by the disk.";
    LogRounds Counter "log_commit_rounds" "Rounds written to the commit files; each is one write with its sync.";
    LogRoundBytes Counter "log_commit_round_bytes" "Bytes of those rounds.";
    LogDirectWrites Counter "log_direct_writes" "Writes straight to segments, each with its sync where that is asked.";
    LogDirectBytes Counter "log_direct_write_bytes" "Bytes of those writes.";
    LogSpilledBytes Counter "log_spilled_bytes" "Bytes brought from the commit files to segments.";
    MailDepth Gauge "mailbox_depth" "Messages that wait for room in a mailbox.";
}

/// The core's side of its numbers.
#[derive(Debug)]
pub struct CoreCounters(CounterWriter);

impl CoreCounters {
    /// Writes into `block`, which has `Counter::ALL.len()` cells.
    pub fn new(block: CounterWriter) -> CoreCounters {
        CoreCounters(block)
    }

    /// Adds to a number that only grows.
    pub fn add(&self, counter: Counter, by: u64) {
        self.0.add(counter as usize, by);
    }

    /// Sets a gauge.
    pub fn set(&self, counter: Counter, to: u64) {
        self.0.set(counter as usize, to);
    }

    /// The value now.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0.get(counter as usize)
    }
}
