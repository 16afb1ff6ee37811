//! `felix group poll`: records of a group on standard output. Scope: per command.
//! Invariants: only records go to standard output; with `--ack` a record is finished after it was written and flushed, and
//! one that was claimed and not written is given back; one whose claim was lost comes again, and that is told.
//! Not here: polling itself (`crate::group`).

use std::io::{self, BufWriter, Write};
use std::time::Duration;

use clap::{Args, ValueEnum};
use felix_wire::error_code::ErrorCode;
use serde::Serialize;

use super::{ClaimArg, GroupArgs};
use crate::cli::connect::connect;
use crate::cli::duration;
use crate::cli::failure::{Failure, Outcome, output_failed};
use crate::cli::interrupt::{self, Interrupt};
use crate::cli::output::{Shown, output_closed, remark};
use crate::cli::settings::Settings;
use crate::group::deliveries::Deliveries;
use crate::group::{Claim, Delivery, Group, Poll};

/// Records that are written before they are finished, at most.
const UNACKED_MAX: usize = 256;

/// How a record is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Rendering {
    /// shard/offset/attempts, a tab, and its bytes; only its bytes with --ack
    #[default]
    Text,
    /// An object a line: shard, offset, attempts, and value or value_base64
    Json,
}

#[derive(Clone, Debug, Args)]
pub struct PollArgs {
    #[command(flatten)]
    group: GroupArgs,
    /// Only this shard
    #[arg(long)]
    shard: Option<u32>,
    /// Finish each record once it is written, and go on until --count, --until-empty or Ctrl-C
    #[arg(long)]
    ack: bool,
    /// Most records of one poll
    #[arg(long, value_name = "RECORDS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    max: u32,
    /// How long a poll waits for records, for example 5s or 250ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration::parse)]
    wait: Duration,
    /// End after so many records
    #[arg(long, value_name = "RECORDS", requires = "ack")]
    count: Option<u64>,
    /// End when no shard has had a record for the time to wait
    #[arg(long, requires = "ack")]
    until_empty: bool,
    /// Name of this member; what one of the same name held elsewhere comes first. With --ack the broker deals the shards
    /// among the members of the group, unless --shard or --until-empty is given
    #[arg(long, value_name = "NAME")]
    member: Option<String>,
    /// How long the member keeps its shards when it is not heard of, for example 10s
    #[arg(long, value_name = "TIME", value_parser = duration::parse, requires = "member", requires = "ack")]
    term: Option<Duration>,
    /// How long claims hold, for example 5m; the broker's default without it
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    visibility: Option<Duration>,
    /// How a record is written
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Rendering,
}

#[derive(Serialize)]
struct Document<'a> {
    shard: u32,
    offset: u64,
    attempts: u32,
    #[serde(flatten)]
    value: Shown<'a>,
}

impl Rendering {
    fn write(self, out: &mut impl Write, delivery: &Delivery, claims: bool) -> io::Result<()> {
        let (claim, payload) = (delivery.claim, &delivery.payload);
        match self {
            Rendering::Text => {
                if claims {
                    write!(out, "{}\t", ClaimArg(claim))?;
                }
                out.write_all(payload)?;
            }
            Rendering::Json => {
                let (shard, offset, attempts) = (claim.shard, claim.offset.get(), claim.attempts);
                let value = Shown::of(Some(payload));
                serde_json::to_writer(&mut *out, &Document { shard, offset, attempts, value })?;
            }
        }
        out.write_all(b"\n")
    }
}

impl PollArgs {
    pub fn is_json(&self) -> bool {
        self.output == Rendering::Json
    }

    /// # Errors
    /// What the brokers said; `Other` when the output cannot be written.
    pub async fn run(self, settings: &Settings) -> Outcome {
        let client = connect(settings).await?;
        let outcome = async {
            let mut group = client.group(self.group.stream.as_str(), &self.group.group)?;
            if let Some(member) = &self.member {
                group = group.member(member)?;
            }
            if let Some(visibility) = self.visibility {
                group = group.visibility(visibility);
            }
            if self.ack { self.consume(&group).await } else { self.once(&group).await }
        };
        let outcome = outcome.await;
        client.close().await;
        outcome
    }

