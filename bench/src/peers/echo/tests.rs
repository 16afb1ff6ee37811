//! The echo and its load in one process: what one says it asked is what the other says it answered.

use super::*;
use crate::load::LoadError;
use crate::measure::LoadReport;
use crate::shape::Shape;
use crate::target::Target;

fn shape(record_bytes: u32) -> Shape {
    Shape {
        name: "one".to_owned(),
        record_bytes,
        batch_records: 1,
        inflight: 1,
        warmup_s: 0.1,
        duration_s: 0.3,
        ..Shape::canonical()
    }
}

fn asked(options: EchoOptions, shape: &Shape) -> (Result<LoadReport, LoadError>, EchoCounts) {
    let folder = tempfile::tempdir().unwrap();
    let echo = Echo::start(&options).unwrap();
    let target = Target::from_ready(&echo.describe(folder.path()).unwrap(), "").unwrap();
    let outcome = run("echo", &target, shape);
    (outcome, echo.stop().unwrap())
}

#[test]
fn every_request_is_answered_once_by_its_number() {
    for (bytes, spin) in [(1, Duration::ZERO), (256, Duration::from_micros(50)), (200_000, Duration::ZERO)] {
        let (report, echo) = asked(EchoOptions { spin, ..EchoOptions::default() }, &shape(bytes));
        let report = report.unwrap();
        assert!(report.is_clean(), "{report}");
        assert_eq!((echo.answered, echo.committed, echo.broken_streams), (report.sent_batches, 0, 0));
        assert!(report.batches > 0 && report.batches < report.sent_batches);
        assert_eq!(report.payload_bytes, report.batches * u64::from(bytes));
        assert_eq!(report.ack_latency.count, report.batches);
    }
}

#[test]
fn with_a_folder_each_answer_follows_a_write() {
    let folder = tempfile::tempdir().unwrap();
    let options = EchoOptions { commit_dir: Some(folder.path().to_owned()), ..EchoOptions::default() };
    let (report, echo) = asked(options, &shape(256));
    let report = report.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!((echo.answered, echo.committed), (report.sent_batches, report.sent_batches));
    let file = std::fs::read(folder.path().join(commits::FILE)).unwrap();
    let written = file.chunks(4_096).filter(|block| block.iter().all(|byte| *byte == 0x5a)).count() as u64;
    assert_eq!(written, echo.committed.min(COMMIT_FILE_BYTES / 4_096), "each commit is a block of its own");
}

#[test]
fn a_folder_that_is_not_there_is_an_error() {
    let options =
        EchoOptions { commit_dir: Some(PathBuf::from("/nowhere/at/all")), ..EchoOptions::default() };
    assert!(matches!(Echo::start(&options).unwrap_err(), EchoError::File(RawError::Volume { .. })));
}

#[test]
fn more_than_one_request_at_a_time_is_refused() {
    let two = Shape { inflight: 2, ..shape(16) };
    let (outcome, echo) = asked(EchoOptions::default(), &two);
    assert!(matches!(outcome.unwrap_err(), LoadError::Shape(_)));
    assert_eq!(echo.connections, 0);
}

#[test]
fn a_publishing_load_is_no_client_of_an_echo() {
    let folder = tempfile::tempdir().unwrap();
    let echo = Echo::start(&EchoOptions::default()).unwrap();
    let target = Target::from_ready(&echo.describe(folder.path()).unwrap(), "").unwrap();
    let plan = crate::load::LoadPlan { name: "echo".to_owned(), target, shape: shape(16) };
    // The magic of a frame is a length beyond the bound.
    assert!(matches!(crate::load::run(&plan).unwrap_err(), LoadError::Closed(_)));
    assert_eq!(echo.stop().unwrap().broken_streams, 1);
}
