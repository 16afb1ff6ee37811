//! Memory for direct I/O: aligned, whole blocks, and never more than a bound. Scope: one pool per core.
//! Owns: the count of bytes that buffers and reads hold, and memory that was given back, to be used again.
//! Invariants: bytes held, as they were asked for, never exceed the bound (their memory is in powers of two: at most twice
//! that), and memory kept for later is at most the bound again; a buffer shows only bytes that were put into it; what is
//! shared with an operation in flight cannot be changed any more.
//! Not here: who waits when the pool is empty.

use std::alloc::{self, Layout};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

/// Places and lengths of reads and writes are multiples of this many bytes, and so is the alignment of buffers.
pub const BLOCK_BYTES: usize = 4096;
/// Pieces of memory have `BLOCK_BYTES << class` bytes; larger ones are not kept.
const CLASSES: usize = 14;

/// The pool has not enough left. Nothing was taken; ask again after buffers were dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{wanted_bytes} bytes of disk buffers wanted, {left_bytes} of {bound_bytes} left")]
pub struct PoolEmpty {
    pub wanted_bytes: usize,
    pub left_bytes: usize,
    pub bound_bytes: usize,
}

/// Where buffers come from, and the count of what they hold. Clones share the count.
///
/// Shared by reference count and not passed by `&mut`, because buffers give their bytes back when the last user drops
/// them, which may be an operation that ends much later.
#[derive(Clone)]
pub struct BufPool {
    shared: Rc<Shared>,
}

/// Changed through shared references, because every buffer gives back to it; all of them are on the core's thread.
struct Shared {
    bound_bytes: usize,
    used_bytes: Cell<usize>,
    kept: RefCell<Kept>,
}

/// Memory that was given back, by class.
#[derive(Default)]
struct Kept {
    pieces: [Vec<NonNull<u8>>; CLASSES],
    bytes: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (class, pieces) in self.pieces.iter().enumerate() {
            for piece in pieces {
                // SAFETY: what is kept was allocated with the layout of its class, and nobody else has it.
                unsafe { alloc::dealloc(piece.as_ptr(), layout_of(BLOCK_BYTES << class)) };
            }
        }
    }
}

/// Bytes of a pool, given back on drop.
struct Lease {
    shared: Rc<Shared>,
    bytes: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let used = self.shared.used_bytes.get();
        debug_assert!(used >= self.bytes, "a pool gets back what it gave");
        self.shared.used_bytes.set(used - self.bytes);
    }
}

/// The memory of a lease: at least as many bytes, aligned.
struct Piece {
    memory: NonNull<u8>,
    lease: Lease,
}

/// The class of pieces of at least `bytes`, if it has one, and how large its pieces are.
fn class_of(bytes: usize) -> (Option<usize>, usize) {
    let blocks = bytes.div_ceil(BLOCK_BYTES).max(1);
    let class = blocks.next_power_of_two().trailing_zeros() as usize;
    if class < CLASSES { (Some(class), BLOCK_BYTES << class) } else { (None, blocks * BLOCK_BYTES) }
}

fn layout_of(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, BLOCK_BYTES).expect("a pool's bound is below the largest layout")
}

impl Piece {
    fn new(lease: Lease) -> Piece {
        let (class, bytes) = class_of(lease.bytes);
        let mut kept = lease.shared.kept.borrow_mut();
        let again = class.and_then(|class| kept.pieces[class].pop());
        let memory = again.inspect(|_| kept.bytes -= bytes).unwrap_or_else(|| {
            // SAFETY: the layout is of at least one block.
            let fresh = unsafe { alloc::alloc(layout_of(bytes)) };
            NonNull::new(fresh).unwrap_or_else(|| alloc::handle_alloc_error(layout_of(bytes)))
        });
        drop(kept);
        Piece { memory, lease }
    }

    /// The first `len` bytes.
    ///
    /// # Safety
    /// They were written.
    unsafe fn first(&self, len: usize) -> &[u8] {
        // SAFETY: the caller says that they were written, and the lease is at least that long.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), len) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let (class, bytes) = class_of(self.lease.bytes);
        let shared = &self.lease.shared;
        let mut kept = shared.kept.borrow_mut();
        if let Some(class) = class
            && kept.bytes + bytes <= shared.bound_bytes
        {
            kept.bytes += bytes;
            kept.pieces[class].push(self.memory);
            return;
        }
        // SAFETY: it was allocated with this layout, and nobody else has it.
        unsafe { alloc::dealloc(self.memory.as_ptr(), layout_of(bytes)) };
    }
}

impl BufPool {
    pub fn new(bound_bytes: usize) -> BufPool {
        let (used_bytes, kept) = (Cell::new(0), RefCell::default());
        BufPool { shared: Rc::new(Shared { bound_bytes, used_bytes, kept }) }
    }

