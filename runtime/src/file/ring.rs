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
        Ok(Ring {
            ring: RefCell::new(ring),
            entries: wanted as usize,
            asked: RefCell::new(Slab::with_capacity(wanted as usize)),
            unseen: Cell::new(0),
        })
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
