//! The load generator against a sink in the same process: what one says it sent is what the other says it took.

use std::path::Path;

use super::*;
use crate::shape::Acks;
use crate::sink::{Framing, Sink, SinkCounts, SinkOptions};

fn short(change: impl FnOnce(&mut Shape)) -> Shape {
    let mut shape = Shape { warmup_s: 0.1, duration_s: 0.3, ..Shape::canonical() };
    change(&mut shape);
    shape
}

fn run_against_sink(shape: Shape, framing: Framing) -> (Result<LoadReport, LoadError>, SinkCounts) {
    run_against(shape, &SinkOptions { framing, ..SinkOptions::default() })
}

fn run_against(shape: Shape, options: &SinkOptions) -> (Result<LoadReport, LoadError>, SinkCounts) {
    let folder = tempfile::tempdir().unwrap();
    let sink = Sink::start(options).unwrap();
    let target = Target::from_ready(&sink.describe(folder.path()).unwrap(), "discard").unwrap();
    let outcome = run(&LoadPlan { name: "sink".to_owned(), target, shape });
    (outcome, sink.stop().unwrap())
}

#[test]
fn every_acked_batch_is_answered_and_counted_on_both_sides() {
    for framing in [Framing::Stream, Framing::Whole] {
        let (report, sink) = run_against_sink(short(|_| {}), framing);
        let report = report.unwrap();
        assert!(report.is_clean(), "{report}");
        assert_eq!((sink.publishes, sink.answered), (report.sent_batches, report.sent_batches));
        assert_eq!(sink.broken_streams, 0);
        assert!(sink.bytes >= report.sent_batches * report.shape.batch_bytes());
        assert!(report.batches > 0 && report.batches <= report.sent_batches);
        assert_eq!(report.payload_bytes, report.batches * report.shape.batch_bytes());
        assert_eq!(report.ack_latency.count, report.batches);
        assert!(report.ack_latency.p50_us > 0.0 && report.mb_per_s() > 0.0);
    }
}

#[test]
fn an_unanswered_publisher_ends_with_one_answer_that_covers_all() {
    let (report, sink) = run_against_sink(short(|shape| shape.acks = Acks::None), Framing::Stream);
    let report = report.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!((sink.publishes, sink.answered), (report.sent_batches, 1));
    assert_eq!(report.ack_latency.count, 0, "there was nothing to measure");
    assert!(report.batches > 0);
}

#[test]
fn many_streams_of_many_connections_all_publish() {
    let shape = short(|shape| {
        (shape.connections, shape.streams) = (3, 20);
        (shape.record_bytes, shape.batch_records, shape.inflight) = (100, 2, 4);
    });
    let (report, sink) = run_against_sink(shape, Framing::Stream);
    let report = report.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(sink.answered, report.sent_batches);
    // The connections of the load and the one that asks before it.
    assert_eq!(sink.connections, 4);
    assert!(report.sent_batches >= 60, "each stream fills its window at once");
}

#[test]
fn an_open_loop_sends_what_its_schedule_says() {
    let shape = short(|shape| {
        (shape.record_bytes, shape.batch_records, shape.rate) = (100, 1, Some(500.0));
        shape.duration_s = 0.4;
    });
    let (report, sink) = run_against_sink(shape, Framing::Stream);
    let report = report.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(sink.answered, report.sent_batches);
    // 0.5 s of 500 a second; the window closes at the first look after its end.
    assert!((240..=400).contains(&report.sent_batches), "{} batches", report.sent_batches);
    assert!(report.ack_latency.p50_us >= report.service_latency.p50_us, "waiting to be sent counts");
}

#[test]
fn a_server_that_does_not_answer_subscriptions_fails_the_run() {
    let (outcome, sink) = run_against_sink(short(|shape| shape.subscribers = 1), Framing::Stream);
    let error = outcome.unwrap_err();
    assert!(matches!(error, LoadError::Closed(_)), "{error}");
    assert_eq!(sink.broken_streams, 1, "the sink serves no subscriptions");
}

#[test]
fn every_subscription_of_a_connection_gets_every_record() {
    let shape = short(|shape| {
        (shape.subscribers, shape.subscriptions, shape.inflight) = (2, 5, 4);
        (shape.record_bytes, shape.batch_records, shape.rate) = (4_096, 16, Some(200.0));
    });
    let (report, sink) = run_against(shape, &SinkOptions { relay: true, ..SinkOptions::default() });
    let report = report.unwrap();
    assert!(report.is_clean(), "{report}");
    let read = report.read.as_ref().unwrap();
    assert_eq!(read.delivered_records, report.sent_batches * 16 * 10);
    assert_eq!((sink.publishes, sink.broken_streams), (report.sent_batches, 0));
    assert_eq!(sink.connections, 1 + 1 + 2);
}

#[test]
fn a_relay_with_slow_readers_takes_no_more_than_it_can_hand_on() {
    // A closed loop at full speed: what waits for subscriptions holds the publisher up.
    let shape = short(|shape| (shape.subscribers, shape.subscriptions, shape.inflight) = (3, 20, 64));
    let (report, sink) = run_against(shape, &SinkOptions { relay: true, ..SinkOptions::default() });
    let report = report.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(sink.answered, report.sent_batches);
}

#[test]
fn idle_connections_are_there_before_anything_is_published() {
    let shape = short(|shape| shape.idle = 70);
    let (report, sink) = run_against_sink(shape, Framing::Stream);
    let report = report.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(sink.connections, 1 + 1 + 70);
    assert!(report.idle_connection_bytes.unwrap() >= 0.0);
    let (report, _) = run_against_sink(short(|_| {}), Framing::Stream);
    assert_eq!(report.unwrap().idle_connection_bytes, None);
}

#[test]
fn a_certificate_that_is_not_trusted_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (sink, other) =
        (Sink::start(&SinkOptions::default()).unwrap(), Sink::start(&SinkOptions::default()).unwrap());
    let target = Target::from_ready(&sink.describe(folder.path()).unwrap(), "discard").unwrap();
    let roots =
        Target::from_ready(&other.describe(Path::new(folder.path())).unwrap(), "discard").unwrap().roots;
    let plan = LoadPlan { name: "sink".to_owned(), target: Target { roots, ..target }, shape: short(|_| {}) };
    assert!(matches!(run(&plan).unwrap_err(), LoadError::Closed(_)));
}

#[test]
fn more_shards_than_the_stream_has_are_refused_before_anything_is_sent() {
    let (outcome, sink) = run_against_sink(short(|shape| shape.shards = 2), Framing::Stream);
    assert!(matches!(outcome.unwrap_err(), LoadError::TooFewShards { width: 1, wanted: 2, .. }));
    assert_eq!(sink.publishes, 0);
}
