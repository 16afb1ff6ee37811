//! A client that says exactly what it is told to: frames by hand over QUIC. Scope: one connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use felix_wire::client::{AckOutcome, EventBatch, PublishAck, PublishHead, encode_publish};
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::frame::{Frame, FrameHeader, FrameReader};
use felix_wire::id::RequestId;
use quinn::{Connection, Endpoint, RecvStream, SendStream, VarInt};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::{until, within};

/// What the client reads: everything the published client does, and positions.
pub fn announced() -> (u32, u32) {
    (4_218_945_535, 15 | Features::POSITIONS.hi)
}

/// See the module.
#[derive(Clone)]
pub struct Raw {
    pub conn: Connection,
    endpoint: Endpoint,
}

/// The settings of a client connection, for tests that change some.
pub fn client_config(certificate: &str, transport: quinn::TransportConfig) -> quinn::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(certificate.as_bytes()) {
        roots.add(der.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    config
}

/// Transport settings like those of the published client.
pub fn usual_transport() -> quinn::TransportConfig {
    let mut transport = quinn::TransportConfig::default();
    transport.keep_alive_interval(Some(Duration::from_secs(2)));
    transport.max_idle_timeout(Some(Duration::from_secs(6).try_into().unwrap()));
    transport.receive_window(VarInt::from_u32(256 << 20)).stream_receive_window(VarInt::from_u32(64 << 20));
    transport.max_concurrent_uni_streams(1_024_u32.into());
    transport
}

impl Raw {
    /// Connects with the usual settings.
    pub async fn connect(addr: SocketAddr, certificate: &str) -> Result<Raw, quinn::ConnectionError> {
        Raw::connect_with(addr, client_config(certificate, usual_transport())).await
    }

    /// Connects with settings of the caller's.
    pub async fn connect_with(
        addr: SocketAddr,
        config: quinn::ClientConfig,
    ) -> Result<Raw, quinn::ConnectionError> {
        let any = if addr.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let endpoint = Endpoint::client(any.parse().unwrap()).unwrap();
        let connecting = endpoint.connect_with(config, addr, "localhost").unwrap();
        let conn = within("a handshake", connecting).await?;
        Ok(Raw { conn, endpoint })
    }

    /// A bidirectional stream with nothing on it.
    pub async fn open(&self) -> Line {
        let (send, recv) = within("a stream", self.conn.open_bi()).await.unwrap();
        Line::new(send, recv)
    }

    /// A stream on which `auth` was accepted.
    pub async fn authed(&self, tenant: &str, token: &str) -> Line {
        let mut line = self.open().await;
        line.send(&auth(tenant, token)).await;
        let answer = line.json().await;
        assert_eq!(answer["type"], "auth_ok", "{answer}");
        line
    }

    /// Waits until every shard of the stream is served.
    pub async fn until_served(&self, tenant: &str, token: &str, namespace: &str, stream: &str) {
        let mut line = self.authed(tenant, token).await;
        let ask = json!({"type": "shard_owners", "tenant_id": tenant, "namespace": namespace, "name": stream,
            "kind": "stream", "request_id": 1});
        let line = &mut line;
        let mut served = async || {
            line.send(&ask).await;
            let view = line.json().await;
            let owners = view["owners"].as_array()?;
            let here = !owners.is_empty() && owners.iter().all(|o| o.get("unavailable").is_none());
            here.then_some(())
        };
        until("served", async || served().await).await;
    }

    /// Subscribes to one shard. The answer of the broker, and the event stream when there is one.
    pub async fn subscribe(
        &self,
        who: (&str, &str),
        name: (&str, &str),
        shard: u32,
        start: Value,
    ) -> (Value, Option<Events>) {
        let mut line = self.authed(who.0, who.1).await;
        let ask = json!({"type": "subscribe", "tenant_id": who.0, "namespace": name.0, "stream": name.1,
            "start": start, "shard": shard});
        line.send(&ask).await;
        let answer = line.json().await;
        line.finish();
        if answer["type"] != "subscribed" {
            return (answer, None);
        }
        let recv = within("an event stream", self.conn.accept_uni()).await.unwrap();
        let mut events = Events { frames: Frames::new(recv) };
        let hello = events.frames.json().await;
        assert_eq!(
            (&hello["type"], &hello["subscription_id"]),
            (&json!("event_stream_hello"), &answer["subscription_id"])
        );
        (answer, Some(events))
    }

    /// Why the connection ended, once it has.
    pub async fn closed(&self) -> quinn::ConnectionError {
        within("a close", self.conn.closed()).await
    }
}

/// Reason of a close by the broker: code and text.
pub fn application_close(error: &quinn::ConnectionError) -> Option<(u64, String)> {
    match error {
        quinn::ConnectionError::ApplicationClosed(close) => {
            Some((close.error_code.into_inner(), String::from_utf8_lossy(&close.reason).into_owned()))
        }
        _ => None,
    }
}

/// The `auth` message.
pub fn auth(tenant: &str, token: &str) -> Value {
    let (lo, hi) = announced();
    json!({"type": "auth", "tenant_id": tenant, "token": token, "client_flags": 8191,
        "client_features": lo, "client_features_hi": hi})
}

/// A frame of any header and payload.
pub fn frame(flags: u16, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let mut bytes = FrameHeader { flags, length }.encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// A binary publish to one stream.
pub fn publish(
    name: (&str, &str, &str),
    key: Option<&[u8]>,
    ack: Option<u64>,
    records: &[&[u8]],
) -> BytesMut {
    let head = PublishHead {
        tenant: name.0,
        namespace: name.1,
        stream: name.2,
        key,
        acked: ack.map(|id| (RequestId(id), felix_wire::client::AckMode::PerBatch)),
        producer: None,
    };
    let mut out = BytesMut::new();
    encode_publish(&head, records.iter().copied(), &mut out).unwrap();
    out
}

/// The frames of a receiving half.
pub struct Frames {
    pub recv: RecvStream,
    reader: FrameReader,
}

impl Frames {
    pub fn new(recv: RecvStream) -> Frames {
        Frames { recv, reader: FrameReader::new(16 << 20) }
    }

    /// The next frame; nothing when the stream ended, in whatever way.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.reader.next().expect("the broker sends frames") {
                return Some(frame);
            }
            let chunk = self.recv.read_chunk(1 << 20, true).await.ok()??;
            self.reader.push(chunk.bytes);
        }
    }

    /// The next frame, which must come in time and be JSON.
    pub async fn json(&mut self) -> Value {
        let frame = within("an answer", self.next()).await.expect("an answer, not the end of the stream");
        assert_eq!(frame.flags, 0, "{frame:?}");
        serde_json::from_slice(&frame.payload).unwrap()
    }
}

