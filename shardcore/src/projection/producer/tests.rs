//! The rules of semantics 2.5 and client-protocol 10.8, one by one; long histories and hostile snapshots beside it.

mod model;
mod snapshot;

use felix_logstore::checksum::Epoch;
use felix_logstore::id::Lineage;
use felix_logstore::record::{BatchHead, Encoder};
use felix_wire::id::Generation;

use super::*;

const SETTLED: Offset = Offset(u64::MAX);

/// A batch of `count` records whose digest follows from producer and sequence.
fn sent(producer: u64, sequence: u64, count: u32) -> Numbered {
    Numbered {
        producer: ProducerId(producer),
        sequence: Sequence(sequence),
        count: NonZeroU32::new(count).unwrap(),
        digest: Digest(producer.rotate_left(32) ^ sequence),
    }
}

/// The same number with other payloads.
fn other(batch: Numbered) -> Numbered {
    Numbered { digest: Digest(!batch.digest.0), ..batch }
}

/// One-record batches of `producer` with the sequences 0 to `count`, at the offsets from `base` on.
fn with_batches(producer: u64, count: u64, base: u64) -> ProducerCore {
    let mut core = ProducerCore::new();
    for sequence in 0..count {
        core.claimed(&sent(producer, sequence, 1), Offset(base + sequence));
    }
    core
}

fn duplicate(base: u64, count: u32, settled: bool) -> Verdict {
    let end = Offset(base + u64::from(count));
    Verdict::Duplicate { base: Offset(base), count: NonZeroU32::new(count).unwrap(), end, settled }
}

#[test]
fn a_machine_goes_to_another_core_with_its_shard() {
    let core = std::thread::spawn(|| with_batches(7, 3, 0)).join().unwrap();
    assert_eq!(core, with_batches(7, 3, 0));
}

#[test]
fn a_re_send_gets_the_offsets_of_the_first_copy_and_is_not_appended() {
    let mut core = ProducerCore::new();
    assert_eq!(core.check(&sent(7, 0, 3), SETTLED), Verdict::Append);
    core.claimed(&sent(7, 0, 3), Offset(100));
    core.claimed(&sent(7, 1, 1), Offset(110));
    assert_eq!(core.check(&sent(7, 0, 3), SETTLED), duplicate(100, 3, true));
    assert_eq!(core.check(&sent(7, 1, 1), SETTLED), duplicate(110, 1, true));
    assert_eq!(core.check(&sent(7, 2, 1), SETTLED), Verdict::Append);
}

#[test]
fn a_re_send_of_a_batch_in_flight_says_that_it_is_not_settled() {
    let mut core = ProducerCore::new();
    core.claimed(&sent(7, 0, 3), Offset(100));
    assert_eq!(core.check(&sent(7, 0, 3), Offset(100)), duplicate(100, 3, false));
    assert_eq!(
        core.check(&sent(7, 0, 3), Offset(102)),
        duplicate(100, 3, false),
        "settled as a whole or not"
    );
    assert_eq!(core.check(&sent(7, 0, 3), Offset(103)), duplicate(100, 3, true));
}

#[test]
fn other_payloads_under_a_used_sequence_are_refused() {
    let core = with_batches(7, 3, 0);
    assert_eq!(core.check(&other(sent(7, 1, 1)), SETTLED), Verdict::Reused);
    assert_eq!(core.check(&sent(7, 1, 2), SETTLED), Verdict::Reused, "another number of records");
}

#[test]
fn a_gap_names_the_sequence_that_is_expected() {
    let core = with_batches(7, 3, 0);
    assert_eq!(core.check(&sent(7, 4, 1), SETTLED), Verdict::Gap { expected: Sequence(3) });
    assert_eq!(core.check(&sent(7, u64::MAX, 1), SETTLED), Verdict::Gap { expected: Sequence(3) });
}

#[test]
fn an_unknown_producer_may_only_begin_at_zero() {
    let core = with_batches(7, 3, 0);
    assert_eq!(core.check(&sent(8, 0, 1), SETTLED), Verdict::Append);
    assert_eq!(core.check(&sent(8, 1, 1), SETTLED), Verdict::Unknown);
}

#[test]
fn the_last_64_batches_are_remembered_and_older_ones_have_expired() {
    let core = with_batches(7, 70, 0);
    assert_eq!(core.check(&sent(7, 5, 1), SETTLED), Verdict::Expired);
    assert_eq!(core.check(&sent(7, 6, 1), SETTLED), duplicate(6, 1, true));
    assert_eq!(core.check(&sent(7, 69, 1), SETTLED), duplicate(69, 1, true));
}

#[test]
fn the_producer_that_appended_least_recently_makes_room() {
    let mut core = ProducerCore::new();
    let most = PRODUCERS_MAX as u64;
    for producer in 0..most {
        core.claimed(&sent(producer, 0, 1), Offset(producer));
    }
    core.claimed(&sent(0, 1, 1), Offset(most));
    core.check(&sent(1, 0, 1), SETTLED);
    core.claimed(&sent(most, 0, 1), Offset(most + 1));
    assert_eq!(core.producers(), PRODUCERS_MAX);
    assert_eq!(core.check(&sent(0, 0, 1), SETTLED), duplicate(0, 1, true), "it appended again");
    assert_eq!(core.check(&sent(1, 1, 1), SETTLED), Verdict::Unknown, "to be asked about is not to append");
    assert_eq!(core.check(&sent(2, 1, 1), SETTLED), Verdict::Append);
}

