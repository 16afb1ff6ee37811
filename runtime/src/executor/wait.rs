//! The one wait of a core: datagram, room to send, deadline or bell, whichever comes first.
//! Scope: one per core. Owns: a second descriptor of the core's socket that the ring watches, and the watch in progress.
//! Invariants: looking for work before sleeping never lasts longer than the configured time; with disk operations in
//! flight the core waits inside the executor, otherwise in the kernel; a loop that only waits keeps no disk operation from
//! ending; the watch is kept over waits that end otherwise.
//! Not here: reading the socket.
//!
//! Why two ways to wait. The executor of glommio 0.9.0 can park although a task is ready: when an event (its own
//! preemption timer, a late wake-up) reaches its latency ring between its look at the rings and its look at the tasks,
//! it takes the ready tasks for none and sleeps until some later event. Waiting in the kernel directly has no such
//! window and is cheaper. Where the executor must wait, a short heartbeat bounds the harm; the test
//! `a_wait_beside_disk_operations_hears_every_ring` holds it.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake as TaskWake, Waker};
use std::time::Duration;

use futures::future::{Future, LocalBoxFuture};
use glommio::net::UdpSocket;
use glommio::timer::Timer;

use super::CoreIo;
use crate::clock::Tick;
use crate::udp::UdpIo;
use crate::waker::CoreWaker;

/// The longest a core sleeps inside the executor: how late a wake-up comes that the executor overlooked.
pub(super) const HEARTBEAT: Duration = Duration::from_micros(200);
/// How late a busy core sees the completion of a disk operation, about.
const SERVE_EVERY: Duration = Duration::from_micros(100);
/// How late a busy core hands new disk operations to the kernel, about.
const HAND_OVER_EVERY: Duration = Duration::from_micros(50);
/// Long enough for a timer that makes a task wait at all, and no longer.
const MOMENT: Duration = Duration::from_micros(1);

/// What ended a wait. Only a hint: look at everything, several may have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The socket has something to read.
    Datagram,
    /// The socket has room again after a blocked send.
    Writable,
    /// The moment asked for has come. With disk operations in flight also in between, so that they are looked after.
    Deadline,
    /// Somebody rang the core's waker.
    Rung,
}

pub(super) struct Wait {
    watched: Rc<UdpSocket>,
    watch: Option<Watch>,
    spin: Duration,
    disk_in_flight: bool,
    disk_asked: bool,
    served: Tick,
}

impl Wait {
    pub(super) fn new(udp: &UdpIo, spin: Duration) -> io::Result<Wait> {
        let second = udp.as_fd().try_clone_to_owned()?.into_raw_fd();
        // SAFETY: `second` is an open UDP socket that nobody else owns; the new value closes it.
        let watched = Rc::new(unsafe { UdpSocket::from_raw_fd(second) });
        Ok(Wait { watched, watch: None, spin, disk_in_flight: false, disk_asked: false, served: Tick::ZERO })
    }
}

/// A look at the socket that ends when there is something to read.
///
/// It has a waker of its own and is polled only when that was woken: the executor keeps a waker of every poll until the
/// look ends, which on a quiet socket it never does.
struct Watch {
    look: LocalBoxFuture<'static, ()>,
    state: Arc<WatchState>,
}

struct WatchState {
    /// To be polled.
    due: AtomicBool,
    core: CoreWaker,
}

impl TaskWake for WatchState {
    fn wake(self: Arc<Self>) {
        self.due.store(true, Ordering::Release);
        self.core.wake();
    }
}

impl Watch {
    fn new(socket: Rc<UdpSocket>, core: CoreWaker) -> Watch {
        let state = Arc::new(WatchState { due: AtomicBool::new(true), core });
        Watch { look: Box::pin(readable(socket)), state }
    }

    /// Whether there is something to read.
    fn has_ended(&mut self) -> bool {
        if !self.state.due.swap(false, Ordering::Acquire) {
            return false;
        }
        let waker = Waker::from(self.state.clone());
        self.look.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
    }
}

async fn readable(socket: Rc<UdpSocket>) {
    let mut byte = [0u8; 1];
    // An error is something to read as well: the next receive finds it. (`peek` would want a connected socket.)
    let _ = socket.peek_from(&mut byte).await;
}

