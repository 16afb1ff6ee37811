//! The whole of a recovery, in order. Scope: functions.
//! Invariants: the slot that says where every log stands is durable before any older slot or file goes that says something
//! else; what says nothing goes before it when it needs the space, so a start needs none that is free; the lock of the volume is
//! held from the first operation on.
//! Not here: the steps themselves.

use std::collections::BTreeMap;
use std::rc::Rc;

use felix_runtime::file::{DiskError, DiskPath, Entry, EntryKind, FileId, LockKind, OpenFlags, OpenMode};
use felix_wire::id::CoreId;
use futures::StreamExt;

use super::evidence::{Evidence, Known};
use super::shard::{self, Found, Setting};
use super::slots::{SlotRead, read_slot};
use super::{Recovered, RecoveryConfig, RecoveryError, Refusal, Refused};
use crate::checksum::Epoch;
use crate::commit::slot::{RECOVERY_CORE, ROUNDS_AT};
use crate::commit::{Mark, MarkKind, Round, SlotHead};
use crate::id::{Place, RoundNumber, Run, SegmentSeq, ShardKey};
use crate::limits::BLOCK;
use crate::log::LogState;
use crate::names;
use crate::script::Desk;

/// Logs recovered at once.
const LOGS_AT_ONCE: usize = 32;
/// Marks of one round of the slot that is left.
const MARKS_PER_ROUND: usize = 4_096;

pub(super) async fn recover(desk: &Desk, config: RecoveryConfig) -> Result<Recovered, RecoveryError> {
    let lock = take_lock(desk, &config).await?;
    let (files, slots): (Vec<FileId>, Vec<SlotRead>) = read_slots(desk, &config).await?.into_iter().unzip();
    let files = Rc::new(files);
    let mut evidence = Evidence::gather(&slots);
    let setting = Setting {
        desk: desk.clone(),
        volume: config.volume,
        wait: config.lock_wait,
        boot: config.boot,
        rebooted: evidence.boot.is_some_and(|boot| boot != config.boot),
        slots: files.clone(),
    };
    let (keys, mut refused) = find_logs(desk, &config, &evidence).await?;
    for key in &keys {
        evidence.logs.entry(*key).or_default();
    }
    let mut found = Vec::new();
    let work = keys.iter().filter_map(|key| evidence.logs.get_key_value(key));
    let work = work.filter(|(_, known)| !known.deleted);
    let mut running = futures::stream::iter(work)
        .map(|(key, known)| shard::recover(&setting, *key, known))
        .buffer_unordered(LOGS_AT_ONCE);
    while let Some(result) = running.next().await {
        match result {
            Ok(log) => found.push(log),
            Err(refusal) => refused.push(refusal),
        }
    }
    drop(running);
    found.sort_by_key(|found| found.state.key);
    refused.sort_by_key(|refused| refused.key);
    let named = slots.iter().filter_map(|slot| names::run_of_slot(slot.path.name())).map(|run| run.0).max();
    let run = Run(evidence.run.max(named.unwrap_or(0)) + 1);
    let marks = marks(&found, &refused, &evidence, &keys);
    let mut old: Vec<(FileId, DiskPath)> =
        files.iter().copied().zip(slots.iter().map(|slot| slot.path.clone())).collect();
    match write_slot(desk, &config, run, &marks).await {
        Err(RecoveryError::Disk { error: DiskError::NoSpace, .. }) => {
            if refused.is_empty() {
                old = remove_unused(desk, &config, old, &unused(&slots)).await?;
            }
            remove_pool(desk, &config).await?;
            remove_deleted(desk, &config, &evidence, &keys).await?;
            write_slot(desk, &config, run, &marks).await?;
        }
        written => written?,
    }
    remove_deleted(desk, &config, &evidence, &keys).await?;
    remove_slots(desk, &config, old, &refused).await?;
    remove_pool(desk, &config).await?;
    remove_leftovers(desk, &found).await;
    let torn =
        found.iter().filter(|found| found.torn).map(|found| (found.state.key, found.state.end)).collect();
    let logs: Vec<LogState> = found.into_iter().map(|found| found.state).collect();
    Ok(Recovered { run, lock, logs, refused, torn })
}

