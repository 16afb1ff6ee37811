//! Which core has which log. Scope: per process, on the admin thread.
//! Owns: the place of every log of this node, from recovery on.
//! Invariants: a log is given to one core at a time; one is made anew only when recovery found none of its name and
//! incarnation; a log is deleted only when its stream was deleted by name and incarnation, or lives on under a later one;
//! a log that recovery refused is left as it is.
//! Not here: recovery and engines (`turn`), which core leads a shard (`agent::cores`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use felix_logstore::engine::Reservations;
use felix_logstore::id::{Run, ShardKey};
use felix_logstore::names::SHARDS;
use felix_wire::id::{CoreId, Incarnation, ShardIndex};

use crate::snapshot::{LogOrder, LogRole, Owner, RecoveredVolume, Resource, Routes, StreamName, log_key};
use crate::store::{LogSource, VolumeStart};

/// Carries orders about logs to the cores: for each core in the order given, and before routes that are sent later.
pub trait CarriesOrders {
    /// Sends `order` to `core`.
    fn order(&mut self, core: CoreId, order: LogOrder);
}

/// Where a log is.
enum Place {
    /// Open on a core, or on its way there.
    At { volume: u16, core: CoreId },
    /// On its way from one core to another.
    Leaving { to: CoreId },
    /// On no core: found by recovery and not asked for yet, or given away.
    Held { volume: u16, source: LogSource },
    /// Its files are being removed.
    Deleting,
}

/// See the module.
pub struct LogBook {
    roots: Vec<PathBuf>,
    boot: [u8; 16],
    up: bool,
    places: BTreeMap<ShardKey, Place>,
    refused: BTreeMap<ShardKey, String>,
    /// Volumes that are too full for writes, each with the cores that say so.
    full: BTreeMap<u16, BTreeSet<CoreId>>,
}

impl LogBook {
    /// For volumes at `roots`; without any, durable streams are not served.
    pub fn new(roots: Vec<PathBuf>, boot: [u8; 16]) -> LogBook {
        let up = roots.is_empty();
        LogBook { roots, boot, up, places: BTreeMap::new(), refused: BTreeMap::new(), full: BTreeMap::new() }
    }

