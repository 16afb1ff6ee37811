//! Subscriptions and frames against small models.

use std::cell::Cell;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use felix_wire::client::{EventBatch, Records};
use felix_wire::frame::FrameReader;
use felix_wire::id::{CoreId, Offset};
use proptest::prelude::*;

use super::feed::Feed;
use super::frame::{Frame, FrameLimits, cut};
use super::subscription::{Delivered, PageLimits, QueueLimits, Subscription, SubscriptionKind};
use crate::shard::mail::SubToken;
use crate::shard::ring::{Page, Slot};
use crate::snapshot::SlowSubscriber;

const LIVE: FrameLimits = FrameLimits { records_max: 64, bytes_max: 256 << 10 };
const PAGE: PageLimits = PageLimits { history: LIVE, live: LIVE };

/// A subscription of a stream in memory.
fn kind(limits: QueueLimits, policy: SlowSubscriber) -> SubscriptionKind {
    SubscriptionKind { limits, policy, logged: false, offsets: true, skips: true }
}

/// A batch whose records name their offsets.
fn slot(base: u64, count: u32, len: usize) -> Slot {
    let payload = |i: u64| {
        let mut payload = vec![0; len.max(8)];
        payload[..8].copy_from_slice(&(base + i).to_be_bytes());
        payload
    };
    Slot { base: Offset(base), records: Records::from_payloads((0..u64::from(count)).map(payload)) }
}

fn frames_of(slot: &Slot, from: u64, limits: FrameLimits) -> Vec<Arc<Frame>> {
    let mut frames = Vec::new();
    cut(slot, Offset(from), limits, |frame| frames.push(frame));
    frames
}

/// Offsets in the bytes of an event stream, checked against the records' own names.
fn read_events(bytes: &[u8]) -> Vec<u64> {
    let mut reader = FrameReader::new(16 << 20);
    reader.push(Bytes::copy_from_slice(bytes));
    let mut seen = Vec::new();
    while let Some(frame) = reader.next().unwrap() {
        let batch = EventBatch::decode(frame.flags, &frame.payload).unwrap();
        for event in batch.iter() {
            let named = u64::from_be_bytes(event.payload[..8].try_into().unwrap());
            assert_eq!(event.offset, Some(Offset(named)), "an event has the offset of its record");
            seen.push(named);
        }
    }
    seen
}

/// Takes up to `chunks` chunks, as a stream that is written.
fn drain(sub: &mut Subscription, chunks: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..chunks {
        let Some(chunk) = sub.chunk() else { break };
        out.extend_from_slice(&std::mem::take(chunk));
    }
    out
}

#[test]
fn a_frame_holds_at_most_64_records_and_256_kib_unless_it_is_one_record() {
    let counts = |slot: &Slot| frames_of(slot, 0, LIVE).iter().map(|f| f.count).collect::<Vec<_>>();
    assert_eq!(counts(&slot(0, 64, 10)), [64]);
    assert_eq!(counts(&slot(0, 130, 10)), [64, 64, 2]);
    assert_eq!(counts(&slot(0, 4, 100 << 10)), [2, 2]);
    assert_eq!(counts(&slot(0, 3, 300 << 10)), [1, 1, 1]);
}

#[test]
fn a_large_record_among_small_ones_is_alone_in_its_frame() {
    let sizes = [10usize, 300 << 10, 10, 10];
    let records = Records::from_payloads(sizes.iter().map(|len| vec![7u8; *len]));
    let frames = frames_of(&Slot { base: Offset(5), records }, 5, LIVE);
    let shape: Vec<_> = frames.iter().map(|f| (f.base.0, f.count)).collect();
    assert_eq!(shape, [(5, 1), (6, 1), (7, 2)]);
}

#[test]
fn cutting_begins_inside_a_slot_where_it_is_asked_to() {
    let frames = frames_of(&slot(100, 10, 10), 107, LIVE);
    assert_eq!((frames.len(), frames[0].base, frames[0].count), (1, Offset(107), 3));
    assert!(frames_of(&slot(100, 10, 10), 110, LIVE).is_empty());
    assert_eq!(frames[0].from_offset(Offset(109)).count, 1);
}

