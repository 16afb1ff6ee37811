//! What the test broker does on a connection.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::VecDeque;

use bytes::BytesMut;
use felix_sdk::{Bytes, CoreId, ErrorCode, Offset, shard_for};
use felix_wire::client::{
    AckCode, AckOutcome, AuthOk, BinaryPublish, CacheShardsView, CursorErrorReason, Error, EventBatch,
    EventStreamHello, Form, Message, NotLeader, ProducerInitOk, PublishAck, PublishRefused, Records,
    RefusalReason, ShardKind, ShardMoved, ShardOwner, ShardOwnersView, StartPosition, StreamDeleted,
    StreamShardsView, Subscribe, SubscribeCursorError, Subscribed, SubscriptionLagged, encode_ok,
};
use felix_wire::error_code::ErrorDetail;
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::frame::{Frame, FrameReader};
use felix_wire::id::{Generation, ProducerId, RequestId, ShardIndex, SubscriptionId};
use quinn::{Connection, Endpoint, RecvStream, SendStream, VarInt};

use super::requests::is_data;
use super::{Answers, Ending, SeenPublish, Shared, State, TENANT, Trick};

/// Any failure ends the stream it happened on.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

pub async fn accept(endpoint: Endpoint, state: Shared) {
    while let Some(incoming) = endpoint.accept().await {
        let aim = incoming.orig_dst_cid().first().copied().unwrap_or_default();
        let state = state.clone();
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else { return };
            state.change(|s| {
                s.aims.push(aim);
                s.open_connections += 1;
            });
            while let Ok((send, recv)) = connection.accept_bi().await {
                let session = Session { connection: connection.clone(), state: state.clone(), aim };
                let stream = async move { drop(session.stream(send, recv).await) };
                tokio::spawn(FORM.scope(Cell::default(), stream));
            }
            state.change(|s| s.open_connections -= 1);
        });
    }
}

struct Frames {
    recv: RecvStream,
    reader: FrameReader,
}

impl Frames {
    async fn next(&mut self) -> Outcome<Option<Frame>> {
        loop {
            if let Some(frame) = self.reader.next()? {
                return Ok(Some(frame));
            }
            match self.recv.read_chunk(usize::MAX, true).await? {
                Some(chunk) => self.reader.push(chunk.bytes),
                None => return Ok(None),
            }
        }
    }
}

tokio::task_local! {
    /// The form of the last request of the stream whose task this is.
    static FORM: Cell<Form>;
}

/// Answers in the form of the request.
pub async fn write(send: &mut SendStream, message: &Message<'_>) -> Outcome<()> {
    let mut out = BytesMut::new();
    message.encode_frame_as(FORM.try_with(Cell::get).unwrap_or_default(), &mut out);
    Ok(send.write_all(&out).await?)
}

pub async fn refuse(send: &mut SendStream, code: ErrorCode) -> Outcome<()> {
    let message = code.to_string();
    write(send, &Message::Error(Error::coded(code, message))).await
}

pub struct Session {
    pub connection: Connection,
    pub state: Shared,
    aim: u8,
}

impl Session {
    async fn stream(self, mut send: SendStream, recv: RecvStream) -> Outcome<()> {
        let mut frames = Frames { recv, reader: FrameReader::new(16 << 20) };
        let Some(first) = frames.next().await? else { return Ok(()) };
        if !self.authenticate(&first, &mut send).await? {
            send.finish()?;
            return Ok(());
        }
        if self.state.lock().features.contains(Features::BINARY_MESSAGES) {
            frames.reader.take_binary_messages();
        }
        let mut width = None;
        let mut owed: Vec<(RequestId, Option<Offset>)> = Vec::new();
        let mut held: VecDeque<Frame> = VecDeque::new();
        loop {
            let frame = tokio::select! {
                frame = frames.next() => match frame? {
                    Some(frame) => frame,
                    None => break,
                },
                // Held answers go when the test lets them.
                () = self.released(), if !owed.is_empty() => {
                    self.answer_all(&mut send, &mut owed).await?;
                    continue;
                }
                () = self.requests_released(), if !held.is_empty() => {
                    self.answer_held(&mut held, &mut send).await?;
                    continue;
                }
            };
            let form = if frame.flags == Flags::BINARY_MESSAGE.bits() { Form::Binary } else { Form::Json };
            FORM.with(|last| last.set(form));
            if form == Form::Json && frame.flags != 0 {
                self.publish(&frame, width, &mut send, &mut owed).await?;
                continue;
            }
            if form == Form::Binary {
                self.state.change(|s| s.requests.binary += 1);
            }
            match Message::decode_frame(&frame)? {
                Message::PublishWidth(declared) => width = Some((declared.shards, declared.routing)),
                Message::Subscribe(subscribe) => self.subscribe(subscribe, &mut send).await?,
                Message::CacheWatch(watch) => self.watch(watch, &mut send).await?,
                other if is_data(&other) && self.hold() => {
                    held.push_back(frame.clone());
                    self.holding(held.len());
                }
                other if is_data(&other) => self.data(&other, &mut send).await?,
                other => self.request(&other, &mut send).await?,
            }
        }
        send.finish()?;
        Ok(())
    }

