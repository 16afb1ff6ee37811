//! `felix stream`: the streams of the namespace in use.

use clap::{Args, Subcommand, ValueEnum};
use felix_wire::control::{
    Consistency, Delivery, KeyRouting, Retention, Stream, StreamCreate, StreamKind, StreamPatch,
};

use super::served::wait_until_served;
use super::{Api, Context, Failure, Format, Outcome, OutputArgs, confirm, remark, show_created};

#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// List streams
    Ls(#[command(flatten)] OutputArgs),
    /// Show one stream
    #[command(visible_alias = "show")]
    Info {
        stream: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Make a stream
    Create(CreateArgs),
    /// Change a stream
    Set(SetArgs),
    /// Delete a stream and its records
    Rm {
        stream: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Clone, Debug, Args)]
pub struct CreateArgs {
    stream: String,
    /// Shards that keys are spread over (records without a key go to the first); fixed for the stream's life
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    shards: u32,
    /// Copies of each shard, the leader's among them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    replication_factor: u32,
    /// Keep records on disk
    #[arg(long)]
    durable: bool,
    /// How keys choose a shard; the control plane's default when absent
    #[arg(long, value_enum)]
    routing: Option<RoutingArg>,
    /// Return at once: the brokers may not know the stream yet. Without it, up to 5 s are waited until they serve it
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    mutable: MutableArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Debug, Args)]
pub struct SetArgs {
    stream: String,
    #[command(flatten)]
    mutable: MutableArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What can be changed later.
#[derive(Clone, Debug, Args)]
struct MutableArgs {
    /// Records older than this may go, for example 7d or 3600 (seconds); for durable streams
    #[arg(
        long,
        visible_alias = "retention-seconds",
        value_name = "TIME",
        value_parser = crate::cli::duration::parse_seconds
    )]
    retention_age: Option<std::time::Duration>,
    /// Oldest records go when a shard holds more, for example 10GiB or 65536 (bytes); for durable streams
    #[arg(long, value_name = "SIZE", value_parser = crate::cli::size::parse)]
    retention_bytes: Option<u64>,
    /// Who must hold a record before it is acknowledged
    #[arg(long, value_enum)]
    consistency: Option<ConsistencyArg>,
    /// What consumers are promised; recorded
    #[arg(long, value_enum)]
    delivery: Option<DeliveryArg>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ConsistencyArg {
    Leader,
    Quorum,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DeliveryArg {
    AtMostOnce,
    AtLeastOnce,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoutingArg {
    Modulo,
    JumpHash,
}

impl From<ConsistencyArg> for Consistency {
    fn from(arg: ConsistencyArg) -> Consistency {
        match arg {
            ConsistencyArg::Leader => Consistency::Leader,
            ConsistencyArg::Quorum => Consistency::Quorum,
        }
    }
}

impl From<DeliveryArg> for Delivery {
    fn from(arg: DeliveryArg) -> Delivery {
        match arg {
            DeliveryArg::AtMostOnce => Delivery::AtMostOnce,
            DeliveryArg::AtLeastOnce => Delivery::AtLeastOnce,
        }
    }
}

impl From<RoutingArg> for KeyRouting {
    fn from(arg: RoutingArg) -> KeyRouting {
        match arg {
            RoutingArg::Modulo => KeyRouting::Modulo,
            RoutingArg::JumpHash => KeyRouting::JumpHash,
        }
    }
}

impl MutableArgs {
    /// The retention that was asked for, the rest from `held`.
    fn retention(&self, held: Retention) -> Retention {
        Retention {
            max_age_seconds: self.retention_age.map(|age| age.as_secs()).or(held.max_age_seconds),
            max_size_bytes: self.retention_bytes.or(held.max_size_bytes),
        }
    }

    fn names_retention(&self) -> bool {
        self.retention_age.is_some() || self.retention_bytes.is_some()
    }
}

impl Verb {
    pub fn output(&self) -> OutputArgs {
        match self {
            Verb::Ls(output) | Verb::Info { output, .. } => *output,
            Verb::Create(args) => args.output,
            Verb::Set(args) => args.output,
            Verb::Rm { .. } => OutputArgs::default(),
        }
    }

    /// # Errors
    /// What the control plane said.
    pub fn run(self, context: &Context) -> Outcome {
        let api = Api::of(&context.settings)?;
        let tenant = context.settings.tenant()?;
        let all = ["v1", "tenants", tenant, "namespaces", context.settings.namespace(), "streams"];
        match self {
            Verb::Ls(_) => list(context.format, &api.list::<Stream>(&all, "")?),
            Verb::Info { stream, .. } => {
                context.format.one(&api.get::<Stream>(&[&all[..], &[&stream]].concat())?)
            }
            Verb::Create(args) => {
                let wait = !args.no_wait;
                let body = args.body();
                remark_unserved(body.replication_factor, body.consistency);
                let made = api.post::<Stream>(&all, &body)?;
                if wait {
                    wait_until_served(&context.settings, &made.document.stream, made.document.shards);
                }
                show_created(context.format, &made)
            }
            Verb::Set(args) => {
                let path = [&all[..], &[&args.stream]].concat();
                let held: Stream = api.get(&path)?;
                context.format.one(&api.patch::<Stream>(&path, &args.body(&held)?)?)
            }
            Verb::Rm { stream, yes } => {
                confirm(&format!("delete the stream `{stream}` and its records"), yes)?;
                api.delete(&[&all[..], &[&stream]].concat())?;
                remark("deleted");
                Ok(())
            }
        }
    }
}

/// What is recorded and not done yet (docs/status.md).
fn remark_unserved(copies: u32, consistency: Consistency) {
    if copies > 1 || consistency == Consistency::Quorum {
        remark("a shard has one copy, on one broker, whatever was asked for");
    }
}

fn list(format: Format, streams: &[Stream]) -> Outcome {
    let headers = ["STREAM", "SHARDS", "COPIES", "CONSISTENCY", "DELIVERY", "DURABLE", "RETENTION"];
    format.rows(streams, &headers, |stream| {
        vec![
            stream.stream.clone(),
            stream.shards.to_string(),
            stream.replication_factor.to_string(),
            format!("{:?}", stream.consistency),
            format!("{:?}", stream.delivery),
            stream.durable.to_string(),
            shown(stream.retention),
        ]
    })
}

/// How long and how much is kept; a dash when nothing bounds it.
fn shown(retention: Retention) -> String {
    let age = retention.max_age_seconds.map(crate::cli::duration::show_seconds);
    let size = retention.max_size_bytes.map(crate::cli::size::show);
    let bounds: Vec<String> = [age, size].into_iter().flatten().collect();
    if bounds.is_empty() { "-".to_owned() } else { bounds.join(",") }
}

impl CreateArgs {
    fn body(self) -> StreamCreate {
        StreamCreate {
            stream: self.stream,
            kind: StreamKind::Stream,
            shards: self.shards,
            replication_factor: self.replication_factor,
            retention: self.mutable.retention(Retention::default()),
            consistency: self.mutable.consistency.map_or(Consistency::Leader, Into::into),
            delivery: self.mutable.delivery.map_or(Delivery::AtLeastOnce, Into::into),
            durable: self.durable,
            region: None,
            routing: self.routing.map(Into::into),
        }
    }
}

impl SetArgs {
    fn body(&self, held: &Stream) -> Outcome<StreamPatch> {
        let patch = StreamPatch {
            retention: self.mutable.names_retention().then(|| self.mutable.retention(held.retention)),
            consistency: self.mutable.consistency.map(Into::into),
            delivery: self.mutable.delivery.map(Into::into),
            durable: None,
        };
        if patch == StreamPatch::default() {
            return Err(Failure::usage("nothing to set: give at least one setting"));
        }
        Ok(patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_is_shown_as_it_is_typed() {
        let retention = |max_age_seconds, max_size_bytes| Retention { max_age_seconds, max_size_bytes };
        assert_eq!(shown(retention(None, None)), "-");
        assert_eq!(shown(retention(Some(604_800), None)), "7d");
        assert_eq!(shown(retention(Some(90), Some(10 << 30))), "90s,10GiB");
    }
}
