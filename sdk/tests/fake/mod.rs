//! A small broker for tests: one process, in memory, scripted through its state.
//! Owns: a QUIC endpoint on the loopback, its certificate, the records published to it, and what it saw.
//! Invariants: what a test reads from the state happened; the endpoint ends with the value.
//! Not here: anything a real broker does beyond the requests the client makes.
#![allow(dead_code)]

pub mod caches;
pub mod commits;
pub mod groups;
mod producers;
pub mod requests;
mod session;

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use felix_sdk::{Bytes, Client, ClientBuilder, Deadlines, ErrorCode, KeyMapping};
use felix_wire::client::RefusalReason;
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, ServerConfig, TransportConfig, VarInt};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::sync::watch;

pub use caches::Caches;
pub use producers::Producers;
pub use requests::Requests;

pub const TENANT: &str = "t1";
pub const TOKEN: &str = "good-token";
/// How long a test waits for something that must happen.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// How answers to publishes come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// At once, in order.
    Prompt,
    /// None until this is changed; publishes are taken and stored.
    Held,
    /// When this many have been taken, all of them, newest first.
    ReversedInGroups(usize),
}

/// How live event streams are ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Moved,
    MovedTo { node_id: String, addr: String },
    Lagged,
    Deleted,
    Fin,
    Error(ErrorCode),
}

/// A publish frame as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPublish {
    pub shard: u32,
    pub records: usize,
    pub acked: bool,
    pub declared_width: Option<u32>,
    /// Producer and sequence.
    pub number: Option<(u64, u64)>,
}

/// What is done with one publish instead of the usual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trick {
    /// Stored; the connection ends without the answer.
    StoreAndCut,
    /// Not stored; the connection ends.
    Cut,
    /// Stored and never answered.
    Swallow,
    /// Stored and answered twice.
    AnswerTwice,
    /// Stored; the answer names a request that was never made.
    AnswerUnknown,
    /// Stored; the answer names this offset.
    AnswerAt(u64),
    /// Refused with this code and nothing written.
    Refuse(ErrorCode),
    /// Its number is refused with nothing written.
    RefuseNumber(RefusalReason<'static>),
}

pub struct State {
    pub tokens: HashSet<String>,
    pub auths: Vec<String>,
    pub flags: Flags,
    pub features: Features,
    pub window: u32,
    /// Cores announced; connections claim to be on the core their first connection id asked for.
    pub cores: Option<u32>,
    /// Every connection claims to be on core 0, whatever it asked for.
    pub ignore_aim: bool,
    /// First byte of the first connection id of every connection.
    pub aims: Vec<u8>,
    pub draining: bool,
    pub stream_known: bool,
    pub shards: u32,
    pub mapping: KeyMapping,
    /// Node id and address of every shard's owner, when it is another broker.
    pub owner: Option<(String, String)>,
    /// Subscribes are answered `not_leader`, pointing here.
    pub leader: Option<(String, String)>,
    pub records: Vec<Vec<Bytes>>,
    /// Oldest offset held, per shard.
    pub held_from: u64,
    /// Set for a stream in memory.
    pub boot: Option<u64>,
    /// Offsets are told.
    pub numbered: bool,
    pub answers: Answers,
    pub refuse_next: VecDeque<ErrorCode>,
    /// For the publishes that come next, in order.
    pub tricks: VecDeque<Trick>,
    /// Told of the stream.
    pub durable: Option<bool>,
    /// Numbers are kept; without, they are refused.
    pub keeps_producers: bool,
    pub producers: Producers,
    /// Requests for a producer, and what they are refused with.
    pub producer_inits: u64,
    pub refuse_producer: Option<ErrorCode>,
    pub publishes: Vec<SeenPublish>,
    pub unanswered: usize,
    pub unanswered_most: usize,
    pub subscribes: Vec<(u32, Option<u64>)>,
    pub hello_after_answer: bool,
    pub event_frame_records: usize,
    pub ending: Option<(u64, Ending)>,
    /// Offsets from here to the end of the log hold no record, and readers are told so with an empty batch.
    pub empty_from: Option<u64>,
    pub event_bytes_written: usize,
    pub event_streams: usize,
    pub open_connections: usize,
    pub next_id: u64,
    pub caches: Caches,
    pub requests: Requests,
    pub groups: groups::Groups,
    pub commits: commits::Commits,
}

impl State {
    fn new(shards: u32) -> Self {
        let features = Features::KNOWN
            .union(Features::CORE_HINTS)
            .union(Features::POSITIONS)
            .union(Features::BINARY_MESSAGES)
            .without(Features::TOPOLOGY)
            .without(Features::IDEMPOTENT_PRODUCER);
        Self {
            tokens: HashSet::from([TOKEN.to_owned()]),
            auths: Vec::new(),
            flags: Flags(0x1fff),
            features,
            window: 32,
            cores: None,
            ignore_aim: false,
            aims: Vec::new(),
            draining: false,
            stream_known: true,
            shards,
            mapping: KeyMapping::JumpHash,
            owner: None,
            leader: None,
            records: vec![Vec::new(); shards as usize],
            held_from: 0,
            boot: None,
            numbered: true,
            answers: Answers::Prompt,
            refuse_next: VecDeque::new(),
            tricks: VecDeque::new(),
            durable: None,
            keeps_producers: true,
            producers: Producers::default(),
            producer_inits: 0,
            refuse_producer: None,
            publishes: Vec::new(),
            unanswered: 0,
            unanswered_most: 0,
            subscribes: Vec::new(),
            hello_after_answer: false,
            event_frame_records: 16,
            ending: None,
            empty_from: None,
            event_bytes_written: 0,
            event_streams: 0,
            open_connections: 0,
            next_id: 1,
            caches: Caches::new(shards),
            requests: Requests::default(),
            groups: groups::Groups::default(),
            commits: commits::Commits::default(),
        }
    }

