//! The head of a slot: its first two blocks, twice the same. Scope: values.
//! Invariants: a single damaged sector leaves one copy whole; the next use of a slot has another epoch, so rounds of the
//! use before do not parse.
//! Not here: rounds.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use felix_wire::id::CoreId;

use crate::checksum::{Epoch, extend};
use crate::field::{Fields, Writer, patch_u32};
use crate::id::Run;
use crate::limits::BLOCK;

/// First bytes of a slot.
pub const SLOT_MAGIC: [u8; 8] = *b"FLXSLOT\0";
/// Version of the slot and round layout that is written.
pub const SLOT_VERSION: u32 = 1;
/// Bytes of one copy of the head that mean something.
pub const SLOT_HEAD_BYTES: usize = 128;
/// Where the first round begins.
pub const ROUNDS_AT: u64 = 2 * BLOCK;
/// The core number of the slot that recovery writes for the whole volume.
pub const RECOVERY_CORE: CoreId = CoreId(u16::MAX);

const CHECKSUM_AT: usize = 12;

/// What the head of a slot says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotHead {
    pub epoch: Epoch,
    pub run: Run,
    /// The kernel's boot id when the process began.
    pub boot: [u8; 16],
    pub core: CoreId,
    /// Number of this use of a slot, rising in one (run, core).
    pub number: u64,
    pub size_bytes: u64,
    /// The first round that is in it, if there is one.
    pub first_round: u64,
}

/// Why blocks are not the head of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SlotFault {
    /// Never used.
    #[error("no slot begins here")]
    NotASlot,
    #[error("slot version {0} is not known")]
    Version(u32),
    #[error("both heads of the slot are damaged")]
    Damaged,
}

impl SlotHead {
    /// Both copies: two blocks.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ROUNDS_AT as usize);
        Writer::new(&mut out)
            .bytes(&SLOT_MAGIC)
            .u32(SLOT_VERSION)
            .u32(0)
            .u64(self.epoch.0)
            .u64(self.run.0)
            .bytes(&self.boot)
            .u16(self.core.0)
            .zeros(6)
            .u64(self.number)
            .u64(self.size_bytes)
            .u64(self.first_round)
            .zeros(48);
        debug_assert_eq!(out.len(), SLOT_HEAD_BYTES);
        let crc = extend(self.epoch.seed(), &out);
        patch_u32(&mut out, CHECKSUM_AT, crc);
        out.resize(BLOCK as usize, 0);
        out.extend_from_within(..);
        out
    }

    /// Reads the head from the first two blocks of a slot, from whichever copy is whole.
    ///
    /// # Errors
    /// `NotASlot` when both begin with nothing but zeros, `Version` when a copy has a later layout.
    pub fn decode(blocks: &[u8]) -> Result<SlotHead, SlotFault> {
        let (first, second) = blocks.split_at_checked(BLOCK as usize).ok_or(SlotFault::NotASlot)?;
        match (SlotHead::copy(first), SlotHead::copy(second)) {
            (Ok(one), Ok(two)) => Ok(if two.number > one.number { two } else { one }),
            (Ok(head), Err(_)) | (Err(_), Ok(head)) => Ok(head),
            (Err(SlotFault::Version(later)), Err(_)) | (Err(_), Err(SlotFault::Version(later))) => {
                Err(SlotFault::Version(later))
            }
            (Err(SlotFault::NotASlot), Err(SlotFault::NotASlot)) => Err(SlotFault::NotASlot),
            _ => Err(SlotFault::Damaged),
        }
    }

    fn copy(block: &[u8]) -> Result<SlotHead, SlotFault> {
        let own = block.get(..SLOT_HEAD_BYTES).ok_or(SlotFault::NotASlot)?;
        if own.iter().all(|byte| *byte == 0) {
            return Err(SlotFault::NotASlot);
        }
        let mut fields = Fields::new(own);
        if fields.bytes(8) != Some(&SLOT_MAGIC[..]) {
            return Err(SlotFault::Damaged);
        }
        let version = fields.u32();
        let checksum = fields.u32();
        let epoch = Epoch(fields.u64().ok_or(SlotFault::Damaged)?);
        let mut unsigned = own.to_vec();
        patch_u32(&mut unsigned, CHECKSUM_AT, 0);
        if checksum != Some(extend(epoch.seed(), &unsigned)) {
            return Err(SlotFault::Damaged);
        }
        match version {
            Some(SLOT_VERSION) => SlotHead::fields(&mut fields, epoch).ok_or(SlotFault::Damaged),
            later => Err(SlotFault::Version(later.unwrap_or(0))),
        }
    }

    fn fields(fields: &mut Fields<'_>, epoch: Epoch) -> Option<SlotHead> {
        let run = Run(fields.u64()?);
        let boot = fields.bytes(16)?.try_into().ok()?;
        let core = CoreId(fields.u16()?);
        fields.bytes(6)?;
        Some(SlotHead {
            epoch,
            run,
            boot,
            core,
            number: fields.u64()?,
            size_bytes: fields.u64()?,
            first_round: fields.u64()?,
        })
    }
}
