//! The folder of a run. Scope: one run.
//! Owns: names of files and folders in it, writing them, reading the result again.
//! Invariants: the preflight is written before anything else, so no result is without one; `result.json` comes last and
//! whole, so a folder that has it is complete; a folder that is there is not written into.
//! Not here: what is in the report (`report`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::result::{RESULT_VERSION, RunResult};
use crate::measure::{HistogramError, Histograms, Latency};
use crate::preflight::Preflight;
use crate::watch::Interval;

const RESULT: &str = "result.json";
const PREFLIGHT: &str = "preflight.json";
const REPORT: &str = "report.html";
const CAMPAIGN: &str = "campaign.toml";

/// Why a folder is of no use.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} is there already")]
    Exists { path: PathBuf },
    #[error("{path} is no result: {reason}")]
    Content { path: PathBuf, reason: String },
    #[error("{path} has version {found}, this program reads {RESULT_VERSION}")]
    Version { path: PathBuf, found: u64 },
    #[error("{path}: {error}")]
    Histogram { path: PathBuf, error: HistogramError },
}

/// See the module.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Makes `<parent>/<name>-<time>` with the preflight and the campaign's text in it.
    ///
    /// # Errors
    /// It is there already, or cannot be written.
    pub fn create(
        parent: &Path,
        name: &str,
        preflight: &Preflight,
        campaign: &str,
    ) -> Result<RunFolder, FolderError> {
        let path = parent.join(format!("{name}-{}", stamp(preflight.taken_unix_s)));
        let failed = |error| FolderError::Io { path: path.clone(), error };
        fs::create_dir_all(parent).map_err(failed)?;
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(FolderError::Exists { path });
            }
            made => made.map_err(failed)?,
        }
        let folder = RunFolder { path };
        folder.write(PREFLIGHT, &json(preflight))?;
        folder.write(CAMPAIGN, campaign.as_bytes())?;
        Ok(folder)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the report is.
    #[must_use]
    pub fn report(&self) -> PathBuf {
        self.path.join(REPORT)
    }

    /// The raw histograms and the seconds of one trial.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write_trial(
        &self,
        cell: &str,
        trial: u32,
        histograms: &Histograms,
        intervals: &[Interval],
    ) -> Result<(), FolderError> {
        let place = trial_place(cell, trial);
        let path = self.path.join(&place);
        fs::create_dir_all(&path).map_err(|error| FolderError::Io { path, error })?;
        for (name, latency) in histograms.named() {
            if latency.summary().count > 0 {
                self.write(&format!("{place}/{name}.hdr"), &latency.encode())?;
            }
        }
        self.write(&format!("{place}/counters.json"), &json(&intervals))
    }

    /// The report, then the result.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn finish(&self, result: &RunResult, report: &str) -> Result<(), FolderError> {
        self.write(REPORT, report.as_bytes())?;
        self.write(RESULT, &json(result))
    }

    /// Whole or not at all.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), FolderError> {
        let path = self.path.join(name);
        let beside = path.with_extension("tmp");
        let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, &path));
        written.map_err(|error| FolderError::Io { path, error })
    }

    /// The folder of an earlier run and its result.
    ///
    /// # Errors
    /// There is no complete result in it, or one of another version.
    pub fn open(path: &Path) -> Result<(RunFolder, RunResult), FolderError> {
        let file = path.join(RESULT);
        let text =
            fs::read_to_string(&file).map_err(|error| FolderError::Io { path: file.clone(), error })?;
        let content =
            |error: serde_json::Error| FolderError::Content { path: file.clone(), reason: error.to_string() };
        let value: serde_json::Value = serde_json::from_str(&text).map_err(content)?;
        let found = value["version"].as_u64().unwrap_or(0);
        if found != u64::from(RESULT_VERSION) {
            return Err(FolderError::Version { path: file, found });
        }
        let result = serde_json::from_value(value).map_err(content)?;
        Ok((RunFolder { path: path.to_owned() }, result))
    }

    /// The histograms of a cell, all trials together; without those that have no values.
    ///
    /// # Errors
    /// A file is not what it should be. One that is not there has no values.
    pub fn histograms(&self, cell: &str, trials: u32) -> Result<Histograms, FolderError> {
        let mut sum = Histograms::default();
        for trial in 1..=trials {
            let read = |name: &str| self.read_latency(&format!("{}/{name}.hdr", trial_place(cell, trial)));
            sum.merge(&Histograms {
                ack: read("ack")?,
                service: read("service")?,
                queueing: read("queueing")?,
                delivery: read("delivery")?,
            });
        }
        Ok(sum)
    }

    fn read_latency(&self, name: &str) -> Result<Latency, FolderError> {
        let path = self.path.join(name);
        match fs::read(&path) {
            Ok(bytes) => Latency::decode(&bytes).map_err(|error| FolderError::Histogram { path, error }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Latency::default()),
            Err(error) => Err(FolderError::Io { path, error }),
        }
    }
}

fn trial_place(cell: &str, trial: u32) -> String {
    format!("cells/{cell}/trial-{trial}")
}

/// The values are ours and have text for every key.
fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap_or_default()
}

/// `20261130T204455Z` of a moment, for names that sort by time.
#[must_use]
pub fn stamp(unix_s: f64) -> String {
    let seconds = unix_s.max(0.0) as u64;
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, date) = civil(day);
    format!("{year:04}{month:02}{date:02}T{:02}{:02}{:02}Z", second / 3_600, second / 60 % 60, second % 60)
}

/// Year, month and day of the month of a day since 1970, Gregorian.
fn civil(day: u64) -> (u64, u64, u64) {
    // Years that begin in March have their leap day at the end; 400 of them have 146,097 days.
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_named_by_their_date() {
        assert_eq!(stamp(0.0), "19700101T000000Z");
        assert_eq!(stamp(951_782_400.9), "20000229T000000Z");
        assert_eq!(stamp(1_796_071_495.0), "20261130T204455Z");
    }

    #[test]
    fn a_folder_without_a_whole_result_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let open = || RunFolder::open(folder.path()).unwrap_err();
        assert!(matches!(open(), FolderError::Io { .. }));
        fs::write(folder.path().join(RESULT), "{\"version\": 1").unwrap();
        assert!(matches!(open(), FolderError::Content { .. }));
        fs::write(folder.path().join(RESULT), "{\"version\": 99}").unwrap();
        assert!(matches!(open(), FolderError::Version { found: 99, .. }));
        // A result without its preflight is none.
        fs::write(folder.path().join(RESULT), "{\"version\": 1, \"name\": \"x\"}").unwrap();
        assert!(matches!(open(), FolderError::Content { .. }));
    }
}
