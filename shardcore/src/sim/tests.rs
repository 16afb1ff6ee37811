//! Seeds that every run of the tests takes.

use std::time::Instant;

use super::*;

/// Seeds from `FELIX_SIM_SEEDS`, else what fits a minute of two slow cores.
fn seeds() -> u64 {
    std::env::var("FELIX_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

fn fail(failure: &Failure) -> ! {
    for line in &failure.last {
        eprintln!("{line}");
    }
    panic!("{failure}; replay it with felix-sim --replay {}", failure.seed);
}

#[test]
fn every_seed_keeps_what_was_acked_in_order_and_comes_to_rest() {
    let started = Instant::now();
    let mut met = std::collections::BTreeMap::new();
    for seed in 0..seeds() {
        match check(seed) {
            Ok(report) => {
                for (what, count) in report.met {
                    *met.entry(what).or_insert(0) += count;
                }
            }
            Err(failure) => fail(&failure),
        }
    }
    println!("{} seeds in {:?}: {met:?}", seeds(), started.elapsed());
    if seeds() >= 100 {
        for (what, count) in met {
            assert!(count > 0, "no seed met: {what}");
        }
    }
}

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    for seed in regressions() {
        if let Err(failure) = run(seed) {
            fail(&failure);
        }
    }
}