/// Both halves of a stream.
pub struct Line {
    pub send: SendStream,
    pub frames: Frames,
}

impl Line {
    pub fn new(send: SendStream, recv: RecvStream) -> Line {
        Line { send, frames: Frames::new(recv) }
    }

    /// Writes one JSON message.
    pub async fn send(&mut self, message: &Value) {
        self.write(&frame(0, &serde_json::to_vec(message).unwrap())).await;
    }

    /// Writes bytes; a stream that the broker has stopped takes them silently.
    pub async fn write(&mut self, bytes: &[u8]) {
        let _ = within("a write", self.send.write_all(bytes)).await;
    }

    pub fn finish(&mut self) {
        let _ = self.send.finish();
    }

    /// The next answer as JSON.
    pub async fn json(&mut self) -> Value {
        self.frames.json().await
    }

    /// The next answer to an acked binary publish.
    pub async fn ack(&mut self) -> Ack {
        let frame = within("an ack", self.frames.next()).await.expect("an ack, not the end of the stream");
        Ack::of(&frame)
    }

    /// Publishes acked and waits for the answer.
    pub async fn publish(&mut self, name: (&str, &str, &str), id: u64, records: &[&[u8]]) -> Ack {
        self.write(&publish(name, None, Some(id), records)).await;
        self.ack().await
    }

    /// An error, then the end.
    pub async fn ends_after_error(&mut self) {
        let answer = self.json().await;
        assert_eq!(answer["type"], "error", "{answer}");
        self.ends().await;
    }

    /// No more answers come; the broker has finished its half.
    pub async fn ends(&mut self) {
        let next = within("the end of the stream", self.frames.next()).await;
        assert!(next.is_none(), "{next:?}");
    }
}

/// A binary answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    pub request_id: u64,
    /// Number of the code; nothing for success.
    pub code: Option<u16>,
    pub offset: Option<u64>,
    pub message: String,
}

impl Ack {
    pub fn of(frame: &Frame) -> Ack {
        assert!(Flags(frame.flags).contains(Flags::PUBLISH_ACK), "{frame:?}");
        let ack = PublishAck::decode(frame.flags, &frame.payload).unwrap();
        let request_id = ack.request_id.0;
        match ack.outcome {
            AckOutcome::Ok { offset } => {
                Ack { request_id, code: None, offset: offset.map(|o| o.0), message: String::new() }
            }
            AckOutcome::Error { message, code } => Ack {
                request_id,
                code: Some(code.map_or(0, |c| c.code.number())),
                offset: None,
                message: message.into_owned(),
            },
        }
    }
}

/// A subscription's event stream.
pub struct Events {
    pub frames: Frames,
}

/// What comes on an event stream.
#[derive(Debug)]
pub enum Event {
    /// Offset of the first record, and the records.
    Batch(u64, Vec<Bytes>),
    Message(Value),
    End,
}

impl Events {
    pub async fn next(&mut self) -> Event {
        let Some(frame) = self.frames.next().await else { return Event::End };
        if frame.flags == 0 {
            return Event::Message(serde_json::from_slice(&frame.payload).unwrap());
        }
        let batch = EventBatch::decode(frame.flags, &frame.payload).unwrap();
        Event::Batch(batch.base_offset.expect("positions").0, batch.iter().map(|e| e.payload).collect())
    }

    /// Reads `count` records, in offset order without a gap from `from` on.
    pub async fn records(&mut self, from: u64, count: usize) -> Vec<Bytes> {
        let mut all = Vec::new();
        while all.len() < count {
            match within("events", self.next()).await {
                Event::Batch(base, records) => {
                    assert_eq!(base, from + all.len() as u64, "no gap and no repetition");
                    all.extend(records);
                }
                other => panic!("{other:?} after {} records", all.len()),
            }
        }
        all
    }
}
