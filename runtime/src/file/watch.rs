//! Names the disk operations of a process as failpoints. Scope: one per disk; builds with debug assertions only.
//! Owns: where the open files are, and the names of the operations in flight; nothing unless a failpoint is armed.
//! Invariants: `before` a name the operation has not begun, `after` it nobody has been told that it ended well.
//! Not here: what happens at a name (`failpoint`).

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::{BLOCK_BYTES, DiskPath, Done, FileId, Op, OpenMode, Outcome, Token};
use crate::failpoint;

/// See the module.
#[derive(Default)]
pub(super) struct Watch {
    files: HashMap<FileId, Open, FixedState>,
    in_flight: HashMap<Token, Asked, FixedState>,
}

#[derive(Clone)]
struct Open {
    place: String,
    dsync: bool,
}

#[derive(Default)]
struct Asked {
    name: Option<String>,
    opens: Option<Open>,
}

impl Watch {
    /// The operation is about to begin.
    pub fn before(&mut self, token: Token, op: &Op) {
        if !failpoint::is_armed() {
            return;
        }
        let name = self.name(op);
        if let Some(name) = &name {
            failpoint::hit(&format!("before.{name}"));
        }
        let opens = match op {
            Op::Open { path, flags } => Some(Open { place: place(path), dsync: flags.dsync }),
            _ => None,
        };
        self.in_flight.insert(token, Asked { name, opens });
    }

    /// The operation has ended; whoever asked is told next.
    pub fn after(&mut self, done: &Done) {
        let Some(asked) = self.in_flight.remove(&done.token) else { return };
        let Ok(outcome) = &done.result else { return };
        if let (Outcome::Opened { file, .. }, Some(opens)) = (outcome, asked.opens) {
            self.files.insert(*file, opens);
        }
        if let Some(name) = &asked.name {
            failpoint::hit(&format!("after.{name}"));
        }
    }

    /// What changes a volume has a name: the kind of operation, and the top directory it is in.
    fn name(&mut self, op: &Op) -> Option<String> {
        match op {
            Op::Open { path, flags } if matches!(flags.mode, OpenMode::Create | OpenMode::CreateNew) => {
                Some(format!("create.{}", place(path)))
            }
            Op::Write { file, at, .. } => {
                let open = self.files.get(file)?;
                let how = if open.dsync { "write-sync" } else { "write" };
                let head = if *at < BLOCK_BYTES as u64 { "-head" } else { "" };
                Some(format!("{how}.{}{head}", open.place))
            }
            Op::Sync { file } => Some(format!("sync.{}", self.files.get(file)?.place)),
            Op::Presize { file, .. } => Some(format!("presize.{}", self.files.get(file)?.place)),
            Op::SetLen { file, .. } => Some(format!("set-len.{}", self.files.get(file)?.place)),
            Op::SyncDir { dir } => Some(format!("sync-dir.{}", place(dir))),
            Op::MakeDir { path } => Some(format!("make-dir.{}", place(path))),
            Op::RemoveDir { path } => Some(format!("remove-dir.{}", place(path))),
            Op::Rename { from, to } => Some(format!("rename.{}-{}", place(from), place(to))),
            Op::Unlink { path } => Some(format!("unlink.{}", place(path))),
            Op::Close { file } => {
                self.files.remove(file);
                None
            }
            Op::Open { .. }
            | Op::Lock { .. }
            | Op::Read { .. }
            | Op::Len { .. }
            | Op::List { .. }
            | Op::Space { .. } => None,
        }
    }
}

/// The top directory of a path.
fn place(path: &DiskPath) -> String {
    match path.as_str().split('/').next() {
        None | Some("") => "root".to_owned(),
        Some(top) => top.to_owned(),
    }
}
