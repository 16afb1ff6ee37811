//! `felix pub`: standard input or files become records of a stream. Scope: per command.
//! Owns: the options, and the count of what was acknowledged.
//! Invariants: records go in the order of the input; after the first failure nothing more is read; the exit status is
//! "outcome unknown" as soon as that is true of one record; every record that was sent is in exactly one count.
//! Not here: cutting records (`publish/framing`), the publisher itself (`crate::publish`).

mod framing;
mod key;
mod pace;
mod source;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};

use self::framing::Framing;
use self::key::KeySource;
use self::pace::Pace;
use super::connect::connect;
use super::failure::{Failure, Kind, Outcome};
use super::interrupt;
use super::output::{Format, OutputArgs, remark};
use super::settings::Settings;
use crate::error::PublishError;
use crate::publish::{AckMode, BatchLimits, Idempotence, Publisher, Receipt};

/// Receipts that may wait to be looked at.
const RECEIPTS_AHEAD: usize = 4_096;
/// Waits shorter than this are not worth a timer.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum AckArg {
    /// Nothing is answered
    None,
    /// Every frame is answered, asked for per message
    Message,
    /// Every frame is answered
    #[default]
    Batch,
}

#[derive(Clone, Debug, Args)]
pub struct PubArgs {
    /// Stream to publish to
    stream: String,
    /// Files to publish, in this order; standard input without any, or for `-`
    files: Vec<PathBuf>,
    /// Where a record ends
    #[arg(long, value_enum, default_value_t)]
    framing: Framing,
    /// Key of every record; records with the same key keep their order
    #[arg(long, conflicts_with = "key_column")]
    key: Option<String>,
    /// Take each record's key from this column of it, counted from 1
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    key_column: Option<u16>,
    /// What separates columns: one byte
    #[arg(long, value_name = "BYTE", default_value = "\t", value_parser = separator, requires = "key_column")]
    key_separator: u8,
    /// Most records of one frame
    #[arg(long, value_name = "RECORDS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: Option<u32>,
    /// How long a frame that is not full waits for more, for example 5ms
    #[arg(long, value_name = "TIME", value_parser = super::duration::parse)]
    linger: Option<Duration>,
    /// Which frames the broker answers
    #[arg(long, value_enum, default_value_t)]
    ack: AckArg,
    /// Publish without numbers also where the stream is durable: a record whose answer is lost is not sent again
    #[arg(long)]
    no_idempotent: bool,
    /// How long a record is tried, for example while a broker is restarted. On durable streams that includes records whose
    /// answer is lost (they are stored once); elsewhere only those that were certainly not written
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = super::duration::parse)]
    retry_for: Duration,
    /// Most unanswered frames of each shard
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..))]
    inflight: Option<u32>,
    /// Most records per second, for example 500 or 20k
    #[arg(long, value_name = "RECORDS", value_parser = pace::parse_rate)]
    rate: Option<f64>,
    #[command(flatten)]
    pub output: OutputArgs,
}

fn separator(text: &str) -> Result<u8, String> {
    match (text, text.as_bytes()) {
        ("\\t", _) => Ok(b'\t'),
        (_, [byte]) => Ok(*byte),
        _ => Err("it is one byte, such as `,`".to_owned()),
    }
}

/// What was published, as far as it is known.
#[derive(Debug, Default, serde::Serialize)]
struct Summary {
    /// Records that were handed to the publisher.
    sent: u64,
    /// Records that were answered; without acknowledgements, those that arrived.
    acknowledged: u64,
    /// Records that may or may not have been written.
    unknown: u64,
    /// Records that were certainly not written.
    failed: u64,
    /// Records were numbered, so that one sent twice is stored once.
    idempotent: bool,
    bytes: u64,
    seconds: f64,
}

