//! One shard: its files, the chain of its segments, what recovery would make of it. Scope: functions of one inspection.
//! Invariants: `Refused` is exactly what recovery refuses; every byte of the log is read, also where recovery need not.
//! Not here: batches (`segment`), what slots say (`recovery::evidence`), the order of segments (`recovery::picture`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use felix_runtime::file::{DiskPath, EntryKind};
use felix_wire::id::Offset;

use super::files::{Overlay, Tree, VOLUME, read_at};
use super::finding::{Finding, Sink, What};
use super::segment::{From, Segment};
use super::{InspectError, SegmentRole, SegmentRow, ShardRow, ShardState};
use crate::id::{Lineage, SegmentSeq, ShardKey};
use crate::limits::BLOCK;
use crate::names;
use crate::recovery::evidence::Known;
use crate::recovery::picture::{Link, Picture, end_of};
use crate::recovery::{Refusal, Refused};

/// One shard that is being looked at.
struct Shard<'a> {
    tree: &'a Tree,
    slots: &'a [DiskPath],
    picture: &'a Picture<'a>,
    lengths: BTreeMap<SegmentSeq, u64>,
    refused: bool,
    torn: bool,
    damaged: bool,
}

/// Looks at the shard `key`, of which slots say `known`; pieces are in `slots`.
pub(super) fn inspect(
    tree: &Tree,
    slots: &[DiskPath],
    key: ShardKey,
    known: &Known,
    sink: &mut Sink<'_>,
) -> Result<ShardRow, InspectError> {
    let mut picture = Picture::new(VOLUME, key, known);
    let (lengths, unreadable) = read_heads(tree, &mut picture, sink)?;
    let refused = unreadable;
    let mut shard =
        Shard { tree, slots, picture: &picture, lengths, refused, torn: false, damaged: unreadable };
    if known.deleted {
        sink.note(Finding::of_shard(key, &names::shard(VOLUME, key), What::Deleted));
        let rows = shard.others(&BTreeSet::new(), Some(SegmentRole::Retired), sink);
        return Ok(shard.row(&[], rows, ShardState::Deleted));
    }
    let mut lost = Vec::new();
    let chain = picture.chain(&mut lost);
    shard.tell_lost(&lost, sink);
    let mut rows = Vec::with_capacity(shard.lengths.len());
    for (index, link) in chain.iter().enumerate() {
        rows.push(shard.read(link, index + 1 == chain.len(), sink)?);
    }
    shard.tell_gaps(&rows, sink);
    let skip = chain.iter().map(|link| link.head.seq).chain(lost.iter().filter_map(seq_of)).collect();
    let others = shard.others(&skip, None, sink);
    let lost_rows = lost.iter().filter_map(seq_of).filter(|seq| shard.lengths.contains_key(seq));
    let headless: Vec<SegmentRow> = lost_rows.map(|seq| shard.blank(seq, SegmentRole::Headless)).collect();
    let state = match (shard.refused, shard.damaged, shard.torn) {
        (true, _, _) => ShardState::Refused,
        (_, true, _) => ShardState::Damaged,
        (_, _, true) => ShardState::Torn,
        _ => ShardState::Sound,
    };
    let all = rows.iter().copied().chain(others).chain(headless).collect();
    Ok(shard.row(&rows, all, state))
}

fn seq_of(refused: &Refused) -> Option<SegmentSeq> {
    names::segment_of(refused.path.name())
}

