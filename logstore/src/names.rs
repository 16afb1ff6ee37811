//! What the files of a volume are called. Scope: functions.
//! Invariants: a name says all that is needed to know whose file it is; no text of a client is in one.
//! Not here: what is in them.

use felix_runtime::file::{BadPath, DiskPath, VolumeId};
use felix_wire::id::{CoreId, Incarnation};

use crate::id::{Run, SegmentSeq, ShardKey};

/// The file whose lock says that a process uses the volume.
pub const LOCK: &str = "felix.lock";
/// Directory of commit slots.
pub const SLOTS: &str = "slots";
/// Directory of segments that wait for their next use.
pub const POOL: &str = "pool";
/// Directory with a directory per log.
pub const SHARDS: &str = "shards";
/// Behind the name of a log whose directory is being made.
const NEW: &str = ".new";

/// Names are made of digits and dots only, so they are paths.
fn path(volume: VolumeId, text: &str) -> DiskPath {
    let made: Result<DiskPath, BadPath> = DiskPath::new(volume, text);
    made.expect("a name made of letters and digits")
}

/// A file or directory right below the root.
#[must_use]
pub fn top(volume: VolumeId, name: &'static str) -> DiskPath {
    path(volume, name)
}

/// A slot of a core; `index` tells its slots apart.
#[must_use]
pub fn slot(volume: VolumeId, run: Run, core: CoreId, index: u32) -> DiskPath {
    path(volume, &format!("{SLOTS}/r{:016x}-c{:04x}-{index:08x}.slot", run.0, core.0))
}

/// The name of a slot that can be neither freed nor used again.
#[must_use]
pub fn slot_aside(volume: VolumeId, run: Run, core: CoreId, index: u32) -> DiskPath {
    path(volume, &format!("{SLOTS}/r{:016x}-c{:04x}-{index:08x}.aside", run.0, core.0))
}

/// The slot that recovery leaves.
#[must_use]
pub fn recovered(volume: VolumeId, run: Run) -> DiskPath {
    path(volume, &format!("{SLOTS}/r{:016x}-recovered.slot", run.0))
}

/// The run in the name of a slot.
#[must_use]
pub fn run_of_slot(name: &str) -> Option<Run> {
    let digits = name.strip_prefix('r')?.get(..16)?;
    u64::from_str_radix(digits, 16).ok().map(Run)
}

/// A file of the pool.
#[must_use]
pub fn pooled(volume: VolumeId, run: Run, core: CoreId, number: u64) -> DiskPath {
    path(volume, &format!("{POOL}/r{:016x}-c{:04x}-{number:016x}.seg", run.0, core.0))
}

/// Directory of one log.
#[must_use]
pub fn shard(volume: VolumeId, key: ShardKey) -> DiskPath {
    path(volume, &format!("{SHARDS}/{key}"))
}

/// A directory that is to become the one of a log.
#[must_use]
pub fn new_shard(volume: VolumeId, key: ShardKey) -> DiskPath {
    path(volume, &format!("{SHARDS}/{key}{NEW}"))
}

/// Whether a directory was to become one of a log.
#[must_use]
pub fn is_new_shard(name: &str) -> bool {
    name.strip_suffix(NEW).is_some_and(|log| shard_of(log).is_some())
}

/// The log a directory belongs to.
#[must_use]
pub fn shard_of(name: &str) -> Option<ShardKey> {
    let (hash, incarnation) = name.split_once('-')?;
    if hash.len() != 32 || incarnation.len() != 16 {
        return None;
    }
    let name = u128::from_str_radix(hash, 16).ok()?;
    Some(ShardKey { name, incarnation: Incarnation(u64::from_str_radix(incarnation, 16).ok()?) })
}

/// A segment of a log.
#[must_use]
pub fn segment(volume: VolumeId, key: ShardKey, seq: SegmentSeq) -> DiskPath {
    path(volume, &format!("{SHARDS}/{key}/{:016x}.seg", seq.0))
}

/// The number of a segment, from its file name.
#[must_use]
pub fn segment_of(name: &str) -> Option<SegmentSeq> {
    let digits = name.strip_suffix(".seg").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(SegmentSeq)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_whose_files_they_are() {
        let volume = VolumeId(0);
        let key = ShardKey { name: u128::MAX - 3, incarnation: Incarnation(7) };
        assert_eq!(shard_of(shard(volume, key).name()), Some(key));
        assert_eq!(shard_of(new_shard(volume, key).name()), None);
        assert!(is_new_shard(new_shard(volume, key).name()) && !is_new_shard(shard(volume, key).name()));
        assert_eq!(segment_of(segment(volume, key, SegmentSeq(19)).name()), Some(SegmentSeq(19)));
        assert_eq!(run_of_slot(slot(volume, Run(5), CoreId(1), 2).name()), Some(Run(5)));
        assert_eq!(run_of_slot(recovered(volume, Run(6)).name()), Some(Run(6)));
        assert_eq!((shard_of("x"), segment_of("7.seg"), run_of_slot("rx")), (None, None, None));
    }
}
