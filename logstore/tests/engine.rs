//! What one engine promises, on a disk without faults other than delay.

mod support;

use std::num::NonZeroU32;

use felix_logstore::engine::{EngineConfig, Event};
use felix_logstore::id::Fsync;
use felix_logstore::limits::GROWN_BYTES_MAX;
use felix_logstore::log::{AppendMeta, ClaimError};
use felix_logstore::record::{Batch, BatchKind};
use felix_runtime::sim::SimRng;
use felix_wire::id::{Generation, Offset, ProducerId, Sequence};
use support::*;

#[test]
fn what_was_published_is_read_back_from_memory_and_from_segments() {
    let mut world = World::empty(1);
    let mut rng = SimRng::new(1);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    let mut model = Vec::new();
    for round in 0..300 {
        let len = [100, 3_000, 70_000][round % 3];
        let payloads: Vec<Vec<u8>> = (0..1 + round % 4).map(|_| payload(&mut rng, len)).collect();
        let base = world.publish(log, &payloads);
        assert_eq!(base, Offset(model.len() as u64));
        model.extend(payloads);
    }
    world.settle(log);
    let read = world.read_log(log).expect("readable");
    assert_eq!(read.len(), model.len());
    for (offset, record) in read {
        assert!(record.as_ref() == Some(&model[offset as usize]), "offset {offset}");
    }
    assert!(world.engine.log(log).expect("there").sealed().count() > 10, "it rolled");
    assert!(
        !world.events.iter().any(|event| matches!(event, Event::DiskTrouble { .. } | Event::Stopped { .. }))
    );
}

#[test]
fn the_largest_batch_finds_room_behind_a_small_one_that_nothing_follows() {
    let change = |config: &mut EngineConfig| config.memory_bytes_max = 32 << 20;
    let mut world = World::start_with(fresh_disk(7), 1, change);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    // It stays in the open slot, and in memory, as long as nothing closes that.
    assert_eq!(world.publish(log, &[vec![1; 1_000]]), Offset(0));
    world.settle(log);
    let large = (16 << 20) - 200;
    assert_eq!(world.publish(log, &[vec![2; large]]), Offset(1));
    world.settle(log);
    let too_large = NonZeroU32::MIN;
    let claim = world.engine.claim(log, BatchKind::Data, too_large, 16 << 20);
    assert!(matches!(claim, Err(ClaimError::TooLarge)), "whatever memory holds: {claim:?}");
}

/// A segment was made for such a batch in which it just did not fit, and then another one, without end.
#[test]
fn a_batch_of_any_length_about_the_size_of_a_segment_finds_room() {
    let mut world = World::empty(8);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    let size = log_config(Fsync::OnCommit).segment_bytes_max as usize;
    for (offset, less) in (0..24).map(|step| step * 1_024).enumerate() {
        assert_eq!(world.publish(log, &[vec![3; size - less]]), Offset(offset as u64), "{less} bytes less");
        world.settle(log);
    }
}

#[test]
fn a_clean_stop_and_start_gives_the_same_log() {
    let mut world = World::empty(2);
    let mut rng = SimRng::new(2);
    let mut logs = Vec::new();
    for (index, policy) in [Fsync::OnCommit, Fsync::Periodic, Fsync::None].into_iter().enumerate() {
        let key = key(index as u128, 1);
        let log = world.create(key, policy);
        for _ in 0..50 {
            world.publish(log, &[payload(&mut rng, 2_000), payload(&mut rng, 10)]);
        }
        world.settle(log);
        logs.push((key, world.read_log(log).expect("readable")));
    }
    let disk = world.close();
    // Another boot id: an unclean stop would skip offsets.
    let mut world = World::start(disk, 2);
    assert!(world.recovered.refused.is_empty() && world.recovered.torn.is_empty());
    for (key, before) in logs {
        let log = world.engine.find(key).expect("it is there");
        assert_eq!(world.engine.log(log).expect("there").claimed_end(), Offset(100));
        assert!(world.read_log(log).expect("readable") == before);
        assert_eq!(world.publish(log, &[vec![1]]), Offset(100));
        world.settle(log);
    }
}

