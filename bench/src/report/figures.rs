//! Which figures of a result become which pictures. Scope: one result.
//! Not here: how they are drawn (`charts`).

use super::CellCurves;
use super::charts::{Across, Bar, Curve, bars, curves, figure};
use crate::campaign::{CellResult, CountedAt, RunResult, System, Trial};
use crate::measure::Spread;
use crate::preflight::Qualification;
use crate::raw_disk::RawKind;
use crate::shape::Shape;

/// Lines of one picture: more cannot be told apart.
const CURVES_MAX: usize = 8;
/// Rows of one picture.
const BARS_MAX: usize = 40;
/// Threads that used less than this share of the window are left out, percent.
const THREAD_PERCENT_MIN: f64 = 1.0;

/// Colours say what a cell was sent to and what it promises.
fn colour(cell: &CellResult) -> usize {
    match (cell.cell.system, cell.cell.shape.storage.is_durable()) {
        (System::Sink, _) => 4,
        (System::Broker, false) => 0,
        (System::Broker, true) => 2,
    }
}

fn label(cell: &CellResult) -> String {
    let by_generator = cell.trials.iter().any(|trial| trial.counted_at == CountedAt::Generator);
    format!("{}{}", cell.cell.name, if by_generator { " *" } else { "" })
}

fn bar(cell: &CellResult, spread: Spread, note: String) -> Bar {
    Bar {
        label: label(cell),
        value: spread.median,
        range: Some((spread.min, spread.max)),
        mark: None,
        note,
        colour: colour(cell),
    }
}

/// Pictures of at most `BARS_MAX` rows. With `powers` they go in powers of ten where they are too far apart.
fn pages(what: (&str, &str), all: &[Bar], reference: Option<(f64, &str)>, powers: bool) -> Vec<String> {
    all.chunks(BARS_MAX).filter_map(|part| bars(what, part, reference, powers)).collect()
}

/// Payload throughput.
pub fn throughput(result: &RunResult) -> Vec<String> {
    let each = result.cells.iter().filter_map(|cell| {
        let messages = cell.spread(|trial| Some(trial.messages_per_s))?;
        let spread = cell.throughput()?;
        Some(bar(cell, spread, format!("{} MB/s, {} msg/s", figure(spread.median), figure(messages.median))))
    });
    pages(("Throughput", "MB/s of payload"), &each.collect::<Vec<_>>(), None, false)
}

/// Cost of the server, per byte and per record.
pub fn cpu(result: &RunResult) -> Vec<String> {
    let of = |title: &str, unit: &str, cost: fn(&Trial) -> Option<f64>| {
        let each = result.cells.iter().filter_map(|cell| {
            let spread = cell.spread(cost)?;
            Some(bar(cell, spread, format!("{} ± {:.1} %", figure(spread.median), spread.percent())))
        });
        pages((title, unit), &each.collect::<Vec<_>>(), None, true)
    };
    let mut pictures = of("CPU per byte", "seconds per GB of payload", |trial| trial.server_s_per_gb);
    pictures.extend(of("CPU per record", "seconds per million records", |trial| trial.server_s_per_million));
    pictures
}

/// Quantiles of the answers, all trials together.
pub fn latency(result: &RunResult, found: &[CellCurves]) -> Vec<String> {
    let mut pictures = Vec::new();
    for (title, is_ack) in [("Latency of answers", true), ("Latency of delivery", false)] {
        let all: Vec<(String, Vec<(f64, f64)>)> = result
            .cells
            .iter()
            .zip(found)
            .map(|(cell, part)| {
                let points = if is_ack { &part.ack } else { &part.delivery };
                (cell.cell.name.clone(), points.clone())
            })
            .filter(|(_, points)| !points.is_empty())
            .collect();
        for part in all.chunks(CURVES_MAX) {
            let lines: Vec<Curve> = part
                .iter()
                .enumerate()
                .map(|(colour, (label, points))| Curve {
                    label: label.clone(),
                    points: points.clone(),
                    dashed: false,
                    colour,
                })
                .collect();
            pictures.extend(curves(title, ("quantile", "microseconds"), Across::Quantiles, &lines));
        }
    }
    pictures
}

/// What cells have in common that differ in their rate alone.
fn without_rate(cell: &CellResult) -> (System, String, Shape) {
    let shape = Shape { rate: None, name: String::new(), ..cell.cell.shape.clone() };
    (cell.cell.system, cell.cell.settings().join(" "), shape)
}

/// Latency over the offered rate, one picture for each group of cells that differ in it alone.
pub fn against_load(result: &RunResult) -> Vec<String> {
    let open: Vec<&CellResult> = result.cells.iter().filter(|cell| cell.cell.shape.rate.is_some()).collect();
    let mut done: Vec<(System, String, Shape)> = Vec::new();
    let mut pictures = Vec::new();
    for cell in &open {
        let key = without_rate(cell);
        if done.contains(&key) {
            continue;
        }
        let mut group: Vec<&CellResult> =
            open.iter().copied().filter(|other| without_rate(other) == key).collect();
        done.push(key);
        let rate = |cell: &CellResult| cell.cell.shape.rate.unwrap_or(0.0);
        group.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        // One load makes no line.
        if group.first().map(|cell| rate(cell)) == group.last().map(|cell| rate(cell)) {
            continue;
        }
        let line = |label: &str, colour, dashed, of: fn(&Trial) -> f64| {
            let point = |cell: &&CellResult| {
                let offered_mb = rate(cell) * cell.cell.shape.batch_bytes() as f64 / 1e6;
                let value = cell.spread(|trial| (trial.ack.count > 0).then(|| of(trial)))?;
                Some((offered_mb, value.median))
            };
            Curve {
                label: label.to_owned(),
                points: group.iter().filter_map(point).collect(),
                dashed,
                colour,
            }
        };
        let lines = [
            line("p50, from due", 0, false, |trial| trial.ack.p50_us),
            line("p99, from due", 1, false, |trial| trial.ack.p99_us),
            line("p99.9, from due", 2, false, |trial| trial.ack.p999_us),
            line("p50, service alone", 0, true, |trial| trial.service.p50_us),
            line("p99, service alone", 1, true, |trial| trial.service.p99_us),
        ];
        let title = format!("Latency against load: {}", group[0].cell.name);
        let units = ("offered, MB/s of payload", "microseconds");
        pictures.extend(curves(&title, units, Across::Linear, &lines));
    }
    pictures
}

