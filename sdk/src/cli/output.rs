//! Results on standard output: tables for people, JSON for programs. Scope: per command.
//! Invariants: only results go to standard output; remarks go to standard error.
//! Not here: records (`subscribe`).

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clap::{Args, ValueEnum};
use comfy_table::{Table, presets};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::Value;

use super::failure::{Failure, Outcome, output_failed};

/// How often a quiet reader looks whether anybody reads its output.
const OUTPUT_CHECK: Duration = Duration::from_millis(250);

/// How results are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns.
    #[default]
    Table,
    /// One JSON document; failures are one JSON object on standard error.
    Json,
}

/// The flag of commands that show results.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct OutputArgs {
    /// How to show the result
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
}

impl Format {
    /// A listing: one row per item, the whole items as JSON.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn rows<T: Serialize>(
        self,
        items: &[T],
        headers: &[&str],
        row: impl Fn(&T) -> Vec<String>,
    ) -> Outcome {
        match self {
            Format::Json => print_json(&items),
            Format::Table => {
                let mut table = plain_table();
                table.set_header(headers.to_vec());
                for item in items {
                    table.add_row(row(item));
                }
                print_text(&trimmed(&table))
            }
        }
    }

    /// One item: its members, inner ones with dots.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn one<T: Serialize>(self, item: &T) -> Outcome {
        match self {
            Format::Json => print_json(item),
            Format::Table => {
                let value = serde_json::to_value(item).map_err(|error| Failure::other(error.to_string()))?;
                let mut table = plain_table();
                for (name, value) in flattened(&value) {
                    table.add_row([name, value]);
                }
                print_text(&trimmed(&table))
            }
        }
    }
}

/// A line for people, when there is somebody: on standard error.
pub fn remark(text: &str) {
    // A terminal that went away is no reason to fail.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Asks before something is destroyed; `yes` is the flag that answers beforehand.
///
/// # Errors
/// `Usage` when there is nobody to ask (control-plane-api 13.2), `Other` when the answer is no.
pub fn confirm(what: &str, yes: bool) -> Outcome {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(format!("{what}: give --yes to do this without being asked")));
    }
    eprint!("{what}? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::other(error.to_string()))?;
    if ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
        Ok(())
    } else {
        Err(Failure::other("nothing was done"))
    }
}

/// Waits until nobody reads standard output any more: a pipe whose reader is gone.
pub async fn output_closed() {
    loop {
        tokio::time::sleep(OUTPUT_CHECK).await;
        let out = io::stdout();
        let mut asked = [PollFd::new(&out, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut asked, Some(&now)).is_ok() && asked[0].revents().contains(PollFlags::ERR) {
            return;
        }
    }
}

/// A value on standard output as it is, with a newline after it on a terminal.
///
/// # Errors
/// When it cannot be written.
pub fn write_value(value: &[u8]) -> Outcome {
    let mut out = io::stdout().lock();
    let newline: &[u8] = if out.is_terminal() { b"\n" } else { b"" };
    out.write_all(value)
        .and_then(|()| out.write_all(newline))
        .and_then(|()| out.flush())
        .map_err(|error| output_failed(&error))
}

/// One line on standard output.
///
/// # Errors
/// When it cannot be written.
pub fn print_line(text: &str) -> Outcome {
    print_text(text)
}

/// Bytes in a JSON document: `value` when they are UTF-8, else `value_base64`; neither when there are none.
#[derive(Debug, Default, Serialize)]
pub struct Shown<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

impl<'a> Shown<'a> {
    pub fn of(bytes: Option<&'a Bytes>) -> Shown<'a> {
        let Some(bytes) = bytes else { return Shown::default() };
        match std::str::from_utf8(bytes) {
            Ok(text) => Shown { value: Some(text), value_base64: None },
            Err(_) => Shown { value: None, value_base64: Some(STANDARD.encode(bytes)) },
        }
    }
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn trimmed(table: &Table) -> String {
    let lines: Vec<String> =
        table.lines().map(|line| line.trim_end().trim_start_matches(' ').to_owned()).collect();
    lines.join("\n")
}

fn print_json(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::other(error.to_string()))?;
    print_text(&text)
}

fn print_text(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|error| output_failed(&error))
}

/// Members in order, `a.b` for members of members.
fn flattened(value: &Value) -> Vec<(String, String)> {
    let Value::Object(members) = value else { return vec![("value".to_owned(), cell(value))] };
    let mut rows = Vec::new();
    for (name, value) in members {
        match value {
            Value::Object(_) => {
                rows.extend(
                    flattened(value).into_iter().map(|(inner, cell)| (format!("{name}.{inner}"), cell)),
                );
            }
            _ => rows.push((name.clone(), cell(value))),
        }
    }
    rows
}

/// A value in a table.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_members_get_dotted_names_and_nothing_becomes_a_dash() {
        let value = serde_json::json!({ "a": { "b": null, "c": [1, "x"] }, "d": true });
        let rows = flattened(&value);
        let text: Vec<String> = rows.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(text, ["a.b=-", "a.c=1,x", "d=true"]);
    }

    #[test]
    fn a_destructive_command_needs_yes_where_nobody_can_be_asked() {
        assert!(confirm("delete x", true).is_ok());
        if !io::stdin().is_terminal() {
            assert_eq!(confirm("delete x", false).unwrap_err().kind.status(), 2);
        }
    }
}
