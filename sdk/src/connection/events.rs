//! Brings each event stream to the subscription that waits for it. Scope: one per connection.
//! Owns: event streams that arrived before their subscription was answered, and the waits for those that did not.
//! Invariants: the hello of one stream never holds up another; a stream nobody claims is closed after a while;
//! when the connection is gone every wait ends.
//! Not here: what is on the streams (`subscribe`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use felix_wire::client::Message;
use felix_wire::id::SubscriptionId;
use quinn::{Connection, RecvStream};
use tokio::sync::oneshot;

use crate::connection::stream::FrameRecv;
use crate::error::Error;
use crate::limits::{REQUEST_TIMEOUT, UNCLAIMED_STREAM_AGE};

enum Slot {
    Waiting(oneshot::Sender<FrameRecv>),
    Arrived { stream: FrameRecv, at: Instant },
}

#[derive(Default)]
struct Slots {
    by_id: HashMap<SubscriptionId, Slot>,
    lost: bool,
}

/// Where event streams and subscriptions meet; the hello may come before or after `subscribed`.
#[derive(Clone, Default)]
pub(crate) struct EventRouter {
    slots: Arc<Mutex<Slots>>,
}

impl EventRouter {
    /// Takes event streams until the connection is lost. Runs as its own task.
    pub(crate) async fn run(self, connection: Connection) {
        while let Ok(recv) = connection.accept_uni().await {
            let router = self.clone();
            tokio::spawn(async move {
                // A stream without a proper hello is dropped, which stops it (client-protocol 7).
                if let Some((id, stream)) = read_hello(recv).await {
                    router.arrived(id, stream);
                }
            });
        }
        let mut slots = self.lock();
        slots.lost = true;
        slots.by_id.clear();
    }

    /// The event stream of subscription `id`.
    ///
    /// # Errors
    /// [`Error::Lost`] when the connection ends first, [`Error::TimedOut`] when the stream does not come.
    pub(crate) async fn claim(&self, id: SubscriptionId) -> Result<FrameRecv, Error> {
        let wait = {
            let mut slots = self.lock();
            if slots.lost {
                return Err(Error::lost("the connection ended"));
            }
            match slots.by_id.remove(&id) {
                Some(Slot::Arrived { stream, .. }) => return Ok(stream),
                Some(Slot::Waiting(_)) => {
                    return Err(Error::protocol(format!("subscription id {id} is used twice")));
                }
                None => {}
            }
            let (give, wait) = oneshot::channel();
            slots.by_id.insert(id, Slot::Waiting(give));
            wait
        };
        let _forget = Forget { router: self, id };
        match tokio::time::timeout(REQUEST_TIMEOUT, wait).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(_)) => Err(Error::lost("the connection ended")),
            Err(_) => Err(Error::TimedOut { what: "subscribe (its event stream)", waited: REQUEST_TIMEOUT }),
        }
    }

    fn arrived(&self, id: SubscriptionId, stream: FrameRecv) {
        let mut slots = self.lock();
        if slots.lost {
            return;
        }
        let now = Instant::now();
        slots.by_id.retain(|_, slot| match slot {
            Slot::Waiting(_) => true,
            Slot::Arrived { at, .. } => now.duration_since(*at) < UNCLAIMED_STREAM_AGE,
        });
        match slots.by_id.remove(&id) {
            // A claim that gave up drops the stream here, which stops it.
            Some(Slot::Waiting(give)) => drop(give.send(stream)),
            Some(Slot::Arrived { .. }) | None => {
                slots.by_id.insert(id, Slot::Arrived { stream, at: now });
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a wait that was cancelled or has timed out.
struct Forget<'a> {
    router: &'a EventRouter,
    id: SubscriptionId,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut slots = self.router.lock();
        if matches!(slots.by_id.get(&self.id), Some(Slot::Waiting(_))) {
            slots.by_id.remove(&self.id);
        }
    }
}

async fn read_hello(recv: RecvStream) -> Option<(SubscriptionId, FrameRecv)> {
    let mut stream = FrameRecv::new(recv);
    let frame = tokio::time::timeout(REQUEST_TIMEOUT, stream.next()).await.ok()?.ok()??;
    match Message::decode(&frame.payload) {
        Ok(Message::EventStreamHello(hello)) if frame.flags == 0 => Some((hello.subscription_id, stream)),
        _ => None,
    }
}
