//! What is unanswered on one request stream, without any I/O. Scope: per request stream.
//! Owns: the requests in the order they were written, with whom to tell.
//! Invariants: an answer belongs to the oldest unanswered request, since answers of one stream come in order (or there is
//! only one); everybody is told exactly once, an answer or why there is none.
//! Not here: the stream (`lane`), which stream a request goes to (`pool`), what an answer means (`exchange`).

use std::collections::VecDeque;
use std::time::Duration;

use felix_wire::frame::Frame;
use tokio::time::Instant;

use crate::error::Error;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoAnswer {
    pub(crate) error: Error,
    /// Some of the request may have left.
    pub(crate) sent: bool,
}

/// What an answer means for the stream it came on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Yes,
    /// Nothing more is sent on it: its identity or its broker is going.
    Retire,
}

/// Tells the caller. An error says that the stream is of no use any more.
pub(crate) type Tell = Box<dyn FnOnce(Result<&Frame, NoAnswer>) -> Result<Keep, Error> + Send>;

struct Owed<R> {
    asked: Instant,
    due: Instant,
    what: &'static str,
    tell: Tell,
    /// Given back with the answer.
    room: R,
}

/// See the module. `R` is the room that a request takes until it is answered.
pub(crate) struct Pipe<R> {
    owed: VecDeque<Owed<R>>,
    retired: bool,
}

impl<R> Pipe<R> {
    pub(crate) fn new() -> Self {
        Self { owed: VecDeque::new(), retired: false }
    }

    /// A request is handed to the transport at `asked`; its answer is due at `due`.
    pub(crate) fn sent(&mut self, (what, asked, due): (&'static str, Instant, Instant), tell: Tell, room: R) {
        self.owed.push_back(Owed { asked, due, what, tell, room });
    }

    /// The next answer.
    ///
    /// # Errors
    /// When it is none, or the wrong one: nothing that comes after it can be trusted.
    pub(crate) fn answered(&mut self, frame: &Frame) -> Result<(), Error> {
        let Some(Owed { tell, room, .. }) = self.owed.pop_front() else {
            return Err(Error::protocol("an answer to a request that was not made"));
        };
        // Before the caller knows, who may have the next request at hand.
        drop(room);
        if tell(Ok(frame))? == Keep::Retire {
            self.retired = true;
        }
        Ok(())
    }

    /// Nothing more is to be sent.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.owed.is_empty()
    }

    /// When the first answer is overdue.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.owed.iter().map(|owed| owed.due).min()
    }

    /// A request whose answer is overdue at `now`, and how long it was waited for.
    pub(crate) fn overdue(&self, now: Instant) -> Option<(&'static str, Duration)> {
        let late = self.owed.iter().find(|owed| owed.due <= now)?;
        Some((late.what, now - late.asked))
    }

    /// The stream is gone.
    pub(crate) fn lost(&mut self, error: &Error) {
        for owed in self.owed.drain(..) {
            // The stream has ended already, whatever the caller thinks of it.
            drop((owed.tell)(Err(NoAnswer { error: error.clone(), sent: true })));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use bytes::Bytes;

    use super::*;

    type Told = (u32, Result<Bytes, NoAnswer>);

    fn frame(text: &'static str) -> Frame {
        Frame { flags: 0, payload: Bytes::from_static(text.as_bytes()) }
    }

    fn send(pipe: &mut Pipe<()>, (number, due): (u32, Instant), told: &mpsc::Sender<Told>) {
        let told = told.clone();
        let tell: Tell = Box::new(move |answer| {
            let keep = match &answer {
                Ok(frame) if frame.payload == "wrong" => return Err(Error::protocol("wrong")),
                Ok(frame) if frame.payload == "going" => Keep::Retire,
                _ => Keep::Yes,
            };
            told.send((number, answer.map(|frame| frame.payload.clone()))).unwrap();
            Ok(keep)
        });
        pipe.sent(("x", due - Duration::from_secs(1), due), tell, ());
    }

    #[test]
    fn answers_go_to_the_oldest_and_a_lost_stream_tells_the_rest_once() {
        let (tx, rx) = mpsc::channel();
        let mut pipe = Pipe::new();
        let due = Instant::now();
        for number in 0..4 {
            send(&mut pipe, (number, due), &tx);
        }
        pipe.answered(&frame("a")).unwrap();
        pipe.answered(&frame("going")).unwrap();
        assert!(pipe.is_retired() && !pipe.is_empty());
        pipe.lost(&Error::Closed);
        pipe.lost(&Error::Closed);
        let gone = |number| (number, Err(NoAnswer { error: Error::Closed, sent: true }));
        let told: Vec<Told> = rx.try_iter().collect();
        assert_eq!(told, [(0, Ok("a".into())), (1, Ok("going".into())), gone(2), gone(3)]);
        assert!(pipe.answered(&frame("b")).is_err(), "nobody waits for it");
    }

    #[test]
    fn an_answer_that_cannot_be_is_an_error_and_the_earliest_deadline_counts() {
        let (tx, _rx) = mpsc::channel();
        let mut pipe = Pipe::new();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pipe.next_timeout(), None);
        send(&mut pipe, (0, at(9)), &tx);
        send(&mut pipe, (1, at(4)), &tx);
        assert_eq!(pipe.next_timeout(), Some(at(4)));
        let waited = Duration::from_secs(1);
        assert_eq!((pipe.overdue(at(3)), pipe.overdue(at(4))), (None, Some(("x", waited))));
        assert!(pipe.answered(&frame("wrong")).is_err());
    }
}
