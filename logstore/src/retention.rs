//! Which sealed segments may go. Scope: a pure decision over their ends.
//! Invariants: only whole segments, oldest first, wholly below the bound the caller names; the newest one stays.
//! Not here: the order of making the new start durable and removing files (`engine`).

use felix_wire::id::Offset;

use crate::segment::format::SegmentEnd;

/// Bounds of one log. A bound that is not there does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// Bytes of batches kept at least.
    pub bytes: Option<u64>,
    /// Milliseconds for which a record is kept at least.
    pub age_ms: Option<u64>,
}

/// Of sealed segments, oldest first, with `active_bytes` in the open one: the new start offset, if one should move.
///
/// Nothing at or above `below` goes. A segment without records goes with the one before it.
#[must_use]
pub fn new_start(
    sealed: &[SegmentEnd],
    active_bytes: u64,
    retention: Retention,
    now_ms: u64,
    below: Offset,
) -> Option<Offset> {
    let mut kept: u64 = active_bytes + sealed.iter().map(|end| end.byte).sum::<u64>();
    let mut start = None;
    for end in sealed {
        let too_many = retention.bytes.is_some_and(|bytes| kept - end.byte >= bytes);
        let too_old = retention.age_ms.is_some_and(|age| end.newest_ms.saturating_add(age) < now_ms);
        if end.offset > below || !(too_many || too_old) {
            break;
        }
        kept -= end.byte;
        start = Some(end.offset);
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::SegmentSeq;

    fn ends() -> Vec<SegmentEnd> {
        let end = |seq: u64| SegmentEnd {
            segment: SegmentSeq(seq),
            offset: Offset(seq * 10),
            byte: 100,
            newest_ms: seq * 1_000,
            checksum: 0,
        };
        (1..=4).map(end).collect()
    }

    #[test]
    fn whole_segments_go_oldest_first_and_only_as_many_as_are_too_many_or_too_old() {
        let all = Offset(u64::MAX);
        let by_size = |bytes| Retention { bytes: Some(bytes), age_ms: None };
        let by_age = |age| Retention { bytes: None, age_ms: Some(age) };
        assert_eq!(new_start(&ends(), 50, Retention::default(), 1 << 40, all), None);
        assert_eq!(new_start(&ends(), 50, by_size(250), 0, all), Some(Offset(20)));
        assert_eq!(new_start(&ends(), 50, by_size(251), 0, all), Some(Offset(10)));
        assert_eq!(new_start(&ends(), 50, by_size(0), 0, all), Some(Offset(40)));
        assert_eq!(new_start(&ends(), 50, by_age(1_500), 4_000, all), Some(Offset(20)));
    }

    #[test]
    fn nothing_at_or_above_the_bound_goes() {
        let none = Retention { bytes: Some(0), age_ms: Some(0) };
        assert_eq!(new_start(&ends(), 0, none, u64::MAX, Offset(25)), Some(Offset(20)));
        assert_eq!(new_start(&ends(), 0, none, u64::MAX, Offset(9)), None);
    }
}
