//! The `felix` program and a `felix dev` of its own for each test. Invariants: everything started here is ended, also
//! when the test fails; nothing touches the home folder.
#![allow(dead_code, reason = "each test program uses its part")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;
use tempfile::TempDir;

/// Whatever a test waits for takes less than this on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// What a command did.
#[derive(Debug)]
pub struct Done {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Done {
        Done {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Done {
    /// Standard output of a command that must succeed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.status, 0, "{self:?}");
        self.stdout
    }

    #[track_caller]
    pub fn json(self) -> Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// A command that must fail with this status and say something with `words` in it.
    #[track_caller]
    pub fn fails(self, status: i32, words: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.stderr.contains(words), "{self:?}");
    }
}

/// `felix` with an environment of its own.
pub fn felix(contexts: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_felix"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FELIX_") {
            command.env_remove(name);
        }
    }
    command.env("FELIX_CONTEXT_DIR", contexts).args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs `felix` to its end.
pub fn run(contexts: &Path, arguments: &[&str]) -> Done {
    felix(contexts, arguments).output().unwrap().into()
}

/// Runs `felix` to its end with this standard input.
pub fn run_with_input(contexts: &Path, arguments: &[&str], input: &[u8]) -> Done {
    let mut child = felix(contexts, arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A command that fails early closes its end.
    let writing = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let done = child.wait_with_output().unwrap().into();
    writing.join().unwrap();
    done
}

/// Waits until `condition` gives something.
#[track_caller]
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen within {DEADLINE:?}");
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// A process that is killed when the test is over.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ended {
    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        signal(u64::from(self.0.id()), name);
    }

    /// Waits for its end by itself.
    #[track_caller]
    pub fn status(&mut self) -> i32 {
        wait_for("the end of the process", || self.0.try_wait().unwrap()).code().unwrap_or(-1)
    }
}

pub fn signal(pid: u64, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap();
    assert!(sent.success(), "kill -{name} {pid}");
}

/// Whether the process is there and no zombie. Asked of the kernel: `/proc` may be that of another PID namespace.
pub fn lives(pid: u64) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    // Readable from its end on, whether or not somebody has waited for it.
    let mut asked = [PollFd::new(&process, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())).expect("it can be asked") == 0
}

/// A folder for one development cluster and the contexts of its commands.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub fn contexts(&self) -> PathBuf {
        self.0.path().join("contexts")
    }

    pub fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    pub fn ready_file(&self) -> PathBuf {
        self.0.path().join("ready.json")
    }

    /// The command of `felix dev` here, on one CPU and free ports.
    pub fn dev(&self, more: &[&str]) -> Command {
        let (data, ready) = (self.data(), self.ready_file());
        let mut arguments = vec!["dev", "--data-dir", data.to_str().unwrap(), "--cores", "0"];
        arguments.extend([
            "--ready-file",
            ready.to_str().unwrap(),
            "--set",
            "spin_us=0",
            "--set",
            "pin=false",
        ]);
        arguments.extend(more);
        if !more.contains(&"--port") {
            arguments.extend(["--port", "0"]);
        }
        felix(&self.contexts(), &arguments)
    }

    /// A cluster that serves.
    pub fn start(&self, more: &[&str]) -> Dev<'_> {
        self.start_in(&self.contexts(), more)
    }

    /// The same, which saves its context in a folder of others.
    pub fn start_in(&self, contexts: &Path, more: &[&str]) -> Dev<'_> {
        // Left by one that was killed.
        let _ = std::fs::remove_file(self.ready_file());
        let log = std::fs::File::create(self.0.path().join("dev.log")).unwrap();
        let mut command = self.dev(more);
        command.env("FELIX_CONTEXT_DIR", contexts).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().unwrap();
        let mut process = Ended(child);
        wait_for("the ready file", || {
            let log = std::fs::read_to_string(self.0.path().join("dev.log")).unwrap_or_default();
            if let Some(status) = process.0.try_wait().unwrap() {
                panic!("felix dev ended with {status}: {log}");
            }
            self.ready_file().exists().then_some(())
        });
        Dev { place: self, process }
    }

    pub fn run(&self, arguments: &[&str]) -> Done {
        run(&self.contexts(), arguments)
    }

    pub fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Done {
        run_with_input(&self.contexts(), arguments, input)
    }

    /// A `felix sub` that has registered; it reads until it has what it was asked for.
    pub fn subscribe(&self, arguments: &[&str]) -> Child {
        use std::io::Read;
        let mut all = vec!["sub"];
        all.extend(arguments);
        let mut child = felix(&self.contexts(), &all).spawn().unwrap();
        let stderr = child.stderr.as_mut().unwrap();
        let mut said = Vec::new();
        while !said.ends_with(b"\n") {
            let mut byte = [0];
            assert_eq!(
                stderr.read(&mut byte).unwrap(),
                1,
                "felix sub ended: {}",
                String::from_utf8_lossy(&said)
            );
            said.push(byte[0]);
        }
        assert!(said.starts_with(b"reading"), "{}", String::from_utf8_lossy(&said));
        child
    }
}

/// A running `felix dev`.
pub struct Dev<'a> {
    place: &'a Place,
    pub process: Ended,
}

impl Dev<'_> {
    /// What the ready file says now.
    pub fn file(&self) -> Value {
        let text = std::fs::read(self.place.ready_file()).unwrap();
        serde_json::from_slice(&text).expect("the ready file is complete whenever it is there")
    }

    pub fn pid(&self, server: &str) -> u64 {
        self.file()["pids"][server].as_u64().unwrap()
    }

    /// Ends it in order.
    #[track_caller]
    pub fn stop(mut self) {
        self.process.signal("TERM");
        assert_eq!(self.process.status(), 0);
    }
}
