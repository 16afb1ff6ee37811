//! The cache and the counters of the test broker: any cache name is this one.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use felix_sdk::{Bytes, ErrorCode, KeyMapping, Offset, shard_for};
use felix_wire::client::{
    CacheCondition, CacheConditionResult, CacheEvent, CacheOk, CacheValue, CacheWatch, CacheWatchLagged,
    CacheWatchStarted, CounterAdd, CounterValue, CursorErrorReason, EventStreamHello, Message,
    PublishRefused, RefusalReason, ShardMoved, SubscribeCursorError,
};
use felix_wire::id::{Generation, RequestId, Sequence, SubscriptionId};
use quinn::SendStream;

use super::session::{No, Outcome, Session, write};
use super::{Ending, Shared, State};

/// A write.
#[derive(Debug, Clone)]
pub struct Write {
    pub key: String,
    pub value: Option<Bytes>,
}

/// Key, what was added, and the sum that was answered.
pub type Added = (String, i64, i64);

/// See the module. Offsets count from 0 in each shard.
#[derive(Debug)]
pub struct Caches {
    pub known: bool,
    pub shards: u32,
    pub log: Vec<Vec<Write>>,
    /// Value, version, and the life that was asked for.
    pub values: BTreeMap<String, (Bytes, u64, Option<u64>)>,
    /// History below is gone.
    pub compacted: u64,
    pub counters: HashMap<String, i64>,
    /// By shard and producer, in the order of its numbers.
    pub numbers: HashMap<(u32, u64), Vec<Added>>,
    /// Adds as they came: key and number.
    pub adds: Vec<(String, Option<(u64, u64)>)>,
    /// Of watches: where they began, and whether current values were asked for.
    pub watches: Vec<(Option<u64>, bool)>,
    /// Current values of a watch that are sent before it is cut off, once.
    pub cut_after: Option<usize>,
}

impl Caches {
    pub fn new(shards: u32) -> Self {
        Self {
            known: true,
            shards,
            log: vec![Vec::new(); shards as usize],
            values: BTreeMap::new(),
            compacted: 0,
            counters: HashMap::new(),
            numbers: HashMap::new(),
            adds: Vec::new(),
            watches: Vec::new(),
            cut_after: None,
        }
    }

    pub fn shard(&self, key: &str) -> u32 {
        shard_for(Some(key.as_bytes()), self.shards, KeyMapping::Modulo).get()
    }

    pub fn put(&mut self, key: &str, value: impl Into<Bytes>) -> u64 {
        self.put_for(key, value.into(), None)
    }

    fn put_for(&mut self, key: &str, value: Bytes, life: Option<u64>) -> u64 {
        let shard = self.shard(key) as usize;
        let log = &mut self.log[shard];
        let version = log.len() as u64;
        log.push(Write { key: key.to_owned(), value: Some(value.clone()) });
        self.values.insert(key.to_owned(), (value, version, life));
        version
    }

    pub fn delete(&mut self, key: &str) -> Option<Bytes> {
        let (value, ..) = self.values.remove(key)?;
        let shard = self.shard(key) as usize;
        self.log[shard].push(Write { key: key.to_owned(), value: None });
        Some(value)
    }

    fn version(&self, key: &str) -> Option<u64> {
        self.values.get(key).map(|(_, version, _)| *version)
    }

    /// The sum, or why there is none.
    fn add(&mut self, add: &CounterAdd<'_>) -> Result<i64, No> {
        let number = add.producer_id.zip(add.sequence).map(|(id, sequence)| (id.get(), sequence.get()));
        self.adds.push((add.key.to_string(), number));
        let sum = self.counters.get(&*add.key).copied().unwrap_or(0).checked_add(add.delta);
        let overflow = || No::Code(ErrorCode::InvalidRequest, Some("overflow"));
        if let Some((producer, sequence)) = number {
            let shard = self.shard(&add.key);
            let known = self.numbers.get(&(shard, producer)).map_or(0, Vec::len) as u64;
            if known == 0 && sequence > 0 {
                return Err(No::Number(RefusalReason::UnknownProducer));
            }
            if sequence > known {
                return Err(No::Number(RefusalReason::SequenceGap { expected: Sequence(known) }));
            }
            if sequence < known {
                let (key, delta, answer) = &self.numbers[&(shard, producer)][sequence as usize];
                let same = *key == add.key && *delta == add.delta;
                return if same { Ok(*answer) } else { Err(No::Number(RefusalReason::SequenceReused)) };
            }
            let sum = sum.ok_or_else(overflow)?;
            self.numbers.entry((shard, producer)).or_default().push((add.key.to_string(), add.delta, sum));
        }
        let sum = sum.ok_or_else(overflow)?;
        self.counters.insert(add.key.to_string(), sum);
        Ok(sum)
    }
}

