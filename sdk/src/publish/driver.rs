//! The task that moves one lane's frames over a stream. Scope: per publisher and shard, while it has work.
//! Owns: the lane's stream and the bytes encoded for it.
//! Invariants: the lane decides, this only carries: what it was told to send is written in order, what the broker
//! answers is handed to it, what happens to the stream is told to it. Every wait can be ended by the inbox.
//! Not here: which lane a record goes to (`table`), what an answer means (`lane`).

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use felix_wire::client::{AckMode as WireAck, AckOutcome, Message, PublishAck};
use felix_wire::error_code::RetryClass;
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::frame::Frame;
use felix_wire::id::RequestId;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::backoff::jitter_seed;
use crate::connection::{AuthedStream, Granted, refusal, refusal_of};
use crate::error::Error;
use crate::limits::{FLUSH_TIMEOUT, OWNER_PAUSE, ROUTE_REFRESH, WRITE_AHEAD_BYTES};
use crate::publish::encode::Encoder;
use crate::publish::inbox::{Inbox, Look};
use crate::publish::item::Item;
use crate::publish::lane::{Answer, Lane, LaneRules, StreamGrant};
use crate::publish::table::Core;
use crate::publish::{AckMode, Options};
use crate::topology::StreamShards;

/// See the module.
pub(crate) struct Driver {
    core: Arc<Core>,
    shard: u32,
    inbox: Arc<Inbox>,
    table_version: u64,
    shards: StreamShards,
    lane: Lane,
    flushes: Vec<oneshot::Sender<()>>,
    retiring: Option<oneshot::Sender<VecDeque<Item>>>,
    closed: bool,
    looked_at: Instant,
}

/// Why a stream is left.
enum Leave {
    /// Everything is settled and nobody wants more.
    Done,
    /// It must be finished so that everything on it is confirmed.
    Confirm,
    /// The route or the identity must be looked at.
    Relook,
    /// The items go to another table.
    Retire,
    /// It cannot be used any more.
    Lost(Error),
}

impl Driver {
    pub(crate) fn new(
        core: Arc<Core>,
        shard: u32,
        inbox: Arc<Inbox>,
        table_version: u64,
        shards: StreamShards,
    ) -> Self {
        let options = core.options();
        let rules = LaneRules {
            shard,
            acked: options.acked(),
            batch: options.batch,
            ack_timeout: core.shared().identity.deadlines.ack,
            retry_for: options.retry_for,
        };
        Self {
            core,
            shard,
            inbox,
            table_version,
            shards,
            lane: Lane::new(rules),
            flushes: Vec::new(),
            retiring: None,
            closed: false,
            looked_at: Instant::now(),
        }
    }

    /// Runs until the publisher is closed or the lane's items go to another table.
    pub(crate) async fn run(mut self) {
        while self.wait_for_work().await {
            let outcome = match self.open_stream().await {
                Ok(stream) => self.use_stream(stream).await,
                Err(error) => Leave::Lost(error),
            };
            match outcome {
                Leave::Done | Leave::Confirm | Leave::Retire => {}
                Leave::Relook => self.look_again().await,
                Leave::Lost(error) => self.recover(error).await,
            }
        }
        if let Some(retiring) = self.retiring.take() {
            drop(retiring.send(self.lane.take_waiting()));
        }
        self.inbox.ended();
    }

    /// `false` when the lane ends.
    async fn wait_for_work(&mut self) -> bool {
        loop {
            self.take_mail();
            if self.retiring.is_some() {
                return false;
            }
            if self.lane.has_waiting() {
                return true;
            }
            // Nothing is in flight between two streams, so this is all there was.
            self.flushes.clear();
            if self.closed {
                return false;
            }
            self.inbox.bell.notified().await;
        }
    }

    fn take_mail(&mut self) -> Option<Look> {
        let mail = self.inbox.take();
        self.lane.accept(mail.items);
        self.flushes.extend(mail.flushes);
        self.retiring = self.retiring.take().or(mail.retiring);
        self.closed |= mail.closed;
        self.lane.hurry(self.closed || !self.flushes.is_empty() || self.retiring.is_some());
        mail.look
    }

    async fn open_stream(&mut self) -> Result<AuthedStream, Error> {
        let link = self.core.link_to(self.shard).await?;
        match link.open().await {
            Ok(stream) => {
                let flags = stream.granted.flags;
                if self.core.options().acked() && !flags.contains(Flags::PUBLISH_ACKED) {
                    return Err(Error::NotServed { what: "acknowledged binary publishes" });
                }
                Ok(stream)
            }
            Err(error) => {
                self.core.shared().note(&error, &link);
                Err(error)
            }
        }
    }

