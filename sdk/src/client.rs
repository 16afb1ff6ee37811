//! The client: one identity, the brokers it knows, and which of them it uses. Scope: one per `Client::connect`.
//! Owns: the list of brokers and the choice among them; the task that renews the token on live connections.
//! Invariants: configured brokers are never forgotten; a broker that drains or failed is tried after the others.
//! Not here: connections (`broker`, `connection`), publishing, subscribing.

mod builder;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use felix_wire::error_code::ErrorCode;
use felix_wire::features::Features;
use tokio::time::Instant;

use crate::address::HostPort;
use crate::broker::Broker;
use crate::connection::{Identity, Link, Seat, Use};
use crate::error::Error;
use crate::limits::OWNER_PAUSE;
use crate::name::StreamName;
use crate::publish::PublisherBuilder;
use crate::subscribe::SubscribeBuilder;
use crate::topology::{self, ShardOwner};

pub use builder::ClientBuilder;

/// How long `close` waits for the last packets.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks at whether the token is due, when its life is unknown or very short.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);
/// The same while nothing is known about the token's life.
const RENEWAL_PAUSE_UNKNOWN: Duration = Duration::from_secs(30);

/// A connected client. Clones share everything; connections close when the last clone and everything made from
/// it are gone.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

impl Client {
    /// Where a client is configured.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The tenant this client acts for.
    pub fn tenant(&self) -> &str {
        &self.shared.identity.tenant
    }

    /// Publishing to `stream`.
    pub fn publisher(&self, stream: impl Into<StreamName>) -> PublisherBuilder {
        PublisherBuilder::new(self.shared.clone(), stream.into())
    }

    /// Subscribing to `stream`.
    pub fn subscribe(&self, stream: impl Into<StreamName>) -> SubscribeBuilder {
        SubscribeBuilder::new(self.shared.clone(), stream.into())
    }

    /// Live connections, over all brokers and cores.
    pub fn connection_count(&self) -> usize {
        self.shared.live_links().len()
    }

    /// Ends all connections, for every clone and everything made from them, and waits up to a second until the
    /// brokers can know. What is in flight has an unknown outcome: flush publishers first.
    pub async fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        let links = self.shared.live_links();
        for link in &links {
            link.close();
        }
        let all_told = async {
            for link in &links {
                link.closed_everywhere().await;
            }
        };
        drop(tokio::time::timeout(CLOSE_PATIENCE, all_told).await);
    }
}

/// What a client's parts share.
pub(crate) struct Shared {
    pub(crate) identity: Arc<Identity>,
    namespace: Option<Arc<str>>,
    server_name: Arc<str>,
    brokers: Mutex<Brokers>,
    closed: AtomicBool,
}

struct Brokers {
    /// Configured ones first, then learned ones.
    known: Vec<Known>,
    /// The one in use.
    current: usize,
    /// The connection whose broker was last asked for the others.
    learned_from: Weak<Link>,
}

struct Known {
    broker: Arc<Broker>,
    /// Tried after all others until then.
    avoid_until: Option<Instant>,
}

impl Shared {
    pub(crate) fn new(
        identity: Identity,
        namespace: Option<Arc<str>>,
        server_name: Arc<str>,
        seeds: Vec<HostPort>,
    ) -> Arc<Self> {
        let identity = Arc::new(identity);
        let known = seeds
            .into_iter()
            .map(|seed| Known {
                broker: Arc::new(Broker::new(seed, server_name.clone(), identity.clone())),
                avoid_until: None,
            })
            .collect();
        let brokers = Mutex::new(Brokers { known, current: 0, learned_from: Weak::new() });
        Arc::new(Self { identity, namespace, server_name, brokers, closed: AtomicBool::new(false) })
    }

    /// `name` with its namespace.
    ///
    /// # Errors
    /// [`Error::Config`] when it has none and the client has no default.
    pub(crate) fn resolve(&self, name: StreamName) -> Result<StreamName, Error> {
        let shown = name.stream().to_owned();
        name.with_default_namespace(self.namespace.as_ref()).ok_or_else(|| {
            Error::config(format!("stream {shown:?} has no namespace and the client no default"))
        })
    }

    /// A live connection to the broker in use, or to the next one that answers.
    ///
    /// # Errors
    /// What the last broker said; an identity that was refused at once, since no other broker would differ.
    pub(crate) async fn entry(self: &Arc<Self>) -> Result<Arc<Link>, Error> {
        self.entry_broker().await.map(|(_, link)| link)
    }

