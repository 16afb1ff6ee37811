//! What a record of a group log says. Scope: values.
//! Owns: the layout (`docs/log-format.md`): version 1, kind 1, length of the group's name (1), the name, then changes of 17
//! bytes: code (1), offset (8), count (8).
//! Invariants: no bytes panic; what is decoded encodes to the same bytes.
//! Not here: what the changes do (`durable`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use crate::projection::record::{Fields, RECORD_VERSION, RecordFault};

const CHANGES: u8 = 1;
/// Longest name of a group, bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of one change.
pub const CHANGE_BYTES: usize = 17;

/// One change of what is durable of a group. Offsets are those of the shard's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The group is as if it had never been.
    Forget,
    /// Everything below is finished, nothing from here on, apart from dead letters.
    Position { at: u64 },
    /// `count` records from `base` are finished.
    Done { base: u64, count: u64 },
    /// A record was handed out so many times without being finished.
    Attempts { at: u64, attempts: u32 },
    /// `count` records from `base` are finished, and listed as dead letters.
    Dead { base: u64, count: u64 },
    /// `count` dead letters from `base` are not listed any more.
    Discard { base: u64, count: u64 },
    /// A dead letter, or any record below the position, is to be handed out again, as if for the first time.
    Redrive { at: u64 },
    /// The shard begins here: what is below is gone.
    Start { at: u64 },
}

impl Change {
    fn fields(self) -> (u8, u64, u64) {
        match self {
            Change::Forget => (1, 0, 0),
            Change::Position { at } => (2, at, 0),
            Change::Done { base, count } => (3, base, count),
            Change::Attempts { at, attempts } => (4, at, u64::from(attempts)),
            Change::Dead { base, count } => (5, base, count),
            Change::Discard { base, count } => (6, base, count),
            Change::Redrive { at } => (7, at, 0),
            Change::Start { at } => (8, at, 0),
        }
    }

    fn read(fields: &mut Fields<'_>) -> Result<Change, RecordFault> {
        let (code, at, count) = (fields.u8()?, fields.u64()?, fields.u64()?);
        let change = match code {
            1 => Change::Forget,
            2 => Change::Position { at },
            3 => Change::Done { base: at, count },
            4 => {
                let attempts = u32::try_from(count).map_err(|_| RecordFault::Malformed("attempts"))?;
                Change::Attempts { at, attempts }
            }
            5 => Change::Dead { base: at, count },
            6 => Change::Discard { base: at, count },
            7 => Change::Redrive { at },
            8 => Change::Start { at },
            other => return Err(RecordFault::Kind(other)),
        };
        let ranged = matches!(code, 3 | 5 | 6);
        if ranged && (count == 0 || at.checked_add(count).is_none()) {
            return Err(RecordFault::Malformed("a range of offsets"));
        }
        if change.fields() != (code, at, count) {
            return Err(RecordFault::Malformed("a field that has no meaning"));
        }
        Ok(change)
    }
}

/// The name and the changes of a record.
///
/// # Errors
/// What is wrong with it first.
pub fn decode(payload: &[u8]) -> Result<(&str, Vec<Change>), RecordFault> {
    let (kind, mut fields) = Fields::open(payload)?;
    if kind != CHANGES {
        return Err(RecordFault::Kind(kind));
    }
    let name_len = usize::from(fields.u8()?);
    let name = std::str::from_utf8(fields.bytes(name_len)?);
    let name = name.map_err(|_| RecordFault::Malformed("the name of a group"))?;
    let mut changes = Vec::with_capacity(fields.left() / CHANGE_BYTES);
    while fields.left() > 0 {
        changes.push(Change::read(&mut fields)?);
    }
    Ok((name, changes))
}

/// Appends a record to `out`.
///
/// # Panics
/// When the name is longer than [`NAME_BYTES_MAX`].
pub fn encode(name: &str, changes: &[Change], out: &mut Vec<u8>) {
    assert!(name.len() <= NAME_BYTES_MAX, "a name of {} bytes", name.len());
    out.reserve(3 + name.len() + changes.len() * CHANGE_BYTES);
    out.extend_from_slice(&[RECORD_VERSION, CHANGES, name.len() as u8]);
    out.extend_from_slice(name.as_bytes());
    for change in changes {
        let (code, at, count) = change.fields();
        out.push(code);
        out.extend_from_slice(&at.to_le_bytes());
        out.extend_from_slice(&count.to_le_bytes());
    }
}
