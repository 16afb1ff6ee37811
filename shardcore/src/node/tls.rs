//! The broker's certificate: from files that are read again when they change, or generated for loopback.
//! Scope: per process, on the admin thread.
//! Owns: the certificate files' last good content.
//! Invariants: a pair that does not parse or does not fit never replaces one that works; a pair is reported as bad once.
//! Not here: TLS settings (`runtime::quic`), telling the cores (`links`).

#[cfg(test)]
mod tests;
mod watch;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use felix_runtime::quic::server_tls;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

pub use self::watch::FileWatch;

/// Why there is no server configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path}: {error}")]
    Read { path: PathBuf, error: io::Error },
    #[error("{path}: no usable {what} in it: {reason}")]
    Pem { path: PathBuf, what: &'static str, reason: String },
    #[error("certificate and key do not work together: {0}")]
    Pair(#[from] rustls::Error),
    #[error("a certificate cannot be generated: {0}")]
    Generate(#[from] rcgen::Error),
}

/// Names the generated certificate is good for.
const GENERATED_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// A certificate or key file larger than this is not one.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// A certificate that was made here, for development on loopback only.
pub struct Generated {
    pub config: Arc<ServerConfig>,
    /// What a client has to trust.
    pub pem: String,
}

/// Makes a self-signed `localhost` leaf that cannot sign others, with a key that is nowhere else.
///
/// # Errors
/// When the random source or the crypto library fails.
pub fn generate() -> Result<Generated, TlsError> {
    let mut params = CertificateParams::new(GENERATED_NAMES.map(str::to_owned).to_vec())?;
    params.distinguished_name.push(DnType::CommonName, "Felix development broker");
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages.push(KeyUsagePurpose::DigitalSignature);
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let pem = certificate.pem();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = Arc::new(server_tls(vec![certificate.der().clone()], key)?);
    Ok(Generated { config, pem })
}

/// A certificate and its key on disk, and what was read of them last.
pub struct CertificateFiles {
    cert: PathBuf,
    key: PathBuf,
    /// Content of the last reading, usable or not.
    seen: Option<(Vec<u8>, Vec<u8>)>,
}

impl CertificateFiles {
    /// Reads the pair.
    ///
    /// # Errors
    /// A file that cannot be read, holds no certificate or key, or a key of another certificate.
    pub fn load(cert: &Path, key: &Path) -> Result<(CertificateFiles, Arc<ServerConfig>), TlsError> {
        let mut files = CertificateFiles { cert: cert.to_owned(), key: key.to_owned(), seen: None };
        let (chain_pem, key_pem) = files.read()?;
        let config = files.configure(&chain_pem, &key_pem)?;
        files.seen = Some((chain_pem, key_pem));
        Ok((files, config))
    }

    /// Reads the pair again. `None` when nothing changed since the last reading.
    ///
    /// # Errors
    /// As `load`; a pair reported as bad is not reported again until it changes. What is in use stays in use.
    pub fn reload(&mut self) -> Result<Option<Arc<ServerConfig>>, TlsError> {
        let (chain_pem, key_pem) = self.read()?;
        if self.seen.as_ref().is_some_and(|(chain, key)| *chain == chain_pem && *key == key_pem) {
            return Ok(None);
        }
        let config = self.configure(&chain_pem, &key_pem);
        self.seen = Some((chain_pem, key_pem));
        config.map(Some)
    }

    /// The folders to watch: of both files, as a mounted secret replaces a link beside them.
    pub fn folders(&self) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = [&self.cert, &self.key].map(|path| parent(path)).to_vec();
        folders.dedup();
        folders
    }

    fn read(&self) -> Result<(Vec<u8>, Vec<u8>), TlsError> {
        Ok((read_bounded(&self.cert)?, read_bounded(&self.key)?))
    }

    fn configure(&self, chain_pem: &[u8], key_pem: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
        let bad = |path: &PathBuf, what, reason: &dyn std::fmt::Display| TlsError::Pem {
            path: path.clone(),
            what,
            reason: reason.to_string(),
        };
        let chain = CertificateDer::pem_slice_iter(chain_pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| bad(&self.cert, "certificate", &e))?;
        if chain.is_empty() {
            return Err(bad(&self.cert, "certificate", &"no CERTIFICATE section"));
        }
        let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|e| bad(&self.key, "private key", &e))?;
        Ok(Arc::new(server_tls(chain, key)?))
    }
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, TlsError> {
    use io::Read;
    let read = || {
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(PEM_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > PEM_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 MiB"));
        }
        Ok(bytes)
    };
    read().map_err(|error| TlsError::Read { path: path.to_owned(), error })
}
