//! The scripts of an engine: what takes several disk operations. Scope: functions; each owns what it needs.
//! Invariants: a name is durable before anything relies on it; a head is durable before the segment or slot serves.
//! Not here: when they are started, what follows from their ends.

use bytes::Bytes;
use felix_runtime::clock::Tick;
use felix_runtime::file::{DiskError, DiskPath, FileId, OpenMode};
use felix_wire::id::Offset;

use super::event::{LogId, ReadId};
use crate::id::{SegmentSeq, ShardKey};
use crate::limits::BLOCK;
use crate::log::{CutPoint, FilePlan, Log, PieceId, Point, RunId};
use crate::record::{Batch, BatchFault};
use crate::script::{Desk, Handles};
use crate::segment::format::{SegmentEnd, SegmentHead};
use crate::segment::walk::{Step, Walk};

use super::seek::seek;

/// A piece written straight to its segment.
pub(super) struct Written {
    pub piece: PieceId,
    pub run: RunId,
    pub bytes: usize,
    pub batches: usize,
    pub asked: Tick,
}

/// A segment file that was to be made.
pub(super) struct Made {
    pub seq: SegmentSeq,
    pub size_bytes: u64,
    /// Of the volume's free space.
    pub taken_bytes: u64,
    pub files: Result<Handles, DiskError>,
}

/// What a script came to.
pub(super) enum Ended {
    SlotMade {
        index: usize,
        files: Result<Handles, DiskError>,
    },
    SlotOpened {
        index: usize,
        result: Result<(), DiskError>,
    },
    RoundWritten {
        result: Result<(), DiskError>,
    },
    PieceWritten {
        log: LogId,
        written: Written,
        result: Result<(), DiskError>,
    },
    LogMade {
        log: LogId,
        result: Result<(), DiskError>,
    },
    SegmentMade {
        log: LogId,
        made: Made,
    },
    HeadWritten {
        log: LogId,
        head: SegmentHead,
        result: Result<(), DiskError>,
    },
    RunSpilled {
        slot: usize,
        log: LogId,
        run: RunId,
        result: Result<(), DiskError>,
    },
    SegmentSynced {
        slot: usize,
        log: LogId,
        result: Result<(), DiskError>,
    },
    SlotsSynced {
        logs: Vec<(LogId, Point)>,
        results: Vec<(usize, Result<(), DiskError>)>,
        asked: Tick,
    },
    Flushed {
        log: LogId,
        point: Point,
        result: Result<(), DiskError>,
        asked: Tick,
    },
    Page {
        read: ReadId,
        log: LogId,
        page: Box<Page>,
    },
    CutFound {
        log: LogId,
        point: Result<CutPoint, crate::log::CutError>,
    },
    Space {
        free_bytes: Result<u64, DiskError>,
    },
    /// The handles, once they are there.
    FillWritten {
        result: Result<Option<Handles>, DiskError>,
    },
    Filled {
        path: DiskPath,
        size_bytes: u64,
        result: Result<(), DiskError>,
    },
    Pooled {
        path: DiskPath,
        size_bytes: u64,
        result: Result<(), DiskError>,
    },
    Removed {
        key: ShardKey,
        result: Result<(), DiskError>,
    },
    LogClosed {
        log: LogId,
        machine: Box<Log>,
    },
    Tidied,
    AllClosed,
}

/// Makes the file of a slot.
pub(super) async fn make_slot(desk: &Desk, path: DiskPath, bytes: u64) -> Result<Handles, DiskError> {
    let files = desk.open_writer(path.clone(), OpenMode::CreateNew).await?;
    let ready = async {
        desk.presize(files.plain, bytes).await?;
        desk.sync(files.plain).await?;
        desk.sync_dir(path.parent()).await
    };
    match ready.await {
        Ok(()) => Ok(files),
        Err(error) => {
            desk.close_both(files).await;
            Err(error)
        }
    }
}

/// Makes a segment file, from one of the pool if there is one. The name is durable afterwards.
pub(super) async fn make_segment(
    desk: &Desk,
    pooled: Option<DiskPath>,
    path: DiskPath,
    bytes: u64,
) -> Result<Handles, DiskError> {
    let recycled = match &pooled {
        Some(from) => desk.rename(from.clone(), path.clone()).await.is_ok(),
        None => false,
    };
    let mode = if recycled { OpenMode::Write } else { OpenMode::CreateNew };
    let files = desk.open_writer(path.clone(), mode).await?;
    let ready = async {
        if !recycled {
            desk.presize(files.plain, bytes).await?;
        }
        if let Some(from) = pooled {
            desk.sync_dir(from.parent()).await?;
        }
        desk.sync_dir(path.parent()).await
    };
    if let Err(error) = ready.await {
        desk.close_both(files).await;
        let _ = desk.unlink(path).await;
        return Err(error);
    }
    Ok(files)
}

