//! From bytes to requests: takes whole frames of a stream and hands each to the one that serves it.
//! Scope: functions of a session. Invariants: what comes before `auth` is refused; a frame with unknown flags costs the
//! frame, a broken envelope costs the stream, nothing costs the connection but repetition.

use felix_runtime::quic::StreamId;
use felix_wire::client::{Form, Message, PublishDecodeError};
use felix_wire::error_code::ErrorCode;
use felix_wire::flags::Flags;
use felix_wire::frame::{DecodeError, Frame};

use super::acks::{AckForm, Outcome};
use super::refusal::Refusal;
use super::stream::Phase;
use super::{Cx, Session, TRICKLE_CHECK, UNREAD_BYTES_MAX, is_full, write_error};
use crate::turn::counters::Counter;

impl Session {
    /// Serves the frames that are there. False when the stream must not be read on now.
    pub(super) fn take_frames(&mut self, id: StreamId, cx: &mut Cx<'_>) -> bool {
        loop {
            let Some(stream) = self.streams.get_mut(&id) else { return false };
            match stream.phase {
                Phase::Over => return false,
                Phase::WaitingKeys { .. } => {
                    self.held_streams += usize::from(!std::mem::replace(&mut stream.held, true));
                    return false;
                }
                Phase::Silent | Phase::Open { .. } => {}
            }
            if is_full(stream, cx.limits) {
                stream.flush(cx.quic, self.key);
                if is_full(stream, cx.limits) {
                    self.held_streams += usize::from(!std::mem::replace(&mut stream.held, true));
                    return false;
                }
            }
            if self.unread_bytes >= UNREAD_BYTES_MAX {
                self.held_streams += usize::from(!std::mem::replace(&mut stream.held, true));
                if !self.crowded_out.contains(&id) {
                    self.crowded_out.push(id);
                }
                return false;
            }
            if std::mem::replace(&mut stream.held, false) {
                self.held_streams -= 1;
                stream.restart_frame(cx.now);
            }
            if self.publish_again(id, cx) || self.ask_again(id, cx) {
                continue;
            }
            let Some(stream) = self.streams.get_mut(&id) else { return false };
            let before = stream.reader.buffered_bytes();
            let next = stream.reader.next();
            self.partial_bytes = self.partial_bytes + stream.reader.buffered_bytes() - before;
            match next {
                Ok(None) => {
                    if stream.reader.is_mid_frame() {
                        stream.begin_frame(cx.now);
                        self.next_check.get_or_insert(cx.now + TRICKLE_CHECK);
                    } else {
                        stream.frame_since = None;
                    }
                    return true;
                }
                Ok(Some(frame)) => {
                    stream.frame_since = None;
                    if self.partial_owner == Some(id) {
                        self.partial_owner = None;
                    }
                    self.take_frame(id, frame, cx);
                }
                Err(error) => {
                    self.violation(cx);
                    self.break_stream(id, &refusal_of(error), cx);
                    return false;
                }
            }
        }
    }

    fn take_frame(&mut self, id: StreamId, frame: Frame, cx: &mut Cx<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Phase::Open { identity } = stream.phase else { return self.authenticate(id, frame, cx) };
        cx.counters.add(Counter::FramesIn, 1);
        let flags = Flags(frame.flags);
        stream.asked.form = if flags == Flags::BINARY_MESSAGE { Form::Binary } else { Form::Json };
        if !stream.reader.knows(flags) {
            stream.asked.form = Form::Json;
            self.violation(cx);
            return self.refuse_frame(id, &Refusal::invalid("unknown frame flags"), cx);
        }
        if flags.contains(Flags::PUBLISH_BATCH) {
            return self.binary_publish(id, identity, &frame, cx);
        }
        if !matches!(flags, Flags::JSON | Flags::BINARY_MESSAGE) {
            self.violation(cx);
            return self.refuse_frame(id, &Refusal::invalid("a frame that only a broker sends"), cx);
        }
        match Message::decode_frame(&frame) {
            Ok(message) => self.request(id, identity, message, cx),
            Err(error) => {
                self.violation(cx);
                self.refuse_frame(id, &refusal_of(error), cx);
            }
        }
    }

    /// Refuses a frame that names no request. On a publish stream nothing is written (client-protocol 10.4).
    pub(super) fn refuse_frame(&mut self, id: StreamId, refusal: &Refusal, cx: &mut Cx<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.publishes {
            cx.counters.add(Counter::PublishesDropped, 1);
            return;
        }
        write_error(stream, refusal);
    }

    /// A binary publish that does not decode: answered when its request id could be read (client-protocol 10.2).
    pub(super) fn broken_publish(&mut self, id: StreamId, error: PublishDecodeError, cx: &mut Cx<'_>) {
        self.violation(cx);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        match error.request_id {
            Some(request_id) => {
                let slot = stream.acks.open(request_id, AckForm::Binary);
                stream.acks.settle(slot, Outcome::Refused(Box::new(refusal_of(error.error))));
            }
            None => cx.counters.add(Counter::PublishesDropped, 1),
        }
    }
}

fn refusal_of(error: DecodeError) -> Refusal {
    match error {
        DecodeError::TooLarge { .. } => Refusal::new(ErrorCode::LimitExceeded, "the frame is too large"),
        DecodeError::InvalidMagic => Refusal::invalid("not a frame"),
        DecodeError::UnsupportedVersion(_) => Refusal::invalid("unsupported frame version"),
        DecodeError::UnknownFlags(_) => Refusal::invalid("unknown frame flags"),
        DecodeError::Incomplete => Refusal::invalid("the frame ends too early"),
        DecodeError::Malformed(what) => Refusal::invalid(what),
    }
}
