//! A run as one page: pictures and tables in one file that needs nothing else. Scope: one result.
//! Owns: what is shown, in which order.
//! Invariants: the page is well-formed whatever names hold; it loads nothing; a figure is shown with its spread, and a run
//! that is not clean says so at the top.
//! Not here: drawing (`charts`, `svg`), what is in a result (`campaign::result`).

pub mod charts;
mod figures;
pub mod svg;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use crate::campaign::folder::stamp;
use crate::campaign::{CellResult, FolderError, RunFolder, RunResult, System};
use crate::measure::{Histograms, Spread};
use crate::shape::Shape;
use charts::figure;
use svg::escape;

/// What is drawn of a cell's histograms: quantiles and microseconds, all trials together.
#[derive(Debug, Clone, Default)]
pub struct CellCurves {
    pub ack: Vec<(f64, f64)>,
    pub delivery: Vec<(f64, f64)>,
}

impl CellCurves {
    #[must_use]
    pub fn of(histograms: &Histograms) -> CellCurves {
        CellCurves { ack: histograms.ack.curve(), delivery: histograms.delivery.curve() }
    }
}

/// The page of a run whose trials are in `folder`. Histograms are held for one cell at a time.
///
/// # Errors
/// A histogram of the folder cannot be read.
pub fn page(folder: &RunFolder, result: &RunResult) -> Result<String, FolderError> {
    let read = |cell: &CellResult| {
        folder.histograms(&cell.cell.name, result.trials).map(|histograms| CellCurves::of(&histograms))
    };
    let curves: Result<Vec<CellCurves>, FolderError> = result.cells.iter().map(read).collect();
    Ok(draw(result, &curves?))
}

/// The page of a result with the curves of its cells, in their order.
#[must_use]
pub fn draw(result: &RunResult, curves: &[CellCurves]) -> String {
    let mut page = String::new();
    let title = format!("{} {}", result.name, stamp(result.started_unix_s));
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>{}</title>\
         <style>{STYLE}</style></head><body>\n<h1>{}</h1>\n",
        escape(&title),
        escape(&title)
    );
    head(&mut page, result);
    section(&mut page, "Throughput", THROUGHPUT, &figures::throughput(result));
    section(&mut page, "CPU of the server", CPU, &figures::cpu(result));
    section(&mut page, "Latency", LATENCY, &figures::latency(result, curves));
    section(&mut page, "Latency against load", AGAINST, &figures::against_load(result));
    section(&mut page, "In flight", LAW, &figures::law(result));
    section(&mut page, "Cores", CORES, &figures::cores(result));
    section(&mut page, "Disk", DISK, &figures::disk(result));
    table(&mut page, "All cells", &CELL_COLUMNS, result.cells.iter().map(|cell| cell_row(result, cell)));
    table(&mut page, "Records", &LEDGER_COLUMNS, result.cells.iter().flat_map(ledger_rows));
    settings(&mut page, result);
    page.push_str("</body></html>\n");
    page
}

const THROUGHPUT: &str = "Payload of batches that the broker appended, counted by the broker each second: the median of the \
    steady window, then of the trials. The whisker is the range of the trials. Cells marked * were counted by the generator.";
const CPU: &str = "User and system time of the whole server process over what it appended in the same seconds. Both \
    pictures show the same time, once for each gigabyte of payload and once for each million records.";
const LATENCY: &str = "From the moment a batch was written (closed loop) or due (open loop) to its answer; all trials \
    together. A closed loop shows the latency of a full pipeline.";
const AGAINST: &str = "Open loop: batches are due at fixed moments whatever the server does. Solid: what a user waits, from \
    the moment the batch was due. Dashed: the part after it was written. The gap between them is queueing in the generator.";
const LAW: &str = "Little's law: the rate times the mean service time. The red mark is what the shape allows. A bar well \
    below its mark was held back by something else than the server.";
const CORES: &str =
    "The server's threads, percent of the steady window; of the trial with the median throughput.";
const DISK: &str = "The disk as the preflight found it, and durable cells beside it. The dashed line is the fastest synced \
    row: no durable cell can pass it.";