/// Puts the bytes of a run, padded with zeros, into its segment.
pub(super) async fn spill(desk: &Desk, file: FileId, byte: u64, bytes: Vec<Bytes>) -> Result<(), DiskError> {
    const CHUNK: usize = 512 << 10;
    let mut at = byte;
    let mut left: usize = bytes.iter().map(Bytes::len).sum();
    let mut parts = bytes.into_iter();
    let mut part = Bytes::new();
    while left > 0 {
        let take = left.min(CHUNK);
        let mut buffer = desk.buffer(take).await;
        while buffer.len() < take {
            if part.is_empty() {
                part = parts.next().unwrap_or_default();
            }
            let some = part.split_to(part.len().min(take - buffer.len()));
            buffer.push(&some);
        }
        desk.write(file, at, buffer.freeze()).await?;
        at += take as u64;
        left -= take;
    }
    Ok(())
}

/// Syncs files one after the other; the first failure ends it.
pub(super) async fn sync_all(desk: &Desk, files: Vec<FileId>) -> Result<(), DiskError> {
    for file in files {
        desk.sync(file).await?;
    }
    Ok(())
}

/// Removes a log's directory with what is in it. What fails is left for recovery, which finds the log deleted.
pub(super) async fn remove_log(desk: &Desk, dir: DiskPath, files: Vec<Handles>) -> Result<(), DiskError> {
    for handles in files {
        desk.close_both(handles).await;
    }
    for entry in desk.list(dir.clone()).await? {
        if let Ok(path) = dir.join(&entry.name) {
            desk.unlink(path).await?;
        }
    }
    desk.remove_dir(dir.clone()).await?;
    desk.sync_dir(dir.parent()).await
}

/// Moves a retired segment into the pool. Its old name is gone durably before it counts as pooled.
pub(super) async fn pool_segment(desk: &Desk, from: DiskPath, to: DiskPath) -> Result<(), DiskError> {
    desk.rename(from.clone(), to.clone()).await?;
    desk.sync_dir(from.parent()).await?;
    desk.sync_dir(to.parent()).await
}

/// Makes a file for the pool, to be filled.
pub(super) async fn begin_fill(desk: &Desk, path: DiskPath, bytes: u64) -> Result<Handles, DiskError> {
    let files = desk.open_writer(path.clone(), OpenMode::CreateNew).await?;
    if let Err(error) = desk.presize(files.plain, bytes).await {
        desk.close_both(files).await;
        let _ = desk.unlink(path).await;
        return Err(error);
    }
    Ok(files)
}

/// What a read of a segment brought.
pub(super) struct Page {
    pub segment: SegmentSeq,
    pub batches: Vec<Batch>,
    pub error: Option<PageError>,
    /// Batches passed on the way, for the index.
    pub seen: Vec<(Offset, u64)>,
    /// Where the batch behind the last one begins, or the padding before it.
    pub next: Option<(Offset, u64)>,
    /// The hint was wrong: the index is to be forgotten.
    pub bad_hint: bool,
    /// A handle that was opened for it.
    pub opened: Option<FileId>,
}

pub(super) enum PageError {
    Damaged { byte: u64, fault: BatchFault },
    Disk(DiskError),
}

/// Reads batches from the one that holds the offset wanted on, up to `bytes_max` (at least one batch) or the plan's limit.
pub(super) async fn read_page(desk: &Desk, plan: FilePlan, path: DiskPath, bytes_max: usize) -> Page {
    let mut page = Page {
        segment: plan.segment,
        batches: Vec::new(),
        error: None,
        seen: Vec::new(),
        next: None,
        bad_hint: false,
        opened: None,
    };
    let file = match plan.file {
        Some(file) => file,
        None => match desk.open(path, felix_runtime::file::OpenFlags::plain(OpenMode::Read)).await {
            Ok((file, _)) => {
                page.opened = Some(file);
                file
            }
            Err(error) => {
                page.error = Some(PageError::Disk(error));
                return page;
            }
        },
    };
    let mut plan = plan;
    match seek(desk, &plan, file).await {
        Ok(found) => {
            plan.hint = found.last().copied().unwrap_or(plan.hint);
            page.seen.extend(found);
        }
        Err(error) => {
            page.error = Some(PageError::Disk(error));
            return page;
        }
    }
    walk_page(desk, &plan, file, bytes_max, &mut page).await;
    let hinted = plan.hint.1 != plan.base_byte;
    if hinted && page.batches.is_empty() && matches!(page.error, Some(PageError::Damaged { .. })) {
        // An index is never trusted: what it points at is wrong, or the bytes are. From the beginning it shows.
        plan.hint = (plan.base, plan.base_byte);
        page.error = None;
        page.bad_hint = true;
        page.seen.clear();
        page.next = None;
        walk_page(desk, &plan, file, bytes_max, &mut page).await;
    }
    page
}

