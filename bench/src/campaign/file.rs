//! Campaign files: TOML with a list of matrices, each of them multiplied out into cells. Scope: read once.
//! Owns: the form of the file, its bounds, the names of cells.
//! Invariants: an unknown key is an error; a matrix with an impossible cell is refused whole and names that cell; the
//! order of cells is that of the file, the last dimension changing first.
//! Not here: what makes a cell possible (`cell`), the order in which trials run (`run`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::cell::{Cell, CellError, Kind, System, check_name};
use crate::shape::{Acks, Keys, Landing, Shape, Storage};

/// Cells of one campaign.
const CELLS_MAX: usize = 512;
const TRIALS_MAX: u32 = 100;
/// Generators of one campaign.
const AGENTS_MAX: usize = 64;
/// From preparing the generators to their start.
const LEAD_S: f64 = 3.0;

/// A campaign that can be run.
#[derive(Debug, Clone, PartialEq)]
pub struct Campaign {
    pub name: String,
    /// Runs of each cell.
    pub trials: u32,
    /// CPU of the load, where no agents make it.
    pub client_cpu: usize,
    /// Folder on the disk that durable cells write to.
    pub data_dir: PathBuf,
    pub cells: Vec<Cell>,
    pub distributed: Option<Distributed>,
}

/// Generators on other machines, and where the broker is.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distributed {
    pub agents: Vec<SocketAddr>,
    /// File with the words that agents ask for.
    pub token_file: PathBuf,
    /// Ready file of a broker that runs already; without one it is started here for each trial, on loopback.
    #[serde(default)]
    pub ready_file: Option<PathBuf>,
    /// What the broker's certificate must be good for.
    #[serde(default = "default_server_name")]
    pub server_name: String,
    /// Seconds from asking the agents to their common start.
    #[serde(default = "default_lead")]
    pub lead_s: f64,
}

fn default_server_name() -> String {
    "localhost".to_owned()
}

fn default_lead() -> f64 {
    LEAD_S
}

