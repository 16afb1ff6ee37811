//! What a core asks of its disks: operations as values, answered later under a token.
//! Scope: one disk per core; files, buffers and answers stay on the core's thread.
//! Owns: the vocabulary ([`Op`], [`Done`], [`DiskError`]), aligned memory with a bound ([`BufPool`]), and the real maker
//! [`Files`]. The simulated makers are in `sim`.
//! Invariants: every operation that was taken is answered exactly once; operations in flight have no order among
//! themselves, so whoever needs one waits for the answer before it asks for the next; places and lengths of reads and
//! writes are whole blocks.
//! Not here: what is in a file, when to sync it, what a failure means for what was promised to a client.

mod buffer;
mod carry;
mod error;
mod files;
mod op;
mod path;
pub(crate) mod ring;
mod threads;
mod volume;
#[cfg(debug_assertions)]
mod watch;

pub use buffer::{AlignedBuf, BLOCK_BYTES, BufPool, PoolEmpty, ReadBuf, ReadRoom, SharedBuf};
pub use error::DiskError;
pub use files::{Files, FilesSettings};
pub use op::{Done, Entry, EntryKind, FileId, LockKind, Op, OpenFlags, OpenMode, Outcome, Space, Token};
pub use path::{BadPath, DiskPath, VolumeId};
pub use volume::VolumeError;

/// Takes operations and answers them later.
///
/// Its makers: [`Files`] on the machine's disks, `sim::SimDisk` in memory with faults, `sim::TraceDisk` around either.
pub trait Disk {
    /// Starts an operation; its answer comes out of [`Disk::poll_done`] under `token`. Tokens are the caller's to choose
    /// and to tell apart.
    ///
    /// # Errors
    /// `Full` gives the operation back untouched when as many as allowed are in flight: ask again after an answer.
    fn submit(&mut self, token: Token, op: Op) -> Result<(), Full>;

    /// The next answer that is there, in the order in which operations finished.
    fn poll_done(&mut self) -> Option<Done>;

    /// Operations without an answer, those included whose answer nobody has taken yet.
    fn in_flight(&self) -> usize;
}

/// An operation that was not started.
#[derive(Debug)]
pub struct Full {
    pub token: Token,
    pub op: Op,
}