const CELL_COLUMNS: [&str; 14] = [
    "cell",
    "MB/s",
    "spread",
    "messages/s",
    "server s/GB",
    "of the sink",
    "server s/M",
    "client s/GB",
    "core busy",
    "ack p50 us",
    "ack p99 us",
    "service p50 / p99 us",
    "queueing p50 / p99 us",
    "delivery p50 / p99 us",
];
const LEDGER_COLUMNS: [&str; 10] = [
    "cell, trial",
    "sent",
    "accepted by the broker",
    "refused",
    "unanswered",
    "to be delivered",
    "delivered",
    "missing",
    "repeated",
    "verdict",
];

fn head(page: &mut String, result: &RunResult) {
    let machine = &result.preflight.machine;
    let _ = writeln!(
        page,
        "<p>{} cells, {} trials each, interleaved. {} CPUs of {}, kernel {}, commit {}, {} build; load average {:.1} \
         before.</p>",
        result.cells.len(),
        result.trials,
        machine.cpus,
        escape(&machine.cpu),
        escape(&machine.kernel),
        escape(&machine.commit),
        escape(&machine.build),
        result.preflight.host.load_average
    );
    let unclean: Vec<String> =
        result.cells.iter().filter(|cell| !cell.is_clean()).map(|cell| escape(&cell.cell.name)).collect();
    if !unclean.is_empty() {
        let _ = writeln!(
            page,
            "<p class=\"bad\">Not clean, so worth nothing: {}. See the table of records.</p>",
            unclean.join(", ")
        );
    }
    for remark in &result.preflight.remarks {
        let _ = writeln!(page, "<p class=\"warn\">{}</p>", escape(&remark.line()));
    }
}

fn section(page: &mut String, title: &str, says: &str, pictures: &[String]) {
    if pictures.is_empty() {
        return;
    }
    let _ = write!(page, "<h2>{}</h2>\n<p>{}</p>\n", escape(title), escape(says));
    for picture in pictures {
        let _ = writeln!(page, "<figure>{picture}</figure>");
    }
}

