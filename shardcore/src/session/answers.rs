//! Answers of requests that are carried out elsewhere, in the order in which the requests were read: an `error` has no
//! request id (client-protocol 8), so its place says which request it is of. Scope: one per stream.
//! Owns: the unanswered requests of the stream, and answers that wait for earlier ones.
//! Invariants: one answer per request, and none before those of earlier requests.
//! Not here: what an answer says (`session::cache`), the bytes on the stream (`session::stream`).

use std::collections::VecDeque;

use bytes::BytesMut;
use felix_wire::client::Form;

/// Names an unanswered request of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerSlot {
    number: u64,
    /// The form the request came in, which its answer goes out in.
    pub form: Form,
}

/// See the module.
#[derive(Debug, Default)]
pub struct AnswerRing {
    /// The form of the request that was read last.
    pub form: Form,
    first: u64,
    slots: VecDeque<Option<BytesMut>>,
    /// Bytes of answers that wait for earlier ones.
    bytes: usize,
}

impl AnswerRing {
    /// A request was read.
    pub fn open(&mut self) -> AnswerSlot {
        self.slots.push_back(None);
        AnswerSlot { number: self.first + self.slots.len() as u64 - 1, form: self.form }
    }

    /// A request was read and answered at once; its answer may have to wait. To be called only when others are unanswered.
    pub fn push(&mut self, answer: BytesMut) {
        self.bytes += answer.len();
        self.slots.push_back(Some(answer));
    }

    /// Requests not answered yet, and answers that wait for theirs.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether everything is answered.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Bytes of answers that wait for earlier ones.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes the answer of a request with `write`, to `out` as soon as those before it are there.
    pub fn answer(&mut self, slot: AnswerSlot, out: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
        let at = usize::try_from(slot.number.wrapping_sub(self.first)).unwrap_or(usize::MAX);
        let Some(entry) = self.slots.get_mut(at) else { return };
        debug_assert!(entry.is_none(), "a request is answered once");
        if at > 0 {
            let mut answer = BytesMut::new();
            write(&mut answer);
            self.bytes += answer.len();
            *entry = Some(answer);
            return;
        }
        write(out);
        self.slots.pop_front();
        self.first += 1;
        while let Some(answer) = self.slots.pop_front_if(|answer| answer.is_some()).flatten() {
            self.first += 1;
            self.bytes -= answer.len();
            out.extend_from_slice(&answer);
        }
    }

    /// Nobody reads answers any more; those that come are dropped.
    pub fn clear(&mut self) {
        self.first += self.slots.len() as u64;
        self.slots.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(ring: &mut AnswerRing, out: &mut BytesMut, slot: AnswerSlot, text: &str) {
        ring.answer(slot, out, |out| out.extend_from_slice(text.as_bytes()));
    }

    #[test]
    fn answers_leave_in_the_order_of_their_requests() {
        let (mut ring, mut out) = (AnswerRing::default(), BytesMut::new());
        let slots = [ring.open(), ring.open(), ring.open()];
        ring.push(BytesMut::from("3 "));
        answer(&mut ring, &mut out, slots[2], "2 ");
        assert_eq!((&out[..], ring.len(), ring.bytes()), (&b""[..], 4, 4));
        answer(&mut ring, &mut out, slots[0], "0 ");
        assert_eq!(&out[..], b"0 ");
        answer(&mut ring, &mut out, slots[1], "1 ");
        assert_eq!((&out[..], ring.is_empty(), ring.bytes()), (&b"0 1 2 3 "[..], true, 0));
    }

    #[test]
    fn answers_that_nobody_reads_are_dropped() {
        let (mut ring, mut out) = (AnswerRing::default(), BytesMut::new());
        let slots = [ring.open(), ring.open()];
        answer(&mut ring, &mut out, slots[1], "x");
        ring.clear();
        answer(&mut ring, &mut out, slots[0], "y");
        let next = ring.open();
        answer(&mut ring, &mut out, next, "z");
        assert_eq!((&out[..], ring.is_empty(), ring.bytes()), (&b"z"[..], true, 0));
    }
}
