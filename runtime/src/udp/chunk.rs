//! Memory datagrams are received into.
//! Scope: one per core. Owns: the chunk being filled and the filled ones that others still hold pieces of.
//! Invariants: at most `pinned_bytes` of chunks exist, at least one; a chunk is filled again only when nobody else
//! holds a piece of it; chunks are kept, so the heap never hands their pages back and faults them in anew.
//! Not here: system calls.

use std::collections::VecDeque;

use bytes::BytesMut;

/// One receive chunk: four full GRO buffers. A piece of it that is kept keeps all of it.
pub const RECV_CHUNK_BYTES: usize = 256 * 1024;
/// Receive memory of a core that datagrams kept by others may hold before they are copied instead.
pub const DEFAULT_PINNED_BYTES: usize = 64 * 1024 * 1024;
/// The most one `recvmsg` can return.
pub(super) const RECV_ROOM_BYTES: usize = 65_536;
/// Filled chunks looked at for each fresh one, so that one old piece does not hide the free ones behind it.
const LOOKED_AT: usize = 8;

const _: () = assert!(RECV_CHUNK_BYTES >= RECV_ROOM_BYTES);

pub(super) struct Chunks {
    current: BytesMut,
    /// Empty handles at the end of filled chunks: they tell when the rest of the chunk has been dropped.
    filled: VecDeque<BytesMut>,
    /// Used while every chunk is held; empty until then.
    scratch: BytesMut,
    max: usize,
}

impl Chunks {
    pub(super) fn new(pinned_bytes: usize) -> Chunks {
        let max = (pinned_bytes / RECV_CHUNK_BYTES).max(1);
        Chunks {
            current: BytesMut::with_capacity(RECV_CHUNK_BYTES),
            filled: VecDeque::new(),
            scratch: BytesMut::new(),
            max,
        }
    }

    /// Starts the current chunk over when nobody holds a piece of it: the same memory stays in the cache.
    pub(super) fn rewind(&mut self) {
        let _ = self.current.try_reclaim(RECV_CHUNK_BYTES);
    }

    /// An empty buffer with room for one full receive. When `copy` is set every chunk is held by others: the buffer is
    /// scratch memory and what is received must be copied out of it.
    pub(super) fn room(&mut self) -> Room<'_> {
        if self.find_room() {
            return Room { buffer: &mut self.current, copy: false };
        }
        self.scratch.clear();
        self.scratch.reserve(RECV_ROOM_BYTES);
        Room { buffer: &mut self.scratch, copy: true }
    }

    fn find_room(&mut self) -> bool {
        if self.current.capacity() >= RECV_ROOM_BYTES || self.current.try_reclaim(RECV_CHUNK_BYTES) {
            return true;
        }
        for _ in 0..self.filled.len().min(LOOKED_AT) {
            let Some(mut old) = self.filled.pop_front() else { break };
            let free = old.try_reclaim(RECV_CHUNK_BYTES);
            let back = if free { std::mem::replace(&mut self.current, old) } else { old };
            self.filled.push_back(back);
            if free {
                return true;
            }
        }
        if self.filled.len() + 1 < self.max {
            let fresh = BytesMut::with_capacity(RECV_CHUNK_BYTES);
            self.filled.push_back(std::mem::replace(&mut self.current, fresh));
            return true;
        }
        false
    }
}

pub(super) struct Room<'a> {
    pub(super) buffer: &'a mut BytesMut,
    pub(super) copy: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(chunks: &mut Chunks, len: usize) -> Option<BytesMut> {
        let Room { buffer, copy } = chunks.room();
        assert!(buffer.is_empty() && buffer.capacity() >= RECV_ROOM_BYTES);
        if copy {
            return None;
        }
        buffer.resize(len, 7);
        Some(buffer.split_to(len))
    }

    #[test]
    fn a_chunk_nobody_holds_is_used_again() {
        let mut chunks = Chunks::new(DEFAULT_PINNED_BYTES);
        let first = fill(&mut chunks, 60_000).expect("room").as_ptr();
        for _ in 0..100 {
            chunks.rewind();
            assert_eq!(fill(&mut chunks, 60_000).expect("room").as_ptr(), first);
        }
    }

    #[test]
    fn a_held_piece_is_never_overwritten() {
        let mut chunks = Chunks::new(4 * RECV_CHUNK_BYTES);
        let mut held = Vec::new();
        for i in 0..1000 {
            chunks.rewind();
            if let Some(mut piece) = fill(&mut chunks, 50_000) {
                let mark = (i % 251) as u8;
                piece.fill(mark);
                held.push((mark, piece));
            }
            if i % 7 == 0 && !held.is_empty() {
                held.swap_remove(i % held.len());
            }
            assert!(held.iter().all(|(mark, piece)| piece.iter().all(|b| b == mark)));
        }
    }

    #[test]
    fn more_than_the_budget_is_never_held() {
        let mut chunks = Chunks::new(3 * RECV_CHUNK_BYTES);
        let mut held = Vec::new();
        while let Some(piece) = fill(&mut chunks, 65_536) {
            held.push(piece);
            assert!(held.len() <= 12, "3 chunks hold 12 receives");
        }
        assert_eq!(held.len(), 12);
        held.clear();
        assert!(fill(&mut chunks, 65_536).is_some(), "dropped pieces make room again");
    }

    #[test]
    fn one_old_piece_does_not_stop_the_others_from_coming_back() {
        let mut chunks = Chunks::new(3 * RECV_CHUNK_BYTES);
        let old = fill(&mut chunks, 65_536);
        for _ in 0..100 {
            assert!(fill(&mut chunks, 65_536).is_some());
        }
        assert!(old.is_some());
    }
}
