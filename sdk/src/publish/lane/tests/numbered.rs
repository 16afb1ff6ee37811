use std::collections::HashMap;

use super::*;

const P1: ProducerId = ProducerId(71);
const P2: ProducerId = ProducerId(72);

/// Request, producer, sequence, records.
type Sent = (u64, ProducerId, u64, Vec<String>);

impl Rig {
    /// A lane with a producer, one send per frame.
    fn numbered() -> Self {
        Self::numbered_in(BatchLimits::one_send_per_frame())
    }

    fn numbered_in(batch: BatchLimits) -> Self {
        let grant = StreamGrant { window: 1_024, ordered: true, merge_keys: true };
        let mut rig = Self::new(true, batch, grant);
        rig.lane.set_numbered(true);
        rig.lane.start_producer(P1);
        rig
    }

    /// Starts every frame that may go and has the transport take `whole` of them.
    fn send_numbered_of(&mut self, whole: usize) -> Vec<Sent> {
        let mut sent = Vec::new();
        while let Some(frame) = self.lane.start_frame(self.now) {
            let records = frame.items.iter().flat_map(|item| item.payloads.as_slice());
            let text = records.map(|record| String::from_utf8_lossy(record).into_owned()).collect();
            let (producer, sequence) = frame.producer.expect("a number");
            sent.push((frame.request.get(), producer, sequence.get(), text));
            self.lane.frame_encoded(FRAME);
        }
        self.lane.bytes_written(sent.len().min(whole) * FRAME);
        sent
    }

    fn send_numbered(&mut self) -> Vec<Sent> {
        self.send_numbered_of(usize::MAX)
    }

    fn offer_all(&mut self, records: &[&str]) {
        for record in records {
            self.offer(record);
        }
    }

    fn later(&mut self) {
        self.now = self.lane.next_timeout().unwrap_or(self.now).max(self.now);
    }

    fn error(&mut self, index: usize) -> PublishError {
        self.result(index).expect("settled").expect_err("failed")
    }

    fn offset(&mut self, index: usize) -> u64 {
        self.result(index).expect("settled").expect("stored").offset.expect("an offset").get()
    }
}

fn gap(expected: u64) -> Answer {
    Answer::Ended(ProducerEnd::SequenceGap { expected })
}

fn not_durable() -> Answer {
    let Answer::Refused(mut refusal) = refuse(ErrorCode::InvalidRequest) else { unreachable!() };
    refusal.reason = Some(NOT_DURABLE.to_owned());
    Answer::Refused(refusal)
}

fn sequences(sent: &[Sent]) -> Vec<(u64, &str)> {
    sent.iter().map(|(_, _, sequence, records)| (*sequence, records[0].as_str())).collect()
}

#[test]
fn frames_are_numbered_from_nought_in_order() {
    let mut rig = Rig::numbered();
    rig.offer_all(&["a", "b", "c"]);
    let sent = rig.send_numbered();
    assert_eq!(sequences(&sent), [(0, "a"), (1, "b"), (2, "c")]);
    assert!(sent.iter().all(|(_, producer, _, _)| *producer == P1));
    for (request, offset) in [(1, 10), (2, 11), (3, 12)] {
        rig.answer(request, stored(offset)).unwrap();
    }
    assert_eq!((rig.offset(0), rig.offset(2)), (10, 12));
}

#[test]
fn a_lost_connection_sends_the_same_frames_again_in_order_and_new_ones_behind_them() {
    let batch = BatchLimits { max_records: 2, max_bytes: 1 << 20, linger: Duration::ZERO };
    let mut rig = Rig::numbered_in(batch);
    rig.offer_all(&["a", "b", "c"]);
    let before = rig.send_numbered_of(1);
    rig.lane.stream_lost("cable cut");
    assert!((0..3).all(|index| rig.result(index).is_none()), "nothing is settled by a loss");
    rig.offer_all(&["d", "e"]);
    rig.reopen();
    let after = rig.send_numbered();
    assert_eq!(after[..2], before[..], "the same records under the same numbers");
    assert_eq!(after[2], (3, P1, 2, vec!["d".to_owned(), "e".to_owned()]));
    // The first had been written, the second not.
    rig.answer(1, stored(4)).unwrap();
    rig.answer(2, stored(6)).unwrap();
    rig.answer(3, stored(7)).unwrap();
    assert_eq!((0..5).map(|index| rig.offset(index)).collect::<Vec<_>>(), [4, 5, 6, 7, 8]);
}

