//! Settings of the QUIC machines: the same for every core except its number. Scope: per process, once at start.
//! Owns: the keys that all cores share; kept in the data folder, so that a restarted broker can still tell clients that
//! their old connections are gone.
//! Not here: the machines (`runtime::quic`).

use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use felix_runtime::clock::Clock;
use felix_runtime::quic::{KEY_BYTES, QuicSettings};
use rand::RngCore;
use rand::rngs::OsRng;

use super::config::Settings;
use super::ready_file::write_private;
use crate::snapshot::CoreLimits;

/// The file in the data folder.
const KEY_FILE: &str = "quic-keys";

/// Bidirectional streams a stranger may open: what a client that opens its streams before the first answer needs. The
/// session raises it, because every stream that may be opened costs memory.
const STREAMS_BEFORE_AUTH: u32 = 64;
/// Unidirectional streams a client may have open at once; they only carry publishes that nobody answers.
const UNI_STREAMS: u32 = 64;

/// Stateless reset key and address validation key.
pub struct TransportKeys {
    reset: [u8; KEY_BYTES],
    validation: [u8; KEY_BYTES],
}

impl TransportKeys {
    /// Those of the data folder, made there if there are none; without a folder they live as long as the process.
    ///
    /// # Errors
    /// A folder that cannot be written, a file that is not one of these, or no random source.
    pub fn load(data_dir: Option<&Path>) -> io::Result<TransportKeys> {
        let Some(folder) = data_dir else { return TransportKeys::generate() };
        std::fs::create_dir_all(folder)?;
        let path = folder.join(KEY_FILE);
        match std::fs::File::open(&path) {
            Ok(mut file) => {
                let mut keys = TransportKeys { reset: [0; KEY_BYTES], validation: [0; KEY_BYTES] };
                file.read_exact(&mut keys.reset)?;
                file.read_exact(&mut keys.validation)?;
                Ok(keys)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let keys = TransportKeys::generate()?;
                write_private(&path, &[keys.reset, keys.validation].concat())?;
                Ok(keys)
            }
            Err(error) => Err(error),
        }
    }

    fn generate() -> io::Result<TransportKeys> {
        let mut keys = TransportKeys { reset: [0; KEY_BYTES], validation: [0; KEY_BYTES] };
        rand::TryRngCore::try_fill_bytes(&mut OsRng, &mut keys.reset).map_err(io::Error::other)?;
        rand::TryRngCore::try_fill_bytes(&mut OsRng, &mut keys.validation).map_err(io::Error::other)?;
        Ok(keys)
    }

    /// The settings of core `core` of `cores`.
    pub fn settings(
        &self,
        settings: &Settings,
        limits: &CoreLimits,
        clock: Clock,
        (core, cores): (u16, u16),
    ) -> QuicSettings {
        let small = |value: u64| u16::try_from(value).unwrap_or(u16::MAX);
        let keep_alive = Duration::from_millis(settings.keepalive_ms);
        QuicSettings {
            core,
            cores,
            initial_mtu: small(settings.initial_mtu),
            mtu_upper_bound: small(settings.mtu_upper_bound),
            max_udp_payload: small(settings.max_udp_payload),
            stream_window: u64::from(limits.stream_window),
            conn_window_before_auth: u64::from(limits.conn_window_before_auth),
            max_bidi_streams: STREAMS_BEFORE_AUTH,
            max_uni_streams: UNI_STREAMS,
            send_window: settings.conn_send_window.0,
            idle_timeout: Duration::from_millis(settings.max_idle_timeout_ms),
            keep_alive: (!keep_alive.is_zero()).then_some(keep_alive),
            max_connections: limits.connections_max as usize,
            max_connections_per_ip: Some(limits.connections_per_ip_max as usize),
            unix_micros_at_zero: clock.unix_micros().saturating_sub(clock.now().as_micros()),
            ..QuicSettings::new(self.reset, self.validation)
        }
    }
}

/// A number no earlier start of this node had, for positions in memory.
pub fn boot_number() -> u64 {
    rand::rng().next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_made_once_for_a_folder_and_then_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let first = TransportKeys::load(Some(folder.path())).unwrap();
        let second = TransportKeys::load(Some(folder.path())).unwrap();
        assert!(first.reset == second.reset && first.validation == second.validation);
        assert_ne!(first.reset, first.validation);
        let other = TransportKeys::load(None).unwrap();
        assert_ne!(first.reset, other.reset);
    }

    #[test]
    fn a_file_that_is_too_short_is_an_error_not_a_new_key() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(KEY_FILE), [1; 100]).unwrap();
        assert!(TransportKeys::load(Some(folder.path())).is_err());
    }

    #[test]
    fn every_default_makes_settings_that_pass_their_own_check() {
        let settings = Settings::default();
        for (core, cores) in [(0, 1), (3, 4), (255, 256)] {
            let limits = settings.core_limits(cores, 8 << 30);
            let keys = TransportKeys::load(None).unwrap();
            keys.settings(&settings, &limits, Clock::start(), (core, cores)).check().unwrap();
        }
    }
}
