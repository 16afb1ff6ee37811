//! Certificates and tokens of the simulated world. Scope: one per process, because making keys is slow and their bytes
//! decide nothing (Ed25519 signatures all have one length).

use std::sync::{Arc, OnceLock};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use felix_runtime::clock::Tick;
use felix_runtime::quic::{client_tls, server_tls};
use felix_wire::control::{Audience, Claims, TOKEN_ISSUER};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header};

use crate::snapshot::{Keys, TenantKeys};

/// The tenant of every stream.
pub const TENANT: &str = "acme";
/// The namespace of every stream.
pub const NAMESPACE: &str = "sim";

/// See the module.
pub struct Credentials {
    pub server: Arc<rustls::ServerConfig>,
    pub client: Arc<rustls::ClientConfig>,
    signer: EncodingKey,
    verifier: DecodingKey,
}

impl Credentials {
    /// Those of the process.
    ///
    /// # Panics
    /// When the machine cannot make keys: there is nothing to simulate then.
    pub fn get() -> &'static Credentials {
        static HELD: OnceLock<Credentials> = OnceLock::new();
        HELD.get_or_init(Credentials::make)
    }

    fn make() -> Credentials {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        let chain = vec![certificate.der().clone()];
        let private = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).expect("a private key");
        let document =
            Ed25519KeyPair::generate_pkcs8(&aws_lc_rs::rand::SystemRandom::new()).expect("a signing key");
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("a signing key");
        Credentials {
            client: Arc::new(client_tls(&chain, &[]).expect("client settings")),
            server: Arc::new(server_tls(chain, private).expect("server settings")),
            signer: EncodingKey::from_ed_der(document.as_ref()),
            verifier: DecodingKey::from_ed_der(pair.public_key().as_ref()),
        }
    }

    /// A token for everything of the tenant, good until `expires_s`.
    pub fn token(&self, subject: &str, expires_s: u64) -> String {
        self.token_for(subject, expires_s, &["stream.publish", "stream.subscribe"])
    }

    /// A token for some actions on every stream or cache of the tenant, as each action is about, or on what it names.
    pub fn token_for(&self, subject: &str, expires_s: u64, actions: &[&str]) -> String {
        let all = |action: &&str| {
            if action.contains(':') {
                return (*action).to_owned();
            }
            let kind = action.split('.').next().unwrap_or_default();
            format!("{action}:{kind}:{TENANT}/{NAMESPACE}/*")
        };
        let claims = Claims {
            iss: TOKEN_ISSUER.to_owned(),
            aud: Audience::Broker.as_str().to_owned(),
            sub: subject.to_owned(),
            tid: TENANT.to_owned(),
            iat: expires_s.saturating_sub(60),
            exp: expires_s,
            nbf: None,
            perms: actions.iter().map(all).collect(),
            jti: None,
            act: None,
            may_act: None,
        };
        let header = Header { kid: Some("k1".to_owned()), ..Header::new(Algorithm::EdDSA) };
        jsonwebtoken::encode(&header, &claims, &self.signer).expect("a token")
    }

    /// A key set with the tenant's key in it, asked for until `at`, or one from before anybody asked.
    pub fn keys(&self, version: u64, at: Tick, filled: bool) -> Arc<Keys> {
        let mut keys = Keys { version, ..Keys::default() };
        if filled {
            let known = TenantKeys { keys: vec![("k1".into(), self.verifier.clone())], fetched_at: Some(at) };
            keys.tenants.insert(TENANT.into(), known);
        }
        Arc::new(keys)
    }
}
