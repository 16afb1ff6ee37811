//! The best value of one setting for one workload. Scope: one sweep.
//! Owns: the values that are tried, which of them is best.
//! Invariants: the trials of all values alternate in one campaign; a value is best only when it is so beyond the noise,
//! otherwise the first of those that cannot be told from the best is taken: the smallest.
//! Not here: running them (`campaign`).

use crate::campaign::{Cell, CellResult, RunResult};
use crate::measure::Spread;

/// Values whose medians differ by less are equal, percent.
const EQUAL_PERCENT: f64 = 3.0;
/// Path discovery steps that make sense: the internet, one below jumbo frames, jumbo frames.
const MTUS: [u16; 4] = [1_452, 2_400, 3_872, 8_900];
const BATCHES: [u32; 6] = [1, 4, 16, 64, 256, 1_024];
const SHARDS: [u32; 6] = [1, 2, 4, 8, 16, 48];

/// What is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knob {
    Shards,
    Cores,
    Mtu,
    Batch,
}

/// Why there is nothing to try.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SweepError {
    #[error("no value of it makes a workload that can run")]
    NothingToTry,
    #[error("no trial of the sweep was clean")]
    NothingClean,
}

/// One value as a cell, and as a line of configuration.
#[derive(Debug, Clone)]
pub struct Try {
    pub cell: Cell,
    pub line: String,
}

/// The cells of a sweep from `first` on, the smallest value first. `cpus` are those a server may use, in order.
///
/// # Errors
/// No value makes a cell that can run.
pub fn tries(knob: Knob, first: &Cell, cpus: &[usize]) -> Result<Vec<Try>, SweepError> {
    let with = |value: String, line: String, change: &dyn Fn(&mut Cell)| {
        let mut cell = first.clone();
        change(&mut cell);
        cell.name = format!("{}-{value}", first.name);
        cell.shape.name.clone_from(&cell.name);
        Try { cell, line }
    };
    let all: Vec<Try> = match knob {
        Knob::Shards => SHARDS
            .iter()
            .map(|shards| {
                let lanes = first.shape.lanes().max(SHARDS[SHARDS.len() - 1]);
                with(format!("shards{shards}"), format!("shards = {shards}"), &|cell| {
                    // As many streams for every value, or more shards would mean more load.
                    (cell.shape.shards, cell.shape.streams) = (*shards, lanes);
                    cell.shape.connections = 1;
                })
            })
            .collect(),
        Knob::Cores => (1..=cpus.len())
            .map(|count| {
                let list: Vec<String> = cpus[..count].iter().map(usize::to_string).collect();
                let list = list.join(",");
                with(format!("cores{count}"), format!("cores = \"{list}\""), &|cell| {
                    cell.server_cores.clone_from(&list);
                    // A connection is on one core: with fewer of them than cores, cores idle.
                    cell.shape.connections = cell.shape.connections.max(2 * cpus.len() as u32);
                    cell.shape.shards = cell.shape.shards.max(2 * cpus.len() as u32);
                })
            })
            .collect(),
        Knob::Mtu => MTUS
            .iter()
            .map(|mtu| {
                with(format!("mtu{mtu}"), format!("mtu_upper_bound = {mtu}"), &|cell| cell.shape.mtu = *mtu)
            })
            .collect(),
        Knob::Batch => BATCHES
            .iter()
            .map(|batch| {
                with(format!("batch{batch}"), format!("batch_records = {batch}"), &|cell| {
                    cell.shape.batch_records = *batch;
                })
            })
            .collect(),
    };
    let possible: Vec<Try> = all.into_iter().filter(|each| each.cell.check().is_ok()).collect();
    if possible.is_empty() { Err(SweepError::NothingToTry) } else { Ok(possible) }
}

/// The line of the best value: of the highest throughput, or the first that cannot be told from it.
///
/// # Errors
/// Nothing of the result is clean.
pub fn best<'t>(tries: &'t [Try], result: &RunResult) -> Result<&'t Try, SweepError> {
    let clean = |each: &Try| {
        let cell = result.cells.iter().find(|cell| cell.cell.name == each.cell.name)?;
        cell.is_clean().then(|| CellResult::throughput(cell)).flatten()
    };
    let rated: Vec<(&Try, Spread)> =
        tries.iter().filter_map(|each| clean(each).map(|spread| (each, spread))).collect();
    let highest = rated
        .iter()
        .map(|(_, spread)| *spread)
        .max_by(|a, b| a.median.total_cmp(&b.median))
        .ok_or(SweepError::NothingClean)?;
    let first = rated.into_iter().find(|(_, spread)| is_equal(spread, &highest));
    first.map(|(each, _)| each).ok_or(SweepError::NothingClean)
}

/// Within the noise of either, or their trials overlap and they are close.
fn is_equal(value: &Spread, highest: &Spread) -> bool {
    value.median >= highest.median * (1.0 - EQUAL_PERCENT / 100.0)
        || (value.max >= highest.min && value.median >= highest.median * (1.0 - 2.0 * EQUAL_PERCENT / 100.0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::campaign::{Kind, System};
    use crate::shape::Shape;

    fn cell() -> Cell {
        Cell {
            name: "canonical".to_owned(),
            system: System::Broker,
            kind: Kind::Publish,
            shape: Shape::canonical(),
            server_cores: "0".to_owned(),
            broker: BTreeMap::new(),
        }
    }

    #[test]
    fn every_value_is_a_cell_that_can_run() {
        for knob in [Knob::Shards, Knob::Cores, Knob::Mtu, Knob::Batch] {
            let tries = tries(knob, &cell(), &[0, 1, 2]).unwrap();
            assert!(tries.len() >= 3, "{knob:?}");
            tries.iter().for_each(|each| each.cell.check().unwrap());
        }
        let large =
            Cell { shape: Shape { record_bytes: 1 << 20, batch_records: 1, ..Shape::canonical() }, ..cell() };
        let batches = tries(Knob::Batch, &large, &[0]).unwrap();
        assert_eq!(batches.last().unwrap().line, "batch_records = 4", "larger ones do not fit a frame");
        assert_eq!(tries(Knob::Cores, &cell(), &[]).unwrap_err(), SweepError::NothingToTry);
        let cores = tries(Knob::Cores, &cell(), &[0, 2]).unwrap();
        assert_eq!(cores[1].line, "cores = \"0,2\"");
        assert_eq!(
            cores[0].cell.shape,
            Shape { name: "canonical-cores1".into(), ..cores[1].cell.shape.clone() }
        );
    }

    #[test]
    fn equal_values_are_those_within_the_noise() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied()).unwrap();
        let highest = spread(&[100.0, 101.0, 102.0]);
        assert!(is_equal(&spread(&[99.0, 99.5, 99.8]), &highest));
        assert!(is_equal(&spread(&[90.0, 96.0, 100.5]), &highest), "trials overlap");
        assert!(!is_equal(&spread(&[90.0, 96.0, 97.0]), &highest));
        assert!(!is_equal(&spread(&[80.0, 85.0, 101.0]), &highest));
    }
}
