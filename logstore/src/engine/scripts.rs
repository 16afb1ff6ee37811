//! The scripts of an engine: what takes several disk operations. Scope: functions; each owns what it needs.
//! Invariants: a name is durable before anything relies on it; a head is durable before the segment or slot serves.
//! Not here: when they are started, what follows from their ends.

use bytes::Bytes;
use felix_runtime::clock::Tick;
use felix_runtime::file::{DiskError, DiskPath, FileId, OpenMode};

use super::event::{LogId, ReadId};
use crate::id::{SegmentSeq, ShardKey};
use crate::log::{CutPoint, Log, PieceId, Point, RunId};
use crate::script::{Desk, Handles};
use crate::segment::format::SegmentHead;

use super::page::Page;

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
        /// What had been made when it was asked.
        made: u64,
    },
    PoolEmptied,
    FillBegun {
        result: Result<Handles, DiskError>,
    },
    FillWritten {
        result: Result<(), DiskError>,
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
    /// A segment that was given up has no handle any more.
    Kept {
        log: LogId,
        path: DiskPath,
        size_bytes: u64,
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

/// Makes the directory of a log. When that fails none stays, so that the next try makes a new one; one that stayed all the same
/// is made again.
pub(super) async fn make_log(desk: &Desk, dir: DiskPath) -> Result<(), DiskError> {
    let since = desk.before_name();
    desk.make_dir_again(dir.clone()).await?;
    let synced = desk.sync_name(dir.parent(), since).await;
    if synced.is_err() {
        let _ = desk.remove_dir(dir).await;
    }
    synced
}

/// Makes the file of a slot.
pub(super) async fn make_slot(desk: &Desk, path: DiskPath, bytes: u64) -> Result<Handles, DiskError> {
    let since = desk.before_name();
    let files = desk.open_writer(path.clone(), OpenMode::CreateNew).await?;
    let ready = async {
        desk.presize(files.plain, bytes).await?;
        desk.sync(files.plain).await?;
        desk.sync_name(path.parent(), since).await
    };
    match ready.await {
        Ok(()) => Ok(files),
        Err(error) => {
            desk.close_both(files).await;
            // What it got of the space is wanted elsewhere, and the name for the next try.
            let _ = desk.unlink(path).await;
            Err(error)
        }
    }
}

/// Makes a segment file, from `pooled` if there is one. The name is durable afterwards.
pub(super) async fn make_segment(
    desk: &Desk,
    pooled: Option<DiskPath>,
    path: DiskPath,
    bytes: u64,
) -> Result<Handles, DiskError> {
    let since = desk.before_name();
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
        if let Some(from) = pooled
            && from.parent() != path.parent()
        {
            desk.sync_dir(from.parent()).await?;
        }
        desk.sync_name(path.parent(), since).await
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
