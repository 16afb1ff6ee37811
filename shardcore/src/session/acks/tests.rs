//! Answers in order and out of order against a list of what is owed.

use felix_wire::frame::FrameReader;
use proptest::prelude::*;

use super::*;
use crate::session::refusal::Refusal;

const ORDERED: AckDialect =
    AckDialect { ordered: true, codes: true, flags: Flags(0x1fff), reads_reused: true, positions: false };
const FREE: AckDialect = AckDialect { ordered: false, ..ORDERED };

/// Request ids answered by the bytes in `out`, with the offset or `None` for a refusal or no offset.
fn answered(out: &mut BytesMut) -> Vec<(u64, bool, Option<u64>)> {
    let mut reader = FrameReader::new(1 << 20);
    reader.push(out.split().freeze());
    std::iter::from_fn(|| reader.next().unwrap())
        .map(|frame| {
            if frame.flags == 0 {
                return match Message::decode(&frame.payload).unwrap() {
                    Message::PublishOk(m) => (m.request_id.0, true, m.offset.map(|o| o.0)),
                    Message::PublishError(m) => (m.request_id.0, false, None),
                    other => panic!("not an answer: {other:?}"),
                };
            }
            let ack = PublishAck::decode(frame.flags, &frame.payload).unwrap();
            match ack.outcome {
                AckOutcome::Ok { offset } => (ack.request_id.0, true, offset.map(|o| o.0)),
                AckOutcome::Error { code, .. } => {
                    assert!(code.is_some(), "the client reads codes");
                    (ack.request_id.0, false, None)
                }
            }
        })
        .collect()
}

fn outcome(number: u64) -> Outcome {
    if number.is_multiple_of(5) {
        Outcome::Refused(Box::new(Refusal::overloaded(500)))
    } else {
        Outcome::Written { base: Offset(number * 10), logged: false }
    }
}

proptest! {
    #[test]
    fn every_acked_publish_is_answered_once_and_with_order_in_read_order(
        ordered in any::<bool>(),
        steps in proptest::collection::vec((0u8..3, any::<prop::sample::Index>()), 0..200),
    ) {
        let dialect = if ordered { ORDERED } else { FREE };
        let mut ring = AckRing::default();
        let mut out = BytesMut::new();
        let mut open: Vec<(u64, AckSlot)> = Vec::new();
        let (mut read, mut settled, mut seen) = (0, Vec::new(), Vec::new());
        for (what, which) in steps {
            match what {
                0 => {
                    let form = if read % 2 == 0 { AckForm::Binary } else { AckForm::Json };
                    open.push((read, ring.open(RequestId(read), form)));
                    read += 1;
                }
                1 if !open.is_empty() => {
                    let (number, slot) = open.swap_remove(which.index(open.len()));
                    ring.settle(slot, outcome(number));
                    settled.push(number);
                }
                _ => {
                    ring.flush(dialect, &mut out);
                    for (id, ok, offset) in answered(&mut out) {
                        prop_assert_eq!((ok, offset), (id % 5 != 0, None));
                        seen.push(id);
                    }
                    let head = (0..read).take_while(|n| settled.contains(n)).count();
                    if ordered {
                        prop_assert_eq!(&seen, &(0..head as u64).collect::<Vec<_>>());
                    } else {
                        let mut sorted = (seen.clone(), settled.clone());
                        sorted.0.sort_unstable();
                        sorted.1.sort_unstable();
                        prop_assert_eq!(sorted.0, sorted.1);
                    }
                }
            }
        }
        for (number, slot) in open.drain(..) {
            ring.settle(slot, outcome(number));
        }
        ring.flush(dialect, &mut out);
        seen.extend(answered(&mut out).iter().map(|a| a.0));
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..read).collect::<Vec<_>>());
        prop_assert_eq!(ring.unanswered(), 0);
    }
}

#[test]
fn an_offset_goes_only_to_a_client_that_negotiated_positions_and_the_flag() {
    for (positions, flags, told) in
        [(true, Flags(0x1fff), Some(70)), (false, Flags(0x1fff), None), (true, Flags::UNANNOUNCED, None)]
    {
        let dialect = AckDialect { positions, flags, ..ORDERED };
        for form in [AckForm::Binary, AckForm::Json] {
            let mut ring = AckRing::default();
            let slot = ring.open(RequestId(7), form);
            ring.settle(slot, Outcome::Written { base: Offset(70), logged: false });
            let mut out = BytesMut::new();
            ring.flush(dialect, &mut out);
            assert_eq!(answered(&mut out), [(7, true, told)], "{dialect:?} {form:?}");
        }
    }
}

#[test]
fn a_client_that_reads_no_codes_gets_none() {
    let mut ring = AckRing::default();
    let slot = ring.open(RequestId(1), AckForm::Binary);
    ring.settle(slot, Outcome::Refused(Box::new(Refusal::forbidden())));
    let mut out = BytesMut::new();
    ring.flush(AckDialect { codes: false, ..ORDERED }, &mut out);
    let mut reader = FrameReader::new(1 << 20);
    reader.push(out.freeze());
    let frame = reader.next().unwrap().unwrap();
    assert_eq!(Flags(frame.flags), Flags::PUBLISH_ACK);
}