    /// Tells the lane, then looks for the owner, who may be another one now.
    async fn recover(&mut self, error: Error) {
        let cause = error.to_string();
        self.lane.stream_lost(&cause);
        let now = Instant::now();
        self.lane.cannot_send_or_wait(now, &error, jitter_seed());
        self.core.count_lost(self.lane.take_lost());
        if self.lane.has_waiting() {
            self.look_again().await;
        }
    }

    /// Has the route asked for again and waits for the outcome, or for the end of this lane.
    async fn look_again(&mut self) {
        self.inbox.clear_look();
        self.looked_at = Instant::now();
        tokio::spawn(self.core.clone().look_again(self.table_version));
        loop {
            let look = self.take_mail();
            if self.retiring.is_some() {
                return;
            }
            let now = Instant::now();
            match look {
                Some(Look::SameShards) => return,
                Some(Look::Failed(error)) => {
                    self.lane.cannot_send_or_wait(now, &error, jitter_seed());
                    self.core.count_lost(self.lane.take_lost());
                    return self.pause().await;
                }
                Some(Look::Gone(error)) => {
                    self.lane.fail_all(&error);
                    self.core.count_lost(self.lane.take_lost());
                    return;
                }
                None => self.inbox.bell.notified().await,
            }
        }
    }

    /// Until the lane may send again, or its end is asked for.
    async fn pause(&mut self) {
        while let Some(until) = self.lane.next_timeout().filter(|until| *until > Instant::now()) {
            if timeout(until - Instant::now(), self.inbox.bell.notified()).await.is_err() {
                return;
            }
            self.take_mail();
            if self.retiring.is_some() {
                return;
            }
        }
    }

    async fn use_stream(&mut self, mut stream: AuthedStream) -> Leave {
        let granted = stream.granted;
        self.lane.stream_opened(grant(&granted, self.core.options()));
        let mut encoder = self.encoder(&granted);
        let mut leave = self.serve(&mut stream, &mut encoder).await;
        if !matches!(leave, Leave::Lost(_))
            && let Err(error) = self.confirm(&mut stream).await
        {
            leave = Leave::Lost(error);
        }
        if let Leave::Lost(_) = leave {
            // Whatever is still in the transport's hands for this stream must not arrive after a second try.
            drop(stream.send.reset(quinn::VarInt::from_u32(0)));
        }
        leave
    }

    /// Finishes the stream; unacknowledged frames are confirmed by the transport and by the broker's end of it,
    /// which it sends after it has handled everything.
    async fn confirm(&mut self, stream: &mut AuthedStream) -> Result<(), Error> {
        drop(stream.send.finish());
        if !self.lane.has_unconfirmed() {
            return Ok(());
        }
        let everything = async {
            match stream.send.stopped().await {
                Ok(None) => stream.recv.drain().await,
                Ok(Some(code)) => Err(Error::lost(format!("the broker stopped the stream ({code})"))),
                Err(e) => Err(Error::lost(e)),
            }
        };
        let waited = FLUSH_TIMEOUT;
        timeout(waited, everything).await.map_err(|_| Error::TimedOut { what: "flush", waited })??;
        self.lane.confirmed();
        Ok(())
    }

    async fn serve(&mut self, stream: &mut AuthedStream, encoder: &mut Encoder) -> Leave {
        let timer = tokio::time::sleep(Duration::MAX);
        tokio::pin!(timer);
        loop {
            self.take_mail();
            if let Err(error) = self.fill(encoder) {
                return Leave::Lost(error);
            }
            if let Some(leave) = self.reason_to_leave(encoder) {
                return leave;
            }
            // Armed for the earliest time anything was due; a timer that fires too early only looks again.
            if let Some(due) = self.lane.next_timeout().filter(|due| *due < timer.deadline()) {
                timer.as_mut().reset(due);
            }
            let AuthedStream { send, recv, .. } = &mut *stream;
            tokio::select! {
                biased;
                frame = recv.next() => {
                    let mut next = frame;
                    loop {
                        match next {
                            Ok(Some(frame)) => if let Err(error) = self.answer(&frame) {
                                return Leave::Lost(error);
                            },
                            Ok(None) => return Leave::Lost(Error::lost("the broker ended the stream")),
                            Err(error) => return Leave::Lost(error),
                        }
                        match recv.buffered() {
                            Ok(None) => break,
                            more => next = more,
                        }
                    }
                }
                written = send.write_chunks(encoder.chunks()), if !encoder.is_empty() => match written {
                    Ok(written) => self.lane.bytes_written(encoder.written(written)),
                    Err(e) => return Leave::Lost(Error::lost(e)),
                },
                () = self.inbox.bell.notified() => {}
                () = timer.as_mut() => {
                    if self.lane.is_overdue(Instant::now()) {
                        let waited = self.core.shared().identity.deadlines.ack;
                        return Leave::Lost(Error::TimedOut { what: "publish", waited });
                    }
                    let due = self.lane.next_timeout().unwrap_or_else(far_future);
                    timer.as_mut().reset(due);
                }
            }
        }
    }

