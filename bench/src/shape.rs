//! A workload: what is published, how, and for how long. Scope: plain values.
//! Owns: the shapes of `shapes/*.toml`, compiled in, and the rules a shape keeps.
//! Invariants: a shape that passed `check` can be run: its records hold a stamp when somebody reads them, its batches
//! fit one frame.
//! Not here: where it is run (`target`), running it (`load`).

use std::path::Path;
use std::time::Duration;

use felix_wire::limits::{BATCH_RECORDS_MAX, FRAME_PAYLOAD_MAX};
use serde::{Deserialize, Serialize};

use crate::load::STAMP_BYTES;

/// Largest number of connections, streams of a connection, shards and subscribers of a shape. One thread drives
/// them all, and a run must end.
const COUNT_MAX: u32 = 4_096;
/// Unanswered batches of one stream at most: the latencies of more would say nothing about the server.
const INFLIGHT_MAX: u32 = 4_096;
/// With fewer streams, nine of ten is no whole number of them.
const HOT_LANES_MIN: u32 = 10;
/// Names and key of a publish frame fit this.
const HEAD_ROOM_BYTES: u64 = 1_024;

/// The shapes that come with the program, by name.
const BUILT_IN: &[(&str, &str)] = &[
    ("canonical", include_str!("../shapes/canonical.toml")),
    ("unacked", include_str!("../shapes/unacked.toml")),
    ("small", include_str!("../shapes/small.toml")),
    ("fanout", include_str!("../shapes/fanout.toml")),
    ("connections", include_str!("../shapes/connections.toml")),
];

/// Whether publishes are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acks {
    /// Every batch is answered.
    Batch,
    /// Nothing is answered; a last acked batch of each stream shows that everything before it was read.
    None,
}

/// Where a stream keeps its records, and when an answer is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// In memory; answered after the append.
    #[default]
    Memory,
    /// In a log; answered when written, synced by the kernel alone.
    FsyncNone,
    /// In a log; answered when written, synced at intervals.
    FsyncPeriodic,
    /// In a log; answered when synced.
    FsyncOnCommit,
}

impl Storage {
    /// The broker's setting `fsync`; `None` in memory.
    #[must_use]
    pub fn fsync(self) -> Option<&'static str> {
        match self {
            Storage::Memory => None,
            Storage::FsyncNone => Some("none"),
            Storage::FsyncPeriodic => Some("periodic"),
            Storage::FsyncOnCommit => Some("on_commit"),
        }
    }

    #[must_use]
    pub fn is_durable(self) -> bool {
        self.fsync().is_some()
    }
}

/// Which shards the publishing streams write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keys {
    /// Evenly over all of them, by keys that route there.
    #[default]
    Spread,
    /// Without keys: everything goes where the broker puts it.
    Plain,
    /// Nine of ten streams write to shard 0, the others are spread over all.
    Hot,
}

/// The core of the server that a publishing connection lands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Landing {
    /// The core that has the shard it writes to, where the server tells.
    #[default]
    Right,
    /// Another one, which hands everything on.
    Wrong,
}

fn one() -> u32 {
    1
}

/// One workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// How results call it.
    pub name: String,
    /// Bytes of one record.
    pub record_bytes: u32,
    /// Records of one publish.
    pub batch_records: u32,
    pub acks: Acks,
    /// Unanswered batches of one stream.
    pub inflight: u32,
    pub connections: u32,
    /// Publishing streams of each connection.
    pub streams: u32,
    /// Shards that are written to, from 0, by keys that route there: connection `i` writes to shard `i` modulo this; with
    /// fewer connections than shards, stream `i` of all does. Batches to a stream of one shard have no key.
    pub shards: u32,
    #[serde(default)]
    pub keys: Keys,
    /// What the stream is made with, where it is made for the run.
    #[serde(default)]
    pub storage: Storage,
    /// Readers; each reads all those shards on a connection of its own.
    #[serde(default)]
    pub subscribers: u32,
    /// How often each reader subscribes to each shard, all on its one connection.
    #[serde(default = "one")]
    pub subscriptions: u32,
    /// Connections that authenticate and then say nothing.
    #[serde(default)]
    pub idle: u32,
    #[serde(default)]
    pub landing: Landing,
    /// Batches per second over all streams, at fixed moments (open loop). Absent: as fast as answers come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Seconds before anything is counted.
    pub warmup_s: f64,
    /// Seconds that are counted.
    pub duration_s: f64,
    /// Largest datagram that path discovery tries, bytes of UDP payload.
    pub mtu: u16,
}

/// Why there is no shape.
#[derive(Debug, thiserror::Error)]
pub enum ShapeError {
    #[error("no shape is called {name}; there are {}, or the path of a file", .known.join(", "))]
    Unknown { name: String, known: Vec<&'static str> },
    #[error("{path}: {reason}")]
    File { path: String, reason: String },
    #[error("shape {shape}: {rule}")]
    Rule { shape: String, rule: String },
}

impl Shape {
    /// The default workload.
    #[must_use]
    pub fn canonical() -> Shape {
        parse("canonical", BUILT_IN[0].1).expect("the test `every_built_in_shape_parses_and_passes`")
    }

