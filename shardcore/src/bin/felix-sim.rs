//! Runs seeds of the simulator: `felix-sim --seeds 0..1000`, `felix-sim --replay 17`. Prints the first failing seed with
//! what came before and leaves with status 1.

use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use felix_runtime::planted::{Defect, plant};
use felix_shardcore::sim;

#[derive(Parser)]
#[command(about = "Simulates a broker, its clients and a bad network from one seed")]
struct Args {
    /// Seeds to run, from..to.
    #[arg(long, default_value = "0..1000", value_parser = range)]
    seeds: Range<u64>,
    /// One seed, with its plan and everything that happened near the end.
    #[arg(long)]
    replay: Option<u64>,
    /// The streams are durable, on simulated disks.
    #[arg(long)]
    durable: bool,
    /// A defect to plant, by its name in `felix_runtime::planted`: then seeds should fail.
    #[arg(long, value_parser = defect)]
    plant: Option<Defect>,
    /// Runs on after a failure and counts.
    #[arg(long)]
    keep_going: bool,
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("from..to")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    Ok(number(from)?..number(to)?)
}

fn defect(text: &str) -> Result<Defect, String> {
    let known = Defect::ALL.into_iter().find(|defect| format!("{defect:?}") == text);
    known.ok_or_else(|| format!("one of {:?}", Defect::ALL))
}

fn main() -> ExitCode {
    let args = Args::parse();
    plant(args.plant);
    if let Some(seed) = args.replay {
        let plan = sim::Plan::of(seed, args.durable);
        println!("{plan:#?}");
        return match sim::World::new(plan).keeping_all().run() {
            Ok(report) => {
                println!("{report:#?}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                show(&failure, args.durable);
                ExitCode::FAILURE
            }
        };
    }
    let (started, count) = (Instant::now(), args.seeds.end.saturating_sub(args.seeds.start));
    let mut failed = 0;
    for seed in args.seeds {
        if let Err(failure) = sim::check(seed, args.durable) {
            failed += 1;
            if !args.keep_going {
                show(&failure, args.durable);
                return ExitCode::FAILURE;
            }
            println!("{failure}");
        }
    }
    println!("{count} seeds in {:?}, {failed} failed", started.elapsed());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(failure: &sim::Failure, durable: bool) {
    for line in &failure.last {
        println!("{line}");
    }
    println!("{failure}");
    let durable = if durable { " --durable" } else { "" };
    println!("replay: felix-sim --replay {}{durable}", failure.seed);
}
