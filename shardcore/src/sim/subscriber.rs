//! One subscription of a simulated client, over its resumptions. Scope: one per subscription of the plan.
//! Invariants: as long as nothing interrupts it, or it goes on exactly where it was told to, it is one reader of the
//! model; after anything else it is a new one that is owed nothing from before.

use std::time::Duration;

use bytes::BytesMut;
use felix_runtime::clock::Tick;
use felix_runtime::quic::{ConnKey, StreamId};
use felix_wire::client::{EventBatch, Message, ShardMoved, StartPosition, Subscribe, Subscribed};
use felix_wire::error_code::ErrorCode;
use felix_wire::frame::Frame;
use felix_wire::id::{Offset, ShardIndex};

use super::broker::{generation_of, stream_name};
use super::check::{Kept, Model, Position, ShardKey};
use super::client::Surroundings;
use super::credentials::{NAMESPACE, TENANT};
use super::plan::SubscriberPlan;
use super::publisher::read_record;

const RETRY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle {
        until: Tick,
    },
    /// On its way on this stream, until the answer. `generation`: of the shard when it asked; of a durable one the life of
    /// its stream, 0 when that is not sure.
    Asking {
        on: (ConnKey, StreamId),
        generation: u64,
    },
    Live {
        id: u64,
        conn: ConnKey,
    },
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Subscriber {
    plan: SubscriberPlan,
    /// Its client is told offsets.
    positions: bool,
    state: State,
    start: StartPosition,
    reader: Option<usize>,
    /// Of the life it reads; unknown to a client without positions when the shard moved while it asked.
    generation: Option<u64>,
    /// What it was told to go on with.
    expected: Option<u64>,
    /// Where the records ended when it began.
    live: u64,
}

impl Subscriber {
    /// A subscription that is not asked for yet.
    pub fn new(plan: SubscriberPlan, positions: bool) -> Subscriber {
        Subscriber {
            positions,
            state: State::Idle { until: plan.begins },
            start: Subscriber::first(&plan),
            plan,
            reader: None,
            generation: None,
            expected: None,
            live: 0,
        }
    }

    fn first(plan: &SubscriberPlan) -> StartPosition {
        if plan.earliest { StartPosition::Earliest } else { StartPosition::Latest }
    }

    fn shard(&self) -> ShardKey {
        (self.plan.stream, self.plan.shard)
    }

    /// The number the broker gave it.
    pub fn id(&self) -> Option<u64> {
        if let State::Live { id, .. } = self.state { Some(id) } else { None }
    }

    /// Whether it is the one with that number.
    pub fn is_called(&self, id: u64) -> bool {
        self.id() == Some(id)
    }

    /// Whether it waits for an answer on that stream.
    pub fn is_asking(&self, key: (ConnKey, StreamId)) -> bool {
        matches!(self.state, State::Asking { on, .. } if on == key)
    }

    /// Whether it depends on that connection.
    pub fn is_of(&self, key: ConnKey) -> bool {
        match self.state {
            State::Asking { on, .. } => on.0 == key,
            State::Live { conn, .. } => conn == key,
            State::Idle { .. } | State::Over => false,
        }
    }

    /// Whether it is neither live nor over.
    pub fn is_pending(&self) -> bool {
        !matches!(self.state, State::Live { .. } | State::Over)
    }

    /// Whether it reads its events.
    pub fn reads(&self, now: Tick) -> bool {
        let (from, to) = self.plan.stalled;
        !(from..to).contains(&now)
    }

    /// The next moment at which it does something by itself.
    pub fn next(&self, now: Tick) -> Option<Tick> {
        let begins = if let State::Idle { until } = self.state { Some(until) } else { None };
        let stalled = Some(self.plan.stalled.1).filter(|at| *at < Tick::MAX);
        begins.into_iter().chain(stalled).filter(|at| *at > now).min()
    }

    /// Whether it wants a stream to ask on.
    pub fn wants_stream(&self, now: Tick) -> bool {
        matches!(self.state, State::Idle { until } if until <= now)
    }

    /// It has one.
    pub fn asking(&mut self, on: (ConnKey, StreamId)) {
        self.state = State::Asking { on, generation: 0 };
    }

