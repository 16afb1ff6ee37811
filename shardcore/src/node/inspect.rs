//! `felix-broker inspect log`: what a stopped broker's log directory holds and what is wrong with it. Scope: per command.
//! Owns: the arguments, the exit status.
//! Invariants: nothing is written but the report; status 0 is a sound log, 1 one with damage, 2 no report.
//! Not here: looking (`felix_logstore::inspect`).

mod json;
mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use felix_logstore::id::{Fsync, ShardKey};
use felix_logstore::inspect::{
    BATCH_ROWS_MAX, BatchRange, InspectError, Options, SegmentRole, Severity, ShardState, inspect,
};
use felix_logstore::record::BatchKind;
use felix_wire::id::Offset;

use super::log_names::{self, LogOf};
use crate::snapshot::LogRole;

/// Batches shown when no limit is named.
const BATCH_ROWS: &str = "100";
const EXIT_STATUSES: &str = "Exit status: 0 sound, 1 damage found, 2 wrong usage, in use, or not readable";

/// A log directory to look at, and how to show it.
#[derive(Debug)]
pub struct InspectLog {
    dir: PathBuf,
    options: Options,
    show: Show,
}

/// What is shown beside the shards and the findings.
#[derive(Debug, Clone, Copy)]
struct Show {
    json: bool,
    slots: bool,
    segments: bool,
}

/// What to print, and the exit status.
#[derive(Debug)]
pub struct Shown {
    pub text: String,
    pub status: u8,
}

impl InspectLog {
    pub(super) fn command() -> Command {
        let flag = |name: &'static str, help: &'static str| {
            Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
        };
        let log = Command::new("log")
            .about("Show and check the log directory of a stopped broker. Nothing is changed")
            .after_help(EXIT_STATUSES)
            .arg(
                Arg::new("dir")
                    .required(true)
                    .value_name("DIR")
                    .value_parser(value_parser!(PathBuf))
                    .help("Directory with `slots` and `shards`"),
            )
            .arg(
                Arg::new("shard")
                    .long("shard")
                    .value_name("PREFIX")
                    .default_value("")
                    .hide_default_value(true)
                    .help("Only shards whose directory name begins so"),
            )
            .arg(flag("slots", "Show the slots of the commit file"))
            .arg(flag("segments", "Show the segments of each shard"))
            .arg(flag("batches", "Show batches"))
            .arg(
                Arg::new("from")
                    .long("from")
                    .value_name("OFFSET")
                    .requires("batches")
                    .default_value("0")
                    .value_parser(value_parser!(u64))
                    .help("First batch: the one that holds this offset"),
            )
            .arg(
                Arg::new("limit")
                    .long("limit")
                    .value_name("N")
                    .requires("batches")
                    .default_value(BATCH_ROWS)
                    .value_parser(value_parser!(u64).range(1..=BATCH_ROWS_MAX as u64))
                    .help("Batches shown at most"),
            )
            .arg(flag("json", "One JSON object, always with slots and segments"));
        Command::new("inspect")
            .about("Look at the files of a stopped broker")
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommand(log)
    }

    pub(super) fn of(matches: &ArgMatches) -> InspectLog {
        let number = |name| matches.get_one::<u64>(name).copied().unwrap_or_default();
        let batches = matches.get_flag("batches").then(|| BatchRange {
            from: Offset(number("from")),
            limit: usize::try_from(number("limit")).unwrap_or(BATCH_ROWS_MAX),
        });
        InspectLog {
            dir: matches.get_one::<PathBuf>("dir").cloned().unwrap_or_default(),
            options: Options {
                shard_prefix: matches.get_one::<String>("shard").cloned().unwrap_or_default(),
                batches,
            },
            show: Show {
                json: matches.get_flag("json"),
                slots: matches.get_flag("slots"),
                segments: matches.get_flag("segments"),
            },
        }
    }

    /// Looks at the directory. Reads all of it and blocks until it has.
    ///
    /// # Errors
    /// No report: status 2.
    pub fn run(&self) -> Result<Shown, InspectError> {
        let report = inspect(&self.dir, &self.options)?;
        let keys: Vec<ShardKey> = report.shards.iter().map(|row| row.key).collect();
        let names = log_names::of_logs(&self.dir, &keys);
        let text = if self.show.json {
            json::render(&self.dir, (&report, &names), self.options.batches.is_some())
        } else {
            text::render(&self.dir, (&report, &names), self.show, self.options.batches.is_some())
        };
        Ok(Shown { text, status: u8::from(!report.is_sound()) })
    }
}

/// What a log is of by its hash, of those that are known.
type Names = BTreeMap<u128, LogOf>;

fn log_role_name(role: LogRole) -> &'static str {
    match role {
        LogRole::Records => "records",
        LogRole::Cache => "cache",
        LogRole::Counters => "counters",
        LogRole::Groups => "groups",
    }
}

fn state_name(state: ShardState) -> &'static str {
    match state {
        ShardState::Sound => "sound",
        ShardState::Torn => "torn",
        ShardState::Damaged => "damaged",
        ShardState::Refused => "refused",
        ShardState::Deleted => "deleted",
    }
}

fn role_name(role: SegmentRole) -> &'static str {
    match role {
        SegmentRole::Sealed => "sealed",
        SegmentRole::Newest => "newest",
        SegmentRole::Retired => "retired",
        SegmentRole::LeftOver => "left_over",
        SegmentRole::Headless => "headless",
    }
}

fn kind_name(kind: BatchKind) -> &'static str {
    match kind {
        BatchKind::Data => "data",
        BatchKind::Skip => "skip",
        BatchKind::GenerationStart => "generation_start",
        BatchKind::Commit => "commit",
    }
}

fn policy_name(policy: Fsync) -> &'static str {
    match policy {
        Fsync::OnCommit => "on_commit",
        Fsync::Periodic => "periodic",
        Fsync::None => "none",
    }
}

fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Damage => "damage",
        Severity::Note => "note",
    }
}