impl PubArgs {
    /// # Errors
    /// What kept records from being acknowledged.
    pub async fn run(self, settings: &Settings) -> Outcome {
        let client = connect(settings).await?;
        let publisher = self.open(&client).await?;
        let started = Instant::now();
        let progress = self.progress();
        let (receipts, settled) = mpsc::channel(RECEIPTS_AHEAD);
        let (failing, failed) = watch::channel(false);
        let settling = tokio::spawn(settle(settled, failing));
        let mut summary = Summary::default();
        let sent = self.send_all(&publisher, receipts, failed, &progress, &mut summary).await;
        let flushed = publisher.flush().await;
        // Known for certain once everything was answered.
        summary.idempotent = publisher.is_idempotent();
        let flushed = flushed.and(publisher.close().await);
        let settled = settling.await.map_err(|error| Failure::other(error.to_string()))?;
        progress.finish_and_clear();
        summary.count(&settled, &flushed);
        summary.seconds = started.elapsed().as_secs_f64();
        self.show(&summary)?;
        client.close().await;
        settled.worst.map_or(Ok(()), Err)?;
        flushed?;
        sent
    }

    async fn open(&self, client: &crate::client::Client) -> Outcome<Publisher> {
        let mut batch = BatchLimits::default();
        match self.batch {
            Some(1) => batch = BatchLimits::one_send_per_frame(),
            Some(records) => batch.max_records = records as usize,
            None => {}
        }
        batch.linger = self.linger.unwrap_or(batch.linger);
        let idempotence = if self.no_idempotent { Idempotence::Off } else { Idempotence::Auto };
        let builder = client.publisher(self.stream.as_str()).batch(batch).idempotent(idempotence);
        let builder = builder.retry_idempotent(self.retry_for).retry_refused(self.retry_for);
        let mut builder = builder.ack(match self.ack {
            AckArg::None => AckMode::None,
            AckArg::Message => AckMode::PerMessage,
            AckArg::Batch => AckMode::PerBatch,
        });
        if let Some(frames) = self.inflight {
            builder = builder.max_in_flight(frames as usize);
        }
        Ok(builder.open().await?)
    }

    async fn send_all(
        &self,
        publisher: &Publisher,
        receipts: mpsc::Sender<Receipt>,
        mut failed: watch::Receiver<bool>,
        progress: &ProgressBar,
        summary: &mut Summary,
    ) -> Outcome {
        let key = self.key_source();
        let started = Instant::now();
        let mut pace = self.rate.map(Pace::new);
        let mut records = source::read(self.files.clone(), self.framing);
        let mut interrupted = interrupt::first()?;
        loop {
            let chunk = tokio::select! {
                chunk = records.recv() => chunk,
                _ = failed.wait_for(|failed| *failed) => return Ok(()),
                () = interrupted.wait() => None,
            };
            let Some(chunk) = chunk else { break };
            for record in chunk? {
                if *failed.borrow() {
                    return Ok(());
                }
                if interrupted.happened() {
                    break;
                }
                let wait = pace.as_mut().map_or(Duration::ZERO, |pace| pace.wait(started.elapsed()));
                if wait >= SHORTEST_WAIT {
                    tokio::time::sleep(wait).await;
                }
                let bytes = record.len() as u64;
                let receipt = self.send(publisher, record, &key, &mut failed).await?;
                summary.sent += 1;
                summary.bytes += bytes;
                progress.inc(bytes + self.framing_bytes());
                match receipt {
                    Some(receipt) => wait_for_room(publisher, &receipts, receipt).await,
                    None => return Ok(()),
                }
            }
        }
        if interrupted.happened() { Err(Failure::other("interrupted")) } else { Ok(()) }
    }

    /// `None` when an earlier record failed while this one waited for room.
    async fn send(
        &self,
        publisher: &Publisher,
        record: Bytes,
        key: &KeySource,
        failed: &mut watch::Receiver<bool>,
    ) -> Outcome<Option<Receipt>> {
        let key = key.of(&record);
        tokio::select! {
            biased;
            receipt = publisher.send(record, key) => Ok(Some(receipt?)),
            _ = failed.wait_for(|failed| *failed) => Ok(None),
        }
    }

