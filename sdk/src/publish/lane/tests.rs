mod numbered;

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use felix_wire::error_code::{ErrorCode, RetryClass};

use super::*;
use crate::limits::REROUTES_MAX;
use crate::publish::item::Payloads;
use crate::publish::{Published, Receipt};

const SHARD: u32 = 3;
const FRAME: usize = 100;

fn refuse(code: ErrorCode) -> Answer {
    let retry = code.default_retry();
    let message = code.to_string();
    Answer::Refused(Refusal { code: Some(code), retry, message, reason: None, retry_after: None })
}

fn stored(offset: u64) -> Answer {
    Answer::Stored { offset: Some(Offset(offset)) }
}

fn outcome(receipt: &mut Receipt) -> Option<Result<Published, PublishError>> {
    let waker = std::task::Waker::noop();
    let mut cx = std::task::Context::from_waker(waker);
    match std::pin::Pin::new(receipt).poll(&mut cx) {
        std::task::Poll::Ready(outcome) => Some(outcome),
        std::task::Poll::Pending => None,
    }
}

struct Rig {
    lane: Lane,
    now: Instant,
    receipts: Vec<Receipt>,
}

impl Rig {
    fn new(acked: bool, batch: BatchLimits, grant: StreamGrant) -> Self {
        let rules = LaneRules {
            shard: SHARD,
            acked,
            batch,
            ack_timeout: Duration::from_secs(30),
            retry_for: Duration::from_secs(5),
            retry_numbered_for: Duration::from_secs(60),
            unknown_for: Duration::from_secs(30),
            may_fall_back: true,
        };
        let mut lane = Lane::new(rules);
        lane.stream_opened(grant);
        Self { lane, now: Instant::now(), receipts: Vec::new() }
    }

    fn acked(window: usize, ordered: bool) -> Self {
        let grant = StreamGrant { window, ordered, merge_keys: true };
        Self::new(true, BatchLimits::one_send_per_frame(), grant)
    }

    fn offer(&mut self, record: &str) {
        self.offer_keyed(record, None);
    }

    fn offer_keyed(&mut self, record: &str, key: Option<&str>) {
        let payload = Payloads::One(Bytes::copy_from_slice(record.as_bytes()));
        let key = key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
        let (item, receipt) = Item::new(key, payload, self.lane.rules.acked, self.now, None);
        self.lane.accept([item]);
        self.receipts.push(receipt);
    }

    /// Starts and encodes every frame that may go, and answers their records.
    fn send(&mut self) -> Vec<(u64, Vec<String>)> {
        let mut frames = Vec::new();
        while let Some(frame) = self.lane.start_frame(self.now) {
            let records = frame.items.iter().flat_map(|item| item.payloads.as_slice());
            let text = records.map(|record| String::from_utf8_lossy(record).into_owned()).collect();
            frames.push((frame.request.get(), text));
            self.lane.frame_encoded(FRAME);
        }
        frames
    }

    /// Sends, and has the transport take all of it.
    fn send_whole(&mut self) -> Vec<(u64, Vec<String>)> {
        let frames = self.send();
        self.lane.bytes_written(frames.len() * FRAME);
        frames
    }

    fn answer(&mut self, request: u64, answer: Answer) -> Result<(), UnexpectedAnswer> {
        self.lane.answered(RequestId(request), answer, self.now, || 0)
    }

    fn result(&mut self, index: usize) -> Option<Result<Published, PublishError>> {
        outcome(&mut self.receipts[index])
    }

    fn reopen(&mut self) {
        self.lane.stream_opened(StreamGrant { window: 64, ordered: true, merge_keys: true });
    }
}

fn names(frames: &[(u64, Vec<String>)]) -> Vec<&str> {
    frames.iter().flat_map(|(_, records)| records.iter().map(String::as_str)).collect()
}

#[test]
fn the_window_bounds_what_is_unanswered_and_an_answer_makes_room() {
    let mut rig = Rig::acked(2, true);
    for record in ["a", "b", "c", "d"] {
        rig.offer(record);
    }
    assert_eq!(names(&rig.send_whole()), ["a", "b"]);
    rig.answer(1, stored(10)).unwrap();
    assert_eq!(names(&rig.send_whole()), ["c"]);
    assert_eq!(rig.result(0), Some(Ok(Published { shard: SHARD, offset: Some(Offset(10)) })));
    assert_eq!(rig.result(1), None);
}

