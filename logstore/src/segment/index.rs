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
    /// Takes note of a batch, if it is far enough from those noted before and behind it. Ones seen before are passed over, so
    /// a second walk over the same bytes changes nothing.
    pub fn note(&mut self, base: Offset, byte: u64) {
        let at = self.entries.partition_point(|(noted, _)| *noted < base.0);
        let before = at.checked_sub(1).and_then(|before| self.entries.get(before));
        let far_before = before.is_none_or(|(_, noted)| byte >= noted + INDEX_SPACING);
        let far_behind = self.entries.get(at).is_none_or(|(_, noted)| *noted >= byte + INDEX_SPACING);
        if far_before && far_behind {
            self.entries.insert(at, (base.0, byte));
        }
    }

    /// Byte of the first batch noted that begins behind `offset`.
    #[must_use]
    pub fn behind(&self, offset: Offset) -> Option<u64> {
        let at = self.entries.partition_point(|(noted, _)| *noted <= offset.0);
        self.entries.get(at).map(|(_, byte)| *byte)
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
        // One found far behind, and one between that came later.
        index.note(Offset(90), BLOCK + 9 * INDEX_SPACING);
        index.note(Offset(60), BLOCK + 5 * INDEX_SPACING);
        index.note(Offset(61), BLOCK + 5 * INDEX_SPACING + 8);
        assert_eq!(index.len(), 4);
        assert_eq!(index.locate(Offset(70), Offset(10)), (Offset(60), BLOCK + 5 * INDEX_SPACING));
        assert_eq!(index.behind(Offset(60)), Some(BLOCK + 9 * INDEX_SPACING));
        assert_eq!(index.behind(Offset(90)), None);
        index.cut(Offset(30));
        assert_eq!(index.locate(Offset(31), Offset(10)), (Offset(10), BLOCK));
    }
}
