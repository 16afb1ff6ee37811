//! The commit file of a core: slots of rounds. Scope: values and functions over their bytes.
//! Owns: the layout of a slot's head, of a round, of marks (`docs/log-format.md`).
//! Invariants: rounds start on a block and are numbered without gaps; each says up to where the shards of the round before
//! were durable; a piece carries its place, so replaying it is a positional write that may be repeated.
//! Not here: when a round is written, when a slot is free again (`engine`), what recovery makes of them (`recovery`).

pub mod mark;
pub mod round;
pub mod slot;

pub use mark::{Mark, MarkKind};
pub use round::{PieceHead, Prior, Round, RoundFault};
pub use slot::{SlotFault, SlotHead};

#[cfg(test)]
mod tests;
