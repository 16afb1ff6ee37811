//! One log: its segments in order, its pieces, its end. Scope: functions of one recovery.
//! Invariants: pieces are in their segments, synced, before the end is judged; sealed segments are not scanned unless a round
//! is missing; the end is never below what is known to have been durable, and everything below it is durable.
//! Not here: what slots say (`evidence`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use bytes::Bytes;
use felix_runtime::file::{DiskError, DiskPath, FileId, LockKind, OpenFlags, OpenMode, VolumeId};
use felix_wire::id::Offset;
use futures::StreamExt;

use super::doubt;
use super::evidence::Known;
use super::look::{read, read_checked};
use super::picture::{Link, Picture, Scanned};
use super::replay::{Move, write_pieces};
use super::{Refusal, Refused};
use crate::id::{Fsync, Lineage, SegmentSeq, ShardKey};
use crate::limits::{BLOCK, EVIDENCE_SEARCH_BYTES};
use crate::log::{LogState, SealedState};
use crate::names;
use crate::script::Desk;
use crate::segment::format::{SegmentEnd, SegmentHead};
use crate::segment::walk::{Evidence, SEARCH_OVERLAP, Step, Walk, search};

/// Heads of one log's segments read at once.
const HEADS_AT_ONCE: usize = 8;

/// What every log's recovery needs.
#[derive(Clone)]
pub(super) struct Setting {
    pub desk: Desk,
    pub volume: VolumeId,
    pub wait: Duration,
    /// The kernel's boot id.
    pub boot: [u8; 16],
    /// The kernel was started again since the last use of the volume.
    pub rebooted: bool,
    /// Open slots, by their number in the evidence.
    pub slots: std::rc::Rc<Vec<FileId>>,
}

/// A log that can be served.
#[derive(Debug)]
pub(super) struct Found {
    pub state: LogState,
    /// Segments that are not part of it any more.
    pub leftovers: Vec<DiskPath>,
    /// Bytes were cut off.
    pub torn: bool,
}

struct Shard<'a> {
    setting: &'a Setting,
    picture: Picture<'a>,
}

/// Recovers one log.
pub(super) async fn recover(setting: &Setting, key: ShardKey, known: &Known) -> Result<Found, Refused> {
    let mut shard = Shard { setting, picture: Picture::new(setting.volume, key, known) };
    shard.read_heads().await?;
    let mut lost = Vec::new();
    let chain = shard.picture.chain(&mut lost);
    if let Some(lost) = lost.into_iter().next() {
        return Err(lost);
    }
    shard.replay(&chain).await?;
    if known.suspect {
        shard.scan_sealed(&chain).await?;
    }
    let (chain, torn) = shard.judge(chain).await?;
    Ok(shard.found(&chain, torn))
}

