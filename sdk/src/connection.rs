//! One authenticated QUIC connection to one broker. Scope: per connection.
//! Owns: the connection, what the broker granted on it, and the meeting place of its event streams.
//! Invariants: the first frame on every stream is `auth`, and nothing else is written before its answer
//! (client-protocol 4.1); every wait has a deadline; a refused token is replaced once, on a new stream.
//! Not here: which broker to connect to, and when again (`broker`).

mod dial;
mod events;
mod stream;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use felix_wire::client::{Auth, Error as WireError, Form, Message};
use felix_wire::error_code::{ErrorCode, ErrorDetail, RetryClass};
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::frame::{DecodeError, Frame};
use felix_wire::id::CoreId;
use quinn::{Connection, Endpoint, RecvStream, SendStream, VarInt};

use crate::address::HostPort;
use crate::error::{Error, Refusal};
use crate::limits::{
    CONNECTION_WINDOW_BYTES, EVENT_STREAMS_PER_CONNECTION, LANES_PER_CONNECTION, STREAM_WINDOW_BYTES,
};
use crate::request::Pools;
use crate::tls::Transport;
use crate::token::Tokens;

use dial::Dialled;
use events::EventRouter;
pub(crate) use stream::{AuthedStream, FrameRecv};

/// Binary layouts this client reads: all but publisher and append time, which it does not hand on.
const CLIENT_FLAGS: Flags = Flags(0x1fff);

/// Requests and answers this client understands, with the private hints of our own brokers.
fn client_features() -> Features {
    Features::KNOWN
        .without(Features::ACK_ON_COMMIT)
        .without(Features::GROUP_PUBLISHER)
        .union(Features::CORE_HINTS)
        .union(Features::POSITIONS)
        .union(Features::ORDERED_ANSWERS)
        .union(Features::NUMBERED_WRITES)
        .union(Features::BINARY_MESSAGES)
        .union(Features::GROUP_LEASES)
        .union(Features::GROUP_RANGES)
}

/// How long this client waits for things.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// One broker address, handshake and authentication each.
    pub connect: Duration,
    /// One answer to one request.
    pub request: Duration,
    /// The oldest unanswered publish of a shard; after it the outcome is unknown.
    pub ack: Duration,
    /// How long an unknown stream is asked for again: creation reaches brokers with a delay.
    pub not_found: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: crate::limits::CONNECT_TIMEOUT,
            request: crate::limits::REQUEST_TIMEOUT,
            ack: crate::limits::ACK_TIMEOUT,
            not_found: crate::limits::NOT_FOUND_PATIENCE,
        }
    }
}

/// What every connection of a client shares.
pub(crate) struct Identity {
    pub(crate) tenant: Arc<str>,
    pub(crate) tokens: Tokens,
    pub(crate) transport: Transport,
    pub(crate) deadlines: Deadlines,
}

/// What a broker said in `auth_ok`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Granted {
    /// Binary layouts the broker reads.
    pub(crate) flags: Flags,
    /// Requests it serves.
    pub(crate) features: Features,
    /// Unanswered publishes it takes per stream, when answers come in order.
    pub(crate) publish_window: Option<u32>,
    /// Cores the broker has, when it told.
    pub(crate) cores: Option<u32>,
    /// The core this connection is on, when it told.
    pub(crate) core: Option<CoreId>,
}

impl Granted {
    /// What a broker that answers plain `ok` is taken for (client-protocol 4.1).
    const SILENT: Self = Self {
        flags: Flags::UNANNOUNCED,
        features: Features::NONE,
        publish_window: None,
        cores: None,
        core: None,
    };

    /// The form of requests that have one beside JSON.
    pub(crate) fn form(&self) -> Form {
        if self.features.contains(Features::BINARY_MESSAGES) { Form::Binary } else { Form::Json }
    }

    /// # Errors
    /// [`Error::NotServed`] naming `what` when the bit is missing.
    pub(crate) fn require(&self, bit: Features, what: &'static str) -> Result<(), Error> {
        if self.features.contains(bit) { Ok(()) } else { Err(Error::NotServed { what }) }
    }
}

/// What a connection is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A stream per request.
    Requests,
    /// A stream of publishes that stays open.
    Lane,
    /// An event stream.
    Events,
}

/// One live connection. Dropping the last reference closes it.
pub(crate) struct Link {
    connection: Connection,
    /// Its only connection is this one.
    endpoint: Endpoint,
    identity: Arc<Identity>,
    granted: Granted,
    pools: Pools,
    router: EventRouter,
    subscriptions: Arc<AtomicU32>,
    lanes: Arc<AtomicU32>,
    /// Falls when the broker turns out to allow fewer streams.
    lanes_max: AtomicU32,
    /// Streams that wait until the broker allows them.
    opening: AtomicU32,
}

