//! What the memory of producers costs, counted by the allocator. One test, so that no other thread allocates beside it.

use std::alloc::System;
use std::num::NonZeroU32;

use felix_shardcore::projection::producer::{Digest, Numbered, ProducerCore, Verdict};
use felix_wire::id::{Offset, ProducerId, Sequence};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allocations and bytes (first and grown) of `work`, freed ones included.
fn cost<T>(work: impl FnOnce() -> T) -> (usize, usize, T) {
    let region = Region::new(ALLOCATOR);
    let kept = work();
    let change = region.change();
    let grown = usize::try_from(change.bytes_reallocated).unwrap_or(0);
    (change.allocations + change.reallocations, change.bytes_allocated + grown, kept)
}

fn sent(producer: u64, sequence: u64) -> Numbered {
    let (producer, sequence) = (ProducerId(producer.wrapping_mul(0x9e37_79b9_7f4a_7c15)), Sequence(sequence));
    Numbered { producer, sequence, count: NonZeroU32::MIN, digest: Digest::of([b"payload"]) }
}

fn filled(producers: u64, batches: u64) -> ProducerCore {
    let mut core = ProducerCore::new();
    for sequence in 0..batches {
        for producer in 0..producers {
            core.claimed(&sent(producer, sequence), Offset(sequence * producers + producer));
        }
    }
    core
}

#[test]
fn the_memory_of_producers_is_bounded_and_a_check_allocates_nothing() {
    a_check_allocates_nothing();
    a_full_machine_stays_below_seven_mib();
    a_snapshot_costs_less_than_eight_times_its_bytes();
}

fn a_check_allocates_nothing() {
    let core = filled(100, 70);
    let payloads = [vec![7; 1_000], vec![8; 13]];
    let (count, bytes, _) = cost(|| {
        for sequence in [0, 6, 69, 70, 71] {
            core.check(&sent(5, sequence), Offset(0));
            core.check(&sent(1_000, sequence), Offset(0));
        }
        Digest::of(&payloads)
    });
    assert_eq!((count, bytes), (0, 0));
}

fn a_full_machine_stays_below_seven_mib() {
    let region = Region::new(ALLOCATOR);
    // More than fits, two batches each.
    let mut core = ProducerCore::new();
    for at in 0..20_000 {
        core.claimed(&sent(at / 2, at % 2), Offset(at));
    }
    let change = region.change();
    let short = change.bytes_allocated - change.bytes_deallocated;
    drop(core);
    let region = Region::new(ALLOCATOR);
    let core = filled(4_096, 70);
    let change = region.change();
    let held = change.bytes_allocated - change.bytes_deallocated;
    println!("full: {held} bytes; of producers with two batches: {short} bytes");
    assert!(held < 7 << 20 && short < 2 << 20, "{held} {short}");
    assert_eq!(core.producers(), 4_096);
}

fn a_snapshot_costs_less_than_eight_times_its_bytes() {
    for (producers, batches) in
        [(0, 0), (1, 1), (10, 2), (4_096, 1), (4_096, 2), (300, 5), (300, 33), (300, 70)]
    {
        let core = filled(producers, batches);
        let mut saved = Vec::new();
        core.encode(core.end(), &mut saved);
        let (_, spent, back) = cost(|| ProducerCore::decode(&saved));
        assert_eq!(back.as_ref().map(|(core, _)| core), Ok(&core));
        assert!(spent <= 8 * saved.len() + (64 << 10), "{spent} for {} bytes", saved.len());
        println!("{producers} x {batches}: {spent} bytes for {}", saved.len());
        // What it claims to have costs nothing: numbers are believed when the bytes are there.
        for at in [16, 20, 44] {
            let mut lies = saved.clone();
            if let Some(field) = lies.get_mut(at..at + 4) {
                field.copy_from_slice(&[0xff; 4]);
            }
            let covered = lies.len() - 4;
            let checksum = felix_logstore::checksum::extend(0, &lies[..covered]);
            lies[covered..].copy_from_slice(&checksum.to_le_bytes());
            let (_, spent, refused) = cost(|| ProducerCore::decode(&lies));
            assert!(refused.is_err() || producers == 0);
            assert!(spent < 4_096, "{spent} bytes for a lie in byte {at}");
        }
        let unknown = back.map(|(core, _)| core.check(&sent(u64::MAX, 1), Offset(0)));
        assert_eq!(unknown, Ok(Verdict::Unknown));
    }
}