/// What a cache or counter request is answered with; `None` for any other.
pub fn answer(s: &mut State, message: &Message<'_>) -> Option<Result<Message<'static>, No>> {
    if !s.caches.known {
        return Some(Err(No::Code(ErrorCode::NotFound, None)));
    }
    let caches = &mut s.caches;
    Some(Ok(match message {
        Message::CacheGet(get) => {
            let found = caches.values.get(&*get.key);
            let (value, version) = found.map(|(value, version, _)| (value.clone(), *version)).unzip();
            value_message(&get.key, value, version, get.request_id)
        }
        Message::CachePut(put) => {
            caches.put_for(&put.key, put.value.clone(), put.ttl_ms);
            Message::CacheOk(CacheOk { request_id: put.request_id.expect("clients number requests") })
        }
        Message::CacheDelete(delete) => {
            value_message(&delete.key, caches.delete(&delete.key), None, delete.request_id)
        }
        Message::CachePutIf(put) => {
            let applied = match put.condition {
                CacheCondition::Absent => caches.version(&put.key).is_none(),
                CacheCondition::Version(version) => caches.version(&put.key) == Some(version),
            };
            if applied {
                caches.put_for(&put.key, put.value.clone(), put.ttl_ms);
            }
            condition(applied, caches.version(&put.key), put.request_id)
        }
        Message::CacheDeleteIf(delete) => {
            let applied = caches.version(&delete.key) == Some(delete.version);
            if applied {
                caches.delete(&delete.key);
            }
            condition(applied, caches.version(&delete.key), delete.request_id)
        }
        Message::CounterAdd(add) => match caches.add(add) {
            Ok(sum) => counter(Some(sum), add.request_id),
            Err(no) => return Some(Err(no)),
        },
        Message::CounterGet(get) => counter(caches.counters.get(&*get.key).copied(), get.request_id),
        _ => return None,
    }))
}

fn value_message(
    key: &str,
    value: Option<Bytes>,
    version: Option<u64>,
    request_id: Option<RequestId>,
) -> Message<'static> {
    Message::CacheValue(CacheValue {
        tenant_id: Cow::Borrowed(super::TENANT),
        namespace: Cow::Borrowed("ns"),
        cache: Cow::Borrowed("c"),
        key: Cow::Owned(key.to_owned()),
        value,
        request_id,
        version,
    })
}

fn condition(applied: bool, version: Option<u64>, request_id: RequestId) -> Message<'static> {
    Message::CacheConditionResult(CacheConditionResult { applied, version, request_id })
}

fn counter(value: Option<i64>, request_id: RequestId) -> Message<'static> {
    Message::CounterValue(CounterValue { value, request_id })
}