/// Why there is no campaign.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{path}: {error}")]
    Read { path: PathBuf, error: std::io::Error },
    #[error("{path}: {reason}")]
    Parse { path: PathBuf, reason: String },
    #[error(transparent)]
    Cell(#[from] CellError),
    #[error("two cells are called {0}")]
    SameName(String),
    #[error("{found} cells, 1 to {CELLS_MAX} are allowed")]
    Cells { found: usize },
    #[error("trials is {0}, allowed are 1 to {TRIALS_MAX}")]
    Trials(u32),
    #[error("the setting {0} of the broker is no text, number or truth value")]
    Setting(String),
    #[error("{found} agents, 1 to {AGENTS_MAX} are allowed")]
    Agents { found: usize },
    #[error("lead_s is {0}, allowed are 0.5 to 60")]
    Lead(f64),
    #[error("cell {cell}: {why}")]
    NotDistributed { cell: String, why: &'static str },
}

/// One value, or each of several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "a value of the right kind, or a list of such values")]
enum Many<T> {
    One(T),
    Each(Vec<T>),
}

impl<T: Clone> Many<T> {
    fn values(this: Option<&Many<T>>, usual: T) -> Vec<T> {
        match this {
            None => vec![usual],
            Some(Many::One(value)) => vec![value.clone()],
            Some(Many::Each(values)) => values.clone(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCampaign {
    name: String,
    trials: Option<u32>,
    server_cores: Option<String>,
    client_cpu: Option<usize>,
    data_dir: Option<PathBuf>,
    warmup_s: Option<f64>,
    duration_s: Option<f64>,
    mtu: Option<u16>,
    /// A sink beside every shape in memory.
    #[serde(default)]
    with_sink: bool,
    #[serde(default)]
    broker: BTreeMap<String, toml::Value>,
    cells: Vec<RawCells>,
    distributed: Option<Distributed>,
}

/// One matrix.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCells {
    name: String,
    #[serde(default)]
    kind: Kind,
    system: Option<Many<System>>,
    storage: Option<Many<Storage>>,
    acks: Option<Many<Acks>>,
    record_bytes: Option<Many<u32>>,
    batch_records: Option<Many<u32>>,
    inflight: Option<Many<u32>>,
    connections: Option<Many<u32>>,
    streams: Option<Many<u32>>,
    shards: Option<Many<u32>>,
    keys: Option<Many<Keys>>,
    subscribers: Option<Many<u32>>,
    subscriptions: Option<Many<u32>>,
    idle: Option<Many<u32>>,
    landing: Option<Many<Landing>>,
    /// Batches per second; 0 is a closed loop.
    rate: Option<Many<f64>>,
    mtu: Option<Many<u16>>,
    server_cores: Option<Many<String>>,
    warmup_s: Option<f64>,
    duration_s: Option<f64>,
    #[serde(default)]
    broker: BTreeMap<String, toml::Value>,
}

impl Campaign {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// It is not there, is no campaign, or names a cell that cannot be.
    pub fn read(path: &Path) -> Result<Campaign, FileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| FileError::Read { path: path.to_owned(), error })?;
        Campaign::parse(path, &text)
    }

    /// Checks `text`, which is of `path`.
    ///
    /// # Errors
    /// As `read`.
    pub fn parse(path: &Path, text: &str) -> Result<Campaign, FileError> {
        let raw: RawCampaign = toml::from_str(text)
            .map_err(|error| FileError::Parse { path: path.to_owned(), reason: error.to_string() })?;
        let mut cells = Vec::new();
        for matrix in &raw.cells {
            multiply(&raw, matrix, &mut cells)?;
        }
        if raw.with_sink {
            add_sinks(&mut cells);
        }
        let campaign = Campaign {
            name: raw.name,
            trials: raw.trials.unwrap_or(3),
            client_cpu: raw.client_cpu.unwrap_or(1),
            data_dir: raw.data_dir.unwrap_or_else(|| PathBuf::from(".")),
            cells,
            distributed: raw.distributed,
        };
        campaign.check()?;
        Ok(campaign)
    }

    /// A campaign of one cell.
    ///
    /// # Errors
    /// The cell cannot be.
    pub fn of_one(
        cell: Cell,
        trials: u32,
        client_cpu: usize,
        data_dir: PathBuf,
    ) -> Result<Campaign, FileError> {
        let name = cell.name.clone();
        let campaign = Campaign { name, trials, client_cpu, data_dir, cells: vec![cell], distributed: None };
        campaign.check()?;
        Ok(campaign)
    }

    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), FileError> {
        check_name(&self.name)?;
        if !(1..=TRIALS_MAX).contains(&self.trials) {
            return Err(FileError::Trials(self.trials));
        }
        if self.cells.is_empty() || self.cells.len() > CELLS_MAX {
            return Err(FileError::Cells { found: self.cells.len() });
        }
        let mut names = BTreeSet::new();
        for cell in &self.cells {
            cell.check()?;
            if !names.insert(&cell.name) {
                return Err(FileError::SameName(cell.name.clone()));
            }
        }
        self.distributed.as_ref().map_or(Ok(()), |distributed| self.check_distributed(distributed))
    }

    fn check_distributed(&self, distributed: &Distributed) -> Result<(), FileError> {
        let found = distributed.agents.len();
        if found == 0 || found > AGENTS_MAX {
            return Err(FileError::Agents { found });
        }
        if !(0.5..=60.0).contains(&distributed.lead_s) {
            return Err(FileError::Lead(distributed.lead_s));
        }
        let running = distributed.ready_file.is_some();
        for cell in &self.cells {
            let refuse = |why| Err(FileError::NotDistributed { cell: cell.name.clone(), why });
            if running && cell.system == System::Sink {
                return refuse("a sink is started for its trial; with ready_file nothing is started");
            }
            if running && !cell.broker.is_empty() {
                return refuse("the settings of a broker that runs already are its own");
            }
            if cell.shape.warmup_s < 1.0 {
                return refuse(
                    "agents need 1 second of warm-up at least: they do not begin in the same microsecond",
                );
            }
        }
        Ok(())
    }

    /// Some durable cell writes to the disk.
    #[must_use]
    pub fn needs_disk(&self) -> bool {
        self.cells.iter().any(|cell| cell.shape.storage.is_durable())
    }

    /// Seconds that counted and warm-up windows take together.
    #[must_use]
    pub fn load_seconds(&self) -> f64 {
        let each = self.cells.iter().map(|cell| cell.shape.warmup_s + cell.shape.duration_s);
        f64::from(self.trials) * each.sum::<f64>()
    }
}

fn scalars(settings: &BTreeMap<String, toml::Value>) -> Result<BTreeMap<String, String>, FileError> {
    let text = |(key, value): (&String, &toml::Value)| match value {
        toml::Value::String(text) => Ok((key.clone(), text.clone())),
        toml::Value::Integer(number) => Ok((key.clone(), number.to_string())),
        toml::Value::Boolean(truth) => Ok((key.clone(), truth.to_string())),
        _ => Err(FileError::Setting(key.clone())),
    };
    settings.iter().map(text).collect()
}

/// A dimension of a matrix with the letters of its values in names.
struct Dimension {
    varies: bool,
    values: Vec<(String, Change)>,
}

/// What a value changes in a cell.
type Change = Box<dyn Fn(&mut Cell)>;

fn dimension<T: Clone + 'static>(
    values: Vec<T>,
    name: impl Fn(&T) -> String,
    set: impl Fn(&mut Cell, T) + Clone + 'static,
) -> Dimension {
    let varies = values.len() > 1;
    let change = |value: T| {
        let (label, set) = (name(&value), set.clone());
        let change: Change = Box::new(move |cell| set(cell, value.clone()));
        (label, change)
    };
    Dimension { varies, values: values.into_iter().map(change).collect() }
}

