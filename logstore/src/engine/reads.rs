//! Reading pages. Scope: part of [`Engine`].
//! Owns: handles of sealed segments opened for reading, and who reads which segment.
//! Invariants: a segment that is being read is neither closed nor used again; at most a bounded number of reads and handles.
//! Not here: where an offset is (`log`), the walk itself (`scripts`).

use std::collections::{BTreeMap, VecDeque};

use felix_runtime::file::FileId;
use felix_wire::id::Offset;

use super::page::{self, Page, PageError};
use super::scripts::Ended;
use super::{Engine, Event, LogId, ReadError, ReadId};
use crate::id::SegmentSeq;
use crate::log::{FilePlan, ReadPlan};
use crate::names;

#[derive(Debug, Default)]
pub(super) struct Reads {
    users: BTreeMap<(LogId, SegmentSeq), u32>,
    /// Handle and when it was last used.
    files: BTreeMap<(LogId, SegmentSeq), (FileId, u64)>,
    under_way: usize,
    clock: u64,
    /// Where pages that were read end: a reader that goes on begins right there, however coarse the index is.
    ends: VecDeque<PageEnd>,
}

/// One past the last batch of a page: an offset and its byte. A hint like those of the index.
#[derive(Debug, Clone, Copy)]
struct PageEnd {
    log: LogId,
    segment: SegmentSeq,
    at: (Offset, u64),
}

/// Ends of pages that are kept; the oldest goes.
const PAGE_ENDS_MAX: usize = 64;

impl Reads {
    pub fn is_read(&self, log: LogId, segment: SegmentSeq) -> bool {
        self.users.contains_key(&(log, segment))
    }

    /// Gives up the handle of a segment; it is added to `files`, to be closed.
    pub fn forget(&mut self, log: LogId, segment: SegmentSeq, files: &mut Vec<FileId>) {
        files.extend(self.files.remove(&(log, segment)).map(|(file, _)| file));
    }

    /// The same for all segments of a log.
    pub fn forget_log(&mut self, log: LogId, files: &mut Vec<FileId>) {
        let of_log: Vec<_> = self.files.keys().filter(|key| key.0 == log).copied().collect();
        for (log, segment) in of_log {
            self.forget(log, segment, files);
        }
    }

    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// The plan beginning where a page before it ended, when one did.
    fn go_on(&self, log: LogId, plan: &mut FilePlan) {
        let ends_here = |end: &&PageEnd| {
            end.log == log
                && end.segment == plan.segment
                && end.at.0 == plan.wanted
                && end.at.1 >= plan.base_byte
        };
        if let Some(end) = self.ends.iter().rev().find(ends_here) {
            plan.hint = end.at;
        }
    }

    fn note_end(&mut self, end: PageEnd) {
        if self.ends.len() == PAGE_ENDS_MAX {
            self.ends.pop_front();
        }
        self.ends.push_back(end);
    }

    /// All handles.
    pub fn take_all(&mut self) -> Vec<FileId> {
        std::mem::take(&mut self.files).into_values().map(|(file, _)| file).collect()
    }

    /// A handle that nobody uses and that was not used for the longest time, when there are more than `max`.
    fn evict(&mut self, max: usize) -> Option<FileId> {
        if self.files.len() <= max {
            return None;
        }
        let unused = self.files.iter().filter(|(key, _)| !self.users.contains_key(key));
        let oldest = *unused.min_by_key(|(_, (_, used))| *used)?.0;
        self.files.remove(&oldest).map(|(file, _)| file)
    }

    fn release(&mut self, log: LogId, segment: SegmentSeq) {
        self.under_way -= 1;
        if let Some(users) = self.users.get_mut(&(log, segment)) {
            *users -= 1;
            if *users == 0 {
                self.users.remove(&(log, segment));
            }
        }
    }
}

