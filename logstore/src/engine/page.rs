//! Reading a page of a segment. Scope: functions; each owns what it needs.
//! Owns: the window of the segment that is in memory.
//! Invariants: the batches of a page follow each other without a gap, from the one that holds the offset wanted on; damage
//! before it is passed over by the next whole batch, damage at it is an error that names the range, after a second look at the
//! disk; an index is never trusted.
//! Not here: where an offset is (`log`), who reads (`reads`).

use bytes::Bytes;
use felix_runtime::file::{DiskError, DiskPath, FileId, OpenFlags, OpenMode};
use felix_wire::id::Offset;

use super::seek::seek;
use crate::id::SegmentSeq;
use crate::limits::BLOCK;
use crate::log::{CutError, CutPoint, FilePlan};
use crate::record::{Batch, BatchFault};
use crate::script::Desk;
use crate::segment::format::SegmentEnd;
use crate::segment::walk::{Resync, Search, Step, Walk};

/// Bytes asked for at once while looking for an offset.
const WINDOW_BYTES: usize = 256 << 10;

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

/// Why a page has no batches.
pub(super) enum PageError {
    /// Offsets `from..next` cannot be read; the first fault of them is at `byte`.
    Damaged {
        from: Offset,
        next: Offset,
        byte: u64,
        fault: BatchFault,
    },
    Disk(DiskError),
}

impl From<DiskError> for PageError {
    fn from(error: DiskError) -> PageError {
        PageError::Disk(error)
    }
}

/// Reads batches from the one that holds the offset wanted on, up to `bytes_max` (at least one batch), the plan's limit or
/// the next damage.
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
    if let Err(error) = fill_page(desk, plan, path, bytes_max, &mut page).await {
        page.error = Some(error);
    }
    page
}

async fn fill_page(
    desk: &Desk,
    mut plan: FilePlan,
    path: DiskPath,
    bytes_max: usize,
    page: &mut Page,
) -> Result<(), PageError> {
    let file = match plan.file {
        Some(file) => file,
        None => {
            let (file, _) = desk.open(path, OpenFlags::plain(OpenMode::Read)).await?;
            page.opened = Some(file);
            file
        }
    };
    let found = seek(desk, &plan, file).await?;
    plan.hint = found.last().copied().unwrap_or(plan.hint);
    page.seen.extend(found);
    let mut reader =
        Reader { desk, plan, file, begun: false, left: bytes_max, window: Bytes::new(), window_at: 0 };
    reader.read(page).await
}

/// What a walk comes to next.
enum Next {
    /// And where it begins.
    Batch(Batch, u64),
    /// The batch that is due is more than the page has room for.
    Full,
    /// What stands where a batch should, and at which byte.
    Stop(u64, BatchFault),
}

/// One read of a stretch of a segment.
struct Reader<'a> {
    desk: &'a Desk,
    plan: FilePlan,
    file: FileId,
    /// The page has a batch.
    begun: bool,
    /// Bytes it may still take.
    left: usize,
    window: Bytes,
    window_at: u64,
}