fn dimensions(raw: &RawCampaign, matrix: &RawCells) -> Vec<Dimension> {
    let usual = Shape::canonical();
    let count = |letter: &'static str| move |value: &u32| format!("{letter}{value}");
    let cores = raw.server_cores.clone().unwrap_or_else(|| "0".to_owned());
    vec![
        dimension(Many::values(matrix.system.as_ref(), System::Broker), tag, |c, v| c.system = v),
        dimension(Many::values(matrix.storage.as_ref(), Storage::Memory), tag, |c, v| c.shape.storage = v),
        dimension(Many::values(matrix.acks.as_ref(), Acks::Batch), acks_tag, |c, v| c.shape.acks = v),
        dimension(Many::values(matrix.record_bytes.as_ref(), usual.record_bytes), count("r"), |c, v| {
            c.shape.record_bytes = v;
        }),
        dimension(Many::values(matrix.batch_records.as_ref(), usual.batch_records), count("b"), |c, v| {
            c.shape.batch_records = v;
        }),
        dimension(Many::values(matrix.inflight.as_ref(), usual.inflight), count("d"), |c, v| {
            c.shape.inflight = v
        }),
        dimension(Many::values(matrix.connections.as_ref(), 1), count("c"), |c, v| c.shape.connections = v),
        dimension(Many::values(matrix.streams.as_ref(), 1), count("p"), |c, v| c.shape.streams = v),
        dimension(Many::values(matrix.shards.as_ref(), 1), count("s"), |c, v| c.shape.shards = v),
        dimension(Many::values(matrix.keys.as_ref(), Keys::Spread), tag, |c, v| c.shape.keys = v),
        dimension(Many::values(matrix.subscribers.as_ref(), 0), count("subs"), |c, v| {
            c.shape.subscribers = v
        }),
        dimension(Many::values(matrix.subscriptions.as_ref(), 1), count("each"), |c, v| {
            c.shape.subscriptions = v
        }),
        dimension(Many::values(matrix.idle.as_ref(), 0), count("idle"), |c, v| c.shape.idle = v),
        dimension(Many::values(matrix.landing.as_ref(), Landing::Right), tag, |c, v| c.shape.landing = v),
        dimension(
            Many::values(matrix.rate.as_ref(), 0.0),
            |rate| format!("rate{rate}"),
            |c, v| {
                c.shape.rate = (v != 0.0).then_some(v);
            },
        ),
        dimension(
            Many::values(matrix.mtu.as_ref(), raw.mtu.unwrap_or(usual.mtu)),
            |mtu| format!("mtu{mtu}"),
            |c, v| c.shape.mtu = v,
        ),
        dimension(
            Many::values(matrix.server_cores.as_ref(), cores),
            |cores| format!("cores{}", cores.replace(',', "_")),
            |c, v| c.server_cores = v,
        ),
    ]
}

/// The name a value has in files.
fn tag<T: serde::Serialize>(value: &T) -> String {
    let text = serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned));
    text.unwrap_or_default().replace('_', "-")
}

fn acks_tag(acks: &Acks) -> String {
    match acks {
        Acks::Batch => "acked".to_owned(),
        Acks::None => "unacked".to_owned(),
    }
}