#[test]
fn a_released_log_goes_on_with_another_engine() {
    let mut world = World::empty(4);
    let mut rng = SimRng::new(4);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    let mut model = Vec::new();
    for len in [100, 5_000, 90_000, 300] {
        let bytes = payload(&mut rng, len);
        world.publish(log, std::slice::from_ref(&bytes));
        model.push(bytes);
    }
    world.engine.release(log);
    let mut machine = None;
    world.run_until(|world| world.events.iter().any(|event| matches!(event, Event::Released { .. })));
    while let Some(event) = world.events.pop_front() {
        if let Event::Released { machine: moved, .. } = event {
            machine = Some(*moved);
        }
    }
    let machine = machine.expect("released");
    assert_eq!((machine.claimed_end(), machine.memory_bytes()), (Offset(4), 0));
    fn is_send<T: Send>(_: &T) {}
    is_send(&machine);
    let log = world.engine.adopt(machine).expect("room");
    let bytes = payload(&mut rng, 10);
    assert_eq!(world.publish(log, std::slice::from_ref(&bytes)), Offset(4));
    model.push(bytes);
    world.settle(log);
    world.disk.sim().crash(&mut SimRng::new(1));
    let mut world = World::start(world.disk, 1);
    assert!(world.recovered.refused.is_empty(), "{:?}", world.recovered.refused);
    let log = world.engine.find(key(1, 1)).expect("there");
    let read: Vec<_> = world.read_log(log).expect("readable").into_values().flatten().collect();
    assert!(read == model);
}

#[test]
fn retention_removes_whole_segments_recycles_them_and_keeps_the_end() {
    let mut world = World::empty(5);
    let key = key(1, 1);
    let log = world.create(key, Fsync::OnCommit);
    for number in 0..60u64 {
        world.publish(log, &[vec![number as u8; 20_000]]);
        world.settle(log);
    }
    let retention = felix_logstore::retention::Retention { bytes: Some(300_000), age_ms: None };
    world.engine.configure(log, felix_logstore::log::LogConfig { retention, ..log_config(Fsync::OnCommit) });
    assert!(world.engine.retain(log, 0, Offset(u64::MAX)));
    world.run_until(|world| world.events.iter().any(|event| matches!(event, Event::StartMoved { .. })));
    let start = world.engine.log(log).expect("there").start();
    assert!(start > Offset(20) && start < Offset(60), "{start}");
    assert_eq!(world.read_log(log).expect("readable").len() as u64, 60 - start.0);
    let too_old = world.read(log, Offset(0), 1_000);
    assert!(
        matches!(too_old, Err(felix_logstore::engine::ReadError::TooOld { start: told }) if told == start)
    );
    for _ in 0..40 {
        world.publish(log, &[vec![9; 20_000]]);
        world.settle(log);
    }
    world.disk.sim().crash(&mut SimRng::new(3));
    let mut world = World::start(world.disk, 1);
    let log = world.engine.find(key).expect("there");
    assert_eq!(world.engine.log(log).expect("there").start(), start);
    assert_eq!(world.read_log(log).expect("readable").len() as u64, 100 - start.0);
}

#[test]
fn an_idle_log_rolls_by_time_so_that_it_expires() {
    let mut world = World::empty(6);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    let roll_after = Some(std::time::Duration::from_secs(2));
    let retention = felix_logstore::retention::Retention { bytes: None, age_ms: Some(500) };
    let config = felix_logstore::log::LogConfig { roll_after, retention, ..log_config(Fsync::OnCommit) };
    world.engine.configure(log, config);
    world.publish(log, &[vec![1; 100]]);
    world.settle(log);
    assert!(!world.engine.retain(log, 10_000, Offset(u64::MAX)), "the active segment does not expire");
    world.run_until(|world| world.engine.log(log).is_some_and(|log| log.sealed().count() == 1));
    assert!(world.engine.retain(log, 10_000, Offset(u64::MAX)));
    world.run_until(|world| world.engine.log(log).is_some_and(|log| log.start() == Offset(1)));
    world.pass(std::time::Duration::from_secs(3));
    let machine = world.engine.log(log).expect("there");
    assert_eq!((machine.sealed().count(), machine.claimed_end()), (0, Offset(1)));
}