/// Reads the first block of every segment; names what is none. True when one could not be read.
fn read_heads(
    tree: &Tree,
    picture: &mut Picture<'_>,
    sink: &mut Sink<'_>,
) -> Result<(BTreeMap<SegmentSeq, u64>, bool), InspectError> {
    let dir = names::shard(VOLUME, picture.key);
    let (mut lengths, mut unreadable) = (BTreeMap::new(), false);
    for entry in tree.list(&dir)? {
        let seq = names::segment_of(&entry.name).filter(|_| entry.kind == EntryKind::File);
        let Some(seq) = seq.filter(|seq| picture.path(*seq).name() == entry.name) else {
            let file = format!("{}/{}", dir.as_str(), entry.name);
            sink.note(Finding::of_file(file, What::ForeignFile));
            continue;
        };
        let path = picture.path(seq);
        let (file, len) = tree.file(&path)?;
        tree.wait_for_writers(&file, &path)?;
        lengths.insert(seq, len);
        match read_at(&file, 0, BLOCK as usize) {
            Ok(block) => picture.add(seq, &block),
            Err(error) => {
                let what = What::Io(error.to_string());
                sink.damage(Finding::of_segment(picture.key, seq, &path, 0, what));
                unreadable = true;
            }
        }
    }
    Ok((lengths, unreadable))
}

