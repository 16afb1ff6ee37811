//! The load generator against this sink and ours: both take and answer the same.

use super::*;
use crate::load::{self, LoadError, LoadPlan};
use crate::measure::LoadReport;
use crate::shape::{Acks, Shape};
use crate::target::Target;

fn loaded(shape: Shape) -> (Result<LoadReport, LoadError>, SinkCounts) {
    let folder = tempfile::tempdir().unwrap();
    let sink = QuinnSink::start(&SinkOptions::default()).unwrap();
    let target = Target::from_ready(&sink.describe(folder.path()).unwrap(), "discard").unwrap();
    let outcome = load::run(&LoadPlan { name: "quinn".to_owned(), target, shape });
    (outcome, sink.stop().unwrap())
}

fn short(change: impl FnOnce(&mut Shape)) -> Shape {
    let mut shape = Shape { warmup_s: 0.1, duration_s: 0.3, ..Shape::canonical() };
    change(&mut shape);
    shape
}

#[test]
fn every_acked_batch_is_answered_and_counted_on_both_sides() {
    for (connections, streams) in [(1, 1), (3, 4)] {
        let (report, sink) =
            loaded(short(|shape| (shape.connections, shape.streams) = (connections, streams)));
        let report = report.unwrap();
        assert!(report.is_clean(), "{report}");
        assert_eq!((sink.publishes, sink.answered), (report.sent_batches, report.sent_batches));
        assert_eq!((sink.connections, sink.broken_streams), (u64::from(connections) + 1, 0));
        assert!(sink.bytes >= report.sent_batches * report.shape.batch_bytes());
    }
}

#[test]
fn the_same_batches_are_the_same_bytes_to_both_sinks() {
    let bytes_of_a_batch = |sink: SinkCounts| {
        assert_eq!(sink.bytes % sink.publishes, 0, "batches are alike");
        sink.bytes / sink.publishes
    };
    let (report, quinn) = loaded(short(|shape| shape.record_bytes = 100));
    report.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ours = sink::Sink::start(&SinkOptions::default()).unwrap();
    let target = Target::from_ready(&ours.describe(folder.path()).unwrap(), "discard").unwrap();
    let plan = LoadPlan { name: "ours".to_owned(), target, shape: short(|shape| shape.record_bytes = 100) };
    load::run(&plan).unwrap();
    assert_eq!(bytes_of_a_batch(quinn), bytes_of_a_batch(ours.stop().unwrap()));
}

#[test]
fn unanswered_batches_end_with_one_answer() {
    let (report, sink) = loaded(short(|shape| shape.acks = Acks::None));
    let report = report.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!((sink.publishes, sink.answered), (report.sent_batches, 1));
}

#[test]
fn what_is_no_publish_loses_its_stream() {
    let (outcome, sink) = loaded(short(|shape| shape.subscribers = 1));
    assert!(matches!(outcome.unwrap_err(), LoadError::Closed(_)));
    assert_eq!(sink.broken_streams, 1);
}
