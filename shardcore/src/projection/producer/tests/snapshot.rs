//! Snapshots: every truncation, hostile bytes, what is refused. `FELIX_SNAPSHOT_INPUTS` says how many mutated inputs;
//! `SEED` begins elsewhere.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

fn encoded(core: &ProducerCore, at: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    core.encode(Offset(at), &mut bytes);
    bytes
}

/// Puts the checksum right, so that what is behind it is looked at.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(covered) = bytes.len().checked_sub(4) {
        let checksum = felix_logstore::checksum::extend(0, &bytes[..covered]);
        bytes[covered..].copy_from_slice(&checksum.to_le_bytes());
    }
    bytes
}

/// A few producers with lives of different lengths.
fn some_producers() -> ProducerCore {
    let mut core = ProducerCore::new();
    let mut base = 0;
    for round in 0..70 {
        for (producer, rounds) in [(u64::MAX, 70), (3, 1), (9, 5), (1 << 40, 64)] {
            if round < rounds {
                core.claimed(&sent(producer, round, 2), Offset(base));
                base += 3;
            }
        }
    }
    core
}

#[test]
fn a_snapshot_gives_back_what_was_saved() {
    for core in [ProducerCore::new(), with_batches(7, 1, 0), some_producers()] {
        let at = core.end().0 + 5;
        let (back, saved_at) = ProducerCore::decode(&encoded(&core, at)).unwrap();
        assert_eq!((back, saved_at), (core, Offset(at)));
    }
}

#[test]
fn a_snapshot_is_added_behind_what_is_there() {
    let mut bytes = b"before".to_vec();
    some_producers().encode(Offset(1_000), &mut bytes);
    assert_eq!(bytes, [b"before".to_vec(), encoded(&some_producers(), 1_000)].concat());
}

#[test]
fn the_largest_snapshot_is_taken_back() {
    let mut core = ProducerCore::new();
    let producers = PRODUCERS_MAX as u64;
    for sequence in 0..BATCHES_PER_PRODUCER_MAX as u64 {
        for producer in 0..producers {
            core.claimed(&sent(producer, sequence, 1), Offset(sequence * producers + producer));
        }
    }
    let bytes = encoded(&core, core.end().0);
    assert_eq!(bytes.len(), 28 + 4_096 * (20 + 64 * 20) + 4);
    assert_eq!(ProducerCore::decode(&bytes).unwrap().0, core);
}

#[test]
fn the_layout_of_version_1_is_kept() {
    let mut core = ProducerCore::new();
    let count = NonZeroU32::new(3).unwrap();
    core.claimed(
        &Numbered { producer: ProducerId(0x0102), sequence: Sequence(0), count, digest: Digest(0x0a0b) },
        Offset(0x10),
    );
    let fields: [&[u8]; 12] = [
        b"FLXP",
        &[1, 0, 0, 0],
        &[0x20, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0],
        &[1, 0, 0, 0],
        &[0; 4],
        &[2, 1, 0, 0, 0, 0, 0, 0],
        &[0; 8],
        &[1, 0, 0, 0],
        &[0x10, 0, 0, 0, 0, 0, 0, 0],
        &[0x0b, 0x0a, 0, 0, 0, 0, 0, 0],
        &[3, 0, 0, 0],
    ];
    let bytes = sealed([fields.concat(), vec![0; 4]].concat());
    assert_eq!(encoded(&core, 0x20), bytes);
    assert_eq!(ProducerCore::decode(&bytes), Ok((core, Offset(0x20))));
}

#[test]
#[should_panic(expected = "a snapshot holds all that was claimed")]
fn a_snapshot_of_less_than_was_claimed_is_our_mistake() {
    encoded(&with_batches(7, 3, 0), 2);
}

#[test]
fn after_a_snapshot_a_cut_below_it_needs_a_rebuild() {
    let core = with_batches(7, 3, 0);
    let (mut back, _) = ProducerCore::decode(&encoded(&core, 10)).unwrap();
    assert_eq!(back.clone().cut(Offset(10)), Cut::Exact);
    assert_eq!(back.cut(Offset(9)), Cut::Rebuild);
}

#[test]
fn every_truncation_and_every_flipped_bit_is_refused() {
    let bytes = encoded(&some_producers(), 1_000);
    for len in 0..bytes.len() {
        assert!(ProducerCore::decode(&bytes[..len]).is_err(), "cut to {len} bytes");
    }
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(ProducerCore::decode(&flipped).is_err(), "bit {bit}");
    }
    let longer = sealed([bytes, vec![0; 20]].concat());
    assert_eq!(ProducerCore::decode(&longer), Err(SnapshotError::Malformed("length")));
}

