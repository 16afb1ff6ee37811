//! Binary answers to acked binary publishes (client-protocol 10.3).
//! Owns: both directions of the layout with all its modifiers.
//! Not here: which modifier a client understands (the session leaves out what it does not).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::borrow::Cow;

use bytes::{BufMut, BytesMut};

use crate::cursor::Cursor;
use crate::error_code::{ErrorCode, ErrorDetail, RetryClass};
use crate::flags::Flags;
use crate::frame::{DecodeError, FrameHeader};
use crate::id::{Generation, Offset, RequestId};

const STATUS_OK: u8 = 0;
const STATUS_ERROR: u8 = 1;
/// Status, request id, empty message.
const OK_LEN: u32 = 1 + 8 + 2;

/// The answer to one acked publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishAck<'a> {
    /// The publish it answers.
    pub request_id: RequestId,
    /// What became of it.
    pub outcome: AckOutcome<'a>,
    /// Who owns the shard, when the publish was forwarded.
    pub owner: Option<AckOwner<'a>>,
}

/// What became of a publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AckOutcome<'a> {
    /// Taken. `offset` is that of the batch's first record, when it was written to a log.
    Ok {
        /// Log offset of the first record.
        offset: Option<Offset>,
    },
    /// Refused, or unconfirmed: the retry class says which.
    Error {
        /// For people; cut at 65,535 bytes when written.
        message: Cow<'a, str>,
        /// Code, class and more; absent for a client that does not read codes.
        code: Option<AckCode>,
    },
}

/// The coded part of a failed ack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckCode {
    /// Why.
    pub code: ErrorCode,
    /// What the client may do.
    pub retry: RetryClass,
    /// Reason and wait; a wait of 0 is written and read as none.
    pub detail: Option<ErrorDetail>,
}

/// Owner of the shard a publish was forwarded to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckOwner<'a> {
    /// Node id of the owner.
    pub node_id: Cow<'a, str>,
    /// Its client address `host:port`, when published.
    pub addr: Option<Cow<'a, str>>,
    /// Generation of that ownership.
    pub generation: Generation,
}

impl<'a> PublishAck<'a> {
    /// Reads the payload of a frame with `PUBLISH_ACK` in its flags. Bytes after the last field are tolerated.
    ///
    /// # Errors
    /// `UnknownFlags` for flags that are no ack, else `Malformed` or `Incomplete`.
    pub fn decode(flags: u16, payload: &'a [u8]) -> Result<Self, DecodeError> {
        let flags = Flags(flags);
        let allowed =
            Flags::PUBLISH_ACK | Flags::ACK_OWNER | Flags::ACK_CODE | Flags::ACK_DETAIL | Flags::ACK_OFFSET;
        if !flags.contains(Flags::PUBLISH_ACK) || flags.union(allowed) != allowed {
            return Err(DecodeError::UnknownFlags(flags.bits()));
        }
        let mut cursor = Cursor::new(payload);
        let status = cursor.u8()?;
        let request_id = RequestId(cursor.u64()?);
        let message = cursor.str16()?;
        let mut outcome = match status {
            STATUS_OK if flags.intersects(Flags::ACK_CODE | Flags::ACK_DETAIL) => {
                return Err(DecodeError::Malformed("an error code on a success"));
            }
            STATUS_OK => AckOutcome::Ok { offset: None },
            STATUS_ERROR if flags.contains(Flags::ACK_OFFSET) => {
                return Err(DecodeError::Malformed("an offset on a failure"));
            }
            STATUS_ERROR => {
                let code = read_code(flags, &mut cursor)?;
                AckOutcome::Error { message: Cow::Borrowed(message), code }
            }
            _ => return Err(DecodeError::Malformed("no such ack status")),
        };
        let owner = if flags.contains(Flags::ACK_OWNER) { Some(read_owner(&mut cursor)?) } else { None };
        if let AckOutcome::Ok { offset } = &mut outcome
            && flags.contains(Flags::ACK_OFFSET)
        {
            *offset = Some(Offset(cursor.u64()?));
        }
        Ok(Self { request_id, outcome, owner })
    }

    /// The flags that say which parts are there.
    #[must_use]
    pub fn flags(&self) -> Flags {
        let mut flags = Flags::PUBLISH_ACK;
        if self.owner.is_some() {
            flags = flags | Flags::ACK_OWNER;
        }
        match &self.outcome {
            AckOutcome::Ok { offset: Some(_) } => flags = flags | Flags::ACK_OFFSET,
            AckOutcome::Error { code: Some(code), .. } => {
                flags = flags | Flags::ACK_CODE;
                if code.detail.is_some() {
                    flags = flags | Flags::ACK_DETAIL;
                }
            }
            AckOutcome::Ok { offset: None } | AckOutcome::Error { code: None, .. } => {}
        }
        flags
    }

