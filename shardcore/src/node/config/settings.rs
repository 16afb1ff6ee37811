//! Every setting of the broker in one table: its key, its environment name, its type, its default, its help.
//! Scope: per process, read once at start.
//! Owns: the names. A key `a_b` is `a_b` in the file, `--a-b` on the command line and the listed name in the environment.
//! Invariants: keys and environment names are unique (test `no_name_is_used_twice`).
//! Not here: where a value came from (`load`), which values go together (`check`).

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::values::{CoreList, FsyncMode, Kind, LogFormat, QueuePolicy, SettingType, Size};

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Name in the file; with `-` for `_` the flag.
    pub key: &'static str,
    /// Name in the environment.
    pub env: &'static str,
    /// What it does, for `--help`.
    pub help: &'static str,
    /// How a string becomes a value.
    pub kind: Kind,
}

macro_rules! settings {
    ($( $(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr, $env:literal; )+) => {
        /// The settings as they were asked for, before they are checked against each other.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Settings {
            $( $(#[doc = $doc])+ pub $key: $type, )+
        }

        impl Default for Settings {
            fn default() -> Settings {
                Settings { $( $key: $default, )+ }
            }
        }

        /// The table, in the order in which `config print` shows it.
        pub const SETTINGS: &[Setting] = &[
            $( Setting {
                key: stringify!($key),
                env: $env,
                help: concat!($($doc),+),
                kind: <$type as SettingType>::KIND,
            }, )+
        ];
    };
}

const MIB: u64 = 1 << 20;

settings! {
    /// Client address (QUIC). `[::]` serves IPv6 and IPv4 where the host has both.
    quic_bind: SocketAddr = SocketAddr::from(([0u16; 8], 5_000)), "FELIX_QUIC_BIND";
    /// Address of `/metrics`, `/live` and `/ready` (HTTP, no authentication).
    metrics_bind: SocketAddr = SocketAddr::from(([0, 0, 0, 0], 8_080)), "FELIX_BROKER_METRICS_BIND";
    /// CPUs to serve on, such as `0,2-3`; `auto` takes every CPU the process may use.
    cores: CoreList = CoreList::Auto, "FELIX_CORES";
    /// Pin each core's thread to its CPU.
    pin: bool = true, "FELIX_PIN";
    /// How long a core looks for work before it parks, in microseconds. 0 parks at once.
    spin_us: u64 = 50, "FELIX_SPIN_US";
    /// Memory the broker plans with, beside the buffers of logs; 0 takes three quarters of what the machine or its cgroup has.
    memory: Size = Size(0), "FELIX_MEMORY";
    /// Share of a core's memory for all its replay rings, in percent.
    ring_memory_percent: u64 = 25, "FELIX_RING_MEMORY_PERCENT";
    /// Bytes for all replay rings of one core; 0 takes the share above.
    ring_memory: Size = Size(0), "FELIX_RING_MEMORY";
    /// Share of a core's memory for values of caches, in percent; without a storage folder also for keys and counters.
    cache_memory_percent: u64 = 15, "FELIX_CACHE_MEMORY_PERCENT";
    /// Most shards given to one core before the next one is tried; 0 spreads evenly.
    shards_per_core: u64 = 0, "FELIX_SHARDS_PER_CORE";
    /// Drop unacknowledged publishes of a full shard instead of holding them back.
    shed: bool = false, "FELIX_SHED";
    /// Folder for the broker's data.
    data_dir: Option<String> = None, "FELIX_DATA_DIR";
    /// Folders for the logs of durable streams, one per drive, separated by commas; by default `log` in the data folder.
    storage_dir: Option<String> = None, "FELIX_DURABLE_STORAGE_DIR";
    /// When a publish to a durable stream is acknowledged: written (`none`, `periodic`) or synced (`on_commit`).
    fsync: FsyncMode = FsyncMode::Periodic, "FELIX_DURABLE_FSYNC_MODE";
    /// With `periodic`: from one sync to the next, in milliseconds.
    fsync_interval_ms: u64 = 250, "FELIX_DURABLE_FSYNC_INTERVAL_MS";
    /// Largest segment of a log; a log begins with small ones.
    segment_bytes: Size = Size(256 * MIB), "FELIX_DURABLE_SEGMENT_BYTES";
    /// Each of the four files that small writes of a core are committed to first.
    commit_slot_bytes: Size = Size(64 * MIB), "FELIX_COMMIT_SLOT_BYTES";
    /// Bytes that may be on their way to one drive from one core; then publishes wait. A core's buffers take twice this and 64MiB.
    log_memory: Size = Size(64 * MIB), "FELIX_LOG_MEMORY";
    /// Bytes kept of each shard of a stream that does not say; 0 keeps everything.
    retention_bytes: Size = Size(0), "FELIX_DURABLE_RETENTION_BYTES";
    /// Seconds for which a record is kept in a stream that does not say; 0 keeps everything.
    retention_seconds: u64 = 0, "FELIX_DURABLE_RETENTION_SECONDS";
    /// How often retention is looked at, in milliseconds.
    retention_check_ms: u64 = 60_000, "FELIX_DURABLE_RETENTION_CHECK_MS";
    /// Bytes a core reads or writes in a second to make logs of caches, counters and groups shorter, four times as many when one is far too long; 0 lets them grow.
    compaction_bytes_per_sec: Size = Size(64 * MIB), "FELIX_STORAGE_COMPACTION_BYTES_PER_SEC";
    /// With less free on a drive, writes to its durable streams are refused; with twice as much they go on.
    disk_low: Size = Size(1_024 * MIB), "FELIX_DISK_LOW";
    /// How long a record that was handed out to a consumer group stays claimed, in milliseconds.
    group_visibility_timeout_ms: u64 = 30_000, "FELIX_GROUP_VISIBILITY_TIMEOUT_MS";
    /// The longest claim, extension or delay of a record of a group, in milliseconds.
    group_max_visibility_ms: u64 = 43_200_000, "FELIX_GROUP_MAX_VISIBILITY_MS";
    /// How often a record is handed out before it is a dead letter.
    group_max_attempts: u64 = 5, "FELIX_GROUP_MAX_ATTEMPTS";
    /// Records of one group of a shard that may be handed out and unfinished.
    group_max_in_flight: u64 = 10_000, "FELIX_GROUP_MAX_IN_FLIGHT";
    /// How long a poll may wait for a first record, in milliseconds.
    group_max_wait_ms: u64 = 30_000, "FELIX_GROUP_MAX_WAIT_MS";
    /// File to write, once serving, with the addresses in use (JSON, mode 0600, complete or absent).
    ready_file: Option<String> = None, "FELIX_READY_FILE";

    /// Certificate chain (PEM). Without one a certificate is generated, on loopback only.
    tls_cert: Option<String> = None, "FELIX_TLS_CERT";
    /// Private key of the certificate (PEM).
    tls_key: Option<String> = None, "FELIX_TLS_KEY";
    /// Refuse to start without a certificate of one's own.
    tls_require_cert: bool = false, "FELIX_TLS_REQUIRE_CERT";
    /// File to write the generated certificate to, so that clients can trust it.
    tls_cert_export: Option<String> = None, "FELIX_TLS_CERT_EXPORT";

    /// Base address of the control plane, `http://` or `https://`. Required.
    controlplane_url: Option<String> = None, "FELIX_CONTROLPLANE_URL";
    /// Certificate authority to trust for the control plane (PEM) instead of the system's.
    controlplane_ca: Option<String> = None, "FELIX_CONTROLPLANE_CA";
    /// Time between two reads of the catalog, in milliseconds.
    controlplane_sync_interval_ms: u64 = 2_000, "FELIX_CONTROLPLANE_SYNC_INTERVAL_MS";

    /// Name of this node: 1 to 253 of `a-z 0-9 - . _`. Required, and the same at every start.
    node_id: Option<String> = None, "FELIX_NODE_ID";
    /// Address other nodes reach this one at (`ip:port`); by default the client address.
    node_advertise_addr: Option<String> = None, "FELIX_NODE_ADVERTISE_ADDR";
    /// Address clients are told (`host:port`); by default the bound one, seen from the control plane's side.
    client_advertise_addr: Option<String> = None, "FELIX_CLIENT_ADVERTISE_ADDR";
    /// Failure domain of this node.
    node_zone: Option<String> = None, "FELIX_NODE_ZONE";
    /// Region of this node.
    region_id: String = "local".to_owned(), "FELIX_REGION_ID";
    /// Credential for the control plane.
    node_token: Option<String> = None, "FELIX_NODE_TOKEN";
    /// File with that credential, read again when it changes.
    node_token_file: Option<String> = None, "FELIX_NODE_TOKEN_FILE";

    /// Largest frame payload accepted.
    max_frame_bytes: Size = Size(16 * MIB), "FELIX_MAX_FRAME_BYTES";
    /// Largest frame payload before a stream has authenticated.
    preauth_max_frame_bytes: Size = Size(64 << 10), "FELIX_PREAUTH_MAX_FRAME_BYTES";
    /// Streams a connection may open before anything on it has authenticated.
    preauth_max_streams_per_conn: u64 = 16, "FELIX_PREAUTH_MAX_STREAMS_PER_CONN";
    /// Streams an authenticated connection may open and have open; each costs a little memory whether it is open or not.
    max_streams_per_conn: u64 = 1_024, "FELIX_MAX_STREAMS_PER_CONN";
    /// From the handshake to the first authentication, in milliseconds.
    auth_timeout_ms: u64 = 10_000, "FELIX_AUTH_TIMEOUT_MS";
    /// Connections of the whole broker.
    max_client_connections: u64 = 8_192, "FELIX_MAX_CLIENT_CONNECTIONS";
    /// Connections of one address at one core.
    max_connections_per_ip: u64 = 512, "FELIX_MAX_CONNECTIONS_PER_IP";

    /// How long an acknowledged publish may wait for a full shard before it is refused, in milliseconds.
    publish_queue_wait_ms: u64 = 2_000, "FELIX_PUBLISH_QUEUE_WAIT_MS";
    /// How long a publish may be on its way to a disk that does not answer before it is answered "outcome unknown", in
    /// milliseconds.
    publish_confirm_wait_ms: u64 = 60_000, "FELIX_PUBLISH_CONFIRM_WAIT_MS";
    /// Acknowledged publishes a stream may have unanswered.
    publish_window: u64 = 256, "FELIX_BROKER_PUBLISH_WINDOW";
    /// Receive window of one stream, also what it may have parked.
    stream_recv_window: Size = Size(4 * MIB), "FELIX_BROKER_PUB_STREAM_RECV_WINDOW";
    /// Receive window of one authenticated connection.
    conn_recv_window: Size = Size(16 * MIB), "FELIX_BROKER_PUB_CONN_RECV_WINDOW";
    /// Bytes a connection may have sent without the client's acknowledgement.
    conn_send_window: Size = Size(MIB), "FELIX_CONN_SEND_WINDOW";

    /// Most records in a live event frame.
    event_batch_max_events: u64 = 64, "FELIX_EVENT_BATCH_MAX_EVENTS";
    /// Most bytes in a live event frame; one record is always sent.
    event_batch_max_bytes: Size = Size(256 << 10), "FELIX_EVENT_BATCH_MAX_BYTES";
    /// Queue of a subscriber that asks for none, in frames.
    subscriber_queue_capacity: u64 = 512, "FELIX_SUBSCRIBER_QUEUE_CAPACITY";
    /// Largest queue a subscriber may ask for, in frames.
    subscriber_queue_max: u64 = 4_096, "FELIX_SUBSCRIBER_QUEUE_MAX";
    /// What a subscriber that does not keep up gets: `block`, `drop_new` or `drop_old`.
    sub_queue_policy: QueuePolicy = QueuePolicy::DropNew, "FELIX_SUB_QUEUE_POLICY";
    /// Subscriptions of one connection.
    max_subscriptions_per_conn: u64 = 4_096, "FELIX_MAX_SUBSCRIPTIONS_PER_CONN";
    /// Subscriptions of the whole broker.
    max_subscriptions_total: u64 = 16_384, "FELIX_MAX_SUBSCRIPTIONS_TOTAL";
    /// Bytes an in-memory shard keeps for replay.
    replay_ring_max_bytes: Size = Size(64 * MIB), "FELIX_REPLAY_RING_MAX_BYTES";
    /// Records an in-memory shard keeps for replay.
    replay_ring_max_records: u64 = 1_024, "FELIX_REPLAY_RING_MAX_RECORDS";

    /// Tenants with metrics of their own; the others share the label `_overflow`.
    tenant_metrics_max: u64 = 100, "FELIX_TENANT_METRICS_MAX";

    /// Send buffer of each client socket, as far as the system grants it.
    udp_send_buffer: Size = Size(8 * MIB), "FELIX_UDP_SEND_BUFFER";
    /// Receive buffer of each client socket, as far as the system grants it.
    udp_recv_buffer: Size = Size(8 * MIB), "FELIX_UDP_RECV_BUFFER";
    /// Largest datagram that path discovery tries, in bytes.
    mtu_upper_bound: u64 = 8_900, "FELIX_MTU_UPPER_BOUND";
    /// Size of the first datagrams, in bytes.
    initial_mtu: u64 = 1_200, "FELIX_INITIAL_MTU";
    /// Largest datagram announced as welcome, in bytes.
    max_udp_payload: u64 = 8_900, "FELIX_MAX_UDP_PAYLOAD";
    /// Keep-alive of a silent connection, in milliseconds; 0 sends none.
    keepalive_ms: u64 = 2_000, "FELIX_KEEPALIVE_MS";
    /// A connection silent for this long is gone, in milliseconds.
    max_idle_timeout_ms: u64 = 6_000, "FELIX_MAX_IDLE_TIMEOUT_MS";

    /// Time between readiness going off and the first refused connection, in milliseconds.
    shutdown_predrain_ms: u64 = 0, "FELIX_SHUTDOWN_PREDRAIN_MS";
    /// Budget for the whole drain, in milliseconds.
    shutdown_drain_timeout_ms: u64 = 25_000, "FELIX_SHUTDOWN_DRAIN_TIMEOUT_MS";
    /// `text` or `json`, one event a line on standard error.
    log_format: LogFormat = LogFormat::Text, "FELIX_LOG_FORMAT";
    /// Least level logged (`error`, `warn`, `info`, `debug`, `trace`), or per-target rules.
    log_level: String = "info".to_owned(), "FELIX_LOG_LEVEL";
}