    /// The built-in shape of that name, or the one in the file of that path.
    ///
    /// # Errors
    /// Neither exists, or the file is not a shape. The rules of `check` are not looked at.
    pub fn named(name: &str) -> Result<Shape, ShapeError> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return parse(name, text);
        }
        if !Path::new(name).is_file() {
            let known = BUILT_IN.iter().map(|(name, _)| *name).collect();
            return Err(ShapeError::Unknown { name: name.to_owned(), known });
        }
        let text = std::fs::read_to_string(name)
            .map_err(|error| ShapeError::File { path: name.to_owned(), reason: error.to_string() })?;
        parse(name, &text)
    }

    /// Payload bytes of one batch.
    #[must_use]
    pub fn batch_bytes(&self) -> u64 {
        u64::from(self.record_bytes) * u64::from(self.batch_records)
    }

    /// Publishing streams of all connections.
    #[must_use]
    pub fn lanes(&self) -> u32 {
        self.connections * self.streams
    }

    pub fn warmup(&self) -> Duration {
        Duration::from_secs_f64(self.warmup_s)
    }

    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.duration_s)
    }

    /// # Errors
    /// The first rule that is broken, in words.
    pub fn check(&self) -> Result<(), ShapeError> {
        let broken = |rule: String| Err(ShapeError::Rule { shape: self.name.clone(), rule });
        for (what, value, max) in [
            ("connections", self.connections, COUNT_MAX),
            ("streams", self.streams, COUNT_MAX),
            ("shards", self.shards, COUNT_MAX),
            ("inflight", self.inflight, INFLIGHT_MAX),
            ("subscriptions", self.subscriptions, COUNT_MAX),
            ("batch_records", self.batch_records, BATCH_RECORDS_MAX),
        ] {
            if !(1..=max).contains(&value) {
                return broken(format!("{what} is {value}, allowed are 1 to {max}"));
            }
        }
        if self.subscribers > COUNT_MAX {
            return broken(format!("subscribers is {}, allowed are 0 to {COUNT_MAX}", self.subscribers));
        }
        if self.idle > COUNT_MAX {
            return broken(format!("idle is {}, allowed are 0 to {COUNT_MAX}", self.idle));
        }
        if u64::from(self.subscribers) * u64::from(self.subscriptions) > u64::from(COUNT_MAX) {
            return broken(format!("more than {COUNT_MAX} subscriptions in all"));
        }
        if self.landing == Landing::Wrong && self.shards < 2 {
            return broken(
                "a connection lands on a wrong core only where 2 shards are on different cores".to_owned(),
            );
        }
        if u64::from(self.connections) * u64::from(self.streams) > u64::from(COUNT_MAX) {
            return broken(format!("more than {COUNT_MAX} streams in all"));
        }
        if self.subscribers > 0 && (self.record_bytes as usize) < STAMP_BYTES {
            return broken(format!("records that are read need {STAMP_BYTES} bytes for their stamp"));
        }
        if self.keys == Keys::Plain && self.shards > 1 {
            return broken("without keys nothing is written to more than 1 shard".to_owned());
        }
        if self.keys == Keys::Hot && (self.shards < 2 || self.lanes() < HOT_LANES_MIN) {
            return broken(format!("hot keys need 2 shards and {HOT_LANES_MIN} streams at least"));
        }
        let frame = self.batch_bytes() + 4 * u64::from(self.batch_records) + HEAD_ROOM_BYTES;
        if frame > u64::from(FRAME_PAYLOAD_MAX) {
            return broken(format!("a batch of {frame} bytes does not fit one frame"));
        }
        if self.rate.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
            return broken("rate must be above 0".to_owned());
        }
        let seconds = |value: f64| value.is_finite() && (0.0..=86_400.0).contains(&value);
        if !seconds(self.warmup_s) || !seconds(self.duration_s) || self.duration_s < 0.01 {
            return broken("a run lasts 0.01 to 86400 seconds after 0 to 86400 of warm-up".to_owned());
        }
        Ok(())
    }
}

fn parse(path: &str, text: &str) -> Result<Shape, ShapeError> {
    toml::from_str(text)
        .map_err(|error| ShapeError::File { path: path.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_shape_parses_and_passes() {
        for (name, _) in BUILT_IN {
            let shape = Shape::named(name).unwrap();
            assert_eq!(shape.name, *name);
            shape.check().unwrap();
        }
        let canonical = Shape::canonical();
        assert_eq!((canonical.record_bytes, canonical.batch_records, canonical.inflight), (4_096, 64, 8));
        assert_eq!((canonical.lanes(), canonical.acks, canonical.mtu), (1, Acks::Batch, 3_872));
    }

    #[test]
    fn a_shape_that_cannot_run_is_refused_with_its_rule() {
        let rule = |shape: Shape| shape.check().unwrap_err().to_string();
        let canonical = Shape::canonical;
        assert!(rule(Shape { inflight: 0, ..canonical() }).contains("inflight is 0"));
        assert!(rule(Shape { record_bytes: 1 << 20, ..canonical() }).contains("does not fit one frame"));
        assert!(rule(Shape { record_bytes: 8, subscribers: 1, ..canonical() }).contains("stamp"));
        assert!(rule(Shape { keys: Keys::Plain, shards: 2, ..canonical() }).contains("without keys"));
        assert!(rule(Shape { keys: Keys::Hot, shards: 2, ..canonical() }).contains("10 streams"));
        assert!(rule(Shape { subscriptions: 0, ..canonical() }).contains("subscriptions is 0"));
        assert!(rule(Shape { idle: 5_000, ..canonical() }).contains("idle is 5000"));
        let many = Shape { subscribers: 100, subscriptions: 100, ..canonical() };
        assert!(rule(many).contains("subscriptions in all"));
        assert!(rule(Shape { landing: Landing::Wrong, ..canonical() }).contains("wrong core"));
        assert!(rule(Shape { rate: Some(0.0), ..canonical() }).contains("rate"));
        assert!(rule(Shape { duration_s: f64::NAN, ..canonical() }).contains("seconds"));
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = Shape::named("no-such-shape").unwrap_err().to_string();
        assert!(error.contains("canonical") && error.contains("no-such-shape"), "{error}");
    }
}