pub fn refused(request_id: RequestId, reason: RefusalReason<'static>) -> Message<'static> {
    Message::PublishRefused(PublishRefused { request_id, reason, message: Cow::Borrowed("no") })
}

impl Session {
    pub async fn watch(&self, request: CacheWatch<'_>, send: &mut SendStream) -> Outcome<()> {
        let prefix = request.prefix.as_deref().map(str::to_owned);
        let key = request.key.as_deref().map(str::to_owned);
        let matches = move |name: &str| match (&key, &prefix) {
            (Some(key), _) => name == key,
            (None, prefix) => name.starts_with(prefix.as_deref().unwrap_or_default()),
        };
        let registered = self.state.change(|s| {
            let shard = match &request.key {
                Some(key) => s.caches.shard(key),
                None => request.shard.map_or(0, |shard| shard.get()),
            };
            let from = request.from_offset.map(|offset| offset.get());
            s.caches.watches.push((from, request.retained));
            let live = s.caches.log[shard as usize].len() as u64;
            if let Some(from) = from.filter(|from| *from > live) {
                let reason = CursorErrorReason::InFuture;
                let (requested, available) = (Offset(from), Offset(live));
                return Err(SubscribeCursorError { reason, requested, available });
            }
            let resnapshot = from.is_some_and(|from| from < s.caches.compacted);
            let mut values = Vec::new();
            if resnapshot || request.retained {
                let held = s.caches.values.iter().filter(|(key, _)| matches(key));
                let held = held.filter(|(key, _)| s.caches.shard(key) == shard);
                values.extend(held.map(|(key, (value, version, _))| (key.clone(), value.clone(), *version)));
            }
            s.next_id += 1;
            let answer = CacheWatchStarted {
                subscription_id: SubscriptionId(s.next_id),
                resume_offset: Offset(live),
                resnapshot,
                retained_count: request.retained.then_some(values.len() as u64),
            };
            let next = if resnapshot { live } else { from.unwrap_or(live) };
            Ok((answer, values, shard, next))
        });
        let (answer, values, shard, next) = match registered {
            Ok(registered) => registered,
            Err(error) => return write(send, &Message::SubscribeCursorError(error)).await,
        };
        let id = answer.subscription_id;
        let mut events = self.connection.open_uni().await?;
        write(&mut events, &Message::EventStreamHello(EventStreamHello { subscription_id: id })).await?;
        write(send, &Message::CacheWatchStarted(answer)).await?;
        let state = self.state.clone();
        tokio::spawn(async move {
            state.change(|s| s.event_streams += 1);
            let begun = send_values(&state, &mut events, values).await;
            if begun.is_ok() {
                drop(follow(&state, &mut events, (id, shard, next), matches).await);
            }
            state.change(|s| s.event_streams -= 1);
        });
        Ok(())
    }
}

async fn send_values(
    state: &Shared,
    events: &mut SendStream,
    values: Vec<(String, Bytes, u64)>,
) -> Outcome<()> {
    let cut = state.change(|s| s.caches.cut_after.take());
    for (sent, (key, value, version)) in values.into_iter().enumerate() {
        if cut.is_some_and(|cut| sent >= cut) {
            events.finish()?;
            return Err("cut".into());
        }
        write(events, &event(&key, Some(value), version)).await?;
    }
    Ok(())
}

fn event(key: &str, value: Option<Bytes>, offset: u64) -> Message<'static> {
    let expires_at_millis = if key.starts_with("mortal") && value.is_some() { 86_400_000 } else { 0 };
    Message::CacheEvent(CacheEvent {
        key: Cow::Owned(key.to_owned()),
        value,
        offset: Offset(offset),
        expires_at_millis,
    })
}

async fn follow(
    state: &Shared,
    events: &mut SendStream,
    (id, shard, mut next): (SubscriptionId, u32, u64),
    matches: impl Fn(&str) -> bool,
) -> Outcome<()> {
    let mut changes = state.changed();
    loop {
        changes.borrow_and_update();
        let (write_found, ending) = {
            let s = state.lock();
            let ending = s.ending.clone().filter(|(before, _)| id.get() < *before);
            (s.caches.log[shard as usize].get(next as usize).cloned(), ending)
        };
        if let Some(found) = write_found {
            if matches(&found.key) {
                write(events, &event(&found.key, found.value, next)).await?;
            }
            next += 1;
            continue;
        }
        if let Some((_, ending)) = ending {
            let last = match ending {
                Ending::Lagged => {
                    Some(Message::CacheWatchLagged(CacheWatchLagged { resume_from: Offset(next) }))
                }
                Ending::Moved => Some(Message::ShardMoved(ShardMoved {
                    subscription_id: id,
                    resume_from: Some(Offset(next)),
                    node_id: None,
                    addr: None,
                    generation: Generation(2),
                })),
                Ending::Error(code) => {
                    let message = code.to_string();
                    Some(Message::Error(felix_wire::client::Error::coded(code, message)))
                }
                _ => None,
            };
            if let Some(last) = last {
                write(events, &last).await?;
            }
            events.finish()?;
            return Ok(());
        }
        tokio::select! {
            changed = changes.changed() => changed?,
            _ = events.stopped() => return Ok(()),
        }
    }
}