    /// One poll of each shard; the records stay claimed.
    async fn once(&self, group: &Group) -> Outcome {
        let mut out = BufWriter::new(io::stdout());
        let shards = match self.shard {
            Some(shard) => shard..shard.saturating_add(1),
            None => 0..group.shard_count().await?,
        };
        let mut left = self.max;
        for shard in shards {
            if left == 0 {
                break;
            }
            let poll = Poll { max_records: left, wait: self.wait, reclaim: self.member.is_some() };
            for delivery in group.poll(shard, poll).await? {
                left = left.saturating_sub(1);
                self.output.write(&mut out, &delivery, true).map_err(|error| output_failed(&error))?;
            }
        }
        out.flush().map_err(|error| output_failed(&error))
    }

    async fn consume(&self, group: &Group) -> Outcome {
        let mut interrupted = interrupt::first()?;
        let mut builder = group.deliveries().prefetch(self.max as usize).wait(self.wait);
        // One that ends when all shards are empty has to look at all of them.
        builder = builder.leased(self.member.is_some() && !self.until_empty);
        if let Some(term) = self.term {
            builder = builder.term(term);
        }
        if let Some(shard) = self.shard {
            builder = builder.shards(vec![shard]);
        }
        let mut deliveries = builder.open().await?;
        remark(&format!("consuming `{}` as `{}`", self.group.stream, self.group.group));
        let out = BufWriter::new(io::stdout());
        let (written, unread) = (Vec::new(), Vec::new());
        let mut consumer = Consumer { group, args: self, out, written, unread, stale: 0 };
        let outcome = consumer.run(&mut deliveries, &mut interrupted).await;
        deliveries.request_stop();
        // What was written is finished, also when something else failed; nothing else is.
        let settled = consumer.settle().await;
        deliveries.stop().await;
        for claim in consumer.unread {
            drop(group.nack(claim, None).await);
        }
        if consumer.stale > 0 {
            remark(&format!("{} record(s) were printed too late and are handed out again", consumer.stale));
        }
        outcome.and(settled)
    }
}

struct Consumer<'a> {
    group: &'a Group,
    args: &'a PollArgs,
    out: BufWriter<io::Stdout>,
    written: Vec<Claim>,
    /// Nobody will read these, so they are given back.
    unread: Vec<Claim>,
    /// Written when their claims were lost already, as in a restart of the broker.
    stale: u64,
}

impl Consumer<'_> {
    async fn run(&mut self, deliveries: &mut Deliveries, interrupted: &mut Interrupt) -> Outcome {
        let mut left = self.args.count;
        // Polls of all shards wait at the same time; one that has just begun gets its whole time.
        let quiet = self.args.wait * 2;
        while left != Some(0) && !interrupted.happened() {
            let waiting = tokio::select! {
                biased;
                item = deliveries.next() => Some(item),
                () = std::future::ready(()) => None,
            };
            let item = match waiting {
                Some(item) if self.written.len() < UNACKED_MAX => item,
                waiting => {
                    self.settle().await?;
                    match waiting {
                        Some(item) => item,
                        None => tokio::select! {
                            item = deliveries.next() => item,
                            () = interrupted.wait() => return Ok(()),
                            () = output_closed() => return Ok(()),
                            () = tokio::time::sleep(quiet), if self.args.until_empty => return Ok(()),
                        },
                    }
                }
            };
            match item {
                Some(Ok(delivery)) => {
                    let claim = delivery.claim;
                    if let Err(error) = self.args.output.write(&mut self.out, &delivery, false) {
                        self.unread.push(claim);
                        return Err(output_failed(&error));
                    }
                    self.written.push(claim);
                    left = left.map(|left| left - 1);
                }
                Some(Err(error)) => {
                    let shard = format!("shard {}", error.shard);
                    return Err(Failure::from(*error.error).while_doing(&shard));
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Flushes, then finishes what was written.
    async fn settle(&mut self) -> Outcome {
        if self.written.is_empty() {
            return Ok(());
        }
        let claims = std::mem::take(&mut self.written);
        if let Err(error) = self.out.flush() {
            self.unread.extend(claims);
            return Err(output_failed(&error));
        }
        let mut outcome = Ok(());
        for (claim, acked) in claims.iter().zip(self.group.ack_all(&claims).await) {
            if let Err(error) = acked {
                if error.code() == Some(&ErrorCode::StaleClaim) {
                    self.stale += 1;
                    continue;
                }
                let record = format!("{}/{}", claim.shard, claim.offset);
                outcome = Err(Failure::from(error).while_doing(&record));
            }
        }
        outcome
    }
}
