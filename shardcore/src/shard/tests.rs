//! Rings and shards against small models.

use std::collections::VecDeque;

use felix_logstore::record::BatchKind;
use felix_wire::client::Records;
use felix_wire::id::ShardIndex;
use proptest::prelude::*;

use super::logged::page_of;
use super::mail::JobToken;
use super::ring::{Page, SLOT_OVERHEAD_BYTES};
use super::*;
use crate::projection::commit::record::{CommitRecord, StateChange};
use crate::projection::test_log::TestLog;
use crate::snapshot::StreamUid;

const ID: ShardId = ShardId { stream: StreamUid(1), shard: ShardIndex(0) };
const LIMITS: RingLimits = RingLimits { records_max: 20, bytes_max: 4_000 };
const HERE: CoreId = CoreId(0);
const THERE: CoreId = CoreId(1);

/// `count` records that name their offset when the first has offset `first`.
fn records(first: u64, count: u32, len: usize) -> Records {
    Records::from_payloads((0..u64::from(count)).map(|i| {
        let mut payload = vec![0; len.max(8)];
        payload[..8].copy_from_slice(&(first + i).to_be_bytes());
        payload
    }))
}

fn offsets(page: &Page) -> Vec<u64> {
    page.slots
        .iter()
        .flat_map(|slot| {
            slot.records.iter().enumerate().map(|(i, payload)| {
                let named = u64::from_be_bytes(payload[..8].try_into().unwrap());
                assert_eq!(named, slot.base.0 + i as u64, "a record lies at its offset");
                named
            })
        })
        .collect()
}

fn shard(limits: RingLimits) -> Shard {
    Shard::open(ID, Generation(1), limits)
}

/// A core without logs.
fn cx(free_bytes: usize, out: &mut Outputs) -> ShardCx<'_> {
    ShardCx { free_bytes, store: None, unix_ms: 0, now: Tick::ZERO, out }
}

/// Publishes one batch of `count` records of 100 bytes as the first of its epoch.
fn publish(shard: &mut Shard, from: CoreId, epoch: u32, count: u32) -> Result<u64, Bounce> {
    publish_at(shard, from, LanePos { epoch, seq: 0 }, count)
}

fn publish_at(shard: &mut Shard, from: CoreId, at: LanePos, count: u32) -> Result<u64, Bounce> {
    let job = Job { token: JobToken(7), records: records(shard.end().0, count, 100), producer: None };
    let mut out = Vec::new();
    shard.publish(from, at, job, &mut cx(usize::MAX, &mut out));
    assert_eq!(out.len(), 1, "one answer to a publish");
    match out.pop().unwrap() {
        (core, FromShard { what: ShardOutput::Published { token, base, .. }, .. }) => {
            assert_eq!((core, token), (from, JobToken(7)));
            Ok(base.0)
        }
        (core, FromShard { what: ShardOutput::Bounced { why, .. }, .. }) => {
            assert_eq!(core, from);
            Err(why)
        }
        other => panic!("{other:?}"),
    }
}

fn handle(shard: &mut Shard, from: CoreId, input: ShardInput) -> Vec<(CoreId, ShardOutput)> {
    let mut out = Vec::new();
    shard.handle(from, input, &mut cx(usize::MAX, &mut out));
    shard.flush(usize::MAX, &mut out);
    out.into_iter().map(|(core, o)| (core, o.what)).collect()
}

fn subscribe(shard: &mut Shard, from: CoreId, start: Start, hold: bool) -> ShardOutput {
    let mut out = handle(shard, from, ShardInput::Subscribe { token: SubToken(1), start, hold });
    assert_eq!(out.len(), 1);
    out.pop().unwrap().1
}

fn pull(shard: &mut Shard, from: CoreId, reader: Reader, next: u64) -> Vec<(CoreId, ShardOutput)> {
    handle(shard, from, ShardInput::Pull { reader, from: Offset(next), bytes_max: 1 << 20 })
}

fn rooms(out: &[(CoreId, ShardOutput)]) -> Vec<CoreId> {
    out.iter().filter(|(_, o)| matches!(o, ShardOutput::Room)).map(|(core, _)| *core).collect()
}

