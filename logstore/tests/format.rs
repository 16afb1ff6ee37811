//! The format is what `docs/log-format.md` and the golden files say, and bytes of any kind are read without a panic.

mod support;

use std::path::PathBuf;

use bytes::Bytes;
use felix_logstore::checksum::Epoch;
use felix_logstore::commit::{Mark, MarkKind, PieceHead, Prior, Round, SlotHead, round};
use felix_logstore::id::{Fsync, Lineage, Place, RoundNumber, Run, SegmentSeq};
use felix_logstore::record::{Batch, BatchHead, BatchKind, Encoder};
use felix_logstore::segment::format::{SegmentEnd, SegmentHead};
use felix_logstore::segment::walk::{Step, Walk};
use felix_runtime::sim::SimRng;
use felix_wire::id::{CoreId, Generation, Offset, ProducerId, Sequence};
use support::*;

const EPOCH: Epoch = Epoch(0x0102_0304_0506_0708);

fn example_batch() -> Batch {
    let head = BatchHead {
        kind: BatchKind::Data,
        base: Offset(41),
        count: 2,
        generation: Generation(3),
        lineage: Lineage(2),
        durable_end: Offset(40),
        timestamp_ms: 1_700_000_000_000,
        producer: Some((ProducerId(0xfeed), Sequence(5))),
    };
    let mut encoder = Encoder::new(head, EPOCH, 8);
    encoder.push(1_700_000_000_000, b"felix");
    encoder.push(1_700_000_000_007, b"log");
    encoder.finish()
}

fn example_segment() -> Vec<u8> {
    let head = SegmentHead {
        key: key(0xabc, 7),
        seq: SegmentSeq(3),
        epoch: EPOCH,
        base: Offset(41),
        lineage: Lineage(2),
        lineage_base: Offset(41),
        size_bytes: 65_536,
        ceiling: Offset(131_113),
        policy: Fsync::Periodic,
        before: Some(SegmentEnd {
            segment: SegmentSeq(2),
            offset: Offset(41),
            byte: 9_000,
            newest_ms: 1_600_000_000_000,
            checksum: 0x1234_5678,
        }),
    };
    let mut bytes = head.encode();
    bytes.resize(4_096, 0);
    bytes.extend_from_slice(example_batch().bytes());
    bytes.resize(8_192, 0);
    bytes
}

fn example_slot() -> Vec<u8> {
    let head = SlotHead {
        epoch: Epoch(99),
        run: Run(4),
        boot: [7; 16],
        core: CoreId(1),
        number: 12,
        size_bytes: 1 << 20,
        first_round: 0,
    };
    let batch = example_batch();
    let round = Round {
        number: RoundNumber(33),
        live_from: RoundNumber(30),
        clean: false,
        prior: vec![Prior { key: key(0xabc, 7), lineage: Lineage(2), end: Offset(41) }],
        marks: vec![Mark {
            kind: MarkKind::Start,
            key: key(0xabc, 7),
            lineage: Lineage(2),
            lineage_base: Offset(41),
            start: Offset(5),
            end: Offset(41),
            ceiling: Offset(131_113),
            place: Place { segment: SegmentSeq(3), byte: 4_096 },
            newest_ms: 0,
            checksum: 0,
            policy: Fsync::Periodic,
            next: Offset(41),
        }],
        pieces: vec![PieceHead {
            key: key(0xabc, 7),
            lineage: Lineage(2),
            place: Place { segment: SegmentSeq(3), byte: 4_096 },
            epoch: EPOCH,
            base: Offset(41),
            end: Offset(43),
            len: batch.bytes().len() as u32,
        }],
    };
    let mut bytes = head.encode();
    bytes.extend_from_slice(&round.encode_meta(Epoch(99)));
    bytes.extend_from_slice(batch.bytes());
    bytes.resize(12_288, 0);
    bytes
}

