//! Request loads against a sink of the same process.

use felix_wire::client::Form;

use super::{KEYS, RequestKind, RequestPlan, run, run_unprepared, usual_shape};
use crate::load::LoadError;
use crate::measure::LoadReport;
use crate::shape::Shape;
use crate::sink::{Framing, Sink, SinkCounts, SinkOptions};
use crate::target::Target;

fn shape() -> Shape {
    Shape { warmup_s: 0.02, duration_s: 0.1, ..usual_shape() }
}

fn asked(
    kind: RequestKind,
    (value_bytes, framing): (Option<u32>, Framing),
    shape: Shape,
) -> (Result<LoadReport, LoadError>, SinkCounts) {
    let folder = tempfile::tempdir().unwrap();
    let sink = Sink::start(&SinkOptions { value_bytes, framing, ..SinkOptions::default() }).unwrap();
    let target = Target::from_ready(&sink.describe(folder.path()).unwrap(), "c").unwrap();
    let plan = RequestPlan { name: "sink".to_owned(), target, kind, keys: KEYS, form: Form::Binary, shape };
    let outcome = run_unprepared(&plan);
    (outcome, sink.stop().unwrap())
}

#[test]
fn every_request_of_a_run_is_answered_once_by_its_number() {
    for (kind, value_bytes) in [(RequestKind::CacheGet, 256), (RequestKind::CachePut, 0)] {
        for framing in [Framing::Stream, Framing::Whole] {
            let (report, sink) = asked(kind, (Some(value_bytes), framing), shape());
            let report = report.unwrap();
            assert!(report.is_clean(), "{report}");
            assert!(report.batches > 0 && report.batches < report.sent_batches);
            assert_eq!((sink.requests, sink.broken_streams), (report.sent_batches, 0));
            assert_eq!(report.payload_bytes, 256 * report.batches);
            assert_eq!(report.ack_latency.count, report.batches);
        }
    }
}

#[test]
fn an_answer_of_another_length_or_kind_fails_the_run() {
    for (kind, value_bytes) in
        [(RequestKind::CacheGet, 255), (RequestKind::CacheGet, 0), (RequestKind::CachePut, 256)]
    {
        let (outcome, _) = asked(kind, (Some(value_bytes), Framing::Stream), shape());
        assert!(matches!(outcome.unwrap_err(), LoadError::Protocol(_)), "{kind:?}");
    }
}

#[test]
fn a_server_without_that_form_is_refused_before_anything_is_asked() {
    let (outcome, sink) = asked(RequestKind::CacheGet, (None, Framing::Stream), shape());
    assert!(matches!(outcome.unwrap_err(), LoadError::Refused { .. }));
    assert_eq!(sink.requests, 0);
    let (outcome, sink) = asked(RequestKind::GroupPage, (Some(256), Framing::Stream), shape());
    assert!(matches!(outcome.unwrap_err(), LoadError::Refused { what: "acks", .. }), "one ack for many");
    assert_eq!(sink.requests, 0);
}

#[test]
fn more_than_one_stream_is_no_run_of_requests() {
    let two = Shape { streams: 2, ..shape() };
    let (outcome, sink) = asked(RequestKind::CacheGet, (Some(1), Framing::Stream), two);
    assert!(matches!(outcome.unwrap_err(), LoadError::Shape(_)));
    assert_eq!(sink.connections, 0);
}

#[test]
fn what_has_to_be_there_is_written_first() {
    // A sink answers the puts of the preparation with values, which are no answers to them.
    let folder = tempfile::tempdir().unwrap();
    let options = SinkOptions { value_bytes: Some(256), ..SinkOptions::default() };
    let sink = Sink::start(&options).unwrap();
    let target = Target::from_ready(&sink.describe(folder.path()).unwrap(), "c").unwrap();
    let (kind, form) = (RequestKind::CacheGet, Form::Binary);
    let plan = RequestPlan { name: "sink".to_owned(), target, kind, keys: KEYS, form, shape: shape() };
    assert!(matches!(run(&plan).unwrap_err(), LoadError::Protocol(_)));
}
