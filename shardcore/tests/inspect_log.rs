//! `felix-broker inspect log` as a program: what it prints and how it ends, over the log directory that the tests of the log
//! keep for ever.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// Files of a volume: a line with the path, one with the length, one per block that is not zeros, in hex.
const VOLUME: &str = include_str!("../../logstore/tests/golden/v1-volume.txt");

fn volume() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut file: Option<File> = None;
    for line in VOLUME.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["file", path] => {
                let path = folder.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                file = Some(File::create(path).unwrap());
            }
            [len, "bytes"] => file.as_ref().unwrap().set_len(len.parse().unwrap()).unwrap(),
            ["block", number, digits] => {
                let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
                let bytes: Vec<u8> = pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
                let at = number.parse::<u64>().unwrap() * 4_096;
                file.as_ref().unwrap().write_all_at(&bytes, at).unwrap();
            }
            _ => panic!("not a line of a dump: {line:?}"),
        }
    }
    folder
}

/// Runs it: exit status, standard output, standard error.
fn inspect(folder: &Path, more: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_felix-broker"));
    let output = command.env_clear().args(["inspect", "log"]).arg(folder).args(more).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_sound_log_is_shown_as_tables_and_as_json_with_status_0() {
    let folder = volume();
    let (status, text, errors) =
        inspect(folder.path(), &["--slots", "--segments", "--batches", "--limit", "3"]);
    assert_eq!((status, errors.as_str()), (0, ""), "{text}");
    assert!(text.ends_with(&format!("{}: sound\n", folder.path().display())), "{text}");
    let (status, printed, _) = inspect(folder.path(), &["--batches", "--limit", "3", "--json"]);
    let report = json(&printed);
    assert_eq!((status, &report["sound"], &report["damage_count"]), (0, &true.into(), &0.into()));
    assert_eq!(report["batches"].as_array().unwrap().len(), 3);
    let shards = report["shards"].as_array().unwrap();
    assert!(!shards.is_empty() && !report["slots"].as_array().unwrap().is_empty(), "{report}");
    for shard in shards {
        let row = text.lines().find(|line| line.starts_with(shard["hash"].as_str().unwrap())).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        let numbers = ["incarnation", "segment_count", "start", "end", "records", "bytes"];
        let same = numbers
            .iter()
            .zip(&cells[1..])
            .all(|(name, cell)| cell.parse().is_ok_and(|cell: u64| shard[name] == cell));
        assert!(same && cells[7] == shard["state"], "{row} against {shard}");
        for segment in shard["segments"].as_array().unwrap() {
            assert!(text.contains(segment["segment"].as_str().unwrap()), "{segment}");
        }
    }
    let one = shards[0]["shard"].as_str().unwrap();
    let (_, printed, _) = inspect(folder.path(), &["--json", "--shard", one]);
    assert_eq!(json(&printed)["shards"].as_array().unwrap().len(), 1);
}

#[test]
fn damage_is_status_1_and_named_where_it_is() {
    let folder = volume();
    let (_, printed, _) = inspect(folder.path(), &["--json", "--batches", "--limit", "1000"]);
    let report = json(&printed);
    let in_segment = |batch: &&Value| {
        // The first batch of a segment that another one follows.
        let file =
            format!("shards/{}/{}.seg", batch["shard"].as_str().unwrap(), batch["segment"].as_str().unwrap());
        let at = batch["byte"].as_u64().unwrap();
        let mut magic = [0; 4];
        File::open(folder.path().join(file)).unwrap().read_exact_at(&mut magic, at).is_ok()
            && magic == *b"FLXB"
    };
    let batch = report["batches"].as_array().unwrap().iter().find(in_segment).expect("one that was spilled");
    let (shard, segment) = (batch["shard"].as_str().unwrap(), batch["segment"].as_str().unwrap());
    let byte = batch["byte"].as_u64().unwrap();
    let path = folder.path().join(format!("shards/{shard}/{segment}.seg"));
    File::options().write(true).open(&path).unwrap().write_all_at(&[0xff; 16], byte + 100).unwrap();
    // A batch may be in a slot too, where it is taken from.
    fs::remove_dir_all(folder.path().join("slots")).unwrap();

    let (status, text, _) = inspect(folder.path(), &[]);
    let place = format!("damage: shard {shard} segment {segment} byte {byte}: ");
    assert_eq!(status, 1, "{text}");
    assert!(text.contains(&place), "{text}");
    assert!(text.lines().last().unwrap().contains(": damage in "), "{text}");
    let (status, printed, _) = inspect(folder.path(), &["--json"]);
    let report = json(&printed);
    assert_eq!((status, &report["sound"]), (1, &false.into()));
    let found = &report["findings"].as_array().unwrap().iter().find(|found| found["severity"] == "damage");
    let found = found.expect("damage");
    assert_eq!(
        (&found["shard"], &found["segment"], &found["byte"]),
        (&shard.into(), &segment.into(), &byte.into())
    );
}

#[test]
fn no_report_is_status_2_with_the_reason() {
    let folder = volume();
    let status_and_reason = |folder: &Path, more: &[&str]| {
        let (status, out, errors) = inspect(folder, more);
        assert_eq!(out, "");
        (status, errors)
    };
    let lock = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(folder.path().join("felix.lock"))
        .unwrap();
    lock.lock().unwrap();
    let (status, reason) = status_and_reason(folder.path(), &[]);
    assert!(status == 2 && reason.contains("a broker is using this directory"), "{status} {reason}");
    drop(lock);
    let (status, reason) = status_and_reason(folder.path(), &["--shard", "x"]);
    assert!(status == 2 && reason.contains("no shard begins with `x`"), "{status} {reason}");
    let (status, reason) = status_and_reason(&folder.path().join("slots"), &[]);
    assert!(status == 2 && reason.contains("no log directory"), "{status} {reason}");
    let (status, _) = status_and_reason(folder.path(), &["--limit", "5"]);
    assert_eq!(status, 2);
    let (status, help, _) = inspect(folder.path(), &["--help"]);
    assert!(status == 0 && help.contains("0 sound, 1 damage found"), "{help}");
}
