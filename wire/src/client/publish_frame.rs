//! Binary publish frames (client-protocol 10.2): plain, keyed, acked, idempotent.
//! Owns: both directions of the layout. The record run is validated in one walk and shared, never copied.
//! Not here: the answer (`publish_ack`), JSON publishes (`publish`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use bytes::{BufMut, Bytes, BytesMut};

use crate::client::records::{RECORD_PREFIX_LEN, Records, put_record};
use crate::cursor::Cursor;
use crate::flags::Flags;
use crate::frame::{DecodeError, FrameHeader, HEADER_LEN};
use crate::id::{ProducerId, RequestId, Sequence};
use crate::limits::{KEY_LEN_MAX, NAME_LEN_MAX};

/// When an acked publish is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AckMode {
    /// Byte 1.
    PerMessage,
    /// Byte 2.
    PerBatch,
}

impl AckMode {
    const fn number(self) -> u8 {
        match self {
            Self::PerMessage => 1,
            Self::PerBatch => 2,
        }
    }
}

/// A binary publish cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("binary publish refused: {error}")]
pub struct PublishDecodeError {
    /// The request to refuse, when the frame was acked and its 9-byte prefix could be read (10.2). Without it
    /// nothing is answered.
    pub request_id: Option<RequestId>,
    /// What is wrong.
    pub error: DecodeError,
}

/// What a frame cannot carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A tenant, namespace or stream of more than 65,535 bytes.
    #[error("a name of {0} bytes is over {NAME_LEN_MAX}")]
    NameTooLong(usize),
    /// A key of more than 65,535 bytes.
    #[error("a key of {0} bytes is over {KEY_LEN_MAX}")]
    KeyTooLong(usize),
    /// A payload length that does not fit its 32 bits.
    #[error("a payload of {0} bytes does not fit a frame")]
    FrameTooLong(usize),
}

/// Everything of a binary publish but its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishHead<'a> {
    /// Tenant id.
    pub tenant: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// Stream.
    pub stream: &'a str,
    /// Routing key for the whole batch; the empty key is a key.
    pub key: Option<&'a [u8]>,
    /// Present when an answer is wanted.
    pub acked: Option<(RequestId, AckMode)>,
    /// Present on an idempotent publish, which is always acked.
    pub producer: Option<(ProducerId, Sequence)>,
}

impl PublishHead<'_> {
    /// The flags that say which parts are there.
    #[must_use]
    pub fn flags(&self) -> Flags {
        let mut flags = Flags::PUBLISH_BATCH;
        if self.acked.is_some() {
            flags = flags | Flags::PUBLISH_ACKED;
        }
        if self.key.is_some() {
            flags = flags | Flags::PUBLISH_KEYED;
        }
        if self.producer.is_some() {
            flags = flags | Flags::PUBLISH_IDEMPOTENT;
        }
        flags
    }

    /// Payload bytes in front of the record run, the count included.
    fn encoded_len(&self) -> usize {
        let acked = if self.acked.is_some() { 9 } else { 0 };
        let producer = if self.producer.is_some() { 16 } else { 0 };
        let key = self.key.map_or(0, |key| 2 + key.len());
        acked + producer + key + 6 + self.tenant.len() + self.namespace.len() + self.stream.len() + 4
    }
}

/// A binary publish as read. Names and key borrow from the payload; the records share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinaryPublish<'a> {
    /// Tenant id.
    pub tenant: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// Stream.
    pub stream: &'a str,
    /// Routing key for the whole batch; the empty key is a key.
    pub key: Option<&'a [u8]>,
    /// Present when an answer is owed.
    pub acked: Option<(RequestId, AckMode)>,
    /// Present on an idempotent publish, which is always acked.
    pub producer: Option<(ProducerId, Sequence)>,
    /// The records, possibly none.
    pub records: Records,
}

impl<'a> BinaryPublish<'a> {
    /// Reads the payload of a frame with `PUBLISH_BATCH` in its flags. Bytes after the last record are tolerated.
    ///
    /// # Errors
    /// `UnknownFlags` for flags that are no publish, else `Malformed` or `Incomplete`; the error names the
    /// request to answer when that could be read.
    pub fn decode(flags: u16, payload: &'a Bytes) -> Result<Self, PublishDecodeError> {
        let mut request_id = None;
        read_publish(Flags(flags), payload, &mut request_id)
            .map_err(|error| PublishDecodeError { request_id, error })
    }

