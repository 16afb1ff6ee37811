//! Which streams and caches the logs of a volume are of: a file beside the logs, for people who look at them, since logs are
//! named by hashes. Scope: per process, on the admin thread.
//! Owns: the names that are known, and the one write that is under way.
//! Invariants: nothing is decided by the file; a name counts only for a log whose hash it has; the file is written whole
//! and is bounded, and a disk that does not take it holds up nothing.
//! Not here: showing it (`inspect`).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use felix_logstore::id::ShardKey;
use felix_wire::control::{NameKind, check_name};
use felix_wire::id::{Incarnation, ShardIndex};
use tokio::task::JoinHandle;

use super::ready_file;
use crate::snapshot::{LogRole, Resource, Routes, StreamName, log_key};

/// The file in the folder of a volume; hidden, so that it is none of the log's.
const FILE: &str = ".stream-names";
/// Streams and caches that are remembered, those that were deleted among them: their logs may be there still.
const NAMES_MAX: usize = 65_536;
/// Bytes read of a file: more than the longest names need.
const FILE_BYTES_MAX: u64 = NAMES_MAX as u64 * 512;
/// Widest stream there is.
const SHARDS_MAX: u32 = 65_536;
/// Shards whose hashes are compared when a file is read: it may say anything.
const HASHES_MAX: u64 = 4 << 20;

/// Streams and caches, and their widths.
type Names = BTreeMap<(StreamName, Resource), u32>;

/// What stands behind the width of a cache.
const CACHE: &str = "cache";

/// What a log is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOf {
    pub role: LogRole,
    /// Of the stream or cache.
    pub name: StreamName,
    pub shard: ShardIndex,
}

/// See the module.
pub struct LogNames {
    roots: Vec<PathBuf>,
    names: Names,
    /// Not written yet.
    changed: bool,
    writing: Option<JoinHandle<()>>,
}

impl LogNames {
    /// For volumes at `roots`; reads what an earlier process wrote there.
    pub fn new(roots: Vec<PathBuf>) -> LogNames {
        let names = roots.iter().flat_map(|root| read(root)).collect();
        LogNames { roots, names, changed: false, writing: None }
    }

    /// Learns the durable streams and caches of a snapshot.
    pub fn learn(&mut self, routes: &Routes) {
        if self.roots.is_empty() {
            return;
        }
        for route in routes.iter().filter(|route| route.is_durable()) {
            let name = (route.name.clone(), route.resource);
            let width = self.names.get(&name).copied();
            if width.is_none_or(|width| width < route.shards()) {
                self.names.insert(name, route.shards());
                self.changed = true;
            }
        }
        if self.names.len() > NAMES_MAX {
            let durable = routes.iter().filter(|route| route.is_durable());
            let there: BTreeSet<_> = durable.map(|route| (&route.name, route.resource)).collect();
            self.names.retain(|(name, resource), _| there.contains(&(name, *resource)));
            while self.names.len() > NAMES_MAX {
                self.names.pop_last();
            }
        }
    }

    /// Writes what is new, on a thread for such things; one write at a time.
    pub fn write(&mut self) {
        let busy = self.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        if busy || !std::mem::take(&mut self.changed) {
            return;
        }
        let (roots, text) = (self.roots.clone(), render(&self.names));
        self.writing = Some(tokio::task::spawn_blocking(move || {
            for root in roots {
                if let Err(error) = ready_file::write_private(&root.join(FILE), text.as_bytes()) {
                    tracing::debug!(%error, folder = %root.display(), "the names of streams were not written");
                }
            }
        }));
    }
}

/// What those of the logs are of whose hash is that of a name in the volume's file.
pub fn of_logs(root: &Path, keys: &[ShardKey]) -> BTreeMap<u128, LogOf> {
    let wanted: BTreeSet<u128> = keys.iter().map(|key| key.name).collect();
    let mut found = BTreeMap::new();
    let mut hashes = 0;
    for ((name, resource), width) in read(root) {
        let roles = LogRole::of(resource);
        hashes += u64::from(width) * roles.len() as u64;
        if hashes > HASHES_MAX {
            break;
        }
        for (shard, role) in
            (0..width).flat_map(|shard| roles.iter().map(move |role| (ShardIndex(shard), *role)))
        {
            let hash = log_key(role, &name, Incarnation(0), shard).name;
            if wanted.contains(&hash) {
                found.insert(hash, LogOf { role, name: name.clone(), shard });
            }
        }
    }
    found
}

fn render(names: &Names) -> String {
    let line = |((name, resource), width): (&(StreamName, Resource), &u32)| {
        let what = match resource {
            Resource::Stream => String::new(),
            Resource::Cache => format!(" {CACHE}"),
        };
        format!("{}/{}/{} {width}{what}\n", name.tenant, name.namespace, name.stream)
    };
    names.iter().map(line).collect()
}

