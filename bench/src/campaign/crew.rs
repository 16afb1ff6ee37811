//! The generators on other machines, as the driver has them. Scope: one campaign.
//! Owns: a connection to each agent, what is known of its clock.
//! Invariants: all agents of a trial begin at one moment, each told by its own clock; each publishes to a stream of its own
//! and reads that; times that come back are turned into ours; every wait has a deadline.
//! Not here: what an agent does (`agent`), the broker (`server`).

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::file::Distributed;
use super::result::{AgentFacts, Outcome};
use crate::agent::talk::{self, Answer, Ask, Found, HISTOGRAMS, Job, VERSION};
use crate::agent::{AgentError, read_token};
use crate::measure::{HistogramError, Histograms, Latency};
use crate::preflight::Echo;
use crate::shape::Shape;
use crate::target::{Ready, TargetError, read};

const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// For answers that need no load.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// Beyond the end of a load: settling and sending histograms.
const AFTER_LOAD: Duration = Duration::from_secs(60);
/// Questions for the time; the quickest counts.
const CLOCK_ROUNDS: usize = 8;
const SPIN_MS: u64 = 300;
const MTU: u16 = 8_900;

/// Why agents are of no use.
#[derive(Debug, thiserror::Error)]
pub enum CrewError {
    #[error(transparent)]
    Token(#[from] AgentError),
    #[error("agent {address}: {error}")]
    Io { address: SocketAddr, error: io::Error },
    #[error("agent {address}: {why}")]
    Refused { address: SocketAddr, why: String },
    #[error("agent {address} answered something else")]
    Answer { address: SocketAddr },
    #[error("agent {address}: {error}")]
    Histogram { address: SocketAddr, error: HistogramError },
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("agents on other machines cannot reach a broker at {0}: name a ready file of one they can")]
    Unreachable(SocketAddr),
    #[error("a thread of the driver panicked")]
    Thread,
}

/// One agent.
#[derive(Debug)]
struct Hand {
    address: SocketAddr,
    stream: TcpStream,
    /// Its clock minus ours.
    offset_s: f64,
    facts: AgentFacts,
}

/// See the module.
#[derive(Debug)]
pub struct Crew {
    hands: Vec<Hand>,
    lead_s: f64,
    server_name: String,
}

impl Crew {
    /// Connects to every agent and looks at its machine.
    ///
    /// # Errors
    /// One cannot be reached or refuses.
    pub fn gather(distributed: &Distributed) -> Result<Crew, CrewError> {
        let token = read_token(&distributed.token_file)?;
        let hands: Result<Vec<Hand>, CrewError> =
            distributed.agents.iter().map(|address| Hand::take(*address, &token)).collect();
        let server_name = distributed.server_name.clone();
        Ok(Crew { hands: hands?, lead_s: distributed.lead_s, server_name })
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.hands.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hands.is_empty()
    }

    #[must_use]
    pub fn facts(&self) -> Vec<AgentFacts> {
        self.hands.iter().map(|hand| hand.facts.clone()).collect()
    }

    /// Runs the shape on every agent at one moment, each on the stream that `stream` names for its number.
    ///
    /// # Errors
    /// One agent failed; the others end by themselves.
    pub fn run(
        &mut self,
        shape: &Shape,
        ready: &Ready,
        stream: &dyn Fn(usize) -> String,
    ) -> Result<Vec<(Outcome, Histograms)>, CrewError> {
        let elsewhere = self.hands.iter().any(|hand| !hand.address.ip().is_loopback());
        if elsewhere && (ready.broker_addr.ip().is_loopback() || ready.broker_addr.ip().is_unspecified()) {
            return Err(CrewError::Unreachable(ready.broker_addr));
        }
        let (roots, token) = (read(&ready.ca_file)?, read(&ready.token_file)?);
        let start = unix_now() + self.lead_s;
        let jobs: Vec<Job> = (0..self.hands.len())
            .map(|index| Job {
                address: ready.broker_addr,
                server_name: self.server_name.clone(),
                roots: roots.clone(),
                token: token.trim().to_owned(),
                tenant: ready.tenant.clone(),
                namespace: ready.namespace.clone(),
                stream: stream(index),
                shape: shape.clone(),
                start_unix_s: start + self.hands[index].offset_s,
            })
            .collect();
        let patience = Duration::from_secs_f64(self.lead_s) + shape.warmup() + shape.duration() + AFTER_LOAD;
        std::thread::scope(|scope| {
            let running: Vec<_> = self
                .hands
                .iter_mut()
                .zip(jobs)
                .map(|(hand, job)| scope.spawn(move || hand.run(job, patience)))
                .collect();
            running.into_iter().map(|thread| thread.join().map_err(|_| CrewError::Thread)?).collect()
        })
    }
}