impl Reader<'_> {
    async fn read(&mut self, page: &mut Page) -> Result<(), PageError> {
        let FilePlan { hint, base, base_byte, wanted, .. } = self.plan;
        let mut walk = self.walk(hint);
        // What is below is read, or damaged and passed over.
        let mut read_to = walk.byte;
        let mut is_hint = hint.1 != base_byte;
        let mut looked_again = false;
        while walk.due < self.plan.limit {
            let before = walk;
            let (byte, fault) = match self.next(&mut walk).await? {
                Next::Batch(batch, byte) => {
                    (is_hint, looked_again) = (false, false);
                    read_to = walk.byte;
                    page.seen.push((batch.head().base, byte));
                    if batch.head().end() <= wanted {
                        continue;
                    }
                    if self.begun && batch.bytes().len() > self.left {
                        return Ok(());
                    }
                    self.begun = true;
                    self.left = self.left.saturating_sub(batch.bytes().len());
                    page.batches.push(batch);
                    page.next = Some((walk.due, walk.byte));
                    continue;
                }
                Next::Full => return Ok(()),
                Next::Stop(byte, fault) => (byte, fault),
            };
            if !page.batches.is_empty() {
                // What was read before the damage is good; the next read meets it.
                return Ok(());
            }
            if !std::mem::replace(&mut looked_again, true) {
                // Bytes may have come wrong from a disk that has them right.
                (walk, self.window) = (before, Bytes::new());
                continue;
            }
            if std::mem::take(&mut is_hint) {
                // What the index points at is wrong, or the bytes are. From the beginning it shows.
                page.bad_hint = true;
                page.seen.clear();
                walk = self.walk((base, base_byte));
                read_to = base_byte;
                continue;
            }
            let from = walk.due;
            let whole = self.find_whole(read_to, from).await?;
            page.seen.extend(whole);
            match whole {
                Some(whole) if whole.0 <= wanted => walk = self.walk(whole),
                whole => {
                    let next = whole.map_or(self.plan.end, |(next, _)| next);
                    return Err(PageError::Damaged { from, next, byte, fault });
                }
            }
        }
        Ok(())
    }

    fn walk(&self, (due, byte): (Offset, u64)) -> Walk {
        Walk { epoch: self.plan.epoch, byte, due, limit: self.plan.limit_byte }
    }

    /// The batch that is due, or what stands in its place.
    async fn next(&mut self, walk: &mut Walk) -> Result<Next, DiskError> {
        loop {
            match walk.step(&self.window, self.window_at) {
                Step::Batch { batch, byte } => return Ok(Next::Batch(batch, byte)),
                Step::End { byte, fault } => return Ok(Next::Stop(byte, fault)),
                Step::Need(need) if self.begun && need > self.left => return Ok(Next::Full),
                Step::Need(need) => {
                    let ahead =
                        if walk.due < self.plan.wanted { WINDOW_BYTES.min(self.left) } else { self.left };
                    if !self.fill(walk.byte, need, ahead).await? {
                        return Ok(Next::Stop(walk.byte, BatchFault::NotABatch));
                    }
                }
            }
        }
    }

    /// The first whole batch from `byte` on, behind batches that end at `due`: its base and byte.
    async fn find_whole(&mut self, byte: u64, due: Offset) -> Result<Option<(Offset, u64)>, DiskError> {
        let FilePlan { epoch, end, limit_byte: limit, .. } = self.plan;
        let mut search = Resync { epoch, byte, due, end, limit };
        loop {
            match search.step(&self.window, self.window_at) {
                Search::Batch(found) => return Ok(Some((found.head.base, search.byte))),
                Search::Need(need) if self.fill(search.byte, need, WINDOW_BYTES).await? => {}
                Search::Need(_) | Search::Nothing => return Ok(None),
            }
        }
    }

    /// Reads a window of `ahead` bytes that has `need` bytes from `at` on, if the file has them. False when that brings no
    /// more than is there.
    async fn fill(&mut self, at: u64, need: usize, ahead: usize) -> Result<bool, DiskError> {
        let from = at - at % BLOCK;
        let want = ((at - from) as usize + need).max(ahead);
        // Not further than the last block that is known to be written.
        let there = (self.plan.limit_byte.next_multiple_of(BLOCK) - from) as usize;
        let want = want.next_multiple_of(BLOCK as usize).min(there);
        let before = (self.window_at, self.window.len());
        // Two windows are never in memory at once.
        self.window = Bytes::new();
        self.window = Bytes::from(self.desk.read_all(self.file, from, want).await?);
        self.window_at = from;
        Ok(from != before.0 || self.window.len() > before.1)
    }
}

/// Finds the border of batches at offset `at`. `plan` is one for the offset before it, in a segment whose newest record is of
/// `newest_ms`.
pub(super) async fn find_cut(
    desk: &Desk,
    plan: FilePlan,
    path: DiskPath,
    at: Offset,
    newest_ms: u64,
) -> Result<CutPoint, CutError> {
    let page = read_page(desk, plan, path, WINDOW_BYTES).await;
    if let Some(file) = page.opened {
        desk.close(file).await;
    }
    let batch = page.batches.first().ok_or(CutError::Unreadable)?;
    let head = batch.head();
    if head.end() > at {
        return Err(CutError::InsideBatch { at, base: head.base });
    }
    let seen = page.seen.iter().find(|(base, _)| *base == head.base);
    let (_, byte) = *seen.filter(|_| head.end() == at).ok_or(CutError::Unreadable)?;
    let end = SegmentEnd {
        segment: plan.segment,
        offset: at,
        byte: byte + batch.bytes().len() as u64,
        newest_ms,
        checksum: batch.checksum(),
    };
    Ok(CutPoint { at, end })
}
