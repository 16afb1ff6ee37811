//! The one wait of a core: datagram, room to send, answer of a disk, deadline or bell, whichever comes first.
//! Scope: one per core. Owns: nothing but how long to look before sleeping, and the disks that are heard.
//! Invariants: looking for work before sleeping never lasts longer than the configured time, and is left out while a disk
//! has work; the core sleeps in the kernel, on all of its descriptors at once.
//! Not here: reading the socket, taking answers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

use super::CoreIo;
use crate::clock::Tick;
use crate::file::ring::Answering;

/// What ended a wait. Only a hint: look at everything, several may have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The socket has something to read.
    Datagram,
    /// The socket has room again after a blocked send.
    Writable,
    /// A disk has answered.
    Answer,
    /// The moment asked for has come.
    Deadline,
    /// Somebody rang the core's waker.
    Rung,
}

pub(super) struct Wait {
    spin: Duration,
    disks: Option<Rc<dyn Answering>>,
}

impl Wait {
    pub(super) fn new(spin: Duration) -> Wait {
        Wait { spin, disks: None }
    }

    fn disks_are_busy(&self) -> bool {
        self.disks.as_ref().is_some_and(|disks| disks.is_busy())
    }

    fn disks_have_answers(&self) -> bool {
        self.disks.as_ref().is_some_and(|disks| disks.has_answers())
    }
}

impl CoreIo {
    /// Waits for the first of: something to read, room to send after a blocked send, an answer of a disk, `until`, a ring
    /// of the core's waker. Returns at once when one of them is already there. Without `until` it may wait for ever.
    ///
    /// Looks for work up to the configured spin time before it sleeps, unless a disk has work: the kernel's threads may
    /// need this processor for it.
    pub fn wait(&mut self, until: Option<Tick>) -> Wake {
        self.look_around(until).unwrap_or_else(|| self.sleep(until))
    }

    /// Waits end from now on also when these disks have answered. They take the place of those heard before.
    pub(crate) fn hear(&mut self, disks: Rc<dyn Answering>) {
        self.wait.disks = Some(disks);
    }

    /// Looks once, then again and again for the spin time.
    fn look_around(&self, until: Option<Tick>) -> Option<Wake> {
        let spin = if self.wait.disks_are_busy() { Duration::ZERO } else { self.wait.spin };
        let started = self.now();
        let mut now = started;
        loop {
            if self.waker.take() {
                return Some(Wake::Rung);
            }
            if self.udp.is_readable() {
                return Some(Wake::Datagram);
            }
            if self.wait.disks_have_answers() {
                return Some(Wake::Answer);
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

    fn sleep(&self, until: Option<Tick>) -> Wake {
        let disks = self.wait.disks.as_deref();
        loop {
            if self.waker.take() {
                return Wake::Rung;
            }
            let left = until.map(|until| until.saturating_since(self.now()));
            if left == Some(Duration::ZERO) {
                return Wake::Deadline;
            }
            let mut ready = Ready::default();
            self.waker.sleep(|event| {
                ready = poll((self.udp.as_fd(), self.udp.send_is_blocked()), event, disks, left);
            });
            if ready.socket & !libc::POLLOUT != 0 {
                return Wake::Datagram;
            }
            if ready.socket != 0 {
                return Wake::Writable;
            }
            if ready.disks != 0 || self.wait.disks_have_answers() {
                return Wake::Answer;
            }
        }
    }
}

/// What descriptors are ready for.
#[derive(Default)]
struct Ready {
    socket: libc::c_short,
    disks: libc::c_short,
}

/// Sleeps until the socket can be read (or written, if wanted), a disk has answered, the event is rung or the time is
/// over. Nothing is ready when it was the event, the time or a signal.
fn poll(
    socket: (BorrowedFd<'_>, bool),
    event: BorrowedFd<'_>,
    disks: Option<&dyn Answering>,
    time: Option<Duration>,
) -> Ready {
    let (socket, writable) = socket;
    let wanted = if writable { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
    let watch = |fd: libc::c_int, events| libc::pollfd { fd, events, revents: 0 };
    let mut fds = [
        watch(socket.as_raw_fd(), wanted),
        watch(event.as_raw_fd(), libc::POLLIN),
        // The kernel passes over a descriptor below zero.
        watch(disks.map_or(-1, |disks| disks.fd().as_raw_fd()), libc::POLLIN),
    ];
    let time = time.map(|time| libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(time.subsec_nanos()),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the pointers are to three pollfds and to a timespec (or null), which live through the call; no signal mask.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, std::ptr::null()) };
    if ready > 0 { Ready { socket: fds[0].revents, disks: fds[2].revents } } else { Ready::default() }
}