#[test]
fn ordered_answers_must_answer_the_oldest() {
    let mut rig = Rig::acked(8, true);
    rig.offer("a");
    rig.offer("b");
    rig.send_whole();
    assert_eq!(rig.answer(2, stored(1)), Err(UnexpectedAnswer::NotOwed(RequestId(2))));
    rig.answer(1, stored(0)).unwrap();
    rig.answer(2, stored(1)).unwrap();
    assert_eq!(rig.answer(2, stored(1)), Err(UnexpectedAnswer::NotOwed(RequestId(2))));
}

#[test]
fn answers_in_any_order_reach_their_own_receipts() {
    let mut rig = Rig::acked(8, false);
    for record in ["a", "b", "c"] {
        rig.offer(record);
    }
    rig.send_whole();
    for request in [3, 1, 2] {
        rig.answer(request, stored(request * 10)).unwrap();
        assert_eq!(rig.answer(request, stored(0)), Err(UnexpectedAnswer::NotOwed(RequestId(request))));
    }
    for (index, offset) in [10, 20, 30].into_iter().enumerate() {
        assert_eq!(rig.result(index).unwrap().unwrap().offset, Some(Offset(offset)));
    }
    assert!(!rig.lane.has_flights());
}

#[test]
fn an_answer_to_a_frame_that_was_not_sent_whole_is_a_violation() {
    let mut rig = Rig::acked(8, true);
    rig.offer("a");
    rig.send();
    rig.lane.bytes_written(FRAME - 1);
    assert!(rig.answer(1, stored(0)).is_err());
    rig.lane.bytes_written(1);
    assert!(rig.answer(1, stored(0)).is_ok());
}

#[test]
fn merged_sends_get_the_offsets_of_their_own_records() {
    let batch = BatchLimits { max_records: 3, max_bytes: 1 << 20, linger: Duration::ZERO };
    let mut rig = Rig::new(true, batch, StreamGrant { window: 8, ordered: true, merge_keys: true });
    for record in ["a", "b", "c", "d"] {
        rig.offer(record);
    }
    let frames = rig.send_whole();
    assert_eq!(frames, [(1, vec!["a".into(), "b".into(), "c".into()]), (2, vec!["d".into()])]);
    rig.answer(1, stored(7)).unwrap();
    let offsets: Vec<_> =
        (0..3).map(|index| rig.result(index).unwrap().unwrap().offset.unwrap().get()).collect();
    assert_eq!(offsets, [7, 8, 9]);
}

#[test]
fn keys_share_a_frame_only_when_a_wrong_width_would_be_refused() {
    let batch = BatchLimits::default();
    for merge_keys in [true, false] {
        let mut rig = Rig::new(true, batch, StreamGrant { window: 8, ordered: true, merge_keys });
        rig.offer_keyed("a", Some("k1"));
        rig.offer_keyed("b", Some("k1"));
        rig.offer_keyed("c", Some("k2"));
        rig.offer("d");
        let sizes: Vec<_> = rig.send_whole().iter().map(|(_, records)| records.len()).collect();
        let expected: &[usize] = if merge_keys { &[3, 1] } else { &[2, 1, 1] };
        assert_eq!(sizes, expected);
    }
}

#[test]
fn a_full_frame_goes_at_once_and_a_partial_one_lingers() {
    let batch = BatchLimits { max_records: 2, max_bytes: 1 << 20, linger: Duration::from_millis(5) };
    let mut rig = Rig::new(true, batch, StreamGrant { window: 8, ordered: true, merge_keys: true });
    rig.offer("a");
    assert!(rig.send_whole().is_empty());
    assert_eq!(rig.lane.next_timeout(), Some(rig.now + batch.linger));
    rig.offer("b");
    rig.offer("c");
    assert_eq!(names(&rig.send_whole()), ["a", "b"]);
    rig.now += batch.linger;
    assert_eq!(names(&rig.send_whole()), ["c"]);
    rig.offer("d");
    rig.lane.hurry(true);
    assert_eq!(names(&rig.send_whole()), ["d"]);
}

#[test]
fn a_lost_stream_leaves_whole_frames_unknown_and_sends_the_rest_again_in_order() {
    let mut rig = Rig::acked(8, true);
    for record in ["a", "b", "c", "d"] {
        rig.offer(record);
    }
    rig.send();
    // a whole, b in part, c and d not at all.
    rig.lane.bytes_written(FRAME + FRAME / 2);
    rig.lane.stream_lost("cable cut");
    assert!(rig.result(0).unwrap().unwrap_err().is_outcome_unknown());
    assert_eq!(rig.result(1), None);
    rig.reopen();
    assert_eq!(rig.send_whole(), [(1, vec!["b".into()]), (2, vec!["c".into()]), (3, vec!["d".into()])]);
}