    /// Writes the whole frame.
    pub fn encode_frame(&self, out: &mut BytesMut) {
        let (status, message) = match &self.outcome {
            AckOutcome::Ok { .. } => (STATUS_OK, ""),
            AckOutcome::Error { message, .. } => (STATUS_ERROR, cut(message)),
        };
        let length = OK_LEN as usize + message.len() + self.extras_len();
        // Five u16-long texts at most, far from 32 bits.
        let header = FrameHeader { flags: self.flags().bits(), length: length as u32 };
        out.extend_from_slice(&header.encode());
        out.put_u8(status);
        out.put_u64(self.request_id.get());
        put_text(out, message);
        if let AckOutcome::Error { code: Some(coded), .. } = &self.outcome {
            out.put_u16(coded.code.number());
            out.put_u8(coded.retry.number());
            if let Some(detail) = &coded.detail {
                put_text(out, detail.reason.as_deref().unwrap_or_default());
                out.put_u64(detail.retry_after_ms.unwrap_or(0));
            }
        }
        if let Some(owner) = &self.owner {
            put_text(out, &owner.node_id);
            put_text(out, owner.addr.as_deref().unwrap_or_default());
            out.put_u64(owner.generation.get());
        }
        if let AckOutcome::Ok { offset: Some(offset) } = &self.outcome {
            out.put_u64(offset.get());
        }
    }

    /// Bytes behind the message.
    fn extras_len(&self) -> usize {
        let outcome = match &self.outcome {
            AckOutcome::Ok { offset: Some(_) } => 8,
            AckOutcome::Error { code: Some(coded), .. } => {
                3 + coded
                    .detail
                    .as_ref()
                    .map_or(0, |detail| 2 + cut(detail.reason.as_deref().unwrap_or_default()).len() + 8)
            }
            AckOutcome::Ok { offset: None } | AckOutcome::Error { code: None, .. } => 0,
        };
        let owner = self.owner.as_ref().map_or(0, |owner| {
            2 + cut(&owner.node_id).len() + 2 + cut(owner.addr.as_deref().unwrap_or_default()).len() + 8
        });
        outcome + owner
    }
}

/// Writes the frame of a plain success, the case that happens at every publish.
pub fn encode_ok(request_id: RequestId, offset: Option<Offset>, out: &mut BytesMut) {
    let mut frame = [0_u8; 12 + OK_LEN as usize + 8];
    let (flags, length) = match offset {
        Some(_) => (Flags::PUBLISH_ACK | Flags::ACK_OFFSET, OK_LEN + 8),
        None => (Flags::PUBLISH_ACK, OK_LEN),
    };
    let mut rest = frame.as_mut_slice();
    rest.put_slice(&FrameHeader { flags: flags.bits(), length }.encode());
    rest.put_u8(STATUS_OK);
    rest.put_u64(request_id.get());
    rest.put_u16(0);
    if let Some(offset) = offset {
        rest.put_u64(offset.get());
    }
    let unused = rest.len();
    let written = frame.len() - unused;
    out.extend_from_slice(frame.get(..written).unwrap_or_default());
}

fn read_code(flags: Flags, cursor: &mut Cursor<'_>) -> Result<Option<AckCode>, DecodeError> {
    if !flags.contains(Flags::ACK_CODE) {
        if flags.contains(Flags::ACK_DETAIL) {
            return Err(DecodeError::Malformed("a detail without a code"));
        }
        return Ok(None);
    }
    let code = ErrorCode::from_number(cursor.u16()?);
    let retry = RetryClass::from_number(cursor.u8()?);
    let detail = if flags.contains(Flags::ACK_DETAIL) {
        let reason = cursor.str16()?;
        let wait_ms = cursor.u64()?;
        Some(ErrorDetail {
            reason: if reason.is_empty() { None } else { Some(Cow::Owned(reason.to_owned())) },
            retry_after_ms: if wait_ms == 0 { None } else { Some(wait_ms) },
        })
    } else {
        None
    };
    Ok(Some(AckCode { code, retry, detail }))
}

fn read_owner<'a>(cursor: &mut Cursor<'a>) -> Result<AckOwner<'a>, DecodeError> {
    let node_id = Cow::Borrowed(cursor.str16()?);
    let addr = cursor.str16()?;
    let addr = if addr.is_empty() { None } else { Some(Cow::Borrowed(addr)) };
    Ok(AckOwner { node_id, addr, generation: Generation(cursor.u64()?) })
}

/// The longest start of `text` that a u16 length can describe, cut between characters.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(u16::MAX as usize);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// `u16 length, UTF-8`, cut to fit.
fn put_text(out: &mut BytesMut, text: &str) {
    let text = cut(text);
    out.put_u16(text.len() as u16);
    out.extend_from_slice(text.as_bytes());
}
