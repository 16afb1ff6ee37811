//! A disk that refuses what would take more bytes than it may hold, as a full volume does.

use std::collections::{HashMap, VecDeque};

use felix_runtime::file::{Disk, DiskError, DiskPath, Done, FileId, Files, Full, Op, Outcome, Space, Token};

/// Counts the bytes of files by path.
pub struct Quota {
    bytes: u64,
    files: HashMap<DiskPath, u64>,
    open: HashMap<FileId, DiskPath>,
    asked: HashMap<Token, Asked>,
    refused: VecDeque<Done>,
}

enum Asked {
    Open(DiskPath),
    Unlink(DiskPath),
    Rename(DiskPath, DiskPath),
    Space,
}

impl Quota {
    pub fn new(bytes: u64) -> Quota {
        Quota {
            bytes,
            files: HashMap::new(),
            open: HashMap::new(),
            asked: HashMap::new(),
            refused: VecDeque::new(),
        }
    }

    fn used(&self) -> u64 {
        self.files.values().sum()
    }

    /// Whether a file may reach `end`; it has taken the space then.
    fn grow(&mut self, file: FileId, end: u64) -> bool {
        let used = self.used();
        let Some(len) = self.open.get(&file).and_then(|path| self.files.get_mut(path)) else { return true };
        let more = end.saturating_sub(*len);
        if used + more > self.bytes {
            return false;
        }
        *len += more;
        true
    }

    pub fn submit(&mut self, files: &mut Files, token: Token, op: Op) -> Result<(), Full> {
        let fits = match &op {
            Op::Presize { file, len } => self.grow(*file, *len),
            Op::Write { file, at, data } => self.grow(*file, at + data.len() as u64),
            _ => true,
        };
        if !fits {
            self.refused.push_back(Done { token, result: Err(DiskError::NoSpace) });
            return Ok(());
        }
        let asked = match &op {
            Op::Open { path, .. } => Some(Asked::Open(path.clone())),
            Op::Unlink { path } => Some(Asked::Unlink(path.clone())),
            Op::Rename { from, to } => Some(Asked::Rename(from.clone(), to.clone())),
            Op::Space { .. } => Some(Asked::Space),
            _ => None,
        };
        files.submit(token, op)?;
        if let Some(asked) = asked {
            self.asked.insert(token, asked);
        }
        Ok(())
    }

    pub fn poll_done(&mut self, files: &mut Files) -> Option<Done> {
        if let Some(refused) = self.refused.pop_front() {
            return Some(refused);
        }
        let mut done = files.poll_done()?;
        let Ok(outcome) = &mut done.result else { return Some(done) };
        match (self.asked.remove(&done.token), outcome) {
            (Some(Asked::Open(path)), Outcome::Opened { file, len }) => {
                self.files.entry(path.clone()).or_insert(*len);
                self.open.insert(*file, path);
            }
            (Some(Asked::Unlink(path)), _) => _ = self.files.remove(&path),
            (Some(Asked::Rename(from, to)), _) => {
                if let Some(len) = self.files.remove(&from) {
                    self.files.insert(to.clone(), len);
                }
                self.open.values_mut().filter(|path| **path == from).for_each(|path| *path = to.clone());
            }
            (Some(Asked::Space), Outcome::Space(space)) => {
                let free_bytes = self.bytes.saturating_sub(self.used());
                *space = Space { free_bytes, total_bytes: self.bytes };
            }
            _ => {}
        }
        Some(done)
    }
}