#[test]
fn a_stale_width_stops_sending_until_every_flight_has_landed_and_keeps_the_order() {
    let mut rig = Rig::acked(3, true);
    for record in ["a", "b", "c", "d"] {
        rig.offer_keyed(record, Some("k"));
    }
    rig.send_whole();
    rig.answer(1, stored(0)).unwrap();
    rig.answer(2, refuse(ErrorCode::StaleWidth)).unwrap();
    assert!(rig.send_whole().is_empty(), "nothing may overtake what came back");
    assert!(!rig.lane.needs_relook());
    rig.answer(3, refuse(ErrorCode::StaleWidth)).unwrap();
    assert!(rig.lane.needs_relook());
    let items = rig.lane.take_waiting();
    let order: Vec<_> = items.iter().map(|item| item.payloads.as_slice()[0].clone()).collect();
    assert_eq!(order, ["b", "c", "d"]);
    assert_eq!(items.iter().map(|item| item.returns).collect::<Vec<_>>(), [1, 1, 0]);
}

#[test]
fn a_width_that_never_fits_is_given_up() {
    let mut rig = Rig::acked(8, true);
    rig.offer_keyed("a", Some("k"));
    for round in 0..=REROUTES_MAX {
        assert_eq!(rig.send_whole().len(), 1, "round {round}");
        rig.answer(1, refuse(ErrorCode::StaleWidth)).unwrap();
        rig.reopen();
        rig.now = rig.lane.next_timeout().unwrap_or(rig.now);
    }
    let error = rig.result(0).unwrap().unwrap_err();
    assert_eq!(error.code(), Some(&ErrorCode::StaleWidth));
    assert!(!error.is_outcome_unknown());
}

#[test]
fn an_overloaded_broker_is_tried_again_after_the_time_it_named_and_given_up_in_the_end() {
    let mut rig = Rig::acked(8, true);
    rig.offer("a");
    rig.send_whole();
    let wait = Duration::from_secs(2);
    let Answer::Refused(refusal) = refuse(ErrorCode::Overloaded) else { unreachable!() };
    let busy = || Answer::Refused(Refusal { retry_after: Some(wait), ..refusal.clone() });
    rig.answer(1, busy()).unwrap();
    assert!(rig.send_whole().is_empty());
    assert_eq!(rig.lane.next_timeout(), Some(rig.now + wait));
    rig.now += wait;
    assert_eq!(rig.send_whole(), [(2, vec!["a".into()])]);
    rig.now += Duration::from_secs(4);
    rig.answer(2, busy()).unwrap();
    let error = rig.result(0).unwrap().unwrap_err();
    assert_eq!((error.retry_class(), error.is_outcome_unknown()), (RetryClass::RetryAfter, false));
}

#[test]
fn a_refused_identity_is_presented_again_once() {
    let mut rig = Rig::acked(8, true);
    rig.offer("a");
    rig.send_whole();
    rig.answer(1, refuse(ErrorCode::Unauthenticated)).unwrap();
    assert!(rig.lane.needs_relook());
    rig.reopen();
    rig.send_whole();
    rig.answer(1, refuse(ErrorCode::Unauthenticated)).unwrap();
    assert_eq!(rig.result(0).unwrap().unwrap_err().code(), Some(&ErrorCode::Unauthenticated));
}

#[test]
fn refusals_that_stay_are_final_and_say_whether_something_was_written() {
    let cases = [
        (ErrorCode::Forbidden, false),
        (ErrorCode::NotFound, false),
        (ErrorCode::LimitExceeded, false),
        (ErrorCode::QuorumTimeout, true),
        (ErrorCode::Storage, true),
    ];
    for (code, unknown) in cases {
        let mut rig = Rig::acked(8, true);
        rig.offer("a");
        rig.offer("b");
        rig.send_whole();
        rig.answer(1, refuse(code.clone())).unwrap();
        let error = rig.result(0).unwrap().unwrap_err();
        assert_eq!((error.code(), error.is_outcome_unknown()), (Some(&code), unknown));
        rig.answer(2, stored(0)).unwrap();
        assert!(rig.result(1).unwrap().is_ok(), "one refusal leaves the stream open");
    }
}