    pub fn bound_bytes(&self) -> usize {
        self.shared.bound_bytes
    }

    pub fn used_bytes(&self) -> usize {
        self.shared.used_bytes.get()
    }

    fn lease(&self, wanted_bytes: usize) -> Result<Lease, PoolEmpty> {
        let Shared { bound_bytes, ref used_bytes, .. } = *self.shared;
        let left_bytes = bound_bytes - used_bytes.get();
        if wanted_bytes > left_bytes {
            return Err(PoolEmpty { wanted_bytes, left_bytes, bound_bytes });
        }
        used_bytes.set(used_bytes.get() + wanted_bytes);
        Ok(Lease { shared: self.shared.clone(), bytes: wanted_bytes })
    }

    /// An empty buffer for up to `capacity_bytes`, rounded up to whole blocks (at least one).
    ///
    /// # Errors
    /// `PoolEmpty`, for ever when the bound is below that.
    pub fn take(&self, capacity_bytes: usize) -> Result<AlignedBuf, PoolEmpty> {
        let capacity = capacity_bytes.max(1).checked_next_multiple_of(BLOCK_BYTES).unwrap_or(usize::MAX);
        Ok(AlignedBuf { piece: Piece::new(self.lease(capacity)?), len: 0 })
    }

    /// Room for a read of up to `bytes`, rounded up to whole blocks (at least one).
    ///
    /// # Errors
    /// As [`BufPool::take`].
    pub fn read_room(&self, bytes: usize) -> Result<ReadRoom, PoolEmpty> {
        let bytes = bytes.max(1).checked_next_multiple_of(BLOCK_BYTES).unwrap_or(usize::MAX);
        Ok(ReadRoom { lease: self.lease(bytes)? })
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufPool({} of {} bytes)", self.used_bytes(), self.bound_bytes())
    }
}

/// A buffer that is being filled. It has one owner.
pub struct AlignedBuf {
    piece: Piece,
    /// Bytes put into it so far; the memory behind them is not initialised.
    len: usize,
}

impl AlignedBuf {
    /// Bytes it can hold, a multiple of the block.
    pub fn capacity(&self) -> usize {
        self.piece.lease.bytes
    }

    /// Bytes it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes it can still take.
    pub fn left(&self) -> usize {
        self.capacity() - self.len
    }

    /// Appends `bytes`.
    ///
    /// # Panics
    /// When they are more than [`AlignedBuf::left`].
    pub fn push(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.left(), "{} bytes into {} left", bytes.len(), self.left());
        // SAFETY: the memory has room for them behind `len`, and nobody else can see it.
        unsafe {
            let to = self.piece.memory.as_ptr().add(self.len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        self.len += bytes.len();
    }

    /// Appends `count` zeros and shows them, to be filled in.
    ///
    /// # Panics
    /// When they are more than [`AlignedBuf::left`].
    pub fn push_zeros(&mut self, count: usize) -> &mut [u8] {
        assert!(count <= self.left(), "{count} bytes into {} left", self.left());
        let from = self.len;
        // SAFETY: as in `push`.
        unsafe { std::ptr::write_bytes(self.piece.memory.as_ptr().add(from), 0, count) };
        self.len += count;
        &mut self.as_mut_slice()[from..]
    }

    /// Appends zeros up to the end of the block. Nothing when it holds whole blocks already.
    pub fn pad_to_block(&mut self) {
        let padded = self.len.next_multiple_of(BLOCK_BYTES);
        self.push_zeros(padded - self.len);
    }

    /// Forgets everything behind the first `len` bytes; nothing when it does not hold more.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the first `len` bytes were written.
        unsafe { self.piece.first(self.len) }
    }

    /// What it holds, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the first `len` bytes were written, and the borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.piece.memory.as_ptr(), self.len) }
    }

    /// Pads it to whole blocks and makes it ready to be written and read at the same time. The pool keeps counting all of
    /// its capacity until the last clone is gone.
    pub fn freeze(mut self) -> SharedBuf {
        self.pad_to_block();
        SharedBuf { piece: Rc::new(self.piece), len: self.len }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} of {} bytes)", self.len, self.capacity())
    }
}

/// A filled buffer: whole blocks that do not change any more. Clones are the same memory.
#[derive(Clone)]
pub struct SharedBuf {
    piece: Rc<Piece>,
    len: usize,
}

impl Deref for SharedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the first `len` bytes were written before it was frozen.
        unsafe { self.piece.first(self.len) }
    }
}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuf({} bytes)", self.len())
    }
}

/// Bytes of the pool set aside for a read: whole blocks, at least one. The memory itself comes when the read begins.
pub struct ReadRoom {
    lease: Lease,
}

impl ReadRoom {
    pub fn bytes(&self) -> usize {
        self.lease.bytes
    }

    /// The memory, for the kernel to fill.
    pub(super) fn into_memory(self) -> Filling {
        Filling { piece: Piece::new(self.lease) }
    }

