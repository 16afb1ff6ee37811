//! Memory for direct I/O: aligned, whole blocks, and never more than a bound. Scope: one pool per core.
//! Owns: the count of bytes that buffers and reads hold; the memory itself comes from the executor's registered memory
//! (which is heap memory once that is used up) or from the heap.
//! Invariants: bytes held never exceed the bound; a buffer shows only bytes that were put into it; what is shared with
//! an operation in flight cannot be changed any more.
//! Not here: who waits when the pool is empty.

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

use glommio::io::{DmaBuffer, ReadResult};

/// Places and lengths of reads and writes are multiples of this many bytes, and so is the alignment of buffers.
pub const BLOCK_BYTES: usize = 4096;

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
    count: Rc<Count>,
}

struct Count {
    bound_bytes: usize,
    used_bytes: Cell<usize>,
    source: Source,
}

#[derive(Clone, Copy)]
enum Source {
    Heap,
    Executor,
}

/// Bytes of a pool, given back on drop.
struct Lease {
    count: Rc<Count>,
    bytes: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let used = self.count.used_bytes.get();
        debug_assert!(used >= self.bytes, "a pool gets back what it gave");
        self.count.used_bytes.set(used - self.bytes);
    }
}

impl BufPool {
    /// A pool whose buffers are heap memory: for simulations, and for anything outside of a core.
    pub fn heap(bound_bytes: usize) -> BufPool {
        BufPool::new(bound_bytes, Source::Heap)
    }

    /// A pool whose buffers are memory that the kernel already knows, as long as there is some; see
    /// [`BufPool::io_memory_bytes`]. To be made and used by a core's task.
    pub fn of_core(bound_bytes: usize) -> BufPool {
        BufPool::new(bound_bytes, Source::Executor)
    }

    fn new(bound_bytes: usize, source: Source) -> BufPool {
        BufPool { count: Rc::new(Count { bound_bytes, used_bytes: Cell::new(0), source }) }
    }

    /// The registered memory a core should get ([`crate::executor::CoreSpec::io_memory_bytes`]) for a pool of this bound:
    /// twice as much, because pieces are handed out in powers of two.
    pub const fn io_memory_bytes(bound_bytes: usize) -> usize {
        let twice = bound_bytes.saturating_mul(2);
        let least = 1 << 20;
        (if twice < least { least } else { twice }).next_multiple_of(BLOCK_BYTES)
    }

    pub fn bound_bytes(&self) -> usize {
        self.count.bound_bytes
    }

    pub fn used_bytes(&self) -> usize {
        self.count.used_bytes.get()
    }

    fn lease(&self, wanted_bytes: usize) -> Result<Lease, PoolEmpty> {
        let Count { bound_bytes, ref used_bytes, .. } = *self.count;
        let left_bytes = bound_bytes - used_bytes.get();
        if wanted_bytes > left_bytes {
            return Err(PoolEmpty { wanted_bytes, left_bytes, bound_bytes });
        }
        used_bytes.set(used_bytes.get() + wanted_bytes);
        Ok(Lease { count: self.count.clone(), bytes: wanted_bytes })
    }

    /// An empty buffer for up to `capacity_bytes`, rounded up to whole blocks (at least one).
    ///
    /// # Errors
    /// `PoolEmpty`, for ever when the bound is below that.
    pub fn take(&self, capacity_bytes: usize) -> Result<AlignedBuf, PoolEmpty> {
        let capacity = capacity_bytes.max(1).checked_next_multiple_of(BLOCK_BYTES).unwrap_or(usize::MAX);
        let lease = self.lease(capacity)?;
        let memory = match self.count.source {
            Source::Heap => glommio::allocate_dma_buffer_global(capacity),
            Source::Executor => glommio::allocate_dma_buffer(capacity),
        };
        Ok(AlignedBuf { memory, len: 0, lease })
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
    memory: DmaBuffer,
    /// Bytes put into it so far; the memory behind them is not initialised.
    len: usize,
    lease: Lease,
}

impl AlignedBuf {
    /// Bytes it can hold, a multiple of the block.
    pub fn capacity(&self) -> usize {
        self.memory.len()
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
            let to = self.memory.as_mut_ptr().add(self.len);
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
        unsafe { std::ptr::write_bytes(self.memory.as_mut_ptr().add(from), 0, count) };
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
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }

    /// What it holds, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the first `len` bytes were written, and the borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr(), self.len) }
    }

    /// Pads it to whole blocks and makes it ready to be written and read at the same time. The pool keeps counting all of
    /// its capacity until the last clone is gone.
    pub fn freeze(mut self) -> SharedBuf {
        self.pad_to_block();
        let AlignedBuf { mut memory, len, lease } = self;
        memory.trim_to_size(len);
        SharedBuf { memory: Rc::new(memory), _lease: Rc::new(lease) }
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
    memory: Rc<DmaBuffer>,
    _lease: Rc<Lease>,
}

impl SharedBuf {
    /// The memory in the form in which the ring takes it. No copy.
    pub(super) fn ring_memory(&self) -> Rc<DmaBuffer> {
        self.memory.clone()
    }
}

impl Deref for SharedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_bytes()
    }
}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuf({} bytes)", self.len())
    }
}

/// Bytes of the pool set aside for a read: whole blocks, at least one. The memory itself comes with the answer.
pub struct ReadRoom {
    lease: Lease,
}

impl ReadRoom {
    pub fn bytes(&self) -> usize {
        self.lease.bytes
    }

    /// Joins it with what the ring read, which was at most [`ReadRoom::bytes`].
    pub(super) fn filled_by_ring(self, read: ReadResult) -> ReadBuf {
        ReadBuf { bytes: Bytes::Ring(read), _lease: Rc::new(self.lease) }
    }

    /// Joins it with `bytes`, at most [`ReadRoom::bytes`].
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn filled_by(self, bytes: Vec<u8>) -> ReadBuf {
        assert!(bytes.len() <= self.bytes(), "a read stays within its room");
        ReadBuf { bytes: Bytes::Heap(Rc::from(bytes)), _lease: Rc::new(self.lease) }
    }
}

impl fmt::Debug for ReadRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadRoom({} bytes)", self.bytes())
    }
}

/// What a read brought. Clones are the same memory, which the pool counts until the last is gone.
#[derive(Clone)]
pub struct ReadBuf {
    bytes: Bytes,
    _lease: Rc<Lease>,
}

#[derive(Clone)]
enum Bytes {
    Ring(ReadResult),
    #[cfg(any(test, feature = "sim"))]
    Heap(Rc<[u8]>),
}

impl Deref for ReadBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Ring(read) => read,
            #[cfg(any(test, feature = "sim"))]
            Bytes::Heap(bytes) => bytes,
        }
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
        let pool = BufPool::heap(3 * BLOCK_BYTES);
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
        let read = room.filled_by(vec![7; 10]);
        let clone = read.clone();
        drop(read);
        assert_eq!((pool.used_bytes(), &clone[..]), (2 * BLOCK_BYTES, &[7u8; 10][..]));
        drop(clone);
        assert_eq!(pool.used_bytes(), 0);
        assert!(pool.take(usize::MAX).is_err());
    }

    #[test]
    fn a_buffer_is_aligned_and_shows_only_what_was_put_in() {
        let pool = BufPool::heap(1 << 20);
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
    #[should_panic(expected = "bytes into")]
    fn a_full_buffer_takes_nothing_more() {
        let mut buf = BufPool::heap(1 << 20).take(1).expect("room");
        buf.push(&[0; BLOCK_BYTES]);
        buf.push(&[0]);
    }
}