#[test]
#[should_panic(expected = "only the expected sequence is claimed")]
fn a_claim_that_was_not_to_be_appended_is_our_mistake() {
    with_batches(7, 3, 0).claimed(&sent(7, 2, 1), Offset(3));
}

#[test]
#[should_panic(expected = "batches are claimed in offset order")]
fn a_claim_below_another_is_our_mistake() {
    with_batches(7, 3, 10).claimed(&sent(8, 0, 1), Offset(12));
}

#[test]
fn a_replay_may_begin_in_the_middle_of_a_producers_life() {
    let mut core = ProducerCore::new();
    core.replay(&sent(7, 41, 2), Offset(1_000));
    assert_eq!(core.check(&sent(7, 40, 2), SETTLED), Verdict::Expired);
    assert_eq!(core.check(&sent(7, 41, 2), SETTLED), duplicate(1_000, 2, true));
    assert_eq!(core.check(&sent(7, 42, 2), SETTLED), Verdict::Append);
    core.claimed(&sent(7, 42, 2), Offset(1_002));
    assert_eq!(core.check(&sent(7, 44, 2), SETTLED), Verdict::Gap { expected: Sequence(43) });
}

#[test]
fn a_replay_of_what_is_known_changes_nothing() {
    let mut core = with_batches(7, 70, 0);
    let before = core.clone();
    for sequence in 0..70 {
        core.replay(&sent(7, sequence, 1), Offset(sequence));
    }
    assert_eq!(core, before);
    core.replay(&sent(7, 70, 1), Offset(70));
    assert_ne!(core, before);
}

#[test]
fn a_producer_that_begins_anew_in_the_log_is_believed() {
    let mut core = with_batches(7, 5, 0);
    core.replay(&sent(7, 0, 1), Offset(20));
    assert_eq!(core.check(&sent(7, 0, 1), SETTLED), duplicate(20, 1, true));
    assert_eq!(core.check(&sent(7, 1, 1), SETTLED), Verdict::Append);
    assert_eq!(core.cut(Offset(20)), Cut::Rebuild, "the life before is not back");
}

#[test]
fn numbers_at_the_end_of_their_range_do_no_harm() {
    let mut core = ProducerCore::new();
    core.replay(&sent(7, u64::MAX, 1), Offset(5));
    assert_eq!(core.check(&sent(7, u64::MAX, 1), SETTLED), duplicate(5, 1, true));
    assert_eq!(core.check(&sent(7, 0, 1), SETTLED), Verdict::Expired);
    core.replay(&sent(8, 0, 2), Offset(u64::MAX - 1));
    assert_eq!(core.producers(), 1, "offsets beyond the last are not believed");
    core.replay(&sent(8, 0, 1), Offset(u64::MAX - 1));
    assert_eq!(core.check(&sent(8, 0, 1), SETTLED), duplicate(u64::MAX - 1, 1, true));
}

#[test]
fn a_producer_is_forgotten_with_its_last_record_and_not_before() {
    let mut core = ProducerCore::new();
    core.claimed(&sent(7, 0, 10), Offset(0));
    core.claimed(&sent(7, 1, 10), Offset(10));
    core.claimed(&sent(8, 0, 10), Offset(20));
    core.forget_below(Offset(9));
    assert_eq!(core.check(&sent(7, 0, 10), SETTLED), duplicate(0, 10, true), "one record of it is left");
    core.forget_below(Offset(10));
    assert_eq!(core.check(&sent(7, 0, 10), SETTLED), Verdict::Expired);
    assert_eq!(core.check(&sent(7, 1, 10), SETTLED), duplicate(10, 10, true));
    core.forget_below(Offset(20));
    assert_eq!(core.check(&sent(7, 2, 10), SETTLED), Verdict::Unknown);
    assert_eq!(core.producers(), 1);
    core.forget_below(Offset(30));
    assert_eq!(core, ProducerCore::new());
}

#[test]
fn after_a_cut_the_first_lost_sequence_is_expected_again() {
    let mut core = with_batches(7, 10, 0);
    core.claimed(&sent(8, 0, 5), Offset(10));
    core.claimed(&sent(7, 10, 1), Offset(15));
    assert_eq!(core.cut(Offset(16)), Cut::Exact, "nothing is above it");
    assert_eq!(core.check(&sent(7, 10, 1), SETTLED), duplicate(15, 1, true));
    assert_eq!(core.cut(Offset(12)), Cut::Exact, "in the middle of a batch: it is not there");
    assert_eq!(core.check(&sent(8, 1, 5), SETTLED), Verdict::Unknown);
    assert_eq!(core.check(&sent(7, 10, 1), SETTLED), Verdict::Append);
    assert_eq!(core.cut(Offset(4)), Cut::Exact);
    assert_eq!(core, with_batches(7, 4, 0));
    core.claimed(&sent(7, 4, 2), Offset(4));
    assert_eq!(core.check(&sent(7, 6, 1), SETTLED), Verdict::Gap { expected: Sequence(5) });
}

