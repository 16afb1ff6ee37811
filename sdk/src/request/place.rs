//! One stream or cache: where its shards are, and asking their owners. Scope: per handle of the application.
//! Owns: the route as it was last seen, and owners that were learned since.
//! Invariants: at most one look at the route at a time; a request goes to the owner that is known, else to the broker in
//! use; whoever leads, the broker decides which shard a key belongs to.
//! Not here: whether to ask again (`plan`), one attempt (`exchange`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use felix_wire::client::{Message, ShardKind};
use felix_wire::features::Features;
use felix_wire::frame::HEADER_LEN;
use felix_wire::id::RequestId;
use felix_wire::limits::FRAME_PAYLOAD_MAX;
use felix_wire::routing::shard_for;
use tokio::time::Instant;

use crate::backoff::jitter_seed;
use crate::client::Shared;
use crate::connection::{Link, Use};
use crate::error::Error;
use crate::name::StreamName;
use crate::request::error::RequestError;
use crate::request::exchange::{Failed, Read, Said, Terms, exchange};
use crate::request::plan::{Next, Plan, Repeat};
use crate::request::pool::Pace;
use crate::topology::{Route, ShardOwner, fetch_route, known_route};

/// What a request needs and may.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    /// Its name in messages.
    pub(crate) what: &'static str,
    /// Bits the broker must have announced.
    pub(crate) needs: Features,
    pub(crate) shard: u32,
    pub(crate) repeat: Repeat,
    /// How long the broker may wait before it answers; for a request of its own pace.
    pub(crate) waits: Option<Duration>,
}

impl Ask {
    pub(crate) fn new(what: &'static str, needs: Features, shard: u32, repeat: Repeat) -> Self {
        Self { what, needs, shard, repeat, waits: None }
    }
}

/// What came of a request.
pub(crate) struct Outcome<T> {
    pub(crate) said: Said<T>,
    /// An earlier copy, whose answer is missing, may have been applied.
    pub(crate) maybe_applied: bool,
}