proptest! {
    #[test]
    fn a_ring_is_dense_and_never_gives_up_what_is_pinned(
        steps in proptest::collection::vec((0u8..4, 1u32..9, 0u64..60), 0..120),
    ) {
        let mut ring = Ring::new(Offset(0), LIMITS);
        let mut model: VecDeque<(u64, u32)> = VecDeque::new();
        let mut pin = 0;
        for (what, count, amount) in steps {
            let oldest = model.front().map_or(ring.end().0, |s| s.0);
            let pinned_before: u64 = ring.end().0 - pin.max(oldest).min(ring.end().0);
            match what {
                0 | 1 => {
                    let batch = records(ring.end().0, count, amount as usize);
                    if ring.make_room(batch.encoded_len(), Offset(pin)) {
                        let claim = ring.claim(NonZeroU32::new(count).unwrap());
                        let base = ring.append(claim, batch, Offset(pin)).base().0;
                        model.push_back((base, count));
                    }
                    prop_assert!(ring.bytes() <= LIMITS.bytes_max || model.len() == 1);
                }
                2 => pin = (pin + amount).min(ring.end().0),
                _ => { ring.evict_oldest(Offset(pin)); }
            }
            while model.front().is_some_and(|s| s.0 < ring.start().0) {
                let (base, count) = model.pop_front().unwrap();
                prop_assert!(base + u64::from(count) <= pin, "{base} was pinned at {pin}");
            }
            let pinned_after = ring.end().0 - pin.max(ring.start().0).min(ring.end().0);
            prop_assert!(what < 3 || pinned_after == pinned_before);
            prop_assert_eq!(model.back().map_or(ring.end().0, |s| s.0 + u64::from(s.1)), ring.end().0);
            for from in [ring.start().0, ring.end().0, ring.start().0 + amount] {
                let page = ring.page(Offset(from), 700);
                let got = offsets(&page);
                prop_assert!(got.windows(2).all(|w| w[0] + 1 == w[1]), "a hole in {got:?}");
                if from < ring.end().0 {
                    prop_assert!(got.contains(&from.max(ring.start().0)));
                    prop_assert_eq!(got.last().map(|o| o + 1), Some(page.next.0));
                } else {
                    prop_assert_eq!((got.len(), page.next), (0, ring.end()));
                }
            }
        }
    }
}

#[test]
fn an_empty_ring_takes_a_batch_of_any_size() {
    let mut shard = shard(LIMITS);
    assert_eq!(publish(&mut shard, HERE, 0, 1_000), Ok(0));
    assert_eq!(publish(&mut shard, HERE, 0, 1), Ok(1_000), "and gives it up for the next");
    assert_eq!(shard.ring_bytes(), 104 + SLOT_OVERHEAD_BYTES);
}

#[test]
fn a_small_batch_does_not_keep_a_large_receive_buffer_alive() {
    let mut buffer = vec![0; 64 << 10];
    buffer[..8].copy_from_slice(&[0, 0, 0, 4, 1, 2, 3, 4]);
    let buffer = bytes::Bytes::from(buffer);
    let batch = Records::decode(1, &buffer).unwrap();
    let mut ring = Ring::new(Offset(0), LIMITS);
    let claim = ring.claim(NonZeroU32::MIN);
    let _settled = ring.append(claim, batch, Offset(0));
    assert!(buffer.is_unique(), "the ring has a copy of its own");
}

#[test]
fn a_full_pinned_shard_bounces_and_calls_for_more_when_the_reader_moved_on() {
    let mut shard = shard(LIMITS);
    assert!(matches!(subscribe(&mut shard, THERE, Start::Latest, false), ShardOutput::Subscribed { .. }));
    let mut taken = 0;
    while publish_at(&mut shard, HERE, LanePos { epoch: 0, seq: taken }, 1).is_ok() {
        taken += 1;
    }
    assert_eq!(shard.starved_bytes(), Some(104));
    let out = pull(&mut shard, THERE, Reader::Live, 0);
    let pages: Vec<_> = out
        .iter()
        .filter_map(|(core, o)| match o {
            ShardOutput::Page { page, .. } => Some((*core, offsets(page).len())),
            _ => None,
        })
        .collect();
    assert_eq!(pages, [(THERE, taken as usize)]);
    assert_eq!(rooms(&out), [HERE]);
    let behind = LanePos { epoch: 0, seq: taken + 1 };
    assert_eq!(
        publish_at(&mut shard, HERE, behind, 1),
        Err(Bounce::Full),
        "the rest of that run comes back too"
    );
    assert!(publish_at(&mut shard, HERE, LanePos { epoch: 1, seq: 0 }, 1).is_ok());
    assert!(publish_at(&mut shard, HERE, LanePos { epoch: 1, seq: 1 }, 1).is_ok());
}