#[test]
fn an_answer_that_does_not_come_is_overdue_at_its_deadline() {
    let mut rig = Rig::acked(8, true);
    rig.offer("a");
    rig.send_whole();
    let due = rig.lane.next_timeout().unwrap();
    assert_eq!(due, rig.now + Duration::from_secs(30));
    assert!(!rig.lane.is_overdue(due - Duration::from_nanos(1)));
    assert!(rig.lane.is_overdue(due));
}

#[test]
fn unreachable_brokers_fail_only_what_has_waited_long_enough_and_a_bad_token_fails_all() {
    let mut rig = Rig::acked(8, true);
    rig.offer("old");
    rig.now += Duration::from_secs(5);
    rig.offer("new");
    let away = Error::Unreachable { broker: "b:1".into(), message: "silence".into() };
    rig.lane.cannot_send_or_wait(rig.now, &away, 0);
    assert_eq!(rig.result(0), Some(Err(PublishError::Unavailable(away))));
    assert_eq!(rig.result(1), None);
    let token = Error::Token { message: "gone".into() };
    rig.lane.cannot_send_or_wait(rig.now, &token, 0);
    let error = rig.result(1).unwrap().unwrap_err();
    assert_eq!((error.retry_class(), error.is_outcome_unknown()), (RetryClass::Fatal, false));
}

#[test]
fn unacknowledged_frames_leave_when_the_transport_has_them_and_count_as_lost_with_it() {
    let grant = StreamGrant { window: 1, ordered: true, merge_keys: true };
    let mut rig = Rig::new(false, BatchLimits::one_send_per_frame(), grant);
    for record in ["a", "b", "c"] {
        rig.offer(record);
    }
    assert_eq!(rig.send().len(), 3, "no window without answers");
    rig.lane.bytes_written(2 * FRAME);
    assert!(rig.lane.has_unconfirmed() && rig.lane.has_flights());
    rig.lane.stream_lost("cable cut");
    assert_eq!(rig.lane.take_lost(), 2);
    assert_eq!(rig.lane.take_lost(), 0);
    rig.reopen();
    assert_eq!(names(&rig.send_whole()), ["c"]);
    rig.lane.confirmed();
    assert!(!rig.lane.has_unconfirmed());
}

/// A small generator for arbitrary event sequences.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn arbitrary_answers_and_losses_settle_every_send_once_and_keep_the_order_of_what_is_stored() {
    for seed in 1..=300u64 {
        let mut random = Xorshift(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut rig = Rig::acked(4, true);
        let mut outstanding: VecDeque<(u64, Vec<String>)> = VecDeque::new();
        let mut written_log: Vec<String> = Vec::new();
        let mut offered = 0;
        let mut refusing = false;
        for _ in 0..200 {
            match random.below(8) {
                0..=2 if offered < 40 => {
                    rig.offer_keyed(&format!("{offered:03}"), Some("k"));
                    offered += 1;
                }
                7 if random.below(4) == 0 => {
                    rig.lane.stream_lost("lost");
                    outstanding.clear();
                    rig.reopen();
                    refusing = false;
                }
                6 if random.below(3) == 0 => refusing = true,
                _ => {
                    outstanding.extend(rig.send_whole());
                    if let Some((request, records)) = outstanding.pop_front() {
                        // A stale width refuses everything that follows on the stream.
                        let answer = if refusing {
                            refuse(ErrorCode::StaleWidth)
                        } else {
                            written_log.extend(records);
                            stored(0)
                        };
                        rig.answer(request, answer).unwrap();
                    }
                    if rig.lane.needs_relook() {
                        rig.reopen();
                        refusing = false;
                    }
                }
            }
        }
        rig.lane.stream_lost("end");
        rig.reopen();
        rig.lane.stream_gone(rig.now, &PublishError::Closed, 0);
        assert!(written_log.is_sorted(), "seed {seed}: {written_log:?}");
        for index in 0..offered {
            let outcome = rig.result(index).expect("settled");
            let name = format!("{index:03}");
            let copies = written_log.iter().filter(|record| **record == name).count();
            match outcome {
                Ok(_) => assert_eq!(copies, 1, "seed {seed}: {name} is said to be written"),
                Err(error) if error.is_outcome_unknown() => assert!(copies <= 1, "seed {seed}: {name}"),
                Err(_) => assert_eq!(copies, 0, "seed {seed}: {name} is said not to be written"),
            }
        }
    }
}