impl Shard<'_> {
    fn disk(&self, seq: SegmentSeq) -> impl Fn(DiskError) -> Refused + use<> {
        let (key, path) = (self.picture.key, self.picture.path(seq));
        move |error| Refused { key, path: path.clone(), byte: 0, why: Refusal::Disk(error) }
    }

    async fn read_heads(&mut self) -> Result<(), Refused> {
        let desk = &self.setting.desk;
        let dir = names::shard(self.setting.volume, self.picture.key);
        let entries = desk.list(dir.clone()).await.map_err(|error| Refused {
            key: self.picture.key,
            path: dir,
            byte: 0,
            why: Refusal::Disk(error),
        })?;
        let seqs: Vec<SegmentSeq> =
            entries.iter().filter_map(|entry| names::segment_of(&entry.name)).collect();
        let mut blocks = futures::stream::iter(seqs)
            .map(|seq| {
                let (path, disk) = (self.picture.path(seq), self.disk(seq));
                async move {
                    let (file, _) = desk.open(path, OpenFlags::plain(OpenMode::Read)).await.map_err(&disk)?;
                    let sound = |block: &[u8]| SegmentHead::decode(block).is_ok();
                    let block = read_checked(desk, file, (0, BLOCK as usize), sound).await;
                    desk.close(file).await;
                    Ok((seq, block.map_err(&disk)?))
                }
            })
            .buffered(HEADS_AT_ONCE);
        let mut heads = Vec::new();
        while let Some(read) = blocks.next().await {
            heads.push(read?);
        }
        drop(blocks);
        for (seq, block) in heads {
            self.picture.add(seq, &block);
        }
        Ok(())
    }

    /// Brings pieces to their segments and makes those durable that recovery relies on.
    async fn replay(&self, chain: &[Link]) -> Result<(), Refused> {
        let desk = &self.setting.desk;
        for (index, link) in chain.iter().enumerate() {
            let mut moves: Vec<Move> = Vec::new();
            for (piece, slot, slot_byte) in self.picture.pieces_of(link) {
                if let Some(file) = self.setting.slots.get(slot) {
                    moves.push(Move { slot: *file, slot_byte, piece });
                }
            }
            let last = index + 1 == chain.len();
            if moves.is_empty() && !last {
                continue;
            }
            let seq = link.head.seq;
            let disk = self.disk(seq);
            let (file, _) =
                desk.open(self.picture.path(seq), OpenFlags::plain(OpenMode::Write)).await.map_err(&disk)?;
            let done = async {
                desk.lock(file, LockKind::Exclusive, self.setting.wait).await?;
                write_pieces(desk, file, &moves).await?;
                desk.sync(file).await
            };
            let done = done.await;
            desk.close(file).await;
            done.map_err(&disk)?;
        }
        Ok(())
    }

    /// A round that may have held bytes of this log is lost: what it held must be in segments.
    async fn scan_sealed(&self, chain: &[Link]) -> Result<(), Refused> {
        let first = self.picture.known.first_segment.unwrap_or(0);
        for link in chain.iter().filter(|link| link.head.seq.0 >= first) {
            let Some(end) = link.end else { continue };
            let walk = Walk { epoch: link.head.epoch, byte: BLOCK, due: link.head.base, limit: end.byte };
            let scanned = self.scan(link.head.seq, walk, 0).await?;
            if scanned.end.offset < end.offset {
                let (found, durable) = (scanned.end.offset, end.offset);
                return Err(self.picture.refuse(
                    link.head.seq,
                    scanned.stopped_at,
                    Refusal::Damaged { found, durable },
                ));
            }
        }
        Ok(())
    }

    /// Finds the end of the last segment, and refuses if it is below what was durable.
    async fn judge(&self, mut chain: Vec<Link>) -> Result<(Vec<Link>, bool), Refused> {
        let Some(last) = chain.last().copied() else { return Ok((chain, false)) };
        if last.end.is_some() {
            return Ok((chain, false));
        }
        let head = last.head;
        let mark = self.picture.mark_in(&head);
        let (from, newest_ms) = match mark {
            Some(mark) => (Some((mark.place.byte, mark.end, mark.checksum)), mark.newest_ms),
            None => (None, 0),
        };
        let (byte, due, checksum) = from.unwrap_or((BLOCK, head.base, 0));
        let walk = Walk { epoch: head.epoch, byte, due, limit: u64::MAX };
        let mut scanned = self.scan(head.seq, walk, newest_ms).await?;
        if scanned.end.byte == byte {
            scanned.end.checksum = checksum;
        }
        self.picture.judge(&head, &scanned)?;
        let start = Walk { epoch: head.epoch, byte, due, limit: scanned.end.byte };
        self.make_sure(&head, start, &scanned).await.map_err(self.disk(head.seq))?;
        if let Some(last) = chain.last_mut() {
            last.end = Some(scanned.end);
        }
        Ok((chain, scanned.torn))
    }

    /// Makes durable what the last segment has above what is known to be: the end that was found is relied on from here on.
    /// `start` is where it was read from.
    async fn make_sure(&self, head: &SegmentHead, start: Walk, scanned: &Scanned) -> Result<(), DiskError> {
        let desk = &self.setting.desk;
        let durable = self.picture.durable(head, scanned);
        let marked = self.picture.mark_in(head).is_some();
        let (head_sure, tail_sure) = (marked || durable > head.base, scanned.end.offset <= durable);
        if head_sure && tail_sure {
            return Ok(());
        }
        let path = self.picture.path(head.seq);
        let (file, _) = desk.open(path, OpenFlags::plain(OpenMode::Write)).await?;
        let done = async {
            desk.lock(file, LockKind::Exclusive, self.setting.wait).await?;
            if !head_sure {
                doubt::write_again(desk, file, 0, BLOCK).await?;
            }
            if !tail_sure {
                let (due, byte) = scanned.place_before(durable).unwrap_or((start.due, start.byte));
                let walk = Walk { byte, due, ..start };
                let from = doubt::first_above(desk, file, walk, durable).await?;
                doubt::write_again(desk, file, from, scanned.end.byte).await?;
            }
            desk.sync(file).await
        };
        let done = done.await;
        desk.close(file).await;
        done
    }

    /// Walks a segment as far as it can be read, and looks behind that for proof that more was durable.
    async fn scan(&self, seq: SegmentSeq, mut walk: Walk, newest_ms: u64) -> Result<Scanned, Refused> {
        let desk = &self.setting.desk;
        let disk = self.disk(seq);
        let (file, len) =
            desk.open(self.picture.path(seq), OpenFlags::plain(OpenMode::Read)).await.map_err(&disk)?;
        walk.limit = walk.limit.min(len);
        let end = SegmentEnd { segment: seq, offset: walk.due, byte: walk.byte, newest_ms, checksum: 0 };
        let mut scanned = Scanned::begin(end);
        let result = scan_file(desk, file, len, &mut walk, &mut scanned).await;
        desk.close(file).await;
        result.map_err(&disk)?;
        Ok(scanned)
    }

    fn found(&self, chain: &[Link], torn: bool) -> Found {
        let mark = self.picture.known.mark.as_ref();
        let newest = self.picture.newest();
        let lineage = mark.map_or(0, |mark| mark.lineage.0).max(newest.map_or(0, |head| head.lineage.0));
        let segments: Vec<SealedState> = chain
            .iter()
            .filter_map(|link| {
                let (epoch, base, size_bytes) = (link.head.epoch, link.head.base, link.head.size_bytes);
                Some(SealedState { epoch, base, end: link.end?, size_bytes })
            })
            .collect();
        let end =
            segments.last().map(|last| last.end.offset).or(mark.map(|mark| mark.end)).unwrap_or_default();
        let policy = self.picture.mark_in_force().map(|mark| mark.policy).or(newest.map(|head| head.policy));
        let policy = policy.unwrap_or_default();
        let next = self.next_offset(end, policy);
        let first = segments.first().map_or(end, |first| first.base);
        let last =
            self.picture.all.iter().map(|seq| seq.0).chain(mark.map(|mark| mark.place.segment.0)).max();
        let kept: Vec<SegmentSeq> = chain.iter().map(|link| link.head.seq).collect();
        let leftovers = self
            .picture
            .all
            .iter()
            .filter(|seq| !kept.contains(seq))
            .map(|seq| self.picture.path(*seq))
            .collect();
        let state = LogState {
            key: self.picture.key,
            lineage: Lineage(lineage + 1),
            start: self.picture.known.start.max(first).min(end),
            end,
            next,
            ceiling: if policy == Fsync::OnCommit { Offset(0) } else { next },
            policy,
            segments,
            next_seq: SegmentSeq(last.unwrap_or(0) + 1),
        };
        Found { state, leftovers, torn }
    }

    /// The offset to go on with: the ceiling, when offsets below it may have been seen and lost.
    fn next_offset(&self, end: Offset, policy: Fsync) -> Offset {
        let mark = self.picture.mark_in_force();
        let owed = mark.map(|mark| mark.next);
        let newest = self.picture.newest();
        let raised = newest.is_none_or(|head| mark.is_some_and(|mark| mark.lineage > head.lineage));
        let of_head = newest.filter(|_| !raised).map(|head| head.ceiling);
        let known = self.picture.known;
        let rebooted = self.setting.rebooted || known.is_from_before(self.setting.boot);
        let lost = policy != Fsync::OnCommit && rebooted && !known.clean;
        let ceiling = of_head.max(mark.map(|mark| mark.ceiling)).filter(|_| lost);
        end.max(owed.unwrap_or_default()).max(ceiling.unwrap_or_default())
    }
}

