//! The SDK's examples against a real broker: what they print is what was published.
//! They are built with the SDK's tests, and looked for beside this program.

mod dev;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use dev::{DEADLINE, Dev};

/// The records that the publish example sends.
const RECORDS: usize = 10;

/// Ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn example(name: &str, dev: &Dev, stream: &str) -> Command {
    let here = std::env::current_exe().unwrap();
    let folder = here.parent().and_then(|deps| deps.parent()).unwrap();
    let program: PathBuf = folder.join("examples").join(name);
    assert!(program.is_file(), "{} is built by `cargo build -p felix-sdk --examples`", program.display());
    let mut command = Command::new(program);
    command.arg(stream).env("FELIX_DEV_FILE", dev.broker.ready_file()).stdin(Stdio::null());
    command
}

#[test]
fn what_the_publish_example_sends_the_subscribe_example_prints() {
    let dev = Dev::start(4, &[]);
    let published = example("publish", &dev, "s").output().unwrap();
    let said = String::from_utf8(published.stdout).unwrap();
    assert!(published.status.success(), "{said}{}", String::from_utf8_lossy(&published.stderr));
    let mut stored: BTreeMap<String, u32> = BTreeMap::new();
    for line in said.lines() {
        let shard = line.strip_prefix("shard ").and_then(|rest| rest.split(' ').next()).expect("a shard");
        assert!(line.contains(" offset Some("), "{line}");
        *stored.entry(shard.to_owned()).or_default() += 1;
    }
    assert_eq!(stored.values().sum::<u32>() as usize, RECORDS, "{said}");

    let mut reading = Running(example("subscribe", &dev, "s").stdout(Stdio::piped()).spawn().unwrap());
    let (lines, read) = mpsc::channel();
    let out = BufReader::new(reading.0.stdout.take().unwrap());
    std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
    let mut printed: Vec<String> = (0..RECORDS).map(|_| read.recv_timeout(DEADLINE).unwrap()).collect();
    // One more proves that it was no accident that the last one came: the example goes on reading.
    assert!(example("publish", &dev, "s").output().unwrap().status.success());
    printed.extend((0..RECORDS).map(|_| read.recv_timeout(DEADLINE).unwrap()));
    let mut by_shard: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in &printed {
        let (place, record) = line.split_once(' ').expect("a place and a record");
        let (shard, offset) = place.split_once('/').expect("a shard and an offset");
        let of_shard = by_shard.entry(shard).or_default();
        assert_eq!(offset, of_shard.len().to_string(), "{printed:?}");
        of_shard.push(record);
    }
    let counts: BTreeMap<String, u32> =
        by_shard.iter().map(|(shard, records)| ((*shard).to_owned(), records.len() as u32 / 2)).collect();
    assert_eq!(counts, stored);
    for number in 0..RECORDS {
        let record = format!("record {number}");
        assert_eq!(by_shard.values().flatten().filter(|r| **r == record).count(), 2, "{printed:?}");
    }
}