#[test]
fn no_more_frames_are_open_than_the_shard_remembers() {
    let mut rig = Rig::numbered();
    for number in 0..100 {
        rig.offer(&number.to_string());
    }
    assert_eq!(rig.send_numbered().len(), 64);
    rig.answer(1, stored(0)).unwrap();
    assert_eq!(rig.send_numbered().len(), 1);
    // Answers in any order: the oldest one counts.
    rig.lane.stream_lost("lost");
    rig.lane.stream_opened(StreamGrant { window: 1_024, ordered: false, merge_keys: true });
    assert_eq!(rig.send_numbered().len(), 64);
    for request in 2..=64 {
        rig.answer(request, stored(request)).unwrap();
    }
    assert!(rig.send_numbered().is_empty());
    rig.answer(1, stored(1)).unwrap();
    assert_eq!(rig.send_numbered().len(), 35);
}

#[test]
fn what_was_refused_for_now_and_what_came_behind_it_goes_again_in_order() {
    let mut rig = Rig::numbered();
    rig.offer_all(&["a", "b", "c"]);
    rig.send_numbered();
    rig.answer(1, refuse(ErrorCode::Overloaded)).unwrap();
    assert!(rig.send_numbered().is_empty(), "nothing may pass what came back");
    rig.answer(2, gap(0)).unwrap();
    // A shard that has never taken anything of the producer does not know it.
    rig.answer(3, Answer::Ended(ProducerEnd::UnknownProducer)).unwrap();
    rig.later();
    assert_eq!(sequences(&rig.send_numbered()), [(0, "a"), (1, "b"), (2, "c")]);
}

#[test]
fn an_unknown_outcome_is_asked_again_under_the_same_number() {
    for code in [ErrorCode::QuorumTimeout, ErrorCode::Storage, ErrorCode::Unacknowledged] {
        let mut rig = Rig::numbered();
        rig.offer_all(&["a", "b"]);
        rig.send_numbered();
        rig.answer(1, refuse(code.clone())).unwrap();
        rig.answer(2, stored(1)).unwrap();
        assert_eq!(rig.result(0), None, "{code}");
        rig.later();
        assert_eq!(sequences(&rig.send_numbered()), [(0, "a")]);
        // It lies before what was acknowledged meanwhile, so this cannot be its place.
        let contradiction = Err(UnexpectedAnswer::Contradiction(RequestId(3)));
        assert_eq!(rig.answer(3, stored(1)), contradiction, "{code}");
        rig.answer(3, stored(0)).unwrap();
        assert_eq!((rig.offset(0), rig.offset(1)), (0, 1));
    }
}

#[test]
fn a_final_refusal_leaves_its_number_to_what_is_behind_it() {
    let mut rig = Rig::numbered();
    rig.offer_all(&["a", "b", "c"]);
    rig.send_numbered();
    rig.answer(1, stored(0)).unwrap();
    rig.answer(2, refuse(ErrorCode::LimitExceeded)).unwrap();
    let error = rig.error(1);
    assert_eq!((error.code(), error.is_outcome_unknown()), (Some(&ErrorCode::LimitExceeded), false));
    rig.offer("d");
    assert!(rig.send_numbered().is_empty());
    rig.answer(3, gap(1)).unwrap();
    assert_eq!(sequences(&rig.send_numbered()), [(1, "c"), (2, "d")]);
}

#[test]
fn a_final_refusal_of_what_may_be_written_is_unknown_and_takes_the_producer_with_it() {
    let mut rig = Rig::numbered();
    rig.offer_all(&["a", "b"]);
    rig.send_numbered_of(1);
    rig.lane.stream_lost("lost");
    rig.reopen();
    rig.send_numbered();
    rig.answer(1, refuse(ErrorCode::Forbidden)).unwrap();
    let error = rig.error(0);
    assert_eq!((error.code(), error.is_outcome_unknown()), (Some(&ErrorCode::Forbidden), true));
    rig.answer(2, gap(0)).unwrap();
    assert!(rig.lane.needs_relook() && rig.lane.wants_producer());
    rig.lane.start_producer(P2);
    rig.reopen();
    assert_eq!(rig.send_numbered(), [(1, P2, 0, vec!["b".to_owned()])]);
}

