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
    PublishesUnknown Counter "publish_unknown" "Publishes whose log failed while they were on their way to the disk, or which the disk did not confirm in time.";
    PublishesExpired Counter "publish_expired" "Acked publishes refused because their shard had no room in time.";
    PublishesBounced Counter "publish_bounced" "Publishes that an owner sent back for want of room or after a move.";
    PublishesParked Gauge "broker_ingress_queue_depth" "Publishes that wait for their shard.";
    CrossCorePublishes Counter "broker_cross_core_publishes" "Publishes sent to another core of this node.";
    Asks Counter "requests" "Requests read that a shard carries out beside publishes and subscriptions.";
    AsksRefused Counter "requests_refused" "Of those, refused.";
    AsksWaiting Gauge "requests_unanswered" "Of those, unanswered.";
    CacheShards Gauge "cache_shards" "Shards of caches served.";
    CacheKeys Gauge "cache_keys" "Keys with a value in them.";
    CacheBytes Gauge "cache_memory_bytes" "Bytes of memory of their keys, values and counters.";
    ShardsUnread Gauge "shards_unread" "Shards of caches, and of streams with groups, that are not served because a log beside them cannot be read.";
    Groups Gauge "groups" "Consumer groups in memory.";
    GroupPolls Gauge "group_polls_waiting" "Polls of them that wait or are being read for.";
    GroupRosters Gauge "groups_with_members" "Consumer groups with members that shards are leased to.";
    GroupMembers Gauge "group_members" "Members of them.";
    Watches Gauge "cache_watches" "Live watches of caches.";
    WatchesLagged Counter "cache_watches_lagged" "Watches that ended because they did not keep up.";
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
    LogRounds Counter "log_rounds" "Rounds of the commit file: each is one write and sync for all shards of the core.";
    LogRoundBytes Counter "log_round_bytes" "Bytes of those rounds.";
    LogRoundPieces Counter "log_round_pieces" "Pieces of shards in those rounds.";
    LogRoundMicros Counter "log_round_microseconds" "Time those rounds took, in all.";
    LogDirect Counter "log_direct_writes" "Writes straight to segments.";
    LogDirectBytes Counter "log_direct_bytes" "Bytes of those writes.";
    LogDirectMicros Counter "log_direct_microseconds" "Time those writes took, in all.";
    LogSpilledBytes Counter "log_spilled_bytes" "Bytes brought from the commit file to segments.";
    LogFlushes Counter "log_flushes" "Syncs of logs that acknowledge before they sync.";
    LogRetired Counter "log_segments_retired" "Segments removed by retention, compaction or with their stream.";
    LogRetiredBytes Counter "log_segments_retired_bytes" "Bytes of the files of those segments.";
    LogCompactedBytes Counter "log_compacted_bytes" "Bytes written to the ends of logs of caches, counters and groups so that older segments may go.";
    LogCompactedSegments Counter "log_compacted_segments" "Segments let go of so.";
    LogsCompacting Gauge "log_compacting" "Logs that are longer than they should be.";
    LogUnansweredEver Counter "log_disk_slow" "Operations of logs that the disk did not answer within 5 s.";
    LogUnanswered Gauge "log_disk_unanswered" "Operations of logs that the disk has not answered for at least 5 s.";
    LogTroubles Counter "log_disk_errors" "Writes, syncs and other operations of logs that the disk refused.";
    LogMemoryBytes Gauge "log_waiting_bytes" "Bytes of logs on their way to their segments.";
    LogSettleP50 Gauge "log_settle_p50_microseconds" "Half of the batches settled within this time after their append.";
    LogSettleP99 Gauge "log_settle_p99_microseconds" "99 of 100 batches settled within this time after their append.";
    LogSyncP50 Gauge "log_sync_p50_microseconds" "Half of the durable writes and syncs took at most this time.";
    LogSyncP99 Gauge "log_sync_p99_microseconds" "99 of 100 durable writes and syncs took at most this time.";
    LogWriteBatchesP50 Gauge "log_write_batches_p50" "Half of the durable writes settled at most so many batches.";
    LogWriteBatchesP99 Gauge "log_write_batches_p99" "99 of 100 durable writes settled at most so many batches.";
    LogWriteBytesP50 Gauge "log_write_bytes_p50" "Half of the durable writes had at most so many bytes.";
    LogCommitBytes Gauge "log_commit_bytes" "Size of the commit file: all its slots.";
    LogCommitUsedBytes Gauge "log_commit_used_bytes" "Bytes of it that are still needed.";
    LogSlotsReady Gauge "log_commit_slots_ready" "Commit slots that can be written next.";
    LogSlotsAside Gauge "log_commit_slots_aside" "Commit slots set aside because their bytes could not be brought to segments.";
    LogPooled Gauge "log_pooled_segments" "Segment files that wait for their next use.";
    LogPoolBytes Gauge "log_pooled_bytes" "Bytes of those files.";
    LogSegments Gauge "log_segments" "Segments of the logs open on this core.";
    LogDiskBytes Gauge "log_disk_bytes" "Bytes of those segments, whole files.";
    LogsOpen Gauge "log_open" "Logs open on this core.";
    LogFreeBytes Gauge "log_disk_free_bytes" "Bytes free on the fullest volume.";
    LogWritable Gauge "log_writable" "1 while no volume is too full for writes.";
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