    /// The folders of the volumes.
    pub fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    /// Whether it is known what the volumes hold.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Why a log cannot be opened here before somebody does something about it and starts the broker again.
    pub fn obstacle(&self, key: ShardKey) -> Option<Cow<'static, str>> {
        if self.roots.is_empty() {
            return Some("it has no storage_dir and no data_dir".into());
        }
        let why = self.refused.get(&key)?;
        Some(format!("{why}; `felix-broker inspect log` of its storage_dir shows more").into())
    }

    /// Logs that recovery refused.
    pub fn refused(&self) -> usize {
        self.refused.len()
    }

    /// Logs on this node that no stream of the catalog names.
    pub fn unclaimed(&self) -> usize {
        self.places.values().filter(|place| matches!(place, Place::Held { .. })).count()
    }

    /// Recovery has ended: what every core is to open its engines with, in core order. `entropy` gives random numbers.
    pub fn recovered(
        &mut self,
        volumes: Vec<RecoveredVolume>,
        cores: u16,
        mut entropy: impl FnMut() -> u64,
    ) -> Vec<Vec<VolumeStart>> {
        let runs: Vec<_> = volumes.iter().map(|volume| (volume.run, Reservations::default())).collect();
        for (volume, found) in (0..).zip(volumes) {
            for (key, why) in found.refused {
                tracing::error!("{why}; its shard is not served, its files stay as they are");
                self.refused.insert(key, why);
            }
            for state in found.logs {
                let key = state.key;
                let place = Place::Held { volume, source: LogSource::Recovered(Box::new(state)) };
                if self.places.insert(key, place).is_some() {
                    let why = format!("log {key} is on two volumes");
                    tracing::error!("{why}; its shard is not served");
                    self.refused.insert(key, why);
                }
            }
        }
        self.up = true;
        let mut start = |(run, reservations): &(Run, Reservations)| VolumeStart {
            run: *run,
            boot: self.boot,
            entropy: entropy(),
            reservations: reservations.clone(),
        };
        (0..cores).map(|_| runs.iter().map(&mut start).collect()).collect()
    }

    /// Every durable shard that is led here gets its logs on the core that leads it. To be called before the routes are
    /// sent.
    pub fn follow(&mut self, routes: &Routes, orders: &mut impl CarriesOrders) {
        for route in routes.iter().filter(|route| route.is_durable()) {
            for (index, owner) in (0..).zip(&route.owners) {
                for key in route.log_keys(ShardIndex(index)) {
                    self.delete_earlier(key, orders);
                    if let Owner::Here { core, .. } = owner {
                        self.place(key, *core, orders);
                    }
                }
            }
        }
    }

    /// The control plane said that this life of a durable stream, or of a cache, of so many shards is over.
    pub fn ended(
        &mut self,
        resource: Resource,
        name: &StreamName,
        (incarnation, shards): (Incarnation, u32),
        orders: &mut impl CarriesOrders,
    ) {
        for shard in (0..shards).map(ShardIndex) {
            for role in LogRole::of(resource) {
                self.delete(log_key(*role, name, incarnation, shard), orders);
            }
        }
    }

    /// The shard of a log is led by a core.
    fn place(&mut self, key: ShardKey, core: CoreId, orders: &mut impl CarriesOrders) {
        if self.obstacle(key).is_some() {
            return;
        }
        let open = |volume, source| LogOrder::Open { key, volume, source };
        let (volume, order) = match self.places.remove(&key) {
            None => (self.volume_for(key), Some(open(self.volume_for(key), LogSource::New))),
            Some(Place::Held { volume, source }) => (volume, Some(open(volume, source))),
            Some(Place::At { volume, core: at }) if at == core => (volume, None),
            Some(Place::At { core: at, .. }) => {
                orders.order(at, LogOrder::Release { key });
                self.places.insert(key, Place::Leaving { to: core });
                return;
            }
            Some(Place::Leaving { .. }) => {
                self.places.insert(key, Place::Leaving { to: core });
                return;
            }
            Some(Place::Deleting) => {
                self.places.insert(key, Place::Deleting);
                return;
            }
        };
        self.places.insert(key, Place::At { volume, core });
        if let Some(order) = order {
            orders.order(core, order);
        }
    }

    /// A core gave a log away.
    pub fn released(
        &mut self,
        key: ShardKey,
        volume: u16,
        source: LogSource,
        orders: &mut impl CarriesOrders,
    ) {
        match self.places.remove(&key) {
            Some(Place::Leaving { to: core }) => {
                self.places.insert(key, Place::At { volume, core });
                orders.order(core, LogOrder::Open { key, volume, source });
            }
            Some(Place::Deleting) => {
                self.places.insert(key, Place::Deleting);
                orders.order(CoreId(0), LogOrder::Delete { key, volume, source });
            }
            _ => {
                self.places.insert(key, Place::Held { volume, source });
            }
        }
    }

    /// The stream of a log was deleted.
    fn delete(&mut self, key: ShardKey, orders: &mut impl CarriesOrders) {
        let (core, volume, source) = match self.places.remove(&key) {
            Some(Place::Held { volume, source }) => (CoreId(0), volume, source),
            Some(Place::At { volume, core }) => (core, volume, LogSource::New),
            Some(Place::Leaving { .. } | Place::Deleting) => {
                self.places.insert(key, Place::Deleting);
                return;
            }
            None => return,
        };
        self.places.insert(key, Place::Deleting);
        orders.order(core, LogOrder::Delete { key, volume, source });
    }

    /// The files of a log are gone.
    pub fn deleted(&mut self, key: ShardKey) {
        self.places.remove(&key);
    }

    /// A core refuses writes to a volume for want of space, or takes them again. True when that is news: it is said once for
    /// all cores.
    pub fn space(&mut self, core: CoreId, volume: u16, writes: bool) -> bool {
        let cores = self.full.entry(volume).or_default();
        let before = !cores.is_empty();
        if writes {
            cores.remove(&core);
        } else {
            cores.insert(core);
        }
        let folder = self.roots.get(usize::from(volume)).map(|root| root.display().to_string());
        let now = !cores.is_empty();
        match (before, now) {
            (false, true) => {
                tracing::error!(folder, "the volume is nearly full: writes to durable streams are refused");
            }
            (true, false) => tracing::info!(folder, "there is space again: writes go on"),
            _ => {}
        }
        before != now
    }

    /// The catalog names this life of a stream's shard: logs of earlier lives that nobody has opened can go.
    fn delete_earlier(&mut self, key: ShardKey, orders: &mut impl CarriesOrders) {
        let first = ShardKey { incarnation: Incarnation(0), ..key };
        let earlier: Vec<ShardKey> = self
            .places
            .range(first..key)
            .filter(|(_, place)| matches!(place, Place::Held { .. }))
            .map(|(key, _)| *key)
            .collect();
        for key in earlier {
            self.delete(key, orders);
        }
    }

    /// New logs are spread over the volumes by their names; where one is made it stays.
    fn volume_for(&self, key: ShardKey) -> u16 {
        let volumes = u128::try_from(self.roots.len().max(1)).unwrap_or(1);
        u16::try_from(key.name % volumes).unwrap_or(0)
    }
}

