//! The ring of one core: where the kernel takes writes, reads and syncs from, and where it leaves what became of them.
//! Scope: one per core, used on its thread only.
//! Owns: the ring, the memory of every operation that the kernel has, the numbers under which it has them.
//! Invariants: memory that was given to the kernel stays where it is until the kernel has answered, also when the ring is
//! dropped before; entries never outnumber the ring's, so no answer is ever put aside; nothing is handed over but by
//! [`Ring::hand_over`].
//! Not here: what an operation means, when to look.
//!
//! The kernel finishes an operation when the core is in the kernel anyway, or asks; it does not interrupt the core for it.
//! An interrupt from another processor costs more than all the rest of a completion. It does wake a core that sleeps, on
//! the ring's descriptor. (Leaving everything to a call of ours, "deferred", does not wake it there.)

use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};
use slab::Slab;

use super::SharedBuf;
use super::buffer::Filling;

/// What the kernel is to do.
#[derive(Debug)]
pub(super) enum Work {
    Write { file: Arc<File>, at: u64, data: SharedBuf },
    Read { file: Arc<File>, at: u64, into: Filling },
    Sync { file: Arc<File> },
}

/// Work that the kernel has finished, and what it said: bytes, or the negative number of an error.
#[derive(Debug)]
pub(super) struct Finished<T> {
    pub note: T,
    pub work: Work,
    pub result: i32,
}

/// What a wait has to know of a ring.
pub(crate) trait Answering {
    /// Whether something can be taken, or the kernel is still to be told something. No system call.
    fn has_answers(&self) -> bool;
    /// Readable when something can be taken.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Whether the kernel has work.
    fn is_busy(&self) -> bool;
}

/// See the module. `T` is what the caller wants back with the answer.
///
/// Changed through shared references: the core's wait looks at the ring that its files ask, both on one thread and never at
/// the same time.
pub(super) struct Ring<T> {
    ring: RefCell<IoUring>,
    entries: usize,
    /// Work that was asked and not answered, under the number the kernel gives back.
    asked: RefCell<Slab<(T, Work)>>,
    /// Entries the kernel does not know yet.
    unseen: Cell<usize>,
}

impl<T> Ring<T> {
    /// A ring for up to `entries` operations at once.
    ///
    /// # Errors
    /// What the kernel says: no rings at all, no descriptor, no memory.
    pub fn open(entries: usize) -> io::Result<Ring<T>> {
        let wanted = u32::try_from(entries.max(1)).unwrap_or(u32::MAX);
        // Linux 5.19 and later; without it the core is interrupted for every completion.
        let mut cooperative = IoUring::builder();
        cooperative.setup_coop_taskrun().setup_taskrun_flag();
        let ring = cooperative.build(wanted).or_else(|_| IoUring::builder().build(wanted))?;
        Ok(Ring::over(ring, wanted as usize))
    }

    fn over(ring: IoUring, entries: usize) -> Ring<T> {
        Ring {
            ring: RefCell::new(ring),
            entries,
            asked: RefCell::new(Slab::with_capacity(entries)),
            unseen: Cell::new(0),
        }
    }

    /// Puts `work` in line. The kernel learns of it by [`Ring::hand_over`].
    ///
    /// # Panics
    /// When there are as many in the ring as it was made for.
    pub fn ask(&self, note: T, work: Work) {
        let mut asked = self.asked.borrow_mut();
        assert!(asked.len() < self.entries, "a ring of {} entries takes no more", self.entries);
        let entry = entry(&work);
        let number = asked.insert((note, work));
        let mut ring = self.ring.borrow_mut();
        // SAFETY: what the entry points to is held in `asked` until the kernel has answered, and never moves: it is
        // heap memory and an open descriptor.
        let pushed = unsafe { ring.submission().push(&entry.user_data(number as u64)) };
        assert!(pushed.is_ok(), "the ring has an entry for everything that is asked");
        self.unseen.set(self.unseen.get() + 1);
    }

    /// Tells the kernel what was asked, and lets it finish what is as good as done. Nothing when there is nothing to tell
    /// or to take. What the kernel does not take now it is told the next time.
    pub fn hand_over(&self) {
        let mut ring = self.ring.borrow_mut();
        if self.unseen.get() == 0 && !ring.submission().taskrun() {
            return;
        }
        match ring.submit_and_wait(0) {
            Ok(taken) => self.unseen.set(self.unseen.get().saturating_sub(taken)),
            // Interrupted, or short of memory: the entries stay in line.
            Err(error) => tracing::debug!(%error, "the ring took nothing"),
        }
    }

    /// Tells the kernel what was asked and waits until it has finished something. Not when it has nothing to do.
    pub fn wait(&self) {
        let ring = self.ring.borrow();
        match ring.submit_and_wait(1) {
            Ok(taken) => self.unseen.set(self.unseen.get().saturating_sub(taken)),
            Err(error) => tracing::debug!(%error, "the ring was not waited for"),
        }
    }

    /// The next answer that is there.
    pub fn next(&self) -> Option<Finished<T>> {
        let mut ring = self.ring.borrow_mut();
        let found = ring.completion().next();
        let found = match found {
            Some(found) => found,
            None if ring.submission().taskrun() => {
                drop(ring);
                self.hand_over();
                ring = self.ring.borrow_mut();
                ring.completion().next()?
            }
            None => return None,
        };
        let number = usize::try_from(found.user_data()).unwrap_or(usize::MAX);
        let (note, work) = self.asked.borrow_mut().try_remove(number)?;
        Some(Finished { note, work, result: found.result() })
    }
}

