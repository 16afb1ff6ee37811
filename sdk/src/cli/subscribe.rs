//! `felix sub`: records of a stream on standard output. Scope: per command.
//! Invariants: only records go to standard output; it is flushed whenever no record is waiting; records that are known
//! to be missing make the exit status 1; a broker that is away is told when it goes and when it is back.
//! Not here: the subscription itself (`crate::subscribe`), how a record is written (`subscribe/render`), what is said about
//! the way (`subscribe/remarks`).

mod remarks;
mod render;

use std::io::{self, BufWriter, Write};

use clap::Args;
use felix_wire::id::Offset;

use self::remarks::Remarks;
pub use self::render::Rendering;
use super::connect::connect;
use super::failure::{Failure, Kind, Outcome, output_failed};
use super::interrupt;
use super::output::{output_closed, remark};
use super::settings::Settings;
use crate::error::SubscribeError;
use crate::subscribe::{Event, Item, Shards, Start, Subscription};

/// Bytes collected before they are written.
const WRITE_BYTES: usize = 256 << 10;

#[derive(Clone, Debug, Args)]
pub struct SubArgs {
    /// Stream to read
    stream: String,
    /// Where to begin: latest, earliest, or an offset
    #[arg(long, default_value = "latest", value_parser = start)]
    from: Start,
    /// Only this shard
    #[arg(long)]
    shard: Option<u32>,
    /// End after so many records
    #[arg(long, value_name = "RECORDS")]
    count: Option<u64>,
    /// End with the last record that was there at the start
    #[arg(long)]
    until_end: bool,
    /// Put shard/offset and a tab in front of each record
    #[arg(long)]
    show_offsets: bool,
    /// How a record is written
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Rendering,
}

fn start(text: &str) -> Result<Start, String> {
    match text {
        "latest" => Ok(Start::Latest),
        "earliest" => Ok(Start::Earliest),
        offset => match offset.parse() {
            Ok(offset) => Ok(Start::Offset(Offset(offset))),
            Err(_) => Err("it is `latest`, `earliest` or an offset".to_owned()),
        },
    }
}

impl SubArgs {
    /// # Errors
    /// What the brokers said; `Other` when records were missing or the output cannot be written.
    pub async fn run(self, settings: &Settings) -> Outcome {
        if self.show_offsets && self.output != Rendering::Text {
            return Err(Failure::usage(
                "--show-offsets is for text: json has the offsets, raw has no room for them",
            ));
        }
        let mut interrupted = interrupt::first()?;
        let opened = async {
            let client = connect(settings).await?;
            let shards = self.shard.map_or(Shards::All, Shards::One);
            let builder = client.subscribe(self.stream.as_str()).from(self.from.clone()).shards(shards);
            Ok::<_, Failure>((builder.open().await?, client))
        };
        let (mut subscription, client) = tokio::select! {
            opened = opened => opened?,
            () = interrupted.wait() => return Ok(()),
        };
        remark(&format!("reading `{}`, {} shard(s)", self.stream, subscription.live_shards()));
        let mut out = Output::new(&self);
        let read = tokio::select! {
            read = out.read(&mut subscription) => read,
            () = interrupted.wait() => Ok(()),
        };
        let flushed = out.writer.flush().map_err(|error| output_failed(&error));
        drop(subscription);
        client.close().await;
        read.and(flushed)?;
        if out.remarks.missing { Err(Failure::new(Kind::Other, "records were missing")) } else { Ok(()) }
    }
}

/// Standard output and what is still wanted on it.
struct Output {
    writer: BufWriter<io::Stdout>,
    rendering: Rendering,
    offsets: bool,
    left: Option<u64>,
    until_end: bool,
    remarks: Remarks,
}

impl Output {
    fn new(args: &SubArgs) -> Output {
        Output {
            writer: BufWriter::with_capacity(WRITE_BYTES, io::stdout()),
            rendering: args.output,
            offsets: args.show_offsets,
            left: args.count,
            until_end: args.until_end,
            remarks: Remarks::default(),
        }
    }

    /// Until the subscription ends or enough was written. Runs on the thread that called into the runtime, so a slow
    /// reader of our output stops nothing else.
    async fn read(&mut self, subscription: &mut Subscription) -> Outcome {
        while self.left != Some(0) && !self.has_everything(subscription)? {
            let waiting = tokio::select! {
                biased;
                item = subscription.next_item() => Some(item),
                () = std::future::ready(()) => None,
            };
            let item = match waiting {
                Some(item) => item,
                None => {
                    self.writer.flush().map_err(|error| output_failed(&error))?;
                    tokio::select! {
                        item = subscription.next_item() => item,
                        // As good as a failed write, but it comes without waiting for a record to write.
                        () = output_closed() => return Ok(()),
                    }
                }
            };
            match item {
                Some(Item::Event(event)) => self.write(&event, subscription)?,
                Some(Item::Notice(notice)) => self.remarks.note(&notice),
                // A gap is told and counted; everything else ends the command.
                Some(Item::Error(SubscribeError::Gap(gap))) => self.remarks.gap(&gap),
                Some(Item::Error(error)) => return Err(error.into()),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Every shard has come to where its end was at the start, and that is all that is wanted.
    fn has_everything(&self, subscription: &Subscription) -> Outcome<bool> {
        if !self.until_end {
            return Ok(false);
        }
        let mut all = true;
        for shard in subscription.progress() {
            all &= shard.is_caught_up().ok_or_else(|| {
                Failure::new(Kind::Refused, "--until-end: the broker does not tell where this stream ends")
            })?;
        }
        Ok(all)
    }

    fn write(&mut self, event: &Event, subscription: &Subscription) -> Outcome {
        let ends = |offset| {
            let shard = subscription.progress().find(|shard| shard.shard == event.shard);
            shard.and_then(|shard| shard.live_offset).is_some_and(|live| offset >= live)
        };
        if self.until_end && event.offset.is_some_and(ends) {
            return Ok(());
        }
        let written = self.rendering.write(&mut self.writer, event, self.offsets);
        written.map_err(|error| output_failed(&error))?;
        self.left = self.left.map(|left| left - 1);
        Ok(())
    }
}
