//! One bounded queue between an ordinary thread and a core.
//! Scope: one per direction and purpose. Owns: the queue and whether its ends are still there.
//! Invariants: nothing waits on the core's side; a full queue hands the message back; messages arrive in order (per
//! sender); the receiver hears of the last sender's end after the last message.
//! Not here: rings between cores (`Mailboxes`).

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use crossbeam::queue::ArrayQueue;

use crate::waker::CoreWaker;

/// Why a message came back.
#[derive(Debug, PartialEq, Eq)]
pub enum LaneError<T> {
    /// No slot at the moment.
    Full(T),
    /// Nobody will ever receive it.
    Closed(T),
}

#[derive(Debug)]
struct Lane<T> {
    queue: ArrayQueue<T>,
    bell: CoreWaker,
    senders: AtomicUsize,
    receiver_gone: AtomicBool,
}

/// A lane from any thread to the core that waits on `bell`.
///
/// # Panics
/// With no slots.
pub fn lane_to_core<T>(slots: u32, bell: &CoreWaker) -> (LaneSender<T>, CoreReceiver<T>) {
    let lane = Lane::start(slots, bell.clone());
    (LaneSender { lane: lane.clone() }, CoreReceiver { end: ReceiverEnd { lane } })
}

/// A lane to a task of any async runtime, for example from a core to the admin thread.
///
/// # Panics
/// With no slots.
pub fn lane_from_core<T>(slots: u32) -> (LaneSender<T>, AsyncReceiver<T>) {
    let lane = Lane::start(slots, CoreWaker::new());
    (LaneSender { lane: lane.clone() }, AsyncReceiver { end: ReceiverEnd { lane } })
}

impl<T> Lane<T> {
    fn start(slots: u32, bell: CoreWaker) -> Arc<Lane<T>> {
        Arc::new(Lane {
            queue: ArrayQueue::new(slots as usize),
            bell,
            senders: AtomicUsize::new(1),
            receiver_gone: AtomicBool::new(false),
        })
    }
}

/// The sending end; clones share the queue.
#[derive(Debug)]
pub struct LaneSender<T> {
    lane: Arc<Lane<T>>,
}

impl<T> LaneSender<T> {
    /// Puts the message into the queue and wakes the receiver.
    ///
    /// # Errors
    /// The message comes back when the queue is full or the receiver is gone. A message that was queued just before the
    /// receiver went is dropped with it.
    pub fn try_send(&self, message: T) -> Result<(), LaneError<T>> {
        if self.lane.receiver_gone.load(Ordering::Acquire) {
            return Err(LaneError::Closed(message));
        }
        let pushed = self.lane.queue.push(message).map_err(LaneError::Full);
        self.lane.bell.wake();
        pushed
    }
}

impl<T> Clone for LaneSender<T> {
    fn clone(&self) -> Self {
        self.lane.senders.fetch_add(1, Ordering::Relaxed);
        LaneSender { lane: self.lane.clone() }
    }
}

impl<T> Drop for LaneSender<T> {
    fn drop(&mut self) {
        if self.lane.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.lane.bell.wake();
        }
    }
}

#[derive(Debug)]
struct ReceiverEnd<T> {
    lane: Arc<Lane<T>>,
}

impl<T> ReceiverEnd<T> {
    /// `Ready(None)` once the last sender is gone and the queue is empty.
    fn next(&self) -> Poll<Option<T>> {
        if let Some(message) = self.lane.queue.pop() {
            return Poll::Ready(Some(message));
        }
        if self.lane.senders.load(Ordering::Acquire) == 0 {
            // The last sender's message may have come between the two looks.
            return Poll::Ready(self.lane.queue.pop());
        }
        Poll::Pending
    }
}

impl<T> Drop for ReceiverEnd<T> {
    fn drop(&mut self) {
        self.lane.receiver_gone.store(true, Ordering::Release);
        while self.lane.queue.pop().is_some() {}
    }
}

/// The receiving end on a core: it asks once per turn, its one wait is woken for it.
#[derive(Debug)]
pub struct CoreReceiver<T> {
    end: ReceiverEnd<T>,
}

impl<T> CoreReceiver<T> {
    /// The next message, if there is one.
    pub fn try_recv(&mut self) -> Option<T> {
        self.end.lane.queue.pop()
    }

    /// Whether every sender is gone and every message taken.
    pub fn is_closed(&self) -> bool {
        self.end.lane.senders.load(Ordering::Acquire) == 0 && self.end.lane.queue.is_empty()
    }
}

/// The receiving end in an async task.
#[derive(Debug)]
pub struct AsyncReceiver<T> {
    end: ReceiverEnd<T>,
}

impl<T> AsyncReceiver<T> {
    /// Waits for the next message; `None` when every sender is gone and every message taken. Dropping the future loses
    /// nothing.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|context| {
            if let Poll::Ready(next) = self.end.next() {
                return Poll::Ready(next);
            }
            let bell = &self.end.lane.bell;
            bell.register(context);
            // A ring from before is about messages that the look below finds.
            let _ = bell.take();
            self.end.next()
        })
        .await
    }

    /// The next message, if there is one.
    pub fn try_recv(&mut self) -> Option<T> {
        self.end.lane.queue.pop()
    }
}