    /// Joins it with `bytes`, at most [`ReadRoom::bytes`].
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn filled_by(self, bytes: &[u8]) -> ReadBuf {
        assert!(bytes.len() <= self.bytes(), "a read stays within its room");
        let filling = self.into_memory();
        // SAFETY: the memory has room for them, and nobody else has it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), filling.as_mut_ptr(), bytes.len());
            filling.filled(bytes.len())
        }
    }
}

impl fmt::Debug for ReadRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadRoom({} bytes)", self.bytes())
    }
}

/// Memory that the kernel reads into; nobody looks at it meanwhile.
pub(super) struct Filling {
    piece: Piece,
}

impl Filling {
    pub fn len(&self) -> usize {
        self.piece.lease.bytes
    }

    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.piece.memory.as_ptr()
    }

    /// What is there now.
    ///
    /// # Safety
    /// The first `len` bytes were written, and nobody writes to them any more.
    pub unsafe fn filled(self, len: usize) -> ReadBuf {
        ReadBuf { len: len.min(self.len()), piece: Rc::new(self.piece) }
    }
}

impl fmt::Debug for Filling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filling({} bytes)", self.len())
    }
}

/// What a read brought. Clones are the same memory, which the pool counts until the last is gone.
#[derive(Clone)]
pub struct ReadBuf {
    piece: Rc<Piece>,
    len: usize,
}

impl Deref for ReadBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the first `len` bytes were read.
        unsafe { self.piece.first(self.len) }
    }
}

impl fmt::Debug for ReadBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadBuf({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_never_gives_more_than_its_bound_and_takes_back_what_is_dropped() {
        let pool = BufPool::new(3 * BLOCK_BYTES);
        let one = pool.take(1).expect("a block");
        let room = pool.read_room(BLOCK_BYTES + 1).expect("two blocks");
        assert_eq!((one.capacity(), room.bytes()), (BLOCK_BYTES, 2 * BLOCK_BYTES));
        let refused = PoolEmpty { wanted_bytes: BLOCK_BYTES, left_bytes: 0, bound_bytes: 3 * BLOCK_BYTES };
        assert_eq!(pool.take(1).expect_err("nothing left"), refused);
        assert_eq!(pool.read_room(0).expect_err("nothing left"), refused);
        let shared = one.freeze();
        let clone = shared.clone();
        drop(shared);
        assert_eq!(pool.used_bytes(), 3 * BLOCK_BYTES);
        drop(clone);
        let read = room.filled_by(&[7; 10]);
        let clone = read.clone();
        drop(read);
        assert_eq!((pool.used_bytes(), &clone[..]), (2 * BLOCK_BYTES, &[7u8; 10][..]));
        drop(clone);
        assert_eq!(pool.used_bytes(), 0);
        assert!(pool.take(usize::MAX).is_err());
    }

    #[test]
    fn a_buffer_is_aligned_and_shows_only_what_was_put_in() {
        let pool = BufPool::new(1 << 20);
        let mut buf = pool.take(2 * BLOCK_BYTES).expect("room");
        assert_eq!(buf.as_slice().as_ptr().addr() % BLOCK_BYTES, 0);
        assert!(buf.is_empty());
        buf.push(b"head");
        buf.push_zeros(4).copy_from_slice(b"body");
        buf.as_mut_slice()[0] = b'H';
        assert_eq!(buf.as_slice(), b"Headbody");
        buf.truncate(4);
        buf.push(&[1; BLOCK_BYTES]);
        let shared = buf.freeze();
        assert_eq!(shared.len(), 2 * BLOCK_BYTES);
        assert_eq!(&shared[..4], b"Head");
        assert!(shared[4..][..BLOCK_BYTES].iter().all(|byte| *byte == 1));
        assert!(shared[4 + BLOCK_BYTES..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn memory_is_used_again_and_kept_up_to_the_bound() {
        let pool = BufPool::new(16 * BLOCK_BYTES);
        let kept = |pool: &BufPool| pool.shared.kept.borrow().bytes / BLOCK_BYTES;
        let first = pool.take(3 * BLOCK_BYTES).expect("room");
        let place = first.as_slice().as_ptr();
        drop(first);
        assert_eq!(kept(&pool), 4, "a power of two");
        assert_eq!(pool.take(4 * BLOCK_BYTES).expect("room").as_slice().as_ptr(), place);
        let many: Vec<_> = (0..16).map(|_| pool.take(1).expect("room")).collect();
        drop(many);
        assert_eq!(kept(&pool), 16, "the rest went back");
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    #[should_panic(expected = "bytes into")]
    fn a_full_buffer_takes_nothing_more() {
        let mut buf = BufPool::new(1 << 20).take(1).expect("room");
        buf.push(&[0; BLOCK_BYTES]);
        buf.push(&[0]);
    }
}