    /// The stream authenticated: the request.
    pub fn ask(&mut self, out: &mut BytesMut, around: &Surroundings<'_>) {
        let generation = match around.excuses.durable {
            // Not every core knows of the newest life yet.
            true if around.moving => 0,
            _ => self.life(around),
        };
        if let State::Asking { on, .. } = self.state {
            self.state = State::Asking { on, generation };
        }
        let message = Subscribe {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream_name(self.plan.stream).into(),
            subscription_id: None,
            start: Some(self.start),
            shard: (self.plan.shard > 0).then_some(ShardIndex(self.plan.shard)),
            queue_capacity: None,
        };
        Message::Subscribe(message).encode_frame(out);
    }

    /// The life of its shard's offsets now.
    fn life(&self, around: &Surroundings<'_>) -> u64 {
        match around.excuses.durable {
            true => around.lives[self.plan.stream],
            false => around.generations[self.plan.stream][self.plan.shard as usize],
        }
    }

    /// Whether it looks at the whole log and has not come to the end that there was when it began.
    pub fn is_reading(&self, model: &Model) -> bool {
        if !self.plan.keeps || self.state == State::Over {
            return false;
        }
        let at = self.reader.and_then(|reader| model.reader(reader).next());
        !matches!(self.state, State::Live { .. }) || at.is_none_or(|at| at < self.live)
    }

    /// The answer to the request.
    ///
    /// # Errors
    /// It is none, or none that this request can have.
    pub fn answer(&mut self, frame: &Frame, around: &mut Surroundings<'_>) -> Result<(), String> {
        let State::Asking { on, generation } = self.state else {
            return Err("a second answer to a subscribe".to_owned());
        };
        let message = Message::decode(&frame.payload).map_err(|error| error.to_string())?;
        match message {
            Message::Subscribed(answer) => {
                let now = self.life(around);
                if answer.boot.is_some() && around.excuses.durable {
                    return Err("offsets of a log are told to be good for one process".to_owned());
                }
                let known = match answer.boot {
                    Some(boot) => Some(generation_of(boot, self.plan.stream)),
                    None => (now == generation).then_some(now),
                };
                self.begin(&answer, on.0, known, around);
            }
            Message::SubscribeCursorError(error) if matches!(self.start, StartPosition::Offset(_)) => {
                let explained = around.excuses.retention || around.deleted[self.plan.stream];
                if around.excuses.durable && !explained {
                    return Err(format!("{:?}: {error:?} to one that goes on", self.shard()));
                }
                around.model.too_old += 1;
                self.broken(around.model);
                self.state = State::Idle { until: around.now };
            }
            Message::Error(error) => {
                let code = error.code.ok_or("a refusal without a code")?;
                self.broken(around.model);
                self.state = match code {
                    ErrorCode::ShardUnavailable => State::Idle { until: around.now + RETRY },
                    ErrorCode::NotFound if self.may_come_back(around) => {
                        State::Idle { until: around.now + RETRY }
                    }
                    ErrorCode::NotFound if around.deleted[self.plan.stream] => State::Over,
                    ErrorCode::Unauthenticated => State::Over,
                    other => return Err(format!("subscribe was refused with {other}")),
                };
            }
            other => return Err(format!("not an answer to subscribe: {}", other.type_name())),
        }
        Ok(())
    }

    /// Its stream was deleted, and is there again or may be.
    fn may_come_back(&self, around: &Surroundings<'_>) -> bool {
        let gone = around.gone[self.plan.stream] && around.now >= around.heal_at;
        around.excuses.durable && around.deleted[self.plan.stream] && !gone
    }

    fn begin(
        &mut self,
        answer: &Subscribed,
        conn: ConnKey,
        known: Option<u64>,
        around: &mut Surroundings<'_>,
    ) {
        let goes_on = match (self.expected, self.generation, known) {
            (Some(_), Some(before), Some(now)) if around.excuses.durable => now == before,
            (Some(expected), Some(before), Some(now)) => now == expected && now <= before + 1,
            _ => false,
        };
        if goes_on {
            around.model.went_on += 1;
        } else {
            self.forget(around.model);
        }
        let shard = self.shard();
        let reader = *self.reader.get_or_insert_with(|| {
            let reader = around.model.new_reader(shard);
            let held = around.model.reader_mut(reader);
            held.owed_since = Some(around.now);
            held.began_in_move = around.moving;
            reader
        });
        around.trace.note(
            around.now,
            "subscribed",
            [answer.subscription_id.0, u64::from(shard.1), reader as u64],
        );
        self.live = answer.live_offset.map_or(0, |live| live.0);
        if let Some(start) = answer.start_offset
            && (known.is_some() || !around.excuses.durable)
        {
            around.model.stand(reader, known.unwrap_or(0), start.0);
            if self.plan.keeps {
                let held = around.model.reader_mut(reader);
                let kept = Kept { start: start.0, ..Kept::default() };
                held.kept.get_or_insert(kept);
            }
        }
        self.generation = known;
        self.expected = None;
        self.state = State::Live { id: answer.subscription_id.0, conn };
    }

