//! One watch on the core of its connection: what is on its way to its stream, and from where another one goes on. Sans-io.
//! Scope: one per watch. Owns: the events that its shard has sent and that are not written.
//! Invariants: events leave in the order in which they came, behind the hello; the shard is asked for more only when less
//! than half of what one answer may bring is left, so what a client that does not read holds is bounded by that; nothing
//! comes behind the end, and what it says of where to go on is behind what left, never behind what was dropped.
//! Not here: which events there are (`watch`), the QUIC stream (`turn`).

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use felix_wire::id::Offset;

use super::event::KeyEvent;
use super::watch::Started;

/// Bytes of events that a shard is asked for at once. It answers with one event at least.
pub const PULL_BYTES: usize = 64 << 10;

/// How far a watch has come: what is left of the current values, and the first change that was not counted here.
#[derive(Clone, Copy, Debug)]
struct Reached {
    values_left: u64,
    next: Offset,
}

impl Reached {
    fn pass(&mut self, event: &KeyEvent) {
        match self.values_left.checked_sub(1) {
            Some(left) => self.values_left = left,
            None => self.next = self.next.max(Offset(event.at.0 + 1)),
        }
    }

    /// No offset says where to go on while current values are missing.
    fn resume_from(self) -> Option<Offset> {
        (self.values_left == 0).then_some(self.next)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Delivery {
    queue: VecDeque<Arc<KeyEvent>>,
    queue_bytes: usize,
    /// What is being written, and how long it was.
    staged: Bytes,
    staged_len: usize,
    /// What is being written is the hello.
    opens: bool,
    /// What was sent before it.
    before: Reached,
    asked: bool,
    /// With everything that was queued, and with what was staged.
    queued: Reached,
    sent: Reached,
    ending: Option<Bytes>,
    ended: bool,
    frames: u64,
}

impl Delivery {
    /// A watch that has begun. `hello` leaves before everything else.
    pub fn new(hello: Bytes, started: Started) -> Delivery {
        let reached = Reached { values_left: started.values, next: started.resume };
        Delivery {
            queue: VecDeque::new(),
            queue_bytes: 0,
            staged_len: hello.len(),
            staged: hello,
            opens: true,
            before: reached,
            asked: false,
            queued: reached,
            sent: reached,
            ending: None,
            ended: false,
            frames: 0,
        }
    }

    /// Whether the shard is to be asked for `bytes_max` more; it is taken for asked then.
    pub fn wants_pull(&mut self, bytes_max: usize) -> bool {
        let wants = !self.asked && self.ending.is_none() && self.queue_bytes <= bytes_max / 2;
        self.asked |= wants;
        wants
    }

    /// What it answered.
    pub fn take(&mut self, events: Vec<Arc<KeyEvent>>) {
        self.asked = false;
        if self.ending.is_some() {
            return;
        }
        for event in events {
            self.queued.pass(&event);
            self.queue_bytes += event.cost();
            self.queue.push_back(event);
        }
    }

    /// Where another watch goes on that begins behind what is queued (`after_queue`), or behind what is on its way. None
    /// while not all current values are among that.
    pub fn resume_from(&self, after_queue: bool) -> Option<Offset> {
        if after_queue { self.queued.resume_from() } else { self.sent.resume_from() }
    }

    /// Ends it after what is queued (`after_queue`) or after the frame on its way. `last` is the closing frame, may be
    /// empty. The first end counts, unless something was to leave before it that is dropped now: that one would say to go on
    /// behind what never left.
    pub fn end(&mut self, last: Bytes, after_queue: bool) {
        if after_queue || self.queue.is_empty() {
            self.ending.get_or_insert(last);
        } else {
            self.drop_queue();
            self.ending = Some(last);
        }
    }

    /// Whether [`Self::give_up`] makes it hold less.
    pub fn can_give_up(&self) -> bool {
        !self.queue.is_empty() || !(self.staged.is_empty() || self.opens || self.ended)
    }

    /// Ends it, and gives up everything it holds but the hello and what is partly written. `last` makes the closing frame from where
    /// another watch goes on; it replaces one that was to come behind what is given up. False when nothing was done, because
    /// the frame that is being written cannot be given up: only a reset ends its stream in bounded memory.
    pub fn give_up(&mut self, last: impl FnOnce(Offset) -> Bytes) -> bool {
        if self.ended {
            // Nothing but its closing frame is left, which says what is so.
            return true;
        }
        if !self.staged.is_empty() && !self.opens {
            if self.staged.len() < self.staged_len {
                return false;
            }
            self.staged = Bytes::new();
            self.sent = self.before;
        }
        self.drop_queue();
        // From the very beginning there are either all changes or the current values.
        self.ending = Some(last(self.sent.resume_from().unwrap_or(Offset(0))));
        true
    }

    fn drop_queue(&mut self) {
        self.queue.clear();
        self.queue_bytes = 0;
    }

    /// Bytes it holds.
    pub fn held_bytes(&self) -> usize {
        self.queue_bytes + self.staged.len()
    }

    /// The bytes to write now; what is taken of them goes from their front. None when nothing is there.
    pub fn chunk(&mut self) -> Option<&mut Bytes> {
        if self.staged.is_empty() {
            self.stage();
        }
        (!self.staged.is_empty()).then_some(&mut self.staged)
    }

    /// Whether everything is written, and the stream is to be finished.
    pub fn is_done(&self) -> bool {
        self.ended && self.staged.is_empty()
    }

    /// Frames of events that were given to the stream since the last call.
    pub fn take_frames(&mut self) -> u64 {
        std::mem::take(&mut self.frames)
    }

    fn stage(&mut self) {
        self.opens = false;
        if let Some(event) = self.queue.pop_front() {
            self.queue_bytes -= event.cost();
            self.before = self.sent;
            self.sent.pass(&event);
            self.frames += 1;
            self.staged = event.frame();
            self.staged_len = self.staged.len();
        } else if let Some(last) = self.ending.as_mut().filter(|_| !self.ended) {
            self.ended = true;
            self.staged = std::mem::take(last);
            self.staged_len = self.staged.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::expiry::Expiry;
    use super::*;

    fn begun(values: u64) -> Delivery {
        let started = Started { resume: Offset(10), resnapshot: false, values, counted: true };
        Delivery::new(Bytes::from_static(b"hello"), started)
    }

    fn event(at: u64, value: usize) -> Arc<KeyEvent> {
        let value = Some(Bytes::from(vec![0; value]));
        Arc::new(KeyEvent::new((*b"k").into(), value, Offset(at), Expiry::NEVER))
    }

    fn last(next: Offset) -> Bytes {
        format!("from {}", next.0).into()
    }

    /// Everything that leaves, one piece at a time.
    fn written(delivery: &mut Delivery) -> Vec<Bytes> {
        std::iter::from_fn(|| delivery.chunk().map(std::mem::take)).collect()
    }

    #[test]
    fn the_hello_leaves_first_then_events_in_their_order_then_the_end() {
        let mut delivery = begun(0);
        let events = [event(12, 3), event(17, 3)];
        delivery.take(events.to_vec());
        delivery.end(Bytes::from_static(b"last"), true);
        delivery.end(Bytes::from_static(b"another"), true);
        delivery.take(vec![event(20, 3)]);
        let [first, second] = events.map(|event| event.frame());
        assert!(!delivery.is_done());
        assert_eq!(written(&mut delivery), [&b"hello"[..], &first, &second, b"last"]);
        assert!(delivery.is_done() && delivery.take_frames() == 2);
    }

    #[test]
    fn one_that_ends_at_once_says_from_where_another_goes_on() {
        let mut delivery = begun(2);
        assert_eq!(delivery.resume_from(true), None, "the current values are not there");
        delivery.take(vec![event(3, 1), event(1, 1), event(12, 1), event(17, 1)]);
        assert_eq!((delivery.resume_from(true), delivery.resume_from(false)), (Some(Offset(18)), None));
        for expected in [None, None, None, Some(Offset(10)), Some(Offset(13))] {
            assert_eq!(delivery.resume_from(false), expected);
            let piece = delivery.chunk().map(std::mem::take);
            assert!(piece.is_some());
        }
        assert_eq!(delivery.resume_from(false), Some(Offset(18)));
        let mut delivery = begun(0);
        delivery.take(vec![event(12, 1)]);
        delivery.end(Bytes::new(), false);
        assert_eq!(written(&mut delivery), [&b"hello"[..]], "what was queued is dropped");
        assert!(delivery.is_done() && delivery.resume_from(false) == Some(Offset(10)));
    }

    #[test]
    fn more_is_asked_for_when_half_has_left_and_only_once() {
        let mut delivery = begun(0);
        assert!(delivery.wants_pull(PULL_BYTES) && !delivery.wants_pull(PULL_BYTES));
        delivery.take((0..8).map(|at| event(20 + at, PULL_BYTES / 16)).collect());
        assert!(!delivery.wants_pull(PULL_BYTES), "it holds {}", delivery.held_bytes());
        while delivery.held_bytes() > PULL_BYTES / 2 {
            assert!(!delivery.wants_pull(PULL_BYTES));
            delivery.chunk().map(std::mem::take);
        }
        assert!(delivery.wants_pull(PULL_BYTES) && !delivery.wants_pull(PULL_BYTES));
    }

    #[test]
    fn the_hello_is_never_given_up() {
        for (taken, rest) in [(0, &b"hello"[..]), (2, b"llo"), (5, b"")] {
            let mut delivery = begun(0);
            delivery.take(vec![event(12, 9)]);
            let hello = delivery.chunk().expect("the hello");
            drop(hello.split_to(taken));
            assert!(delivery.give_up(last));
            assert_eq!(written(&mut delivery).concat(), [rest, b"from 10"].concat(), "{taken}");
        }
    }

    #[test]
    fn one_that_is_given_up_holds_nothing_and_says_from_where_another_goes_on_unless_a_frame_is_cut() {
        let mut delivery = begun(1);
        delivery.chunk().map(std::mem::take);
        assert!(!delivery.can_give_up());
        delivery.take(vec![event(3, 9), event(12, 9), event(17, 9)]);
        let mut early = begun(1);
        early.chunk().map(std::mem::take);
        assert!(early.give_up(last), "the current values are not all there");
        assert_eq!(written(&mut early), [&b"from 0"[..]]);
        delivery.chunk().map(std::mem::take);
        let frame = delivery.chunk().expect("staged, and nothing of it is written").clone();
        assert!(delivery.can_give_up() && delivery.give_up(last) && !delivery.can_give_up());
        assert_eq!(
            (delivery.held_bytes(), written(&mut delivery)),
            (0, vec![Bytes::from_static(b"from 10")])
        );
        let mut cut = begun(0);
        cut.chunk().map(std::mem::take);
        cut.take(vec![event(12, 9), event(17, 9)]);
        drop(cut.chunk().expect("a frame").split_to(1));
        assert!(!cut.give_up(last), "a frame is cut");
        let rest = [&frame[1..], &event(17, 9).frame()].concat();
        assert_eq!(written(&mut cut).concat(), rest, "nothing was done");
    }

    /// Its shard has moved and said to go on behind what is queued, of which nothing is read.
    fn moved() -> Delivery {
        let mut delivery = begun(0);
        delivery.chunk().map(std::mem::take);
        delivery.take(vec![event(12, 9), event(17, 9)]);
        delivery.end(last(delivery.resume_from(true).expect("an offset")), true);
        delivery
    }

    #[test]
    fn an_end_that_drops_what_was_to_leave_before_another_end_replaces_that() {
        let mut dropped = moved();
        dropped.end(last(dropped.resume_from(false).expect("an offset")), false);
        assert_eq!(written(&mut dropped), [&b"from 10"[..]], "it would go on at 18 and miss two changes");
        let mut given_up = moved();
        given_up.chunk().expect("the first change");
        assert!(given_up.give_up(last));
        assert_eq!(written(&mut given_up), [&b"from 10"[..]]);
    }

    #[test]
    fn one_that_has_nothing_left_but_its_end_keeps_that() {
        for taken in [0, 1] {
            let mut delivery = moved();
            for _ in 0..2 {
                delivery.chunk().map(std::mem::take);
            }
            drop(delivery.chunk().expect("the end").split_to(taken));
            assert!(!delivery.can_give_up() && delivery.give_up(last));
            delivery.end(Bytes::from_static(b"another"), false);
            assert_eq!(written(&mut delivery).concat(), b"from 18"[taken..]);
            assert!(delivery.is_done());
        }
    }
}