/// See the module.
pub(crate) struct Place {
    shared: Arc<Shared>,
    name: StreamName,
    kind: ShardKind,
    route: Mutex<Option<Seen>>,
    looking: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Seen {
    route: Arc<Route>,
    at: Instant,
}

impl Place {
    /// # Errors
    /// [`Error::Config`] when the name has no namespace and the client no default.
    pub(crate) fn new(shared: Arc<Shared>, name: StreamName, kind: ShardKind) -> Result<Arc<Self>, Error> {
        let name = shared.resolve(name)?;
        let (route, looking) = (Mutex::default(), tokio::sync::Mutex::default());
        Ok(Arc::new(Self { shared, name, kind, route, looking }))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn tenant(&self) -> &str {
        &self.shared.identity.tenant
    }

    pub(crate) fn name(&self) -> &StreamName {
        &self.name
    }

    /// How many shards there are; at least 1.
    ///
    /// # Errors
    /// `not_found` for a name that is not known for a while, else what asking said.
    pub(crate) async fn shard_count(&self) -> Result<u32, RequestError> {
        Ok(self.route().await?.shards.shards.max(1))
    }

    /// The shard of a key.
    ///
    /// # Errors
    /// As [`Place::shard_count`].
    pub(crate) async fn shard_of(&self, key: &[u8]) -> Result<u32, RequestError> {
        let shards = self.route().await?.shards;
        Ok(shard_for(Some(key), shards.shards, shards.mapping).get())
    }

    /// Who serves a shard, as far as it is known without asking.
    pub(crate) fn owner(&self, shard: u32) -> Option<ShardOwner> {
        self.seen()?.route.owner(shard).cloned()
    }

    /// Makes one request, wherever the shard is, as often as it may be made. `message` makes it for a request number.
    ///
    /// # Errors
    /// As [`RequestError`] says. A number that was refused is an error for the caller to name: see [`Said::Number`].
    pub(crate) async fn ask<'m, T: Send + 'static>(
        &self,
        ask: Ask,
        message: impl Fn(RequestId) -> Message<'m> + Sync,
        read: Read<T>,
    ) -> Result<Outcome<T>, RequestError> {
        let deadlines = self.shared.identity.deadlines;
        let mut plan = Plan::new(ask.repeat, Instant::now(), &deadlines);
        let mut named: Option<ShardOwner> = None;
        loop {
            let owner = named.take().or_else(|| self.owner(ask.shard));
            let outcome = self.attempt(owner, ask, &message, read).await;
            let (now, random) = (Instant::now(), jitter_seed());
            let next = match outcome {
                Ok(Said::Elsewhere(owner)) => plan.elsewhere(owner, now, random),
                Ok(Said::Refused(refusal)) => plan.refused(refusal, now, random),
                Ok(said) => return Ok(Outcome { said, maybe_applied: plan.maybe_applied() }),
                Err(Failed::NoAnswer(none)) => plan.unanswered(none, now, random),
                Err(Failed::TooLarge { bytes }) => {
                    let limit = FRAME_PAYLOAD_MAX as usize + HEADER_LEN;
                    return Err(RequestError::TooLarge { bytes, limit });
                }
            };
            match next {
                Next::Ask(owner) => {
                    self.learn(&owner);
                    named = Some(owner);
                }
                Next::Again { after, look } => {
                    tokio::time::sleep(after).await;
                    if look {
                        self.look_again(now).await;
                    }
                }
                Next::Fail(error) => return Err(error),
            }
        }
    }

    /// The same for requests without numbers.
    ///
    /// # Errors
    /// As [`Place::ask`]; a number that is refused all the same is an unknown outcome.
    pub(crate) async fn answer<'m, T: Send + 'static>(
        &self,
        ask: Ask,
        message: impl Fn(RequestId) -> Message<'m> + Sync,
        read: Read<T>,
    ) -> Result<T, RequestError> {
        match self.ask(ask, message, read).await?.said {
            Said::Answer(answer) => Ok(answer),
            _ => Err(RequestError::OutcomeUnknown {
                cause: format!("{} was answered with the refusal of a number", ask.what),
                refusal: None,
            }),
        }
    }

    async fn attempt<'m, T: Send + 'static>(
        &self,
        owner: Option<ShardOwner>,
        ask: Ask,
        message: &(impl Fn(RequestId) -> Message<'m> + Sync),
        read: Read<T>,
    ) -> Result<Said<T>, Failed> {
        let link = self.link_to(owner.as_ref()).await.map_err(Failed::unsent)?;
        link.granted().require(ask.needs, ask.what).map_err(Failed::unsent)?;
        let pace = if ask.waits.is_some() { Pace::Waiting } else { Pace::Prompt };
        let patience = self.shared.identity.deadlines.request + ask.waits.unwrap_or_default();
        let terms = Terms { what: ask.what, shard: ask.shard, pace, due: Instant::now() + patience };
        let said = exchange(&link, terms, message, read).await;
        match &said {
            Ok(Said::Refused(refusal)) => self.shared.note(&Error::Refused(refusal.clone()), &link),
            Err(Failed::NoAnswer(none)) => self.shared.note(&none.error, &link),
            _ => {}
        }
        said
    }

    /// A connection to the owner, or to the broker in use.
    pub(crate) async fn link_to(&self, owner: Option<&ShardOwner>) -> Result<Arc<Link>, Error> {
        self.shared.link_to(owner, Use::Requests).await.map(|(link, _)| link)
    }

    /// What the broker in use announced.
    pub(crate) async fn features(&self) -> Result<Features, RequestError> {
        Ok(self.shared.entry().await?.granted().features)
    }

    async fn route(&self) -> Result<Arc<Route>, RequestError> {
        if let Some(seen) = self.seen() {
            return Ok(seen.route);
        }
        let _one = self.looking.lock().await;
        if let Some(seen) = self.seen() {
            return Ok(seen.route);
        }
        let route = Arc::new(known_route(&self.shared, &self.name, self.kind).await?);
        self.see(route.clone());
        Ok(route)
    }

    /// Looks at the route once more, unless somebody did since `since`. What is known stays when nobody answers.
    pub(crate) async fn look_again(&self, since: Instant) {
        let _one = self.looking.lock().await;
        if self.seen().is_some_and(|seen| seen.at > since) {
            return;
        }
        let Ok(link) = self.shared.entry().await else { return };
        let Ok(route) = fetch_route(&link, self.tenant(), &self.name, self.kind).await else { return };
        if route.shards.shards > 0 {
            self.see(Arc::new(route));
        }
    }

    fn learn(&self, owner: &ShardOwner) {
        let mut held = self.lock();
        let Some(seen) = held.as_mut() else { return };
        let mut route = (*seen.route).clone();
        let Some(place) = usize::try_from(owner.shard).ok().and_then(|shard| route.owners.get_mut(shard))
        else {
            return;
        };
        *place = owner.clone();
        seen.route = Arc::new(route);
    }

    fn seen(&self) -> Option<Seen> {
        self.lock().clone()
    }

    fn see(&self, route: Arc<Route>) {
        *self.lock() = Some(Seen { route, at: Instant::now() });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Seen>> {
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
