//! What a QUIC machine is told when it starts. Scope: one value per core, checked once.
//! Owns: the bounds of every setting and the transport settings derived from them.
//! Invariants: a checked setting never makes quinn-proto panic or send nothing: `initial_mtu` stays where a first
//! packet fits both its length field (14 bits) and the initial congestion window.
//! Not here: certificates (tls), socket buffers (udp).

use std::time::Duration;

use quinn_proto::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use thiserror::Error;

/// Smallest datagram QUIC may rely on (RFC 9000 14).
pub const MTU_MIN: u16 = 1_200;
/// Largest first guess: what Ethernet carries. More would be a larger part of the initial congestion window
/// (12,000 bytes) than a handshake can wait for, so larger paths are found by discovery.
pub const INITIAL_MTU_MAX: u16 = 1_452;
/// Largest UDP payload over IPv4, and the bound of one GSO train.
pub const UDP_PAYLOAD_MAX: u16 = 65_507;
/// Ids carry the core in one byte.
pub const CORES_MAX: u16 = 256;
/// quinn-proto holds an entry per stream the peer may open, open or not.
pub const STREAMS_MAX: u32 = 65_536;
/// The shared keys of all cores of a process (stateless reset, address validation).
pub const KEY_BYTES: usize = 64;

/// Settings of one core's machine. Byte counts are payload bytes of QUIC streams unless a line says otherwise.
#[derive(Clone)]
pub struct QuicSettings {
    /// Our core, below `cores`.
    pub core: u16,
    /// Cores that share the port, 1 to 256: ids we issue have a first byte that is `core` modulo `cores`.
    pub cores: u16,
    /// First guess of the path, bytes of UDP payload, 1,200 to 1,452.
    pub initial_mtu: u16,
    /// What path discovery may reach, bytes of UDP payload, `initial_mtu` to 65,507.
    pub mtu_upper_bound: u16,
    /// What we announce to accept, bytes of UDP payload, 1,200 to 65,507. The socket must really take it.
    pub max_udp_payload: u16,
    /// Credit of one stream. 4 MiB costs nothing; above about 2 MiB a slow reader costs copies.
    pub stream_window: u64,
    /// Credit of a connection until `set_receive_window` raises it.
    pub conn_window_before_auth: u64,
    /// Bytes a connection may hold that were written and not acknowledged.
    pub send_window: u64,
    /// Bidirectional streams the peer may have open.
    pub max_bidi_streams: u32,
    /// Unidirectional streams the peer may have open.
    pub max_uni_streams: u32,
    /// Silence that ends a connection; the smaller of ours and the peer's counts. Zero: never.
    pub idle_timeout: Duration,
    /// PING after this much silence of ours.
    pub keep_alive: Option<Duration>,
    /// Connections held at once, those still draining included. More are refused.
    pub max_connections: usize,
    /// Of those, how many from one IP address.
    pub max_connections_per_ip: Option<usize>,
    /// With this many handshakes unfinished, newcomers must first prove their address (a Retry).
    pub retry_above_handshakes: usize,
    /// Stateless reset key, the same on all cores and across restarts.
    pub reset_key: [u8; KEY_BYTES],
    /// Address validation key, the same on all cores.
    pub token_key: [u8; KEY_BYTES],
    /// Unix time of `Tick::ZERO` in microseconds; validation tokens carry it.
    pub unix_micros_at_zero: u64,
    /// Fixes every random choice that is ours (not those of TLS). Another one for every machine: two that share
    /// it make up the same connection ids.
    pub seed: Option<[u8; 32]>,
}

impl QuicSettings {
    /// One core of one, everything else at its default.
    pub fn new(reset_key: [u8; KEY_BYTES], token_key: [u8; KEY_BYTES]) -> QuicSettings {
        QuicSettings {
            core: 0,
            cores: 1,
            initial_mtu: MTU_MIN,
            mtu_upper_bound: 8_900,
            max_udp_payload: 8_900,
            stream_window: 4 << 20,
            conn_window_before_auth: 256 << 10,
            send_window: 8 << 20,
            max_bidi_streams: 1_024,
            max_uni_streams: 1_024,
            idle_timeout: Duration::from_secs(15),
            keep_alive: None,
            max_connections: 16_384,
            max_connections_per_ip: None,
            retry_above_handshakes: 1_024,
            reset_key,
            token_key,
            unix_micros_at_zero: 0,
            seed: None,
        }
    }

