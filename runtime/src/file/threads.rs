//! Threads for what the ring does not do: names, directories, lengths, locks. Scope: a few per core that has files.
//! Owns: the threads, the jobs that wait for one, the answers nobody has taken.
//! Invariants: a job is answered once; an answer rings the core's bell; threads are started when there is work for
//! them and never more than [`THREADS_MAX`]; they run on the processors of the process and not on that of the core.
//! Not here: what a job does (`carry`).
//!
//! Several, because a directory that is made durable waits for the file system, which makes all that wait durable at once.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use crossbeam::channel::{self, Receiver, Sender};

use crate::waker::CoreWaker;

const THREADS_MAX: usize = 4;

type Job<A> = Box<dyn FnOnce() -> A + Send>;

/// See the module. `A` is an answer.
pub(super) struct Threads<A> {
    jobs: Sender<Job<A>>,
    waiting: Receiver<Job<A>>,
    answer: Sender<thread::Result<A>>,
    answers: Receiver<thread::Result<A>>,
    bell: CoreWaker,
    started: usize,
    /// Jobs whose answer nobody has taken.
    busy: usize,
}

impl<A: Send + 'static> Threads<A> {
    /// No threads yet. Answers ring `bell`.
    pub fn new(bell: CoreWaker) -> Threads<A> {
        // Both hold what the caller has in flight at most, which it bounds (`FilesSettings::ops_max`).
        let (jobs, waiting) = channel::unbounded();
        let (answer, answers) = channel::unbounded();
        Threads { jobs, waiting, answer, answers, bell, started: 0, busy: 0 }
    }

    /// Has `job` done. The caller bounds how many it has done at once.
    ///
    /// # Errors
    /// When there is no thread and none can be started.
    pub fn start(&mut self, job: impl FnOnce() -> A + Send + 'static) -> io::Result<()> {
        if self.busy >= self.started
            && self.started < THREADS_MAX
            && let Err(error) = self.start_thread()
            && self.started == 0
        {
            return Err(error);
        }
        self.busy += 1;
        self.jobs.send(Box::new(job)).expect("this side keeps a receiver");
        Ok(())
    }

    fn start_thread(&mut self) -> io::Result<()> {
        let (waiting, answer, bell) = (self.waiting.clone(), self.answer.clone(), self.bell.clone());
        thread::Builder::new().name("felix-files".to_owned()).spawn(move || {
            leave_the_cores_processor();
            for job in waiting {
                let done = panic::catch_unwind(AssertUnwindSafe(job));
                if answer.send(done).is_err() {
                    return;
                }
                bell.wake();
            }
        })?;
        self.started += 1;
        Ok(())
    }

    /// The next answer that is there. A job that panicked does so here.
    pub fn next(&mut self) -> Option<A> {
        let answer = self.answers.try_recv().ok()?;
        Some(self.taken(answer))
    }

    /// Waits for the next answer. None when there is nothing to wait for.
    pub fn wait(&mut self) -> Option<A> {
        if self.busy == 0 {
            return None;
        }
        let answer = self.answers.recv().ok()?;
        Some(self.taken(answer))
    }

    fn taken(&mut self, answer: thread::Result<A>) -> A {
        self.busy -= 1;
        answer.unwrap_or_else(|panic| panic::resume_unwind(panic))
    }
}

/// A thread begins where the one that started it may run, which for a pinned core is one processor.
fn leave_the_cores_processor() {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: all bits zero is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a set of that size. The first thread of a process has the number of the process.
    let read = unsafe { libc::sched_getaffinity(libc::getpid(), size, &raw mut set) };
    if read == 0 {
        // SAFETY: as before. Staying where it is does no harm.
        unsafe { libc::sched_setaffinity(0, size, &raw const set) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_that_wait_for_each_other_run_at_once_and_a_panic_reaches_the_caller() {
        let mut pool = Threads::new(CoreWaker::new());
        let (go, went) = mpsc::channel();
        pool.start(move || went.recv().expect("sent")).expect("a thread");
        pool.start(move || {
            go.send(5).expect("waited for");
            6
        })
        .expect("a thread");
        let mut both = [pool.wait(), pool.wait()];
        both.sort_unstable();
        assert_eq!(both, [Some(5), Some(6)]);
        for _ in 0..20 {
            pool.start(|| 7).expect("a thread");
        }
        assert_eq!(pool.started, THREADS_MAX);
        assert!((0..20).all(|_| pool.wait() == Some(7)) && pool.wait().is_none());
        pool.start(|| panic!("of the job")).expect("a thread");
        let panicked = panic::catch_unwind(AssertUnwindSafe(|| pool.wait()));
        assert!(panicked.is_err());
    }
}
