use std::time::Duration;

use super::*;

struct Pair {
    cert: String,
    key: String,
}

fn pair() -> Pair {
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    Pair { cert: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
}

struct Folder {
    _folder: tempfile::TempDir,
    cert: PathBuf,
    key: PathBuf,
}

impl Folder {
    fn with(pair: &Pair) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let made = Folder { _folder: folder, cert, key };
        made.put(&pair.cert, &pair.key);
        made
    }

    fn put(&self, cert: &str, key: &str) {
        std::fs::write(&self.cert, cert).unwrap();
        std::fs::write(&self.key, key).unwrap();
    }
}

#[test]
fn a_changed_pair_gives_a_new_configuration_once() {
    let folder = Folder::with(&pair());
    let (mut files, first) = CertificateFiles::load(&folder.cert, &folder.key).unwrap();
    assert!(files.reload().unwrap().is_none());
    let other = pair();
    folder.put(&other.cert, &other.key);
    let second = files.reload().unwrap().unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    assert!(files.reload().unwrap().is_none());
}

#[test]
fn a_half_written_pair_is_refused_once_and_the_next_whole_one_is_taken() {
    let old = pair();
    let folder = Folder::with(&old);
    let (mut files, _) = CertificateFiles::load(&folder.cert, &folder.key).unwrap();
    let new = pair();
    folder.put(&new.cert, &old.key);
    assert!(matches!(files.reload(), Err(TlsError::Pair(_))));
    assert!(files.reload().unwrap().is_none());
    folder.put(&new.cert, &new.key);
    assert!(files.reload().unwrap().is_some());
}

#[test]
fn files_without_what_is_needed_are_named() {
    let good = pair();
    let folder = Folder::with(&good);
    folder.put("nothing", &good.key);
    let error = CertificateFiles::load(&folder.cert, &folder.key).err().unwrap().to_string();
    assert!(error.contains("cert.pem") && error.contains("certificate"), "{error}");
    folder.put(&good.cert, "nothing");
    let error = CertificateFiles::load(&folder.cert, &folder.key).err().unwrap().to_string();
    assert!(error.contains("key.pem") && error.contains("private key"), "{error}");
    let error = CertificateFiles::load(Path::new("/nowhere/c.pem"), &folder.key).err().unwrap().to_string();
    assert!(error.contains("/nowhere/c.pem"), "{error}");
}

#[test]
fn the_generated_certificate_can_be_exported_and_read_back() {
    let generated = generate().unwrap();
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(generated.pem.as_bytes()).collect::<Result<_, _>>().unwrap();
    assert_eq!(chain.len(), 1);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(chain[0].clone()).unwrap();
    for name in GENERATED_NAMES {
        handshake(&generated.config, roots.clone(), name).unwrap();
    }
    assert!(handshake(&generated.config, roots, "elsewhere.example").is_err());
}

/// A TLS handshake in memory, as far as the client's verdict on the certificate.
fn handshake(
    server: &Arc<ServerConfig>,
    roots: rustls::RootCertStore,
    name: &str,
) -> Result<(), rustls::Error> {
    let provider = felix_runtime::quic::crypto_provider();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = rustls_pki_types::ServerName::try_from(name.to_owned()).unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(client), name)?;
    let mut server = rustls::ServerConnection::new(Arc::clone(server))?;
    for _ in 0..10 {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets()?;
        if !client.is_handshaking() {
            return Ok(());
        }
    }
    Err(rustls::Error::HandshakeNotComplete)
}

#[tokio::test]
async fn a_change_in_the_folder_ends_the_wait() {
    let folder = Folder::with(&pair());
    let (mut files, _) = CertificateFiles::load(&folder.cert, &folder.key).unwrap();
    let mut watch = FileWatch::start(&files.folders());
    let other = pair();
    folder.put(&other.cert, &other.key);
    let seen = async {
        loop {
            watch.wait().await;
            if let Ok(Some(config)) = files.reload() {
                return config;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), seen).await.unwrap();
}
