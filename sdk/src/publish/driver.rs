//! The task that moves one lane's frames over a stream. Scope: per publisher and shard, while it has work.
//! Owns: the lane's stream and the bytes encoded for it.
//! Invariants: the lane decides, this only carries: what it was told to send is written in order, what the broker
//! answers is handed to it, what happens to the stream is told to it. Every wait can be ended by the inbox.
//! Not here: which lane a record goes to (`table`), what an answer means (`lane`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use felix_wire::client::AckMode as WireAck;
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::frame::Frame;
use felix_wire::id::ProducerId;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::backoff::jitter_seed;
use crate::connection::{AuthedStream, Granted};
use crate::error::Error;
use crate::limits::{
    ATTEMPT_MIN, FLUSH_TIMEOUT, KNOWN_BEFORE_FACTOR, OWNER_PAUSE, ROUTE_REFRESH, WRITE_AHEAD_BYTES,
};
use crate::publish::answer::{Answered, read_answer};
use crate::publish::encode::Encoder;
use crate::publish::inbox::{Inbox, Look};
use crate::publish::item::Item;
use crate::publish::lane::{Lane, LaneRules, StreamGrant};
use crate::publish::table::Core;
use crate::publish::{AckMode, Idempotence, Options};
use crate::topology::{ShardOwner, StreamShards};

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
    /// The route was asked for and nothing has come of it yet.
    looking: bool,
    /// The last producer of the lane.
    producer: Option<ProducerId>,
    /// Who leads the shard, as somebody said who does not.
    leader: Option<ShardOwner>,
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
            retry_numbered_for: options.retry_numbered_for,
            unknown_for: core.shared().identity.deadlines.not_found * KNOWN_BEFORE_FACTOR,
            may_fall_back: options.idempotence == Idempotence::Auto,
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
            looking: false,
            producer: None,
            leader: None,
        }
    }

    /// Runs until the publisher is closed or the lane's items go to another table.
    pub(crate) async fn run(mut self) {
        while self.wait_for_work().await {
            let outcome = match self.open_in_time().await {
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
        self.looking &= mail.look.is_none();
        let waited_for = !self.flushes.is_empty() || self.core.is_hurried();
        self.lane.hurry(self.closed || waited_for || self.retiring.is_some());
        mail.look
    }

    /// As [`Driver::open_stream`], but not longer than what waits is to be tried.
    async fn open_in_time(&mut self) -> Result<AuthedStream, Error> {
        let Some(until) = self.lane.try_until() else { return self.open_stream().await };
        let started = Instant::now();
        let until = until.max(started + ATTEMPT_MIN);
        let late = Error::TimedOut { what: "opening a stream", waited: until - started };
        timeout(until - started, self.open_stream()).await.map_err(|_| late)?
    }

    async fn open_stream(&mut self) -> Result<AuthedStream, Error> {
        let (link, seat) = self.core.link_to(self.shard, self.leader.take()).await?;
        let opened = async {
            let stream = AuthedStream { _seat: Some(seat), ..link.open().await? };
            let granted = &stream.granted;
            if self.core.options().acked() && !granted.flags.contains(Flags::PUBLISH_ACKED) {
                return Err(Error::NotServed { what: "acknowledged binary publishes" });
            }
            let numbered = numbered(self.core.options(), granted, self.core.durable())?;
            self.lane.set_numbered(numbered);
            if self.lane.wants_producer() {
                match self.core.producer(&link, self.producer).await {
                    Ok(producer) => {
                        self.producer = Some(producer);
                        self.lane.start_producer(producer);
                    }
                    Err(Error::NotServed { .. }) if self.core.options().idempotence == Idempotence::Auto => {
                        self.lane.set_numbered(false);
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(stream)
        };
        opened.await.inspect_err(|error| self.core.shared().note(error, &link))
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
        self.looked_at = Instant::now();
        // An earlier look that took too long to wait for will do: they must not pile up while nobody answers.
        if !std::mem::replace(&mut self.looking, true) {
            self.inbox.clear_look();
            tokio::spawn(self.core.clone().look_again(self.table_version));
        }
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
                    self.lane.stream_gone(now, &error, jitter_seed());
                    self.core.count_lost(self.lane.take_lost());
                    return self.pause().await;
                }
                None => match self.lane.try_until() {
                    None => self.inbox.bell.notified().await,
                    Some(until) => {
                        let left = until.max(self.looked_at + ATTEMPT_MIN) - now;
                        if timeout(left, self.inbox.bell.notified()).await.is_err() {
                            let late = Error::TimedOut { what: "looking for the shard", waited: left };
                            return self.lane.cannot_send_or_wait(Instant::now(), &late, jitter_seed());
                        }
                    }
                },
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
            let bytes = encoder.frame(&frame)?;
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
        let Answered { request, answer, forwarded, leader } = read_answer(frame, self.shard)?;
        let now = Instant::now();
        self.leader = leader.or(self.leader.take());
        let answered = self.lane.answered(request, answer, now, jitter_seed);
        answered.map_err(|broken| Error::protocol(broken.to_string()))?;
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

/// Whether frames are numbered on a stream of a broker that granted this.
///
/// # Errors
/// [`Error::NotServed`] when they must be and the broker cannot.
fn numbered(options: &Options, granted: &Granted, durable: Option<bool>) -> Result<bool, Error> {
    let served = granted.features.contains(Features::IDEMPOTENT_PRODUCER)
        && granted.flags.contains(Flags::PUBLISH_IDEMPOTENT);
    match options.idempotence {
        Idempotence::Off => Ok(false),
        // A broker that does not tell is asked by the first frame.
        Idempotence::Auto => Ok(served && options.acked() && durable != Some(false)),
        Idempotence::On if served => Ok(true),
        Idempotence::On => Err(Error::NotServed { what: "idempotent publishes" }),
    }
}

fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}