fn at(path: &DiskPath) -> impl Fn(DiskError) -> RecoveryError + use<> {
    let path = path.clone();
    move |error| match error {
        DiskError::Locked => RecoveryError::Locked { path: path.clone() },
        error => RecoveryError::Disk { path: path.clone(), error },
    }
}

/// Makes the directories and locks the volume.
async fn take_lock(desk: &Desk, config: &RecoveryConfig) -> Result<FileId, RecoveryError> {
    let path = names::top(config.volume, names::LOCK);
    let flags = OpenFlags::plain(OpenMode::Create);
    let (lock, _) = desk.open(path.clone(), flags).await.map_err(at(&path))?;
    desk.lock(lock, LockKind::Exclusive, config.lock_wait).await.map_err(at(&path))?;
    for name in [names::SLOTS, names::POOL, names::SHARDS] {
        let dir = names::top(config.volume, name);
        desk.make_dir_again(dir.clone()).await.map_err(at(&dir))?;
    }
    let root = DiskPath::root(config.volume);
    desk.sync_dir(root.clone()).await.map_err(at(&root))?;
    Ok(lock)
}

async fn read_slots(desk: &Desk, config: &RecoveryConfig) -> Result<Vec<(FileId, SlotRead)>, RecoveryError> {
    let dir = names::top(config.volume, names::SLOTS);
    let mut slots = Vec::new();
    for entry in desk.list(dir.clone()).await.map_err(at(&dir))? {
        let ours = entry.kind == EntryKind::File && names::run_of_slot(&entry.name).is_some();
        if let (true, Ok(path)) = (ours, dir.join(&entry.name)) {
            slots.push(read_slot(desk, path, config.lock_wait).await?);
        }
    }
    Ok(slots)
}

/// Logs with a directory, and refusals for those that should have one.
async fn find_logs(
    desk: &Desk,
    config: &RecoveryConfig,
    evidence: &Evidence,
) -> Result<(Vec<ShardKey>, Vec<Refused>), RecoveryError> {
    let dir = names::top(config.volume, names::SHARDS);
    let entries = desk.list(dir.clone()).await.map_err(at(&dir))?;
    let directories = entries.iter().filter(|entry| entry.kind == EntryKind::Directory);
    let (unmade, made): (Vec<&Entry>, Vec<&Entry>) =
        directories.partition(|entry| names::is_new_shard(&entry.name));
    for path in unmade.iter().filter_map(|entry| dir.join(&entry.name).ok()) {
        desk.remove_dir(path.clone()).await.map_err(at(&path))?;
    }
    let keys: Vec<ShardKey> = made.iter().filter_map(|entry| names::shard_of(&entry.name)).collect();
    let unmarked = |key: &&ShardKey| evidence.logs.get(*key).is_none_or(|known| known.mark.is_none());
    for key in keys.iter().filter(unmarked) {
        make_again(desk, config, *key).await?;
    }
    // What is written down as there must be there after a power loss: the process that made it may not have come to this.
    desk.sync_dir(dir.clone()).await.map_err(at(&dir))?;
    let refused = evidence.without_directory(&keys).map(|key| Refused {
        key,
        path: names::shard(config.volume, key),
        byte: 0,
        why: Refusal::DirectoryMissing,
    });
    let refused = refused.collect();
    Ok((keys, refused))
}

/// Makes the directory of a log again, of which nothing is known, if nothing is in it: the sync that had to store it may have
/// failed, and no later one stores it. There is one under the name at every moment.
async fn make_again(desk: &Desk, config: &RecoveryConfig, key: ShardKey) -> Result<(), RecoveryError> {
    let dir = names::shard(config.volume, key);
    if !desk.list(dir.clone()).await.map_err(at(&dir))?.is_empty() {
        return Ok(());
    }
    let new = names::new_shard(config.volume, key);
    desk.make_dir(new.clone()).await.map_err(at(&new))?;
    desk.rename(new, dir.clone()).await.map_err(at(&dir))
}

