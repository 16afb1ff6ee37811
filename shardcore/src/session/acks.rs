//! Answers of acked publishes, in the order the publishes were read when the client asked for that (client-protocol 10.5).
//! Scope: one per stream. Owns: the unanswered publishes of the stream.
//! Invariants: one answer per acked publish; with order, an answer leaves only after all earlier ones.
//! Not here: when a publish is settled (`shard`), the bytes on the stream (`session::stream`).

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::BytesMut;
use felix_wire::client::{
    AckCode, AckOutcome, Message, PublishAck, PublishError, PublishOk, PublishRefused, encode_ok,
};
use felix_wire::flags::Flags;
use felix_wire::id::{Offset, RequestId};

use super::refusal::Refusal;

/// Names an unanswered publish of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckSlot(u64);

/// How a publish is to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckForm {
    Binary,
    Json,
}

/// How a publish ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Appended from `base` on. `logged`: in a log; the offset in a ring goes only to clients that are told positions.
    Written {
        base: Offset,
        logged: bool,
    },
    Refused(Box<Refusal>),
}

/// What the client understands of answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckDialect {
    /// Answers in read order.
    pub ordered: bool,
    /// The client reads codes on errors.
    pub codes: bool,
    /// The client's flag mask.
    pub flags: Flags,
    /// The client reads the refusal `sequence_reused`.
    pub reads_reused: bool,
    /// Offsets of in-memory streams are told.
    pub positions: bool,
}

#[derive(Debug)]
struct Unanswered {
    request_id: RequestId,
    form: AckForm,
    outcome: Option<Outcome>,
    answered: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct AckRing {
    first: u64,
    slots: VecDeque<Unanswered>,
}

impl AckRing {
    /// A publish was read.
    pub fn open(&mut self, request_id: RequestId, form: AckForm) -> AckSlot {
        let slot = AckSlot(self.first + self.slots.len() as u64);
        self.slots.push_back(Unanswered { request_id, form, outcome: None, answered: false });
        slot
    }

    /// Publishes not answered yet.
    pub fn unanswered(&self) -> usize {
        self.slots.len()
    }

    /// The publish ended. Its answer is written by the next `flush`.
    pub fn settle(&mut self, slot: AckSlot, outcome: Outcome) {
        let at = usize::try_from(slot.0.wrapping_sub(self.first)).unwrap_or(usize::MAX);
        if let Some(entry) = self.slots.get_mut(at) {
            debug_assert!(entry.outcome.is_none() && !entry.answered, "a publish is settled once");
            entry.outcome = Some(outcome);
        }
    }

    /// Writes every answer that may go.
    pub fn flush(&mut self, dialect: AckDialect, out: &mut BytesMut) {
        if !dialect.ordered {
            for entry in &mut self.slots {
                if let Some(outcome) = entry.outcome.take() {
                    write_answer(entry, &outcome, dialect, out);
                    entry.answered = true;
                }
            }
        }
        while let Some(front) = self.slots.front_mut() {
            match front.outcome.take() {
                Some(outcome) => write_answer(front, &outcome, dialect, out),
                None if front.answered => {}
                None => break,
            }
            self.slots.pop_front();
            self.first += 1;
        }
    }
}

fn write_answer(entry: &Unanswered, outcome: &Outcome, dialect: AckDialect, out: &mut BytesMut) {
    if let Outcome::Refused(refusal) = outcome
        && let Some(reason) = refusal.told_number(dialect.reads_reused)
    {
        let (request_id, message) = (entry.request_id, refusal.message.as_ref().into());
        let refused = PublishRefused { request_id, reason: reason.clone(), message };
        Message::PublishRefused(refused).encode_frame(out);
        return;
    }
    match (outcome, entry.form) {
        (Outcome::Written { base, logged }, form) => {
            let told = (*logged || dialect.positions) && dialect.flags.contains(Flags::ACK_OFFSET);
            let offset = told.then_some(*base);
            match form {
                AckForm::Binary => encode_ok(entry.request_id, offset, out),
                AckForm::Json => {
                    Message::PublishOk(PublishOk { request_id: entry.request_id, offset }).encode_frame(out);
                }
            }
        }
        (Outcome::Refused(refusal), AckForm::Binary) => {
            binary_refusal(entry.request_id, refusal, dialect).encode_frame(out);
        }
        (Outcome::Refused(refusal), AckForm::Json) => {
            let codes = dialect.codes;
            Message::PublishError(PublishError {
                request_id: entry.request_id,
                message: refusal.message.as_ref().into(),
                code: codes.then(|| refusal.code.clone()),
                retry: codes.then_some(refusal.retry),
                detail: if codes { refusal.detail() } else { None },
            })
            .encode_frame(out);
        }
    }
}

fn binary_refusal<'a>(request_id: RequestId, refusal: &'a Refusal, dialect: AckDialect) -> PublishAck<'a> {
    let coded = dialect.codes && dialect.flags.contains(Flags::ACK_CODE);
    let detailed = coded && dialect.flags.contains(Flags::ACK_DETAIL);
    let code = coded.then(|| AckCode {
        code: refusal.code.clone(),
        retry: refusal.retry,
        detail: if detailed { refusal.detail() } else { None },
    });
    PublishAck {
        request_id,
        owner: None,
        outcome: AckOutcome::Error { message: refusal.message.as_ref().into(), code },
    }
}