    /// Encodes what the lane may send, up to the write-ahead bound.
    fn fill(&mut self, encoder: &mut Encoder) -> Result<(), Error> {
        if self.retiring.is_some() {
            return Ok(());
        }
        let now = Instant::now();
        let mut sent = false;
        while encoder.pending_bytes() < WRITE_AHEAD_BYTES {
            let Some(frame) = self.lane.start_frame(now) else { break };
            let bytes = encoder.frame(frame.request, frame.items)?;
            self.lane.frame_encoded(bytes);
            sent = true;
        }
        // Nobody refuses an unacknowledged batch with an outdated width, so the width is asked for now and then.
        if sent && !self.core.options().acked() && now.duration_since(self.looked_at) >= ROUTE_REFRESH {
            self.looked_at = now;
            tokio::spawn(self.core.clone().look_again(self.table_version));
        }
        Ok(())
    }

    fn reason_to_leave(&mut self, encoder: &Encoder) -> Option<Leave> {
        if !encoder.is_empty() || self.lane.has_flights() {
            return None;
        }
        if self.retiring.is_some() {
            return Some(Leave::Retire);
        }
        if self.lane.needs_relook() {
            return Some(Leave::Relook);
        }
        if self.lane.has_waiting() {
            return None;
        }
        if self.closed {
            return Some(Leave::Done);
        }
        if self.lane.has_unconfirmed() && !self.flushes.is_empty() {
            return Some(Leave::Confirm);
        }
        self.flushes.clear();
        None
    }

    fn answer(&mut self, frame: &Frame) -> Result<(), Error> {
        let (request, answer, forwarded) = read_answer(frame)?;
        let now = Instant::now();
        self.lane.answered(request, answer, now, jitter_seed).map_err(|unexpected| {
            Error::protocol(format!("an answer to request {} is not owed", unexpected.0))
        })?;
        if forwarded && now.duration_since(self.looked_at) >= OWNER_PAUSE {
            // Another broker owns the shard: go there once the flights have ended.
            self.lane.request_relook();
        }
        Ok(())
    }

    fn encoder(&self, granted: &Granted) -> Encoder {
        let declare = granted.features.contains(Features::PUBLISH_WIDTH).then_some(self.shards);
        let ack = match self.core.options().ack {
            AckMode::None => None,
            AckMode::PerMessage => Some(WireAck::PerMessage),
            AckMode::PerBatch => Some(WireAck::PerBatch),
        };
        Encoder::new(Arc::from(self.core.tenant()), self.core.name().clone(), ack, declare)
    }
}

fn grant(granted: &Granted, options: &Options) -> StreamGrant {
    let pipelined = granted.features.contains(Features::PUBLISH_PIPELINE);
    let window = granted.publish_window.filter(|window| pipelined && *window > 0);
    let per_stream = granted.features.contains(Features::STREAM_PUBLISH_WINDOW);
    let granted_frames = window.map_or(usize::MAX, |window| {
        // A window of the whole connection is shared with its other streams, whose use is not known here.
        let share = if per_stream { window } else { (window / 8).max(1) };
        usize::try_from(share).unwrap_or(usize::MAX)
    });
    StreamGrant {
        window: options.in_flight_max.min(granted_frames),
        ordered: window.is_some(),
        merge_keys: granted.features.contains(Features::PUBLISH_WIDTH),
    }
}

/// Request, outcome, and whether another broker owns the shard.
fn read_answer(frame: &Frame) -> Result<(RequestId, Answer, bool), Error> {
    if frame.flags != 0 {
        let ack =
            PublishAck::decode(frame.flags, &frame.payload).map_err(|e| Error::protocol(e.to_string()))?;
        let answer = match ack.outcome {
            AckOutcome::Ok { offset } => Answer::Stored { offset },
            AckOutcome::Error { message, code: Some(coded) } => {
                Answer::Refused(refusal(Some(coded.code), coded.retry, &message, coded.detail.as_ref()))
            }
            AckOutcome::Error { message, code: None } => {
                Answer::Refused(refusal(None, RetryClass::OutcomeUnknown, &message, None))
            }
        };
        return Ok((ack.request_id, answer, ack.owner.is_some()));
    }
    match crate::connection::decode(frame)? {
        Message::PublishOk(ok) => Ok((ok.request_id, Answer::Stored { offset: ok.offset }, false)),
        Message::PublishError(error) => {
            let coded = felix_wire::client::Error {
                message: Cow::Borrowed(&error.message),
                code: error.code,
                retry: error.retry,
                detail: error.detail,
            };
            Ok((error.request_id, Answer::Refused(refusal_of(&coded)), false))
        }
        Message::Error(error) => Err(Error::Refused(refusal_of(&error))),
        other => Err(crate::connection::unexpected("publish", &other)),
    }
}

fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}
