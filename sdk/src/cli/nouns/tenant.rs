//! `felix tenant`.

use clap::Subcommand;
use felix_wire::control::{Tenant, TenantCreate};

use super::{Api, Context, Outcome, OutputArgs, absent, confirm, remark, show_created};

#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// List tenants
    Ls(#[command(flatten)] OutputArgs),
    /// Show one tenant
    Info {
        tenant_id: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Make a tenant
    Create {
        tenant_id: String,
        #[arg(long, default_value = "")]
        display_name: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Delete a tenant with everything in it
    Rm {
        tenant_id: String,
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
        let all = ["v1", "tenants"];
        match self {
            Verb::Ls(_) => {
                context.format.rows(&api.list::<Tenant>(&all, "")?, &["TENANT", "NAME"], |tenant| {
                    vec![tenant.tenant_id.clone(), tenant.display_name.clone()]
                })
            }
            Verb::Info { tenant_id, .. } => {
                let found =
                    api.list::<Tenant>(&all, "")?.into_iter().find(|tenant| tenant.tenant_id == tenant_id);
                context.format.one(&found.ok_or_else(|| absent("tenant", &tenant_id))?)
            }
            Verb::Create { tenant_id, display_name, .. } => {
                let body = TenantCreate { tenant_id, display_name };
                show_created(context.format, &api.post::<Tenant>(&all, &body)?)
            }
            Verb::Rm { tenant_id, yes } => {
                confirm(&format!("delete the tenant `{tenant_id}` and everything in it"), yes)?;
                api.delete(&["v1", "tenants", &tenant_id])?;
                remark("deleted");
                Ok(())
            }
        }
    }
}