#[test]
fn each_end_of_a_producer_is_typed_and_says_what_is_unknown() {
    let ends = [
        ProducerEnd::SequenceGap { expected: 0 },
        ProducerEnd::SequenceExpired,
        ProducerEnd::UnknownProducer,
        ProducerEnd::SequenceReused,
    ];
    for reason in ends {
        let mut rig = Rig::numbered();
        rig.offer_all(&["a", "b", "c", "d", "e"]);
        // b may be written when it comes again, the rest not.
        rig.send_numbered_of(2);
        rig.answer(1, stored(0)).unwrap();
        rig.lane.stream_lost("lost");
        rig.reopen();
        rig.send_numbered_of(3);
        rig.offer("f");
        rig.answer(1, Answer::Ended(reason)).unwrap();
        let ended = |outcome_unknown| PublishError::ProducerEnded { reason, outcome_unknown };
        assert_eq!(rig.error(1), ended(true));
        assert_eq!(rig.error(5), ended(false), "what waited is not sent");
        // A frame that is on its way can still be answered.
        rig.answer(2, Answer::Ended(ProducerEnd::SequenceGap { expected: 1 })).unwrap();
        assert_eq!(rig.error(2), ended(false));
        rig.lane.stream_lost("lost");
        // d was with the transport whole, e was not.
        assert_eq!((rig.error(3), rig.error(4)), (ended(true), ended(false)));
        rig.offer("g");
        assert_eq!(rig.error(6), ended(false));
        assert!(!rig.lane.has_waiting());
        assert!(ended(true).is_outcome_unknown());
        assert_eq!(ended(false).retry_class(), RetryClass::Fatal);
    }
}

#[test]
fn answers_that_contradict_themselves_are_violations_and_change_nothing() {
    let mut rig = Rig::numbered();
    rig.offer_all(&["a", "b"]);
    rig.send_numbered();
    rig.answer(1, stored(50)).unwrap();
    let contradiction = Err(UnexpectedAnswer::Contradiction(RequestId(2)));
    assert_eq!(rig.answer(2, stored(50)), contradiction, "an offset that is taken");
    assert_eq!(rig.answer(2, stored(3)), contradiction, "an offset that goes back");
    assert_eq!(rig.answer(2, gap(1)), contradiction, "its own number is expected");
    assert_eq!(rig.answer(2, gap(9)), contradiction, "a later number is expected");
    assert_eq!(rig.answer(1, stored(50)), Err(UnexpectedAnswer::NotOwed(RequestId(1))), "twice");
    assert_eq!(rig.answer(7, stored(51)), Err(UnexpectedAnswer::NotOwed(RequestId(7))), "never sent");
    assert_eq!(rig.result(1), None);
    rig.lane.stream_lost("a violation");
    rig.reopen();
    assert_eq!(sequences(&rig.send_numbered()), [(1, "b")]);
    rig.answer(1, stored(51)).unwrap();
    assert_eq!(rig.offset(1), 51);
    let mut plain = Rig::acked(8, true);
    plain.offer("a");
    plain.send_whole();
    let answered = plain.answer(1, Answer::Ended(ProducerEnd::UnknownProducer));
    assert_eq!(answered, Err(UnexpectedAnswer::Contradiction(RequestId(1))), "there was no number");
}

#[test]
fn a_stream_that_keeps_no_producers_gets_the_same_records_without_numbers() {
    let mut rig = Rig::numbered();
    rig.offer_all(&["a", "b"]);
    rig.send_numbered();
    rig.offer("c");
    rig.answer(1, not_durable()).unwrap();
    rig.answer(2, not_durable()).unwrap();
    assert_eq!(names(&rig.send_whole()), ["a", "b", "c"]);
    rig.lane.set_numbered(true);
    assert!(!rig.lane.wants_producer(), "it is not asked again");
    // Who insists is told.
    let mut rig = Rig::numbered();
    rig.lane.rules.may_fall_back = false;
    rig.offer("a");
    rig.send_numbered();
    rig.answer(1, not_durable()).unwrap();
    assert_eq!(rig.error(0).code(), Some(&ErrorCode::InvalidRequest));
}

#[test]
fn at_the_deadline_what_may_be_written_is_unknown_and_the_rest_goes_on_with_another_producer() {
    let away = Error::Unreachable { broker: "b:1".into(), message: "silence".into() };
    let mut rig = Rig::numbered();
    rig.offer_all(&["a", "b"]);
    rig.send_numbered_of(1);
    rig.now += Duration::from_secs(40);
    rig.offer("c");
    rig.lane.stream_lost("lost");
    rig.lane.cannot_send_or_wait(rig.now, &away, 0);
    assert_eq!((rig.result(0), rig.result(1)), (None, None));
    assert_eq!(rig.lane.try_until(), Some(rig.now + Duration::from_secs(20)));
    rig.now += Duration::from_secs(20);
    rig.lane.cannot_send_or_wait(rig.now, &away, 0);
    assert!(rig.error(0).is_outcome_unknown());
    assert_eq!(rig.error(1), PublishError::Unavailable(away));
    assert_eq!(rig.result(2), None);
    assert!(rig.lane.wants_producer());
    rig.lane.start_producer(P2);
    rig.reopen();
    rig.later();
    assert_eq!(rig.send_numbered(), [(1, P2, 0, vec!["c".to_owned()])]);
}

