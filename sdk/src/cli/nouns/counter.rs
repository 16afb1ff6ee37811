//! `felix counter`: the counters beside a cache.

use clap::Subcommand;
use serde::Serialize;

use super::{Context, Failure, Format, Kind, Outcome, OutputArgs};
use crate::cli::argument;
use crate::cli::connect::connect;
use crate::cli::on_runtime;
use crate::cli::output::print_line;
use crate::counter::Counters;

#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Add to a counter and print the sum
    Add {
        cache: String,
        /// Text, or @FILE
        key: String,
        /// What to add; may be negative
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        delta: i64,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Print the sum (5 when nothing was ever added)
    Get {
        cache: String,
        /// Text, or @FILE
        key: String,
        #[command(flatten)]
        output: OutputArgs,
    },
}

#[derive(Serialize)]
struct Sum<'a> {
    key: &'a str,
    value: i64,
}

impl Verb {
    pub fn output(&self) -> OutputArgs {
        match self {
            Verb::Add { output, .. } | Verb::Get { output, .. } => *output,
        }
    }

    /// # Errors
    /// What the brokers said; `NotFound` for a counter that nothing was ever added to.
    pub fn run(self, context: &Context) -> Outcome {
        match self {
            Verb::Add { cache, key, delta, .. } => {
                let key = argument::key(&key)?;
                let sum = with(context, &cache, async |counters| Ok(counters.add(&key, delta).await?))?;
                show(context.format, &key, sum)
            }
            Verb::Get { cache, key, .. } => {
                let key = argument::key(&key)?;
                let sum = with(context, &cache, async |counters| Ok(counters.get(&key).await?))?;
                let never = || Failure::new(Kind::NotFound, format!("nothing was ever added to `{key}`"));
                show(context.format, &key, sum.ok_or_else(never)?)
            }
        }
    }
}

fn show(format: Format, key: &str, value: i64) -> Outcome {
    match format {
        Format::Table => print_line(&value.to_string()),
        Format::Json => format.one(&Sum { key, value }),
    }
}

fn with<T>(context: &Context, cache: &str, request: impl AsyncFnOnce(&Counters) -> Outcome<T>) -> Outcome<T> {
    on_runtime(async {
        let client = connect(&context.settings).await?;
        let outcome = request(&client.counters(cache)?).await;
        client.close().await;
        outcome
    })
}