#[test]
fn a_frame_without_offsets_is_the_plain_form() {
    let frame = &frames_of(&slot(3, 2, 10), 3, LIVE)[0];
    for offsets in [true, false] {
        let mut bytes = BytesMut::from(&frame.head(offsets)[..]);
        bytes.extend_from_slice(&frame.body());
        let mut reader = FrameReader::new(1 << 20);
        reader.push(bytes.freeze());
        let read = reader.next().unwrap().unwrap();
        let batch = EventBatch::decode(read.flags, &read.payload).unwrap();
        assert_eq!((batch.base_offset, batch.count()), (offsets.then_some(Offset(3)), 2));
    }
}

#[test]
fn a_feed_asks_once_and_ignores_an_answer_it_did_not_ask_for() {
    let mut feed = Feed::new(CoreId(0));
    assert_eq!(feed.wants_pull(|_| false), None, "it does not know where to begin");
    feed.confirmed(Offset(5));
    feed.confirmed(Offset(9));
    let page = Page { slots: vec![slot(3, 4, 8)], next: Offset(7) };
    let mut seen = Vec::new();
    feed.take_page(&page, LIVE, |frame| seen.push(frame.base.0));
    assert_eq!((seen.len(), feed.end()), (0, Offset(5)));
    feed.subscribers.extend([SubToken(7), SubToken(8), SubToken(9)]);
    let asked = Cell::new(0);
    let full = |token| {
        asked.set(asked.get() + 1);
        token == SubToken(9)
    };
    assert_eq!(feed.wants_pull(full), None, "a full Block subscriber stops it");
    assert_eq!((feed.wants_pull(full), asked.get()), (None, 4), "that one is asked first");
    assert_eq!(feed.wants_pull(|_| false), Some(Offset(5)));
    assert_eq!(feed.wants_pull(|_| panic!("nobody is asked")), None, "one pull at a time");
    feed.take_page(&page, LIVE, |frame| seen.push(frame.base.0));
    assert_eq!((seen, feed.end()), (vec![5], Offset(7)));
}

#[test]
fn what_went_to_the_stream_is_told_once_in_frames_records_and_bytes() {
    let limits = QueueLimits { frames_max: 4, bytes_max: 600 };
    let hello = Bytes::from_static(b"hello");
    let mut sub = Subscription::new(Offset(0), Offset(0), kind(limits, SlowSubscriber::DropNew), hello);
    for frame in frames_of(&slot(0, 2, 20), 0, LIVE).into_iter().chain(frames_of(&slot(2, 3, 20), 0, LIVE)) {
        assert!(sub.offer(&frame));
    }
    assert_eq!(sub.take_delivered(), Delivered::default(), "nothing has left the queue");
    while let Some(chunk) = sub.chunk() {
        chunk.clear();
    }
    assert_eq!(sub.take_delivered(), Delivered { frames: 2, records: 5, payload_bytes: 100 });
    assert_eq!(sub.take_delivered(), Delivered::default());
}

/// One subscriber beside the shard and feed that serve it.
struct World {
    sub: Subscription,
    policy: SlowSubscriber,
    /// Batches in the ring, all offsets from `oldest` on.
    ring: Vec<Slot>,
    end: u64,
    feed_end: u64,
    asked: Option<u64>,
    start: u64,
    out: Vec<u8>,
    limits: QueueLimits,
    overdraft: usize,
}

impl World {
    fn new(policy: SlowSubscriber, history: u64, start: u64) -> World {
        let limits = QueueLimits { frames_max: 4, bytes_max: 600 };
        let ring: Vec<Slot> = (0..history).map(|i| slot(i * 3, 3, 20)).collect();
        let end = history * 3;
        let start = start.min(end);
        let sub = Subscription::new(Offset(start), Offset(end), kind(limits, policy), Bytes::new());
        World {
            sub,
            policy,
            ring,
            end,
            feed_end: end,
            asked: None,
            start,
            out: Vec::new(),
            limits,
            overdraft: 0,
        }
    }

