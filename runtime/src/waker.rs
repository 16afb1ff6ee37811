//! The bell of a core: other threads ring it, the core's one wait hears it.
//! Scope: one per core (or per waiting task), cloned to everybody who may have something for it.
//! Owns: one flag and the registration of one waiting task.
//! Invariants: a ring is never lost: it ends the wait in progress or the next one. Many rings before a wait are one.
//! Not here: what the ring is about; the woken side looks at its mailboxes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    task: AtomicWaker,
}

impl CoreWaker {
    pub fn new() -> CoreWaker {
        CoreWaker::default()
    }

    /// Ends the wait in progress, or the next one. From any thread; put the message where it belongs first.
    pub fn wake(&self) {
        // Whoever set the flag wakes the task; until the woken side takes the flag there is nothing to add.
        if !self.bell.rung.swap(true, Ordering::AcqRel) {
            self.bell.task.wake();
        }
    }

    /// Whether it was rung since the last time this was asked. Look at the mailboxes after, not before.
    pub(crate) fn take(&self) -> bool {
        self.bell.rung.load(Ordering::Relaxed) && self.bell.rung.swap(false, Ordering::AcqRel)
    }

    /// Registers the task that the next ring wakes, in place of the one before. Ask [`CoreWaker::take`] afterwards: a
    /// ring may have come just before.
    pub(crate) fn register(&self, context: &Context<'_>) {
        self.bell.task.register(context.waker());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::task::Poll;

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

    #[test]
    fn a_ring_before_the_wait_ends_it_and_many_are_one() {
        let waker = CoreWaker::new();
        waker.wake();
        waker.clone().wake();
        block_on(rung(&waker));
        assert!(!waker.take());
    }

    #[test]
    fn no_ring_of_many_threads_is_lost() {
        const PER_THREAD: u64 = 50_000;
        let waker = CoreWaker::new();
        let made = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (waker, made) = (waker.clone(), made.clone());
                std::thread::spawn(move || {
                    for _ in 0..PER_THREAD {
                        made.fetch_add(1, Ordering::Release);
                        waker.wake();
                    }
                })
            })
            .collect();
        // Every wait below ends only because a ring arrived; a lost last ring would leave it waiting for ever.
        while made.load(Ordering::Acquire) < 3 * PER_THREAD {
            block_on(rung(&waker));
        }
        for thread in threads {
            thread.join().expect("the ringing thread ends");
        }
        assert_eq!(made.load(Ordering::Acquire), 3 * PER_THREAD);
    }
}
