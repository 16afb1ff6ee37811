//! Runs that are kept, as a person starts them: a campaign and its folder, comparing folders, generators that wait on
//! loopback. Nothing is demanded of speeds.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use felix_bench::campaign::{RunFolder, RunResult};
use felix_bench::cluster::{DevBroker, binary};
use serde_json::Value;

const TOKEN: &str = "words that only a driver knows";

/// Two cells of half a second, once each.
const SMALL: &str = "name = 'small'\ntrials = 1\nwarmup_s = 0.1\nduration_s = 0.5\nclient_cpu = 0\n";

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_felix-bench")).args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}{err}", output.status)
}

/// A folder that is not in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Runs `text` as a campaign; the one folder that came of it.
fn run(place: &Path, text: &str) -> (PathBuf, RunResult) {
    let file = place.join("campaign.toml");
    std::fs::write(&file, text).unwrap();
    let out = place.join("runs");
    let output = bench(&["campaign", file.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let made: Vec<PathBuf> = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(made.len(), 1);
    let (_, result) = RunFolder::open(&made[0]).unwrap();
    (made[0].clone(), result)
}

#[test]
fn a_campaign_leaves_a_folder_with_everything() {
    let place = folder();
    let dir = place.path().display();
    let text = format!(
        "{SMALL}data_dir = '{dir}'\nwith_sink = true\n[[cells]]\nname = 'memory'\nsubscribers = [0, 1]\nrate = 200\n\
         [[cells]]\nname = 'durable'\nstorage = 'fsync_on_commit'\nrecord_bytes = 256\n"
    );
    let (made, result) = run(place.path(), &text);
    let names: Vec<&str> = result.cells.iter().map(|cell| cell.cell.name.as_str()).collect();
    assert_eq!(names, ["memory-subs0-sink", "memory-subs0", "memory-subs1", "durable"]);
    assert!(result.preflight.disk.is_some() && !result.preflight.noise.is_empty());
    for cell in &result.cells {
        let trial = &cell.trials[0];
        let ledger = &trial.ledger;
        assert!(ledger.is_clean() && ledger.sent > 0, "{}: {ledger:?}", cell.cell.name);
        assert!(trial.mb_per_s > 0.0 && trial.ack.count > 0, "{}", cell.cell.name);
        let place = made.join("cells").join(&cell.cell.name).join("trial-1");
        assert!(place.join("ack.hdr").is_file() && place.join("counters.json").is_file());
    }
    let of = |name: &str| &result.cells.iter().find(|cell| cell.cell.name == name).unwrap().trials[0];
    let counted = |name: &str| serde_json::to_value(of(name).counted_at).unwrap();
    assert_eq!(
        (counted("memory-subs0-sink"), counted("memory-subs0")),
        ("generator".into(), "broker".into())
    );
    assert_eq!(of("memory-subs0-sink").ledger.accepted, None);
    let read = of("memory-subs1").ledger;
    assert_eq!((read.delivered, read.accepted), (read.sent, Some(read.sent)), "every record, at both ends");
    assert!(of("memory-subs1").delivery.count > 0 && of("durable").disk.is_some());
    assert!(of("memory-subs0").queueing.count > 0, "an open loop tells the wait before sending");
    let report = std::fs::read_to_string(made.join("report.html")).unwrap();
    assert!(report.contains("<svg") && report.contains("Durable cells and the disk"));
    for file in ["preflight.json", "campaign.toml", "result.json"] {
        assert!(made.join(file).is_file(), "{file}");
    }
    let left = std::fs::read_dir(place.path()).unwrap().count();
    assert_eq!(left, 2, "the campaign and its runs; data directories are gone");
    against_itself(&made);
    rewritten(&made);
}

/// A run beside itself is never worse, and one trial cannot tell.
fn against_itself(made: &Path) {
    let path = made.to_str().unwrap();
    let output = bench(&["compare", path, path]);
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    assert!(said(&output).contains("cannot tell"), "{}", said(&output));
}

/// The same folder with the throughput of one cell replaced in `b`.
fn rewritten(made: &Path) {
    let text = std::fs::read_to_string(made.join("result.json")).unwrap();
    let with = |speeds: [f64; 3]| {
        let mut value: Value = serde_json::from_str(&text).unwrap();
        let cells = value["cells"].as_array_mut().unwrap();
        cells.truncate(1);
        let trial = cells[0]["trials"][0].clone();
        let trials = speeds.map(|speed| {
            let mut trial = trial.clone();
            trial["mb_per_s"] = speed.into();
            trial
        });
        cells[0]["trials"] = trials.to_vec().into();
        // A quiet machine, whatever this one was.
        value["preflight"]["noise"] = Vec::<Value>::new().into();
        let folder = folder();
        std::fs::write(folder.path().join("result.json"), value.to_string()).unwrap();
        folder
    };
    let (slow, fast) = (with([100.0, 101.0, 102.0]), with([120.0, 121.0, 122.0]));
    let compare = |a: &tempfile::TempDir, b: &tempfile::TempDir| {
        bench(&["compare", a.path().to_str().unwrap(), b.path().to_str().unwrap(), "--json"])
    };
    let (up, down, level) = (compare(&slow, &fast), compare(&fast, &slow), compare(&slow, &slow));
    assert_eq!((up.status.code(), down.status.code()), (Some(0), Some(4)), "{}{}", said(&up), said(&down));
    assert_eq!(level.status.code(), Some(0), "{}", said(&level));
    let judged: Value = serde_json::from_slice(&down.stdout).unwrap();
    assert_eq!(judged["lines"][0]["verdict"], "worse");
    assert!(bench(&["compare", "/nothing", "/nothing"]).status.code() == Some(1));
}

#[test]
fn a_file_that_is_no_campaign_is_refused_before_anything_starts() {
    let place = folder();
    let file = place.path().join("x.toml");
    let refused = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = bench(&["campaign", file.to_str().unwrap(), "--out", place.path().to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        said(&output)
    };
    assert!(refused("name = 'x'\ncolour = 'red'\n[[cells]]\nname = 'a'").contains("colour"));
    assert!(
        refused("name = 'x'\n[[cells]]\nname = 'a'\nsystem = 'sink'\nsubscribers = 1")
            .contains("sink keeps nothing")
    );
    let memory = "name = 'x'\ndata_dir = '/dev/shm'\n[[cells]]\nname = 'a'\nstorage = 'fsync_none'";
    assert!(refused(memory).contains("tmpfs"));
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1, "no folder was made");
    std::fs::write(&file, "name = 'x'\n[[cells]]\nname = 'a'\ninflight = [1, 16]").unwrap();
    let listed = bench(&["campaign", file.to_str().unwrap(), "--list"]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "a-d1\na-d16\n");
}

#[test]
fn the_campaigns_that_come_with_the_program_are_campaigns() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("campaigns");
    let mut found = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let output = bench(&["campaign", entry.unwrap().path().to_str().unwrap(), "--list"]);
        assert!(output.status.success() && !output.stdout.is_empty(), "{}", said(&output));
        found += 1;
    }
    assert!(found > 1);
}

