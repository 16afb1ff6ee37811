//! Where in a segment an offset is to be looked for. Scope: one per segment that is read or written.
//! Invariants: it is a hint. Whoever uses an entry checks that a batch with that offset or a smaller one begins there, and
//! forgets the index when it does not; an index without entries only makes reads slower.
//! Not here: the walk from the hint to the offset (`walk`).

use felix_wire::id::Offset;

use crate::limits::{BLOCK, INDEX_SPACING};

/// One batch in about [`INDEX_SPACING`] bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// Base offset and byte of a batch, both rising.
    entries: Vec<(u64, u64)>,
}

impl Index {
    /// Takes note of a batch, if it is far enough behind the last one noted. Batches come in order; ones seen before are
    /// passed over, so a second walk over the same bytes changes nothing.
    pub fn note(&mut self, base: Offset, byte: u64) {
        let far = self.entries.last().is_none_or(|(last, at)| base.0 > *last && byte >= at + INDEX_SPACING);
        if far {
            self.entries.push((base.0, byte));
        }
    }

    /// The batch to begin with when `offset` is wanted from a segment whose first batch is at `base`.
    #[must_use]
    pub fn locate(&self, offset: Offset, base: Offset) -> (Offset, u64) {
        let after = self.entries.partition_point(|(at, _)| *at <= offset.0);
        match after.checked_sub(1).and_then(|index| self.entries.get(index)) {
            Some((at, byte)) if *at >= base.0 => (Offset(*at), *byte),
            _ => (base, BLOCK),
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Forgets what is at or behind `offset`.
    pub fn cut(&mut self, offset: Offset) {
        self.entries.retain(|(base, _)| *base < offset.0);
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_looked_for_at_the_last_noted_batch_before_it() {
        let mut index = Index::default();
        assert_eq!(index.locate(Offset(50), Offset(10)), (Offset(10), BLOCK));
        index.note(Offset(10), BLOCK);
        index.note(Offset(20), BLOCK + 100);
        index.note(Offset(30), BLOCK + INDEX_SPACING);
        index.note(Offset(30), BLOCK + INDEX_SPACING);
        assert_eq!(index.len(), 2);
        assert_eq!(index.locate(Offset(29), Offset(10)), (Offset(10), BLOCK));
        assert_eq!(index.locate(Offset(31), Offset(10)), (Offset(30), BLOCK + INDEX_SPACING));
        index.cut(Offset(30));
        assert_eq!(index.locate(Offset(31), Offset(10)), (Offset(10), BLOCK));
    }
}