#[test]
fn at_the_deadline_what_was_never_sent_leaves_no_hole() {
    let away = Error::Unreachable { broker: "b:1".into(), message: "silence".into() };
    let mut rig = Rig::numbered();
    rig.offer("a");
    rig.now += Duration::from_secs(30);
    rig.offer("b");
    assert_eq!(rig.send_numbered_of(0).len(), 2);
    rig.lane.stream_lost("lost");
    rig.now += Duration::from_secs(30);
    rig.lane.cannot_send_or_wait(rig.now, &away, 0);
    assert_eq!(rig.error(0), PublishError::Unavailable(away));
    rig.reopen();
    rig.later();
    assert_eq!(rig.send_numbered(), [(1, P1, 0, vec!["b".to_owned()])]);
}

#[test]
fn an_answer_is_not_waited_for_beyond_the_deadline() {
    let mut rig = Rig::numbered();
    rig.offer("a");
    rig.now += Duration::from_secs(50);
    rig.send_numbered();
    assert_eq!(rig.lane.next_timeout(), Some(rig.now + Duration::from_secs(10)));
    rig.lane.stream_lost("lost");
    rig.now += Duration::from_secs(12);
    rig.reopen();
    rig.send_numbered();
    assert_eq!(rig.lane.next_timeout(), Some(rig.now + ATTEMPT_MIN));
}

#[test]
fn a_stream_that_a_starting_broker_does_not_know_yet_is_waited_for() {
    let gone = PublishError::Refused(crate::topology::unknown_name(felix_wire::client::ShardKind::Stream));
    let mut rig = Rig::numbered();
    rig.offer("a");
    rig.send_numbered();
    rig.lane.stream_lost("lost");
    rig.lane.stream_gone(rig.now, &gone, 0);
    rig.now += Duration::from_secs(29);
    rig.lane.stream_gone(rig.now, &gone, 0);
    assert_eq!(rig.result(0), None);
    rig.reopen();
    rig.later();
    rig.send_numbered();
    rig.answer(1, refuse(ErrorCode::NotFound)).unwrap();
    assert_eq!(rig.result(0), None);
    rig.now += Duration::from_secs(1);
    rig.lane.stream_gone(rig.now, &gone, 0);
    assert!(rig.error(0).is_outcome_unknown());
}

#[test]
fn other_shards_or_a_broker_without_producers_leave_unknown_only_what_may_be_written() {
    for plain in [false, true] {
        let mut rig = Rig::numbered();
        rig.offer_all(&["a", "b"]);
        rig.send_numbered_of(1);
        rig.offer("c");
        rig.lane.stream_lost("lost");
        if plain {
            rig.lane.set_numbered(false);
            rig.reopen();
            assert_eq!(names(&rig.send_whole()), ["b", "c"]);
        } else {
            let waiting = rig.lane.take_waiting();
            let left: Vec<_> = waiting.iter().map(|item| item.payloads.as_slice()[0].clone()).collect();
            assert_eq!(left, ["b", "c"]);
        }
        assert!(rig.error(0).is_outcome_unknown());
    }
}

/// A shard as client-protocol 10.8 has it.
#[derive(Default)]
struct Shard {
    log: Vec<String>,
    producers: HashMap<ProducerId, Vec<(u64, Vec<String>)>>,
}

impl Shard {
    fn append(&mut self, producer: ProducerId, sequence: u64, records: &[String]) -> Answer {
        if sequence > 0 && !self.producers.contains_key(&producer) {
            return Answer::Ended(ProducerEnd::UnknownProducer);
        }
        let batches = self.producers.entry(producer).or_default();
        let expected = batches.len() as u64;
        if let Some((base, first)) = batches.get(sequence as usize) {
            if first != records {
                return Answer::Ended(ProducerEnd::SequenceReused);
            }
            if expected - sequence > 64 {
                return Answer::Ended(ProducerEnd::SequenceExpired);
            }
            return stored(*base);
        }
        if sequence > expected {
            return gap(expected);
        }
        let base = self.log.len() as u64;
        batches.push((base, records.to_vec()));
        self.log.extend_from_slice(records);
        stored(base)
    }
}

