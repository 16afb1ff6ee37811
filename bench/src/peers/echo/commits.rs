//! One block written for each request, so that it survives a power cut. Scope: one file, on the echo's core.
//! Owns: the file, which write is for whom.
//! Invariants: blocks are written over blocks that were written before, in a circle; who asked is told once, after the
//! write was answered.
//! Not here: making the file (`echo`), answering (`serve`).

use std::collections::HashMap;
use std::path::Path;

use felix_runtime::executor::CoreIo;
use felix_runtime::file::{
    BLOCK_BYTES, Disk, DiskPath, Done, FileId, Files, FilesSettings, Op, OpenFlags, OpenMode, Outcome,
    SharedBuf, Token,
};

use super::{COMMIT_FILE_BYTES, EchoError};
use crate::sink::serve::StreamKey;

/// Name of the file in its folder.
pub const FILE: &str = "echo-commits";
/// Memory for its one block.
pub const POOL_BYTES: usize = 1 << 20;
/// Writes under way at once.
pub const WRITES_MAX: usize = 64;

/// See the module.
pub struct Commits {
    files: Files,
    file: FileId,
    block: SharedBuf,
    next: u64,
    waiting: HashMap<u64, StreamKey, foldhash::fast::RandomState>,
}

impl Commits {
    /// Opens the file in `dir`.
    ///
    /// # Errors
    /// It is not there, or the folder is not good for direct I/O.
    pub fn open(io: &mut CoreIo, dir: &Path) -> Result<Commits, EchoError> {
        // One more than the writes, for opening.
        let settings = FilesSettings { ops_max: WRITES_MAX + 1, pool_bytes: POOL_BYTES };
        let files = Files::new(io, settings);
        let mut files = files.map_err(|_| EchoError::Memory("no ring for the disk"))?;
        let volume = files
            .open_volume(dir)
            .map_err(|error| EchoError::Volume { dir: dir.to_owned(), why: error.to_string() })?;
        let path = DiskPath::new(volume, FILE).map_err(|_| EchoError::Memory("not a file name"))?;
        let mut block =
            files.pool().take(BLOCK_BYTES).map_err(|_| EchoError::Memory("no memory for a block"))?;
        block.push_zeros(BLOCK_BYTES).fill(0x5a);
        let block = block.freeze();
        submit(&mut files, 0, Op::Open { path, flags: OpenFlags::dsync(OpenMode::Write) })?;
        let done = loop {
            if let Some(done) = files.poll_done() {
                break done;
            }
            files.hand_over();
            io.wait(None);
        };
        match done.result.map_err(|error| EchoError::Disk { what: "opening", error })? {
            Outcome::Opened { file, .. } => {
                Ok(Commits { files, file, block, next: 0, waiting: HashMap::default() })
            }
            _ => Err(EchoError::Memory("opened nothing")),
        }
    }

    #[must_use]
    pub fn has_room(&self) -> bool {
        self.waiting.len() < WRITES_MAX
    }

    /// Writes a block for `who`.
    ///
    /// # Errors
    /// There was no room.
    pub fn ask(&mut self, who: StreamKey) -> Result<(), EchoError> {
        self.next += 1;
        let at = (self.next * BLOCK_BYTES as u64) % COMMIT_FILE_BYTES;
        submit(&mut self.files, self.next, Op::Write { file: self.file, at, data: self.block.clone() })?;
        self.waiting.insert(self.next, who);
        Ok(())
    }

    /// Whose block is written.
    ///
    /// # Errors
    /// The disk failed.
    pub fn poll(&mut self) -> Result<Option<StreamKey>, EchoError> {
        while let Some(Done { token, result }) = self.files.poll_done() {
            result.map_err(|error| EchoError::Disk { what: "a commit", error })?;
            if let Some(who) = self.waiting.remove(&token.0) {
                return Ok(Some(who));
            }
        }
        Ok(None)
    }

    /// Before the core waits.
    pub fn hand_over(&mut self) {
        self.files.hand_over();
    }

    /// Waits for what is under way.
    pub fn close(self) {
        self.files.close();
    }
}

fn submit(files: &mut Files, token: u64, op: Op) -> Result<(), EchoError> {
    files.submit(Token(token), op).map_err(|_| EchoError::Memory("more operations than allowed"))
}
