//! `felix group dead`: the dead letters of a group.

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{ClaimArg, GroupArgs};
use crate::cli::failure::Outcome;
use crate::cli::nouns::{Context, Failure, OutputArgs, remark};
use crate::group::Group;

#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// List them
    Ls {
        #[command(flatten)]
        group: GroupArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Give records up by hand
    Add {
        #[command(flatten)]
        group: GroupArgs,
        /// shard/offset
        #[arg(required = true)]
        records: Vec<ClaimArg>,
    },
    /// Take them off the list for good
    Discard(Chosen),
    /// Take them off the list and hand them out again, with their attempts counted anew
    Redrive(Chosen),
}

#[derive(Clone, Debug, Args)]
pub struct Chosen {
    #[command(flatten)]
    group: GroupArgs,
    /// shard/offset
    #[arg(required_unless_present = "all")]
    records: Vec<ClaimArg>,
    /// All that are on the list
    #[arg(long, conflicts_with = "records")]
    all: bool,
}

#[derive(Clone, Copy, Serialize)]
struct DeadLetter {
    shard: u32,
    offset: u64,
}

impl Verb {
    pub fn output(&self) -> OutputArgs {
        match self {
            Verb::Ls { output, .. } => *output,
            Verb::Add { .. } | Verb::Discard(_) | Verb::Redrive(_) => OutputArgs::default(),
        }
    }

    /// # Errors
    /// What the brokers said; `NotFound` for a record that is not on the list.
    pub fn run(self, context: &Context) -> Outcome {
        match self {
            Verb::Ls { group, .. } => {
                let listed = group.with(context, async |group| all(group).await)?;
                context.format.rows(&listed, &["SHARD", "OFFSET"], |letter| {
                    vec![letter.shard.to_string(), letter.offset.to_string()]
                })
            }
            Verb::Add { group, records } => group.with(context, async |group| {
                super::each(&records, async |claim| Ok(group.dead_letter(claim.shard, claim.offset).await?))
                    .await
            }),
            Verb::Discard(chosen) => chosen.each(context, "discarded", async |group, letter| {
                Ok(group.discard(letter.shard, letter.offset.into()).await?)
            }),
            Verb::Redrive(chosen) => chosen.each(context, "to be handed out again", async |group, letter| {
                Ok(group.redrive(letter.shard, letter.offset.into()).await?)
            }),
        }
    }
}

impl Chosen {
    fn each(
        self,
        context: &Context,
        done: &str,
        request: impl AsyncFn(&Group, DeadLetter) -> Outcome,
    ) -> Outcome {
        let named =
            |ClaimArg(claim): &ClaimArg| DeadLetter { shard: claim.shard, offset: claim.offset.get() };
        let count = self.group.with(context, async |group| {
            let letters = match self.all {
                true => all(group).await?,
                false => self.records.iter().map(named).collect(),
            };
            for letter in &letters {
                let at =
                    |failure: Failure| failure.while_doing(&format!("{}/{}", letter.shard, letter.offset));
                request(group, *letter).await.map_err(at)?;
            }
            Ok(letters.len())
        })?;
        remark(&format!("{count} {done}"));
        Ok(())
    }
}

async fn all(group: &Group) -> Outcome<Vec<DeadLetter>> {
    let mut listed = Vec::new();
    for shard in 0..group.shard_count().await? {
        let offsets = group.dead_letters(shard).await?;
        listed.extend(offsets.into_iter().map(|offset| DeadLetter { shard, offset: offset.get() }));
    }
    Ok(listed)
}