fn multiply(raw: &RawCampaign, matrix: &RawCells, cells: &mut Vec<Cell>) -> Result<(), FileError> {
    let mut broker = scalars(&raw.broker)?;
    broker.extend(scalars(&matrix.broker)?);
    let usual = Shape::canonical();
    let first = Cell {
        name: matrix.name.clone(),
        system: System::Broker,
        kind: matrix.kind,
        shape: Shape {
            warmup_s: matrix.warmup_s.or(raw.warmup_s).unwrap_or(1.0),
            duration_s: matrix.duration_s.or(raw.duration_s).unwrap_or(5.0),
            ..usual
        },
        server_cores: String::new(),
        broker,
    };
    let mut made = vec![first];
    for dimension in dimensions(raw, matrix) {
        let found = made.len().saturating_mul(dimension.values.len());
        if found == 0 || found + cells.len() > CELLS_MAX {
            return Err(FileError::Cells { found: found + cells.len() });
        }
        let each = made.iter().flat_map(|cell| dimension.values.iter().map(move |value| (cell, value)));
        made = each
            .map(|(cell, (label, change))| {
                let mut cell = cell.clone();
                change(&mut cell);
                if dimension.varies {
                    cell.name = format!("{}-{label}", cell.name);
                }
                cell
            })
            .collect();
    }
    for mut cell in made {
        if cell.system == System::Sink {
            cell.broker.clear();
        }
        cell.shape.name.clone_from(&cell.name);
        cells.push(cell);
    }
    Ok(())
}