/// The kernel's boot id: another one means that what was not synced is gone.
pub fn boot_id() -> std::io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let wrong = || std::io::Error::new(std::io::ErrorKind::InvalidData, "the boot id is not a UUID");
    u128::from_str_radix(&digits, 16).map(u128::to_be_bytes).map_err(|_| wrong())
}

/// Makes the directories of the volumes and gives their paths.
///
/// # Errors
/// The first one that cannot be made or looked at.
pub fn make_roots(dirs: &[PathBuf]) -> Result<Vec<PathBuf>, (PathBuf, std::io::Error)> {
    let make = |dir: &PathBuf| {
        let made = std::fs::create_dir_all(dir).and_then(|()| std::fs::canonicalize(dir));
        made.map_err(|error| (dir.clone(), error))
    };
    dirs.iter().map(make).collect()
}

/// Remembers in the data folder which folders hold logs, so that one that is missing or empty is not taken for a new one:
/// its logs would begin anew, at offsets that were acknowledged.
#[derive(Debug, Default)]
pub struct KnownRoots {
    file: Option<PathBuf>,
}

impl KnownRoots {
    /// Kept in `data_dir`; without one nothing is remembered.
    pub fn new(data_dir: Option<&Path>) -> KnownRoots {
        KnownRoots { file: data_dir.map(|dir| dir.join("storage-folders")) }
    }

    /// The data folder, by the name that the folders of the volumes have.
    fn base(&self) -> PathBuf {
        let folder = self.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned())
    }

    /// Refuses a start without a folder that had logs.
    ///
    /// # Errors
    /// Says which folder is missing and what to do.
    pub fn check(&self, roots: &[PathBuf]) -> Result<(), String> {
        let Some(file) = &self.file else { return Ok(()) };
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(format!("{}: {error}", file.display())),
        };
        let anew = format!("Remove {} to begin with empty logs", file.display());
        for known in text.lines().filter(|line| !line.is_empty()).map(|line| self.base().join(line)) {
            let folder = known.display();
            if !roots.contains(&known) {
                return Err(format!("{folder} has logs and is not in storage_dir any more. {anew}"));
            }
            if !known.join(SHARDS).is_dir() {
                return Err(format!("{folder} had logs and is empty now: is its drive mounted? {anew}"));
            }
        }
        Ok(())
    }

    /// From now on these folders have logs.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remember(&self, roots: &[PathBuf]) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        // Those inside the data folder are named from there, so that it can be moved as a whole.
        let base = self.base();
        let named = |root: &PathBuf| format!("{}\n", root.strip_prefix(&base).unwrap_or(root).display());
        let lines: Vec<String> = roots.iter().map(named).collect();
        let text = lines.concat();
        // A start on a full drive must not need space for what is there already.
        if std::fs::read(file).is_ok_and(|there| there == text.as_bytes()) {
            return Ok(());
        }
        super::ready_file::write_private(file, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_volume_is_told_once_for_all_cores() {
        let mut logs = LogBook::new(vec!["/a".into(), "/b".into()], [0; 16]);
        let told = [(0, 0, false), (1, 0, false), (1, 1, false), (0, 0, true), (1, 0, true), (1, 1, true)];
        let news = told.map(|(core, volume, writes)| logs.space(CoreId(core), volume, writes));
        assert_eq!(news, [true, false, true, false, true, true]);
    }

    #[test]
    fn a_folder_that_had_logs_is_not_taken_for_a_new_one() {
        let data = tempfile::tempdir().unwrap();
        let root = data.path().join("log");
        std::fs::create_dir_all(root.join(SHARDS)).unwrap();
        let known = KnownRoots::new(Some(data.path()));
        known.check(std::slice::from_ref(&root)).expect("nothing is known yet");
        known.remember(std::slice::from_ref(&root)).unwrap();
        known.check(std::slice::from_ref(&root)).expect("it is there");
        // The whole data folder may be moved.
        let moved = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(moved.path().join("log").join(SHARDS)).unwrap();
        std::fs::copy(data.path().join("storage-folders"), moved.path().join("storage-folders")).unwrap();
        let there = KnownRoots::new(Some(moved.path()));
        there.check(&[moved.path().join("log")]).expect("it is the one that was remembered");
        let elsewhere = data.path().join("other");
        let error = known.check(&[elsewhere]).unwrap_err();
        assert!(error.contains("not in storage_dir any more"), "{error}");
        std::fs::remove_dir(root.join(SHARDS)).unwrap();
        let error = known.check(std::slice::from_ref(&root)).unwrap_err();
        assert!(error.contains("is empty now: is its drive mounted?"), "{error}");
        KnownRoots::new(None).check(&[root]).expect("without a data folder nothing is remembered");
    }
}