    fn publish(&mut self, count: u32) {
        self.ring.push(slot(self.end, count, 20));
        self.end += u64::from(count);
    }

    /// The feed reads on and offers what it read; not while a Block subscriber is full.
    fn feed(&mut self) {
        if self.sub.blocks() {
            return;
        }
        self.overdraft = 0;
        let fresh: Vec<Slot> = self.ring.iter().filter(|s| s.end().0 > self.feed_end).cloned().collect();
        for slot in fresh {
            for frame in frames_of(&slot, self.feed_end, LIVE) {
                self.overdraft += frame.cost();
                self.sub.offer(&frame);
            }
        }
        self.feed_end = self.end;
    }

    fn ask(&mut self) {
        if let Some((from, _)) = self.sub.wants_page() {
            assert!(self.asked.is_none(), "one page at a time");
            self.asked = Some(from.0);
        }
    }

    fn page(&mut self) {
        let Some(from) = self.asked.take() else { return };
        let held: Vec<Slot> = self.ring.iter().filter(|s| s.end().0 > from).take(2).cloned().collect();
        let next = held.last().map_or(Offset(self.end), Slot::end);
        self.overdraft = held.iter().map(|s| s.records.encoded_len() + 64 * 3).sum();
        self.sub.take_page(&Page { slots: held, next }, Offset(self.feed_end), PAGE);
    }

    /// The ring gives up its oldest batch; a Block subscriber's history is held for it by the shard.
    fn evict(&mut self) {
        if self.policy != SlowSubscriber::Block
            && self.ring.len() > 1
            && self.ring[0].end().0 <= self.feed_end
        {
            self.ring.remove(0);
        }
    }

    fn check(&self) -> Result<Vec<u64>, TestCaseError> {
        let budget = self.limits.bytes_max + self.overdraft + 400;
        prop_assert!(self.sub.held_bytes() <= budget, "{} of {budget}", self.sub.held_bytes());
        let whole = self.out.len();
        let seen = read_events(&self.out[..whole]);
        prop_assert!(seen.windows(2).all(|w| w[0] < w[1]), "{seen:?}");
        prop_assert!(seen.first().is_none_or(|first| *first >= self.start));
        Ok(seen)
    }
}

