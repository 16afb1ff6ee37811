//! Reads files or standard input and cuts them into records, on a thread of its own. Scope: per publish.
//! Invariants: at most `CHUNKS_AHEAD` chunks wait for the publisher; what was read of a slow source is handed on at once.
//! Not here: where records end (`framing`).

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::framing::{Framer, Framing};
use crate::cli::failure::{Failure, Outcome};

/// Bytes read at once.
const READ_BYTES: usize = 128 << 10;
/// Chunks of records read ahead of the publisher.
const CHUNKS_AHEAD: usize = 8;

/// Records in the order of the sources; an error is the last item.
pub type Records = mpsc::Receiver<Outcome<Vec<Bytes>>>;

/// Starts reading. No files, or `-`, is standard input.
pub fn read(files: Vec<PathBuf>, framing: Framing) -> Records {
    let (records, out) = mpsc::channel(CHUNKS_AHEAD);
    // Not one of the runtime's threads: a read of a terminal ends only with the process.
    std::thread::spawn(move || {
        let files = if files.is_empty() { vec![PathBuf::from("-")] } else { files };
        for path in files {
            match read_one(&path, framing, &records) {
                Ok(true) => {}
                Ok(false) => return,
                Err(failure) => {
                    // A publisher that has ended has its own reason.
                    let _ = records.blocking_send(Err(failure));
                    return;
                }
            }
        }
    });
    out
}

/// Bytes of all sources together, when that is known.
pub fn total_bytes(files: &[PathBuf]) -> Option<u64> {
    if files.is_empty() {
        return None;
    }
    files
        .iter()
        .map(|path| std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len()))
        .sum()
}

/// False when nobody wants more.
fn read_one(path: &Path, framing: Framing, records: &mpsc::Sender<Outcome<Vec<Bytes>>>) -> Outcome<bool> {
    let failed = |error: io::Error| Failure::usage(format!("{}: {error}", path.display()));
    let mut source: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path).map_err(failed)?),
    };
    let mut framer = Framer::new(framing);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = match source.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        let broken = |error| Failure::usage(format!("{}: {error}", path.display()));
        let mut chunk = Vec::new();
        if count == 0 {
            chunk.extend(framer.finish().map_err(broken)?);
            return Ok(chunk.is_empty() || records.blocking_send(Ok(chunk)).is_ok());
        }
        framer.push(&buffer[..count]);
        while let Some(record) = framer.next_record().map_err(broken)? {
            chunk.push(record);
        }
        if !chunk.is_empty() && records.blocking_send(Ok(chunk)).is_err() {
            return Ok(false);
        }
    }
}
