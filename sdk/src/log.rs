//! A stream as a log: pages of records, offsets by time, and writes at a known end. Scope: per handle.
//! Owns: what each of these requests asks and what its answer means.
//! Invariants: a write whose outcome is unknown is not sent again: that it is there would look like another's write.
//! Not here: publishing without conditions (`publish`), following (`subscribe`).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use felix_wire::client::{
    CursorErrorReason, Message, OffsetForTime, PublishIf, Records, RefusalReason, ShardKind, StreamRead,
    StreamRecords, SubscribeCursorError,
};
use felix_wire::features::Features;
use felix_wire::id::{Offset, ShardIndex};
use felix_wire::limits::BATCH_RECORDS_MAX;

use crate::client::Client;
use crate::error::{CursorReason, Error};
use crate::group::time;
use crate::name::StreamName;
use crate::publish::Published;
use crate::request::{Ask, ConditionError, Place, ReadError, Repeat, RequestError, Said};
use crate::state::{check, checked_shard};

/// A stream, read page by page. Clones share everything.
#[derive(Clone)]
pub struct Log {
    place: Arc<Place>,
}

/// What a page is to hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageLimits {
    /// Up to but without this offset.
    pub end: Option<Offset>,
    /// Most records; the broker's bound without it.
    pub max_records: Option<u32>,
    /// Most bytes of records; the broker's bound without it.
    pub max_bytes: Option<u64>,
}

/// Records of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The records, in order.
    pub records: Vec<LogRecord>,
    /// Where the next page begins.
    pub next: Offset,
}

/// One record of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Its offset.
    pub offset: Offset,
    /// Its bytes.
    pub payload: Bytes,
    /// When it was appended, by its broker's clock.
    pub appended_at: Option<SystemTime>,
}

/// Where a conditional publish goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The shard of this key.
    Key(Bytes),
    /// This shard.
    Shard(u32),
}

impl Client {
    /// A stream as a log. Nothing is asked yet.
    ///
    /// # Errors
    /// [`Error::Config`] when the name has no namespace and the client no default.
    pub fn log(&self, stream: impl Into<StreamName>) -> Result<Log, Error> {
        Ok(Log { place: Place::new(self.shared.clone(), stream.into(), ShardKind::Stream)? })
    }
}

impl Log {
    /// How many shards the stream has.
    ///
    /// # Errors
    /// `not_found` for a stream that is not known, else what asking said.
    pub async fn shard_count(&self) -> Result<u32, RequestError> {
        self.place.shard_count().await
    }

