//! What the client trusts and how its QUIC connections are set up. Scope: one per client.
//! Owns: the TLS configuration and the transport settings, made once and shared by all connections.
//! Invariants: the broker's certificate is always verified; TLS 1.3 only; `felix/1` is always offered.
//! Not here: dialling (`connection::dial`).

use std::path::PathBuf;
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, ConnectionId, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::error::Error;
use crate::limits;

/// The client protocol's ALPN id (client-protocol 1.2).
const ALPN: &[u8] = b"felix/1";

/// Bytes of a chosen first destination connection id; the first one may carry the core.
const FIRST_CID_LEN: usize = 12;

/// Where trust comes from.
#[derive(Debug, Clone)]
pub(crate) enum Trust {
    /// The operating system's store.
    System,
    /// PEM certificates in a file.
    File(PathBuf),
    /// PEM certificates in memory.
    Pem(Vec<u8>),
}

/// Makes one `quinn::ClientConfig` per core.
#[derive(Clone)]
pub(crate) struct Transport {
    crypto: Arc<QuicClientConfig>,
    settings: Arc<TransportConfig>,
    provider: Arc<CryptoProvider>,
}

impl Transport {
    /// Reads the trust anchors and builds both configurations. Blocking: reads files.
    ///
    /// # Errors
    /// [`Error::Config`] when the anchors cannot be read or hold no certificate.
    pub(crate) fn new(trust: &Trust) -> Result<Self, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| Error::config(format!("TLS 1.3 is not available: {e}")))?;
        let mut tls = match trust {
            Trust::System => {
                let verifier = rustls_platform_verifier::Verifier::new(provider.clone())
                    .map_err(|e| Error::config(format!("the system's trust store: {e}")))?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()
            }
            Trust::File(path) => {
                let pem = std::fs::read(path)
                    .map_err(|e| Error::config(format!("CA file {}: {e}", path.display())))?;
                builder.with_root_certificates(roots(&pem)?).with_no_client_auth()
            }
            Trust::Pem(pem) => builder.with_root_certificates(roots(pem)?).with_no_client_auth(),
        };
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let crypto =
            QuicClientConfig::try_from(tls).map_err(|e| Error::config(format!("QUIC over TLS: {e}")))?;
        Ok(Self { crypto: Arc::new(crypto), settings: Arc::new(transport_settings()?), provider })
    }

    /// The configuration for a connection to `core` of a broker, or to whichever core it lands on.
    ///
    /// Byte 0 of the first destination connection id names the core, the rest is random (RFC 9000 7.2).
    pub(crate) fn client_config(&self, core: Option<u8>) -> ClientConfig {
        let mut config = ClientConfig::new(self.crypto.clone());
        config.transport_config(self.settings.clone());
        if let Some(core) = core {
            let provider = self.provider.clone();
            config.initial_dst_cid_provider(Arc::new(move || first_connection_id(&provider, core)));
        }
        config
    }
}

fn first_connection_id(provider: &CryptoProvider, core: u8) -> ConnectionId {
    let mut id = [0u8; FIRST_CID_LEN];
    if provider.secure_random.fill(&mut id).is_err() {
        // The id only has to be hard to guess for someone who does not see the packet.
        id[1..9].copy_from_slice(&crate::backoff::jitter_seed().to_be_bytes());
    }
    id[0] = core;
    ConnectionId::new(&id)
}

fn roots(pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|e| Error::config(format!("CA certificates: {e}")))?;
        store.add(certificate).map_err(|e| Error::config(format!("CA certificate: {e}")))?;
    }
    if store.is_empty() {
        return Err(Error::config("the CA certificates hold no certificate"));
    }
    Ok(store)
}

fn transport_settings() -> Result<TransportConfig, Error> {
    let idle = IdleTimeout::try_from(limits::IDLE_TIMEOUT)
        .map_err(|e| Error::config(format!("idle timeout: {e}")))?;
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(limits::MTU_UPPER_BOUND);
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(limits::KEEP_ALIVE))
        .initial_mtu(limits::MTU_INITIAL)
        .mtu_discovery_config(Some(mtu))
        .stream_receive_window(VarInt::from_u32(limits::STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(limits::CONNECTION_WINDOW_BYTES))
        .send_window(limits::SEND_WINDOW_BYTES)
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(limits::EVENT_STREAMS_MAX));
    Ok(transport)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_connection_id_names_the_core_and_differs_each_time() {
        let provider = aws_lc_rs::default_provider();
        let one = first_connection_id(&provider, 3);
        let two = first_connection_id(&provider, 3);
        assert_eq!((one[0], two[0], one.len()), (3, 3, FIRST_CID_LEN));
        assert_ne!(one, two);
    }

    #[test]
    fn anchors_without_a_certificate_are_refused() {
        assert!(matches!(Transport::new(&Trust::Pem(b"nothing here".to_vec())), Err(Error::Config { .. })));
        let missing = Trust::File(PathBuf::from("/nonexistent/ca.pem"));
        assert!(matches!(Transport::new(&missing), Err(Error::Config { .. })));
    }
}