impl Link {
    /// Dials `broker`, lands on `core` if asked to, and authenticates a first stream.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when no handshake completed, else what the authentication said.
    pub(crate) async fn connect(
        identity: Arc<Identity>,
        broker: &HostPort,
        server_name: &str,
        core: Option<u8>,
    ) -> Result<Self, Error> {
        let config = identity.transport.client_config(core);
        let Dialled { endpoint, connection } =
            dial::dial(broker, server_name, config, identity.deadlines.connect).await?;
        let router = EventRouter::default();
        tokio::spawn(router.clone().run(connection.clone()));
        let mut link = Self {
            connection,
            endpoint,
            identity,
            granted: Granted::SILENT,
            pools: Pools::new(&Granted::SILENT),
            router,
            subscriptions: Arc::default(),
            lanes: Arc::default(),
            lanes_max: AtomicU32::new(LANES_PER_CONNECTION),
            opening: AtomicU32::new(0),
        };
        let mut first = link.open().await?;
        link.granted = first.granted;
        link.pools = Pools::new(&link.granted);
        // Closes the stream on both sides; what it granted holds for the connection.
        drop(first.send.finish());
        Ok(link)
    }

    pub(crate) fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Its request streams.
    pub(crate) fn pools(&self) -> &Pools {
        &self.pools
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// Not lost yet, as far as anybody knows.
    pub(crate) fn is_live(&self) -> bool {
        self.connection.close_reason().is_none()
    }

    pub(crate) fn router(&self) -> &EventRouter {
        &self.router
    }

    /// Tells both sides that nothing more will come over this connection.
    pub(crate) fn close(&self) {
        self.connection.close(VarInt::from_u32(0), b"");
    }

    /// Until nothing of a closed connection is left to send.
    pub(crate) async fn closed_everywhere(&self) {
        self.endpoint.wait_idle().await;
    }

    /// A place for one more stream of that kind; `None` when the connection has as many as it should.
    pub(crate) fn seat(&self, what: Use) -> Option<Seat> {
        let (held, most) = match what {
            Use::Requests => {
                let crowded = self.lanes.load(Ordering::Relaxed) > self.lanes_max.load(Ordering::Relaxed);
                return (!crowded).then_some(Seat { connection: self.connection.clone(), of: None });
            }
            Use::Lane => (&self.lanes, self.lanes_max.load(Ordering::Relaxed)),
            Use::Events => (&self.subscriptions, EVENT_STREAMS_PER_CONNECTION),
        };
        let taken = held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < most).then_some(n + 1));
        let before = taken.ok()?;
        if what == Use::Events {
            apply_window(&self.connection, before + 1);
        }
        Some(Seat { connection: self.connection.clone(), of: Some((what, held.clone())) })
    }

    /// A stream, as soon as the broker allows one. When none comes in time, the connection gets fewer publish streams from
    /// now on.
    async fn open_bi(&self) -> Result<(SendStream, RecvStream), Error> {
        let waited = self.identity.deadlines.request;
        self.opening.fetch_add(1, Ordering::Relaxed);
        let opened = tokio::time::timeout(waited, self.connection.open_bi()).await;
        if opened.is_err() {
            let opening = self.opening.load(Ordering::Relaxed);
            let open = self.lanes.load(Ordering::Relaxed).saturating_sub(opening);
            self.lanes_max.fetch_min((open - open / 4).saturating_sub(1), Ordering::Relaxed);
        }
        self.opening.fetch_sub(1, Ordering::Relaxed);
        let message = format!("it allows no more on this connection, and none ended within {waited:?}");
        opened.map_err(|_| Error::NoStream { message })?.map_err(Error::lost)
    }

    /// Opens a stream and authenticates it, with one newer token when the first is refused.
    ///
    /// # Errors
    /// [`Error::Auth`] when the identity is refused, [`Error::Refused`] for any other coded answer, else
    /// transport errors. Nothing but `auth` was written.
    pub(crate) async fn open(&self) -> Result<AuthedStream, Error> {
        let token = self.identity.tokens.current().await?;
        let refused = match self.authenticate(&token).await {
            Err(Error::Auth(refusal)) => refusal,
            outcome => return outcome,
        };
        match self.identity.tokens.after_refusal(&token).await? {
            Some(newer) => self.authenticate(&newer).await,
            None => Err(Error::Auth(refused)),
        }
    }

    async fn authenticate(&self, token: &str) -> Result<AuthedStream, Error> {
        let opened = self.open_bi().await?;
        let waited = self.identity.deadlines.request;
        match tokio::time::timeout(waited, self.exchange_auth(opened, token)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::TimedOut { what: "auth", waited }),
        }
    }

    async fn exchange_auth(
        &self,
        (send, recv): (SendStream, RecvStream),
        token: &str,
    ) -> Result<AuthedStream, Error> {
        let mut stream =
            AuthedStream { send, recv: FrameRecv::new(recv), granted: Granted::SILENT, _seat: None };
        let (lo, hi) = client_features().words(true);
        let auth = Auth {
            tenant_id: Cow::Borrowed(&self.identity.tenant),
            token: Cow::Borrowed(token),
            client_flags: Some(CLIENT_FLAGS),
            client_features: Some(lo),
            client_features_hi: hi,
        };
        stream.write(&Message::Auth(auth)).await?;
        let Some(frame) = stream.recv.next().await? else {
            return Err(Error::lost("the broker ended the stream instead of answering auth"));
        };
        stream.granted = match decode(&frame)? {
            Message::AuthOk(ok) => Granted {
                flags: ok.server_flags,
                features: ok.features(),
                publish_window: ok.publish_window,
                cores: ok.cores,
                core: ok.core,
            },
            Message::Ok => Granted::SILENT,
            Message::Error(error) => {
                let refusal = refusal_of(&error);
                let about_us = refusal.code.is_none() || refusal.is_about_identity();
                return Err(if about_us { Error::Auth(refusal) } else { Error::Refused(refusal) });
            }
            other => return Err(unexpected("auth", &other)),
        };
        if stream.granted.form() == Form::Binary {
            stream.recv.take_binary_messages();
        }
        Ok(stream)
    }

    /// One request on its own stream; `error` and `unsupported` answers become errors.
    ///
    /// # Errors
    /// As [`Link::open`], and [`Error::Refused`], [`Error::NotServed`], [`Error::TimedOut`] for the request.
    pub(crate) async fn request(&self, what: &'static str, message: &Message<'_>) -> Result<Frame, Error> {
        let mut stream = self.open().await?;
        let waited = self.identity.deadlines.request;
        let exchange = async {
            stream.write(message).await?;
            drop(stream.send.finish());
            stream.recv.next().await
        };
        let answer = tokio::time::timeout(waited, exchange).await;
        let Some(frame) = answer.map_err(|_| Error::TimedOut { what, waited })?? else {
            return Err(Error::lost(format!("the broker ended the stream instead of answering {what}")));
        };
        match decode(&frame)? {
            Message::Error(error) => Err(Error::Refused(refusal_of(&error))),
            Message::Unsupported(_) => Err(Error::NotServed { what }),
            _ => Ok(frame),
        }
    }

    /// Presents the current token on a throw-away stream: a newer one extends everything on this connection.
    ///
    /// # Errors
    /// As [`Link::open`].
    pub(crate) async fn renew(&self) -> Result<(), Error> {
        let mut stream = self.open().await?;
        drop(stream.send.finish());
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// A long-lived stream's place on its connection, and an event stream's part of the connection window.
pub(crate) struct Seat {
    connection: Connection,
    of: Option<(Use, Arc<AtomicU32>)>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some((what, held)) = &self.of else { return };
        let left = held.fetch_sub(1, Ordering::Relaxed) - 1;
        if *what == Use::Events {
            apply_window(&self.connection, left);
        }
    }
}

