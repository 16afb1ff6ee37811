//! Slots and rounds come back as they were written, and nothing else is taken for one.

use felix_wire::id::{CoreId, Incarnation, Offset};

use super::*;
use crate::checksum::Epoch;
use crate::id::{Fsync, Lineage, Place, RoundNumber, Run, SegmentSeq, ShardKey};
use crate::limits::BLOCK;

const EPOCH: Epoch = Epoch(77);
const KEY: ShardKey = ShardKey { name: 5, incarnation: Incarnation(1) };

fn round() -> Round {
    Round {
        number: RoundNumber(41),
        live_from: RoundNumber(7),
        clean: true,
        prior: vec![Prior { key: KEY, lineage: Lineage(2), end: Offset(100) }],
        marks: vec![Mark {
            kind: MarkKind::Truncated,
            key: KEY,
            lineage: Lineage(3),
            lineage_base: Offset(90),
            start: Offset(10),
            end: Offset(90),
            ceiling: Offset(65_536),
            place: Place { segment: SegmentSeq(4), byte: 8_192 },
            newest_ms: 1_234,
            checksum: 99,
            policy: Fsync::None,
            next: Offset(95),
        }],
        pieces: vec![PieceHead {
            key: KEY,
            lineage: Lineage(3),
            place: Place { segment: SegmentSeq(5), byte: 4_096 },
            epoch: Epoch(6),
            base: Offset(90),
            end: Offset(91),
            len: 104,
        }],
    }
}

fn bytes() -> Vec<u8> {
    let mut bytes = round().encode_meta(EPOCH);
    bytes.resize(round().total_len(), 0xaa);
    bytes
}

#[test]
fn a_round_comes_back_as_it_was_written() {
    let found = round::decode(&bytes(), EPOCH).expect("a round");
    assert_eq!(found.round, round());
    assert_eq!((found.meta_len, found.total_len), (round().meta_len(), BLOCK as usize));
    assert_eq!(round::decode(&bytes(), Epoch(78)), Err(RoundFault::NotARound));
}

#[test]
fn every_flipped_bit_and_every_truncation_of_a_round_is_seen() {
    let good = bytes();
    for bit in 0..round().meta_len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(round::decode(&bad, EPOCH).is_err(), "bit {bit}");
    }
    for len in 0..good.len() {
        assert!(round::decode(&good[..len], EPOCH).is_err(), "{len} bytes");
    }
}

fn slot() -> SlotHead {
    SlotHead {
        epoch: EPOCH,
        run: Run(3),
        boot: [9; 16],
        core: CoreId(2),
        number: 12,
        size_bytes: 1 << 20,
        first_round: 40,
    }
}

#[test]
fn one_damaged_copy_of_a_slot_head_is_made_good_by_the_other() {
    let good = slot().encode();
    assert_eq!(good.len(), 2 * BLOCK as usize);
    for bit in 0..slot::SLOT_HEAD_BYTES * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(SlotHead::decode(&bad), Ok(slot()), "bit {bit}");
        bad[BLOCK as usize + bit / 8] ^= 1 << (bit % 8);
        assert!(SlotHead::decode(&bad).is_err(), "bit {bit} of both");
    }
    for len in 0..good.len() {
        assert!(
            SlotHead::decode(&good[..len]).is_ok_and(|head| head == slot()) || len < BLOCK as usize + 128
        );
    }
}

#[test]
fn an_unused_slot_is_not_damage() {
    assert_eq!(SlotHead::decode(&vec![0; 2 * BLOCK as usize]), Err(SlotFault::NotASlot));
}