    async fn entry_broker(self: &Arc<Self>) -> Result<(Arc<Broker>, Arc<Link>), Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let mut last = Error::config("no broker is configured");
        for (index, broker) in self.candidates() {
            match broker.link().await {
                Ok(link) => {
                    self.chose(index, &link);
                    return Ok((broker, link));
                }
                Err(error @ (Error::Auth(_) | Error::Token { .. })) => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// A live connection with room for one more stream of that kind to the owner of a shard, on its core when that is known;
    /// the entry broker when the owner is not named, is avoided, or does not answer.
    ///
    /// # Errors
    /// As [`Shared::entry`], and [`Error::NoStream`].
    pub(crate) async fn link_to(
        self: &Arc<Self>,
        owner: Option<&ShardOwner>,
        what: Use,
    ) -> Result<(Arc<Link>, Seat), Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let core = owner.and_then(|owner| owner.core);
        let Some(address) = owner.and_then(ShardOwner::dialable) else {
            let (broker, _) = self.entry_broker().await?;
            return broker.link_on(core, what).await;
        };
        if let Some(broker) = self.broker_at(&address).await {
            match broker.link_on(core, what).await {
                Ok(seated) => return Ok(seated),
                Err(error @ (Error::Auth(_) | Error::Token { .. } | Error::NoStream { .. })) => {
                    return Err(error);
                }
                Err(_) => self.avoid(&broker),
            }
        }
        let (broker, _) = self.entry_broker().await?;
        broker.link_on(None, what).await
    }

    /// A broker said it is draining: the others come first for a while.
    pub(crate) fn note(&self, error: &Error, link: &Link) {
        if !error.is_code(&ErrorCode::Draining) {
            return;
        }
        let remote = link.remote();
        let found = self.lock().known.iter().map(|k| k.broker.clone()).find(|b| b.remote() == Some(remote));
        if let Some(broker) = found {
            self.avoid(&broker);
        }
    }

    pub(crate) fn live_links(&self) -> Vec<Arc<Link>> {
        let brokers: Vec<_> = self.lock().known.iter().map(|known| known.broker.clone()).collect();
        brokers.iter().flat_map(|broker| broker.live_links()).collect()
    }

    /// Brokers in the order to try: the one in use, the others, then the avoided ones.
    fn candidates(&self) -> Vec<(usize, Arc<Broker>)> {
        let now = Instant::now();
        let brokers = self.lock();
        let count = brokers.known.len();
        let in_turn = (0..count).map(|step| (brokers.current + step) % count);
        let mut order: Vec<(bool, usize)> = in_turn
            .map(|index| (brokers.known[index].avoid_until.is_some_and(|until| until > now), index))
            .collect();
        order.sort_by_key(|(avoided, _)| *avoided);
        order.into_iter().map(|(_, index)| (index, brokers.known[index].broker.clone())).collect()
    }

    /// Remembers the broker in use; a new connection is asked for the other brokers, once.
    fn chose(self: &Arc<Self>, index: usize, link: &Arc<Link>) {
        let mut brokers = self.lock();
        brokers.current = index;
        let seen = std::ptr::eq(brokers.learned_from.as_ptr(), Arc::as_ptr(link));
        if seen || !link.granted().features.contains(Features::TOPOLOGY) {
            return;
        }
        brokers.learned_from = Arc::downgrade(link);
        let shared = Arc::downgrade(self);
        let link = link.clone();
        tokio::spawn(async move {
            // Only used when the broker in use fails, so an error here changes nothing (client-protocol 17.1).
            let Ok(found) = topology::fetch_brokers(&link).await else { return };
            let Some(shared) = shared.upgrade() else { return };
            for address in found.iter().filter_map(|broker| HostPort::parse(&broker.addr).ok()) {
                drop(shared.broker_at(&address).await);
            }
        });
    }

    /// The broker at `address`; one already known by another name is the same one. `None` while it is avoided.
    async fn broker_at(&self, address: &HostPort) -> Option<Arc<Broker>> {
        if let Some(known) = self.find(|broker| broker.address() == address) {
            return known;
        }
        let resolved = address.resolve().await.ok()?;
        let same = |broker: &Broker| broker.remote().is_some_and(|remote| resolved.contains(&remote));
        if let Some(known) = self.find(same) {
            return known;
        }
        // Learned by name: the certificate must be for that name (client-protocol 1.3).
        let server_name = address.dns_name().map_or_else(|| self.server_name.clone(), Arc::from);
        let broker = Arc::new(Broker::new(address.clone(), server_name, self.identity.clone()));
        self.lock().known.push(Known { broker: broker.clone(), avoid_until: None });
        Some(broker)
    }

    /// `None`: not known. `Some(None)`: known and avoided.
    fn find(&self, matches: impl Fn(&Broker) -> bool) -> Option<Option<Arc<Broker>>> {
        let now = Instant::now();
        let brokers = self.lock();
        let known = brokers.known.iter().find(|known| matches(&known.broker))?;
        Some(known.avoid_until.is_none_or(|until| until <= now).then(|| known.broker.clone()))
    }

    fn avoid(&self, broker: &Arc<Broker>) {
        let until = Instant::now() + OWNER_PAUSE;
        for known in &mut self.lock().known {
            if Arc::ptr_eq(&known.broker, broker) {
                known.avoid_until = Some(until);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Brokers> {
        self.brokers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces the token when two thirds of its life are over and presents the new one on every live connection,
/// which extends the subscriptions and publishes running there.
async fn keep_identity_fresh(shared: Weak<Shared>) {
    loop {
        let Some(client) = shared.upgrade().filter(|client| !client.closed.load(Ordering::Acquire)) else {
            return;
        };
        let due = client.identity.tokens.time_to_renewal().await;
        drop(client);
        tokio::time::sleep(due.unwrap_or(RENEWAL_PAUSE_UNKNOWN).max(RENEWAL_PAUSE)).await;
        let Some(client) = shared.upgrade() else { return };
        let Some(still_due) = client.identity.tokens.time_to_renewal().await else { continue };
        if !still_due.is_zero() {
            continue;
        }
        // A failure is tried again after the pause that the token's owner keeps.
        if client.identity.tokens.current().await.is_ok() {
            for link in client.live_links() {
                drop(link.renew().await);
            }
        }
    }
}