#[test]
fn a_refusal_says_what_is_wrong() {
    let good = encoded(&some_producers(), 1_000);
    let with = |at: usize, field: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + field.len()].copy_from_slice(field);
        ProducerCore::decode(&sealed(bytes)).unwrap_err()
    };
    // Producer 3 is the first and has one batch, 9 follows with five.
    let (first, batch, second) = (28, 48, 68);
    assert_eq!(with(0, b"FLXR"), SnapshotError::NotASnapshot);
    assert_eq!(with(4, &[2]), SnapshotError::Version(2));
    assert_eq!(with(8, &[1; 2]), SnapshotError::Malformed("offsets of a batch"), "an offset below batches");
    assert_eq!(with(16, &5_000_u32.to_le_bytes()), SnapshotError::Malformed("head"));
    assert_eq!(with(20, &[0xff; 4]), SnapshotError::Malformed("length"));
    assert_eq!(with(24, &[1]), SnapshotError::Malformed("head"));
    assert_eq!(with(first, &[9]), SnapshotError::Malformed("order of the producers"));
    assert_eq!(with(first + 16, &[0]), SnapshotError::Malformed("sequences of a producer"));
    assert_eq!(with(first + 16, &[65]), SnapshotError::Malformed("batches of a producer"));
    assert_eq!(with(batch + 16, &[0]), SnapshotError::Malformed("a batch without records"));
    assert_eq!(with(batch, &[0xff; 8]), SnapshotError::Malformed("offsets of a batch"));
    assert_eq!(with(second + 8, &[3]), SnapshotError::Malformed("sequences of a producer"), "below 0");
    assert_eq!(with(second + 20, &[0xff]), SnapshotError::Malformed("offsets of a batch"), "falling");
    let mut broken = good.clone();
    broken[60] ^= 1;
    assert_eq!(ProducerCore::decode(&broken), Err(SnapshotError::Checksum));
}

#[test]
fn newest_batches_that_share_offsets_are_refused() {
    let at = |core: &ProducerCore, base: u64| {
        let mut bytes = encoded(core, 1_000);
        // The only batch of the second producer.
        bytes[28 + 40 + 20..][..8].copy_from_slice(&base.to_le_bytes());
        ProducerCore::decode(&sealed(bytes)).map(|_| ())
    };
    let mut core = ProducerCore::new();
    core.claimed(&sent(1, 0, 10), Offset(0));
    core.claimed(&sent(2, 0, 10), Offset(10));
    assert_eq!(at(&core, 10), Ok(()));
    assert_eq!(at(&core, 9), Err(SnapshotError::Malformed("newest batches overlap")));
    assert_eq!(at(&core, 0), Err(SnapshotError::Malformed("two batches at one offset")));
}

/// Does to a machine from hostile bytes what a shard may do to any.
fn work(mut core: ProducerCore, at: Offset, rng: &mut StdRng) {
    for producer in [3, 9, 1 << 40, u64::MAX, rng.random()] {
        for sequence in [0, 1, 63, 69, 70, u64::MAX, rng.random()] {
            let batch = sent(producer, sequence, 2);
            if core.check(&batch, at) == Verdict::Append && at.0 < u64::MAX / 2 {
                let base = core.end().max(at);
                core.claimed(&batch, base);
                assert!(matches!(core.check(&batch, base), Verdict::Duplicate { settled: false, .. }));
            }
            core.replay(&sent(producer, sequence, 1), Offset(rng.random()));
        }
    }
    core.forget_below(Offset(rng.random_range(0..600)));
    let end = Offset(rng.random_range(0..1_200));
    let _ = core.cut(end);
    assert!(core.end() <= end);
    core.encode(end, &mut Vec::new());
    core.forget_below(end);
    assert_eq!(core, ProducerCore::new());
}

fn mutated(good: &[Vec<u8>], rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = good[rng.random_range(0..good.len())].clone();
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..7) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => bytes.truncate(at.max(1)),
            // A number at a border.
            3 | 4 => {
                let number: u64 = [0, 1, 63, 64, 65, 4_096, 4_097, u64::MAX][rng.random_range(0..8)];
                let at = at / 4 * 4;
                let field = number.to_le_bytes();
                let len = bytes.len().saturating_sub(at).min([4, 8][rng.random_range(0..2)]);
                bytes[at..at + len].copy_from_slice(&field[..len]);
            }
            // A part of another one in its place, or between.
            5 => {
                let from = &good[rng.random_range(0..good.len())];
                let begin = rng.random_range(0..from.len());
                let part = from[begin..(begin + rng.random_range(1..80)).min(from.len())].to_vec();
                let end = if rng.random() { at } else { (at + part.len()).min(bytes.len()) };
                bytes.splice(at..end, part);
            }
            _ => bytes.extend((0..rng.random_range(1..60)).map(|_| rng.random::<u8>())),
        }
    }
    // Half of them get behind the checksum.
    if rng.random() { sealed(bytes) } else { bytes }
}

#[test]
fn hostile_bytes_are_refused_or_are_an_encoding_and_never_do_harm() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (inputs, seed) = (number("FELIX_SNAPSHOT_INPUTS").unwrap_or(50_000), number("SEED").unwrap_or(0));
    let mut rng = StdRng::seed_from_u64(seed);
    let good = [
        encoded(&ProducerCore::new(), 0),
        encoded(&with_batches(7, 1, 0), 1),
        encoded(&with_batches(9, 66, 3), 100),
        encoded(&some_producers(), 1_000),
    ];
    let mut met = std::collections::BTreeMap::new();
    for _ in 0..inputs {
        let bytes = mutated(&good, &mut rng);
        let what = match ProducerCore::decode(&bytes) {
            Ok((core, at)) => {
                assert_eq!(encoded(&core, at.0), bytes, "one encoding for a machine and an offset");
                work(core, at, &mut rng);
                "accepted".to_string()
            }
            Err(SnapshotError::Version(_)) => "another version".to_string(),
            Err(fault) => fault.to_string(),
        };
        *met.entry(what).or_insert(0_u64) += 1;
    }
    println!("{inputs} inputs, SEED={seed}: {met:#?}");
    if inputs >= 50_000 {
        for what in
            ["accepted", "checksum", "length", "head", "order", "offsets", "sequences", "batches of a"]
        {
            assert!(met.keys().any(|met| met.contains(what)), "{what} never happened");
        }
    }
}