#[test]
fn a_shard_that_opened_in_the_middle_of_a_run_does_not_take_its_rest() {
    let mut shard = shard(LIMITS);
    let missed = LanePos { epoch: 3, seq: 1 };
    assert_eq!(
        publish_at(&mut shard, THERE, missed, 1),
        Err(Bounce::Full),
        "seq 0 was sent back before it opened"
    );
    assert!(publish_at(&mut shard, HERE, LanePos { epoch: 3, seq: 0 }, 1).is_ok(), "another sender's run");
    assert!(publish_at(&mut shard, THERE, LanePos { epoch: 4, seq: 0 }, 1).is_ok());
    let hole = LanePos { epoch: 4, seq: 2 };
    assert_eq!(publish_at(&mut shard, THERE, hole, 1), Err(Bounce::Full));
}

#[test]
fn a_core_without_budget_bounces_and_is_called_when_there_is_enough_for_what_waits() {
    let mut shard = shard(LIMITS);
    assert!(publish(&mut shard, HERE, 0, 1).is_ok());
    let mut out = Vec::new();
    let job = Job { token: JobToken(1), records: records(1, 4, 100), producer: None };
    let needed = job.records.encoded_len() + SLOT_OVERHEAD_BYTES;
    shard.publish(HERE, LanePos { epoch: 0, seq: 0 }, job, &mut cx(needed - 1, &mut out));
    assert!(matches!(out[0].1.what, ShardOutput::Bounced { why: Bounce::Full, .. }));
    out.clear();
    shard.flush(needed - 1, &mut out);
    assert!(out.is_empty(), "it would only come back");
    shard.flush(needed, &mut out);
    assert!(matches!(out[0].1.what, ShardOutput::Room));
    assert_eq!(shard.starved_bytes(), None);
}

#[test]
fn history_that_is_held_stays_until_it_was_sent_or_released() {
    let mut shard = shard(LIMITS);
    for _ in 0..10 {
        publish(&mut shard, HERE, 0, 1).unwrap();
    }
    let answer = subscribe(&mut shard, THERE, Start::At(Offset(3)), true);
    assert!(
        matches!(answer, ShardOutput::Subscribed { start: Offset(3), end: Offset(10), .. }),
        "{answer:?}"
    );
    pull(&mut shard, THERE, Reader::Live, 10);
    let mut epoch = 0;
    while publish(&mut shard, HERE, epoch, 1).is_ok() {
        shard.flush(usize::MAX, &mut Vec::new());
        let end = shard.end().0;
        pull(&mut shard, THERE, Reader::Live, end);
    }
    let out = pull(&mut shard, THERE, Reader::CatchUp(SubToken(1)), 3);
    let ShardOutput::Page { page, .. } = &out[0].1 else { panic!("{out:?}") };
    assert_eq!(offsets(page).first(), Some(&3));
    assert_eq!(rooms(&out), [HERE], "what was sent is not held any more");
    epoch += 1;
    while publish(&mut shard, HERE, epoch, 1).is_ok() {
        let end = shard.end().0;
        pull(&mut shard, THERE, Reader::Live, end);
    }
    let out = handle(&mut shard, THERE, ShardInput::Release { token: SubToken(1) });
    assert_eq!(rooms(&out), [HERE]);
}