/// What the slot says that recovery leaves: where each log stands, and which are deleted but may still be named.
fn marks(found: &[Found], refused: &[Refused], evidence: &Evidence, keys: &[ShardKey]) -> Vec<Mark> {
    let states = found.iter().map(|found| mark_of(&found.state));
    let known = |key: &ShardKey| evidence.logs.get(key).and_then(|known| known.mark);
    let kept = refused.iter().filter_map(|refused| known(&refused.key));
    let deleted = |(key, known): (&ShardKey, &Known)| {
        let mark = known
            .mark
            .filter(|_| known.deleted && (keys.contains(key) || !known.pieces.is_empty() || known.listed));
        mark.map(|mark| Mark { kind: MarkKind::Deleted, ..mark })
    };
    states.chain(kept).chain(evidence.logs.iter().filter_map(deleted)).collect()
}

fn mark_of(state: &LogState) -> Mark {
    let last = state.segments.last();
    Mark {
        kind: MarkKind::State,
        next: state.next,
        key: state.key,
        lineage: state.lineage,
        lineage_base: state.end,
        start: state.start,
        end: state.end,
        ceiling: state.ceiling,
        place: last.map_or(Place { segment: SegmentSeq(0), byte: 0 }, |last| Place {
            segment: last.end.segment,
            byte: last.end.byte,
        }),
        newest_ms: last.map_or(0, |last| last.end.newest_ms),
        checksum: last.map_or(0, |last| last.end.checksum),
        policy: state.policy,
    }
}

/// Writes the slot with the rounds first and the head last, so that it counts only when it is whole. When that fails, nothing
/// of it stays.
async fn write_slot(
    desk: &Desk,
    config: &RecoveryConfig,
    run: Run,
    marks: &[Mark],
) -> Result<(), RecoveryError> {
    let path = names::recovered(config.volume, run);
    let disk = at(&path);
    let (file, _) = desk.open(path.clone(), OpenFlags::plain(OpenMode::CreateNew)).await.map_err(&disk)?;
    let written = write_rounds(desk, config, (run, file), marks).await;
    desk.close(file).await;
    if written.is_err() {
        let _ = desk.unlink(path.clone()).await;
    }
    written.map_err(&disk)?;
    let dir = path.parent();
    desk.sync_dir(dir.clone()).await.map_err(at(&dir))
}

