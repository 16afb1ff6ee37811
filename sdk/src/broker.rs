//! The connections to one broker: one for anything, and one per core that is needed, each with more beside it when it has
//! as many streams as it may. Scope: per broker address.
//! Owns: live links, and when a lost one may be dialled again.
//! Invariants: at most one attempt per slot at a time, attempts after a failure are spaced; a connection that
//! did not land on the core it aimed at ends the aiming, since then nothing on the way keeps the choice.
//! Not here: which broker to ask (`client`).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use felix_wire::id::CoreId;
use tokio::time::Instant;

use crate::address::HostPort;
use crate::backoff::{Backoff, jitter_seed};
use crate::connection::{Identity, Link, Seat, Use};
use crate::error::Error;
use crate::limits::CONNECTIONS_PER_CORE;

/// One broker.
pub(crate) struct Broker {
    address: HostPort,
    server_name: Arc<str>,
    identity: Arc<Identity>,
    any_core: LinkSlot,
    cores: Mutex<HashMap<u8, Arc<LinkSlot>>>,
    /// Cleared when a connection landed elsewhere than it aimed.
    aimable: AtomicBool,
}

impl Broker {
    /// A broker whose certificate must be for `server_name`. Connects to nothing yet.
    pub(crate) fn new(address: HostPort, server_name: Arc<str>, identity: Arc<Identity>) -> Self {
        Self {
            address,
            server_name,
            identity,
            any_core: LinkSlot::default(),
            cores: Mutex::default(),
            aimable: AtomicBool::new(true),
        }
    }

    pub(crate) fn address(&self) -> &HostPort {
        &self.address
    }

    /// Where the broker is, when a connection to it is live.
    pub(crate) fn remote(&self) -> Option<SocketAddr> {
        self.any_core.live().first().map(|link| link.remote())
    }

    /// A live connection for requests, whichever core it is on; dials when there is none.
    ///
    /// # Errors
    /// What the attempt said. May wait for the spacing of attempts first.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, Error> {
        self.on_any_core(Use::Requests).await.map(|(link, _)| link)
    }

    /// A live connection with room for one more stream of that kind, on `core`, as far as the broker told its cores and
    /// the way there keeps the choice; else any connection.
    ///
    /// # Errors
    /// As [`Broker::link`], and [`Error::NoStream`].
    pub(crate) async fn link_on(&self, core: Option<CoreId>, what: Use) -> Result<(Arc<Link>, Seat), Error> {
        let any = self.link().await?;
        let (Some(core), Some(cores), Some(here)) = (core, any.granted().cores, any.granted().core) else {
            return self.on_any_core(what).await;
        };
        let Ok(aim) = u8::try_from(core.get()) else { return self.on_any_core(what).await };
        if core == here || u32::from(core.get()) >= cores || !self.aimable.load(Ordering::Relaxed) {
            return self.on_any_core(what).await;
        }
        let slot = self.lock_cores().entry(aim).or_default().clone();
        let (link, seat) = slot.get(what, || self.connect(Some(aim))).await?;
        if link.granted().core == Some(core) {
            return Ok((link, seat));
        }
        self.aimable.store(false, Ordering::Relaxed);
        self.lock_cores().clear();
        self.on_any_core(what).await
    }

    async fn on_any_core(&self, what: Use) -> Result<(Arc<Link>, Seat), Error> {
        // More connections than one are wanted where the first one is.
        let aim = self.any_core.live().first().and_then(|link| link.granted().core);
        let aim = aim.filter(|_| self.aimable.load(Ordering::Relaxed));
        let aim = aim.and_then(|core| u8::try_from(core.get()).ok());
        self.any_core.get(what, || self.connect(aim)).await
    }

    /// Every live connection.
    pub(crate) fn live_links(&self) -> Vec<Arc<Link>> {
        let cores: Vec<_> = self.lock_cores().values().cloned().collect();
        let mut links = self.any_core.live();
        links.extend(cores.iter().flat_map(|slot| slot.live()));
        links
    }

    async fn connect(&self, core: Option<u8>) -> Result<Link, Error> {
        Link::connect(self.identity.clone(), &self.address, &self.server_name, core).await
    }

    fn lock_cores(&self) -> std::sync::MutexGuard<'_, HashMap<u8, Arc<LinkSlot>>> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The links to one core. There is one, unless its streams are used up.
#[derive(Default)]
struct LinkSlot {
    /// Held over a whole attempt, so that there is one at a time.
    attempts: tokio::sync::Mutex<Attempts>,
    /// Of the successful attempts.
    links: Mutex<Vec<Arc<Link>>>,
}

#[derive(Default)]
struct Attempts {
    backoff: Backoff,
    not_before: Option<Instant>,
}

impl LinkSlot {
    /// The links that are live, in the order they were made.
    fn live(&self) -> Vec<Arc<Link>> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|link| link.is_live());
        links.clone()
    }

    /// A seat on the first link that has one.
    fn seat(&self, what: Use) -> Option<(Arc<Link>, Seat)> {
        self.live().into_iter().find_map(|link| link.seat(what).map(|seat| (link, seat)))
    }

    async fn get<F>(&self, what: Use, connect: impl FnOnce() -> F) -> Result<(Arc<Link>, Seat), Error>
    where
        F: Future<Output = Result<Link, Error>>,
    {
        if let Some(seated) = self.seat(what) {
            return Ok(seated);
        }
        let mut attempts = self.attempts.lock().await;
        if let Some(seated) = self.seat(what) {
            return Ok(seated);
        }
        let links = self.live().len();
        if links >= CONNECTIONS_PER_CORE {
            let message = format!("{links} connections have as many publish or event streams as they may");
            return Err(Error::NoStream { message });
        }
        if let Some(not_before) = attempts.not_before {
            tokio::time::sleep_until(not_before).await;
        }
        match connect().await {
            Ok(link) => {
                attempts.backoff.reset();
                attempts.not_before = None;
                let link = Arc::new(link);
                let seat = link.seat(what);
                self.links.lock().unwrap_or_else(PoisonError::into_inner).push(link.clone());
                let nothing = || Error::NoStream { message: "a new connection has no room".to_owned() };
                Ok((link, seat.ok_or_else(nothing)?))
            }
            Err(error) => {
                let delay = attempts.backoff.next_delay(jitter_seed());
                attempts.not_before = Some(Instant::now() + delay);
                Err(error)
            }
        }
    }
}