    async fn authenticate(&self, frame: &Frame, send: &mut SendStream) -> Outcome<bool> {
        let Message::Auth(auth) = Message::decode(&frame.payload)? else {
            refuse(send, ErrorCode::Unauthenticated).await?;
            return Ok(false);
        };
        assert_eq!(auth.tenant_id, TENANT);
        let refusal = self.state.change(|s| {
            s.auths.push(auth.token.to_string());
            if s.draining {
                return Some(ErrorCode::Draining);
            }
            (!s.tokens.contains(&*auth.token)).then_some(ErrorCode::Unauthenticated)
        });
        if let Some(code) = refusal {
            refuse(send, code).await?;
            return Ok(false);
        }
        let ok = {
            let s = self.state.lock();
            let offered = auth.features();
            let common = s.features;
            let (lo, hi) = common.words(auth.reads_features_hi());
            let hints = s.cores.filter(|_| offered.contains(Features::CORE_HINTS));
            let core = if s.ignore_aim { 0 } else { u16::from(self.aim) };
            let core = hints.map(|cores| CoreId(core % u16::try_from(cores).expect("few cores")));
            AuthOk {
                server_flags: s.flags,
                server_features: Some(lo),
                server_features_hi: hi,
                listener_ports: None,
                publish_window: common.contains(Features::PUBLISH_PIPELINE).then_some(s.window),
                cores: hints,
                core,
            }
        };
        write(send, &Message::AuthOk(ok)).await?;
        Ok(true)
    }

    async fn request(&self, message: &Message<'_>, send: &mut SendStream) -> Outcome<()> {
        match message {
            Message::StreamShards(request) => {
                let (shards, routing, durable) = {
                    let s = self.state.lock();
                    (if s.stream_known { s.shards } else { 0 }, s.mapping, s.durable)
                };
                let view = StreamShardsView { shards, request_id: request.request_id, routing, durable };
                write(send, &Message::StreamShardsView(view)).await
            }
            Message::ShardOwners(request) => {
                let owners = {
                    let s = self.state.lock();
                    let shards = match request.kind {
                        ShardKind::Stream => s.shards,
                        ShardKind::Cache if s.caches.known => s.caches.shards,
                        ShardKind::Cache => 0,
                    };
                    (0..shards).map(|shard| owner(&s, shard)).collect()
                };
                let view = ShardOwnersView { owners, request_id: request.request_id };
                write(send, &Message::ShardOwnersView(view)).await
            }
            Message::CacheShards(request) => {
                let shards = {
                    let s = self.state.lock();
                    if s.caches.known { s.caches.shards } else { 0 }
                };
                let view = CacheShardsView { shards, request_id: request.request_id };
                write(send, &Message::CacheShardsView(view)).await
            }
            Message::ProducerInit(request) => {
                let (inits, refused) = self.state.change(|s| {
                    s.producer_inits += 1;
                    (s.producer_inits, s.refuse_producer.clone())
                });
                if let Some(code) = refused {
                    return refuse(send, code).await;
                }
                // Ids use the whole range.
                let producer_id = ProducerId(u64::MAX - inits);
                let ok = ProducerInitOk { request_id: request.request_id, producer_id };
                write(send, &Message::ProducerInitOk(ok)).await
            }
            _ => refuse(send, ErrorCode::InvalidRequest).await,
        }
    }

