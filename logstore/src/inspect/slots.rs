//! Reading slots, round by round. Scope: functions of one inspection.
//! Invariants: what is found is what recovery's reading of the same slot finds; a piece at a time is in memory, and the
//! lists of a round.
//! Not here: what the rounds of all slots say together (`rounds`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::fs::File;

use felix_runtime::file::{DiskPath, EntryKind};

use super::files::{Tree, VOLUME, read_at};
use super::finding::{Finding, Sink, What};
use super::rounds::{self, Bad, Place, Slot};
use super::{InspectError, SlotRow, SlotUse, core_of};
use crate::commit::round::{FoundRound, ROUND_HEAD_BYTES, RoundFault, decode_lists};
use crate::commit::slot::ROUNDS_AT;
use crate::commit::{SlotFault, SlotHead};
use crate::limits::{BATCH_BYTES_MAX, BLOCK};
use crate::names;
use crate::recovery::slots::{RoundRead, SlotRead, is_whole};

/// Lists of one round that are read. Those of a slot of 64 MiB are smaller, whatever is in it.
const LISTS_BYTES_MAX: usize = 64 << 20;

/// Reads every slot and says what is wrong with them; rows are in the order of the names, and so are the slots.
pub(super) fn read_all(
    tree: &Tree,
    sink: &mut Sink<'_>,
) -> Result<(Vec<SlotRead>, Vec<SlotRow>), InspectError> {
    let dir = names::top(VOLUME, names::SLOTS);
    let mut slots = Vec::new();
    for entry in tree.list(&dir)? {
        let ours = entry.kind == EntryKind::File && names::run_of_slot(&entry.name).is_some();
        match dir.join(&entry.name) {
            Ok(path) if ours => slots.push(read(tree, path, sink)?),
            _ => {
                let file = format!("{}/{}", names::SLOTS, entry.name);
                sink.note(Finding::of_file(file, What::ForeignFile));
            }
        }
    }
    let live = rounds::judge(&slots, sink);
    let rows = slots.iter().zip(live).map(|(slot, live)| row(slot, live)).collect();
    Ok((slots.into_iter().map(|slot| slot.read).collect(), rows))
}

fn row(slot: &Slot, live_rounds: u64) -> SlotRow {
    let rounds = || slot.read.rounds.iter().map(|read| &read.round);
    SlotRow {
        file: slot.read.path.as_str().to_owned(),
        bytes: slot.bytes,
        head: slot.read.head.map(|head| SlotUse {
            run: head.run,
            core: core_of(head.core),
            number: head.number,
            epoch: head.epoch,
        }),
        rounds: slot.read.rounds.len() as u64,
        first_round: rounds().next().map_or(0, |round| round.number.0),
        last_round: rounds().next_back().map_or(0, |round| round.number.0),
        live_rounds,
        marks: rounds().map(|round| round.marks.len() as u64).sum(),
        pieces: rounds().map(|round| round.pieces.len() as u64).sum(),
        clean: rounds().next_back().is_some_and(|round| round.clean),
    }
}

fn read(tree: &Tree, path: DiskPath, sink: &mut Sink<'_>) -> Result<Slot, InspectError> {
    let (file, bytes) = tree.file(&path)?;
    tree.wait_for_writers(&file, &path)?;
    let io = tree.io(&path);
    let whole = bytes - bytes % BLOCK;
    let heads = read_at(&file, 0, ROUNDS_AT.min(whole) as usize).map_err(&io)?;
    let read = SlotRead { path: path.clone(), head: None, damaged: false, rounds: Vec::new() };
    let mut slot = Slot { read, bytes, places: Vec::new(), bad: Vec::new() };
    match SlotHead::decode(&heads) {
        Ok(head) => {
            slot.read.head = Some(head);
            check_head(&path, &heads, bytes, &head, sink);
            read_rounds(&file, whole, &head, &mut slot).map_err(&io)?;
        }
        Err(SlotFault::NotASlot) if bytes < ROUNDS_AT => {
            sink.note(Finding::of_slot(&path, 0, What::SlotUnfinished));
        }
        Err(SlotFault::NotASlot) => {}
        Err(SlotFault::Version(version)) => {
            return Err(InspectError::Version { path: tree.full(&path), version });
        }
        Err(SlotFault::Damaged) => {
            slot.read.damaged = true;
            sink.damage(Finding::of_slot(&path, 0, What::SlotHeadDamaged));
        }
    }
    Ok(slot)
}

/// Whether each copy of the head is whole, and the file as long as the head says.
fn check_head(path: &DiskPath, heads: &[u8], bytes: u64, head: &SlotHead, sink: &mut Sink<'_>) {
    for (copy, at) in [(1_u8, 0), (2, BLOCK)] {
        let from = at as usize;
        let mut alone = heads.get(from..from + BLOCK as usize).unwrap_or_default().to_vec();
        // Nothing stands beside it, so that only this copy is looked at.
        alone.resize(2 * BLOCK as usize, 0);
        if SlotHead::decode(&alone) == Err(SlotFault::Damaged) {
            sink.damage(Finding::of_slot(path, at, What::SlotHeadCopyDamaged { copy }));
        }
    }
    if bytes < head.size_bytes {
        sink.damage(Finding::of_slot(path, bytes, What::Cut { len: bytes, due: head.size_bytes }));
    }
}

fn read_rounds(file: &File, whole: u64, head: &SlotHead, slot: &mut Slot) -> std::io::Result<()> {
    let mut at = ROUNDS_AT;
    while at < whole {
        let mut bytes = read_at(file, at, (whole - at).min(BLOCK) as usize)?;
        let mut found = decode_lists(&bytes, head.epoch);
        if let Err(RoundFault::Short { need }) = found
            && need > ROUND_HEAD_BYTES
            && need <= LISTS_BYTES_MAX
            && need as u64 <= whole - at
        {
            bytes = read_at(file, at, need)?;
            found = decode_lists(&bytes, head.epoch);
        }
        if let Ok(round) = &found
            && round.total_len as u64 > whole - at
        {
            found = Err(RoundFault::Short { need: round.total_len });
        }
        match found {
            Ok(round) => {
                let total = (round.total_len as u64).max(BLOCK);
                let (read, torn_at) = read_pieces(file, round, at)?;
                slot.read.rounds.push(read);
                slot.places.push(Place { end: at + total, torn_at });
                at += total;
            }
            // What comes behind a round that cannot be read is still looked for.
            Err(fault) => {
                if fault != RoundFault::NotARound {
                    slot.bad.push(Bad { byte: at, fault });
                }
                at += BLOCK;
            }
        }
    }
    Ok(())
}

/// Which pieces of a round are whole, and where the first begins that is not.
fn read_pieces(
    file: &File,
    found: FoundRound,
    at: u64,
) -> std::io::Result<(RoundRead, Option<(u64, usize)>)> {
    let mut read = RoundRead { round: found.round, pieces: Vec::new(), torn: false };
    let mut torn_at = None;
    let mut byte = at + found.meta_len as u64;
    for (index, piece) in read.round.pieces.iter().enumerate() {
        // A piece is larger than a batch only when it is small.
        let fits = piece.len <= BATCH_BYTES_MAX;
        let bytes = if fits { read_at(file, byte, piece.len as usize)? } else { Vec::new() };
        if fits && bytes.len() == piece.len as usize && is_whole(piece, &bytes) {
            read.pieces.push((*piece, byte));
        } else {
            torn_at.get_or_insert((byte, index));
        }
        byte += u64::from(piece.len);
    }
    read.torn = torn_at.is_some();
    Ok((read, torn_at))
}