fn table<const N: usize>(
    page: &mut String,
    title: &str,
    columns: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    let _ = write!(page, "<h2>{}</h2>\n<table><tr>", escape(title));
    for column in columns {
        let _ = write!(page, "<th>{}</th>", escape(column));
    }
    page.push_str("</tr>\n");
    for row in rows {
        page.push_str("<tr>");
        for field in row {
            let _ = write!(page, "<td>{}</td>", escape(&field));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

fn median(spread: Option<Spread>) -> String {
    spread.map_or("-".to_owned(), |spread| figure(spread.median))
}

/// CPU per byte over that of the sink with the same load in this run; none without such a sink.
fn beside_sink(result: &RunResult, cell: &CellResult) -> Option<f64> {
    let load = |cell: &CellResult| Shape { name: String::new(), ..cell.cell.shape.clone() };
    let same = |other: &&CellResult| {
        other.cell.system == System::Sink
            && load(other) == load(cell)
            && other.cell.server_cores == cell.cell.server_cores
    };
    let sink = result.cells.iter().find(same).filter(|_| cell.cell.system == System::Broker)?;
    let cost = |cell: &CellResult| cell.spread(|trial| trial.server_s_per_gb).map(|spread| spread.median);
    let (own, least) = (cost(cell)?, cost(sink).filter(|cost| *cost > 0.0)?);
    Some(own / least)
}

fn cell_row(result: &RunResult, cell: &CellResult) -> [String; 14] {
    let busy = cell.spread(|trial| trial.server.as_ref().map(|server| server.core_busy_percent));
    let some = |count: u64, value: f64| (count > 0).then_some(value);
    let pair = |p50: Option<Spread>, p99: Option<Spread>| {
        if p50.is_none() { "-".to_owned() } else { format!("{} / {}", median(p50), median(p99)) }
    };
    let throughput = cell.throughput();
    [
        cell.cell.name.clone(),
        median(throughput),
        throughput.map_or("-".to_owned(), |spread| format!("± {:.1} %", spread.percent())),
        median(cell.spread(|trial| Some(trial.messages_per_s))),
        median(cell.spread(|trial| trial.server_s_per_gb)),
        beside_sink(result, cell).map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
        median(cell.spread(|trial| trial.server_s_per_million)),
        median(cell.spread(|trial| trial.client_s_per_gb)),
        busy.map_or("-".to_owned(), |busy| format!("{:.0} %", busy.median)),
        median(cell.spread(|trial| some(trial.ack.count, trial.ack.p50_us))),
        median(cell.spread(|trial| some(trial.ack.count, trial.ack.p99_us))),
        pair(
            cell.spread(|trial| some(trial.service.count, trial.service.p50_us)),
            cell.spread(|trial| some(trial.service.count, trial.service.p99_us)),
        ),
        pair(
            cell.spread(|trial| some(trial.queueing.count, trial.queueing.p50_us)),
            cell.spread(|trial| some(trial.queueing.count, trial.queueing.p99_us)),
        ),
        pair(
            cell.spread(|trial| some(trial.delivery.count, trial.delivery.p50_us)),
            cell.spread(|trial| some(trial.delivery.count, trial.delivery.p99_us)),
        ),
    ]
}

fn ledger_rows(cell: &CellResult) -> Vec<[String; 10]> {
    let known = |value: Option<u64>| value.map_or("not counted".to_owned(), |value| value.to_string());
    let row = |trial: &crate::campaign::Trial| {
        let ledger = &trial.ledger;
        let verdict = match (ledger.is_clean(), ledger.is_balanced()) {
            (true, _) => "clean",
            (false, true) => "balanced, not clean",
            (false, false) => "DOES NOT BALANCE",
        };
        [
            format!("{}, {}", cell.cell.name, trial.number),
            ledger.sent.to_string(),
            known(ledger.accepted),
            ledger.refused.to_string(),
            ledger.unanswered.to_string(),
            ledger.expected.to_string(),
            ledger.delivered.to_string(),
            ledger.missing.to_string(),
            ledger.repeated.to_string(),
            verdict.to_owned(),
        ]
    };
    cell.trials.iter().map(row).collect()
}

fn settings(page: &mut String, result: &RunResult) {
    let _ = write!(page, "<h2>Preflight</h2>\n<pre>{}</pre>\n", escape(&result.preflight.to_string()));
    let programs = result.programs.iter().map(|program| {
        [
            program.name.clone(),
            program.version.clone(),
            program.commit.clone().unwrap_or_else(|| "not known".to_owned()),
            program.bytes.to_string(),
            program.sha256.clone(),
        ]
    });
    table(page, "Programs", &["program", "version", "commit", "bytes", "SHA-256"], programs);
    if !result.agents.is_empty() {
        let agents = result.agents.iter().map(|agent| {
            let largest = agent.path.iter().filter(|size| size.arrived).map(|size| size.bytes).max();
            [
                agent.address.clone(),
                format!("{:.3} ms", agent.clock_offset_s * 1e3),
                format!("{:.3} ms", agent.round_trip_s * 1e3),
                format!("{:.2} %", agent.noise.lost_percent),
                largest.map_or("none".to_owned(), |bytes| bytes.to_string()),
            ]
        });
        let columns = ["agent", "clock ahead", "round trip", "CPU had by others", "largest datagram"];
        table(page, "Agents", &columns, agents);
    }
    let cells = result.cells.iter().map(|cell| {
        let shape = serde_json::to_string(&cell.cell.shape).unwrap_or_default();
        [cell.cell.name.clone(), cell.cell.server_cores.clone(), cell.cell.settings().join(" "), shape]
    });
    table(page, "Settings", &["cell", "server cores", "broker", "shape"], cells);
}

const STYLE: &str = "body{font-family:system-ui,sans-serif;color:#1f2933;max-width:1200px;margin:24px auto;padding:0 16px;\
line-height:1.45}h1{font-size:24px}h2{font-size:18px;margin-top:32px;border-bottom:1px solid #e4e7eb}\
figure{margin:12px 0}table{border-collapse:collapse;font-size:12px;display:block;overflow-x:auto}\
th,td{border:1px solid #e4e7eb;padding:3px 8px;text-align:right}th:first-child,td:first-child{text-align:left}\
th{background:#f5f7fa}pre{background:#f5f7fa;padding:12px;overflow-x:auto;font-size:12px}\
.bad{background:#ffe3e3;padding:8px;font-weight:600}.warn{background:#fff3c4;padding:8px}";