    async fn publish(
        &self,
        frame: &Frame,
        width: Option<(u32, felix_sdk::KeyMapping)>,
        send: &mut SendStream,
        owed: &mut Vec<(RequestId, Option<Offset>)>,
    ) -> Outcome<()> {
        let publish = BinaryPublish::decode(frame.flags, &frame.payload)?;
        let request = publish.acked.map(|(request, _)| request);
        let trick = self.state.change(|s| s.tricks.pop_front());
        if trick == Some(Trick::Cut) {
            return self.cut();
        }
        let stored = match &trick {
            Some(Trick::Refuse(code)) => Err(No::Code(code.clone(), None)),
            Some(Trick::RefuseNumber(reason)) => Err(No::Number(reason.clone())),
            _ => self.state.change(|s| store(s, &publish, width)),
        };
        let Some(request) = request else { return Ok(()) };
        let base = match stored {
            Err(no) => return no.say(request, send).await,
            Ok(base) => base,
        };
        let offset = self.state.lock().numbered.then_some(base);
        match trick {
            Some(Trick::StoreAndCut) => return self.cut(),
            Some(Trick::Swallow) => return Ok(()),
            Some(Trick::AnswerTwice) => owed.push((request, offset)),
            Some(Trick::AnswerUnknown) => {
                owed.push((RequestId(request.get() + 1_000_000), offset));
                return self.answer_all(send, owed).await;
            }
            Some(Trick::AnswerAt(offset)) => {
                owed.push((request, Some(Offset(offset))));
                return self.answer_all(send, owed).await;
            }
            _ => {}
        }
        owed.push((request, offset));
        let answers = self.state.lock().answers;
        match answers {
            Answers::Prompt => self.answer_all(send, owed).await,
            Answers::ReversedInGroups(group) if owed.len() >= group => {
                owed.reverse();
                self.answer_all(send, owed).await
            }
            Answers::Held | Answers::ReversedInGroups(_) => Ok(()),
        }
    }

    pub fn cut(&self) -> Outcome<()> {
        self.connection.close(VarInt::from_u32(0), b"");
        Ok(())
    }

    async fn answer_all(
        &self,
        send: &mut SendStream,
        owed: &mut Vec<(RequestId, Option<Offset>)>,
    ) -> Outcome<()> {
        let mut out = BytesMut::new();
        self.state.change(|s| s.unanswered = s.unanswered.saturating_sub(owed.len()));
        for (request, offset) in owed.drain(..) {
            encode_ok(request, offset, &mut out);
        }
        Ok(send.write_all(&out).await?)
    }