#[test]
fn a_thousand_sealed_segments_open_without_being_scanned() {
    let mut world = World::empty(7);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    let small = felix_logstore::log::LogConfig { segment_bytes_max: 64 << 10, ..log_config(Fsync::OnCommit) };
    world.engine.configure(log, small);
    for _ in 0..1_000 {
        world.publish(log, &[vec![1; 50_000]]);
    }
    world.settle(log);
    let disk = world.close();
    let AnyDisk::Plain(mut disk) = disk else { panic!("not traced") };
    let before = disk.counts().answered;
    let mut any = AnyDisk::Plain({
        disk.set_ops_max(256);
        disk
    });
    let recovered = recover(&mut any, 1);
    assert!(recovered.logs[0].segments.len() > 990);
    let asked = any.sim().counts().answered - before;
    assert!(asked < 10 * 1_000, "{asked} operations");
}

/// Counts writes to slots and to segments from here on.
fn count_writes(world: &mut World) -> std::rc::Rc<std::cell::Cell<(u32, u32)>> {
    let counts = std::rc::Rc::new(std::cell::Cell::new((0, 0)));
    let own = counts.clone();
    world.disk.sim().choose_faults(move |asked| {
        let to = |part: &str| asked.path.is_some_and(|path| path.as_str().starts_with(part));
        if asked.kind == felix_runtime::sim::OpKind::Write {
            let (slots, segments) = own.get();
            own.set((slots + u32::from(to("slots/")), segments + u32::from(to("shards/"))));
        }
        None
    });
    counts
}

#[test]
fn small_pieces_of_many_logs_share_one_write_and_large_ones_go_straight_to_their_segments() {
    let mut world = World::empty(8);
    let logs: Vec<_> = (0..48).map(|name| world.create(key(name, 1), Fsync::OnCommit)).collect();
    for log in &logs {
        world.publish(*log, &[vec![0; 10]]);
    }
    for log in &logs {
        world.settle(*log);
    }
    world.pass(std::time::Duration::from_millis(300));
    let counts = count_writes(&mut world);
    let meta = |at| felix_logstore::log::AppendMeta {
        generation: felix_wire::id::Generation(1),
        timestamp_ms: at,
        producer: None,
    };
    for (index, log) in logs.iter().enumerate() {
        let bytes = vec![1; if index < 2 { 100_000 } else { 1_000 }];
        let kind = felix_logstore::record::BatchKind::Data;
        let claim = world.engine.claim(*log, kind, std::num::NonZeroU32::MIN, bytes.len());
        let Ok(claim) = claim else {
            // A large batch may find its segment too small at first.
            world.publish(*log, &[bytes]);
            continue;
        };
        world.engine.append(*log, claim, meta(1), std::iter::once((1, bytes.as_slice()))).expect("there");
    }
    counts.set((0, 0));
    world.turn();
    assert_eq!(counts.get().0, 1, "one write for all the small ones");
    for log in &logs {
        world.settle(*log);
    }
    counts.set((0, 0));
    world.publish(logs[5], &[vec![2; 5_000]]);
    world.settle(logs[5]);
    assert_eq!(counts.get(), (0, 1), "a lone log with a whole block goes straight");
}

