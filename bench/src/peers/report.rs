//! One load run of this folder as a report like that of a publishing load. Scope: one value per run.
//! Invariants: the same window, histogram and process times as for a broker.
//! Not here: how a table of them is shown (`table`).

use crate::load::window::Window;
use crate::machine::Machine;
use crate::measure::LoadReport;
use crate::shape::Shape;

/// What the generator counted in the whole run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    pub batches: u64,
    pub refused: u64,
    pub unanswered: u64,
}

/// The report of a run whose window is over; `None` when it is not. Transports without datagrams have the size 0.
pub fn of_window(name: &str, shape: &Shape, window: &Window, sent: Sent) -> Option<LoadReport> {
    let measured = window.measured()?;
    Some(LoadReport {
        target: name.to_owned(),
        shape: shape.clone(),
        machine: Machine::look(),
        seconds: measured.length.as_secs_f64(),
        batches: window.batches,
        payload_bytes: window.payload_bytes,
        window_unix_s: measured.unix_s(),
        ack_latency: window.latencies.ack.summary(),
        service_latency: window.latencies.service.summary(),
        queueing_latency: window.latencies.queueing.summary(),
        server: measured.server.clone(),
        client_seconds: measured.client.seconds,
        mtu: 0,
        packets: (0, 0),
        sent_batches: sent.batches,
        refused_batches: sent.refused,
        unanswered_batches: sent.unanswered,
        read: None,
        idle_connection_bytes: None,
        histograms: window.latencies.clone(),
    })
}

/// An answered batch: counted when the window is open.
pub fn count(window: &mut Window, batch_bytes: u64, latency: std::time::Duration) {
    if window.is_open() {
        window.batches += 1;
        window.payload_bytes += batch_bytes;
        window.latencies.ack.record(latency);
        window.latencies.service.record(latency);
    }
}
