//! Batches come back as they were written, and nothing else is taken for one.

use proptest::prelude::*;

use super::*;

pub(crate) const EPOCH: Epoch = Epoch(0x1122_3344_5566_7788);

fn head(count: u32) -> BatchHead {
    BatchHead {
        kind: BatchKind::Data,
        base: Offset(1_000),
        count,
        generation: Generation(3),
        lineage: Lineage(2),
        durable_end: Offset(990),
        timestamp_ms: 1_700_000_000_000,
        producer: Some((ProducerId(u64::MAX), Sequence(7))),
    }
}

fn batch(payloads: &[&[u8]]) -> Batch {
    let bytes = payloads.iter().map(|payload| payload.len()).sum();
    let mut encoder = Encoder::new(head(payloads.len() as u32), EPOCH, bytes);
    for (index, payload) in payloads.iter().enumerate() {
        encoder.push(1_700_000_000_000 + index as u64, payload);
    }
    encoder.finish()
}

#[test]
fn a_batch_comes_back_as_it_was_written() {
    let made = batch(&[b"one", b"", b"three"]);
    assert_eq!(made.bytes().len(), encoded_len(3, 8));
    let mut longer = made.bytes().to_vec();
    longer.extend_from_slice(b"something behind it");
    let read = Batch::from_bytes(&Bytes::from(longer), EPOCH).expect("a batch");
    assert_eq!(read, made);
    let records: Vec<_> = read.records().collect();
    assert_eq!(records.len(), 3);
    assert_eq!((records[2].offset, records[2].timestamp_ms), (Offset(1_002), 1_700_000_000_002));
    assert_eq!(&records[2].payload[..], b"three");
}

#[test]
fn bytes_of_an_earlier_use_of_the_file_are_no_batch() {
    let made = batch(&[b"one"]);
    assert_eq!(decode(made.bytes(), Epoch(EPOCH.0 + 1)), Err(BatchFault::NotABatch));
    let mut forged = made.bytes().to_vec();
    forged[80..88].copy_from_slice(&(EPOCH.0 + 1).to_le_bytes());
    assert!(decode(&forged, Epoch(EPOCH.0 + 1)).is_err(), "the seed is in every checksum");
}

#[test]
fn every_flipped_bit_and_every_truncation_of_a_batch_is_seen() {
    let made = batch(&[b"payload of the first", b"second"]);
    let good = made.bytes().to_vec();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&bad, EPOCH).is_err(), "bit {bit}");
    }
    for len in 0..good.len() {
        assert!(decode(&good[..len], EPOCH).is_err(), "{len} bytes");
    }
}

#[test]
fn a_later_version_flag_or_codec_is_named() {
    let good = batch(&[b"x"]).bytes().to_vec();
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        decode(&bytes, EPOCH)
    };
    assert_eq!(with(4, 2), Err(BatchFault::Version(2)));
    assert_eq!(with(5, 77), Err(BatchFault::Unsupported("a kind")));
    assert_eq!(with(7, 1), Err(BatchFault::Unsupported("a flag or codec")));
}

#[test]
fn a_skip_takes_offsets_and_has_no_records() {
    let skip = BatchHead { kind: BatchKind::Skip, count: 70_000, producer: None, ..head(1) };
    let made = Encoder::new(skip, EPOCH, 0).finish();
    let read = Batch::from_bytes(made.bytes(), EPOCH).expect("a batch");
    assert_eq!((read.head().end(), read.records().count()), (Offset(71_000), 0));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), magic in any::<bool>()) {
        let mut bytes = bytes;
        if magic && bytes.len() > 96 {
            bytes[..6].copy_from_slice(b"FLXB\x01\x00");
            bytes[80..88].copy_from_slice(&EPOCH.0.to_le_bytes());
        }
        prop_assert!(decode(&bytes, EPOCH).is_err());
    }

    #[test]
    fn any_records_come_back(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 1..20)) {
        let slices: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        let made = batch(&slices);
        let read = Batch::from_bytes(made.bytes(), EPOCH).expect("a batch");
        let back: Vec<Vec<u8>> = read.records().map(|record| record.payload.to_vec()).collect();
        prop_assert_eq!(back, payloads);
    }
}
