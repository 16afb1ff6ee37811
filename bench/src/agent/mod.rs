//! A generator that waits for a driver. Scope: one process on a load machine, one CPU.
//! Owns: the listener, the words it asks for.
//! Invariants: nothing is done for whoever does not know the words; one driver at a time, and one that falls silent is let
//! go; a load it is given is checked and ends. What passes is not encrypted: it is for a network of one's own.
//! Not here: generating (`load`), the driver (`campaign::crew`).

pub mod talk;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use felix_runtime::probe::Facts;
use felix_runtime::udp::BufferSizes;

use crate::campaign::result::Outcome;
use crate::load::{self, LoadPlan};
use crate::machine::pin_thread;
use crate::preflight::{Host, probe_path, spin};
use crate::target::{Target, parse_roots};
use talk::{Answer, Ask, Found, Job, VERSION};

/// For the first message and for writing answers.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// Between two questions of a driver: it runs the trials of other cells meanwhile.
const IDLE_DEADLINE: Duration = Duration::from_secs(600);
/// A load does not begin later than this, nor last longer than that.
const START_AHEAD_MAX: Duration = Duration::from_secs(120);
const LOAD_S_MAX: f64 = 3_600.0;
const SPIN_MAX: Duration = Duration::from_secs(10);
/// Fewer characters can be guessed.
const TOKEN_MIN: usize = 16;

/// Why there is no agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("{path}: {error}")]
    Token { path: PathBuf, error: io::Error },
    #[error("{path} has fewer than {TOKEN_MIN} characters")]
    ShortToken { path: PathBuf },
    #[error("{address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
}

/// A bound agent.
#[derive(Debug)]
pub struct Agent {
    listener: TcpListener,
    token: String,
    cpu: usize,
}

/// The words of a file.
///
/// # Errors
/// It cannot be read, or they are too few.
pub fn read_token(path: &Path) -> Result<String, AgentError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| AgentError::Token { path: path.to_owned(), error })?;
    let token = text.trim().to_owned();
    if token.len() < TOKEN_MIN {
        return Err(AgentError::ShortToken { path: path.to_owned() });
    }
    Ok(token)
}

