//! `felix namespace`: the namespaces of the tenant in use.

use clap::Subcommand;
use felix_wire::control::{Namespace, NamespaceCreate};

use super::{Api, Context, Outcome, OutputArgs, absent, confirm, remark, show_created};

#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// List namespaces
    Ls(#[command(flatten)] OutputArgs),
    /// Show one namespace
    Info {
        name: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Make a namespace
    Create {
        name: String,
        #[arg(long, default_value = "")]
        display_name: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Delete a namespace with everything in it
    Rm {
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

impl Verb {
    pub fn output(&self) -> OutputArgs {
        match self {
            Verb::Ls(output) | Verb::Info { output, .. } | Verb::Create { output, .. } => *output,
            Verb::Rm { .. } => OutputArgs::default(),
        }
    }

    /// # Errors
    /// What the control plane said.
    pub fn run(self, context: &Context) -> Outcome {
        let api = Api::of(&context.settings)?;
        let tenant = context.settings.tenant()?;
        let all = ["v1", "tenants", tenant, "namespaces"];
        match self {
            Verb::Ls(_) => {
                context.format.rows(&api.list::<Namespace>(&all, "")?, &["NAMESPACE", "NAME"], |namespace| {
                    vec![namespace.namespace.clone(), namespace.display_name.clone()]
                })
            }
            Verb::Info { name, .. } => {
                let found = api.list::<Namespace>(&all, "")?.into_iter().find(|item| item.namespace == name);
                context.format.one(&found.ok_or_else(|| absent("namespace", &name))?)
            }
            Verb::Create { name, display_name, .. } => {
                let body = NamespaceCreate { namespace: name, display_name };
                show_created(context.format, &api.post::<Namespace>(&all, &body)?)
            }
            Verb::Rm { name, yes } => {
                confirm(&format!("delete the namespace `{name}` and everything in it"), yes)?;
                api.delete(&["v1", "tenants", tenant, "namespaces", &name])?;
                remark("deleted");
                Ok(())
            }
        }
    }
}