impl Shard<'_> {
    fn finding(&self, seq: SegmentSeq, byte: u64, what: What) -> Finding {
        Finding::of_segment(self.picture.key, seq, &self.picture.path(seq), byte, what)
    }

    /// Segments that must be there and are not.
    fn tell_lost(&mut self, lost: &[Refused], sink: &mut Sink<'_>) {
        for refused in lost.iter().rev() {
            let Some(seq) = seq_of(refused) else { continue };
            let what = match (refused.why, self.picture.foreign.get(&seq)) {
                (Refusal::Version(version), _) => What::Version(version),
                (Refusal::HeadDamaged, Some(head)) => What::HeadForeign { key: head.key, seq: head.seq },
                (Refusal::HeadDamaged, None) => What::HeadDamaged,
                _ => What::SegmentMissing,
            };
            sink.damage(self.finding(seq, refused.byte, what));
            self.refused = true;
        }
    }

    /// Reads a segment of the chain.
    fn read(&mut self, link: &Link, is_last: bool, sink: &mut Sink<'_>) -> Result<SegmentRow, InspectError> {
        let head = &link.head;
        let path = self.picture.path(head.seq);
        let (file, len) = self.tree.file(&path)?;
        let role = if is_last && link.end.is_none() { SegmentRole::Newest } else { SegmentRole::Sealed };
        let row = SegmentRow {
            base: head.base,
            end: head.base,
            end_byte: BLOCK,
            lineage: head.lineage,
            bytes: len,
            ..self.blank(head.seq, role)
        };
        let overlay = Overlay::new(self.tree, (file, len), self.picture.pieces_of(link), self.slots);
        let mut segment = Segment::new(overlay, self.picture, *head, row);
        if let Err(error) = self.read_batches(&mut segment, link, sink) {
            segment.row.damage += 1;
            sink.damage(self.finding(head.seq, segment.row.end_byte, What::Io(error.to_string())));
            self.refused |= link.end.is_none();
        }
        self.damaged |= segment.row.damage > 0;
        if len < head.size_bytes {
            let cut = self.finding(head.seq, len, What::Cut { len, due: head.size_bytes });
            // A power loss may take length that nothing was written to.
            if segment.row.damage > 0 { sink.damage(cut) } else { sink.note(cut) }
        }
        Ok(segment.row)
    }

    fn read_batches(
        &mut self,
        segment: &mut Segment<'_>,
        link: &Link,
        sink: &mut Sink<'_>,
    ) -> io::Result<()> {
        let head = &link.head;
        let first = From { byte: BLOCK, due: head.base };
        let Some(end) = link.end else {
            if segment.row.role != SegmentRole::Newest {
                return segment.read_unended(first, sink);
            }
            let mut from = first;
            if let Some(mark) = self.picture.mark_in(head) {
                // Recovery begins here; what is before it was durable.
                segment.read_to(first, end_of(mark), sink)?;
                from = From { byte: mark.place.byte, due: mark.end };
                segment.row.end = segment.row.end.max(mark.end);
            }
            let tail = segment.read_tail(from, sink)?;
            self.refused |= tail.refused;
            self.torn |= tail.torn;
            return Ok(());
        };
        let whole = segment.read_to(first, end, sink)?;
        // After a lost round recovery reads sealed segments too.
        let looked_at = head.seq.0 >= self.picture.known.first_segment.unwrap_or(0);
        self.refused |= !whole && self.picture.known.suspect && looked_at;
        segment.row.end = segment.row.end.max(end.offset);
        Ok(())
    }

    /// Offsets between segments, where one is lost.
    fn tell_gaps(&mut self, rows: &[SegmentRow], sink: &mut Sink<'_>) {
        for (before, after) in rows.iter().zip(rows.iter().skip(1)) {
            let start = self.picture.known.start.max(before.end);
            if start < after.base {
                let what = What::OffsetsMissing { from: start, to: after.base };
                sink.damage(self.finding(before.seq, before.end_byte, what));
                self.damaged = true;
            }
        }
    }

    /// Files that are no part of the log: named, and given a row.
    fn others(
        &self,
        skip: &BTreeSet<SegmentSeq>,
        role: Option<SegmentRole>,
        sink: &mut Sink<'_>,
    ) -> Vec<SegmentRow> {
        let first = skip.first().copied();
        let mut rows = Vec::new();
        for seq in self.lengths.keys().filter(|seq| !skip.contains(seq)) {
            let head = self.picture.heads.get(seq);
            let is_damaged = self.picture.damaged.iter().any(|(damaged, _)| damaged == seq);
            let retired = first.is_none_or(|first| *seq < first);
            let (own, what) = match head {
                Some(_) if retired => (SegmentRole::Retired, What::Retired),
                None if is_damaged => (SegmentRole::Headless, What::HeadDamaged),
                Some(_) => (SegmentRole::LeftOver, What::LeftOver),
                None => match self.picture.foreign.get(seq) {
                    Some(head) => {
                        let what = What::HeadForeign { key: head.key, seq: head.seq };
                        (SegmentRole::LeftOver, what)
                    }
                    None => (SegmentRole::LeftOver, What::NeverUsed),
                },
            };
            if role.is_none() {
                sink.note(self.finding(*seq, 0, what));
            }
            let mut row = self.blank(*seq, role.unwrap_or(own));
            if let Some(head) = head {
                (row.base, row.end, row.lineage) = (head.base, head.base, head.lineage);
            }
            rows.push(row);
        }
        rows
    }

    fn blank(&self, seq: SegmentSeq, role: SegmentRole) -> SegmentRow {
        SegmentRow {
            seq,
            role,
            bytes: self.lengths.get(&seq).copied().unwrap_or(0),
            base: Offset(0),
            end: Offset(0),
            end_byte: 0,
            lineage: Lineage(0),
            batches: 0,
            records: 0,
            newest_ms: 0,
            damage: 0,
        }
    }

    fn row(&self, log: &[SegmentRow], mut segments: Vec<SegmentRow>, state: ShardState) -> ShardRow {
        segments.sort_by_key(|segment| segment.seq);
        let known = self.picture.known;
        let newest = self.picture.newest();
        let mark = self.picture.mark_in_force();
        let lineage = known.mark.map_or(Lineage(0), |mark| mark.lineage);
        let marked_end = known.mark.map(|mark| mark.end).unwrap_or_default();
        let end = log.last().map_or(marked_end, |last| last.end);
        let first = log.first().map_or(end, |first| first.base);
        let policy = mark.map(|mark| mark.policy).or(newest.map(|head| head.policy));
        ShardRow {
            key: self.picture.key,
            state,
            policy: policy.unwrap_or_default(),
            lineage: lineage.max(newest.map_or(Lineage(0), |head| head.lineage)),
            start: known.start.max(first).min(end),
            end,
            batches: log.iter().map(|segment| segment.batches).sum(),
            records: log.iter().map(|segment| segment.records).sum(),
            bytes: self.lengths.values().sum(),
            segments,
        }
    }
}