    /// Like `decode` for a stream on which nothing can be answered (client-protocol 7.4).
    ///
    /// # Errors
    /// As `decode`; `Malformed` for an acked publish. The request id is always absent.
    pub fn decode_unacked(flags: u16, payload: &'a Bytes) -> Result<Self, PublishDecodeError> {
        if Flags(flags).contains(Flags::PUBLISH_ACKED) {
            let error = DecodeError::Malformed("an acked publish where no answer is possible");
            return Err(PublishDecodeError { request_id: None, error });
        }
        Self::decode(flags, payload)
    }

    /// The parts in front of the records.
    #[must_use]
    pub fn head(&self) -> PublishHead<'a> {
        PublishHead {
            tenant: self.tenant,
            namespace: self.namespace,
            stream: self.stream,
            key: self.key,
            acked: self.acked,
            producer: self.producer,
        }
    }
}

/// The three names as a binary publish carries them, to be recognised again without reading them.
///
/// # Errors
/// `NameTooLong` for a name that no frame could carry.
pub fn encode_names(names: (&str, &str, &str)) -> Result<Box<[u8]>, EncodeError> {
    let mut out = BytesMut::new();
    for name in [names.0, names.1, names.2] {
        let len = u16::try_from(name.len()).map_err(|_| EncodeError::NameTooLong(name.len()))?;
        out.put_u16(len);
        out.extend_from_slice(name.as_bytes());
    }
    Ok(out.to_vec().into())
}

/// A binary publish without a number to the same stream as one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishAgain<'a> {
    /// Routing key for the whole batch; the empty key is a key.
    pub key: Option<&'a [u8]>,
    /// Present when an answer is owed.
    pub request_id: Option<RequestId>,
    /// How many records it says there are, at least one.
    pub count: u32,
    /// What is to begin with so many records; not looked at.
    pub run: &'a [u8],
}

impl<'a> PublishAgain<'a> {
    /// Reads the payload of a frame whose names are `names` (`encode_names`), up to its records. None for everything else,
    /// also for what is no publish or malformed: `BinaryPublish::decode` says what it is.
    #[must_use]
    pub fn decode(flags: u16, payload: &'a [u8], names: &[u8]) -> Option<Self> {
        let flags = Flags(flags);
        let allowed = Flags::PUBLISH_BATCH | Flags::PUBLISH_ACKED | Flags::PUBLISH_KEYED;
        if !flags.contains(Flags::PUBLISH_BATCH) || flags.union(allowed) != allowed || names.is_empty() {
            return None;
        }
        let mut cursor = Cursor::new(payload);
        let mut request_id = None;
        if flags.contains(Flags::PUBLISH_ACKED) {
            request_id = Some(RequestId(cursor.u64().ok()?));
            cursor.u8().ok().filter(|mode| matches!(mode, 1 | 2))?;
        }
        let key = if flags.contains(Flags::PUBLISH_KEYED) { Some(cursor.bytes16().ok()?) } else { None };
        if cursor.take(names.len()).ok()? != names {
            return None;
        }
        let count = cursor.u32().ok().filter(|count| *count > 0)?;
        Some(Self { key, request_id, count, run: cursor.take(cursor.remaining()).ok()? })
    }
}