#[test]
fn records_that_are_written_one_by_one_share_batches_until_they_are_submitted() {
    let mut world = World::empty(11);
    let mut rng = SimRng::new(11);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    let mut model = Vec::new();
    let mut write = |world: &mut World, len: usize, generation: u64, producer: Option<u64>| {
        let bytes = payload(&mut rng, len);
        let meta = AppendMeta {
            generation: Generation(generation),
            timestamp_ms: 1_000 + model.len() as u64,
            producer: producer.map(|of| (ProducerId(of), Sequence(0))),
        };
        while world.engine.write(log, meta, &bytes) == Err(ClaimError::NoRoom) {
            world.step();
        }
        model.push(bytes);
        assert_eq!(world.engine.log(log).expect("there").claimed_end(), Offset(model.len() as u64));
    };
    for _ in 0..10 {
        write(&mut world, 300, 1, None);
    }
    // Of another generation, of a producer, behind one of a producer, and what is too large to share.
    write(&mut world, 300, 2, None);
    write(&mut world, 300, 2, Some(7));
    write(&mut world, 300, 2, None);
    write(&mut world, 0, 2, None);
    write(&mut world, 20_000, 2, None);
    write(&mut world, 10, 2, None);
    world.settle(log);
    // In a later turn, and more than one batch takes.
    for _ in 0..100 {
        write(&mut world, 300, 2, None);
    }
    world.engine.roll(log);
    write(&mut world, 300, 2, None);
    world.settle(log);
    let mut batches = Vec::new();
    while let Some(from) = Some(batches.last().map_or(Offset(0), |b: &Batch| b.head().end()))
        && from < Offset(model.len() as u64)
    {
        batches.extend(world.read(log, from, 1 << 20).expect("readable"));
    }
    let counts: Vec<u32> = batches.iter().map(|batch| batch.head().count).collect();
    assert_eq!(counts[..6], [10, 1, 1, 2, 1, 1], "{counts:?}");
    let (full, rest) = (12, &counts[6..]);
    assert_eq!((rest.iter().sum::<u32>(), rest.last()), (101, Some(&1)), "none over a roll: {counts:?}");
    assert!(rest.iter().all(|count| *count <= full) && rest[..3] == [full; 3], "4 KiB each: {counts:?}");
    assert!(batches.iter().all(|batch| batch.head().count == 1 || batch.bytes().len() <= GROWN_BYTES_MAX));
    let read: Vec<(Vec<u8>, u64)> =
        batches.iter().flat_map(Batch::records).map(|r| (r.payload.to_vec(), r.timestamp_ms)).collect();
    let wanted: Vec<(Vec<u8>, u64)> = model.into_iter().zip(1_000..).collect();
    assert!(read == wanted, "every record with its time");
    assert_eq!(world.engine.log(log).expect("there").memory_bytes(), world.engine.memory_bytes());
}

#[test]
fn an_offset_that_a_reader_may_have_seen_is_not_used_again_after_a_power_loss() {
    for (policy, seed) in [(Fsync::Periodic, 1), (Fsync::None, 2)] {
        let mut world = World::empty(seed);
        let log = world.create(key(1, 1), policy);
        for _ in 0..20 {
            world.publish(log, &[vec![1; 500]]);
            world.settle(log);
        }
        assert!(
            world.engine.log(log).expect("there").durable_end() < Offset(20),
            "not all of it is synced yet"
        );
        world.disk.sim().crash(&mut SimRng::new(seed));
        let mut world = World::start(world.disk, 2);
        let log = world.engine.find(key(1, 1)).expect("there");
        let base = world.publish(log, &[vec![2; 10]]);
        assert!(base >= Offset(20), "{base}");
        world.settle(log);
        let records = world.read_log(log).expect("readable");
        assert_eq!(records.get(&base.0), Some(&Some(vec![2; 10])));
        assert!(records.iter().any(|(_, record)| record.is_none()), "what is between is told as skipped");
    }
}

#[test]
fn a_process_that_died_loses_nothing_that_was_written_without_a_sync() {
    let mut world = World::empty(9);
    let log = world.create(key(1, 1), Fsync::None);
    for _ in 0..20 {
        world.publish(log, &[vec![1; 500]]);
        world.settle(log);
    }
    world.disk.sim().kill();
    let mut world = World::start(world.disk, 1);
    let log = world.engine.find(key(1, 1)).expect("there");
    assert_eq!(world.engine.log(log).expect("there").claimed_end(), Offset(20));
    assert_eq!(world.read_log(log).expect("readable").len(), 20);
}

