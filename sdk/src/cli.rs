//! The `felix` program: `felix dev`, `felix pub` and `felix sub`, and a noun and a verb for what the control plane holds.
//! Scope: per process.
//! Owns: the command line and what each exit status means.
//! Invariants: results go to standard output, everything else to standard error; a wrong command line does nothing.
//! Not here: the client (`crate::client`), the servers (programs of their own).

mod api;
mod argument;
mod connect;
mod dev;
mod dev_file;
mod duration;
mod failure;
mod inspect;
mod interrupt;
mod nouns;
mod output;
mod private_file;
mod publish;
mod settings;
mod size;
mod subscribe;
mod tied;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::failure::{Failure, Outcome};
use self::nouns::{Context, cache, commit, counter, group, namespace, node, shard, stream, tenant, token};
use self::output::Format;
use self::settings::{Settings, TargetArgs};
use self::subscribe::Rendering;

/// Streams over QUIC: run a broker, publish, subscribe, manage.
#[derive(Debug, Parser)]
#[command(name = "felix", version, max_term_width = 110, after_help = EXIT_STATUSES)]
struct Line {
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    command: Command,
}

const EXIT_STATUSES: &str = "Exit status: 0 done, 1 failed, 2 wrong usage or settings, 3 nothing reachable, 4 refused, \
                             5 not found, 6 outcome unknown";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a control plane and a broker on this machine
    Dev(dev::DevArgs),
    /// Publish standard input or files
    Pub(publish::PubArgs),
    /// Print records as they come
    Sub(subscribe::SubArgs),
    /// Look at the files of a stopped broker (0 sound, 1 damage found, 2 no report)
    Inspect(inspect::InspectArgs),
    /// Tenants of the cluster
    #[command(subcommand)]
    Tenant(tenant::Verb),
    /// Namespaces of the tenant
    #[command(subcommand)]
    Namespace(namespace::Verb),
    /// Streams of the namespace
    #[command(subcommand)]
    Stream(stream::Verb),
    /// Caches of the namespace, their keys and values
    #[command(subcommand)]
    Cache(cache::Verb),
    /// Counters beside a cache
    #[command(subcommand)]
    Counter(counter::Verb),
    /// Consumer groups of a stream
    #[command(subcommand)]
    Group(group::Verb),
    /// Commit an event with changes of keyed state, all or nothing
    Commit(commit::CommitArgs),
    /// Keyed state that commits have made
    #[command(subcommand)]
    State(commit::StateVerb),
    /// Shards and who serves them
    #[command(subcommand)]
    Shard(shard::Verb),
    /// Brokers of the cluster
    #[command(subcommand)]
    Node(node::Verb),
    /// Tokens
    #[command(subcommand)]
    Token(token::Verb),
    #[command(name = tied::COMMAND, hide = true)]
    Tied(tied::TiedArgs),
}

/// Runs the program with the arguments of the process.
pub fn run() -> ExitCode {
    // Wrong usage ends here with status 2, help and version with 0.
    let line = Line::parse();
    let json = line.command.fails_in_json();
    match line.command.run(line.target) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl Command {
    fn run(self, target: TargetArgs) -> Outcome {
        let format = self.format();
        let settings = || Settings::resolve(target, &variable);
        let context = |settings: Settings| Context { settings, format };
        match self {
            Command::Dev(args) => args.run(&variable),
            Command::Tied(args) => args.run(),
            Command::Inspect(args) => args.run(),
            Command::Pub(args) => {
                let settings = settings()?;
                on_runtime(async move { args.run(&settings).await })
            }
            Command::Sub(args) => {
                let settings = settings()?;
                on_runtime(async move { args.run(&settings).await })
            }
            Command::Tenant(verb) => verb.run(&context(settings()?)),
            Command::Namespace(verb) => verb.run(&context(settings()?)),
            Command::Stream(verb) => verb.run(&context(settings()?)),
            Command::Cache(verb) => verb.run(&context(settings()?)),
            Command::Counter(verb) => verb.run(&context(settings()?)),
            Command::Group(verb) => verb.run(&context(settings()?)),
            Command::Commit(args) => args.run(&context(settings()?)),
            Command::State(verb) => verb.run(&context(settings()?)),
            Command::Shard(verb) => verb.run(&context(settings()?)),
            Command::Node(verb) => verb.run(&context(settings()?)),
            Command::Token(verb) => verb.run(&context(settings()?)),
        }
    }

    fn format(&self) -> Format {
        match self {
            Command::Pub(args) => args.output.output,
            Command::Tenant(verb) => verb.output().output,
            Command::Namespace(verb) => verb.output().output,
            Command::Stream(verb) => verb.output().output,
            Command::Cache(verb) => verb.output().output,
            Command::Counter(verb) => verb.output().output,
            Command::Group(verb) => verb.output().output,
            Command::Commit(args) => args.output.output,
            Command::State(verb) => verb.output().output,
            Command::Shard(verb) => verb.output().output,
            Command::Node(verb) => verb.output().output,
            Command::Token(verb) => verb.output().output,
            Command::Dev(_) | Command::Sub(_) | Command::Tied(_) | Command::Inspect(_) => Format::Table,
        }
    }

    fn fails_in_json(&self) -> bool {
        match self {
            Command::Sub(args) => args.output == Rendering::Json,
            other => other.format() == Format::Json,
        }
    }
}

/// Runs a command that talks to brokers. Its own thread is not one of the runtime's, so it may block.
fn on_runtime<T>(command: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::other(error.to_string()))?;
    let outcome = runtime.block_on(command);
    // A thread that reads standard input ends with the process.
    runtime.shutdown_background();
    outcome
}
