//! `felix cache watch`: changes of keys on standard output. Scope: per command.
//! Invariants: only changes go to standard output, one a line, which is flushed whenever none is waiting; where changes may
//! be missing, that is told and the current values follow.
//! Not here: the watch itself (`crate::cache::watch`).

use std::io::{self, BufWriter, Write};
use std::time::UNIX_EPOCH;

use clap::{Args, ValueEnum};
use felix_wire::id::Offset;
use serde::Serialize;

use super::argument;
use super::connect::connect;
use super::failure::{Failure, Outcome, output_failed};
use super::interrupt;
use super::output::{Shown, output_closed, remark};
use super::settings::Settings;
use crate::cache::watch::{Change, Watch, WatchError, WatchItem, WatchNotice, WatchStart};

/// How a change is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Rendering {
    /// put, its key and its value, or delete and its key, with tabs between
    #[default]
    Text,
    /// An object a line
    Json,
}

#[derive(Clone, Debug, Args)]
pub struct WatchArgs {
    cache: String,
    /// Text, or @FILE
    #[arg(required_unless_present = "prefix", conflicts_with = "prefix")]
    key: Option<String>,
    /// Every key that begins so; `--prefix ''` is every key
    #[arg(long)]
    prefix: Option<String>,
    /// Only keys of this shard
    #[arg(long, requires = "prefix")]
    shard: Option<u32>,
    /// Where to begin: live, current (the values there are, then changes), or an offset
    #[arg(long, default_value = "live", value_parser = start)]
    from: WatchStart,
    /// End after so many lines
    #[arg(long, value_name = "LINES")]
    count: Option<u64>,
    /// How a change is written
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Rendering,
}

fn start(text: &str) -> Result<WatchStart, String> {
    match text {
        "live" => Ok(WatchStart::Live),
        "current" => Ok(WatchStart::Current),
        offset => match offset.parse() {
            Ok(offset) => Ok(WatchStart::Offset(Offset(offset))),
            Err(_) => Err("it is `live`, `current` or an offset".to_owned()),
        },
    }
}

#[derive(Serialize)]
struct Document<'a> {
    shard: u32,
    offset: u64,
    key: &'a str,
    #[serde(flatten)]
    value: Shown<'a>,
    deleted: bool,
    current: bool,
    /// Milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at_ms: Option<u128>,
}

impl Rendering {
    fn write(self, out: &mut impl Write, change: &Change) -> io::Result<()> {
        match (self, &change.value) {
            (Rendering::Text, Some(value)) => {
                write!(out, "put\t{}\t", change.key)?;
                out.write_all(value)?;
            }
            (Rendering::Text, None) => write!(out, "delete\t{}", change.key)?,
            (Rendering::Json, value) => {
                let expires = change.expires_at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
                let document = Document {
                    shard: change.shard,
                    offset: change.offset.get(),
                    key: &change.key,
                    value: Shown::of(value.as_ref()),
                    deleted: value.is_none(),
                    current: change.current,
                    expires_at_ms: expires.map(|since| since.as_millis()),
                };
                serde_json::to_writer(&mut *out, &document)?;
            }
        }
        out.write_all(b"\n")
    }
}

impl WatchArgs {
    /// # Errors
    /// What the brokers said; `Other` when the output cannot be written.
    pub async fn run(self, settings: &Settings) -> Outcome {
        let key = self.key.as_deref().map(argument::key).transpose()?;
        let mut interrupted = interrupt::first()?;
        let opened = async {
            let client = connect(settings).await?;
            let cache = client.cache(self.cache.as_str())?;
            let mut builder = match key {
                Some(key) => cache.watch(key),
                None => cache.watch_prefix(self.prefix.clone().unwrap_or_default()),
            };
            if let Some(shard) = self.shard {
                builder = builder.shard(shard);
            }
            Ok::<_, Failure>((builder.from(self.from).open().await?, client))
        };
        let (mut watch, client) = tokio::select! {
            opened = opened => opened?,
            () = interrupted.wait() => return Ok(()),
        };
        remark(&format!("watching `{}`, {} shard(s)", self.cache, watch.live_shards()));
        let mut out = BufWriter::new(io::stdout());
        let read = tokio::select! {
            read = self.read(&mut watch, &mut out) => read,
            () = interrupted.wait() => Ok(()),
        };
        let flushed = out.flush().map_err(|error| output_failed(&error));
        drop(watch);
        client.close().await;
        read.and(flushed)
    }

    async fn read(&self, watch: &mut Watch, out: &mut impl Write) -> Outcome {
        let mut left = self.count;
        while left != Some(0) {
            let waiting = tokio::select! {
                biased;
                item = watch.next_item() => Some(item),
                () = std::future::ready(()) => None,
            };
            let item = match waiting {
                Some(item) => item,
                None => {
                    out.flush().map_err(|error| output_failed(&error))?;
                    tokio::select! {
                        item = watch.next_item() => item,
                        () = output_closed() => return Ok(()),
                    }
                }
            };
            match item {
                Some(WatchItem::Change(change)) => {
                    self.output.write(out, &change).map_err(|error| output_failed(&error))?;
                    left = left.map(|left| left - 1);
                }
                Some(WatchItem::Notice(notice)) => note(&notice),
                Some(WatchItem::Error(error @ WatchError::BeginsAnew { .. })) => remark(&error.to_string()),
                Some(WatchItem::Error(error)) => return Err(error.into()),
                None => return Ok(()),
            }
        }
        Ok(())
    }
}

fn note(notice: &WatchNotice) {
    match notice {
        WatchNotice::Current { shard, values } => {
            remark(&format!("shard {shard}: {values} current value(s) first"));
        }
        WatchNotice::Away { shard, error } => {
            remark(&format!("shard {shard}: the broker is away ({error}), looking for it"));
        }
        WatchNotice::Back { shard, away } => {
            remark(&format!("shard {shard}: the broker is back after {:.1} s", away.as_secs_f64()));
        }
        WatchNotice::Lagged { shard, from } => {
            remark(&format!("shard {shard}: too slow for the broker, reading on from offset {from}"));
        }
        WatchNotice::Moved { shard } => remark(&format!("shard {shard}: served elsewhere now, following")),
    }
}