#[test]
fn a_second_process_is_refused_while_the_first_lives() {
    let mut world = World::empty(10);
    let result = recover_some(&mut world.disk, 1, None);
    assert!(matches!(result, Some(Err(felix_logstore::recovery::RecoveryError::Locked { .. }))));
}

/// A batch that went straight to its segment may be followed and preceded by ones that are only in the commit file: what is
/// read from the file lies between them.
#[test]
fn a_read_between_bytes_that_are_only_in_the_commit_file_finds_its_batch() {
    let mut world = World::empty(40);
    let logs = [world.create(key(1, 1), Fsync::OnCommit), world.create(key(2, 1), Fsync::OnCommit)];
    let mut rng = SimRng::new(40);
    let mut model = vec![Vec::new(); 2];
    for round in 0..12 {
        // Small ones of both logs share a round; large ones go straight to their segments.
        let len = if round % 3 == 2 { 80_000 } else { 700 };
        for (at, log) in logs.iter().enumerate() {
            let bytes = payload(&mut rng, len);
            world.publish(*log, std::slice::from_ref(&bytes));
            model[at].push(bytes);
        }
        for log in logs {
            world.settle(log);
        }
        for (at, log) in logs.iter().enumerate() {
            for from in 0..model[at].len() {
                let batches = world.read(*log, Offset(from as u64), 1).expect("readable");
                let record = batches[0].records().next().expect("a record");
                assert!(record.payload == model[at][from], "log {at} offset {from} of {}", model[at].len());
            }
        }
    }
}

/// Nothing of a sealed segment is in memory after a start: an offset deep in it costs a few reads, not a walk from its
/// beginning.
#[test]
fn an_offset_deep_in_a_large_sealed_segment_is_found_with_a_few_reads() {
    use std::{cell::Cell, rc::Rc};
    let mut world = World::empty(50);
    let mut rng = SimRng::new(50);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    let config = felix_logstore::log::LogConfig {
        segment_bytes_first: 64 << 20,
        segment_bytes_max: 64 << 20,
        ..log_config(Fsync::OnCommit)
    };
    world.engine.configure(log, config);
    let mut first = Vec::new();
    for number in 0..900 {
        let len = [100, 30_000, 120_000][number % 3];
        let payloads: Vec<Vec<u8>> = (0..1 + number % 2).map(|_| payload(&mut rng, len)).collect();
        first.push((world.publish(log, &payloads), payloads[0].clone()));
    }
    world.settle(log);
    let disk = world.close();
    let mut world = World::start(disk, 1);
    let log = world.engine.find(key(1, 1)).expect("there");
    let largest = world.engine.log(log).expect("there").sealed().map(|sealed| sealed.end.byte).max();
    assert!(largest > Some(40 << 20), "{largest:?}");
    let reads = Rc::new(Cell::new(0));
    let counted = reads.clone();
    world.disk.sim().choose_faults(move |asked| {
        counted.set(counted.get() + u32::from(asked.kind == felix_runtime::sim::OpKind::Read));
        None
    });
    world.disk.sim().set_faults(felix_runtime::sim::DiskFaults::none(std::time::Duration::from_micros(100)));
    let mut worst = 0;
    for at in [880, 3, 450, 451, 700, 1, 899, 452] {
        let (base, bytes) = &first[at];
        reads.set(0);
        let batches = world.read(log, *base, 1).expect("readable");
        assert!(
            batches[0].head().base == *base && batches[0].records().next().expect("one").payload == *bytes
        );
        worst = worst.max(reads.get());
    }
    println!("{worst} reads at most in a segment of {largest:?} bytes");
    // A walk would take 160 windows of 256 KiB.
    assert!(worst <= 24, "{worst} reads");
    // Page by page from the beginning it stays a walk.
    reads.set(0);
    let whole = world.read_log(log).expect("readable");
    assert_eq!(whole.len(), 1_350);
    let pages = reads.get();
    assert!(pages < 2_000, "{pages} reads");
}