#[test]
fn a_cut_says_when_it_cannot_bring_back_what_was_pushed_out() {
    let mut core = with_batches(7, 65, 0);
    assert_eq!(core.cut(Offset(65)), Cut::Exact);
    assert_eq!(core.cut(Offset(64)), Cut::Rebuild, "sequence 0 went for sequence 64");
    assert_eq!(core.cut(Offset(60)), Cut::Rebuild);
    core.replay(&sent(7, 0, 1), Offset(60));
    assert_eq!(core.cut(Offset(61)), Cut::Rebuild, "what was pushed out first is still not back");
    let mut core = ProducerCore::new();
    for producer in 0..=PRODUCERS_MAX as u64 {
        core.claimed(&sent(producer, 0, 1), Offset(producer));
    }
    core.claimed(&sent(5, 1, 1), Offset(9_000));
    assert_eq!(core.cut(Offset(9_000)), Cut::Exact);
    assert_eq!(core.cut(Offset(PRODUCERS_MAX as u64)), Cut::Rebuild, "producer 0 went for the last one");
}

#[test]
fn a_batch_of_the_log_is_known_by_its_own_payloads() {
    let payloads: [&[u8]; 3] = [b"felix", b"", b"0123456789"];
    let head = BatchHead {
        kind: BatchKind::Data,
        base: Offset(40),
        count: 3,
        generation: Generation(2),
        lineage: Lineage(3),
        durable_end: Offset(40),
        timestamp_ms: 5,
        producer: Some((ProducerId(u64::MAX), Sequence(9))),
    };
    let batch = |head: BatchHead| {
        let mut encoder = Encoder::new(head, Epoch(4), 15);
        payloads.iter().for_each(|payload| encoder.push(5, payload));
        encoder.finish()
    };
    let (found, base) = Numbered::from_log(&batch(head)).unwrap();
    let count = NonZeroU32::new(3).unwrap();
    let digest = Digest::of(payloads);
    assert_eq!(
        found,
        Numbered { producer: ProducerId(u64::MAX), sequence: Sequence(9), count, digest },
        "as the client's own batch"
    );
    assert_eq!(base, Offset(40));
    let commit = batch(BatchHead { kind: BatchKind::Commit, ..head });
    assert_eq!(Numbered::from_log(&commit), Some((found, base)), "a commit is numbered like records");
    assert_eq!(Numbered::from_log(&batch(BatchHead { producer: None, ..head })), None);
    assert_eq!(Numbered::from_log(&batch(BatchHead { kind: BatchKind::GenerationStart, ..head })), None);
}

#[test]
fn the_digest_is_the_same_for_ever() {
    let none: [&[u8]; 0] = [];
    let long: Vec<u8> = (0..=255).collect();
    let digests = [
        Digest::of(none),
        Digest::of([b""]),
        Digest::of([b"felix".as_slice(), b"log"]),
        Digest::of([long.as_slice(), &long[..100]]),
    ];
    assert_eq!(
        digests.map(|digest| format!("{:016x}", digest.0)),
        ["e18485764ba03644", "181bc27c024d0751", "4b08c09fec657280", "05a9b60d763ce57f"]
    );
}

#[test]
fn the_digest_sees_every_bit_and_where_payloads_begin() {
    let bytes: Vec<u8> = (1..68).map(|i: u8| i.wrapping_mul(37)).collect();
    let whole = Digest::of([&bytes]);
    let mut seen = vec![whole, Digest::of([bytes.as_slice(), b""]), Digest::of([b"".as_slice(), &bytes])];
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        seen.push(Digest::of([&flipped]));
    }
    for at in 1..bytes.len() {
        seen.push(Digest::of([&bytes[..at], &bytes[at..]]));
        seen.push(Digest::of([&bytes[..at]]));
    }
    for zeros in 0..40 {
        seen.push(Digest::of([vec![0; zeros]]));
        seen.push(Digest::of(vec![b""; zeros + 2]));
    }
    let mut unique: Vec<u64> = seen.iter().map(|digest| digest.0).collect();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), seen.len());
}

#[test]
fn own_ids_are_told_from_those_of_other_processes() {
    let own = OwnIds::new(11, 3);
    for core in 0..3 {
        let mut ids = ProducerIds::new(11, CoreId(core));
        assert!((0..2_000).all(|_| own.has(ids.take())), "core {core}");
    }
    let mut others = [ProducerIds::new(12, CoreId(0)), ProducerIds::new(11, CoreId(3))];
    assert!(others.iter_mut().all(|ids| (0..2_000).all(|_| !own.has(ids.take()))));
    assert!([0, 1, 7, u64::MAX].into_iter().all(|id| !own.has(ProducerId(id))));
    for word in [0, 1, 7, 1 << 63, 0x1234_5678_9abc_def0, u64::MAX] {
        assert_eq!(unmix(mix(word)), word);
    }
}