#[test]
fn a_core_that_unlinks_pins_nothing() {
    let mut shard = shard(LIMITS);
    subscribe(&mut shard, THERE, Start::Earliest, true);
    while publish(&mut shard, HERE, 0, 1).is_ok() {}
    assert_eq!(rooms(&handle(&mut shard, THERE, ShardInput::Unlink)), [HERE]);
    assert!(publish(&mut shard, HERE, 1, 1).is_ok());
}

#[test]
fn a_start_outside_what_is_held_is_refused_with_what_is_there() {
    let mut shard = shard(LIMITS);
    for _ in 0..30 {
        publish(&mut shard, HERE, 0, 2).unwrap();
    }
    let ShardOutput::Subscribed { start: oldest, end, .. } =
        subscribe(&mut shard, HERE, Start::Earliest, false)
    else {
        panic!("earliest never fails")
    };
    assert!(oldest.0 > 0 && end.0 == 60);
    for (at, expected_old) in [(oldest.0 - 1, true), (61, false)] {
        match subscribe(&mut shard, HERE, Start::At(Offset(at)), false) {
            ShardOutput::SubscribeRefused { too_old, requested, available, .. } => {
                assert_eq!((too_old, requested.0), (expected_old, at));
                assert_eq!(available, if too_old { oldest } else { end });
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(subscribe(&mut shard, HERE, Start::At(end), false), ShardOutput::Subscribed { .. }));
}

#[test]
fn a_pull_waits_for_records_and_is_answered_once() {
    let mut shard = shard(LIMITS);
    subscribe(&mut shard, THERE, Start::Latest, false);
    assert!(pull(&mut shard, THERE, Reader::Live, 0).is_empty());
    publish(&mut shard, HERE, 0, 3).unwrap();
    let mut out = Vec::new();
    shard.flush(usize::MAX, &mut out);
    let ShardOutput::Page { page, reader: Reader::Live } = &out[0].1.what else { panic!("{out:?}") };
    assert_eq!((offsets(page), page.next), (vec![0, 1, 2], Offset(3)));
    publish(&mut shard, HERE, 0, 1).unwrap();
    out.clear();
    shard.flush(usize::MAX, &mut out);
    assert!(out.is_empty(), "nobody has asked");
}

#[test]
fn a_closed_shard_tells_each_linked_core_once_with_what_it_was_not_sent() {
    for why in [Ending::Moved, Ending::Deleted] {
        let mut shard = shard(LIMITS);
        subscribe(&mut shard, HERE, Start::Latest, false);
        publish(&mut shard, HERE, 0, 2).unwrap();
        subscribe(&mut shard, THERE, Start::Latest, false);
        subscribe(&mut shard, THERE, Start::Latest, false);
        publish(&mut shard, HERE, 0, 1).unwrap();
        let mut out = Vec::new();
        shard.close(why, &mut out);
        let told: Vec<_> = out
            .iter()
            .map(|(core, o)| match &o.what {
                ShardOutput::Ended { rest, .. } => (*core, offsets(rest)),
                other => panic!("{other:?}"),
            })
            .collect();
        let moved = [(HERE, vec![0, 1, 2]), (THERE, vec![2])];
        let gone = [(HERE, vec![]), (THERE, vec![])];
        assert_eq!(told, if why == Ending::Moved { moved } else { gone });
    }
}

/// They were passed over as if nothing were there.
#[test]
fn a_page_shows_the_events_of_commits_at_their_offsets() {
    let change = StateChange::Put { key: b"k", value: b"v" };
    let commit = CommitRecord { event: b"event", changes: vec![change] }.encode(1 << 20).unwrap();
    let mut log = TestLog::default();
    log.append(&[b"before".to_vec()], 1);
    log.append_as(BatchKind::Commit, &[commit.to_vec()], 2, None);
    log.append(&[b"behind".to_vec()], 3);
    let page = page_of(&log.batches, Offset(0));
    let seen: Vec<(u64, Vec<u8>)> = page
        .slots
        .iter()
        .flat_map(|slot| (slot.base.0..).zip(slot.records.iter().map(<[u8]>::to_vec)))
        .collect();
    assert_eq!(seen, [(0, b"before".to_vec()), (1, b"event".to_vec()), (2, b"behind".to_vec())]);
    assert_eq!(page.next, Offset(3));
}
