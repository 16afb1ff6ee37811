//! The types a setting can have, and how a string from a flag or the environment becomes one.
//! Scope: values.
//! Owns: the spellings (`64MiB`, `0,2-3`, `drop_new`).
//! Not here: the settings themselves (`settings`).

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use felix_logstore::id::Fsync;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::snapshot::SlowSubscriber;

/// How a string is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Kept as it is; the setting's own type reads it.
    Text,
    /// `true`/`false`, `1`/`0`, `yes`/`no`, `on`/`off`.
    Switch,
    /// A whole number, not negative.
    Number,
}

/// A type that a setting may have.
pub trait SettingType {
    const KIND: Kind;
}

impl SettingType for bool {
    const KIND: Kind = Kind::Switch;
}
impl SettingType for u64 {
    const KIND: Kind = Kind::Number;
}
impl SettingType for String {
    const KIND: Kind = Kind::Text;
}
impl SettingType for Option<String> {
    const KIND: Kind = Kind::Text;
}
impl SettingType for SocketAddr {
    const KIND: Kind = Kind::Text;
}
impl SettingType for Size {
    const KIND: Kind = Kind::Text;
}
impl SettingType for CoreList {
    const KIND: Kind = Kind::Text;
}
impl SettingType for QueuePolicy {
    const KIND: Kind = Kind::Text;
}
impl SettingType for FsyncMode {
    const KIND: Kind = Kind::Text;
}
impl SettingType for LogFormat {
    const KIND: Kind = Kind::Text;
}

/// A number of bytes: `4096`, `64KiB`, `8MiB`, `1GiB` (also `K`, `M`, `G`, always powers of 1,024).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    /// As `usize`; the broker runs on 64-bit machines only.
    pub fn get(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let text = text.trim();
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let shift = match text[digits.len()..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            other => return Err(format!("unknown unit `{other}`; use KiB, MiB, GiB or TiB")),
        };
        let count: u64 = digits.parse().map_err(|_| format!("`{text}` is not a number of bytes"))?;
        count.checked_mul(1 << shift).map(Size).ok_or_else(|| format!("`{text}` is too large"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// CPUs to serve on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreList {
    /// Every CPU the process may run on.
    Auto,
    /// These, in this order, each once.
    Cpus(Vec<usize>),
}

/// Cores one broker may have: the connection id names a core with one byte.
pub const CORES_MAX: usize = 256;
/// Largest CPU number accepted; the kernel's own limit is lower.
const CPU_MAX: usize = 8_191;

impl FromStr for CoreList {
    type Err = String;

    fn from_str(text: &str) -> Result<CoreList, String> {
        if text.trim() == "auto" {
            return Ok(CoreList::Auto);
        }
        let cpu = |part: &str| {
            let part = part.trim();
            part.parse::<usize>()
                .ok()
                .filter(|n| *n <= CPU_MAX)
                .ok_or_else(|| format!("`{part}` is not a CPU"))
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (cpu(first)?, cpu(last)?),
                None => (cpu(part)?, cpu(part)?),
            };
            if first > last {
                return Err(format!("`{}` runs backwards", part.trim()));
            }
            for n in first..=last {
                if cpus.contains(&n) {
                    return Err(format!("CPU {n} is named twice"));
                }
                cpus.push(n);
            }
        }
        if cpus.len() > CORES_MAX {
            return Err(format!("{} cores; at most {CORES_MAX}", cpus.len()));
        }
        Ok(CoreList::Cpus(cpus))
    }
}

impl fmt::Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoreList::Auto => f.write_str("auto"),
            CoreList::Cpus(cpus) => {
                let text: Vec<String> = cpus.iter().map(usize::to_string).collect();
                f.write_str(&text.join(","))
            }
        }
    }
}

/// What a subscriber that does not keep up gets (semantics 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueuePolicy {
    Block,
    DropNew,
    DropOld,
}

impl From<QueuePolicy> for SlowSubscriber {
    fn from(policy: QueuePolicy) -> SlowSubscriber {
        match policy {
            QueuePolicy::Block => SlowSubscriber::Block,
            QueuePolicy::DropNew => SlowSubscriber::DropNew,
            QueuePolicy::DropOld => SlowSubscriber::DropOld,
        }
    }
}

/// When a publish to a durable stream is acknowledged (semantics 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FsyncMode {
    /// Written; durable when there is another reason to sync.
    None,
    /// Written; durable within the interval.
    Periodic,
    /// Durable.
    OnCommit,
}

impl From<FsyncMode> for Fsync {
    fn from(mode: FsyncMode) -> Fsync {
        match mode {
            FsyncMode::None => Fsync::None,
            FsyncMode::Periodic => Fsync::Periodic,
            FsyncMode::OnCommit => Fsync::OnCommit,
        }
    }
}

/// How log events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    Json,
}

/// Reads a string or a whole number with `FromStr`.
struct FromText<T>(std::marker::PhantomData<T>, &'static str);

impl<T: FromStr<Err = String>> Visitor<'_> for FromText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
        from.deserialize_any(FromText(std::marker::PhantomData, "a size such as 65536 or \"64KiB\""))
    }
}

impl<'de> Deserialize<'de> for CoreList {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<CoreList, D::Error> {
        from.deserialize_any(FromText(std::marker::PhantomData, "\"auto\" or CPUs such as \"0,2-3\""))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl Serialize for CoreList {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}
