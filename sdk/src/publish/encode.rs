//! Publish frames as bytes for the transport. Scope: one per stream.
//! Owns: encoded bytes the transport has not taken, and the width declared on the stream.
//! Invariants: bytes leave in the order they were encoded; a width is declared before the first keyed frame
//! (client-protocol 10.6); large records are shared, small ones are copied next to each other, since the
//! transport is slow with many small pieces.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use felix_wire::client::{AckMode, Message, PublishHead, PublishWidth, encode_publish_head};
use felix_wire::frame::HEADER_LEN;
use quinn::Written;

use crate::error::Error;
use crate::limits::ZERO_COPY_BYTES;
use crate::name::StreamName;
use crate::publish::item::Item;
use crate::publish::lane::NewFrame;
use crate::topology::StreamShards;

/// Where the length is in a frame header (client-protocol 2).
const LENGTH_AT: usize = 8;

/// See the module.
pub(crate) struct Encoder {
    tenant: Arc<str>,
    name: StreamName,
    ack: Option<AckMode>,
    /// To declare before the next keyed frame.
    declare: Option<StreamShards>,
    ready: VecDeque<Bytes>,
    ready_bytes: usize,
    open: BytesMut,
}

impl Encoder {
    pub(crate) fn new(
        tenant: Arc<str>,
        name: StreamName,
        ack: Option<AckMode>,
        declare: Option<StreamShards>,
    ) -> Self {
        Self { tenant, name, ack, declare, ready: VecDeque::new(), ready_bytes: 0, open: BytesMut::new() }
    }

    /// Encodes one frame, with the declaration of the width in front when it is due.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the frame cannot exist; items are checked before, so that is our mistake.
    pub(crate) fn frame(&mut self, frame: &NewFrame<'_>) -> Result<usize, Error> {
        let before = self.pending_bytes();
        let items = frame.items;
        let key = items.first().and_then(|item| item.key.as_deref());
        if key.is_some()
            && let Some(shards) = self.declare.take()
        {
            self.declare_width(shards);
        }
        let count: usize = items.iter().map(Item::records).sum();
        let run_len: usize = items.iter().map(|item| item.run_len).sum();
        self.head(frame, key, count, run_len)?;
        for record in items.iter().flat_map(|item| item.payloads.as_slice()) {
            // A record's length was checked to fit a frame, whose length has 32 bits.
            self.open.put_u32(record.len() as u32);
            if record.len() >= ZERO_COPY_BYTES {
                self.close_open();
                self.ready_bytes += record.len();
                self.ready.push_back(record.clone());
            } else {
                self.open.extend_from_slice(record);
            }
        }
        Ok(self.pending_bytes() - before)
    }

    /// Encoded bytes the transport has not taken.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.ready_bytes + self.open.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending_bytes() == 0
    }

    /// What the transport may take now, in order.
    pub(crate) fn chunks(&mut self) -> &mut [Bytes] {
        self.close_open();
        self.ready.make_contiguous()
    }

    /// The transport took this much from the front of [`Encoder::chunks`]; answers the bytes.
    pub(crate) fn written(&mut self, written: Written) -> usize {
        self.ready.drain(..written.chunks);
        self.ready_bytes -= written.bytes;
        written.bytes
    }

    /// The head is written for an empty run and its length corrected, so that no room is reserved for records
    /// that are not copied.
    fn head(
        &mut self,
        frame: &NewFrame<'_>,
        key: Option<&[u8]>,
        count: usize,
        run_len: usize,
    ) -> Result<(), Error> {
        let too_large = || Error::protocol("a publish frame over its limits");
        let head = PublishHead {
            tenant: &self.tenant,
            namespace: self.name.namespace(),
            stream: self.name.stream(),
            key,
            acked: match frame.producer {
                Some(_) => Some((frame.request, AckMode::PerBatch)),
                None => self.ack.map(|mode| (frame.request, mode)),
            },
            producer: frame.producer,
        };
        let start = self.open.len();
        let count = u32::try_from(count).map_err(|_| too_large())?;
        encode_publish_head(&head, count, 0, &mut self.open).map_err(|e| Error::protocol(e.to_string()))?;
        let payload = self.open.len() - start - HEADER_LEN + run_len;
        let length = u32::try_from(payload).map_err(|_| too_large())?;
        let at = start + LENGTH_AT;
        self.open[at..at + 4].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    fn declare_width(&mut self, shards: StreamShards) {
        let width = PublishWidth {
            tenant_id: Cow::Borrowed(&self.tenant),
            namespace: Cow::Borrowed(self.name.namespace()),
            stream: Cow::Borrowed(self.name.stream()),
            shards: shards.shards,
            routing: shards.mapping,
        };
        Message::PublishWidth(width).encode_frame(&mut self.open);
    }

    fn close_open(&mut self) {
        if !self.open.is_empty() {
            self.ready_bytes += self.open.len();
            self.ready.push_back(self.open.split().freeze());
        }
    }
}