impl Engine {
    /// Reads batches of `log` from the one that holds `from` on, of what is settled and begins below `until`: about
    /// `bytes_max`, one batch at least. `Page` or `ReadFailed` follows, at once for what is in memory.
    pub fn read(&mut self, read: ReadId, log: LogId, from: Offset, until: Offset, bytes_max: usize) {
        let Some(shard) = self.logs.get(&log) else {
            self.events.push_back(Event::ReadFailed { read, log, error: ReadError::Unknown });
            return;
        };
        let page = |batches| Event::Page { read, log, batches };
        let failed = |error| Event::ReadFailed { read, log, error };
        let event = match shard.log.plan_read(from, until, bytes_max) {
            ReadPlan::Memory(batches) => page(batches),
            ReadPlan::AtEnd => page(Vec::new()),
            ReadPlan::TooOld { start } => failed(ReadError::TooOld { start }),
            ReadPlan::InFuture { end } => failed(ReadError::InFuture { end }),
            ReadPlan::File(_) if self.reads.under_way >= self.config.reads_max => failed(ReadError::Busy),
            ReadPlan::File(mut plan) => {
                let key = (log, plan.segment);
                self.reads.go_on(log, &mut plan);
                self.reads.clock += 1;
                if plan.file.is_none()
                    && let Some((file, used)) = self.reads.files.get_mut(&key)
                {
                    *used = self.reads.clock;
                    plan.file = Some(*file);
                }
                self.reads.under_way += 1;
                *self.reads.users.entry(key).or_default() += 1;
                let path = names::segment(self.config.volume, shard.log.key(), plan.segment);
                let desk = self.desk.clone();
                self.scripts.start(async move {
                    let page = Box::new(page::read_page(&desk, plan, path, bytes_max).await);
                    Ended::Page { read, log, page }
                });
                return;
            }
        };
        self.events.push_back(event);
    }

    pub(super) fn page_read(&mut self, read: ReadId, log: LogId, page: Page) {
        let Page { segment, batches, error, seen, next, bad_hint, opened } = page;
        self.reads.release(log, segment);
        self.due.insert(log);
        if let Some(file) = opened {
            self.keep_file(log, segment, file);
        }
        self.drop_retired(log, segment);
        if bad_hint {
            self.reads.ends.retain(|end| (end.log, end.segment) != (log, segment));
        }
        if let Some(at) = next {
            self.reads.note_end(PageEnd { log, segment, at });
        }
        if let Some(index) = self.logs.get_mut(&log).and_then(|shard| shard.log.index_mut(segment)) {
            if bad_hint {
                index.clear();
            }
            for (base, byte) in seen {
                index.note(base, byte);
            }
        }
        let event = match error {
            Some(error) if batches.is_empty() => {
                let error = match error {
                    PageError::Damaged { from, next, byte, fault } => {
                        ReadError::Damaged { from, next, segment, byte, fault }
                    }
                    PageError::Disk(error) => ReadError::Disk { segment, error },
                };
                Event::ReadFailed { read, log, error }
            }
            // What was read before an error is good; the next read meets it.
            _ => Event::Page { read, log, batches },
        };
        self.events.push_back(event);
    }

    /// Keeps a handle for the next read of the segment, and closes others when there are too many.
    fn keep_file(&mut self, log: LogId, segment: SegmentSeq, file: FileId) {
        self.reads.clock += 1;
        let there = self.logs.get(&log).is_some_and(|shard| shard.log.has_segment(segment));
        let known = self.reads.files.contains_key(&(log, segment));
        let mut close = Vec::new();
        if there && !known {
            self.reads.files.insert((log, segment), (file, self.reads.clock));
            close.extend(self.reads.evict(self.config.read_files_max));
        } else {
            close.push(file);
        }
        self.close_read_files(close);
    }

    /// The last read of a segment that was retired meanwhile is over: its handle goes.
    fn drop_retired(&mut self, log: LogId, segment: SegmentSeq) {
        let there = self.logs.get(&log).is_some_and(|shard| shard.log.has_segment(segment));
        if !there && !self.reads.is_read(log, segment) {
            let mut close = Vec::new();
            self.reads.forget(log, segment, &mut close);
            self.close_read_files(close);
        }
    }

    fn close_read_files(&mut self, files: Vec<FileId>) {
        for file in files {
            let desk = self.desk.clone();
            self.scripts.start(async move {
                desk.close(file).await;
                Ended::Tidied
            });
        }
    }
}