async fn write_rounds(
    desk: &Desk,
    config: &RecoveryConfig,
    (run, file): (Run, FileId),
    marks: &[Mark],
) -> Result<(), DiskError> {
    let epoch = Epoch(config.entropy ^ run.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut chunks: Vec<&[Mark]> = marks.chunks(MARKS_PER_ROUND).collect();
    if chunks.is_empty() {
        chunks.push(&[]);
    }
    let mut byte = ROUNDS_AT;
    for (index, chunk) in chunks.iter().enumerate() {
        let round = Round {
            number: RoundNumber(index as u64 + 1),
            live_from: RoundNumber(1),
            clean: false,
            prior: Vec::new(),
            marks: chunk.to_vec(),
            pieces: Vec::new(),
        };
        desk.write_bytes(file, byte, &round.encode_meta(epoch)).await?;
        byte += round.total_len() as u64;
    }
    desk.sync(file).await?;
    let head = SlotHead {
        epoch,
        run,
        boot: config.boot,
        core: RECOVERY_CORE,
        number: 0,
        size_bytes: byte.next_multiple_of(BLOCK),
        first_round: 1,
    };
    desk.write_bytes(file, 0, &head.encode()).await?;
    desk.sync(file).await
}

/// Which slots hold nothing that is needed: they were never written, or every round of theirs is older than the first that
/// is needed in their run and core.
fn unused(slots: &[SlotRead]) -> Vec<bool> {
    let mut live: BTreeMap<(Run, CoreId), RoundNumber> = BTreeMap::new();
    for slot in slots {
        let Some(head) = slot.head else { continue };
        let from = live.entry((head.run, head.core)).or_insert(RoundNumber(0));
        *from = slot.rounds.iter().map(|round| round.round.live_from).max().unwrap_or(*from).max(*from);
    }
    let needed = |slot: &SlotRead| {
        let from = slot.head.and_then(|head| live.get(&(head.run, head.core)));
        slot.damaged || slot.rounds.iter().any(|round| from.is_none_or(|from| round.round.number >= *from))
    };
    slots.iter().map(|slot| !needed(slot)).collect()
}

/// Removes the slots of `old` that are unused; gives the others.
async fn remove_unused(
    desk: &Desk,
    config: &RecoveryConfig,
    old: Vec<(FileId, DiskPath)>,
    unused: &[bool],
) -> Result<Vec<(FileId, DiskPath)>, RecoveryError> {
    let mut kept = Vec::new();
    for ((file, path), unused) in old.into_iter().zip(unused) {
        if !unused {
            kept.push((file, path));
            continue;
        }
        desk.close(file).await;
        desk.unlink(path.clone()).await.map_err(at(&path))?;
    }
    let dir = names::top(config.volume, names::SLOTS);
    desk.sync_dir(dir.clone()).await.map_err(at(&dir))?;
    Ok(kept)
}

/// Removes the files of deleted logs.
async fn remove_deleted(
    desk: &Desk,
    config: &RecoveryConfig,
    evidence: &Evidence,
    keys: &[ShardKey],
) -> Result<(), RecoveryError> {
    for key in keys.iter().filter(|key| evidence.logs.get(*key).is_some_and(|known| known.deleted)) {
        let dir = names::shard(config.volume, *key);
        let entries = match desk.list(dir.clone()).await {
            Err(DiskError::Missing) => continue,
            entries => entries.map_err(at(&dir))?,
        };
        for entry in entries {
            if let Ok(path) = dir.join(&entry.name) {
                desk.unlink(path.clone()).await.map_err(at(&path))?;
            }
        }
        desk.remove_dir(dir.clone()).await.map_err(at(&dir))?;
        desk.sync_dir(dir.parent()).await.map_err(at(&dir))?;
    }
    Ok(())
}

/// Removes the slots before this recovery's. When a log is refused, all stay: what they hold of it may be wanted.
async fn remove_slots(
    desk: &Desk,
    config: &RecoveryConfig,
    old: Vec<(FileId, DiskPath)>,
    refused: &[Refused],
) -> Result<(), RecoveryError> {
    for (file, path) in old {
        desk.close(file).await;
        if refused.is_empty() {
            desk.unlink(path.clone()).await.map_err(at(&path))?;
        }
    }
    let dir = names::top(config.volume, names::SLOTS);
    desk.sync_dir(dir.clone()).await.map_err(at(&dir))
}

/// Removes the files that waited for their next use.
async fn remove_pool(desk: &Desk, config: &RecoveryConfig) -> Result<(), RecoveryError> {
    let pool = names::top(config.volume, names::POOL);
    for entry in desk.list(pool.clone()).await.map_err(at(&pool))? {
        if let Ok(path) = pool.join(&entry.name) {
            desk.unlink(path.clone()).await.map_err(at(&path))?;
        }
    }
    desk.sync_dir(pool.clone()).await.map_err(at(&pool))
}

/// Removes segments that are no part of their log any more. What cannot be removed is found again at the next start.
async fn remove_leftovers(desk: &Desk, found: &[Found]) {
    for found in found.iter().filter(|found| !found.leftovers.is_empty()) {
        for path in &found.leftovers {
            let _ = desk.unlink(path.clone()).await;
        }
        if let Some(first) = found.leftovers.first() {
            let _ = desk.sync_dir(first.parent()).await;
        }
    }
}
