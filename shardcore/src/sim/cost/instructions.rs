//! Instructions that a publish costs the broker's machines, counted by callgrind in a process of its own for each case.
//! Scope: tests. Invariants: only what happens within `collected` is counted, and of that only what follows the first part of a
//! run: counts are zeroed where `super::measured` begins, so handshake, recovery and growing tables are not in them.
//! In the count: everything that runs in a core, with QUIC and with TLS, which seals and opens each packet for real, the
//! allocator, and the simulated network and disks, which take and bring whole pages. Not in it: clients, the judge, the kernel.
//! The build is that of the tests, with its assertions and overflow checks: a figure is for comparing with itself.
//! Not here: what a run is (`super`).

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{measured, warm};

/// Set in a process that is counted: which of `CEILINGS` it runs.
const CASE: &str = "FELIX_COST_CASE";
/// What such a process says behind this: publishes and records.
const SAYS: &str = "measured:";
/// Publishes before anything is counted.
const WARMUP_PUBLISHES: u64 = 600;
/// What is counted, in the time of the simulation.
const TIME: Duration = Duration::from_millis(60);
/// A count below this part of its ceiling: not everything was counted, or the ceiling has become too high to find anything.
const FLOOR: f64 = 0.75;

/// Batch, durable, instructions at most for a publish and for a record: some 7 % above what was counted. Valgrind shows every
/// program the same processor, so that those of OpenSSL's and the C library's functions that are chosen by processor differ little;
/// compilers differ more.
const CEILINGS: [(u32, bool, f64, f64); 4] = [
    // 3,542.
    (1, false, 3_800.0, 3_800.0),
    // 90,451 and 1,421.
    (128, false, 97_000.0, 1_530.0),
    // 57,486, with what the simulated disk takes.
    (1, true, 61_500.0, 61_500.0),
    // 204,744 and 3,188.
    (128, true, 219_000.0, 3_420.0),
];

/// Does `work`, of which callgrind collects the instructions: it finds this function by its name.
#[inline(never)]
pub(super) fn collected<T>(work: impl FnOnce() -> T) -> T {
    let done = work();
    // Else `work` may be jumped to and never come back here.
    std::hint::black_box(&done);
    done
}

/// What one process counted.
#[derive(Debug)]
struct Counted {
    instructions: u64,
    publishes: u64,
    records: u64,
}

/// Runs a case in a process under callgrind.
fn count(case: usize) -> Counted {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("callgrind.out");
    let name = "sim::cost::instructions::a_publish_takes_no_more_instructions_than_its_ceiling";
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*sim::cost::instructions::collected*"])
        .arg("--zero-before=*sim::cost::measured*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
        .env(CASE, case.to_string())
        .output();
    let ran = ran.unwrap_or_else(|why| {
        panic!("instructions are counted with valgrind, which cannot be started here ({why}): install it, as .ci/tools does")
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (says, complains) = (text(&ran.stdout), text(&ran.stderr));
    assert!(ran.status.success(), "{}\n{says}\n{complains}", ran.status);
    let figures = says.lines().find_map(|line| line.strip_prefix(SAYS));
    let figures = figures.unwrap_or_else(|| panic!("nothing was run: {says}\n{complains}"));
    let figures: Vec<u64> = figures.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
    let [publishes, records] = figures[..] else { panic!("{figures:?}") };
    Counted { instructions: total(&out), publishes, records }
}

/// The total of what callgrind wrote.
fn total(out: &Path) -> u64 {
    let text = fs::read_to_string(out).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("totals:"));
    let line = line.unwrap_or_else(|| panic!("callgrind wrote no total: {text}"));
    line.trim().parse().unwrap()
}

#[test]
fn a_publish_takes_no_more_instructions_than_its_ceiling() {
    if let Some(case) = std::env::var_os(CASE) {
        let (batch_max, durable, ..) = CEILINGS[case.to_str().unwrap().parse::<usize>().unwrap()];
        let (mut world, at) = warm(batch_max, durable, WARMUP_PUBLISHES);
        let (publishes, records) = measured(&mut world, at + TIME);
        // The test's name stands before it on its line.
        println!("\n{SAYS} {publishes} {records}");
        return;
    }
    let mut wrong = Vec::new();
    for (case, (batch_max, durable, publish_max, record_max)) in CEILINGS.into_iter().enumerate() {
        let Counted { instructions, publishes, records } = count(case);
        assert!(publishes > 200, "{publishes} publishes say little");
        let per = |count: u64| instructions as f64 / count as f64;
        let what = format!("batches of up to {batch_max}, durable {durable}");
        println!(
            "{what}: {instructions} instructions for {publishes} publishes with {records} records, {:.0} for a publish, \
             {:.0} for a record",
            per(publishes),
            per(records)
        );
        for (of, count, max) in [("publish", publishes, publish_max), ("record", records, record_max)] {
            if !(max * FLOOR..=max).contains(&per(count)) {
                wrong.push(format!(
                    "{what}: {:.0} instructions for a {of}, and not {:.0} to {max:.0}",
                    per(count),
                    max * FLOOR
                ));
            }
        }
    }
    let exe = std::env::current_exe().unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}; the bounds are those of the profile ci, and this is {exe:?}");
}
