//! `felix shard`: which broker serves which shard of the tenant in use.

use std::collections::{BTreeMap, BTreeSet};

use clap::Subcommand;
use felix_wire::control::{Assignment, ResourceKind};
use serde::Serialize;

use super::{Api, Context, Failure, Kind, Outcome, OutputArgs};
use crate::cli::api::encode;
use crate::cli::connect::connect;
use crate::cli::on_runtime;
use crate::cli::settings::Settings;
use crate::name::StreamName;

#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// List shards
    Ls {
        /// Only shards of this stream or cache
        #[arg(long)]
        name: Option<String>,
        /// Only shards that this broker leads
        #[arg(long, value_name = "NODE")]
        leader: Option<String>,
        /// Shards of every tenant and namespace
        #[arg(long)]
        all: bool,
        /// Also ask the brokers which of their cores serves each shard
        #[arg(long, conflicts_with = "all")]
        cores: bool,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show one shard
    Info {
        /// Stream or cache
        name: String,
        shard: u32,
        #[command(flatten)]
        output: OutputArgs,
    },
}

impl Verb {
    pub fn output(&self) -> OutputArgs {
        match self {
            Verb::Ls { output, .. } | Verb::Info { output, .. } => *output,
        }
    }

    /// # Errors
    /// What the control plane said; `NotFound` for a shard that is not assigned.
    pub fn run(self, context: &Context) -> Outcome {
        let api = Api::of(&context.settings)?;
        let list = |query: &str| api.list::<Assignment>(&["v1", "shard-assignments"], query);
        let here = |item: &Assignment| -> Outcome<bool> {
            Ok(item.key.tenant_id == context.settings.tenant()?
                && item.key.namespace == context.settings.namespace())
        };
        match self {
            Verb::Ls { name, leader, all, cores, .. } => {
                let query = leader.map(|leader| format!("leader={}", encode(&leader))).unwrap_or_default();
                let mut shown = Vec::new();
                for item in list(&query)? {
                    let named = name.as_ref().is_none_or(|name| *name == item.key.stream);
                    if named && (all || here(&item)?) {
                        shown.push(item);
                    }
                }
                let served = if cores { served_by(&context.settings, &shown)? } else { BTreeMap::new() };
                show(context, shown, cores, &served)
            }
            Verb::Info { name, shard, .. } => {
                for item in list("")? {
                    if item.key.stream == name && item.key.shard == shard && here(&item)? {
                        return context.format.one(&item);
                    }
                }
                Err(Failure::new(
                    Kind::NotFound,
                    format!("shard {shard} of `{name}` is not assigned to any broker"),
                ))
            }
        }
    }
}

/// Core by stream and shard, as the brokers tell.
type Cores = BTreeMap<(String, u32), u16>;

/// An assignment and the core of its broker.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    assignment: Assignment,
    #[serde(skip_serializing_if = "Option::is_none")]
    core: Option<u16>,
}

fn served_by(settings: &Settings, shown: &[Assignment]) -> Outcome<Cores> {
    let streams: BTreeSet<&str> = shown
        .iter()
        .filter(|item| item.key.kind == ResourceKind::Stream)
        .map(|item| item.key.stream.as_str())
        .collect();
    on_runtime(async {
        let client = connect(settings).await?;
        let mut cores = Cores::new();
        for stream in streams {
            for owner in client.shard_owners(StreamName::from(stream)).await? {
                cores.extend(owner.core.map(|core| ((stream.to_owned(), owner.shard), core.0)));
            }
        }
        client.close().await;
        Ok(cores)
    })
}

fn show(context: &Context, shown: Vec<Assignment>, cores: bool, served: &Cores) -> Outcome {
    let core_of = |item: &Assignment| served.get(&(item.key.stream.clone(), item.key.shard)).copied();
    let rows: Vec<Row> =
        shown.into_iter().map(|item| Row { core: core_of(&item), assignment: item }).collect();
    let mut headers =
        vec!["TENANT", "NAMESPACE", "KIND", "NAME", "SHARD", "LEADER", "REPLICAS", "GENERATION", "STATE"];
    if cores {
        headers.push("CORE");
    }
    context.format.rows(&rows, &headers, |row| {
        let mut cells = cells(&row.assignment);
        if cores {
            cells.push(row.core.map_or_else(|| "-".to_owned(), |core| core.to_string()));
        }
        cells
    })
}

fn cells(item: &Assignment) -> Vec<String> {
    let kind = match item.key.kind {
        ResourceKind::Cache => "cache",
        ResourceKind::Stream => "stream",
    };
    let replicas = if item.replicas.is_empty() { "-".to_owned() } else { item.replicas.join(",") };
    vec![
        item.key.tenant_id.clone(),
        item.key.namespace.clone(),
        kind.to_owned(),
        item.key.stream.clone(),
        item.key.shard.to_string(),
        item.leader.clone(),
        replicas,
        item.generation.to_string(),
        format!("{:?}", item.state).to_lowercase(),
    ]
}
