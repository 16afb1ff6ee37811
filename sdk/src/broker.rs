//! The connections to one broker: one for anything, and one per core that is needed. Scope: per broker address.
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
use crate::connection::{Identity, Link};
use crate::error::Error;

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
        self.any_core.peek().map(|link| link.remote())
    }

    /// A live connection, whichever core it is on; dials when there is none.
    ///
    /// # Errors
    /// What the attempt said. May wait for the spacing of attempts first.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, Error> {
        self.any_core.get(|| self.connect(None)).await
    }

    /// A live connection on `core`, as far as the broker told its cores and the way there keeps the choice; else
    /// any connection.
    ///
    /// # Errors
    /// As [`Broker::link`].
    pub(crate) async fn link_on(&self, core: Option<CoreId>) -> Result<Arc<Link>, Error> {
        let any = self.link().await?;
        let (Some(core), Some(cores), Some(here)) = (core, any.granted().cores, any.granted().core) else {
            return Ok(any);
        };
        let Ok(aim) = u8::try_from(core.get()) else { return Ok(any) };
        if core == here || u32::from(core.get()) >= cores || !self.aimable.load(Ordering::Relaxed) {
            return Ok(any);
        }
        let slot = self.lock_cores().entry(aim).or_default().clone();
        let link = slot.get(|| self.connect(Some(aim))).await?;
        if link.granted().core == Some(core) {
            return Ok(link);
        }
        self.aimable.store(false, Ordering::Relaxed);
        self.lock_cores().clear();
        Ok(any)
    }

    /// Every live connection.
    pub(crate) fn live_links(&self) -> Vec<Arc<Link>> {
        let cores: Vec<_> = self.lock_cores().values().cloned().collect();
        self.any_core.peek().into_iter().chain(cores.iter().filter_map(|slot| slot.peek())).collect()
    }

    async fn connect(&self, core: Option<u8>) -> Result<Link, Error> {
        Link::connect(self.identity.clone(), &self.address, &self.server_name, core).await
    }

    fn lock_cores(&self) -> std::sync::MutexGuard<'_, HashMap<u8, Arc<LinkSlot>>> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for one link.
#[derive(Default)]
struct LinkSlot {
    /// Held over a whole attempt, so that there is one at a time.
    attempts: tokio::sync::Mutex<Attempts>,
    /// The link of the last successful attempt.
    link: Mutex<Option<Arc<Link>>>,
}

#[derive(Default)]
struct Attempts {
    backoff: Backoff,
    not_before: Option<Instant>,
}

impl LinkSlot {
    fn peek(&self) -> Option<Arc<Link>> {
        self.lock().clone().filter(|link| link.is_live())
    }

    async fn get<F>(&self, connect: impl FnOnce() -> F) -> Result<Arc<Link>, Error>
    where
        F: Future<Output = Result<Link, Error>>,
    {
        if let Some(link) = self.peek() {
            return Ok(link);
        }
        let mut attempts = self.attempts.lock().await;
        if let Some(link) = self.peek() {
            return Ok(link);
        }
        if let Some(not_before) = attempts.not_before {
            tokio::time::sleep_until(not_before).await;
        }
        match connect().await {
            Ok(link) => {
                attempts.backoff.reset();
                attempts.not_before = None;
                let link = Arc::new(link);
                *self.lock() = Some(link.clone());
                Ok(link)
            }
            Err(error) => {
                let delay = attempts.backoff.next_delay(jitter_seed());
                attempts.not_before = Some(Instant::now() + delay);
                Err(error)
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Link>>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
