//! `felix cache`: the caches of the namespace in use, and their keys.

use std::time::Duration;

use clap::{Args, Subcommand};
use felix_wire::control::{Cache as CacheDocument, CacheCreate, Consistency};
use serde::Serialize;

use super::{Api, Context, Failure, Format, Kind, Outcome, OutputArgs, confirm, remark, show_created};
use crate::cache::{Cache, Condition, Conditional};
use crate::cli::connect::connect;
use crate::cli::on_runtime;
use crate::cli::output::{Shown, write_value};
use crate::cli::watch::{Rendering, WatchArgs};
use crate::cli::{argument, duration};

#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// List caches
    Ls(#[command(flatten)] OutputArgs),
    /// Show one cache
    #[command(visible_alias = "show")]
    Info {
        cache: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Make a cache
    Create(CreateArgs),
    /// Delete a cache with its values and counters
    Rm {
        cache: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Print the value of a key (5 when it has none)
    Get {
        cache: String,
        /// Text, or @FILE
        key: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Set a key
    Put(PutArgs),
    /// Remove a key (5 when it has no value)
    #[command(visible_alias = "del")]
    Delete {
        cache: String,
        /// Text, or @FILE
        key: String,
        /// Only when the value has this version
        #[arg(long, value_name = "VERSION")]
        if_version: Option<u64>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Print changes of keys as they come
    Watch(WatchArgs),
}

#[derive(Clone, Debug, Args)]
pub struct CreateArgs {
    cache: String,
    /// Shards that keys are spread over; fixed for the cache's life
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    shards: u32,
    /// Copies of each shard, the leader's among them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    replication_factor: u32,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Debug, Args)]
pub struct PutArgs {
    cache: String,
    /// Text, or @FILE
    key: String,
    /// Text, @FILE, or - for standard input, which is also read without it; a text that begins with @ is given as @@
    #[arg(allow_hyphen_values = true)]
    value: Option<String>,
    /// How long the value lives, for example 90s, 15m or 250ms; for ever without it
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Only when the key has no value
    #[arg(long, conflicts_with = "if_version")]
    if_absent: bool,
    /// Only when the value has this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Value<'a> {
    key: &'a str,
    #[serde(flatten)]
    value: Shown<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
}

#[derive(Serialize)]
struct Written<'a> {
    key: &'a str,
    /// Of the value now, when the broker told.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
}

impl Verb {
    pub fn output(&self) -> OutputArgs {
        match self {
            Verb::Ls(output)
            | Verb::Info { output, .. }
            | Verb::Get { output, .. }
            | Verb::Delete { output, .. } => *output,
            Verb::Create(args) => args.output,
            Verb::Put(args) => args.output,
            Verb::Watch(args) if args.output == Rendering::Json => OutputArgs { output: Format::Json },
            Verb::Rm { .. } | Verb::Watch(_) => OutputArgs::default(),
        }
    }

    /// # Errors
    /// What the control plane or the brokers said; `NotFound` for a key without a value; `Refused` for a condition that
    /// does not hold.
    pub fn run(self, context: &Context) -> Outcome {
        match self {
            Verb::Get { cache, key, .. } => {
                let key = argument::key(&key)?;
                let found = with(context, &cache, async |cache| Ok(cache.get(&key).await?))?;
                let Some(entry) = found else { return Err(no_value(&key)) };
                match context.format {
                    Format::Table => write_value(&entry.value),
                    Format::Json => {
                        let value = Shown::of(Some(&entry.value));
                        context.format.one(&Value { key: &key, value, version: entry.version })
                    }
                }
            }
            Verb::Put(args) => args.run(context),
            Verb::Delete { cache, key, if_version, .. } => delete(context, &cache, &key, if_version),
            Verb::Watch(args) => on_runtime(args.run(&context.settings)),
            managed => managed.manage(context),
        }
    }

    fn manage(self, context: &Context) -> Outcome {
        let api = Api::of(&context.settings)?;
        let tenant = context.settings.tenant()?;
        let all = ["v1", "tenants", tenant, "namespaces", context.settings.namespace(), "caches"];
        match self {
            Verb::Ls(_) => {
                let headers = ["CACHE", "SHARDS", "COPIES", "CONSISTENCY"];
                context.format.rows(&api.list::<CacheDocument>(&all, "")?, &headers, |cache| {
                    vec![
                        cache.cache.clone(),
                        cache.shards.to_string(),
                        cache.replication_factor.to_string(),
                        format!("{:?}", cache.consistency),
                    ]
                })
            }
            Verb::Info { cache, .. } => {
                context.format.one(&api.get::<CacheDocument>(&[&all[..], &[&cache]].concat())?)
            }
            Verb::Create(args) => {
                if args.replication_factor > 1 {
                    remark("a shard has one copy, on one broker, whatever was asked for");
                }
                let body = CacheCreate {
                    display_name: args.cache.clone(),
                    cache: args.cache,
                    shards: args.shards,
                    replication_factor: args.replication_factor,
                    consistency: Consistency::Leader,
                };
                show_created(context.format, &api.post::<CacheDocument>(&all, &body)?)
            }
            Verb::Rm { cache, yes } => {
                confirm(&format!("delete the cache `{cache}` with its values and counters"), yes)?;
                api.delete(&[&all[..], &[&cache]].concat())?;
                remark("deleted");
                Ok(())
            }
            // Those go to the brokers.
            Verb::Get { .. } | Verb::Put(_) | Verb::Delete { .. } | Verb::Watch(_) => Ok(()),
        }
    }
}

impl PutArgs {
    fn run(self, context: &Context) -> Outcome {
        let key = argument::key(&self.key)?;
        let value = argument::value(self.value.as_deref())?;
        let condition = match (self.if_absent, self.if_version) {
            (true, _) => Some(Condition::Absent),
            (false, version) => version.map(Condition::Version),
        };
        let version = with(context, &self.cache, async |cache| match condition {
            None => {
                cache.put(&key, value, self.ttl).await?;
                Ok(None)
            }
            Some(condition) => applied(cache.put_if(&key, value, self.ttl, condition).await?),
        })?;
        written(context, &key, version)
    }
}

fn delete(context: &Context, cache: &str, key: &str, if_version: Option<u64>) -> Outcome {
    let key = argument::key(key)?;
    let removed = with(context, cache, async |cache| match if_version {
        None => cache.delete(&key).await?.map(Some).ok_or_else(|| no_value(&key)),
        Some(version) => applied(cache.delete_if(&key, version).await?).map(|_| None),
    })?;
    match context.format {
        Format::Table => Ok(()),
        Format::Json => {
            let value = Shown::of(removed.as_ref());
            context.format.one(&Value { key: &key, value, version: None })
        }
    }
}

fn written(context: &Context, key: &str, version: Option<u64>) -> Outcome {
    match context.format {
        Format::Table => Ok(()),
        Format::Json => context.format.one(&Written { key, version }),
    }
}

fn no_value(key: &str) -> Failure {
    Failure::new(Kind::NotFound, format!("`{key}` has no value"))
}

/// # Errors
/// `Refused` when it was not.
fn applied(result: Conditional) -> Outcome<Option<u64>> {
    match (result.applied, result.version) {
        (true, version) => Ok(version),
        (false, Some(version)) => {
            Err(Failure::new(Kind::Refused, format!("nothing was changed: the version is {version}")))
        }
        (false, None) => Err(Failure::new(Kind::Refused, "nothing was changed: the key has no value")),
    }
}

/// Runs one request against a cache.
fn with<T>(context: &Context, cache: &str, request: impl AsyncFnOnce(&Cache) -> Outcome<T>) -> Outcome<T> {
    on_runtime(async {
        let client = connect(&context.settings).await?;
        let outcome = request(&client.cache(cache)?).await;
        client.close().await;
        outcome
    })
}
