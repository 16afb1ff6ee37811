//! `felix node`: the brokers of the cluster.

use clap::Subcommand;
use felix_wire::control::{Node, NodeView};

use super::{Api, Context, Outcome, OutputArgs, confirm, remark};

#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// List brokers
    Ls(#[command(flatten)] OutputArgs),
    /// Show one broker
    Info {
        node_id: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Give a broker no new shards; those it has stay until shards can be moved. A restart of the broker ends it
    Drain {
        node_id: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Take a broker out of the cluster
    Deregister {
        node_id: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Forget a broker that has left
    Rm {
        node_id: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

impl Verb {
    pub fn output(&self) -> OutputArgs {
        match self {
            Verb::Ls(output)
            | Verb::Info { output, .. }
            | Verb::Drain { output, .. }
            | Verb::Deregister { output, .. } => *output,
            Verb::Rm { .. } => OutputArgs::default(),
        }
    }

    /// # Errors
    /// What the control plane said.
    pub fn run(self, context: &Context) -> Outcome {
        let api = Api::of(&context.settings)?;
        match self {
            Verb::Ls(_) => {
                let headers = ["NODE", "STATE", "ADDRESS", "ZONE", "ELIGIBLE", "HEARTBEAT_AGE_MS"];
                context.format.rows(&api.list::<NodeView>(&["v1", "nodes"], "")?, &headers, row)
            }
            Verb::Info { node_id, .. } => {
                context.format.one(&api.get::<NodeView>(&["v1", "nodes", &node_id])?)
            }
            Verb::Drain { node_id, .. } => {
                context.format.one(&api.post_empty::<Node>(&["v1", "nodes", &node_id, "drain"])?)
            }
            Verb::Deregister { node_id, yes, .. } => {
                confirm(&format!("take the broker `{node_id}` out of the cluster"), yes)?;
                context.format.one(&api.post_empty::<Node>(&["v1", "nodes", &node_id, "deregister"])?)
            }
            Verb::Rm { node_id, yes } => {
                confirm(&format!("forget the broker `{node_id}`"), yes)?;
                api.delete(&["v1", "nodes", &node_id])?;
                remark("deleted");
                Ok(())
            }
        }
    }
}

fn row(view: &NodeView) -> Vec<String> {
    let spec = &view.node.spec;
    vec![
        view.node.node_id.clone(),
        view.node.status.lifecycle.as_str().to_owned(),
        spec.client_addr.clone().unwrap_or_else(|| spec.advertise_addr.clone()),
        spec.zone.clone().unwrap_or_else(|| "-".to_owned()),
        view.placement.eligible.to_string(),
        view.placement.heartbeat_age_ms.to_string(),
    ]
}