    fn key_source(&self) -> KeySource {
        match (&self.key, self.key_column) {
            (Some(key), _) => KeySource::Fixed(Bytes::from(key.clone())),
            (None, Some(column)) => {
                KeySource::Column { index: usize::from(column) - 1, separator: self.key_separator }
            }
            (None, None) => KeySource::None,
        }
    }

    fn framing_bytes(&self) -> u64 {
        match self.framing {
            Framing::Line => 1,
            Framing::Whole => 0,
            Framing::Length => 4,
        }
    }

    /// On standard error, and only when that is a terminal.
    fn progress(&self) -> ProgressBar {
        if !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            return ProgressBar::hidden();
        }
        let (bar, template) = match source::total_bytes(&self.files) {
            Some(total) => {
                (ProgressBar::new(total), "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
            }
            None => (ProgressBar::new_spinner(), "{spinner} {bytes} {bytes_per_sec} {elapsed}"),
        };
        match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        }
    }

    fn show(&self, summary: &Summary) -> Outcome {
        if self.output.output == Format::Json {
            return Format::Json.one(summary);
        }
        let seconds = summary.seconds.max(1e-9);
        let mut lost = String::new();
        if summary.unknown > 0 {
            lost += &format!(" ({} may or may not have been written)", summary.unknown);
        }
        if summary.failed > 0 {
            lost += &format!(" ({} not written)", summary.failed);
        }
        remark(&format!(
            "{} of {} records{lost}, {} bytes in {seconds:.2} s: {:.0} records/s, {:.1} MiB/s",
            summary.acknowledged,
            summary.sent,
            summary.bytes,
            summary.acknowledged as f64 / seconds,
            summary.bytes as f64 / seconds / f64::from(1 << 20),
        ));
        Ok(())
    }
}

/// Hands the receipt on. While there is no room nothing more is sent, so no frame lingers for more.
async fn wait_for_room(publisher: &Publisher, receipts: &mpsc::Sender<Receipt>, receipt: Receipt) {
    if let Err(TrySendError::Full(receipt)) = receipts.try_send(receipt) {
        let _hurry = publisher.hurry();
        // The receiver lives until this sender is gone.
        drop(receipts.send(receipt).await);
    }
}

/// What became of the records.
#[derive(Debug, Default)]
struct Settled {
    acknowledged: u64,
    unknown: u64,
    failed: u64,
    /// What to report.
    worst: Option<Failure>,
}

impl Summary {
    /// `flushed` tells about frames that are not answered: none of those is certain when one may be lost.
    fn count(&mut self, settled: &Settled, flushed: &Result<(), PublishError>) {
        self.acknowledged = settled.acknowledged;
        self.unknown = settled.unknown;
        if matches!(flushed, Err(PublishError::MayBeLost { .. })) {
            self.unknown += std::mem::take(&mut self.acknowledged);
        }
        self.failed = settled.failed;
    }
}

/// Looks at every receipt. Signals the first one that is not good.
async fn settle(mut receipts: mpsc::Receiver<Receipt>, failing: watch::Sender<bool>) -> Settled {
    let mut settled = Settled::default();
    while let Some(receipt) = receipts.recv().await {
        match receipt.await {
            Ok(_) => settled.acknowledged += 1,
            Err(error) => {
                match error.is_outcome_unknown() {
                    true => settled.unknown += 1,
                    false => settled.failed += 1,
                }
                settled.worst = Some(worse(settled.worst, error));
                failing.send_replace(true);
            }
        }
    }
    settled
}

/// An unknown outcome is worse than a known one; else the first counts.
fn worse(held: Option<Failure>, error: PublishError) -> Failure {
    let error = Failure::from(error);
    match held {
        Some(held) if held.kind == Kind::OutcomeUnknown || error.kind != Kind::OutcomeUnknown => held,
        _ => error,
    }
}
