//! Event frames of a subscription's stream (client-protocol 11.4), shared and single form.
//! Owns: both directions of the layout. A broker writes only the head; the record run follows unchanged.
//! Invariants: a decoded batch holds exactly its count of whole events.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use bytes::{BufMut, Bytes, BytesMut};

use crate::client::records::{RECORD_PREFIX_LEN, Records, check_count, put_record};
use crate::cursor::Cursor;
use crate::flags::Flags;
use crate::frame::{DecodeError, FrameHeader, HEADER_LEN};
use crate::id::{Offset, SubscriptionId};
use crate::limits::PUBLISHER_LEN_MAX;

/// Bytes of an append time in front of each record, when there is one.
const TIMESTAMP_LEN: usize = 8;

/// Writes header and head of a shared event frame, so that `count` records in a run of `records_len` bytes
/// (`Records::encoded_len`) complete it. `skipped` is how many offsets right before the first event hold none.
///
/// # Panics
/// When `skipped` > 0 without a base offset (no such frame), or when the frame would not fit 32 bits.
pub fn encode_shared_head(
    out: &mut BytesMut,
    count: u32,
    records_len: usize,
    base_offset: Option<Offset>,
    skipped: u64,
) {
    let mut flags = Flags::EVENT_BATCH_SHARED;
    let mut head_len = 4;
    if base_offset.is_some() {
        flags = flags | Flags::EVENT_OFFSETS;
        head_len += 8;
    }
    if skipped > 0 {
        assert!(base_offset.is_some(), "skipped offsets need a base offset");
        flags = flags | Flags::EVENT_SKIPPED;
        head_len += 8;
    }
    let length = head_len + records_len;
    assert!(length <= u32::MAX as usize, "an event frame over 32 bits");
    out.reserve(HEADER_LEN + head_len);
    out.extend_from_slice(&FrameHeader { flags: flags.bits(), length: length as u32 }.encode());
    if let Some(offset) = base_offset {
        out.put_u64(offset.get());
    }
    if skipped > 0 {
        out.put_u64(skipped);
    }
    out.put_u32(count);
}

/// One event frame as read. Everything shares the payload's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventBatch {
    /// Present in the single form; must equal the id of the stream's hello.
    pub subscription_id: Option<SubscriptionId>,
    /// Offset of the first event.
    pub base_offset: Option<Offset>,
    /// Offsets right before the first event that hold no event.
    pub skipped_before: u64,
    /// Who published, when told.
    pub publisher: Option<Bytes>,
    timestamped: bool,
    count: u32,
    run: Bytes,
}

/// One event of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its offset, when the batch has a base offset.
    pub offset: Option<Offset>,
    /// Its bytes, sharing the frame's memory.
    pub payload: Bytes,
    /// Append time, microseconds since 1970, when told.
    pub timestamp_micros: Option<u64>,
}

impl EventBatch {
    /// A batch of records without extras; set the public fields to add some.
    #[must_use]
    pub fn new(records: Records) -> Self {
        Self { count: records.count(), run: records.into_bytes(), ..Self::empty(false) }
    }