/// The lines of the file that make sense; none when there is no such file.
fn read(root: &Path) -> Names {
    let mut bytes = Vec::new();
    let Ok(file) = std::fs::File::open(root.join(FILE)) else { return Names::new() };
    if file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).is_err() {
        return Names::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    text.lines().filter_map(parse).take(NAMES_MAX).collect()
}

fn parse(line: &str) -> Option<((StreamName, Resource), u32)> {
    let (path, width) = line.split_once(' ')?;
    let (width, resource) = match width.split_once(' ') {
        Some((width, CACHE)) => (width, Resource::Cache),
        Some(_) => return None,
        None => (width, Resource::Stream),
    };
    let [tenant, namespace, stream] = path.split('/').collect::<Vec<_>>()[..] else { return None };
    let kind = match resource {
        Resource::Stream => NameKind::Stream,
        Resource::Cache => NameKind::Cache,
    };
    let kinds = [NameKind::Tenant, NameKind::Namespace, kind];
    let good = |(kind, name): (NameKind, &str)| check_name(kind, name).is_ok();
    if !kinds.into_iter().zip([tenant, namespace, stream]).all(good) {
        return None;
    }
    let width = width.parse().ok().filter(|width| (1..=SHARDS_MAX).contains(width))?;
    let name = StreamName { tenant: tenant.into(), namespace: namespace.into(), stream: stream.into() };
    Some(((name, resource), width))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use felix_logstore::retention::Retention;
    use felix_wire::routing::KeyMapping;

    use super::*;
    use crate::snapshot::{Owner, StreamRoute, StreamUid};

    fn name(stream: &str) -> StreamName {
        StreamName { tenant: "t".into(), namespace: "n".into(), stream: stream.into() }
    }

    fn routes(streams: &[(&str, usize, bool)]) -> Routes {
        let route = |(uid, (stream, shards, durable)): (u64, &(&str, usize, bool))| {
            Arc::new(StreamRoute {
                resource: if stream.starts_with("cache") { Resource::Cache } else { Resource::Stream },
                uid: StreamUid(uid),
                name: name(stream),
                incarnation: Incarnation(9),
                mapping: KeyMapping::Modulo,
                log: durable.then(Retention::default),
                owners: vec![Owner::Nobody { reason: "moving" }; *shards],
            })
        };
        Routes::new(1, (0..).zip(streams).map(route), [Arc::from("t")])
    }

    #[tokio::test]
    async fn a_log_has_the_name_of_its_stream_or_cache_also_when_that_is_gone_or_was_of_an_earlier_process() {
        let folder = tempfile::tempdir().unwrap();
        let roots = vec![folder.path().to_owned()];
        for streams in
            [&[("orders", 4, true), ("events", 1, false), ("cache", 2, true)][..], &[("parcels", 2, true)]]
        {
            let mut names = LogNames::new(roots.clone());
            names.learn(&routes(streams));
            names.write();
            names.writing.take().expect("something is new").await.unwrap();
            names.learn(&routes(streams));
            names.write();
            assert!(names.writing.is_none(), "nothing is new");
        }
        let named = [
            (LogRole::Records, "orders", 3),
            (LogRole::Groups, "orders", 3),
            (LogRole::Records, "parcels", 0),
            (LogRole::Cache, "cache", 1),
            (LogRole::Counters, "cache", 0),
        ];
        let nameless = [
            (LogRole::Records, "events", 0),
            (LogRole::Records, "orders", 4),
            (LogRole::Cache, "orders", 0),
            (LogRole::Records, "cache", 0),
        ];
        let key = |(role, stream, shard): &(LogRole, &str, u32)| {
            log_key(*role, &name(stream), Incarnation(9), ShardIndex(*shard))
        };
        let keys: Vec<ShardKey> = named.iter().chain(&nameless).map(key).collect();
        let found = of_logs(folder.path(), &keys);
        assert_eq!(found.len(), named.len(), "{found:?}");
        for of in &named {
            let wanted = LogOf { role: of.0, name: name(of.1), shard: ShardIndex(of.2) };
            assert_eq!(found[&key(of).name], wanted);
        }
    }

    #[test]
    fn a_file_that_lies_or_is_garbage_names_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let key = log_key(LogRole::Records, &name("orders"), Incarnation(9), ShardIndex(0));
        let named = |text: &[u8]| {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            of_logs(folder.path(), &[key]).len()
        };
        assert_eq!(named(b"t/n/orders 1\n"), 1);
        for lie in [
            &b"t/n/other 1\n"[..],
            b"t/n/orders 0\n",
            b"t/n/orders 65537\n",
            b"t/n/orders\n",
            b"t/n/orders/x 1\n",
            b"t/n/orders 1 cache\n",
            b"t/n/orders 1 stream\n",
            b"t/n/ord\x1bers 1\n",
            b"\xff\xfe\0\0",
            b"",
        ] {
            assert_eq!(named(lie), 0, "{lie:?}");
        }
        // A damaged line takes no other one with it.
        assert_eq!(named(b"\xff\nt/n/orders 1"), 1);
        assert!(of_logs(&folder.path().join("nowhere"), &[key]).is_empty());
    }
}