impl CoreIo {
    /// Waits for the first of: something to read, room to send after a blocked send, `until`, a ring of the core's
    /// waker. Returns at once when one of them is already there. Without `until` it may wait for ever.
    ///
    /// Looks for work up to the configured spin time before it sleeps, unless disk operations are in flight: their
    /// completions are not seen while it looks. They are served when that is due also where there is always something to
    /// read, and nobody reads it.
    pub async fn wait(&mut self, until: Option<Tick>) -> Wake {
        if let Some(wake) = self.look_around(until) {
            self.yield_if_needed().await;
            return wake;
        }
        if self.wait.disk_in_flight { self.wait_in_executor(until).await } else { self.wait_in_kernel(until) }
    }

    /// Says whether tasks of this core have operations in the executor's rings. While they have, the core waits so that
    /// they are served; while they have none, it waits in the way that is cheapest.
    pub fn set_disk_in_flight(&mut self, on: bool) {
        self.wait.disk_in_flight = on;
    }

    /// Says that operations were asked which the kernel does not know yet: the next service of the rings, which hands them
    /// over, is due earlier.
    pub fn disk_asked(&mut self) {
        self.wait.disk_asked = true;
    }

    /// Lets the executor serve its rings and other tasks when that is due. Call it once per turn: a loop that always
    /// finds work would otherwise never see a completion. Free while no disk operation is in flight.
    pub async fn yield_if_needed(&mut self) {
        if !self.wait.disk_in_flight {
            return;
        }
        let now = self.now();
        let every = if self.wait.disk_asked { HAND_OVER_EVERY } else { SERVE_EVERY };
        if now.saturating_since(self.wait.served) < every {
            return;
        }
        self.wait.served = now;
        self.wait.disk_asked = false;
        // Yielding does not make the executor look at its rings, waiting does.
        Timer::new(MOMENT).await;
    }

    /// Looks once, then again and again for the spin time.
    fn look_around(&self, until: Option<Tick>) -> Option<Wake> {
        let spin = if self.wait.disk_in_flight { Duration::ZERO } else { self.wait.spin };
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

    fn wait_in_kernel(&self, until: Option<Tick>) -> Wake {
        loop {
            if self.waker.take() {
                return Wake::Rung;
            }
            let left = until.map(|until| until.saturating_since(self.now()));
            if left == Some(Duration::ZERO) {
                return Wake::Deadline;
            }
            let mut socket = 0;
            self.waker
                .sleep(|event| socket = poll(self.udp.as_fd(), self.udp.send_is_blocked(), event, left));
            if socket & !libc::POLLOUT != 0 {
                return Wake::Datagram;
            }
            if socket != 0 {
                return Wake::Writable;
            }
        }
    }

    async fn wait_in_executor(&mut self, until: Option<Tick>) -> Wake {
        self.wait.served = self.now();
        self.wait.disk_asked = false;
        let CoreIo { clock, waker, wait, .. } = self;
        let left = until.map_or(HEARTBEAT, |until| until.saturating_since(clock.now()).min(HEARTBEAT));
        let mut timer = Timer::new(left);
        poll_fn(|context| {
            waker.register(context);
            let watch = wait.watch.get_or_insert_with(|| Watch::new(wait.watched.clone(), waker.clone()));
            if watch.has_ended() {
                wait.watch = None;
                return Poll::Ready(Wake::Datagram);
            }
            if waker.take() {
                return Poll::Ready(Wake::Rung);
            }
            Pin::new(&mut timer).poll(context).map(|_| Wake::Deadline)
        })
        .await
    }
}

/// Sleeps until the socket can be read (or written, if wanted), the event is rung or the time is over. Returns what the
/// socket is ready for, nothing when it was the event, the time or a signal.
fn poll(socket: BorrowedFd<'_>, writable: bool, event: BorrowedFd<'_>, time: Option<Duration>) -> i16 {
    let wanted = if writable { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
    let mut fds = [
        libc::pollfd { fd: socket.as_raw_fd(), events: wanted, revents: 0 },
        libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 },
    ];
    let time = time.map(|time| libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(time.subsec_nanos()),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the pointers are to two pollfds and to a timespec (or null), which live through the call; no signal mask.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), 2, time, std::ptr::null()) };
    if ready > 0 { fds[0].revents } else { 0 }
}