const WINDOW_BYTES: usize = 512 << 10;

/// Where the walk ends it looks a second time, from behind the last whole batch on.
async fn scan_file(
    desk: &Desk,
    file: FileId,
    len: u64,
    walk: &mut Walk,
    scanned: &mut Scanned,
) -> Result<(), DiskError> {
    let mut window = Bytes::new();
    let mut window_at = walk.byte - walk.byte % BLOCK;
    let (mut sound, mut looks_again) = (*walk, false);
    loop {
        let ended = match walk.step(&window, window_at) {
            Step::Batch { batch, .. } => {
                scanned.passed(&batch, walk.byte);
                (sound, looks_again) = (*walk, false);
                continue;
            }
            Step::Need(need) => {
                let from = walk.byte - walk.byte % BLOCK;
                let want =
                    ((walk.byte - from) as usize + need.max(WINDOW_BYTES)).next_multiple_of(BLOCK as usize);
                let read = read(desk, file, from, want).await?;
                if from != window_at || read.len() > window.len() {
                    (window, window_at) = (Bytes::from(read), from);
                    continue;
                }
                None
            }
            Step::End { byte, fault } => Some((byte, fault)),
        };
        if !looks_again && walk.byte < walk.limit {
            (*walk, looks_again) = (sound, true);
            (window, window_at) = (Bytes::new(), walk.byte - walk.byte % BLOCK);
            continue;
        }
        match ended {
            Some((byte, fault)) => scanned.ended(byte, fault),
            None => scanned.stopped_at = walk.byte,
        }
        break;
    }
    if scanned.stopped_at < len {
        let mut evidence = Evidence::default();
        look_behind(desk, file, (scanned.end.byte, len.min(walk.limit)), walk, &mut evidence).await?;
        scanned.durable = scanned.durable.max(Offset(evidence.durable_end));
    }
    Ok(())
}

/// Looks for whole batches behind the end, window by window.
async fn look_behind(
    desk: &Desk,
    file: FileId,
    (end, len): (u64, u64),
    walk: &Walk,
    evidence: &mut Evidence,
) -> Result<(), DiskError> {
    let mut at = end - end % BLOCK;
    let until = len.min(at.saturating_add(EVIDENCE_SEARCH_BYTES));
    while at < until {
        let want = (until - at).min(SEARCH_OVERLAP + (1 << 20)).next_multiple_of(BLOCK) as usize;
        let bytes = read(desk, file, at, want).await?;
        if bytes.is_empty() {
            return Ok(());
        }
        search(&bytes, walk.epoch, evidence);
        if bytes.len() < want || at + want as u64 >= until {
            return Ok(());
        }
        at += 1 << 20;
    }
    Ok(())
}
