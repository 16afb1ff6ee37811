//! `redis-benchmark` as the load: what users of Redis know. Scope: one run.
//! Invariants: it is told a number of requests that lasts about as long as the window; the server's time is taken over
//! exactly those requests; a run that it did not end well is an error.
//! Not here: our own load (`load`).

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::machine::Machine;
use crate::measure::{CpuSample, Histograms, LatencySummary, LoadReport};
use crate::peers::PeerError;
use crate::peers::programs::{REDIS_BENCHMARK, TASKSET};
use crate::shape::Shape;

/// Requests that show how fast the server is, before the run.
const FIRST_REQUESTS: u64 = 20_000;
/// A run has no more, however fast the server.
const REQUESTS_MAX: u64 = 1_000_000_000;

/// A line of `redis-benchmark --csv`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BenchmarkLine {
    pub requests_per_s: f64,
    /// Of a whole pipeline, milliseconds.
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// The line below the names of its columns.
///
/// # Errors
/// There are no such two lines, in words.
pub fn parse(csv: &str) -> Result<BenchmarkLine, String> {
    let mut lines = csv.lines().filter(|line| line.starts_with('"'));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return Err("no line of figures".to_owned());
    };
    let fields = |line: &str| -> Vec<String> {
        // The first column is the command as it was given, which may hold commas within its quotes.
        line.trim_matches('"').split("\",\"").map(str::to_owned).collect()
    };
    let (names, values) = (fields(names), fields(values));
    let figure = |name: &str| -> Result<f64, String> {
        let at = names.iter().position(|found| found == name).ok_or(format!("no column {name}"))?;
        let text = values.get(at).ok_or(format!("no value for {name}"))?;
        let value: f64 = text.parse().map_err(|_| format!("{name} is {text}"))?;
        if value.is_finite() && value >= 0.0 { Ok(value) } else { Err(format!("{name} is {text}")) }
    };
    Ok(BenchmarkLine {
        requests_per_s: figure("rps")?,
        p50_ms: figure("p50_latency_ms")?,
        p99_ms: figure("p99_latency_ms")?,
        max_ms: figure("max_latency_ms")?,
    })
}

/// SETs to the server at `address`, process `pid`: a client for each publishing stream of the shape, pipelines as long as the
/// shape has records in flight.
///
/// # Errors
/// There is no `redis-benchmark`, it left with an error, or what it printed is not known.
pub fn run(
    name: &str,
    (address, pid): (SocketAddr, u32),
    shape: &Shape,
    cpu: usize,
) -> Result<LoadReport, PeerError> {
    let program = REDIS_BENCHMARK.find()?;
    let first = ask(&program, address, shape, (FIRST_REQUESTS, cpu))?;
    let pipelines = (first.requests_per_s * shape.duration_s) as u64;
    let requests = pipelines.clamp(FIRST_REQUESTS, REQUESTS_MAX);
    let sample = || {
        CpuSample::of(pid)
            .map_err(|error| PeerError::Program { name: name.to_owned(), why: error.to_string() })
    };
    let (before, begun) = (sample()?, Instant::now());
    let line = ask(&program, address, shape, (requests, cpu))?;
    let length = begun.elapsed();
    let server = sample()?.since(&before, length);
    let micros = |millis: f64| millis * 1e3;
    let latency = LatencySummary {
        count: requests,
        mean_us: 0.0,
        p50_us: micros(line.p50_ms),
        p90_us: 0.0,
        p99_us: micros(line.p99_ms),
        p999_us: 0.0,
        max_us: micros(line.max_ms),
    };
    let shape = Shape { batch_records: 1, inflight: depth(shape), ..shape.clone() };
    Ok(LoadReport {
        target: name.to_owned(),
        machine: Machine::look(),
        // Its own clock: ours also has its start and its end.
        seconds: requests as f64 / line.requests_per_s.max(f64::MIN_POSITIVE),
        batches: requests,
        payload_bytes: requests * u64::from(shape.record_bytes),
        ack_latency: latency,
        service_latency: latency,
        // It tells neither when its window was nor more of its latencies.
        window_unix_s: (0.0, 0.0),
        queueing_latency: LatencySummary::default(),
        histograms: Histograms::default(),
        server: Some(server),
        // Its process has ended; nothing tells what it used.
        client_seconds: 0.0,
        mtu: 0,
        packets: (0, 0),
        sent_batches: requests,
        refused_batches: 0,
        unanswered_batches: 0,
        read: None,
        idle_connection_bytes: None,
        shape,
    })
}

/// Commands of one pipeline.
fn depth(shape: &Shape) -> u32 {
    shape.inflight.saturating_mul(shape.batch_records)
}

fn ask(
    program: &Path,
    address: SocketAddr,
    shape: &Shape,
    (requests, cpu): (u64, usize),
) -> Result<BenchmarkLine, PeerError> {
    let failed = |why: String| PeerError::Program { name: REDIS_BENCHMARK.name.to_owned(), why };
    let args = [
        ("-h", address.ip().to_string()),
        ("-p", address.port().to_string()),
        ("-t", "set".to_owned()),
        ("-d", shape.record_bytes.to_string()),
        ("-c", shape.lanes().to_string()),
        ("-P", depth(shape).to_string()),
        ("-n", requests.to_string()),
    ];
    let output = Command::new(TASKSET.find()?)
        .args(["-c", &cpu.to_string()])
        .arg(program)
        .args(args.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]))
        .arg("--csv")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() || errors.contains("Error") {
        return Err(failed(format!("{}: {}", output.status, errors.trim())));
    }
    parse(&text).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CSV: &str = "\
\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"
\"XADD s MAXLEN ~ 1000 * f a,b\",\"130928.11\",\"0.482\",\"0.056\",\"0.063\",\"0.191\",\"18.703\",\"24.223\"
";

    #[test]
    fn figures_are_found_by_the_names_of_their_columns() {
        let line = parse(CSV).unwrap();
        assert_eq!(
            (line.requests_per_s, line.p50_ms, line.p99_ms, line.max_ms),
            (130_928.11, 0.063, 18.703, 24.223)
        );
        assert_eq!(parse(&format!("WARNING: something\n{CSV}")).unwrap(), line);
    }

    #[test]
    fn what_is_not_such_a_table_is_an_error() {
        assert_eq!(parse("").unwrap_err(), "no line of figures");
        assert!(parse(&CSV.replace("\"rps\"", "\"ops\"")).unwrap_err().contains("rps"));
        for bad in ["nan", "inf", "-1", "many"] {
            assert!(parse(&CSV.replace("130928.11", bad)).is_err(), "{bad}");
        }
        assert!(parse(&CSV.replace(",\"24.223\"", "")).unwrap_err().contains("max_latency_ms"));
    }
}