    /// Serves a stream on disk and the producers that publish to it.
    pub fn serve_durable(&mut self) {
        self.features = self.features.union(Features::IDEMPOTENT_PRODUCER);
        self.durable = Some(true);
    }

    pub fn record_count(&self) -> usize {
        self.records.iter().map(Vec::len).sum()
    }
}

/// State that wakes whoever waits for a change of it.
#[derive(Clone)]
pub struct Shared {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let value = change(&mut self.lock());
        self.changed.send_modify(|version| *version += 1);
        value
    }

    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Until the condition gives a value, with the test's deadline.
    pub async fn when<T>(&self, what: &str, condition: impl Fn(&State) -> Option<T>) -> T {
        let mut changes = self.changed.subscribe();
        let wait = async {
            loop {
                changes.borrow_and_update();
                if let Some(value) = condition(&self.lock()) {
                    return value;
                }
                changes.changed().await.expect("the state lives as long as the test");
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("never happened: {what}"))
    }
}

pub struct FakeBroker {
    pub addr: SocketAddr,
    pub state: Shared,
    ca_pem: String,
    config: ServerConfig,
    endpoint: Option<Endpoint>,
}

impl FakeBroker {
    pub async fn start(shards: u32) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), shards).await
    }

    pub async fn start_at(ip: IpAddr, shards: u32) -> Self {
        let (ca_pem, config) = certificates();
        Self::with_certificates(ip, shards, ca_pem, config)
    }

    /// One whose connections may have only so many streams of the client.
    pub async fn start_with_streams(shards: u32, streams: u32) -> Self {
        let (ca_pem, mut config) = certificates();
        let mut transport = TransportConfig::default();
        transport.max_concurrent_bidi_streams(VarInt::from_u32(streams));
        config.transport_config(Arc::new(transport));
        Self::with_certificates(Ipv4Addr::LOCALHOST.into(), shards, ca_pem, config)
    }

    /// Another broker under the same certificate authority.
    pub fn sibling(&self, shards: u32) -> Self {
        Self::with_certificates(Ipv4Addr::LOCALHOST.into(), shards, self.ca_pem.clone(), self.config.clone())
    }

    fn with_certificates(ip: IpAddr, shards: u32, ca_pem: String, config: ServerConfig) -> Self {
        let state = Shared { state: Arc::new(Mutex::new(State::new(shards))), changed: watch::channel(0).0 };
        let mut broker = Self { addr: (ip, 0).into(), state, ca_pem, config, endpoint: None };
        broker.listen();
        broker
    }

    fn listen(&mut self) {
        let endpoint = Endpoint::server(self.config.clone(), self.addr).expect("a loopback port");
        self.addr = endpoint.local_addr().expect("bound");
        self.endpoint = Some(endpoint.clone());
        tokio::spawn(session::accept(endpoint, self.state.clone()));
    }

    /// Ends every connection and gives the port up.
    pub async fn stop(&mut self) {
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.close(VarInt::from_u32(0), b"");
            endpoint.wait_idle().await;
        }
    }

    /// Listens again where it did before, with the state it had.
    pub async fn restart(&mut self) {
        self.stop().await;
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            // The old endpoint's task gives its socket up a moment after it is idle.
            match std::net::UdpSocket::bind(self.addr) {
                Ok(probe) => {
                    drop(probe);
                    break self.listen();
                }
                Err(e) => assert!(tokio::time::Instant::now() < deadline, "the port is not free: {e}"),
            }
            tokio::task::yield_now().await;
        }
    }

    /// The authority its certificate is from.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// A client configured for this broker, with little patience for unknown streams.
    pub fn client(&self) -> ClientBuilder {
        self.client_without_namespace().namespace("ns")
    }

    pub fn client_without_namespace(&self) -> ClientBuilder {
        Client::builder()
            .broker(self.addr.to_string())
            .ca_pem(self.ca_pem.clone())
            .tenant(TENANT)
            .token(TOKEN)
            .deadlines(Deadlines { not_found: Duration::from_millis(200), ..Deadlines::default() })
    }

    pub async fn connect(&self) -> Client {
        self.client().connect().await.expect("the broker accepts")
    }
}

impl Drop for FakeBroker {
    fn drop(&mut self) {
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.close(VarInt::from_u32(0), b"");
        }
    }
}

fn certificates() -> (String, ServerConfig) {
    let ca_key = KeyPair::generate().expect("a key");
    let mut ca = CertificateParams::new(Vec::<String>::new()).expect("no names");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).expect("self-signed").pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let leaf = CertificateParams::new(names).expect("names").signed_by(&key, &issuer).expect("signed");
    let chain = vec![CertificateDer::from(leaf.der().to_vec())];
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate");
    tls.alpn_protocols = vec![b"felix/1".to_vec()];
    let crypto = QuicServerConfig::try_from(tls).expect("TLS 1.3");
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    let mut transport = TransportConfig::default();
    transport.max_concurrent_bidi_streams(VarInt::from_u32(1_024));
    config.transport_config(Arc::new(transport));
    (ca_pem, config)
}