    /// Records of one shard from an offset on, as far as they are settled; none at the end.
    ///
    /// # Errors
    /// [`ReadError::Cursor`] for an offset that is not there, else as [`RequestError`] says.
    pub async fn read(&self, shard: u32, from: Offset, limits: PageLimits) -> Result<Page, ReadError> {
        let shard = checked_shard(&self.place, shard).await?;
        let ask = Ask::new("stream_read", Features::STREAM_READ, shard, Repeat::Read);
        let message = |request_id| {
            let (tenant_id, namespace, stream) = self.names();
            Message::StreamRead(StreamRead {
                tenant_id,
                namespace,
                stream,
                shard: ShardIndex(shard),
                from,
                end: limits.end,
                max_records: limits.max_records.unwrap_or(0),
                max_bytes: limits.max_bytes.unwrap_or(0),
                request_id,
            })
        };
        let read = |answer: &Message<'_>| match answer {
            Message::StreamRecords(found) => Some((Some(found.request_id), Ok(page(found)))),
            Message::SubscribeCursorError(error) => Some((None, Err(*error))),
            _ => None,
        };
        self.place.answer(ask, message, read).await?.map_err(|error| cursor_error(shard, &error))
    }

    /// The first record of one shard that was appended at or after a time; `None` when there is none yet.
    ///
    /// # Errors
    /// As [`RequestError`] says.
    pub async fn offset_for_time(&self, shard: u32, at: SystemTime) -> Result<Option<Offset>, RequestError> {
        let shard = checked_shard(&self.place, shard).await?;
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_micros = u64::try_from(since.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        let ask = Ask::new("offset_for_time", Features::RECORD_TIMESTAMPS, shard, Repeat::Read);
        let message = |request_id| {
            let (tenant_id, namespace, stream) = self.names();
            let shard = ShardIndex(shard);
            Message::OffsetForTime(OffsetForTime {
                tenant_id,
                namespace,
                stream,
                shard,
                at_micros,
                request_id,
            })
        };
        let read = |answer: &Message<'_>| match answer {
            Message::OffsetValue(value) => Some((Some(value.request_id), value.offset)),
            _ => None,
        };
        self.place.answer(ask, message, read).await
    }

    /// Publishes records as one batch when the shard's next offset is `expected`. 1 to 65,536 records.
    ///
    /// # Errors
    /// [`ConditionError::OffsetMismatch`] when it is another one, else as [`RequestError`] says.
    pub async fn publish_if(
        &self,
        target: Target,
        records: &[Bytes],
        expected: Offset,
    ) -> Result<Published, ConditionError> {
        if records.is_empty() || records.len() > BATCH_RECORDS_MAX as usize {
            let count = records.len();
            let message = format!("a batch holds 1 to {BATCH_RECORDS_MAX} records, not {count}");
            return Err(RequestError::Invalid { message }.into());
        }
        let (shard, key, named) = match target {
            Target::Key(key) => {
                check(key.len())?;
                (self.place.shard_of(&key).await?, Some(key), None)
            }
            Target::Shard(shard) => (checked_shard(&self.place, shard).await?, None, Some(ShardIndex(shard))),
        };
        let mut needs = Features::PUBLISH_CONDITIONAL;
        if named.is_some() {
            needs = needs.union(Features::EXPLICIT_SHARD);
        }
        let ask = Ask::new("publish_if", needs, shard, Repeat::Twice);
        let payloads = Records::from_payloads(records.iter().map(|record| &**record));
        let message = |request_id| {
            let (tenant_id, namespace, stream) = self.names();
            Message::PublishIf(PublishIf {
                tenant_id,
                namespace,
                stream,
                payloads: payloads.clone(),
                key: key.clone(),
                shard: named,
                expected_offset: expected,
                request_id,
            })
        };
        let read = |answer: &Message<'_>| match answer {
            Message::PublishOk(ok) => Some((Some(ok.request_id), ok.offset)),
            _ => None,
        };
        match self.place.ask(ask, message, read).await?.said {
            Said::Answer(offset) => Ok(Published { shard, offset }),
            Said::Number(RefusalReason::OffsetMismatch { tail }) => {
                Err(ConditionError::OffsetMismatch { tail })
            }
            other => {
                let cause = format!("publish_if was answered with the refusal of a number: {other:?}");
                Err(RequestError::OutcomeUnknown { cause, refusal: None }.into())
            }
        }
    }

    fn names(&self) -> (Cow<'_, str>, Cow<'_, str>, Cow<'_, str>) {
        let name = self.place.name();
        (self.place.tenant().into(), name.namespace().into(), name.stream().into())
    }
}

fn page(found: &StreamRecords<'_>) -> Page {
    let record = |record: &felix_wire::client::StreamRecord<'_>| LogRecord {
        offset: record.offset,
        payload: record.payload.clone(),
        appended_at: time(record.timestamp_micros),
    };
    Page { records: found.records.iter().map(record).collect(), next: found.next_offset }
}

fn cursor_error(shard: u32, error: &SubscribeCursorError) -> ReadError {
    ReadError::Cursor {
        shard,
        reason: match error.reason {
            CursorErrorReason::TooOld => CursorReason::TooOld,
            CursorErrorReason::InFuture => CursorReason::InFuture,
        },
        requested: error.requested.get(),
        available: error.available.get(),
    }
}
