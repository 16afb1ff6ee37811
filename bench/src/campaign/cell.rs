//! One cell of a campaign: a workload and the system it is sent to. Scope: plain values.
//! Owns: the rules that make a cell possible, and the settings of a broker that is started for it.
//! Invariants: a cell that passed `check` can be run; its name is good for a folder.
//! Not here: reading cells from a file (`file`), running them (`trial`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::CPUS_MAX;
use crate::shape::{Shape, ShapeError};

/// Longest name of a campaign or a cell.
const NAME_MAX: usize = 96;

/// What a cell's load is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum System {
    /// A broker.
    #[default]
    Broker,
    /// The least a server can do with the same transport: it keeps nothing.
    Sink,
}

/// What the load does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Publishes to a stream, and subscribes to it when there are readers.
    #[default]
    Publish,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    pub name: String,
    pub system: System,
    pub kind: Kind,
    pub shape: Shape,
    /// CPUs of a server that is started for the cell, as `felix dev --cores` takes them.
    pub server_cores: String,
    /// Settings of a broker that is started for the cell, beside its defaults.
    pub broker: BTreeMap<String, String>,
}

/// Why a cell cannot be.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum CellError {
    #[error("`{0}` is no name: 1 to {NAME_MAX} of a-z 0-9 . _ -, a letter or digit first")]
    Name(String),
    #[error("cell {cell}: {rule}")]
    Shape { cell: String, rule: String },
    #[error("cell {cell}: a sink keeps nothing, so it has no storage and no subscribers")]
    SinkKeepsNothing { cell: String },
    #[error("cell {cell}: a sink has one core, server_cores is {cores}")]
    SinkCores { cell: String, cores: String },
    #[error("cell {cell}: `{text}` is no list of CPUs such as 0,2-3")]
    Cores { cell: String, text: String },
    #[error("cell {cell}: the setting {setting} of the broker follows from the cell")]
    Setting { cell: String, setting: String },
}

/// Whether `name` may name a folder.
///
/// # Errors
/// It may not.
pub fn check_name(name: &str) -> Result<(), CellError> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if first && name.len() <= NAME_MAX && name.chars().all(good) {
        Ok(())
    } else {
        Err(CellError::Name(name.to_owned()))
    }
}

/// The numbers of a list such as `0,2-3`.
#[must_use]
pub fn parse_cores(text: &str) -> Option<Vec<usize>> {
    let mut found = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= CPUS_MAX {
            return None;
        }
        found.extend(first..=last);
    }
    Some(found)
}

impl Cell {
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), CellError> {
        check_name(&self.name)?;
        let cell = || self.name.clone();
        self.shape.check().map_err(|error| match error {
            ShapeError::Rule { rule, .. } => CellError::Shape { cell: cell(), rule },
            other => CellError::Shape { cell: cell(), rule: other.to_string() },
        })?;
        let text = &self.server_cores;
        let Some(cores) = parse_cores(text) else {
            return Err(CellError::Cores { cell: cell(), text: text.clone() });
        };
        if self.system == System::Sink {
            if self.shape.storage.is_durable() || self.shape.subscribers > 0 {
                return Err(CellError::SinkKeepsNothing { cell: cell() });
            }
            if cores.len() != 1 {
                return Err(CellError::SinkCores { cell: cell(), cores: text.clone() });
            }
        }
        let own = ["fsync", "cores", "data_dir", "storage_dir", "quic_bind", "metrics_bind"];
        if let Some(setting) = own.into_iter().find(|name| self.broker.contains_key(*name)) {
            return Err(CellError::Setting { cell: cell(), setting: setting.to_owned() });
        }
        Ok(())
    }

    /// The CPUs of the server.
    #[must_use]
    pub fn cores(&self) -> Vec<usize> {
        parse_cores(&self.server_cores).unwrap_or_default()
    }

    /// How long the server looks for work before it parks, microseconds, as settings say it: a sink does as its broker.
    #[must_use]
    pub fn spin_us(&self) -> &str {
        // A core that spins looks busy.
        self.broker.get("spin_us").map_or("0", String::as_str)
    }

    /// `key=value` of every setting of the broker that is not its default.
    #[must_use]
    pub fn settings(&self) -> Vec<String> {
        let mut settings = BTreeMap::from([
            ("mtu_upper_bound".to_owned(), self.shape.mtu.to_string()),
            ("spin_us".to_owned(), self.spin_us().to_owned()),
        ]);
        if let Some(mode) = self.shape.storage.fsync() {
            settings.insert("fsync".to_owned(), mode.to_owned());
        }
        settings.extend(self.broker.clone());
        settings.into_iter().map(|(key, value)| format!("{key}={value}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Storage;

    fn cell() -> Cell {
        Cell {
            name: "bulk".to_owned(),
            system: System::Broker,
            kind: Kind::Publish,
            shape: Shape::canonical(),
            server_cores: "0".to_owned(),
            broker: BTreeMap::new(),
        }
    }

    #[test]
    fn a_cell_that_cannot_be_is_refused_with_its_reason() {
        let sink = || Cell { system: System::Sink, ..cell() };
        let shape = |change: fn(&mut Shape)| {
            let mut shape = Shape::canonical();
            change(&mut shape);
            shape
        };
        cell().check().unwrap();
        sink().check().unwrap();
        let durable = Cell { shape: shape(|s| s.storage = Storage::FsyncOnCommit), ..sink() };
        assert!(matches!(durable.check(), Err(CellError::SinkKeepsNothing { .. })));
        let read = Cell { shape: shape(|s| s.subscribers = 1), ..sink() };
        assert!(matches!(read.check(), Err(CellError::SinkKeepsNothing { .. })));
        let wide = Cell { server_cores: "0-1".to_owned(), ..sink() };
        assert!(matches!(wide.check(), Err(CellError::SinkCores { .. })));
        let nowhere = Cell { server_cores: "3-1".to_owned(), ..cell() };
        assert!(matches!(nowhere.check(), Err(CellError::Cores { .. })));
        let empty = Cell { shape: shape(|s| s.inflight = 0), ..cell() };
        assert!(matches!(empty.check(), Err(CellError::Shape { rule, .. }) if rule.contains("inflight")));
        let own = Cell { broker: BTreeMap::from([("fsync".to_owned(), "none".to_owned())]), ..cell() };
        assert!(matches!(own.check(), Err(CellError::Setting { .. })));
        for name in ["", "../up", "A", "a/b", "-x", &"a".repeat(NAME_MAX + 1)] {
            assert!(matches!(check_name(name), Err(CellError::Name(_))), "{name}");
        }
    }

    #[test]
    fn settings_of_the_cell_go_over_those_of_a_measurement() {
        let broker = BTreeMap::from([("spin_us".to_owned(), "50".to_owned())]);
        let mut cell = Cell { broker, ..cell() };
        cell.shape.storage = Storage::FsyncPeriodic;
        assert_eq!(cell.settings(), ["fsync=periodic", "mtu_upper_bound=3872", "spin_us=50"]);
        assert_eq!(cell.spin_us(), "50");
        cell.broker.clear();
        assert_eq!((cell.spin_us(), &cell.settings()[2][..]), ("0", "spin_us=0"));
    }

    #[test]
    fn cores_are_listed_as_the_broker_lists_them() {
        assert_eq!(parse_cores("0,2-4"), Some(vec![0, 2, 3, 4]));
        for text in ["", "a", "1-", "2-1", "0-99999999"] {
            assert_eq!(parse_cores(text), None, "{text}");
        }
    }
}
