//! A set of offsets, kept as ranges. Scope: values.
//! Invariants: ranges are not empty, do not touch and do not overlap; memory follows their number, not that of offsets.

use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    /// End by start.
    ranges: BTreeMap<u64, u64>,
    len: u64,
}

impl Ranges {
    /// Offsets in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Ranges it takes.
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// The ranges, lowest first, each with its end.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(start, end)| (*start, *end))
    }

    /// The offsets, lowest first.
    pub fn offsets(&self) -> impl Iterator<Item = u64> + '_ {
        self.iter().flat_map(|(start, end)| start..end)
    }

    /// The parts of ranges that lie in `start..end`, lowest first.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.ranges.range(..=start).next_back().map_or(start, |(first, _)| *first);
        let ranges = self.ranges.range(first..end.max(first));
        ranges.map(move |(at, stop)| (start.max(*at), end.min(*stop))).filter(|(at, stop)| at < stop)
    }

    /// Whether an offset is in it.
    pub fn contains(&self, offset: u64) -> bool {
        self.end_of(offset).is_some()
    }

    /// Where the range ends in which an offset is.
    pub fn end_of(&self, offset: u64) -> Option<u64> {
        let (_, end) = self.ranges.range(..=offset).next_back()?;
        (offset < *end).then_some(*end)
    }

    /// Whether another range would be needed for an offset.
    pub fn needs_range(&self, offset: u64) -> bool {
        let before = offset.checked_sub(1).is_some_and(|before| self.contains(before));
        !(before || self.contains(offset) || self.ranges.contains_key(&offset.saturating_add(1)))
    }

    /// Adds `start..end`.
    pub fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        if let Some((before, known_end)) = self.ranges.range(..start).next_back()
            && *known_end >= start
        {
            start = *before;
        }
        while let Some((at, known_end)) = self.ranges.range(start..=end).next_back() {
            let (at, known_end) = (*at, *known_end);
            end = end.max(known_end);
            self.len -= known_end - at;
            self.ranges.remove(&at);
        }
        self.len += end - start;
        self.ranges.insert(start, end);
    }

    /// Removes `start..end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        while let Some((at, known_end)) = self.ranges.range(..end).next_back() {
            let (at, known_end) = (*at, *known_end);
            if known_end <= start {
                return;
            }
            self.ranges.remove(&at);
            self.len -= known_end.min(end) - at.max(start);
            if known_end > end {
                self.ranges.insert(end, known_end);
            }
            if at < start {
                self.ranges.insert(at, start);
                return;
            }
        }
    }

    /// Removes all.
    pub fn clear(&mut self) {
        *self = Ranges::default();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use felix_runtime::sim::SimRng;

    use super::*;

    #[test]
    fn ranges_hold_what_a_set_holds_in_as_few_ranges_as_there_are_runs() {
        let mut rng = SimRng::new(5);
        let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
        for _ in 0..20_000 {
            let start = rng.below(60);
            let end = start + rng.below(8);
            if rng.below(5) < 3 {
                ranges.insert(start, end);
                model.extend(start..end);
            } else {
                ranges.remove(start, end);
                model.retain(|offset| !(start..end).contains(offset));
            }
            assert!(ranges.offsets().eq(model.iter().copied()), "{ranges:?}");
            assert_eq!(ranges.len(), model.len() as u64);
            let runs = model.iter().filter(|offset| **offset == 0 || !model.contains(&(**offset - 1)));
            assert_eq!(ranges.ranges(), runs.count());
            let at = rng.below(70);
            let part: Vec<u64> = ranges.within(at, at + 9).flat_map(|(at, stop)| at..stop).collect();
            assert!(part.into_iter().eq(model.range(at..at + 9).copied()));
            assert_eq!(ranges.contains(at), model.contains(&at));
            let mut more = ranges.clone();
            more.insert(at, at + 1);
            assert_eq!(ranges.needs_range(at), more.ranges() > ranges.ranges());
        }
        ranges.insert(u64::MAX - 1, u64::MAX);
        assert!(!ranges.needs_range(u64::MAX) && ranges.contains(u64::MAX - 1));
    }
}