/// A `felix-bench agent` on a free port; it is ended with the test.
struct Agent {
    child: Child,
    address: String,
}

impl Agent {
    fn start(token: &Path) -> Agent {
        let mut child = Command::new(env!("CARGO_BIN_EXE_felix-bench"))
            .args(["agent", "--listen", "127.0.0.1:0", "--cpu", "0", "--token-file"])
            .arg(token)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Agent { child, address: address.trim().to_owned() }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn with_agents(agents: &[&Agent], token: &Path, cells: &str) -> String {
    let list: Vec<String> = agents.iter().map(|agent| format!("'{}'", agent.address)).collect();
    format!(
        "name = 'far'\ntrials = 2\nwarmup_s = 1.0\nduration_s = 1.0\n[distributed]\nagents = [{}]\ntoken_file = '{}'\n\
         lead_s = 10\n{cells}",
        list.join(", "),
        token.display()
    )
}

#[test]
fn two_agents_load_one_broker_at_one_moment() {
    let place = folder();
    let token = place.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let (one, other) = (Agent::start(&token), Agent::start(&token));
    let cells = "[[cells]]\nname = 'a'\nrecord_bytes = 512\nsubscribers = 1\nrate = 100\n";
    let (_, result) = run(place.path(), &with_agents(&[&one, &other], &token, cells));
    let agents: Vec<&str> = result.agents.iter().map(|agent| agent.address.as_str()).collect();
    assert_eq!(agents, [one.address.as_str(), other.address.as_str()]);
    // One clock: what is left of the offset is within what the round trip hides.
    for agent in &result.agents {
        assert!(agent.clock_offset_s.abs() <= agent.round_trip_s, "{agent:?}");
        assert!(agent.path.iter().any(|size| size.arrived));
    }
    for trial in &result.cells[0].trials {
        assert_eq!(trial.generators.len(), 2);
        let sent: u64 = trial.generators.iter().map(|outcome| outcome.sent_batches * 64).sum();
        assert!(trial.generators.iter().all(|outcome| outcome.sent_batches > 0));
        assert!(trial.ledger.is_clean(), "{:?}", trial.ledger);
        assert_eq!(
            (trial.ledger.sent, trial.ledger.accepted, trial.ledger.delivered),
            (sent, Some(sent), sent)
        );
        let answered: u64 = trial.generators.iter().map(|outcome| outcome.batches).sum();
        assert_eq!(trial.ack.count, answered, "the histograms of both came back");
    }
}

#[test]
fn an_agent_does_nothing_for_whoever_does_not_know_the_words() {
    let place = folder();
    let (token, other) = (place.path().join("token"), place.path().join("other"));
    std::fs::write(&token, TOKEN).unwrap();
    std::fs::write(&other, "words that somebody else knows").unwrap();
    let agent = Agent::start(&token);
    let file = place.path().join("campaign.toml");
    std::fs::write(&file, with_agents(&[&agent], &other, "[[cells]]\nname = 'a'\n")).unwrap();
    let output = bench(&["campaign", file.to_str().unwrap(), "--out", place.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("the token is another one"), "{}", said(&output));
    std::fs::write(&token, "short").unwrap();
    let token = token.to_str().unwrap();
    let output = bench(&["agent", "--listen", "127.0.0.1:0", "--token-file", token]);
    assert!(said(&output).contains("fewer than"), "{}", said(&output));
}

#[test]
fn agents_load_a_broker_that_runs_already_and_its_streams_are_removed() {
    let place = folder();
    let token = place.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let dev = place.path().join("dev");
    std::fs::create_dir(&dev).unwrap();
    let settings = ["--set", "pin=false", "--set", "spin_us=0", "--set", "fsync=none"];
    let broker = DevBroker::start(&dev, "0", &settings).unwrap();
    let agent = Agent::start(&token);
    let text = with_agents(&[&agent], &token, "[[cells]]\nname = 'a'\nstorage = 'fsync_none'\nrate = 100\n");
    let ready = broker.ready_file().display();
    let text = text
        .replace("[distributed]", &format!("data_dir = '{}'\n[distributed]", place.path().display()))
        .replace("lead_s = 10", &format!("lead_s = 10\nready_file = '{ready}'"));
    let (_, result) = run(place.path(), &text);
    for trial in &result.cells[0].trials {
        let ledger = &trial.ledger;
        assert!(ledger.is_clean() && ledger.accepted == Some(ledger.sent), "{ledger:?}");
    }
    let listed = Command::new(binary("felix").unwrap())
        .args(["stream", "ls", "--dev"])
        .arg(broker.ready_file())
        .output()
        .unwrap();
    assert!(listed.status.success(), "{}", said(&listed));
    assert!(!said(&listed).contains("bench-"), "{}", said(&listed));
}
