//! A head comes back as it was written, and nothing else is taken for one.
#![allow(clippy::indexing_slicing)]

use super::*;

fn head() -> SegmentHead {
    SegmentHead {
        key: ShardKey { name: 7 << 100, incarnation: Incarnation(3) },
        seq: SegmentSeq(9),
        epoch: Epoch(0xfeed),
        base: Offset(1_000),
        lineage: Lineage(4),
        lineage_base: Offset(900),
        size_bytes: 1 << 20,
        ceiling: Offset(65_536),
        policy: Fsync::Periodic,
        before: Some(SegmentEnd {
            segment: SegmentSeq(8),
            offset: Offset(1_000),
            byte: 70_000,
            newest_ms: 5,
            checksum: 0xabcd,
        }),
    }
}

#[test]
fn a_head_comes_back_as_it_was_written() {
    assert_eq!(SegmentHead::decode(&head().encode()), Ok(head()));
    let first = SegmentHead { before: None, ..head() };
    assert_eq!(SegmentHead::decode(&first.encode()), Ok(first));
}

#[test]
fn every_flipped_bit_and_every_truncation_of_a_head_is_seen() {
    let good = head().encode();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(SegmentHead::decode(&bad).is_err(), "bit {bit}");
    }
    for len in 0..good.len() {
        assert!(SegmentHead::decode(&good[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn a_later_version_is_named() {
    let mut bytes = head().encode();
    bytes[8] = 9;
    assert_eq!(SegmentHead::decode(&bytes), Err(SegmentFault::Version(9)));
}