fn policies() -> impl Strategy<Value = SlowSubscriber> {
    prop_oneof![Just(SlowSubscriber::Block), Just(SlowSubscriber::DropNew), Just(SlowSubscriber::DropOld)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn history_joins_live_in_order_within_budget_and_every_loss_is_counted(
        policy in policies(),
        history in 0u64..6,
        start in 0u64..20,
        steps in proptest::collection::vec((0u8..7, 1u32..8), 0..150),
    ) {
        let mut world = World::new(policy, history, start);
        for (what, amount) in steps {
            match what {
                0 | 1 => world.publish(amount),
                2 => world.feed(),
                3 => world.ask(),
                4 => world.page(),
                5 => world.evict(),
                _ => {
                    let bytes = drain(&mut world.sub, amount as usize);
                    world.out.extend_from_slice(&bytes);
                }
            }
        }
        for _ in 0..100 {
            let bytes = drain(&mut world.sub, usize::MAX);
            world.out.extend_from_slice(&bytes);
            world.feed();
            world.ask();
            world.page();
        }
        let seen = world.check()?;
        let owed = world.end - world.start;
        prop_assert_eq!(seen.len() as u64 + world.sub.dropped(), owed, "{:?}", seen);
        if policy == SlowSubscriber::Block {
            prop_assert_eq!(world.sub.dropped(), 0);
        }
    }
}

fn offer(sub: &mut Subscription, base: u64) -> bool {
    sub.offer(&frames_of(&slot(base, 1, 20), base, LIVE)[0])
}

fn live(policy: SlowSubscriber, frames_max: usize) -> Subscription {
    let limits = QueueLimits { frames_max, bytes_max: 1 << 20 };
    Subscription::new(Offset(0), Offset(0), kind(limits, policy), Bytes::new())
}

#[test]
fn drop_old_keeps_the_newest_and_drop_new_the_oldest_until_half_is_free() {
    let mut old = live(SlowSubscriber::DropOld, 4);
    let mut new = live(SlowSubscriber::DropNew, 4);
    for base in 0..10 {
        offer(&mut old, base);
        offer(&mut new, base);
    }
    assert_eq!((old.dropped(), new.dropped()), (6, 6));
    assert_eq!(read_events(&drain(&mut old, usize::MAX)), [6, 7, 8, 9]);
    assert_eq!(read_events(&drain(&mut new, 2)), [0]);
    assert!(!offer(&mut new, 10), "three of four are still taken");
    assert_eq!(read_events(&drain(&mut new, 4)), [1, 2]);
    assert!(offer(&mut new, 11));
}

#[test]
fn an_ending_comes_after_the_queue_or_after_the_frame_on_its_way() {
    for after_queue in [true, false] {
        let mut sub = live(SlowSubscriber::DropNew, 8);
        for base in 0..3 {
            offer(&mut sub, base);
        }
        let mut out = drain(&mut sub, 1);
        assert_eq!(sub.undelivered(), Offset(1));
        sub.end(Bytes::from_static(b"last"), after_queue);
        assert!(!offer(&mut sub, 3), "nothing is queued behind an ending");
        out.extend_from_slice(&drain(&mut sub, usize::MAX));
        assert!(sub.is_done());
        let (events, last) = out.split_at(out.len() - 4);
        assert_eq!(last, b"last");
        assert_eq!(read_events(events), if after_queue { vec![0, 1, 2] } else { vec![0] });
    }
}

#[test]
fn an_ending_that_drops_what_was_to_leave_before_another_ending_replaces_that_when_there_is_a_log() {
    for (logged, expected, dropped) in [(true, &b"from 1"[..], 0), (false, &b"from 3"[..], 2)] {
        let limits = QueueLimits { frames_max: 8, bytes_max: 1 << 20 };
        let kind = SubscriptionKind { logged, ..kind(limits, SlowSubscriber::DropNew) };
        let mut sub = Subscription::new(Offset(0), Offset(0), kind, Bytes::new());
        (0..3).for_each(|base| assert!(offer(&mut sub, base)));
        assert_eq!(read_events(&drain(&mut sub, 2)), [0]);
        sub.end(Bytes::from_static(b"from 3"), true);
        sub.end(format!("from {}", sub.undelivered().0).into(), false);
        assert_eq!(drain(&mut sub, usize::MAX), expected, "records 1 and 2 have not left");
        assert!(sub.is_done() && sub.dropped() == dropped);
    }
}

/// Where the page begins that it asks for.
fn asks(sub: &mut Subscription) -> Option<Offset> {
    sub.wants_page().map(|(from, _)| from)
}

#[test]
fn history_that_has_gone_altogether_is_counted_as_lost() {
    let limits = QueueLimits { frames_max: 4, bytes_max: 1 << 20 };
    let kind = kind(limits, SlowSubscriber::DropNew);
    let mut sub = Subscription::new(Offset(2), Offset(9), kind, Bytes::new());
    assert_eq!(asks(&mut sub), Some(Offset(2)));
    assert!(sub.take_page(&Page { slots: Vec::new(), next: Offset(9) }, Offset(9), PAGE));
    assert_eq!(sub.dropped(), 7);
}

#[test]
fn the_rest_of_a_moved_shard_is_given_once_whatever_it_holds_for_others() {
    let limits = QueueLimits { frames_max: 100, bytes_max: 1 << 20 };
    let rest = Page { slots: (0..5).map(|i| slot(i * 3, 3, 20)).collect(), next: Offset(15) };
    for (start, end) in [(0, 9), (4, 9), (9, 15), (15, 15)] {
        let block = SlowSubscriber::Block;
        let mut sub = Subscription::new(Offset(start), Offset(end), kind(limits, block), Bytes::new());
        sub.take_rest(&rest, PAGE);
        for frame in rest.slots.iter().flat_map(|s| frames_of(s, 0, LIVE)) {
            sub.offer(&frame);
        }
        assert_eq!(read_events(&drain(&mut sub, usize::MAX)), (start..15).collect::<Vec<_>>());
        assert_eq!(sub.dropped(), 0);
    }
}

/// A subscription of a durable stream with a queue of two frames.
fn logged(start: u64, end: u64) -> Subscription {
    let limits = QueueLimits { frames_max: 2, bytes_max: 1 << 20 };
    let kind = SubscriptionKind { logged: true, ..kind(limits, SlowSubscriber::DropNew) };
    Subscription::new(Offset(start), Offset(end), kind, Bytes::new())
}

#[test]
fn a_durable_subscription_that_does_not_keep_up_reads_the_log_and_loses_nothing() {
    let mut sub = logged(0, 0);
    for base in 0..10 {
        offer(&mut sub, base);
    }
    assert_eq!(read_events(&drain(&mut sub, usize::MAX)), [0, 1]);
    assert_eq!(asks(&mut sub), Some(Offset(2)));
    assert_eq!(asks(&mut sub), None, "one page at a time");
    assert!(!sub.take_page(&Page { slots: vec![slot(2, 4, 8)], next: Offset(6) }, Offset(10), PAGE));
    assert_eq!(read_events(&drain(&mut sub, usize::MAX)), [2, 3, 4, 5]);
    assert_eq!(asks(&mut sub), Some(Offset(6)));
    assert!(sub.take_page(&Page { slots: vec![slot(6, 4, 8)], next: Offset(10) }, Offset(10), PAGE));
    assert_eq!(read_events(&drain(&mut sub, usize::MAX)), [6, 7, 8, 9]);
    assert!(offer(&mut sub, 10), "it is live again");
    assert_eq!((sub.dropped(), read_events(&drain(&mut sub, usize::MAX))), (0, vec![10]));
}

#[test]
fn the_next_page_is_asked_for_while_the_one_before_leaves() {
    let mut sub = logged(0, 100);
    let (from, bytes_max) = sub.wants_page().unwrap();
    assert_eq!(from, Offset(0));
    let small = Page { slots: vec![slot(0, 1, bytes_max / 2)], next: Offset(1) };
    assert!(!sub.take_page(&small, Offset(100), PAGE));
    assert_eq!(asks(&mut sub), Some(Offset(1)), "less than a page is queued");
    let large = Page { slots: vec![slot(1, 1, bytes_max)], next: Offset(2) };
    assert!(!sub.take_page(&large, Offset(100), PAGE));
    assert_eq!(asks(&mut sub), None, "more than a page is queued");
    drain(&mut sub, usize::MAX);
    assert_eq!(asks(&mut sub), Some(Offset(2)));
}

#[test]
fn a_durable_subscription_reads_in_the_log_what_its_feed_did_not_see() {
    let mut sub = logged(0, 0);
    assert!(offer(&mut sub, 5), "it has to be looked at");
    assert_eq!(asks(&mut sub), Some(Offset(0)));
    assert!(sub.take_page(&Page { slots: vec![slot(0, 6, 8)], next: Offset(6) }, Offset(6), PAGE));
    assert_eq!(read_events(&drain(&mut sub, usize::MAX)), [0, 1, 2, 3, 4, 5]);
    assert_eq!(sub.dropped(), 0);
}

#[test]
fn offsets_without_records_are_told_as_skipped_and_not_as_lost() {
    let mut sub = logged(0, 9);
    assert_eq!(asks(&mut sub), Some(Offset(0)));
    let page = Page { slots: vec![slot(0, 1, 8)], next: Offset(9) };
    assert!(sub.take_page(&page, Offset(9), PAGE));
    assert!(offer(&mut sub, 9));
    assert_eq!(sub.dropped(), 0);
    let events = drain(&mut sub, usize::MAX);
    let mut reader = FrameReader::new(1 << 20);
    reader.push(Bytes::from(events));
    let skips: Vec<u64> = std::iter::from_fn(|| reader.next().ok().flatten())
        .map(|frame| EventBatch::decode(frame.flags, &frame.payload).expect("an event frame").skipped_before)
        .collect();
    assert_eq!(skips, [0, 8]);
}
