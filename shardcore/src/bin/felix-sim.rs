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
    /// The same, with requests about caches, counters and consumer groups.
    #[arg(long)]
    asks: bool,
    /// With `--replay`: without reads that go wrong.
    #[arg(long)]
    sound_reads: bool,
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
    let kind = match (args.asks, args.durable) {
        (true, _) => sim::Kind::Asks,
        (false, true) => sim::Kind::Durable,
        (false, false) => sim::Kind::Memory,
    };
    if let Some(seed) = args.replay {
        let plan = sim::Plan::of(seed, kind);
        let plan = if args.sound_reads { plan.with_sound_reads() } else { plan };
        println!("{plan:#?}");
        return match sim::World::new(plan).keeping_all().run() {
            Ok(report) => {
                println!("{report:#?}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                show(&failure, kind);
                ExitCode::FAILURE
            }
        };
    }
    let (started, count) = (Instant::now(), args.seeds.end.saturating_sub(args.seeds.start));
    let mut failed = 0;
    for seed in args.seeds {
        if let Err(failure) = sim::check(seed, kind) {
            failed += 1;
            if !args.keep_going {
                show(&failure, kind);
                return ExitCode::FAILURE;
            }
            println!("{failure}");
        }
    }
    println!("{count} seeds in {:?}, {failed} failed", started.elapsed());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(failure: &sim::Failure, kind: sim::Kind) {
    for line in &failure.last {
        println!("{line}");
    }
    println!("{failure}");
    let kind = match kind {
        sim::Kind::Memory => "",
        sim::Kind::Durable => " --durable",
        sim::Kind::Asks => " --asks",
    };
    println!("replay: felix-sim --replay {}{kind}", failure.seed);
}