/// Bytes asked for at once while looking for an offset.
const WINDOW_BYTES: usize = 256 << 10;

async fn walk_page(desk: &Desk, plan: &FilePlan, file: FileId, bytes_max: usize, page: &mut Page) {
    let mut walk = Walk { epoch: plan.epoch, byte: plan.hint.1, due: plan.hint.0, limit: plan.limit_byte };
    let mut window = Bytes::new();
    let mut window_at = walk.byte;
    let mut bytes = 0;
    while walk.due < plan.limit {
        match walk.step(&window, window_at) {
            Step::Batch { batch, byte } => {
                page.seen.push((batch.head().base, byte));
                if batch.head().end() <= plan.wanted {
                    continue;
                }
                bytes += batch.bytes().len();
                if !page.batches.is_empty() && bytes > bytes_max {
                    page.next = Some((batch.head().base, byte));
                    return;
                }
                page.batches.push(batch);
                page.next = Some((walk.due, walk.byte));
            }
            Step::Need(need) => {
                let left = bytes_max.saturating_sub(bytes);
                if !page.batches.is_empty() && need > left {
                    return;
                }
                let ahead = if walk.due < plan.wanted { WINDOW_BYTES.min(bytes_max) } else { left };
                let from = walk.byte - walk.byte % BLOCK;
                let want = ((walk.byte - from) as usize + need).max(ahead);
                // Not further than the last block that is known to be written.
                let there = (plan.limit_byte.next_multiple_of(BLOCK) - from) as usize;
                let read = desk.read_all(file, from, want.next_multiple_of(BLOCK as usize).min(there)).await;
                match read {
                    Ok(read) if read.len() > window.len() || from > window_at => {
                        window = Bytes::from(read);
                        window_at = from;
                    }
                    Ok(_) => {
                        page.error =
                            Some(PageError::Damaged { byte: walk.byte, fault: BatchFault::NotABatch });
                        return;
                    }
                    Err(error) => {
                        page.error = Some(PageError::Disk(error));
                        return;
                    }
                }
            }
            Step::End { byte, fault } => {
                page.error = Some(PageError::Damaged { byte, fault });
                return;
            }
        }
    }
}

/// Finds the border of batches at offset `at` by walking the segment that holds it, whose newest record is of `newest_ms`.
pub(super) async fn find_cut(
    desk: &Desk,
    plan: FilePlan,
    path: DiskPath,
    at: Offset,
    newest_ms: u64,
) -> Result<CutPoint, crate::log::CutError> {
    use crate::log::CutError;
    let whole = FilePlan { hint: (plan.base, plan.base_byte), wanted: plan.base, ..plan };
    let mut next = whole;
    let mut opened = None;
    let mut found = Err(CutError::Unreadable);
    'pages: loop {
        let page =
            read_page(desk, FilePlan { file: next.file.or(opened), ..next }, path.clone(), 1 << 20).await;
        opened = opened.or(page.opened);
        let mut seen = page.seen.iter();
        for batch in &page.batches {
            let head = batch.head();
            let byte = seen.find(|(base, _)| *base == head.base).map_or(0, |(_, byte)| *byte);
            if head.base < at && head.end() > at {
                found = Err(CutError::InsideBatch { at, base: head.base });
                break 'pages;
            }
            let byte = byte + batch.bytes().len() as u64;
            next = FilePlan { hint: (head.end(), byte), wanted: head.end(), ..next };
            if head.end() == at {
                let end = SegmentEnd {
                    segment: plan.segment,
                    offset: at,
                    byte,
                    newest_ms,
                    checksum: batch.checksum(),
                };
                found = Ok(CutPoint { at, end });
                break 'pages;
            }
        }
        if page.error.is_some() || page.batches.is_empty() {
            break;
        }
    }
    if let Some(file) = opened {
        desk.close(file).await;
    }
    found
}