    /// A batch of (append time in microseconds since 1970, payload) without other extras.
    pub fn timestamped<'p>(events: impl IntoIterator<Item = (u64, &'p [u8])>) -> Self {
        let mut run = BytesMut::new();
        let mut count = 0;
        for (at_micros, payload) in events {
            run.put_u64(at_micros);
            put_record(&mut run, payload);
            count += 1;
        }
        Self { count, run: run.freeze(), ..Self::empty(true) }
    }

    fn empty(timestamped: bool) -> Self {
        Self {
            subscription_id: None,
            base_offset: None,
            skipped_before: 0,
            publisher: None,
            timestamped,
            count: 0,
            run: Bytes::new(),
        }
    }

    /// Reads the payload of a frame with `EVENT_BATCH` or `EVENT_BATCH_SHARED` in its flags. Bytes after the last
    /// event are tolerated.
    ///
    /// # Errors
    /// `UnknownFlags` for flags that are no event batch (skipped without offsets too), else `Malformed` or
    /// `Incomplete`.
    pub fn decode(flags: u16, payload: &Bytes) -> Result<Self, DecodeError> {
        let flags = Flags(flags);
        check_flags(flags)?;
        let mut cursor = Cursor::new(payload);
        let single = flags.contains(Flags::EVENT_BATCH);
        let subscription_id = if single { Some(SubscriptionId(cursor.u64()?)) } else { None };
        let offsets = flags.contains(Flags::EVENT_OFFSETS);
        let base_offset = if offsets { Some(Offset(cursor.u64()?)) } else { None };
        let skipped_before = if flags.contains(Flags::EVENT_SKIPPED) { cursor.u64()? } else { 0 };
        let publisher = if flags.contains(Flags::EVENT_PUBLISHER) {
            let len = cursor.u8()?;
            Some(payload.slice_ref(cursor.take(usize::from(len))?))
        } else {
            None
        };
        let count = cursor.u32()?;
        if let Some(base) = base_offset
            && base.get().checked_add(u64::from(count)).is_none()
        {
            return Err(DecodeError::Malformed("offsets past the end of 64 bits"));
        }
        let timestamped = flags.contains(Flags::EVENT_TIMESTAMPS);
        let prefix = if timestamped { TIMESTAMP_LEN } else { 0 };
        check_count(count, cursor.remaining(), prefix + RECORD_PREFIX_LEN)?;
        let start = payload.len() - cursor.remaining();
        for _ in 0..count {
            cursor.take(prefix)?;
            let len = cursor.u32()?;
            cursor.take(len as usize)?;
        }
        let run = payload.slice(start..payload.len() - cursor.remaining());
        Ok(Self { subscription_id, base_offset, skipped_before, publisher, timestamped, count, run })
    }

    /// How many events.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// True without events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The offset after the last event, when the batch has offsets.
    #[must_use]
    pub fn end_offset(&self) -> Option<Offset> {
        self.base_offset.map(|base| Offset(base.get().saturating_add(u64::from(self.count))))
    }

    /// The events in order.
    #[must_use]
    pub fn iter(&self) -> EventIter<'_> {
        EventIter { batch: self, at: 0, index: 0 }
    }

    /// The flags that say which parts are there.
    #[must_use]
    pub fn flags(&self) -> Flags {
        let form =
            if self.subscription_id.is_some() { Flags::EVENT_BATCH } else { Flags::EVENT_BATCH_SHARED };
        let parts = [
            (self.base_offset.is_some(), Flags::EVENT_OFFSETS),
            (self.skipped_before > 0, Flags::EVENT_SKIPPED),
            (self.publisher.is_some(), Flags::EVENT_PUBLISHER),
            (self.timestamped, Flags::EVENT_TIMESTAMPS),
        ];
        parts.into_iter().filter(|(there, _)| *there).fold(form, |flags, (_, bit)| flags | bit)
    }

    /// Writes the whole frame, in the single form when there is a subscription id.
    ///
    /// # Panics
    /// When `skipped_before` > 0 without a base offset, for a publisher over 255 bytes, or for a frame over 32
    /// bits: such frames do not exist.
    pub fn encode_frame(&self, out: &mut BytesMut) {
        assert!(self.skipped_before == 0 || self.base_offset.is_some(), "skipped offsets need a base offset");
        let publisher_len = self.publisher.as_ref().map_or(0, Bytes::len);
        assert!(publisher_len <= PUBLISHER_LEN_MAX, "a publisher over its length field");
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_LEN]);
        if let Some(id) = self.subscription_id {
            out.put_u64(id.get());
        }
        if let Some(offset) = self.base_offset {
            out.put_u64(offset.get());
        }
        if self.skipped_before > 0 {
            out.put_u64(self.skipped_before);
        }
        if let Some(publisher) = &self.publisher {
            out.put_u8(publisher_len as u8);
            out.extend_from_slice(publisher);
        }
        out.put_u32(self.count);
        out.extend_from_slice(&self.run);
        crate::client::finish_frame(out, start, self.flags());
    }
}

/// Walks the events of a batch.
#[derive(Debug, Clone)]
pub struct EventIter<'a> {
    batch: &'a EventBatch,
    at: usize,
    index: u32,
}

impl Iterator for EventIter<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        if self.index == self.batch.count {
            return None;
        }
        let mut rest = Cursor::new(self.batch.run.get(self.at..)?);
        let before = rest.remaining();
        let timestamp_micros = if self.batch.timestamped { Some(rest.u64().ok()?) } else { None };
        let len = rest.u32().ok()?;
        let payload = self.batch.run.slice_ref(rest.take(len as usize).ok()?);
        self.at += before - rest.remaining();
        let offset =
            self.batch.base_offset.map(|base| Offset(base.get().saturating_add(u64::from(self.index))));
        self.index += 1;
        Some(Event { offset, payload, timestamp_micros })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.batch.count - self.index) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for EventIter<'_> {}

fn check_flags(flags: Flags) -> Result<(), DecodeError> {
    let modifiers =
        Flags::EVENT_OFFSETS | Flags::EVENT_SKIPPED | Flags::EVENT_PUBLISHER | Flags::EVENT_TIMESTAMPS;
    let form = flags.intersection(Flags(!modifiers.bits()));
    let one_form = form == Flags::EVENT_BATCH || form == Flags::EVENT_BATCH_SHARED;
    let stray_skip = flags.contains(Flags::EVENT_SKIPPED) && !flags.contains(Flags::EVENT_OFFSETS);
    if one_form && !stray_skip { Ok(()) } else { Err(DecodeError::UnknownFlags(flags.bits())) }
}