impl Hand {
    fn take(address: SocketAddr, token: &str) -> Result<Hand, CrewError> {
        let failed = |error| CrewError::Io { address, error };
        let stream = TcpStream::connect_timeout(&address, CONNECT_DEADLINE).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_write_timeout(Some(CONNECT_DEADLINE)).map_err(failed)?;
        stream.set_read_timeout(Some(ANSWER_DEADLINE)).map_err(failed)?;
        let mut talk = Talk { address, stream: &stream };
        match talk.ask(&Ask::Hello { version: VERSION, token: token.to_owned() })? {
            Answer::Welcome { .. } => {}
            _ => return Err(CrewError::Answer { address }),
        }
        let (offset_s, round_trip_s) = talk.clock()?;
        let echo = Echo::start(stream.local_addr().map_err(failed)?.ip()).map_err(failed)?;
        let question = Ask::Preflight { mtu: MTU, spin_ms: SPIN_MS, echo: echo.address() };
        let Answer::Preflight(found) = talk.ask(&question)? else {
            return Err(CrewError::Answer { address });
        };
        let Found { host, noise, path } = *found;
        let facts = AgentFacts {
            address: address.to_string(),
            clock_offset_s: offset_s,
            round_trip_s,
            host,
            noise,
            path,
        };
        Ok(Hand { address, stream, offset_s, facts })
    }

    fn run(&mut self, job: Job, patience: Duration) -> Result<(Outcome, Histograms), CrewError> {
        let address = self.address;
        self.stream.set_read_timeout(Some(patience)).map_err(|error| CrewError::Io { address, error })?;
        let mut talk = Talk { address, stream: &self.stream };
        let Answer::Done(mut outcome) = talk.ask(&Ask::Run(Box::new(job)))? else {
            return Err(CrewError::Answer { address });
        };
        let mut parts: Vec<Latency> = Vec::new();
        for _ in 0..HISTOGRAMS {
            let bytes =
                talk::receive_bytes(&mut &self.stream).map_err(|error| CrewError::Io { address, error })?;
            parts.push(Latency::decode(&bytes).map_err(|error| CrewError::Histogram { address, error })?);
        }
        outcome.generator = address.to_string();
        outcome.window_unix_s.0 -= self.offset_s;
        outcome.window_unix_s.1 -= self.offset_s;
        let [ack, service, queueing, delivery] =
            <[Latency; HISTOGRAMS]>::try_from(parts).map_err(|_| CrewError::Answer { address })?;
        Ok((*outcome, Histograms { ack, service, queueing, delivery }))
    }
}

struct Talk<'s> {
    address: SocketAddr,
    stream: &'s TcpStream,
}

impl Talk<'_> {
    fn ask(&mut self, question: &Ask) -> Result<Answer, CrewError> {
        let address = self.address;
        let failed = |error| CrewError::Io { address, error };
        talk::send(&mut self.stream, question).map_err(failed)?;
        match talk::receive(&mut self.stream).map_err(failed)? {
            Answer::Failed { why } => Err(CrewError::Refused { address, why }),
            answer => Ok(answer),
        }
    }

    /// Its clock minus ours, and the quickest round trip, seconds.
    fn clock(&mut self) -> Result<(f64, f64), CrewError> {
        let mut best: Option<(f64, f64)> = None;
        for _ in 0..CLOCK_ROUNDS {
            let (asked, begun) = (unix_now(), Instant::now());
            let Answer::Clock { unix_s } = self.ask(&Ask::Clock)? else {
                return Err(CrewError::Answer { address: self.address });
            };
            let took = begun.elapsed().as_secs_f64();
            if best.is_none_or(|(_, quickest)| took < quickest) {
                best = Some((unix_s - (asked + took / 2.0), took));
            }
        }
        best.ok_or(CrewError::Answer { address: self.address })
    }
}

fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
