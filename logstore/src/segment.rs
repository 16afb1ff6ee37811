//! One file of a log. Scope: values and functions over its bytes.
//! Owns: the layout of a segment's head, the search for a place by offset, the walk over its batches.
//! Invariants: a segment is never smaller than a batch, and no batch spans two; nothing past the end that its successor
//! names is parsed.
//! Not here: who may write into it (`log`), when a file is made, synced or removed (`engine`).

pub mod format;
pub mod index;
pub mod walk;

use crate::limits::{BLOCK, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

/// The size class for a segment that must hold `need` bytes of batches and should not be below `wanted`.
///
/// Sizes are [`SEGMENT_BYTES_MIN`] times a power of two, at most `max`, but never too small for `need`.
#[must_use]
pub fn size_class(wanted: u64, need: u64, max: u64) -> u64 {
    // The head of the segment, and the padding before and behind the batch.
    let floor = need.saturating_add(3 * BLOCK);
    let mut size = SEGMENT_BYTES_MIN;
    while (size < wanted && size * 2 <= max) || (size < floor && size < SEGMENT_BYTES_MAX) {
        size *= 2;
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_up_to_the_largest_and_always_hold_the_batch() {
        assert_eq!(size_class(0, 100, SEGMENT_BYTES_MAX), SEGMENT_BYTES_MIN);
        assert_eq!(size_class(128 << 10, 100, SEGMENT_BYTES_MAX), 128 << 10);
        assert_eq!(size_class(1 << 40, 100, 1 << 20), 1 << 20);
        assert_eq!(size_class(0, 64 << 10, 64 << 10), 128 << 10);
        assert_eq!(size_class(0, 16 << 20, 1 << 20), 32 << 20);
    }
}
