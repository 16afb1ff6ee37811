//! A made-up run as a page: every element closed, every name escaped, nothing loaded.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::campaign::result::{Law, Ledger, Outcome, RESULT_VERSION};
use crate::campaign::{Cell, CountedAt, Kind, System, Trial};
use crate::measure::{CpuUse, Latency, LatencySummary, ThreadUse};
use crate::preflight::{Preflight, PreflightPlan};
use crate::shape::{Shape, Storage};

fn cell(name: &str, change: impl FnOnce(&mut Cell)) -> Cell {
    let mut cell = Cell {
        name: name.to_owned(),
        system: System::Broker,
        kind: Kind::Publish,
        shape: Shape::canonical(),
        server_cores: "0".to_owned(),
        broker: BTreeMap::new(),
    };
    change(&mut cell);
    cell
}

fn trial(number: u32, mb_per_s: f64) -> Trial {
    let summary = LatencySummary {
        count: 9,
        mean_us: 300.0,
        p50_us: 280.0,
        p99_us: 900.0,
        ..LatencySummary::default()
    };
    let thread = |name: &str, seconds| ThreadUse { name: name.to_owned(), seconds };
    Trial {
        number,
        started_unix_s: 0.0,
        counted_at: CountedAt::Broker,
        intervals: 4,
        batches_per_s: mb_per_s * 4.0,
        messages_per_s: mb_per_s * 256.0,
        mb_per_s,
        server: Some(CpuUse {
            seconds: 4.0,
            core_busy_percent: 90.0,
            core_waited_percent: 0.0,
            threads: vec![thread("felix-core-0", 3.6), thread("<admin>", 0.2)],
        }),
        server_s_per_gb: Some(0.3),
        server_s_per_million: Some(1.2),
        client_s_per_gb: Some(0.3),
        appended_by_core: BTreeMap::from([(0, 75.0), (1, 25.0)]),
        ack: summary,
        service: summary,
        queueing: LatencySummary::default(),
        delivery: LatencySummary::default(),
        law: Law { in_flight: 7.5, allowed: 8.0, in_system: 7.5 },
        ledger: Ledger { sent: 10, accepted: Some(10), ..Ledger::default() },
        disk: None,
        load_average: 0.1,
        generators: Vec::<Outcome>::new(),
    }
}

fn preflight() -> Preflight {
    let plan = PreflightPlan {
        cpus: vec![0],
        server_cores: 1,
        mtu: 1_452,
        address: [127, 0, 0, 1].into(),
        disk: None,
        spin: Duration::from_millis(1),
        disk_row: Duration::from_millis(1),
    };
    Preflight::take(&plan).unwrap()
}

fn result(cells: Vec<Cell>) -> (RunResult, Vec<CellCurves>) {
    let mut ack = Latency::default();
    (1..5_000).for_each(|micros| ack.record(Duration::from_micros(micros)));
    let curves = CellCurves::of(&Histograms { ack, ..Histograms::default() });
    let curves = vec![curves; cells.len()];
    let cells = cells
        .into_iter()
        .map(|cell| CellResult { cell, trials: vec![trial(1, 900.0), trial(2, 1_000.0), trial(3, 1_100.0)] });
    let result = RunResult {
        version: RESULT_VERSION,
        name: "made-up <&\"'>".to_owned(),
        started_unix_s: 0.0,
        ended_unix_s: 9.0,
        preflight: preflight(),
        programs: Vec::new(),
        trials: 3,
        client_cpu: 1,
        agents: Vec::new(),
        cells: cells.collect(),
    };
    (result, curves)
}

/// Fails at the first element that is not closed in order, or the first stray `<` or `&`.
fn assert_well_formed(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let page = page.strip_prefix("<!DOCTYPE html>").expect("a page");
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        assert_text(&rest[..at]);
        let end = at + rest[at..].find('>').expect("an element ends");
        let inside = &rest[at + 1..end];
        assert!(!inside.contains('<'), "a `<` within {inside}");
        assert!(inside.matches('"').count().is_multiple_of(2), "quotes of {inside}");
        let name = inside.trim_matches('/').split([' ', '/']).next().unwrap_or_default();
        if inside.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "closed in order");
        } else if !inside.ends_with('/') {
            open.push(name);
        }
        rest = &rest[end + 1..];
    }
    assert_text(rest);
    assert!(open.is_empty(), "left open: {open:?}");
}

fn assert_text(text: &str) {
    assert!(!text.contains('>'), "a stray `>` in {text}");
    for (at, _) in text.match_indices('&') {
        let entity = text[at..].split(';').next().unwrap_or_default();
        assert!(["&amp", "&lt", "&gt", "&quot", "&#39"].contains(&entity), "{entity} in {text}");
    }
}

#[test]
fn a_page_is_well_formed_and_needs_nothing_else() {
    let rate = |rate: f64| move |cell: &mut Cell| cell.shape.rate = Some(rate);
    let (mut result, curves) = result(vec![
        cell("plain", |_| {}),
        cell("<script>alert(\"&'\")</script>\u{1}", |_| {}),
        cell("sink", |cell| cell.system = System::Sink),
        cell("durable", |cell| cell.shape.storage = Storage::FsyncOnCommit),
        cell("open-1000", rate(1_000.0)),
        cell("open-4000", rate(4_000.0)),
    ]);
    result.cells[0].trials[1].ledger.accepted = Some(9);
    let page = draw(&result, &curves);
    assert_well_formed(&page);
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"), "names are escaped");
    for loads in ["src=", "href=", "url(", "@import", "<link", "<img", "<iframe"] {
        assert!(!page.contains(loads), "the page loads something: {loads}");
    }
    for part in [
        "Throughput",
        "CPU per byte",
        "Latency of answers",
        "Latency against load: open-1000",
        "Batches in flight",
        "Threads of the server",
    ] {
        assert!(page.contains(part), "no {part}");
    }
    let ratio = |name: usize| beside_sink(&result, &result.cells[name]);
    assert_eq!(
        (ratio(0), ratio(2), ratio(3)),
        (Some(1.0), None, None),
        "a sink of the same load, or no ratio"
    );
    assert!(page.contains("DOES NOT BALANCE") && page.contains("Not clean, so worth nothing: plain"));
}

#[test]
fn a_clean_run_says_nothing_else() {
    let (result, curves) = result(vec![cell("plain", |_| {})]);
    let page = draw(&result, &curves);
    assert!(!page.contains("Not clean") && !page.contains("DOES NOT BALANCE"));
    assert!(page.contains("1,000") && page.contains("± 10.0 %"), "the median of the trials and their spread");
    assert!(!page.contains("Latency against load"), "nothing was offered at a rate");
}
