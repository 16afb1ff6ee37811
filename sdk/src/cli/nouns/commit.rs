//! `felix commit` and `felix state`: atomic commits of a stream and the keyed state they make.

use clap::{Args, Subcommand};
use felix_wire::id::Offset;
use serde::Serialize;

use super::{Context, Failure, Format, Kind, Outcome, OutputArgs};
use crate::cli::argument;
use crate::cli::connect::connect;
use crate::cli::on_runtime;
use crate::cli::output::{Shown, print_line, write_value};
use crate::state::State;

#[derive(Clone, Debug, Args)]
pub struct CommitArgs {
    stream: String,
    /// The entity whose shard it is committed to: text, or @FILE
    entity: String,
    /// The event: text, @FILE, or - for standard input, which is also read without it
    #[arg(allow_hyphen_values = true)]
    event: Option<String>,
    /// Sets a key of the state; the value is text or @FILE
    #[arg(long, value_name = "KEY=VALUE")]
    put: Vec<String>,
    /// Removes a key of the state
    #[arg(long, value_name = "KEY")]
    delete: Vec<String>,
    /// Only when the shard's next offset is this one
    #[arg(long, value_name = "OFFSET")]
    expect_offset: Option<u64>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Serialize)]
struct Committed {
    shard: u32,
    offset: u64,
}

impl CommitArgs {
    /// # Errors
    /// What the brokers said; `Refused` when the shard's next offset is another one.
    pub fn run(self, context: &Context) -> Outcome {
        let changes = self.changes()?;
        let entity = argument::key(&self.entity)?;
        let event = argument::value(self.event.as_deref())?;
        let committed = with(context, &self.stream, async |state| {
            let mut commit = state.commit(entity, event);
            for (key, value) in changes {
                commit = match value {
                    Some(value) => commit.put(key, value),
                    None => commit.delete(key),
                };
            }
            if let Some(offset) = self.expect_offset {
                commit = commit.expect_offset(Offset(offset));
            }
            Ok(commit.send().await?)
        })?;
        match context.format {
            Format::Table => print_line(&format!("{}/{}", committed.shard, committed.offset)),
            Format::Json => {
                context.format.one(&Committed { shard: committed.shard, offset: committed.offset.get() })
            }
        }
    }

    /// Puts, then deletes. A key may be named once, so their order means nothing.
    fn changes(&self) -> Outcome<Vec<(String, Option<bytes::Bytes>)>> {
        let mut changes: Vec<(String, Option<bytes::Bytes>)> = Vec::new();
        let mut add = |key: String, value| {
            if changes.iter().any(|(named, _)| *named == key) {
                return Err(Failure::usage(format!("the key `{key}` is named twice")));
            }
            changes.push((key, value));
            Ok(())
        };
        for put in &self.put {
            let (key, value) =
                put.split_once('=').ok_or_else(|| Failure::usage(format!("--put {put}: it is KEY=VALUE")))?;
            if value == "-" && self.event.as_deref().is_none_or(|event| event == "-") {
                return Err(Failure::usage("standard input can be read once"));
            }
            add(key.to_owned(), Some(argument::value(Some(value))?))?;
        }
        for key in &self.delete {
            add(argument::key(key)?, None)?;
        }
        Ok(changes)
    }
}

#[derive(Clone, Debug, Subcommand)]
pub enum StateVerb {
    /// Print a value (5 when the key has none)
    Get {
        stream: String,
        /// The entity: text, or @FILE
        entity: String,
        /// Text, or @FILE
        key: String,
        #[command(flatten)]
        output: OutputArgs,
    },
}

#[derive(Serialize)]
struct Value<'a> {
    key: &'a str,
    #[serde(flatten)]
    value: Shown<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    as_of: Option<u64>,
}

impl StateVerb {
    pub fn output(&self) -> OutputArgs {
        let StateVerb::Get { output, .. } = self;
        *output
    }

    /// # Errors
    /// What the brokers said; `NotFound` for a key without a value.
    pub fn run(self, context: &Context) -> Outcome {
        let StateVerb::Get { stream, entity, key, .. } = self;
        let (entity, key) = (argument::key(&entity)?, argument::key(&key)?);
        let found = with(context, &stream, async |state| Ok(state.get(entity, &key).await?))?;
        let Some(value) = &found.value else {
            return Err(Failure::new(Kind::NotFound, format!("`{key}` has no value")));
        };
        match context.format {
            Format::Table => write_value(value),
            Format::Json => context.format.one(&Value {
                key: &key,
                value: Shown::of(Some(value)),
                version: found.version.map(|offset| offset.get()),
                as_of: found.as_of.map(|offset| offset.get()),
            }),
        }
    }
}

fn with<T>(context: &Context, stream: &str, request: impl AsyncFnOnce(&State) -> Outcome<T>) -> Outcome<T> {
    on_runtime(async {
        let client = connect(&context.settings).await?;
        let outcome = match client.state(stream) {
            Ok(state) => request(&state).await,
            Err(error) => Err(error.into()),
        };
        client.close().await;
        outcome
    })
}
