//! The file system below a folder: what it is, and whether a disk stands behind it. Scope: plain values.
//! Not here: reading and writing there (`raw_disk`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// File systems without a disk behind them.
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "devtmpfs"];

/// Where a folder's bytes go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystem {
    /// Such as `ext4`.
    pub kind: String,
    /// What is mounted, such as `/dev/vda`.
    pub source: String,
    pub mount: PathBuf,
}

impl FileSystem {
    /// The file system that holds `folder`.
    ///
    /// # Errors
    /// There is no such folder, or the kernel does not tell.
    pub fn of(folder: &Path) -> io::Result<FileSystem> {
        let folder = fs::canonicalize(folder)?;
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        find(&mounts, &folder).ok_or_else(|| io::Error::other("no mount holds the folder"))
    }

    /// Whether it keeps its bytes in memory.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        IN_MEMORY.contains(&self.kind.as_str())
    }
}

/// The last mount with the longest path above `folder`: later ones cover earlier ones.
fn find(mounts: &str, folder: &Path) -> Option<FileSystem> {
    let above = mounts.lines().filter_map(parse).filter(|mount| folder.starts_with(&mount.mount));
    above.max_by_key(|mount| mount.mount.components().count())
}

/// One line: id, parent, device, root, mount, options, optional fields, `-`, kind, source, options.
fn parse(line: &str) -> Option<FileSystem> {
    let (before, after) = line.split_once(" - ")?;
    let mount = before.split(' ').nth(4)?;
    let mut after = after.split(' ');
    let (kind, source) = (after.next()?, after.next()?);
    Some(FileSystem {
        kind: kind.to_owned(),
        source: source.to_owned(),
        // Spaces are written as `\040`.
        mount: PathBuf::from(mount.replace("\\040", " ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:5 / /data rw - tmpfs tmpfs rw,size=1g
24 22 254:1 / /data/a\\040b rw shared:2 master:1 - xfs /dev/vdb rw
25 22 254:2 / /data/a\\040b rw - btrfs /dev/vdc rw
";

    #[test]
    fn the_nearest_and_latest_mount_holds_a_folder() {
        let kind = |folder: &str| find(MOUNTS, Path::new(folder)).unwrap().kind;
        assert_eq!(kind("/database"), "ext4");
        assert_eq!(kind("/data/x"), "tmpfs");
        assert_eq!(kind("/data/a b/c"), "btrfs");
        assert_eq!(find("", Path::new("/")), None);
    }

    #[test]
    fn memory_is_no_disk() {
        assert!(find(MOUNTS, Path::new("/data")).unwrap().is_in_memory());
        assert!(!find(MOUNTS, Path::new("/")).unwrap().is_in_memory());
        assert!(FileSystem::of(Path::new("/proc/self")).is_ok_and(|found| found.kind == "proc"));
    }
}
