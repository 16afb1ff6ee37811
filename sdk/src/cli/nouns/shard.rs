//! `felix shard`: which broker serves which shard of the tenant in use.

use clap::Subcommand;
use felix_wire::control::{Assignment, ResourceKind};

use super::{Api, Context, Failure, Kind, Outcome, OutputArgs};
use crate::cli::api::encode;

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
            Verb::Ls { name, leader, all, .. } => {
                let query = leader.map(|leader| format!("leader={}", encode(&leader))).unwrap_or_default();
                let mut shown = Vec::new();
                for item in list(&query)? {
                    let named = name.as_ref().is_none_or(|name| *name == item.key.stream);
                    if named && (all || here(&item)?) {
                        shown.push(item);
                    }
                }
                let headers = [
                    "TENANT",
                    "NAMESPACE",
                    "KIND",
                    "NAME",
                    "SHARD",
                    "LEADER",
                    "REPLICAS",
                    "GENERATION",
                    "STATE",
                ];
                context.format.rows(&shown, &headers, row)
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

fn row(item: &Assignment) -> Vec<String> {
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
