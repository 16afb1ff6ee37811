//! Which values go together. Scope: pure function over the settings.
//! Owns: the refused pairs (semantics 12, those that exist here) and the ranges of single values.
//! Invariants: every problem is reported, not only the first, and each names the settings by their keys.
//! Not here: whether files exist or addresses can be bound; the start finds that out.

use felix_wire::control::check_node_id;

use super::{ConfigError, Settings, Size, is_loopback};

/// Largest frame payload the protocol has.
const FRAME_BYTES_MAX: u64 = felix_wire::limits::FRAME_PAYLOAD_MAX as u64;
/// Sizes of the first datagrams that the transport can start with.
const INITIAL_MTU: std::ops::RangeInclusive<u64> = 1_200..=1_452;
/// Sizes a datagram can have over UDP and IPv4.
const DATAGRAM_BYTES: std::ops::RangeInclusive<u64> = 1_200..=65_507;
/// Every client may send datagrams of this size.
const ANNOUNCED_PAYLOAD_MIN: u64 = 4_096;
/// The transport has an entry for each.
const STREAMS_PER_CONN_MAX: u64 = 65_536;
/// A shorter interval would only load the control plane.
const SYNC_INTERVAL_MS_MIN: u64 = 50;
/// Every label costs each core a row that is copied once a second.
const TENANT_METRICS_MAX: u64 = 10_000;
/// Drives one broker can have.
const VOLUMES_MAX: usize = 64;
/// Sizes of the largest segment of a log: a batch of 16 MiB must fit.
const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=256 << 20;
/// Sizes of a commit slot.
const SLOT_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 30;
/// Two of the largest batches, to what a core can use.
const LOG_MEMORY: std::ops::RangeInclusive<u64> = 32 << 20..=4 << 30;
/// Longest time any setting may name, in milliseconds: one day.
const TIME_MS_MAX: u64 = 86_400_000;