/// All subscriptions may be paused at once and one more stream still has room.
fn apply_window(connection: &Connection, subscriptions: u32) {
    let window =
        u64::from(CONNECTION_WINDOW_BYTES) + u64::from(subscriptions) * u64::from(STREAM_WINDOW_BYTES);
    connection.set_receive_window(VarInt::from_u64(window).unwrap_or(VarInt::MAX));
}

/// Reads a message in either form; what may be read of a stream is the reader's to say.
///
/// # Errors
/// [`Error::Protocol`] for a frame of another kind or a payload that is no message.
pub(crate) fn decode(frame: &Frame) -> Result<Message<'_>, Error> {
    Message::decode_frame(frame).map_err(|e| match e {
        DecodeError::UnknownFlags(flags) => {
            Error::protocol(format!("a binary frame {flags:#06x} instead of an answer"))
        }
        other => Error::protocol(other.to_string()),
    })
}

pub(crate) fn unexpected(what: &'static str, message: &Message<'_>) -> Error {
    Error::protocol(format!("{} in answer to {what}", message.type_name()))
}

/// The parts of a JSON `error`; one without a code may have been applied.
pub(crate) fn refusal_of(error: &WireError<'_>) -> Refusal {
    let default = error.code.as_ref().map_or(RetryClass::OutcomeUnknown, |code| code.default_retry());
    refusal(error.code.clone(), error.retry.unwrap_or(default), &error.message, error.detail.as_ref())
}

pub(crate) fn refusal(
    code: Option<ErrorCode>,
    retry: RetryClass,
    message: &str,
    detail: Option<&ErrorDetail>,
) -> Refusal {
    Refusal {
        code,
        retry,
        message: message.to_owned(),
        reason: detail.and_then(|d| d.reason.as_deref().map(str::to_owned)),
        retry_after: detail.and_then(|d| d.retry_after_ms).map(Duration::from_millis),
    }
}
