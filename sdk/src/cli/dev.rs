//! `felix dev`: a control plane and a broker on this machine, with everything a first publish needs. Scope: per command.
//! Owns: the order of start, service and end.
//! Invariants: others are told only of a cluster that serves; nothing runs on after this process; the end is bounded.
//! Not here: the servers themselves, which are separate programs.

mod certificates;
mod cluster;
mod demo;
mod folder;
mod plan;
mod restarts;
mod seed;
mod server;
mod tokens;

use std::io::Write;
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;

use self::cluster::{BrokerKiller, Cluster};
pub use self::plan::DevArgs;
use self::plan::Plan;
use self::seed::Seed;
pub use self::server::find_program;
use super::dev_file::{DEFAULT_CONTEXT, DevFile, context_path, running_path};
use super::failure::{Failure, Outcome};
use super::interrupt::Signals;
use super::output::remark;

/// What a development cluster is about.
const TENANT: &str = "demo";
const NAMESPACE: &str = "default";
const STREAM: &str = "events";
const DURABLE_STREAM: &str = "orders";
const FIRST_STREAMS: [Seed<'static>; 2] = [
    Seed { name: STREAM, shards: 1, durable: false },
    Seed { name: DURABLE_STREAM, shards: 4, durable: true },
];
const NODE_ID: &str = "dev-0";

impl DevArgs {
    /// Runs until a signal, or until the demonstration is over. `variable` reads the environment.
    ///
    /// # Errors
    /// What kept it from starting, from serving on, or from ending in order.
    pub fn run(self, variable: &dyn Fn(&str) -> Option<String>) -> Outcome {
        let plan = Plan::new(self)?;
        // A demonstration is over before anybody could use its context, and must not take that of a running cluster.
        let context = context_path(DEFAULT_CONTEXT, variable).filter(|_| plan.demo.is_none());
        // Servers are tied to the thread that starts them: this one, which ends with the process.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::other(error.to_string()))?;
        let outcome = runtime.block_on(serve(plan, context));
        // Requests that nobody waits for any more.
        runtime.shutdown_background();
        outcome
    }
}

/// Makes the places of the context, and of what says that this cluster runs; `None`, with a remark, when there can be none.
fn make_places(context: PathBuf, data_dir: &Path) -> Option<(PathBuf, PathBuf)> {
    match running_path(&context, data_dir) {
        Ok(running) => Some((context, running)),
        Err(error) => {
            remark(&format!("{}: {error}; no context is saved", context.display()));
            None
        }
    }
}

async fn serve(plan: Plan, context: Option<PathBuf>) -> Outcome {
    let mut signals = Signals::listen()?;
    let demo_file = plan.demo.clone();
    let ready_file = plan.ready_file.clone();
    let in_folder = plan.data_dir.join("run/dev.json");
    let data_dir = plan.data_dir.clone();
    let mut cluster = Cluster::prepare(plan)?;
    let places = context.and_then(|context| make_places(context, &data_dir));
    let (context, running) = places.unzip();
    let named = ready_file.clone().or_else(|| context.is_none().then(|| in_folder.clone()));
    let needs_flag = if context.is_none() { named.clone() } else { None };
    // The context first: whoever waits for the ready file may use either.
    let told = running.into_iter().chain(named).collect();
    tokio::select! {
        started = cluster.start(told, context) => started?,
        () = signals.next() => return Err(Failure::other("ended before it was ready")),
    }
    let file = cluster.dev_file()?;
    let outcome = match demo_file {
        Some(path) => {
            tokio::select! {
                outcome = demonstrate(path, file, cluster.broker_killer()) => outcome,
                failure = cluster.keep() => Err(failure),
                () = signals.next() => Err(Failure::other("ended before the demonstration was over")),
            }
        }
        None => {
            print(&welcome(&file, needs_flag.as_deref()));
            tokio::select! {
                failure = cluster.keep() => Err(failure),
                () = signals.next() => Ok(()),
            }
        }
    };
    remark("draining");
    let ordered = tokio::select! {
        ordered = cluster.stop() => ordered,
        // Dropping the cluster kills what still runs.
        () = signals.next() => false,
    };
    outcome?;
    if ordered { Ok(()) } else { Err(Failure::other("a server did not end in order")) }
}

/// Runs the demonstration on threads of its own and prints its reports.
async fn demonstrate(path: PathBuf, file: DevFile, killer: BrokerKiller) -> Outcome {
    let (done, over) = oneshot::channel();
    std::thread::spawn(move || {
        // Nobody waits any more when a signal came.
        let _ = done.send(demo::run(&path, &file, &killer));
    });
    over.await.unwrap_or_else(|_| Err(Failure::other("the demonstration broke off")))
}

/// For the person at the terminal; one that is gone misses nothing.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

fn welcome(file: &DevFile, flag: Option<&std::path::Path>) -> String {
    let program = std::env::args().next().unwrap_or_else(|| "felix".to_owned());
    let felix = match flag {
        Some(path) => format!("{program} --dev {}", path.display()),
        None => program,
    };
    format!(
        "felix dev is ready\n\n  broker         {broker}\n  control plane  {ctrl}\n  metrics        {metrics}/metrics\n  \
         data           {data}\n\nIn another terminal, with the stream `{STREAM}` in memory:\n\n  {felix} sub {STREAM}\n  \
         echo hello | {felix} pub {STREAM}\n\nWith the stream `{DURABLE_STREAM}` on disk, which keeps its records when the \
         broker ends, however it ends:\n\n  seq 1000 | {felix} pub {DURABLE_STREAM} --key-column 1\n  kill -9 {pid}\n  \
         {felix} sub {DURABLE_STREAM} --from earliest --until-end\n\nCtrl-C ends it.",
        broker = file.broker_addr,
        ctrl = file.controlplane_url,
        metrics = file.metrics_url,
        data = file.data_dir.display(),
        pid = file.pids.broker,
    )
}
