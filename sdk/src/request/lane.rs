//! The task of one request stream: writes requests, reads answers. Scope: per request stream.
//! Owns: the stream, and the bytes it has not taken yet.
//! Invariants: whoever handed a request over is told, also when the task ends; a stream with an overdue answer is given up,
//! since every later answer would wait behind it; one that was idle for long is ended.
//! Not here: whose answer it is (`pipe`), when streams are opened (`pool`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use felix_wire::client::Form;
use felix_wire::id::RequestId;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use crate::connection::AuthedStream;
use crate::error::Error;
use crate::limits::{REQUEST_STREAM_IDLE, WRITE_AHEAD_BYTES};
use crate::request::pipe::{NoAnswer, Pipe, Tell};

/// One request, encoded.
pub(crate) struct Request {
    pub(crate) what: &'static str,
    pub(crate) frame: Bytes,
    /// Follows the frame, of which it is the end; handed to the transport as it is.
    pub(crate) tail: Bytes,
    pub(crate) due: Instant,
    pub(crate) tell: Tell,
    pub(crate) room: Room,
}

impl Request {
    fn unsent(self, error: &Error) {
        drop((self.tell)(Err(NoAnswer { error: error.clone(), sent: false })));
    }
}

/// The way to the task of one stream.
pub(crate) struct Lane {
    queue: mpsc::Sender<Request>,
    held: Arc<AtomicUsize>,
    last_id: AtomicU64,
    window: usize,
    form: Form,
}

/// A place on a stream, held until the answer is there.
pub(crate) struct Room {
    held: Arc<AtomicUsize>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Lane {
    /// Starts the task of a stream that may have `window` requests unanswered.
    pub(crate) fn start(stream: AuthedStream, window: usize) -> Self {
        let (queue, requests) = mpsc::channel(window);
        let form = stream.granted.form();
        tokio::spawn(run(stream, requests));
        Self { queue, held: Arc::default(), last_id: AtomicU64::new(0), window, form }
    }

    /// It takes requests, as far as anybody knows.
    pub(crate) fn is_open(&self) -> bool {
        !self.queue.is_closed()
    }

    /// A place, if there is one; else the permit comes back.
    pub(crate) fn room(&self, permit: OwnedSemaphorePermit) -> Result<Room, OwnedSemaphorePermit> {
        let taken = self.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
            (held < self.window).then_some(held + 1)
        });
        match taken {
            Ok(_) => Ok(Room { held: self.held.clone(), _permit: permit }),
            Err(_) => Err(permit),
        }
    }

    /// The form its requests are written in, as far as they have it.
    pub(crate) fn form(&self) -> Form {
        self.form
    }

    /// A number that no other request of this stream has.
    pub(crate) fn next_id(&self) -> RequestId {
        RequestId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Hands a request over; one that the stream cannot take any more is told so.
    pub(crate) fn send(&self, request: Request) {
        use mpsc::error::TrySendError::{Closed, Full};
        // There are not more requests than places, so it is never full.
        if let Err(Closed(request) | Full(request)) = self.queue.try_send(request) {
            request.unsent(&Error::lost("the stream has ended"));
        }
    }
}

async fn run(mut stream: AuthedStream, mut requests: mpsc::Receiver<Request>) {
    let mut pipe = Pipe::new();
    let outcome = serve(&mut stream, &mut requests, &mut pipe).await;
    match &outcome {
        Ok(()) => drop(stream.send.finish()),
        // Nothing that is still in the transport's hands may arrive after a second try.
        Err(_) => drop(stream.send.reset(quinn::VarInt::from_u32(0))),
    }
    let error = outcome.err().unwrap_or_else(|| Error::lost("the stream has ended"));
    pipe.lost(&error);
    requests.close();
    while let Some(request) = requests.recv().await {
        request.unsent(&error);
    }
}

/// Until the stream is idle, retired, or nobody is left who could send.
async fn serve(
    stream: &mut AuthedStream,
    requests: &mut mpsc::Receiver<Request>,
    pipe: &mut Pipe<Room>,
) -> Result<(), Error> {
    let mut out: VecDeque<Bytes> = VecDeque::new();
    let mut out_bytes = 0;
    let mut closing = false;
    let mut busy = Instant::now();
    let timer = tokio::time::sleep(REQUEST_STREAM_IDLE);
    tokio::pin!(timer);
    loop {
        if (closing || pipe.is_retired()) && pipe.is_empty() {
            return Ok(());
        }
        // Armed for the earliest time anything was due; a timer that fires too early only looks again.
        if let Some(due) = pipe.next_timeout().filter(|due| *due < timer.deadline()) {
            timer.as_mut().reset(due);
        }
        let takes = !closing && !pipe.is_retired() && out_bytes < WRITE_AHEAD_BYTES;
        let AuthedStream { send, recv, .. } = &mut *stream;
        tokio::select! {
            biased;
            frame = recv.next() => {
                let Some(mut frame) = frame? else {
                    return Err(Error::lost("the broker ended the stream"));
                };
                loop {
                    pipe.answered(&frame)?;
                    match recv.buffered()? {
                        Some(more) => frame = more,
                        None => break,
                    }
                }
                busy = Instant::now();
            }
            written = send.write_chunks(out.make_contiguous()), if !out.is_empty() => {
                let written = written.map_err(Error::lost)?;
                out.drain(..written.chunks);
                out_bytes -= written.bytes;
            }
            request = requests.recv(), if takes => match request {
                Some(Request { what, frame, tail, due, tell, room }) => {
                    busy = Instant::now();
                    for part in [frame, tail] {
                        out_bytes += part.len();
                        // An empty chunk is never written, so it would stay in front for good.
                        out.extend((!part.is_empty()).then_some(part));
                    }
                    pipe.sent((what, busy, due), tell, room);
                }
                None => closing = true,
            },
            () = timer.as_mut() => {
                let now = Instant::now();
                if let Some((what, waited)) = pipe.overdue(now) {
                    return Err(Error::TimedOut { what, waited });
                }
                if pipe.is_empty() && now >= busy + REQUEST_STREAM_IDLE {
                    return Ok(());
                }
                let idle = if pipe.is_empty() { busy } else { now } + REQUEST_STREAM_IDLE;
                timer.as_mut().reset(pipe.next_timeout().map_or(idle, |due| due.min(idle)));
            }
        }
    }
}
