//! The request streams of one connection. Scope: per connection and kind of request.
//! Owns: which streams there are, and how many requests may be on them.
//! Invariants: a stream has one unanswered request, or as many as a broker that answers in order allows; requests beyond
//! what all streams together take wait for their turn with their callers, so nothing queues here.
//! Not here: what a stream's task does (`lane`).

use std::sync::{Arc, Mutex, PoisonError};

use felix_wire::features::Features;
use tokio::sync::Semaphore;

use crate::connection::{Granted, Link};
use crate::error::Error;
use crate::limits::{
    ORDERED_REQUESTS_PER_STREAM, ORDERED_STREAMS_PER_CONNECTION, REQUEST_STREAMS_PER_CONNECTION,
    WAITING_STREAMS_PER_CONNECTION,
};
use crate::request::lane::{Lane, Room};

/// How long a request may take at the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// It is answered as soon as possible.
    Prompt,
    /// It may wait for something to happen, so nothing may be behind it.
    Waiting,
}

/// See the module.
pub(crate) struct Pool {
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// As many as all streams take.
    gate: Arc<Semaphore>,
    /// Streams that may be opened at the same time: when one has room for many, the others wait for it.
    opening: Semaphore,
    window: usize,
}

impl Pool {
    fn new(streams: usize, window: usize) -> Self {
        Self {
            lanes: Mutex::default(),
            gate: Arc::new(Semaphore::new(streams * window)),
            opening: Semaphore::new(if window == 1 { streams } else { 1 }),
            window,
        }
    }

    /// A stream with room for one more request; waits when all have what they may have.
    ///
    /// # Errors
    /// What opening a stream said.
    pub(crate) async fn room(&self, link: &Link) -> Result<(Arc<Lane>, Room), Error> {
        let mut permit = self.gate.clone().acquire_owned().await.map_err(|_| Error::Closed)?;
        match self.find(permit) {
            Ok(found) => return Ok(found),
            Err(back) => permit = back,
        }
        let _turn = self.opening.acquire().await.map_err(|_| Error::Closed)?;
        match self.find(permit) {
            Ok(found) => return Ok(found),
            Err(back) => permit = back,
        }
        let lane = Arc::new(Lane::start(link.open().await?, self.window));
        let no_room = |_| Error::NoStream { message: "a new stream has no room".to_owned() };
        let room = lane.room(permit).map_err(no_room)?;
        self.lock().push(lane.clone());
        Ok((lane, room))
    }

    fn find(
        &self,
        mut permit: tokio::sync::OwnedSemaphorePermit,
    ) -> Result<(Arc<Lane>, Room), tokio::sync::OwnedSemaphorePermit> {
        let mut lanes = self.lock();
        lanes.retain(|lane| lane.is_open());
        for lane in lanes.iter() {
            match lane.room(permit) {
                Ok(room) => return Ok((lane.clone(), room)),
                Err(back) => permit = back,
            }
        }
        Err(permit)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Lane>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Both kinds of one connection.
pub(crate) struct Pools {
    prompt: Pool,
    waiting: Pool,
}

impl Pools {
    /// For a connection of which the broker granted this.
    pub(crate) fn new(granted: &Granted) -> Self {
        let prompt = match granted.features.contains(Features::ORDERED_ANSWERS) {
            true => Pool::new(ORDERED_STREAMS_PER_CONNECTION, ORDERED_REQUESTS_PER_STREAM),
            false => Pool::new(REQUEST_STREAMS_PER_CONNECTION, 1),
        };
        Self { prompt, waiting: Pool::new(WAITING_STREAMS_PER_CONNECTION, 1) }
    }

    pub(crate) fn of(&self, pace: Pace) -> &Pool {
        match pace {
            Pace::Prompt => &self.prompt,
            Pace::Waiting => &self.waiting,
        }
    }
}