fn read_publish<'a>(
    flags: Flags,
    payload: &'a Bytes,
    request_id: &mut Option<RequestId>,
) -> Result<BinaryPublish<'a>, DecodeError> {
    let allowed =
        Flags::PUBLISH_BATCH | Flags::PUBLISH_ACKED | Flags::PUBLISH_KEYED | Flags::PUBLISH_IDEMPOTENT;
    if !flags.contains(Flags::PUBLISH_BATCH) || flags.union(allowed) != allowed {
        return Err(DecodeError::UnknownFlags(flags.bits()));
    }
    let mut cursor = Cursor::new(payload);
    let mut acked = None;
    let mut producer = None;
    if flags.contains(Flags::PUBLISH_ACKED) {
        let id = RequestId(cursor.u64()?);
        let mode = cursor.u8()?;
        *request_id = Some(id);
        let mode = match mode {
            1 => AckMode::PerMessage,
            2 => AckMode::PerBatch,
            _ => return Err(DecodeError::Malformed("no such ack mode")),
        };
        acked = Some((id, mode));
    }
    if flags.contains(Flags::PUBLISH_IDEMPOTENT) {
        if acked.is_none() {
            return Err(DecodeError::Malformed("an idempotent publish must be acked"));
        }
        producer = Some((ProducerId(cursor.u64()?), Sequence(cursor.u64()?)));
    }
    let key = if flags.contains(Flags::PUBLISH_KEYED) { Some(cursor.bytes16()?) } else { None };
    let tenant = cursor.str16()?;
    let namespace = cursor.str16()?;
    let stream = cursor.str16()?;
    let count = cursor.u32()?;
    let records = Records::decode_at(count, payload, payload.len() - cursor.remaining())?;
    Ok(BinaryPublish { tenant, namespace, stream, key, acked, producer, records })
}

/// Bytes of the whole frame, header included, for `count` records of `payload_bytes` bytes in all.
#[must_use]
pub fn publish_frame_len(head: &PublishHead<'_>, count: u32, payload_bytes: usize) -> usize {
    HEADER_LEN + head.encoded_len() + count as usize * RECORD_PREFIX_LEN + payload_bytes
}

/// Writes header and head of a publish frame, so that a run of `count` records and `run_len` bytes completes it.
///
/// # Errors
/// As `encode_publish`. Nothing was written then.
///
/// # Panics
/// When `head` has a producer and is not acked: that frame does not exist.
pub fn encode_publish_head(
    head: &PublishHead<'_>,
    count: u32,
    run_len: usize,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    assert!(head.producer.is_none() || head.acked.is_some(), "an idempotent publish must be acked");
    for name in [head.tenant, head.namespace, head.stream] {
        if name.len() > NAME_LEN_MAX {
            return Err(EncodeError::NameTooLong(name.len()));
        }
    }
    if let Some(key) = head.key
        && key.len() > KEY_LEN_MAX
    {
        return Err(EncodeError::KeyTooLong(key.len()));
    }
    let payload_len = head.encoded_len() + run_len;
    let length = u32::try_from(payload_len).map_err(|_| EncodeError::FrameTooLong(payload_len))?;
    out.reserve(HEADER_LEN + payload_len);
    out.extend_from_slice(&FrameHeader { flags: head.flags().bits(), length }.encode());
    if let Some((request_id, mode)) = head.acked {
        out.put_u64(request_id.get());
        out.put_u8(mode.number());
    }
    if let Some((producer, sequence)) = head.producer {
        out.put_u64(producer.get());
        out.put_u64(sequence.get());
    }
    if let Some(key) = head.key {
        put_bytes16(out, key);
    }
    for name in [head.tenant, head.namespace, head.stream] {
        put_bytes16(out, name.as_bytes());
    }
    out.put_u32(count);
    Ok(())
}

/// Writes one whole publish frame. The payloads are walked twice: for their length, then to copy them.
///
/// # Errors
/// A name or key over 65,535 bytes, or a frame over `u32::MAX`. Nothing was written then.
///
/// # Panics
/// When `head` has a producer and is not acked: that frame does not exist.
pub fn encode_publish<'p, I>(
    head: &PublishHead<'_>,
    payloads: I,
    out: &mut BytesMut,
) -> Result<(), EncodeError>
where
    I: IntoIterator<Item = &'p [u8]>,
    I::IntoIter: Clone,
{
    let payloads = payloads.into_iter();
    let (mut count, mut run_len) = (0_u32, 0_usize);
    for payload in payloads.clone() {
        count += 1;
        run_len += RECORD_PREFIX_LEN + payload.len();
    }
    encode_publish_head(head, count, run_len, out)?;
    for payload in payloads {
        put_record(out, payload);
    }
    Ok(())
}

/// `u16 length, bytes`; the caller has checked the length.
fn put_bytes16(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u16(bytes.len() as u16);
    out.extend_from_slice(bytes);
}