#[test]
fn the_figures_of_an_engine_count_what_it_did() {
    let mut world = World::empty(60);
    let logs = [world.create(key(1, 1), Fsync::OnCommit), world.create(key(2, 1), Fsync::Periodic)];
    for number in 0..200 {
        for log in logs {
            world.publish(log, &[vec![number as u8; [200, 70_000][number % 2]]]);
        }
        if number % 10 == 9 {
            world.settle(logs[0]);
        }
    }
    for log in logs {
        world.settle(log);
    }
    world.pass(std::time::Duration::from_millis(600));
    let (latencies, counts, gauges) =
        (*world.engine.latencies(), world.engine.counts(), world.engine.gauges());
    assert_eq!(latencies.settle_us.count, 400, "each batch settles once");
    assert!(latencies.settle_us.quantile(0.5) >= 100, "a write takes 100 us at least");
    assert_eq!(latencies.write_batches.sum, 400, "and with one write");
    assert_eq!(latencies.write_bytes.count, counts.rounds + counts.direct);
    assert_eq!(latencies.write_bytes.sum, counts.round_bytes + counts.direct_bytes);
    assert!(latencies.sync_us.count > 0 && latencies.sync_us.quantile(0.01) >= 100);
    assert_eq!(gauges.commit_bytes, 4 << 20);
    assert!(
        gauges.commit_used_bytes >= gauges.slot_used_bytes && gauges.commit_used_bytes <= gauges.commit_bytes
    );
    assert!(counts.free_bytes > 0 && counts.retired_bytes == 0);
    let end = world.engine.log(logs[0]).expect("there").settled_end();
    world.engine.move_start(logs[0], end);
    world.pass(std::time::Duration::from_millis(600));
    let counts = world.engine.counts();
    assert!(counts.retired > 0 && counts.retired_bytes >= counts.retired * (64 << 10), "{counts:?}");
}

/// A page of several reads goes through the handle that the segment is written through; the segment is sealed meanwhile.
#[test]
fn a_segment_that_is_sealed_under_a_read_is_read_to_its_end() {
    use felix_runtime::sim::{Fault, OpKind};
    let mut world = World::empty(70);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    let config = felix_logstore::log::LogConfig { segment_bytes_max: 2 << 20, ..log_config(Fsync::OnCommit) };
    world.engine.configure(log, config);
    let mut rng = SimRng::new(70);
    // The segment that serves has more bytes than one read brings.
    let serving = loop {
        world.publish(log, &[payload(&mut rng, 50_000)]);
        world.settle(log);
        let machine = world.engine.log(log).expect("there");
        let open = machine.open().next().expect("one");
        if open.size_bytes == 2 << 20 && machine.settled_end().0 > open.base.0 + 15 {
            break open.base;
        }
    };
    world.disk.sim().choose_faults(|asked| {
        let slow = std::time::Duration::from_millis(50);
        (asked.kind == OpKind::Read).then_some(Fault::Stall(slow))
    });
    let read = felix_logstore::engine::ReadId(1 << 40);
    world.engine.read(read, log, serving, Offset(u64::MAX), 1 << 20);
    for _ in 0..50 {
        world.publish(log, &[payload(&mut rng, 50_000)]);
        world.settle(log);
    }
    assert!(
        world.engine.log(log).expect("there").sealed().any(|sealed| sealed.base == serving),
        "it is sealed"
    );
    world.run_until(|world| {
        world.events.iter().any(|event| matches!(event, Event::Page { .. } | Event::ReadFailed { .. }))
    });
    let failed = world.events.iter().find(|event| matches!(event, Event::ReadFailed { .. }));
    assert!(failed.is_none(), "{failed:?}");
}