fn here(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn golden(name: &str) -> String {
    let path = here("tests/golden").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_example_of_the_format_page_is_the_batch_it_describes() {
    let page = std::fs::read_to_string(here("../docs/log-format.md")).expect("the page");
    let example = page.split("```hex").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let digits: String = example.chars().filter(char::is_ascii_hexdigit).collect();
    let bytes = Bytes::from(hex::decode(digits).expect("hex"));
    let batch = Batch::from_bytes(&bytes, EPOCH).expect("a batch");
    assert_eq!(batch, example_batch());
    let payloads: Vec<_> = batch.records().map(|record| record.payload).collect();
    assert_eq!(payloads, [&b"felix"[..], b"log"]);
}

#[test]
fn this_version_writes_and_reads_the_golden_segment_and_slot() {
    assert_eq!(to_text(&example_segment()), golden("v1-segment.txt"));
    assert_eq!(to_text(&example_slot()), golden("v1-slot.txt"));
    let segment = from_text(&golden("v1-segment.txt"));
    let head = SegmentHead::decode(&segment).expect("a head");
    assert_eq!((head.seq, head.before.map(|before| before.byte)), (SegmentSeq(3), Some(9_000)));
    let mut walk = Walk { epoch: head.epoch, byte: 4_096, due: head.base, limit: segment.len() as u64 };
    let window = Bytes::from(segment);
    assert_eq!(walk.step(&window, 0), Step::Batch { batch: example_batch(), byte: 4_096 });
    assert!(matches!(walk.step(&window, 0), Step::End { .. }));
    let slot = from_text(&golden("v1-slot.txt"));
    let head = SlotHead::decode(&slot).expect("a head");
    let found = round::decode(&slot[8_192..], head.epoch).expect("a round");
    assert_eq!(found.round.pieces[0].place, Place { segment: SegmentSeq(3), byte: 4_096 });
    let bytes = Bytes::copy_from_slice(&slot[8_192 + found.meta_len..]);
    assert_eq!(Batch::from_bytes(&bytes, EPOCH), Ok(example_batch()));
}

/// A volume of this version as a killed broker leaves it: two logs, one rolled, pieces only in the commit file, a truncation.
fn example_volume() -> felix_runtime::sim::DiskImage {
    let mut world = World::empty(77);
    let (one, two) = (world.create(key(1, 1), Fsync::OnCommit), world.create(key(2, 1), Fsync::OnCommit));
    for number in 0..12u8 {
        world.publish(one, &[vec![number; 9_000]]);
        world.settle(one);
    }
    for number in 0..5u8 {
        world.publish(two, &[vec![number; 20], vec![number; 30]]);
        world.settle(two);
    }
    world.engine.cut(two, Offset(8));
    world.run_until(|world| {
        world.events.iter().any(|event| matches!(event, felix_logstore::engine::Event::Cut { .. }))
    });
    world.publish(two, &[vec![9; 40]]);
    world.settle(two);
    world.disk.sim().kill();
    world.disk.sim().image()
}

#[test]
fn a_volume_of_version_1_opens_with_everything_in_it() {
    let disk = load_volume(&golden("v1-volume.txt"));
    let mut world = World::start(disk, 1);
    assert!(world.recovered.refused.is_empty(), "{:?}", world.recovered.refused);
    let one = world.engine.find(key(1, 1)).expect("there");
    let records = world.read_log(one).expect("readable");
    assert_eq!(records.len(), 12);
    assert!(records.iter().all(|(offset, record)| record.as_ref() == Some(&vec![*offset as u8; 9_000])));
    let two = world.engine.find(key(2, 1)).expect("there");
    let records = world.read_log(two).expect("readable");
    assert_eq!(records.len(), 9);
    assert_eq!(records.get(&8), Some(&Some(vec![9; 40])));
    assert_eq!(records.get(&7), Some(&Some(vec![3; 30])));
}

/// Writes the golden files anew when `FELIX_GOLDEN` names the folder for them; otherwise checks that the writer still makes a
/// volume that can be dumped and loaded.
#[test]
fn a_dumped_volume_loads_as_it_was() {
    let image = example_volume();
    let text = dump_volume(&image);
    let mut disk = load_volume(&text);
    assert_eq!(dump_volume(&disk.sim().image()), text);
    if let Some(folder) = std::env::var_os("FELIX_GOLDEN").map(PathBuf::from) {
        for (name, text) in [
            ("v1-volume.txt", text),
            ("v1-segment.txt", to_text(&example_segment())),
            ("v1-slot.txt", to_text(&example_slot())),
        ] {
            std::fs::write(folder.join(name), text).expect("a folder for golden files");
        }
    }
}

#[test]
fn every_truncation_and_flipped_bit_of_a_segment_is_read_without_a_panic_and_gives_no_other_batch() {
    let good = example_segment();
    let len = 4_096 + example_batch().bytes().len();
    let read = |bytes: Vec<u8>| {
        let head = SegmentHead::decode(&bytes).ok()?;
        let mut walk = Walk { epoch: head.epoch, byte: 4_096, due: head.base, limit: bytes.len() as u64 };
        match walk.step(&Bytes::from(bytes), 0) {
            Step::Batch { batch, .. } => Some(batch),
            Step::Need(_) | Step::End { .. } => None,
        }
    };
    for cut in (0..len).rev().take(600).chain(0..300) {
        assert_eq!(read(good[..cut].to_vec()), None, "{cut} bytes");
    }
    for bit in (0..240 * 8).chain(4_096 * 8..len * 8) {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(read(bad), None, "bit {bit}");
    }
}

#[test]
fn every_truncation_and_flipped_bit_of_a_slot_is_read_without_a_panic_and_gives_no_other_round() {
    let good = example_slot();
    let original = round::decode(&good[8_192..], Epoch(99)).expect("a round");
    let end = 8_192 + original.meta_len;
    let read = |bytes: &[u8]| {
        let head = SlotHead::decode(bytes).ok()?;
        round::decode(bytes.get(8_192..)?, head.epoch).ok()
    };
    for cut in (0..good.len()).step_by(7) {
        assert!(read(&good[..cut]).is_none(), "{cut} bytes");
    }
    for bit in 8_192 * 8..end * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&bad).is_none(), "bit {bit}");
    }
}

#[test]
fn arbitrary_bytes_in_any_file_never_panic_a_recovery() {
    let image = example_volume();
    let files = image.files();
    for seed in 0..60 {
        let mut rng = SimRng::new(seed);
        let mut damaged = image.clone();
        for _ in 0..1 + rng.below(40) {
            let (path, len) = &files[rng.below(files.len() as u64) as usize];
            let within = if rng.below(2) == 0 { 20_000.min(len * 8) } else { len * 8 };
            damaged.flip_bit(path, rng.below(within.max(1))).expect("the file is there");
        }
        let mut disk = from_image(seed, damaged);
        // Whatever it decides, it ends.
        assert!(recover_some(&mut disk, 1, None).is_some());
    }
}