/// A sink before each broker cell that a sink can stand beside, unless one with that load is there.
fn add_sinks(cells: &mut Vec<Cell>) {
    let mut with = Vec::new();
    for cell in cells.drain(..) {
        let shape = &cell.shape;
        let quiet = shape.subscribers == 0 && shape.idle == 0;
        let alone = cell.cores().len() == 1 && quiet && shape.shards == 1;
        if cell.system == System::Broker && alone && !cell.shape.storage.is_durable() {
            let name = format!("{}-sink", cell.name);
            let shape = Shape { name: name.clone(), ..cell.shape.clone() };
            // A sink has no other setting of the broker's.
            let spins = cell.broker.iter().filter(|(key, _)| *key == "spin_us");
            let broker = spins.map(|(key, value)| (key.clone(), value.clone())).collect();
            with.push(Cell { name, system: System::Sink, shape, broker, ..cell.clone() });
        }
        with.push(cell);
    }
    *cells = with;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Campaign, FileError> {
        Campaign::parse(Path::new("x.toml"), text)
    }

    fn names(campaign: &Campaign) -> Vec<&str> {
        campaign.cells.iter().map(|cell| cell.name.as_str()).collect()
    }

    #[test]
    fn a_matrix_is_multiplied_out_and_named_by_what_varies() {
        let campaign = parse(
            r#"
            name = "small"
            trials = 2
            duration_s = 2.5
            broker = { spin_us = 50 }
            [[cells]]
            name = "a"
            record_bytes = [256, 4096]
            acks = ["batch", "none"]
            inflight = 16
            [[cells]]
            name = "b"
            storage = ["fsync_none", "fsync_on_commit"]
            rate = [0, 1000.5]
            duration_s = 1.0
            broker = { retention_bytes = "64MiB", shed = true }
            "#,
        )
        .unwrap();
        let wanted = ["a-acked-r256", "a-acked-r4096", "a-unacked-r256", "a-unacked-r4096"];
        assert_eq!(names(&campaign)[..4], wanted);
        assert_eq!(names(&campaign)[4..6], ["b-fsync-none-rate0", "b-fsync-none-rate1000.5"]);
        let (first, last) = (&campaign.cells[0], campaign.cells.last().unwrap());
        assert_eq!((first.shape.inflight, first.shape.record_bytes, first.shape.duration_s), (16, 256, 2.5));
        assert_eq!(
            (last.shape.rate, last.shape.duration_s, last.shape.storage),
            (Some(1_000.5), 1.0, Storage::FsyncOnCommit)
        );
        assert_eq!(campaign.cells[4].shape.rate, None);
        let settings = last.settings();
        for setting in ["shed=true", "retention_bytes=64MiB", "spin_us=50", "fsync=on_commit"] {
            assert!(settings.iter().any(|found| found == setting), "{setting} in {settings:?}");
        }
        assert!(campaign.needs_disk());
        assert!((campaign.load_seconds() - 2.0 * (4.0 * 3.5 + 4.0 * 2.0)).abs() < 1e-9);
    }

    #[test]
    fn sinks_stand_beside_what_a_sink_can_do() {
        let campaign = parse(
            r#"
            name = "sinks"
            with_sink = true
            [[cells]]
            name = "m"
            subscribers = [0, 2]
            [[cells]]
            name = "d"
            storage = "fsync_none"
            "#,
        )
        .unwrap();
        assert_eq!(names(&campaign), ["m-subs0-sink", "m-subs0", "m-subs2", "d"]);
        assert_eq!(campaign.cells[0].system, System::Sink);
        assert_eq!(campaign.cells[0].shape.record_bytes, campaign.cells[1].shape.record_bytes);
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        let reason = |text: &str| parse(text).unwrap_err().to_string();
        assert!(reason("name = 'x'\nbogus = 1\ncells = []").contains("bogus"));
        assert!(reason("name = 'x'\n[[cells]]\nname = 'a'\npayload = 3").contains("payload"));
        assert!(reason("name = 'x'\n[[cells]]\nname = 'a'\nacks = 'most'").contains("acks"));
        assert!(reason("name = 'x'\n[[cells]]\nname = 'a'\nkind = 'cache'").contains("cache"));
        assert!(matches!(parse("name = 'x'\ncells = []"), Err(FileError::Cells { found: 0 })));
        assert!(matches!(
            parse("name = 'x'\n[[cells]]\nname = 'a'\nacks = []"),
            Err(FileError::Cells { .. })
        ));
        assert!(matches!(parse("name = 'x'\ntrials = 0\n[[cells]]\nname = 'a'"), Err(FileError::Trials(0))));
        let twice = "name = 'x'\n[[cells]]\nname = 'a'\n[[cells]]\nname = 'a'";
        assert!(matches!(parse(twice), Err(FileError::SameName(name)) if name == "a"));
        assert!(matches!(
            parse("name = 'X Y'\n[[cells]]\nname = 'a'"),
            Err(FileError::Cell(CellError::Name(_)))
        ));
        let list = "name = 'x'\nbroker = { spin_us = [1] }\n[[cells]]\nname = 'a'";
        assert!(matches!(parse(list), Err(FileError::Setting(key)) if key == "spin_us"));
    }

    #[test]
    fn an_impossible_cell_refuses_its_matrix() {
        let error = parse("name = 'x'\n[[cells]]\nname = 'a'\nkeys = ['spread', 'plain']\nshards = [1, 4]")
            .unwrap_err();
        assert!(
            matches!(&error, FileError::Cell(CellError::Shape { cell, .. }) if cell == "a-s4-plain"),
            "{error}"
        );
        let huge = "name = 'x'\n[[cells]]\nname = 'a'\nrecord_bytes = 1048576\nbatch_records = 64";
        assert!(parse(huge).unwrap_err().to_string().contains("fit one frame"));
        let many: Vec<String> = (1..=40).map(|n| n.to_string()).collect();
        let many = many.join(",");
        let text = format!("name = 'x'\n[[cells]]\nname = 'a'\ninflight = [{many}]\nconnections = [{many}]");
        assert!(matches!(parse(&text), Err(FileError::Cells { .. })));
    }

    #[test]
    fn agents_are_bounded_and_need_a_lead() {
        let with = |distributed: &str, cell: &str| {
            parse(&format!(
                "name = 'x'\n[distributed]\ntoken_file = 't'\n{distributed}\n[[cells]]\nname = 'a'\n{cell}"
            ))
        };
        let two = "agents = ['127.0.0.1:1', '127.0.0.1:2']";
        assert_eq!(with(two, "").unwrap().distributed.unwrap().lead_s, LEAD_S);
        assert!(matches!(with("agents = []", ""), Err(FileError::Agents { found: 0 })));
        assert!(matches!(with(&format!("{two}\nlead_s = 0.1"), ""), Err(FileError::Lead(_))));
        assert!(matches!(with(two, "warmup_s = 0.5"), Err(FileError::NotDistributed { .. })));
        let running = format!("{two}\nready_file = 'r.json'");
        assert!(with(&running, "").is_ok());
        assert!(matches!(with(&running, "system = 'sink'"), Err(FileError::NotDistributed { .. })));
        assert!(matches!(with(&running, "broker = { shed = true }"), Err(FileError::NotDistributed { .. })));
        assert!(matches!(with("agents = ['here']", ""), Err(FileError::Parse { .. })));
    }
}
