//! Bounded rings between the cores of a process, and between a core and an ordinary thread.
//! Scope: one [`Mailboxes`] per core; one end of a lane on each side.
//! Owns: one ring per ordered pair of cores (also from a core to itself).
//! Invariants: nothing waits and nothing is lost: a full ring hands the message back; messages of one pair arrive in
//! order; receiving takes one message from each sender in turn; a batch costs the receiver one wake-up.
//! Not here: what a message means; who may still send (credits are counted by the sender with [`Credit`]).

mod credit;
mod lane;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crossbeam::queue::ArrayQueue;

use crate::waker::CoreWaker;
pub use credit::Credit;
pub use lane::{AsyncReceiver, CoreReceiver, LaneError, LaneSender, lane_from_core, lane_to_core};

/// Requests one core may have unanswered at one other core.
pub const CREDITS_PER_PAIR: u32 = 1_024;
/// Ring slots per direction: our requests plus the replies we owe.
pub const MAILBOX_SLOTS: u32 = 2_048;
const _: () = assert!(MAILBOX_SLOTS >= 2 * CREDITS_PER_PAIR, "a reply must always find a slot");

/// The ring had no slot; here is the message back.
#[derive(Debug, PartialEq, Eq)]
pub struct Full<T>(pub T);

/// The rings of one core: to every core and from every core.
#[derive(Debug)]
pub struct Mailboxes<T> {
    core: u16,
    to: Vec<Arc<ArrayQueue<T>>>,
    from: Vec<Arc<ArrayQueue<T>>>,
    bells: Vec<CoreWaker>,
    /// Destinations with messages they were not woken for.
    unrung: Vec<bool>,
    any_unrung: bool,
    turn_of: usize,
}

/// Makes the rings between all cores whose wakers are given, `slots` per ordered pair. Entry `k` of the answer belongs
/// to core `k`, which waits on `wakers[k]`.
///
/// # Panics
/// With no slots, or more than 65,535 cores.
pub fn mesh<T>(wakers: &[CoreWaker], slots: u32) -> Vec<Mailboxes<T>> {
    let cores = u16::try_from(wakers.len()).expect("a core number has 16 bits");
    let ring = || Arc::new(ArrayQueue::new(slots as usize));
    // rings[a][b]: from a to b
    let rings: Vec<Vec<_>> = (0..cores).map(|_| (0..cores).map(|_| ring()).collect()).collect();
    (0..cores)
        .map(|core| Mailboxes {
            core,
            to: rings[usize::from(core)].clone(),
            from: rings.iter().map(|row| row[usize::from(core)].clone()).collect(),
            bells: wakers.to_vec(),
            unrung: vec![false; wakers.len()],
            any_unrung: false,
            turn_of: 0,
        })
        .collect()
}

impl<T> Mailboxes<T> {
    /// The core these belong to.
    pub fn core(&self) -> u16 {
        self.core
    }

    /// How many cores are connected, this one included.
    pub fn cores(&self) -> u16 {
        self.to.len() as u16
    }

    /// Puts a message into the ring to core `to`. The receiver is woken by the next [`Mailboxes::flush`].
    ///
    /// # Errors
    /// The message comes back when the ring is full; the receiver has then been woken to empty it.
    ///
    /// # Panics
    /// When there is no such core.
    pub fn try_send(&mut self, to: u16, message: T) -> Result<(), Full<T>> {
        let index = usize::from(to);
        match self.to[index].push(message) {
            Ok(()) => {
                self.unrung[index] = true;
                self.any_unrung = true;
                Ok(())
            }
            Err(message) => {
                self.bells[index].wake();
                self.unrung[index] = false;
                Err(Full(message))
            }
        }
    }

    /// Wakes every core that got messages since the last flush, once each. Call it once per turn, before waiting.
    pub fn flush(&mut self) {
        if !self.any_unrung {
            return;
        }
        self.any_unrung = false;
        for (unrung, bell) in self.unrung.iter_mut().zip(&self.bells) {
            if std::mem::take(unrung) {
                bell.wake();
            }
        }
    }

    /// The next message and the core it came from; a different sender each time while several have some.
    pub fn recv(&mut self) -> Option<(u16, T)> {
        for _ in 0..self.from.len() {
            let sender = self.turn_of;
            self.turn_of = if sender + 1 == self.from.len() { 0 } else { sender + 1 };
            if let Some(message) = self.from[sender].pop() {
                return Some((sender as u16, message));
            }
        }
        None
    }

    /// Messages in the ring to core `to` that it has not taken yet.
    pub fn pending_to(&self, to: u16) -> usize {
        self.to[usize::from(to)].len()
    }
}
