//! The bell of a core: other threads ring it, the core's one wait hears it.
//! Scope: one per core (or per waiting task), cloned to everybody who may have something for it.
//! Owns: one flag, and the two ways to wake whoever waits for it: an event descriptor for a thread that sleeps in the
//! kernel, a registered waker for a task of an executor.
//! Invariants: a ring is never lost: it ends the wait in progress or the next one. Many rings before a wait are one.
//! Nobody pays for a system call unless the woken thread sleeps.
//! Not here: what the ring is about; the woken side looks at its mailboxes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Context;

use crossbeam::utils::CachePadded;
use futures::task::AtomicWaker;

/// Cheap to clone; all clones ring the same bell.
#[derive(Debug, Clone, Default)]
pub struct CoreWaker {
    bell: Arc<CachePadded<Bell>>,
}

#[derive(Debug, Default)]
struct Bell {
    rung: AtomicBool,
    /// The thread sleeps on `event`, or is about to.
    asleep: AtomicBool,
    event: OnceLock<File>,
    task: AtomicWaker,
}

impl CoreWaker {
    pub fn new() -> CoreWaker {
        CoreWaker::default()
    }

    /// Ends the wait in progress, or the next one. From any thread; put the message where it belongs first.
    pub fn wake(&self) {
        // Whoever set the flag wakes the sleeper; until the woken side takes the flag there is nothing to add.
        if self.bell.rung.swap(true, Ordering::SeqCst) {
            return;
        }
        if self.bell.asleep.load(Ordering::SeqCst)
            && let Some(mut event) = self.bell.event.get()
        {
            // Fails only when the counter is full: then the sleeper has enough to wake up for.
            let _ = event.write(&1u64.to_ne_bytes());
        }
        self.bell.task.wake();
    }

    /// Whether it was rung since the last time this was asked. Look at the mailboxes after, not before.
    pub(crate) fn take(&self) -> bool {
        self.bell.rung.load(Ordering::Relaxed) && self.bell.rung.swap(false, Ordering::SeqCst)
    }

    /// Registers the task that the next ring wakes, in place of the one before. Ask [`CoreWaker::take`] afterwards: a
    /// ring may have come just before.
    pub(crate) fn register(&self, context: &Context<'_>) {
        self.bell.task.register(context.waker());
    }

    /// Makes [`CoreWaker::sleep`] possible.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub(crate) fn open_event(&self) -> io::Result<()> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor; nobody else has it.
        let event = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        // A bell that has one keeps it.
        let _ = self.bell.event.set(event);
        Ok(())
    }

    /// Calls `block`, which may sleep for as long as it likes provided that it returns when the descriptor it is given
    /// becomes readable: that is what a ring does. Not called when there was a ring already.
    ///
    /// # Panics
    /// Without [`CoreWaker::open_event`] before.
    pub(crate) fn sleep(&self, block: impl FnOnce(BorrowedFd<'_>)) {
        let mut event = self.bell.event.get().expect("a core opens its event before it sleeps");
        // Either the ringing side sees `asleep` and writes the event, or we see its flag: both are sequentially consistent.
        self.bell.asleep.store(true, Ordering::SeqCst);
        if !self.bell.rung.load(Ordering::SeqCst) {
            block(event.as_fd());
            // Empties the counter; when there is nothing in it that is an error and means nothing.
            let _ = event.read(&mut [0u8; 8]);
        }
        self.bell.asleep.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::task::Poll;
    use std::thread;

    use futures::executor::block_on;
    use futures::future::poll_fn;

    use super::*;

    async fn rung(waker: &CoreWaker) {
        poll_fn(|context| {
            waker.register(context);
            if waker.take() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Sleeps until rung; false after a minute.
    fn sleep_until_rung(waker: &CoreWaker) -> bool {
        for _ in 0..60 {
            if waker.take() {
                return true;
            }
            waker.sleep(|event| {
                let mut fd = libc::pollfd {
                    fd: std::os::fd::AsRawFd::as_raw_fd(&event),
                    events: libc::POLLIN,
                    revents: 0,
                };
                // SAFETY: the pointer is to one pollfd that lives through the call.
                unsafe { libc::poll(&raw mut fd, 1, 1_000) };
            });
        }
        waker.take()
    }

    /// Rings `PER_THREAD` times from each of three threads while `wait` waits as often as it needs to see all.
    fn ring_from_three_threads(waker: &CoreWaker, mut wait: impl FnMut(&CoreWaker)) {
        const PER_THREAD: u64 = 30_000;
        let made = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (waker, made) = (waker.clone(), made.clone());
                thread::spawn(move || {
                    for _ in 0..PER_THREAD {
                        made.fetch_add(1, Ordering::Release);
                        waker.wake();
                    }
                })
            })
            .collect();
        // Each wait ends only because a ring arrived: one that was lost at the end would show.
        while made.load(Ordering::Acquire) < 3 * PER_THREAD {
            wait(waker);
        }
        for thread in threads {
            thread.join().expect("the ringing thread ends");
        }
    }

    #[test]
    fn a_ring_before_the_wait_ends_it_and_many_are_one() {
        let waker = CoreWaker::new();
        waker.wake();
        waker.clone().wake();
        block_on(rung(&waker));
        assert!(!waker.take());
        waker.open_event().expect("a descriptor");
        waker.wake();
        waker.sleep(|_| panic!("there was a ring already"));
        assert!(waker.take() && !waker.take());
    }

    #[test]
    fn no_ring_to_a_waiting_task_is_lost() {
        ring_from_three_threads(&CoreWaker::new(), |waker| block_on(rung(waker)));
    }

    #[test]
    fn no_ring_to_a_sleeping_thread_is_lost() {
        let waker = CoreWaker::new();
        waker.open_event().expect("a descriptor");
        ring_from_three_threads(&waker, |waker| assert!(sleep_until_rung(waker), "a ring was lost"));
    }
}
