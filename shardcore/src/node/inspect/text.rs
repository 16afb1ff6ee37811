//! A report for people: tables, then a line per finding. Scope: functions.
//! Not here: what is in the report.

use std::fmt::Write;
use std::path::Path;

use felix_logstore::inspect::Report;

use super::{LogOf, Names, Show, kind_name, role_name, severity_name, state_name};
use crate::snapshot::{LogRole, StreamName};

/// All of it, with line ends.
pub(super) fn render(
    dir: &Path,
    (report, names): (&Report, &Names),
    show: Show,
    with_batches: bool,
) -> String {
    let mut out = String::new();
    shards(report, names, &mut out);
    if show.slots {
        slots(report, &mut out);
    }
    if show.segments {
        segments(report, &mut out);
    }
    if with_batches {
        batches(report, &mut out);
    }
    for found in &report.findings {
        line(&mut out, format_args!("{}: {found}", severity_name(found.severity)));
    }
    let more = report.damage + report.notes - report.findings.len() as u64;
    if more > 0 {
        line(&mut out, format_args!("and {more} more"));
    }
    if !report.findings.is_empty() {
        out.push('\n');
    }
    let verdict = match report.damage {
        0 => "sound".to_owned(),
        1 => "damage in 1 place".to_owned(),
        count => format!("damage in {count} places"),
    };
    line(&mut out, format_args!("{}: {verdict}", dir.display()));
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{text}");
}

fn shards(report: &Report, names: &Names, out: &mut String) {
    let header = ["shard", "incarnation", "segments", "start", "end", "records", "bytes", "state", "log of"];
    let rows = report.shards.iter().map(|row| {
        let name = names.get(&row.key.name).map(|LogOf { role, name, shard }| {
            let StreamName { tenant, namespace, stream } = name;
            let what = match role {
                LogRole::Records => "",
                LogRole::Cache => " (cache)",
                LogRole::Counters => " (counters)",
                LogRole::Groups => " (groups)",
            };
            format!("{tenant}/{namespace}/{stream}/{}{what}", shard.0)
        });
        vec![
            format!("{:032x}", row.key.name),
            row.key.incarnation.0.to_string(),
            row.segment_count().to_string(),
            row.start.0.to_string(),
            row.end.0.to_string(),
            row.records.to_string(),
            row.bytes.to_string(),
            state_name(row.state).to_owned(),
            name.unwrap_or_else(|| "-".to_owned()),
        ]
    });
    table(out, &header, rows.collect());
}

fn slots(report: &Report, out: &mut String) {
    let header = ["slot", "run", "core", "use", "rounds", "live", "marks", "pieces", "bytes", "stopped"];
    let rows = report.slots.iter().map(|row| {
        let core = row.head.and_then(|head| head.core);
        let rounds = match row.rounds {
            0 => "none".to_owned(),
            _ => format!("{}-{}", row.first_round, row.last_round),
        };
        vec![
            row.file.clone(),
            row.head.map_or("-".to_owned(), |head| head.run.0.to_string()),
            core.map_or("-".to_owned(), |core| core.0.to_string()),
            row.head.map_or("-".to_owned(), |head| head.number.to_string()),
            rounds,
            row.live_rounds.to_string(),
            row.marks.to_string(),
            row.pieces.to_string(),
            row.bytes.to_string(),
            if row.clean { "in order" } else { "-" }.to_owned(),
        ]
    });
    table(out, &header, rows.collect());
}

fn segments(report: &Report, out: &mut String) {
    let header =
        ["shard", "segment", "role", "base", "end", "batches", "records", "end byte", "bytes", "damage"];
    let rows = report.shards.iter().flat_map(|shard| {
        shard.segments.iter().map(|row| {
            vec![
                shard.key.to_string(),
                format!("{:016x}", row.seq.0),
                role_name(row.role).to_owned(),
                row.base.0.to_string(),
                row.end.0.to_string(),
                row.batches.to_string(),
                row.records.to_string(),
                row.end_byte.to_string(),
                row.bytes.to_string(),
                row.damage.to_string(),
            ]
        })
    });
    table(out, &header, rows.collect());
}

fn batches(report: &Report, out: &mut String) {
    let header =
        ["shard", "segment", "byte", "kind", "base", "count", "bytes", "time (ms)", "producer", "sequence"];
    let rows = report.batches.iter().map(|row| {
        let producer = row.producer.map(|(producer, _)| format!("{:x}", producer.0));
        let sequence = row.producer.map(|(_, sequence)| sequence.0.to_string());
        vec![
            row.key.to_string(),
            format!("{:016x}", row.segment.0),
            row.byte.to_string(),
            kind_name(row.kind).to_owned(),
            row.base.0.to_string(),
            row.count.to_string(),
            row.bytes.to_string(),
            row.timestamp_ms.to_string(),
            producer.unwrap_or("-".to_owned()),
            sequence.unwrap_or("-".to_owned()),
        ]
    });
    table(out, &header, rows.collect());
}

/// Columns as wide as their widest cell, two spaces between; an empty line behind it.
fn table(out: &mut String, header: &[&str], rows: Vec<Vec<String>>) {
    let widths: Vec<usize> = header
        .iter()
        .enumerate()
        .map(|(column, name)| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(String::len);
            cells.chain([name.len()]).max().unwrap_or(0)
        })
        .collect();
    let mut put = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        line(out, format_args!("{}", padded.join("  ").trim_end()));
    };
    put(&mut header.iter().copied());
    for row in &rows {
        put(&mut row.iter().map(String::as_str));
    }
    out.push('\n');
}