    /// Until answers are not held any more.
    async fn released(&self) {
        let mut changes = self.state.changed.subscribe();
        loop {
            changes.borrow_and_update();
            if self.state.lock().answers == Answers::Prompt {
                return;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn subscribe(&self, request: Subscribe<'_>, send: &mut SendStream) -> Outcome<()> {
        let shard = request.shard.unwrap_or(ShardIndex(0)).get();
        let leader = self.state.lock().leader.clone();
        if let Some((node_id, addr)) = leader {
            let leader =
                NotLeader { node_id: node_id.into(), addr: Some(addr.into()), generation: Generation(1) };
            return write(send, &Message::NotLeader(leader)).await;
        }
        if !self.state.lock().stream_known {
            return refuse(send, ErrorCode::NotFound).await;
        }
        let (id, start) = match self.state.change(|s| place(s, shard, request.start)) {
            Ok(placed) => placed,
            Err(error) => return write(send, &Message::SubscribeCursorError(error)).await,
        };
        let (hello_late, answer) = {
            let s = self.state.lock();
            let answer = Subscribed {
                subscription_id: id,
                start_offset: (s.boot.is_none() && s.numbered).then_some(Offset(start)),
                live_offset: s.numbered.then_some(Offset(s.records[shard as usize].len() as u64)),
                queue_capacity: None,
                boot: s.boot,
            };
            (s.hello_after_answer, answer)
        };
        if hello_late {
            write(send, &Message::Subscribed(answer)).await?;
            send.finish()?;
            // The client has our whole answer before the event stream begins.
            send.stopped().await?;
        }
        let mut events = self.connection.open_uni().await?;
        write(&mut events, &Message::EventStreamHello(EventStreamHello { subscription_id: id })).await?;
        if !hello_late {
            write(send, &Message::Subscribed(answer)).await?;
        }
        let state = self.state.clone();
        tokio::spawn(async move {
            state.change(|s| s.event_streams += 1);
            drop(deliver(state.clone(), events, id, shard, start).await);
            state.change(|s| s.event_streams -= 1);
        });
        Ok(())
    }
}

/// Why a publish was not stored.
pub enum No {
    Code(ErrorCode, Option<&'static str>),
    Number(RefusalReason<'static>),
}

impl No {
    async fn say(self, request: RequestId, send: &mut SendStream) -> Outcome<()> {
        let (code, reason) = match self {
            No::Code(code, reason) => (code, reason),
            No::Number(reason) => {
                let message = Cow::Borrowed("no");
                let refused = PublishRefused { request_id: request, reason, message };
                return write(send, &Message::PublishRefused(refused)).await;
            }
        };
        let retry = code.default_retry();
        let message = Cow::Owned(code.to_string());
        let detail = reason.map(|reason| ErrorDetail { reason: Some(reason.into()), retry_after_ms: None });
        let outcome = AckOutcome::Error { message, code: Some(AckCode { code, retry, detail }) };
        let mut out = BytesMut::new();
        PublishAck { request_id: request, outcome, owner: None }.encode_frame(&mut out);
        Ok(send.write_all(&out).await?)
    }
}

/// Appends a publish, unless its producer has sent it before.
fn store(
    s: &mut State,
    publish: &BinaryPublish<'_>,
    width: Option<(u32, felix_sdk::KeyMapping)>,
) -> Result<Offset, No> {
    if let Some(code) = s.refuse_next.pop_front() {
        return Err(No::Code(code, None));
    }
    if !s.stream_known {
        return Err(No::Code(ErrorCode::NotFound, None));
    }
    if publish.key.is_some() && width.is_some_and(|w| w != (s.shards, s.mapping)) {
        return Err(No::Code(ErrorCode::StaleWidth, None));
    }
    let shard = shard_for(publish.key, s.shards, s.mapping).get();
    let records: Vec<_> = publish.records.iter().map(Bytes::copy_from_slice).collect();
    let number = publish.producer.map(|(producer, sequence)| (producer.get(), sequence.get()));
    s.publishes.push(SeenPublish {
        shard,
        records: records.len(),
        acked: publish.acked.is_some(),
        declared_width: width.map(|(shards, _)| shards),
        number,
    });
    if number.is_some() && !s.keeps_producers {
        return Err(No::Code(ErrorCode::InvalidRequest, Some("not_durable")));
    }
    if publish.acked.is_some() {
        s.unanswered += 1;
        s.unanswered_most = s.unanswered_most.max(s.unanswered);
    }
    let base = s.records[shard as usize].len() as u64;
    if let Some((producer, sequence)) = number {
        let found = s.producers.find((shard, producer), sequence, &records).map_err(No::Number)?;
        if let Some(first) = found {
            return Ok(Offset(first));
        }
        s.producers.appended((shard, producer), base, records.clone());
    }
    s.records[shard as usize].extend(records);
    Ok(Offset(base))
}

fn owner(s: &State, shard: u32) -> ShardOwner<'static> {
    ShardOwner {
        shard: ShardIndex(shard),
        node_id: s.owner.as_ref().map(|(node_id, _)| Cow::Owned(node_id.clone())),
        addr: s.owner.as_ref().map(|(_, addr)| Cow::Owned(addr.clone())),
        generation: Generation(1),
        unavailable: None,
        core: s.cores.map(|cores| CoreId(u16::try_from(shard % cores).expect("few cores"))),
    }
}

/// A subscription id and the first offset to deliver.
fn place(
    s: &mut State,
    shard: u32,
    start: Option<StartPosition>,
) -> Result<(SubscriptionId, u64), SubscribeCursorError> {
    let tail = s.records[shard as usize].len() as u64;
    let offset = match start {
        None | Some(StartPosition::Latest) => tail,
        Some(StartPosition::Earliest) => s.held_from,
        Some(StartPosition::Offset(offset)) => offset.get(),
    };
    let asked = match start {
        Some(StartPosition::Offset(offset)) => Some(offset.get()),
        _ => None,
    };
    s.subscribes.push((shard, asked));
    let error = |reason, available| SubscribeCursorError {
        reason,
        requested: Offset(offset),
        available: Offset(available),
    };
    if offset < s.held_from {
        return Err(error(CursorErrorReason::TooOld, s.held_from));
    }
    if offset > tail {
        return Err(error(CursorErrorReason::InFuture, tail));
    }
    s.next_id += 1;
    Ok((SubscriptionId(s.next_id), offset))
}

async fn deliver(
    state: Shared,
    mut events: SendStream,
    id: SubscriptionId,
    shard: u32,
    mut next: u64,
) -> Outcome<()> {
    let mut changes = state.changed.subscribe();
    loop {
        changes.borrow_and_update();
        let (batch, ending) = {
            let s = state.lock();
            let log = &s.records[shard as usize];
            let full = s.empty_from.map_or(log.len(), |from| log.len().min(from as usize));
            let end = (next as usize + s.event_frame_records).min(full);
            let ending = s.ending.clone().filter(|(before, _)| id.get() < *before);
            let records = log.get(next as usize..end).unwrap_or_default().to_vec();
            let numbered = s.numbered;
            ((!records.is_empty()).then_some((records, numbered)), ending)
        };
        if let Some((_, ending)) = ending {
            return end_stream(&mut events, ending, id, next).await;
        }
        let skip = {
            let s = state.lock();
            let end = s.records[shard as usize].len() as u64;
            s.empty_from.filter(|from| *from == next && *from < end).map(|from| (end, end - from))
        };
        if let Some((end, skipped)) = skip {
            let mut batch = EventBatch::new(Records::from_payloads(std::iter::empty::<&[u8]>()));
            (batch.base_offset, batch.skipped_before) = (Some(Offset(end)), skipped);
            let mut out = BytesMut::new();
            batch.encode_frame(&mut out);
            events.write_chunk(out.freeze()).await?;
            next = end;
            continue;
        }
        let Some((records, numbered)) = batch else {
            tokio::select! {
                changed = changes.changed() => changed?,
                _ = events.stopped() => return Ok(()),
            }
            continue;
        };
        let mut batch = EventBatch::new(Records::from_payloads(records.iter().map(|record| &**record)));
        batch.base_offset = numbered.then_some(Offset(next));
        next += records.len() as u64;
        let mut out = BytesMut::new();
        batch.encode_frame(&mut out);
        let bytes = out.len();
        events.write_chunk(out.freeze()).await?;
        state.change(|s| s.event_bytes_written += bytes);
    }
}

async fn end_stream(events: &mut SendStream, ending: Ending, id: SubscriptionId, next: u64) -> Outcome<()> {
    let moved = |node_id: Option<String>, addr: Option<String>| {
        Message::ShardMoved(ShardMoved {
            subscription_id: id,
            resume_from: Some(Offset(next)),
            node_id: node_id.map(Cow::Owned),
            addr: addr.map(Cow::Owned),
            generation: Generation(2),
        })
    };
    let last = match ending {
        Ending::Fin => None,
        Ending::Moved => Some(moved(None, None)),
        Ending::MovedTo { node_id, addr } => Some(moved(Some(node_id), Some(addr))),
        Ending::Lagged => Some(Message::SubscriptionLagged(SubscriptionLagged {
            subscription_id: id,
            resume_from: Offset(next),
        })),
        Ending::Deleted => Some(Message::StreamDeleted(StreamDeleted { subscription_id: id })),
        Ending::Error(code) => {
            let message = code.to_string();
            Some(Message::Error(Error::coded(code, message)))
        }
    };
    if let Some(last) = last {
        write(events, &last).await?;
    }
    events.finish()?;
    Ok(())
}
