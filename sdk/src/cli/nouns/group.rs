//! `felix group`: consumer groups of a stream. Everything is asked of the brokers.

mod dead;
mod poll;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use felix_wire::id::Offset;
use serde::Serialize;

use self::poll::PollArgs;
use super::{Context, Failure, Format, Outcome, OutputArgs, confirm, remark};
use crate::cli::connect::connect;
use crate::cli::{duration, on_runtime};
use crate::group::lease::GroupMember;
use crate::group::{Claim, Group, GroupPosition, SeekTo};

#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Give a group its position, where it has none
    Create {
        #[command(flatten)]
        group: GroupArgs,
        /// Where it begins: earliest, latest or an offset
        #[arg(long, default_value = "earliest", value_parser = position)]
        at: SeekTo,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Claim records and print them; with --ack, as a consumer that finishes what it has printed
    Poll(PollArgs),
    /// Finish records
    Ack {
        #[command(flatten)]
        group: GroupArgs,
        /// Records as `felix group poll` shows them: shard/offset or shard/offset/attempts
        #[arg(required = true)]
        claims: Vec<ClaimArg>,
    },
    /// Give records back
    Nack {
        #[command(flatten)]
        group: GroupArgs,
        /// Records as `felix group poll` shows them: shard/offset or shard/offset/attempts
        #[arg(required = true)]
        claims: Vec<ClaimArg>,
        /// They are handed out again after this time, for example 30s
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        delay: Option<Duration>,
    },
    /// Hold the claim of a record longer
    Extend {
        #[command(flatten)]
        group: GroupArgs,
        /// The record as `felix group poll` shows it: shard/offset/attempts
        claim: ClaimArg,
        /// From now on, for example 5m
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        by: Duration,
    },
    /// Move the group; claims that stand are void
    Seek {
        #[command(flatten)]
        group: GroupArgs,
        /// Where to: earliest, latest or an offset
        #[arg(long, value_parser = position)]
        to: SeekTo,
        /// Only on this shard; an offset needs one when there are several
        #[arg(long)]
        shard: Option<u32>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show how the group is doing on each shard, and to which member it is leased
    #[command(visible_alias = "info")]
    Describe {
        #[command(flatten)]
        group: GroupArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Remove the group with its position and dead letters
    #[command(visible_alias = "rm")]
    Delete {
        #[command(flatten)]
        group: GroupArgs,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Records that were given up
    #[command(subcommand)]
    Dead(dead::Verb),
}

/// The group that is meant.
#[derive(Clone, Debug, Args)]
pub struct GroupArgs {
    stream: String,
    group: String,
}

fn position(text: &str) -> Result<SeekTo, String> {
    match text {
        "earliest" => Ok(SeekTo::Earliest),
        "latest" => Ok(SeekTo::Latest),
        offset => match offset.parse() {
            Ok(offset) => Ok(SeekTo::Offset(Offset(offset))),
            Err(_) => Err("it is `earliest`, `latest` or an offset".to_owned()),
        },
    }
}

/// `shard/offset`, with `/attempts` behind it for one certain delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimArg(Claim);

impl FromStr for ClaimArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not shard/offset or shard/offset/attempts");
        let mut parts = text.split('/');
        let mut number = |most: u64| {
            let number: u64 = parts.next()?.parse().ok()?;
            (number <= most).then_some(number)
        };
        let shard = number(u64::from(u32::MAX)).ok_or_else(wrong)?;
        let offset = number(u64::MAX).ok_or_else(wrong)?;
        let rest = text.split('/').count();
        let attempts = match rest {
            2 => 0,
            3 => number(u64::from(u32::MAX)).filter(|attempts| *attempts > 0).ok_or_else(wrong)?,
            _ => return Err(wrong()),
        };
        // Both were checked to fit.
        let (shard, attempts) = (shard as u32, attempts as u32);
        Ok(Self(Claim { shard, offset: Offset(offset), attempts, lease: None }))
    }
}

impl fmt::Display for ClaimArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.0.shard, self.0.offset, self.0.attempts)
    }
}

#[derive(Serialize)]
struct Position {
    shard: u32,
    offset: u64,
    moved: bool,
}

#[derive(Serialize)]
struct Info {
    shard: u32,
    committed: Option<u64>,
    tail: u64,
    /// Records behind the position, those that are finished out of order among them.
    lag: Option<u64>,
    in_flight: u64,
    owed: u64,
    dead_letters: u64,
    /// To whom it is leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<String>,
}

impl Verb {
    pub fn output(&self) -> OutputArgs {
        match self {
            Verb::Create { output, .. } | Verb::Seek { output, .. } | Verb::Describe { output, .. } => {
                *output
            }
            Verb::Dead(verb) => verb.output(),
            Verb::Poll(args) if args.is_json() => OutputArgs { output: Format::Json },
            Verb::Poll(_)
            | Verb::Ack { .. }
            | Verb::Nack { .. }
            | Verb::Extend { .. }
            | Verb::Delete { .. } => OutputArgs::default(),
        }
    }

