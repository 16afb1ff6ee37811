//! Numbers a core counts and another thread reads.
//! Scope: one block per core; the writer stays on the core, readers may be anywhere.
//! Owns: the cells. Invariants: one writer, so adding is a plain load and store; blocks of two cores never share a cache
//! line; a reader sees each number at some recent moment, not all at the same one.
//! Not here: names and labels (whoever exports them), histograms.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::utils::CachePadded;

const PER_LINE: usize = 16;
type Line = CachePadded<[AtomicU64; PER_LINE]>;

#[derive(Debug)]
struct Block {
    lines: Box<[Line]>,
    len: usize,
}

impl Block {
    fn cell(&self, id: usize) -> &AtomicU64 {
        assert!(id < self.len, "counter {id} of {}", self.len);
        &self.lines[id / PER_LINE][id % PER_LINE]
    }
}

/// Makes a block of `len` numbers, all zero, with the handle of its one writer and a first reader.
pub fn counters(len: usize) -> (CounterWriter, CounterReader) {
    let lines = (0..len.div_ceil(PER_LINE)).map(|_| Line::default()).collect();
    let block = Arc::new(Block { lines, len });
    (CounterWriter { block: block.clone(), one_thread: PhantomData }, CounterReader { block })
}

/// The writing side. Not `Sync` and not `Clone`: one thread at a time. An id of `len` or more is a mistake and panics.
#[derive(Debug)]
pub struct CounterWriter {
    block: Arc<Block>,
    one_thread: PhantomData<Cell<()>>,
}

impl CounterWriter {
    /// Adds to a number that only grows; wraps at 2^64.
    pub fn add(&self, id: usize, by: u64) {
        let cell = self.block.cell(id);
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    /// Sets a number that goes up and down.
    pub fn set(&self, id: usize, to: u64) {
        self.block.cell(id).store(to, Ordering::Relaxed);
    }

    pub fn get(&self, id: usize) -> u64 {
        self.block.cell(id).load(Ordering::Relaxed)
    }
}

/// The reading side.
#[derive(Debug, Clone)]
pub struct CounterReader {
    block: Arc<Block>,
}

impl CounterReader {
    /// How many numbers the block has.
    pub fn len(&self) -> usize {
        self.block.len
    }

    pub fn is_empty(&self) -> bool {
        self.block.len == 0
    }

    /// An id of `len` or more is a mistake and panics.
    pub fn get(&self, id: usize) -> u64 {
        self.block.cell(id).load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_on_another_thread_sees_what_was_counted() {
        let (writer, reader) = counters(40);
        let counting = std::thread::spawn(move || {
            for i in 0..1_000 {
                writer.add(39, 2);
                writer.set(0, i);
            }
            writer.get(39)
        });
        assert_eq!(counting.join().expect("the counting thread ends"), 2_000);
        assert_eq!((reader.get(39), reader.get(0), reader.get(20), reader.len()), (2_000, 999, 0, 40));
    }

    #[test]
    #[should_panic(expected = "counter 16 of 16")]
    fn an_id_outside_the_block_is_a_mistake() {
        let (writer, _reader) = counters(16);
        writer.add(16, 1);
    }
}
