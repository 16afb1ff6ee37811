//! Names of files: a volume and a path below its root. Scope: values.
//! Invariants: a [`DiskPath`] never leads out of its volume, has no empty, hidden or dotted-away part, and every part is
//! plain ASCII, so it can be logged and compared byte by byte.
//! Not here: where a volume is mounted.

use std::fmt;

/// Bytes one part of a path may have.
const PART_BYTES_MAX: usize = 200;
/// Parts a path may have.
const PARTS_MAX: usize = 8;

/// One root directory on one file system. Numbered in the order in which volumes were opened, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u16);

/// A file or directory on a volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskPath {
    volume: VolumeId,
    /// Parts joined by `/`; nothing for the root.
    path: Box<str>,
}

/// The text is no path: a part is empty, too long, begins with a dot or has a byte other than ASCII letters, digits,
/// `.`, `-`, `_`; or there are too many parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a path on a volume")]
pub struct BadPath;

impl DiskPath {
    /// The directory of the volume itself.
    pub fn root(volume: VolumeId) -> DiskPath {
        DiskPath { volume, path: Box::from("") }
    }

    /// `path` is one to eight parts, joined by `/`.
    ///
    /// # Errors
    /// `BadPath` for everything else, an absolute path included.
    pub fn new(volume: VolumeId, path: &str) -> Result<DiskPath, BadPath> {
        if path.split('/').count() > PARTS_MAX || !path.split('/').all(is_part) {
            return Err(BadPath);
        }
        Ok(DiskPath { volume, path: Box::from(path) })
    }

    /// What is called `name` (one or more parts) in this directory.
    ///
    /// # Errors
    /// As [`DiskPath::new`].
    pub fn join(&self, name: &str) -> Result<DiskPath, BadPath> {
        if self.is_root() {
            DiskPath::new(self.volume, name)
        } else {
            DiskPath::new(self.volume, &format!("{}/{name}", self.path))
        }
    }

    /// The directory it is in; the root is in itself.
    pub fn parent(&self) -> DiskPath {
        let end = self.path.rfind('/').unwrap_or(0);
        DiskPath { volume: self.volume, path: Box::from(self.path.get(..end).unwrap_or_default()) }
    }

    /// Its last part; nothing for the root.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    pub fn is_root(&self) -> bool {
        self.path.is_empty()
    }

    /// Its parts joined by `/`; nothing for the root.
    pub fn as_str(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for DiskPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume {}:/{}", self.volume.0, self.path)
    }
}

fn is_part(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    !part.is_empty() && part.len() <= PART_BYTES_MAX && !part.starts_with('.') && part.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId(0);

    #[test]
    fn a_path_cannot_leave_its_volume() {
        for bad in [
            "",
            "/",
            "/etc",
            "a/",
            "a//b",
            "..",
            "a/../b",
            ".",
            "a/.b",
            "a\0",
            "ä",
            "a b",
            "1/2/3/4/5/6/7/8/9",
        ] {
            assert_eq!(DiskPath::new(VOLUME, bad), Err(BadPath), "{bad:?}");
        }
        let long = "x".repeat(PART_BYTES_MAX);
        assert!(DiskPath::new(VOLUME, &long).is_ok());
        assert_eq!(DiskPath::new(VOLUME, &format!("{long}x")), Err(BadPath));
        assert_eq!(DiskPath::root(VOLUME).join("../x"), Err(BadPath));
    }

    #[test]
    fn parents_and_names_undo_a_join() {
        let root = DiskPath::root(VOLUME);
        let dir = root.join("shards").expect("a name");
        let file = dir.join("7.log").expect("a name");
        assert_eq!((file.as_str(), file.name()), ("shards/7.log", "7.log"));
        assert_eq!((file.parent(), dir.parent(), root.parent()), (dir, root.clone(), root.clone()));
        assert_eq!(file, DiskPath::new(VOLUME, "shards/7.log").expect("the same"));
        assert!(root.is_root() && !file.is_root());
    }
}