impl<T> Answering for Ring<T> {
    fn has_answers(&self) -> bool {
        let mut ring = self.ring.borrow_mut();
        self.unseen.get() > 0 || !ring.completion().is_empty() || ring.submission().taskrun()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        let fd = self.ring.borrow().as_raw_fd();
        // SAFETY: the ring lives as long as `self` and keeps its descriptor.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    fn is_busy(&self) -> bool {
        !self.asked.borrow().is_empty()
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // Nobody waits for the kernel here, and it may still read and write this memory.
        std::mem::take(self.asked.get_mut()).into_iter().for_each(std::mem::forget);
    }
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} asked, {} unseen)", self.asked.borrow().len(), self.unseen.get())
    }
}

fn entry(work: &Work) -> squeue::Entry {
    let fd = |file: &Arc<File>| types::Fd(file.as_raw_fd());
    match work {
        Work::Write { file, at, data } => {
            let len = u32::try_from(data.len()).expect("a buffer of the pool is below 4 GiB");
            opcode::Write::new(fd(file), data.as_ptr(), len).offset(*at).build()
        }
        Work::Read { file, at, into } => {
            let len = u32::try_from(into.len()).expect("a buffer of the pool is below 4 GiB");
            opcode::Read::new(fd(file), into.as_mut_ptr(), len).offset(*at).build()
        }
        Work::Sync { file } => opcode::Fsync::new(fd(file)).flags(types::FsyncFlags::DATASYNC).build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{BLOCK_BYTES, BufPool};

    const ENTRIES: usize = 8;

    /// A file without a name.
    fn file() -> Arc<File> {
        let name = format!("felix-ring-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        std::fs::remove_file(path).expect("it is there");
        Arc::new(file)
    }

    fn pattern(pool: &BufPool, fill: u8) -> SharedBuf {
        let mut buf = pool.take(BLOCK_BYTES).expect("room");
        buf.push_zeros(BLOCK_BYTES).fill(fill);
        buf.freeze()
    }

    /// Sleeps as a core does until everything asked is answered; gives it by note.
    fn answers(ring: &Ring<usize>) -> Vec<Finished<usize>> {
        let mut all = Vec::new();
        while ring.is_busy() {
            ring.hand_over();
            if !ring.has_answers() {
                let mut fd = libc::pollfd { fd: ring.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: the pointer is to one pollfd that lives through the call.
                let ready = unsafe { libc::poll(&raw mut fd, 1, 10_000) };
                assert!(ready == 1 && ring.has_answers(), "{ring:?}: nothing came");
            }
            all.extend(std::iter::from_fn(|| ring.next()));
        }
        all.sort_by_key(|finished| finished.note);
        all
    }

    fn everything_is_answered_once(ring: &Ring<usize>) {
        let (file, pool) = (file(), BufPool::new(2 * ENTRIES * BLOCK_BYTES));
        let at = |note: usize| (note * BLOCK_BYTES) as u64;
        for round in 0..20 {
            for note in 0..ENTRIES {
                let data = pattern(&pool, (round + note) as u8);
                ring.ask(note, Work::Write { file: file.clone(), at: at(note), data });
            }
            assert!(answers(ring).iter().map(|a| (a.note, a.result)).eq((0..ENTRIES).map(|n| (n, 4096))));
            (0..ENTRIES).for_each(|note| ring.ask(note, Work::Sync { file: file.clone() }));
            assert!(answers(ring).iter().map(|a| (a.note, a.result)).eq((0..ENTRIES).map(|n| (n, 0))));
            for note in 0..ENTRIES {
                let into = pool.read_room(BLOCK_BYTES).expect("room").into_memory();
                ring.ask(note, Work::Read { file: file.clone(), at: at(note), into });
            }
            for Finished { note, work, result } in answers(ring) {
                let Work::Read { into, .. } = work else { panic!("{work:?}") };
                assert_eq!(result, 4096);
                // SAFETY: the kernel has written so many bytes.
                let read = unsafe { into.filled(result as usize) };
                assert_eq!(&read[..], [(round + note) as u8; BLOCK_BYTES]);
            }
        }
        assert!(!ring.has_answers() && ring.next().is_none());
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn a_ring_as_full_as_it_may_be_answers_everything_and_wakes_who_polls_it() {
        everything_is_answered_once(&Ring::open(ENTRIES).expect("a ring"));
    }

    #[test]
    fn so_does_one_of_a_kernel_that_cannot_leave_the_core_alone() {
        everything_is_answered_once(&Ring::over(IoUring::new(ENTRIES as u32).expect("a ring"), ENTRIES));
    }

    #[test]
    fn a_ring_that_is_dropped_keeps_the_memory_that_the_kernel_has() {
        let (file, pool) = (file(), BufPool::new(ENTRIES * BLOCK_BYTES));
        let ring = Ring::open(ENTRIES).expect("a ring");
        ring.ask(1, Work::Write { file, at: 0, data: pattern(&pool, 1) });
        ring.hand_over();
        drop(ring);
        assert_eq!(pool.used_bytes(), BLOCK_BYTES);
    }
}