    /// A frame of its event stream.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn event(&mut self, frame: &Frame, around: &mut Surroundings<'_>) -> Result<(), String> {
        if frame.flags != 0 {
            return self.events(frame, around);
        }
        let message = Message::decode(&frame.payload).map_err(|error| error.to_string())?;
        around.trace.note(
            around.now,
            "last frame",
            [self.id().unwrap_or(0), message.type_name().len() as u64, 0],
        );
        match message {
            Message::ShardMoved(moved) => self.moved(&moved, around),
            Message::StreamDeleted(_) if around.deleted[self.plan.stream] => {
                self.broken(around.model);
                self.state = match self.may_come_back(around) {
                    true => State::Idle { until: around.now + RETRY },
                    false => State::Over,
                };
            }
            Message::SubscriptionLagged(_) if around.excuses.retention => {
                around.model.too_old += 1;
                self.broken(around.model);
                self.state = State::Idle { until: around.now };
            }
            Message::Error(error) if around.excuses.unreadable && error.code == Some(ErrorCode::Storage) => {
                self.broken(around.model);
                self.state = State::Idle { until: around.now + RETRY };
            }
            other => return Err(format!("{} on an event stream", other.type_name())),
        }
        Ok(())
    }

    fn events(&mut self, frame: &Frame, around: &mut Surroundings<'_>) -> Result<(), String> {
        let batch = EventBatch::decode(frame.flags, &frame.payload).map_err(|error| error.to_string())?;
        let shard = self.shard();
        let Some(reader) = self.reader else { return Err("events without a subscription".to_owned()) };
        if batch.is_empty() || batch.base_offset.is_some() != self.positions {
            return Err("an event frame without events, or offsets for the wrong client".to_owned());
        }
        let mut skipped = batch.skipped_before;
        for event in batch.iter() {
            let record = read_record(&event.payload, shard)?;
            let life = match around.excuses.durable {
                true => self.generation,
                false => Some(self.generation.unwrap_or(0)),
            };
            let position = event.offset.zip(life).map(|(offset, life)| Position {
                life,
                offset: offset.0,
                skipped: std::mem::take(&mut skipped),
            });
            around.trace.note(around.now, "event", [reader as u64, u64::from(record.lane), record.seq]);
            around.model.deliver(around.now, reader, record, position)?;
        }
        Ok(())
    }

    /// It is to go on elsewhere, or with another token.
    fn moved(&mut self, moved: &ShardMoved<'_>, around: &mut Surroundings<'_>) {
        let resume = moved.resume_from.unwrap_or(Offset(0));
        self.expected = Some(moved.generation.0);
        self.start = StartPosition::Offset(resume);
        self.state = State::Idle { until: around.now + Duration::from_millis(1) };
    }

    /// Its stream or connection is gone; it asks again later, from the beginning.
    pub fn lost(&mut self, at: Tick, model: &mut Model) {
        self.broken(model);
        self.state = State::Idle { until: at };
    }

    /// Its `auth` was refused; for good when there will be no better token.
    pub fn refused(&mut self, at: Option<Tick>, model: &mut Model) {
        self.broken(model);
        self.state = at.map_or(State::Over, |until| State::Idle { until });
    }

    /// What comes is not the continuation of what was.
    pub fn broken(&mut self, model: &mut Model) {
        self.forget(model);
        self.start = Subscriber::first(&self.plan);
        self.expected = None;
    }

    fn forget(&mut self, model: &mut Model) {
        if let Some(reader) = self.reader.take() {
            model.reader_mut(reader).owed_since = None;
        }
    }
}
