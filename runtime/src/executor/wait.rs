//! The one wait of a core: datagram, deadline or bell, whichever comes first.
//! Scope: one per core. Owns: a second descriptor of the core's socket that the ring watches, and the watch in progress.
//! Invariants: the watch is kept over waits that end otherwise, so no wait costs a cancelled operation; looking for
//! work before parking never lasts longer than the configured time.
//! Not here: reading the socket.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, FromRawFd, IntoRawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use futures::future::{Future, LocalBoxFuture};
use glommio::net::UdpSocket;
use glommio::timer::Timer;

use super::CoreIo;
use crate::clock::Tick;
use crate::udp::UdpIo;

/// How long a core with unsent datagrams sleeps at most: nothing tells it that the socket has room again.
const SEND_RETRY: Duration = Duration::from_micros(250);

/// What ended a wait. Only a hint: look at everything, several may have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The socket has something to read.
    Datagram,
    /// The moment asked for has come, or blocked sends are due again.
    Deadline,
    /// Somebody rang the core's waker.
    Rung,
}

pub(super) struct Wait {
    watched: Rc<UdpSocket>,
    watch: Option<LocalBoxFuture<'static, ()>>,
    spin: Duration,
    may_spin: bool,
}

impl Wait {
    pub(super) fn new(udp: &UdpIo, spin: Duration) -> io::Result<Wait> {
        let second = udp.as_fd().try_clone_to_owned()?.into_raw_fd();
        // SAFETY: `second` is an open UDP socket that nobody else owns; the new value closes it.
        let watched = Rc::new(unsafe { UdpSocket::from_raw_fd(second) });
        Ok(Wait { watched, watch: None, spin, may_spin: true })
    }
}

async fn readable(socket: Rc<UdpSocket>) {
    let mut byte = [0u8; 1];
    // An error is something to read as well: the next receive finds it. (`peek` would want a connected socket.)
    let _ = socket.peek_from(&mut byte).await;
}

impl CoreIo {
    /// Waits for the first of: something to read, `until`, a ring of the core's waker. Returns at once when one of
    /// them is already there. Without `until` it may wait for ever.
    ///
    /// Looks for work up to the configured spin time before it parks, see [`CoreIo::allow_spin`].
    pub async fn wait(&mut self, until: Option<Tick>) -> Wake {
        let until = self.due(until);
        match self.look_around(until) {
            Some(wake) => wake,
            None => self.park(until).await,
        }
    }

    /// Off while disk operations are in flight: a core that spins does not see their completions.
    pub fn allow_spin(&mut self, on: bool) {
        self.wait.may_spin = on;
    }

    fn due(&self, until: Option<Tick>) -> Option<Tick> {
        if !self.udp.send_is_blocked() {
            return until;
        }
        let retry = self.now() + SEND_RETRY;
        Some(until.map_or(retry, |until| until.min(retry)))
    }

    /// Looks once, then again and again for the spin time.
    fn look_around(&self, until: Option<Tick>) -> Option<Wake> {
        let spin = if self.wait.may_spin { self.wait.spin } else { Duration::ZERO };
        let started = self.now();
        let mut now = started;
        loop {
            if self.waker.take() {
                return Some(Wake::Rung);
            }
            if self.udp.is_readable() {
                return Some(Wake::Datagram);
            }
            if until.is_some_and(|until| until <= now) {
                return Some(Wake::Deadline);
            }
            if now.saturating_since(started) >= spin {
                return None;
            }
            std::hint::spin_loop();
            now = self.now();
        }
    }

    async fn park(&mut self, until: Option<Tick>) -> Wake {
        let CoreIo { clock, waker, wait, .. } = self;
        let mut timer = until.map(|until| Timer::new(until.saturating_since(clock.now())));
        poll_fn(|context| {
            waker.register(context);
            if waker.take() {
                return Poll::Ready(Wake::Rung);
            }
            let watch = wait.watch.get_or_insert_with(|| Box::pin(readable(wait.watched.clone())));
            if watch.as_mut().poll(context).is_ready() {
                wait.watch = None;
                return Poll::Ready(Wake::Datagram);
            }
            match &mut timer {
                Some(timer) => Pin::new(timer).poll(context).map(|_| Wake::Deadline),
                None => Poll::Pending,
            }
        })
        .await
    }
}