impl Agent {
    /// Listens at `address` for drivers that know `token`; loads run on `cpu`.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn bind(address: SocketAddr, token: String, cpu: usize) -> Result<Agent, AgentError> {
        let listener = TcpListener::bind(address).map_err(|error| AgentError::Listen { address, error })?;
        Ok(Agent { listener, token, cpu })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves one driver after the other, for ever.
    pub fn serve(&self) {
        loop {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    if let Err(error) = self.talk(stream) {
                        eprintln!("felix-bench agent: {from}: {error}");
                    }
                }
                // Out of descriptors or the like: it may pass.
                Err(error) => {
                    eprintln!("felix-bench agent: {error}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Serves one driver until it leaves.
    ///
    /// # Errors
    /// It did not know the words, broke the protocol or fell silent.
    pub fn talk(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HELLO_DEADLINE))?;
        stream.set_write_timeout(Some(HELLO_DEADLINE))?;
        if let Err(why) = self.admit(&mut stream) {
            talk::send(&mut stream, &Answer::Failed { why: why.clone() })?;
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        talk::send(&mut stream, &Answer::Welcome { version: VERSION })?;
        stream.set_read_timeout(Some(IDLE_DEADLINE))?;
        loop {
            let ask = match talk::receive(&mut stream) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                asked => asked?,
            };
            self.answer(&mut stream, ask)?;
        }
    }

    fn admit(&self, stream: &mut TcpStream) -> Result<(), String> {
        match talk::receive(stream) {
            Ok(Ask::Hello { version: VERSION, token }) => {
                let (known, said) = (self.token.as_bytes(), token.as_bytes());
                aws_lc_rs::constant_time::verify_slices_are_equal(known, said)
                    .map_err(|_| "the token is another one".to_owned())
            }
            Ok(Ask::Hello { version, .. }) => Err(format!("version {version}, this agent has {VERSION}")),
            Ok(_) => Err("the first message is a hello".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn answer(&self, stream: &mut TcpStream, ask: Ask) -> io::Result<()> {
        match ask {
            Ask::Hello { .. } => talk::send(stream, &Answer::Failed { why: "a second hello".to_owned() }),
            Ask::Clock => talk::send(stream, &Answer::Clock { unix_s: unix_now().as_secs_f64() }),
            Ask::Preflight { mtu, spin_ms, echo } => {
                let local = stream.local_addr()?.ip();
                let answer = match probe_path(local, echo, mtu) {
                    Ok(path) => Answer::Preflight(Box::new(Found {
                        host: Host::look(&Facts::read(BufferSizes::default())),
                        noise: spin(self.cpu, Duration::from_millis(spin_ms).min(SPIN_MAX)),
                        path,
                    })),
                    Err(error) => Answer::Failed { why: error.to_string() },
                };
                talk::send(stream, &answer)
            }
            Ask::Run(job) => match self.run(*job) {
                Ok(report) => {
                    let name = stream.local_addr()?.to_string();
                    talk::send(stream, &Answer::Done(Box::new(Outcome::of(&name, &report))))?;
                    for (_, latency) in report.histograms.named() {
                        talk::send_bytes(stream, &latency.encode())?;
                    }
                    Ok(())
                }
                Err(why) => talk::send(stream, &Answer::Failed { why }),
            },
        }
    }

    fn run(&self, job: Job) -> Result<crate::measure::LoadReport, String> {
        let shape = &job.shape;
        shape.check().map_err(|error| error.to_string())?;
        if shape.warmup_s + shape.duration_s > LOAD_S_MAX {
            return Err(format!("a load of more than {LOAD_S_MAX} s"));
        }
        let ahead = job.start_unix_s - unix_now().as_secs_f64();
        if !(0.0..=START_AHEAD_MAX.as_secs_f64()).contains(&ahead) {
            return Err(format!("the start lies {ahead:.3} s ahead of this machine's clock"));
        }
        let start = UNIX_EPOCH + Duration::from_secs_f64(job.start_unix_s);
        let target = Target {
            address: job.address,
            server_name: job.server_name,
            roots: parse_roots(&job.roots)?,
            token: job.token,
            tenant: job.tenant,
            namespace: job.namespace,
            stream: job.stream,
            server_pid: None,
        };
        let plan = LoadPlan { name: "agent".to_owned(), target, shape: job.shape };
        let cpu = self.cpu;
        let thread = std::thread::spawn(move || {
            pin_thread(cpu);
            load::run_at(&plan, start)
        });
        let outcome = thread.join().map_err(|_| "the load thread panicked".to_owned())?;
        outcome.map_err(|error| error.to_string())
    }
}

fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::shape::Shape;

    const WORDS: &str = "words for a test of agents";

    /// What an agent answers to `asks`, one connection.
    fn talk_with(asks: &[Ask]) -> Vec<Answer> {
        let agent = Agent::bind(([127, 0, 0, 1], 0).into(), WORDS.to_owned(), 0).unwrap();
        let address = agent.address().unwrap();
        let serving =
            std::thread::spawn(move || agent.listener.accept().map(|(stream, _)| agent.talk(stream)));
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answers = Vec::new();
        for ask in asks {
            talk::send(&mut stream, ask).unwrap();
            let Ok(answer) = talk::receive(&mut stream) else { break };
            answers.push(answer);
        }
        drop(stream);
        let _ = serving.join().unwrap();
        answers
    }

    fn hello() -> Ask {
        Ask::Hello { version: VERSION, token: WORDS.to_owned() }
    }

    fn job(change: impl FnOnce(&mut Job)) -> Ask {
        let mut job = Job {
            address: ([127, 0, 0, 1], 9).into(),
            server_name: "localhost".to_owned(),
            roots: "no certificate".to_owned(),
            token: String::new(),
            tenant: "t".to_owned(),
            namespace: "n".to_owned(),
            stream: "s".to_owned(),
            shape: Shape::canonical(),
            start_unix_s: unix_now().as_secs_f64() + 30.0,
        };
        change(&mut job);
        Ask::Run(Box::new(job))
    }

    #[test]
    fn strangers_are_sent_away() {
        let wrong = Ask::Hello { version: VERSION, token: "other words for a test".to_owned() };
        let old = Ask::Hello { version: VERSION + 1, token: WORDS.to_owned() };
        for first in [wrong, old, Ask::Clock, job(|_| {})] {
            let answers = talk_with(&[first, Ask::Clock]);
            assert!(matches!(&answers[..], [Answer::Failed { .. }]), "{answers:?}");
        }
    }

    #[test]
    fn loads_that_cannot_be_are_refused_and_the_driver_may_go_on() {
        let answers = talk_with(&[
            hello(),
            job(|job| job.shape.inflight = 0),
            job(|job| job.start_unix_s = 5.0),
            job(|job| job.shape.duration_s = 80_000.0),
            job(|_| {}),
            Ask::Clock,
        ]);
        let reasons: Vec<String> = answers
            .iter()
            .filter_map(|answer| if let Answer::Failed { why } = answer { Some(why.clone()) } else { None })
            .collect();
        for (reason, part) in reasons.iter().zip(["inflight", "ahead", "more than", "no certificate"]) {
            assert!(reason.contains(part), "{reason} does not say {part}");
        }
        assert_eq!(reasons.len(), 4);
        assert!(matches!(answers.last(), Some(Answer::Clock { .. })));
    }

    #[test]
    fn bytes_that_are_no_message_end_the_talk() {
        let agent = Agent::bind(([127, 0, 0, 1], 0).into(), WORDS.to_owned(), 0).unwrap();
        let address = agent.address().unwrap();
        let serving =
            std::thread::spawn(move || agent.listener.accept().map(|(stream, _)| agent.talk(stream)));
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let refused = serving.join().unwrap().unwrap().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
}
