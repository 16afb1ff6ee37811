//! TLS settings both sides share. Scope: pure construction.
//! Invariants: TLS 1.3 only, AES-128-GCM first, no 0-RTT, no tickets (a full handshake every time: nothing shared
//! between cores, and handshakes have the same shape every time).
//! Not here: reading PEM files, certificate reloading.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, RootCertStore, ServerConfig, client::Resumption};

/// The ALPN id of the client protocol (client-protocol 1.2).
pub const CLIENT_ALPN: &[u8] = b"felix/1";

/// aws-lc with AES-128-GCM first: the cheapest suite on machines with AES instructions.
pub fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..aws_lc_rs::default_provider()
    })
}

/// A server config for the client port: ALPN `felix/1`, no client certificates.
///
/// `chain` starts with the leaf. Fails when the key does not fit the leaf or a certificate does not parse.
pub fn server_tls(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let mut tls = ServerConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    harden_server(&mut tls);
    tls.alpn_protocols = vec![CLIENT_ALPN.to_vec()];
    Ok(tls)
}

/// What every server config of ours has, whatever its certificates: our suite order, no tickets, no early data.
pub fn harden_server(tls: &mut ServerConfig) {
    tls.ignore_client_order = true;
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    tls.max_early_data_size = 0;
}

/// A client config that trusts `roots` and offers `alpn` (empty: the hello carries no ALPN at all).
///
/// Fails when `roots` is empty or one of them does not parse.
pub fn client_tls(roots: &[CertificateDer<'static>], alpn: &[&[u8]]) -> Result<ClientConfig, rustls::Error> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.clone())?;
    }
    let provider = crypto_provider();
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(&provider))
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_webpki_verifier(verifier)
        .with_no_client_auth();
    tls.resumption = Resumption::disabled();
    tls.enable_early_data = false;
    tls.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(tls)
}