impl Settings {
    /// Refuses what cannot work.
    ///
    /// # Errors
    /// `ConfigError::Refused` with one line for each problem.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        self.check_frames(&mut problems);
        self.check_transport(&mut problems);
        self.check_counts(&mut problems);
        self.check_storage(&mut problems);
        self.check_tls(&mut problems);
        self.check_node(&mut problems);
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Refused(problems)) }
    }

    fn check_frames(&self, problems: &mut Vec<String>) {
        let mut refuse = |wrong: bool, text: String| {
            if wrong {
                problems.push(text)
            }
        };
        let frame = self.max_frame_bytes;
        refuse(
            frame.0 > FRAME_BYTES_MAX,
            format!("max_frame_bytes is {frame}; the protocol allows {}", Size(FRAME_BYTES_MAX)),
        );
        refuse(
            self.preauth_max_frame_bytes > frame,
            format!(
                "preauth_max_frame_bytes ({}) is over max_frame_bytes ({frame})",
                self.preauth_max_frame_bytes
            ),
        );
        refuse(self.preauth_max_frame_bytes.0 < 1_024, "preauth_max_frame_bytes is under 1KiB".to_owned());
        refuse(
            self.event_batch_max_bytes > frame,
            format!(
                "event_batch_max_bytes ({}) is over max_frame_bytes ({frame})",
                self.event_batch_max_bytes
            ),
        );
        refuse(
            self.stream_recv_window > self.conn_recv_window,
            format!(
                "stream_recv_window ({}) is over conn_recv_window ({})",
                self.stream_recv_window, self.conn_recv_window
            ),
        );
        refuse(
            self.stream_recv_window < self.preauth_max_frame_bytes,
            format!(
                "stream_recv_window ({}) is under preauth_max_frame_bytes ({})",
                self.stream_recv_window, self.preauth_max_frame_bytes
            ),
        );
        refuse(
            !(64 << 10..=1 << 32).contains(&self.conn_send_window.0),
            format!("conn_send_window is {}; it can be 64KiB to 4GiB", self.conn_send_window),
        );
        refuse(
            self.conn_recv_window.0 > u64::from(u32::MAX),
            format!("conn_recv_window ({}) is 4GiB or more", self.conn_recv_window),
        );
    }

    fn check_transport(&self, problems: &mut Vec<String>) {
        let mut refuse = |wrong: bool, text: String| {
            if wrong {
                problems.push(text)
            }
        };
        refuse(
            !INITIAL_MTU.contains(&self.initial_mtu),
            format!(
                "initial_mtu is {}; it can be {} to {}",
                self.initial_mtu,
                INITIAL_MTU.start(),
                INITIAL_MTU.end()
            ),
        );
        for (name, value) in
            [("mtu_upper_bound", self.mtu_upper_bound), ("max_udp_payload", self.max_udp_payload)]
        {
            refuse(
                !DATAGRAM_BYTES.contains(&value),
                format!(
                    "{name} is {value}; it can be {} to {}",
                    DATAGRAM_BYTES.start(),
                    DATAGRAM_BYTES.end()
                ),
            );
        }
        refuse(
            self.mtu_upper_bound < self.initial_mtu,
            format!("mtu_upper_bound ({}) is under initial_mtu ({})", self.mtu_upper_bound, self.initial_mtu),
        );
        refuse(
            self.max_udp_payload < ANNOUNCED_PAYLOAD_MIN,
            format!("max_udp_payload ({}) is under {ANNOUNCED_PAYLOAD_MIN}", self.max_udp_payload),
        );
        refuse(
            self.keepalive_ms >= self.max_idle_timeout_ms,
            format!(
                "keepalive_ms ({}) is not under max_idle_timeout_ms ({})",
                self.keepalive_ms, self.max_idle_timeout_ms
            ),
        );
    }

    fn check_storage(&self, problems: &mut Vec<String>) {
        let mut refuse = |wrong: bool, text: String| {
            if wrong {
                problems.push(text)
            }
        };
        let dirs = self.storage_dirs();
        refuse(
            dirs.iter().any(|dir| dir.as_os_str().is_empty()),
            "storage_dir has an empty folder in it".to_owned(),
        );
        refuse(
            dirs.len() > VOLUMES_MAX,
            format!("storage_dir has {} folders; at most {VOLUMES_MAX}", dirs.len()),
        );
        let twice = (0..dirs.len()).any(|at| dirs[..at].contains(&dirs[at]));
        refuse(twice, "storage_dir names a folder twice".to_owned());
        for (name, value, range) in [
            ("segment_bytes", self.segment_bytes, SEGMENT_BYTES),
            ("commit_slot_bytes", self.commit_slot_bytes, SLOT_BYTES),
            ("log_memory", self.log_memory, LOG_MEMORY),
        ] {
            refuse(
                !range.contains(&value.0),
                format!("{name} is {value}; it can be {} to {}", Size(*range.start()), Size(*range.end())),
            );
        }
        refuse(
            !self.commit_slot_bytes.0.is_multiple_of(4_096) || !self.segment_bytes.0.is_multiple_of(4_096),
            "commit_slot_bytes and segment_bytes are whole blocks of 4KiB".to_owned(),
        );
        for (name, ms) in
            [("fsync_interval_ms", self.fsync_interval_ms), ("retention_check_ms", self.retention_check_ms)]
        {
            refuse(!(1..=TIME_MS_MAX).contains(&ms), format!("{name} is {ms}; it can be 1 to {TIME_MS_MAX}"));
        }
        refuse(
            self.disk_low.0 == 0,
            "disk_low is 0: a full drive would be met in the middle of a write".to_owned(),
        );
    }

    fn check_counts(&self, problems: &mut Vec<String>) {
        let mut refuse = |wrong: bool, text: String| {
            if wrong {
                problems.push(text)
            }
        };
        for (name, value) in [
            ("preauth_max_streams_per_conn", self.preauth_max_streams_per_conn),
            ("max_client_connections", self.max_client_connections),
            ("max_connections_per_ip", self.max_connections_per_ip),
            ("publish_window", self.publish_window),
            ("event_batch_max_events", self.event_batch_max_events),
            ("subscriber_queue_capacity", self.subscriber_queue_capacity),
            ("max_subscriptions_per_conn", self.max_subscriptions_per_conn),
            ("max_subscriptions_total", self.max_subscriptions_total),
            ("replay_ring_max_records", self.replay_ring_max_records),
            ("group_max_attempts", self.group_max_attempts),
            ("group_max_in_flight", self.group_max_in_flight),
        ] {
            refuse(value == 0 || value > 1 << 24, format!("{name} is {value}; it can be 1 to {}", 1 << 24));
        }
        refuse(
            self.max_streams_per_conn < self.preauth_max_streams_per_conn
                || self.max_streams_per_conn > STREAMS_PER_CONN_MAX,
            format!(
                "max_streams_per_conn is {}; it can be {} (preauth_max_streams_per_conn) to {STREAMS_PER_CONN_MAX}",
                self.max_streams_per_conn, self.preauth_max_streams_per_conn
            ),
        );
        refuse(
            self.subscriber_queue_capacity > self.subscriber_queue_max,
            format!(
                "subscriber_queue_capacity ({}) is over subscriber_queue_max ({})",
                self.subscriber_queue_capacity, self.subscriber_queue_max
            ),
        );
        refuse(
            self.ring_memory_percent == 0 || self.ring_memory_percent > 60,
            format!("ring_memory_percent is {}; it can be 1 to 60", self.ring_memory_percent),
        );
        refuse(
            self.cache_memory_percent == 0 || self.cache_memory_percent > 60,
            format!("cache_memory_percent is {}; it can be 1 to 60", self.cache_memory_percent),
        );
        for (name, value, least) in [
            ("auth_timeout_ms", self.auth_timeout_ms, 1),
            ("publish_queue_wait_ms", self.publish_queue_wait_ms, 0),
            ("publish_confirm_wait_ms", self.publish_confirm_wait_ms, 1_000),
            ("max_idle_timeout_ms", self.max_idle_timeout_ms, 100),
            ("shutdown_drain_timeout_ms", self.shutdown_drain_timeout_ms, 1),
            ("shutdown_predrain_ms", self.shutdown_predrain_ms, 0),
            ("group_visibility_timeout_ms", self.group_visibility_timeout_ms, 1),
            ("group_max_visibility_ms", self.group_max_visibility_ms, self.group_visibility_timeout_ms),
            ("group_max_wait_ms", self.group_max_wait_ms, 0),
            ("controlplane_sync_interval_ms", self.controlplane_sync_interval_ms, SYNC_INTERVAL_MS_MIN),
        ] {
            refuse(
                value < least || value > TIME_MS_MAX,
                format!("{name} is {value}; it can be {least} to {TIME_MS_MAX}"),
            );
        }
        refuse(
            self.tenant_metrics_max > TENANT_METRICS_MAX,
            format!("tenant_metrics_max is {}; {TENANT_METRICS_MAX} is the most", self.tenant_metrics_max),
        );
        refuse(self.spin_us > 1_000_000, format!("spin_us is {}; a second is the most", self.spin_us));
    }

    fn check_tls(&self, problems: &mut Vec<String>) {
        let mut refuse = |wrong: bool, text: &str| {
            if wrong {
                problems.push(text.to_owned())
            }
        };
        let own = self.tls_cert.is_some() && self.tls_key.is_some();
        refuse(
            self.tls_cert.is_some() != self.tls_key.is_some(),
            "tls_cert and tls_key go together; one is missing",
        );
        refuse(self.tls_require_cert && !own, "tls_require_cert is on and tls_cert, tls_key are not set");
        refuse(
            self.tls_cert.is_none() && !self.is_loopback(),
            "quic_bind is not a loopback address: set tls_cert and tls_key (a certificate is generated on loopback only)",
        );
        refuse(
            self.tls_cert_export.is_some() && own,
            "tls_cert_export is for the generated certificate, not one's own",
        );
    }

    fn check_node(&self, problems: &mut Vec<String>) {
        let mut refuse = |wrong: bool, text: String| {
            if wrong {
                problems.push(text)
            }
        };
        match &self.node_id {
            None => refuse(true, "node_id is required, for example --node-id broker-0".to_owned()),
            Some(id) => {
                if let Err(error) = check_node_id(id) {
                    refuse(true, format!("node_id: {error}"));
                }
            }
        }
        match &self.controlplane_url {
            None => refuse(true, "controlplane_url is required".to_owned()),
            Some(url) => refuse(
                !(url.starts_with("http://") || url.starts_with("https://")),
                format!("controlplane_url is `{url}`; it starts with http:// or https://"),
            ),
        }
        refuse(
            self.node_token.is_some() && self.node_token_file.is_some(),
            "node_token and node_token_file are both set; keep one".to_owned(),
        );
        refuse(
            self.node_token.is_none() && self.node_token_file.is_none(),
            "node_token_file (or node_token) is required: the control plane answers nobody without a credential"
                .to_owned(),
        );
        if let Some(addr) = &self.node_advertise_addr {
            refuse(
                addr.parse::<std::net::SocketAddr>().map_or(true, |a| a.port() == 0),
                format!("node_advertise_addr is `{addr}`; it is ip:port with a port that is not 0"),
            );
        }
        refuse(self.region_id.is_empty(), "region_id is empty".to_owned());
    }

    /// What works but deserves a warning at start.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if let Some(host) = self.controlplane_url.as_deref().and_then(|url| url.strip_prefix("http://")) {
            let host = host.split('/').next().unwrap_or(host);
            let local = host.starts_with("localhost") || host.parse().is_ok_and(is_loopback);
            if !local {
                doubts.push(
                    "controlplane_url is plain http: the node's credential crosses the network readable"
                        .to_owned(),
                );
            }
        }
        if self.shed {
            doubts.push("shed is on: unacknowledged publishes of a full shard are dropped".to_owned());
        }
        doubts
    }
}