    /// Checks every bound; the error names the first setting that breaks its own.
    pub fn check(&self) -> Result<(), SettingsError> {
        let within = |name, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(SettingsError { name, value, min, max }) }
        };
        let varint = VarInt::MAX.into_inner();
        let streams = u64::from(STREAMS_MAX);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        within("cores", self.cores.into(), 1, CORES_MAX.into())?;
        within("core", self.core.into(), 0, u64::from(self.cores) - 1)?;
        within("initial_mtu", self.initial_mtu.into(), MTU_MIN.into(), INITIAL_MTU_MAX.into())?;
        let mtu = self.mtu_upper_bound.into();
        within("mtu_upper_bound", mtu, self.initial_mtu.into(), UDP_PAYLOAD_MAX.into())?;
        within("max_udp_payload", self.max_udp_payload.into(), MTU_MIN.into(), UDP_PAYLOAD_MAX.into())?;
        within("stream_window", self.stream_window, 1, varint)?;
        within("conn_window_before_auth", self.conn_window_before_auth, 1, varint)?;
        within("send_window", self.send_window, 1, varint)?;
        within("max_bidi_streams", self.max_bidi_streams.into(), 0, streams)?;
        within("max_uni_streams", self.max_uni_streams.into(), 0, streams)?;
        within("idle_timeout (ms)", millis(self.idle_timeout), 0, varint)?;
        if let Some(keep_alive) = self.keep_alive {
            within("keep_alive (ms)", millis(keep_alive), 1, varint)?;
        }
        within("max_connections", self.max_connections as u64, 1, u64::from(u32::MAX))
    }

    /// The transport settings of every connection, client or server. Call after `check`.
    pub(super) fn transport(&self) -> TransportConfig {
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(self.mtu_upper_bound);
        let mut transport = TransportConfig::default();
        transport
            .initial_mtu(self.initial_mtu)
            .mtu_discovery_config(Some(discovery))
            .stream_receive_window(clamp(self.stream_window))
            .receive_window(clamp(self.conn_window_before_auth))
            .send_window(self.send_window)
            .max_concurrent_bidi_streams(self.max_bidi_streams.into())
            .max_concurrent_uni_streams(self.max_uni_streams.into())
            .max_idle_timeout(idle(self.idle_timeout))
            .keep_alive_interval(self.keep_alive)
            // Unreliable datagrams are not part of the protocol (client-protocol 1.1).
            .datagram_receive_buffer_size(None)
            .datagram_send_buffer_size(0);
        transport
    }
}

/// A byte count as a QUIC integer, the largest one when it does not fit.
pub(super) fn clamp(bytes: u64) -> VarInt {
    VarInt::from_u64(bytes).unwrap_or(VarInt::MAX)
}

fn idle(timeout: Duration) -> Option<IdleTimeout> {
    if timeout.is_zero() { None } else { IdleTimeout::try_from(timeout).ok() }
}

/// A setting outside its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{name} is {value}, allowed are {min} to {max}")]
pub struct SettingsError {
    pub name: &'static str,
    pub value: u64,
    pub min: u64,
    pub max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> QuicSettings {
        QuicSettings::new([1; KEY_BYTES], [2; KEY_BYTES])
    }

    #[test]
    fn the_defaults_pass() {
        assert_eq!(settings().check(), Ok(()));
    }

    #[test]
    fn an_initial_mtu_outside_its_bounds_is_refused_by_name() {
        for bad in [0, 1_199, 1_453, 8_900, 16_384, 65_507] {
            let error = QuicSettings { initial_mtu: bad, ..settings() }.check().unwrap_err();
            assert_eq!((error.name, error.value), ("initial_mtu", u64::from(bad)));
            assert_eq!((error.min, error.max), (1_200, 1_452));
        }
        assert_eq!(QuicSettings { initial_mtu: 1_452, ..settings() }.check(), Ok(()));
    }

    #[test]
    fn every_other_bound_is_refused_by_name() {
        let name = |settings: QuicSettings| settings.check().unwrap_err().name;
        assert_eq!(name(QuicSettings { cores: 0, ..settings() }), "cores");
        assert_eq!(name(QuicSettings { cores: 257, ..settings() }), "cores");
        assert_eq!(name(QuicSettings { core: 1, ..settings() }), "core");
        assert_eq!(name(QuicSettings { mtu_upper_bound: 1_199, ..settings() }), "mtu_upper_bound");
        assert_eq!(name(QuicSettings { mtu_upper_bound: 65_508, ..settings() }), "mtu_upper_bound");
        assert_eq!(name(QuicSettings { max_udp_payload: 1_000, ..settings() }), "max_udp_payload");
        assert_eq!(name(QuicSettings { stream_window: 0, ..settings() }), "stream_window");
        assert_eq!(name(QuicSettings { send_window: 1 << 62, ..settings() }), "send_window");
        assert_eq!(name(QuicSettings { max_bidi_streams: 65_537, ..settings() }), "max_bidi_streams");
        assert_eq!(name(QuicSettings { max_connections: 0, ..settings() }), "max_connections");
        let zero = Some(Duration::ZERO);
        assert_eq!(name(QuicSettings { keep_alive: zero, ..settings() }), "keep_alive (ms)");
    }
}