/// Batches in flight by Little's law beside what is allowed.
pub fn law(result: &RunResult) -> Vec<String> {
    let each = result.cells.iter().filter_map(|cell| {
        let flying = cell.spread(|trial| (trial.service.count > 0).then_some(trial.law.in_flight))?;
        let allowed = cell.trials.first().map_or(0.0, |trial| trial.law.allowed);
        let note = format!("{} of {} allowed", figure(flying.median), figure(allowed));
        Some(Bar { mark: Some(allowed), ..bar(cell, flying, note) })
    });
    pages(("Batches in flight", "rate x mean service time"), &each.collect::<Vec<_>>(), None, false)
}

/// The trial whose throughput is the median, or the nearest below it.
fn middle(cell: &CellResult) -> Option<&Trial> {
    let mut trials: Vec<&Trial> = cell.trials.iter().collect();
    trials.sort_by(|a, b| a.mb_per_s.total_cmp(&b.mb_per_s));
    trials.get(trials.len().checked_sub(1)? / 2).copied()
}

/// The core that a thread of a broker serves: `felix-core-<core>`, and what the executor adds.
fn core_of(thread: &str) -> Option<u32> {
    thread.strip_prefix("felix-core-")?.split('-').next()?.parse().ok()
}

/// How busy the server's threads were.
pub fn cores(result: &RunResult) -> Vec<String> {
    let mut all = Vec::new();
    for cell in &result.cells {
        let Some((trial, server)) = middle(cell).and_then(|trial| Some((trial, trial.server.as_ref()?)))
        else {
            continue;
        };
        let Some(busiest) = server.threads.first() else { continue };
        // The busiest thread's seconds and percent give the length of the window.
        let window = busiest.seconds / (server.core_busy_percent / 100.0).max(f64::MIN_POSITIVE);
        let appended: f64 = trial.appended_by_core.values().sum();
        for thread in &server.threads {
            let percent = 100.0 * thread.seconds / window.max(f64::MIN_POSITIVE);
            if percent < THREAD_PERCENT_MIN {
                continue;
            }
            let share = core_of(&thread.name)
                .and_then(|core| trial.appended_by_core.get(&core))
                .filter(|_| appended > 0.0 && trial.appended_by_core.len() > 1)
                .map_or(String::new(), |count| format!(", {:.0} % of the batches", 100.0 * count / appended));
            all.push(Bar {
                label: format!("{} {}", cell.cell.name, thread.name),
                value: percent,
                range: None,
                mark: None,
                note: format!("{percent:.0} %{share}"),
                colour: colour(cell),
            });
        }
    }
    pages(("Threads of the server", "percent of one CPU"), &all, None, false)
}

/// The disk alone, and durable cells beside its best.
pub fn disk(result: &RunResult) -> Vec<String> {
    let Some(found) = &result.preflight.disk else { return Vec::new() };
    let rows = found.rows.iter().map(|row| {
        let kind = match row.kind {
            RawKind::GroupSynced => "one sync",
            RawKind::EachSynced => "each synced",
            RawKind::Read => "read",
        };
        let blocks = if row.recycled { "used" } else { "fresh" };
        Bar {
            label: format!("{} KiB x {}, {kind}, {blocks}", row.op_bytes >> 10, row.depth),
            value: row.mb_per_s,
            range: None,
            mark: None,
            note: format!("{} MB/s, p99 {} us", figure(row.mb_per_s), figure(row.latency.p99_us)),
            colour: if row.recycled { 1 } else { 6 },
        }
    });
    let mut pictures = pages(("The disk alone", "MB/s"), &rows.collect::<Vec<_>>(), None, false);
    let durable = result.cells.iter().filter(|cell| cell.cell.shape.storage.is_durable());
    let each = durable.filter_map(|cell| {
        let spread = cell.throughput()?;
        // The disk just before each trial: a slow disk is not the broker's fault.
        let before = cell.spread(|trial| trial.disk.as_ref().map(Qualification::best_mb_per_s));
        let before = before.map_or(String::new(), |disk| format!(", disk then {}", figure(disk.median)));
        Some(bar(cell, spread, format!("{} MB/s{before}", figure(spread.median))))
    });
    let reference = Some((found.best_mb_per_s(), "the disk, fastest synced row"));
    let what = ("Durable cells and the disk", "MB/s");
    pictures.extend(pages(what, &each.collect::<Vec<_>>(), reference, false));
    pictures
}

#[cfg(test)]
mod tests {
    use super::core_of;

    #[test]
    fn threads_are_known_by_their_core() {
        assert_eq!((core_of("felix-core-3"), core_of("felix-core-1-2")), (Some(3), Some(1)));
        assert_eq!((core_of("felix-broker"), core_of("felix-core-x")), (None, None));
    }
}