/// What the broker does with the next frame it reads.
fn act(shard: &mut Shard, random: &mut Xorshift, (_, producer, sequence, records): &Sent) -> Option<Answer> {
    match random.below(16) {
        0 => Some(refuse(ErrorCode::Overloaded)),
        1 => Some(refuse(ErrorCode::Forbidden)),
        2 => Some(refuse(ErrorCode::QuorumTimeout)),
        3 => {
            shard.append(*producer, *sequence, records);
            Some(refuse(ErrorCode::QuorumTimeout))
        }
        4 => {
            // Written, and the answer is lost with the connection.
            shard.append(*producer, *sequence, records);
            None
        }
        _ => Some(shard.append(*producer, *sequence, records)),
    }
}

#[test]
fn arbitrary_answers_and_losses_store_every_numbered_send_at_most_once_and_in_order() {
    for seed in 1..=400u64 {
        let mut random = Xorshift(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let batch = BatchLimits { max_records: 3, max_bytes: 1 << 20, linger: Duration::ZERO };
        let mut rig = Rig::numbered_in(batch);
        let mut shard = Shard::default();
        let mut outstanding: VecDeque<Sent> = VecDeque::new();
        let (mut offered, mut producers) = (0, 100);
        let away = Error::lost("away");
        for step in 0..400 {
            // The end: time passes until nothing is tried any more.
            let ending = step > 300;
            rig.now += Duration::from_millis(if ending { 5_000 } else { 20 });
            match random.below(10) {
                0..=3 if offered < 90 => {
                    rig.offer_keyed(&format!("{offered:03}"), Some("k"));
                    offered += 1;
                }
                4 if ending || random.below(4) == 0 => {
                    rig.lane.stream_lost("lost");
                    outstanding.clear();
                    rig.lane.cannot_send_or_wait(rig.now, &away, 0);
                    if rig.lane.wants_producer() {
                        producers += 1;
                        rig.lane.start_producer(ProducerId(producers));
                    }
                    rig.reopen();
                }
                _ => {
                    let whole = if random.below(8) == 0 { 1 } else { usize::MAX };
                    let sent = rig.send_numbered_of(whole);
                    outstanding.extend(sent.into_iter().take(whole));
                    if whole == 1 {
                        rig.lane.stream_lost("lost in a frame");
                        // What was whole may still be read by the broker.
                        for sent in outstanding.drain(..) {
                            if random.below(2) == 0 {
                                act(&mut shard, &mut random, &sent);
                            } else {
                                break;
                            }
                        }
                        rig.reopen();
                    }
                    if let Some(sent) = outstanding.pop_front() {
                        match act(&mut shard, &mut random, &sent) {
                            Some(answer) => rig.answer(sent.0, answer).unwrap(),
                            None => {
                                rig.lane.stream_lost("lost");
                                outstanding.clear();
                                rig.reopen();
                            }
                        }
                    }
                    if rig.lane.needs_relook() {
                        if rig.lane.wants_producer() {
                            producers += 1;
                            rig.lane.start_producer(ProducerId(producers));
                        }
                        rig.reopen();
                    }
                }
            }
        }
        rig.lane.stream_lost("end");
        rig.lane.cannot_send_or_wait(rig.now + Duration::from_secs(60), &away, 0);
        check(seed, &mut rig, &shard, offered);
    }
}

/// Everything is settled, truthfully, and stored at most once and in order.
fn check(seed: u64, rig: &mut Rig, shard: &Shard, offered: usize) {
    assert!(shard.log.is_sorted(), "seed {seed}: {:?}", shard.log);
    for index in 0..offered {
        let outcome = rig.result(index).unwrap_or_else(|| panic!("seed {seed}: {index} is not settled"));
        let name = format!("{index:03}");
        let copies = shard.log.iter().filter(|record| **record == name).count();
        match outcome {
            Ok(published) => {
                let offset = published.offset.unwrap().get() as usize;
                assert_eq!(shard.log[offset], name, "seed {seed}");
                assert_eq!(copies, 1, "seed {seed}: {name}");
            }
            Err(error) if error.is_outcome_unknown() => assert!(copies <= 1, "seed {seed}: {name}"),
            Err(error) => assert_eq!(copies, 0, "seed {seed}: {name}: {error}"),
        }
    }
}