    /// # Errors
    /// What the brokers said.
    pub fn run(self, context: &Context) -> Outcome {
        match self {
            Verb::Create { group, at, .. } => {
                let positions = group.with(context, async |group| Ok(group.create(at).await?))?;
                show_positions(context.format, &positions)
            }
            Verb::Poll(args) => on_runtime(args.run(&context.settings)),
            Verb::Ack { group, claims } => group
                .with(context, async |group| each(&claims, async |claim| Ok(group.ack(claim).await?)).await),
            Verb::Nack { group, claims, delay } => group.with(context, async |group| {
                each(&claims, async |claim| Ok(group.nack(claim, delay).await?)).await
            }),
            Verb::Extend { group, claim: ClaimArg(claim), by } => {
                if claim.attempts == 0 {
                    return Err(Failure::usage("the claim needs its attempts: shard/offset/attempts"));
                }
                let held = group.with(context, async |group| Ok(group.extend(claim, by).await?))?;
                remark(&format!("held for {} ms", held.as_millis()));
                Ok(())
            }
            Verb::Seek { group, to, shard, .. } => {
                let positions = group.with(context, async |group| seek(group, to, shard).await)?;
                show_positions(context.format, &positions)
            }
            Verb::Describe { group, .. } => describe(context, &group),
            Verb::Delete { group, yes } => {
                confirm(&format!("delete the group `{}` of `{}`", group.group, group.stream), yes)?;
                let existed = group.with(context, async |group| Ok(group.delete().await?))?;
                remark(if existed { "deleted" } else { "there was no such group" });
                Ok(())
            }
            Verb::Dead(verb) => verb.run(context),
        }
    }
}

impl GroupArgs {
    /// Runs requests against the group.
    fn with<T>(&self, context: &Context, request: impl AsyncFnOnce(&Group) -> Outcome<T>) -> Outcome<T> {
        on_runtime(async {
            let client = connect(&context.settings).await?;
            let outcome = match client.group(self.stream.as_str(), &self.group) {
                Ok(group) => request(&group).await,
                Err(error) => Err(error.into()),
            };
            client.close().await;
            outcome
        })
    }
}

/// One after the other; the first failure ends it and names the record.
async fn each(claims: &[ClaimArg], request: impl AsyncFn(Claim) -> Outcome) -> Outcome {
    for ClaimArg(claim) in claims {
        request(*claim)
            .await
            .map_err(|failure| failure.while_doing(&format!("{}/{}", claim.shard, claim.offset)))?;
    }
    Ok(())
}

async fn seek(group: &Group, to: SeekTo, shard: Option<u32>) -> Outcome<Vec<GroupPosition>> {
    let shards = group.shard_count().await?;
    let wanted = match shard {
        Some(shard) => shard..shard.saturating_add(1),
        None if shards > 1 && matches!(to, SeekTo::Offset(_)) => {
            return Err(Failure::usage(format!("the stream has {shards} shards: name one with --shard")));
        }
        None => 0..shards,
    };
    let mut positions = Vec::new();
    for shard in wanted {
        positions.push(group.seek(shard, to).await?);
    }
    Ok(positions)
}

fn show_positions(format: Format, positions: &[GroupPosition]) -> Outcome {
    let shown = |position: &GroupPosition| Position {
        shard: position.shard,
        offset: position.offset.get(),
        moved: position.moved,
    };
    let positions: Vec<Position> = positions.iter().map(shown).collect();
    format.rows(&positions, &["SHARD", "OFFSET", "MOVED"], |position| {
        vec![position.shard.to_string(), position.offset.to_string(), position.moved.to_string()]
    })
}

/// Which member holds each shard, and a remark on all of them.
async fn holders(group: &Group) -> Outcome<HashMap<u32, String>> {
    if !group.is_leased_by_brokers().await? {
        return Ok(HashMap::new());
    }
    let members = group.members().await?;
    if !members.is_empty() {
        let shown = |member: &GroupMember| format!("{} ({})", member.name, member.leases.len());
        let members: Vec<String> = members.iter().map(shown).collect();
        remark(&format!("members, and how many shards each holds: {}", members.join(", ")));
    }
    let held =
        |member: GroupMember| member.leases.into_iter().map(move |lease| (lease.shard, member.name.clone()));
    Ok(members.into_iter().flat_map(held).collect())
}

fn describe(context: &Context, group: &GroupArgs) -> Outcome {
    let infos = group.with(context, async |group| {
        let mut holders = holders(group).await?;
        let mut infos = Vec::new();
        for shard in 0..group.shard_count().await? {
            let info = group.describe(shard).await?;
            let committed = info.committed.map(|offset| offset.get());
            infos.push(Info {
                shard,
                committed,
                tail: info.tail.get(),
                lag: committed.map(|committed| info.tail.get().saturating_sub(committed)),
                in_flight: info.in_flight,
                owed: info.owed,
                dead_letters: info.dead_letters,
                member: holders.remove(&shard),
            });
        }
        Ok(infos)
    })?;
    let headers = ["SHARD", "COMMITTED", "TAIL", "LAG", "IN FLIGHT", "OWED", "DEAD", "MEMBER"];
    let or_dash = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    context.format.rows(&infos, &headers, |info| {
        vec![
            info.shard.to_string(),
            or_dash(info.committed),
            info.tail.to_string(),
            or_dash(info.lag),
            info.in_flight.to_string(),
            info.owed.to_string(),
            info.dead_letters.to_string(),
            info.member.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_read_as_they_are_shown() {
        let claim = |shard, offset, attempts| {
            Ok(ClaimArg(Claim { shard, offset: Offset(offset), attempts, lease: None }))
        };
        assert_eq!("3/41".parse(), claim(3, 41, 0));
        assert_eq!("3/41/2".parse(), claim(3, 41, 2));
        let most = format!("{}/{}/{}", u32::MAX, u64::MAX, u32::MAX);
        assert_eq!(most.parse(), claim(u32::MAX, u64::MAX, u32::MAX));
        assert_eq!(most.parse::<ClaimArg>().unwrap().to_string(), most);
        for text in
            ["", "3", "3/", "/41", "3/41/0", "3/41/2/1", "3/-1", "4294967296/1", "3/41/4294967296", "a/b"]
        {
            assert!(text.parse::<ClaimArg>().is_err(), "{text}");
        }
    }
}
