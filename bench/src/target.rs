//! What a load is sent to: address, trust, credential, names. Scope: plain values, read once per run.
//! Owns: the ready file's form as far as the bench needs it, and reading certificates and tokens.
//! Not here: starting what is to be measured (`cluster`, `sink`).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};

/// The members of a ready file that the bench reads. Others are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    pub broker_addr: SocketAddr,
    pub ca_file: PathBuf,
    /// Credential for the broker; re-read for every run, because it is replaced while the broker lives.
    pub token_file: PathBuf,
    pub tenant: String,
    pub namespace: String,
    pub pids: Pids,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controlplane_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controlplane_token_file: Option<PathBuf>,
}

/// Processes behind a ready file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pids {
    pub broker: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ctrl: Option<u32>,
}

impl Ready {
    /// Reads a ready file.
    ///
    /// # Errors
    /// It is not there, or not one.
    pub fn read(path: &Path) -> Result<Ready, TargetError> {
        let text = read(path)?;
        serde_json::from_str(&text)
            .map_err(|error| TargetError::Content { path: path.to_owned(), reason: error.to_string() })
    }
}

/// Where a load goes, and as whom.
#[derive(Debug, Clone)]
pub struct Target {
    pub address: SocketAddr,
    /// What the server's certificate must be good for.
    pub server_name: String,
    pub roots: Vec<CertificateDer<'static>>,
    pub token: String,
    pub tenant: String,
    pub namespace: String,
    pub stream: String,
    /// Whose CPU time is counted; a process on this machine.
    pub server_pid: Option<u32>,
}

/// Why a target cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("{path}: {error}")]
    Read { path: PathBuf, error: std::io::Error },
    #[error("{path}: {reason}")]
    Content { path: PathBuf, reason: String },
}

impl Target {
    /// What a ready file describes, with its certificate and token read now.
    ///
    /// # Errors
    /// One of the files it names cannot be used.
    pub fn from_ready(ready: &Ready, stream: &str) -> Result<Target, TargetError> {
        Ok(Target {
            address: ready.broker_addr,
            server_name: "localhost".to_owned(),
            roots: read_roots(&ready.ca_file)?,
            token: read(&ready.token_file)?.trim().to_owned(),
            tenant: ready.tenant.clone(),
            namespace: ready.namespace.clone(),
            stream: stream.to_owned(),
            server_pid: Some(ready.pids.broker),
        })
    }
}

/// The certificates of a PEM file.
///
/// # Errors
/// It cannot be read or holds none.
pub fn read_roots(path: &Path) -> Result<Vec<CertificateDer<'static>>, TargetError> {
    parse_roots(&read(path)?).map_err(|reason| TargetError::Content { path: path.to_owned(), reason })
}

/// The certificates of PEM text.
///
/// # Errors
/// It holds none, or what is no certificate; in words.
pub fn parse_roots(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let roots: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match roots {
        Ok(roots) if !roots.is_empty() => Ok(roots),
        Ok(_) => Err("no certificate in it".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The whole of a small text file.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Result<String, TargetError> {
    std::fs::read_to_string(path).map_err(|error| TargetError::Read { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_file_is_read_with_members_it_does_not_know() {
        let text = r#"{"broker_addr":"127.0.0.1:5000","ca_file":"/d/ca.pem","token_file":"/d/token",
            "tenant":"demo","namespace":"default","pids":{"ctrl":7,"broker":8},"metrics_url":"http://127.0.0.1:1",
            "controlplane_url":"http://127.0.0.1:2","controlplane_token_file":"/d/ctoken","later":[1]}"#;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready.json");
        std::fs::write(&path, text).unwrap();
        let ready = Ready::read(&path).unwrap();
        assert_eq!((ready.pids.broker, ready.pids.ctrl), (8, Some(7)));
        assert_eq!(ready.token_file, Path::new("/d/token"));
    }

    #[test]
    fn a_file_without_a_certificate_is_no_trust() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, "nothing").unwrap();
        assert!(read_roots(&path).unwrap_err().to_string().contains("no certificate"));
    }
}
