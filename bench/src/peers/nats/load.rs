//! A load for a NATS server, through the client that its makers publish. Scope: one run, on the calling thread.
//! Owns: a client for each connection of the shape, a task for each batch that may be under way.
//! Invariants: a task begins its next batch when the last one was answered; without JetStream a batch is answered when its
//! last message has come back, with JetStream when each of its messages was acknowledged; every wait has a deadline.
//! Not here: starting the server (`server`).

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use async_nats::{Client, Subject, Subscriber};
use bytes::Bytes;
use felix_runtime::Clock;
use futures::StreamExt;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use super::Keeps;
use crate::load::LoadError;
use crate::load::window::Window;
use crate::measure::LoadReport;
use crate::peers::report::{Sent, count, of_window};
use crate::shape::Shape;

/// For connecting, making the stream, and each answer.
const DEADLINE: Duration = Duration::from_secs(15);
/// Bytes a stream in memory keeps: what the broker keeps of a shard in memory.
const KEPT_BYTES: i64 = 64 << 20;
/// The window is looked at this often.
const LOOK: Duration = Duration::from_millis(1);
const STREAM: &str = "BENCH";

/// Sends batches to the server at `address`, process `pid`, as `shape` says: each record is a message.
///
/// # Errors
/// The server cannot be reached, refuses the stream, or went away. Messages that were not acknowledged are no errors: the
/// report counts their batches.
pub fn run(
    name: &str,
    (address, pid): (SocketAddr, Option<u32>),
    shape: &Shape,
    keeps: Keeps,
) -> Result<LoadReport, LoadError> {
    shape.check()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let clients = connect(address, shape, keeps).await?;
        let clock = Clock::start();
        let shared = Rc::new(Shared {
            window: RefCell::new(Window::new(clock.now(), shape.warmup(), shape.duration(), pid)),
            ends: Cell::new(false),
            sent: Cell::new(Sent::default()),
            shape: shape.clone(),
            record: Bytes::from(noise(shape.record_bytes)),
        });
        let mut tasks = JoinSet::new();
        for (number, client) in clients.iter().enumerate() {
            for lane in 0..shape.streams {
                for depth in 0..shape.inflight {
                    let subject = format!("bench.{number}.{lane}");
                    let mark = format!("mark.{number}.{lane}.{depth}");
                    let task = Task::new(client, subject, mark, keeps).await?;
                    tasks.spawn_local(task.publish(Rc::clone(&shared)));
                }
            }
        }
        loop {
            tokio::time::sleep(LOOK).await;
            if shared.window.borrow_mut().advance(clock.now()) {
                break;
            }
            // A task ends early only with an error.
            if let Some(ended) = tasks.try_join_next() {
                joined(ended)?;
            }
        }
        shared.ends.set(true);
        while let Some(ended) = tasks.join_next().await {
            joined(ended)?;
        }
        let report = of_window(name, shape, &shared.window.borrow(), shared.sent.get());
        report.ok_or(LoadError::TimedOut { what: "the steady window", waited_s: 0 })
    })
}

fn joined(ended: Result<Result<(), LoadError>, tokio::task::JoinError>) -> Result<(), LoadError> {
    ended.map_err(|error| LoadError::Closed(format!("a task of the load: {error}")))?
}

/// Bytes without a pattern, the same ones every time.
fn noise(bytes: u32) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// Waits for `answer`, which has a deadline.
async fn due<T, E: std::fmt::Display>(
    what: &'static str,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, LoadError> {
    match timeout(DEADLINE, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(LoadError::Refused { what, message: error.to_string() }),
        Err(_) => Err(LoadError::TimedOut { what, waited_s: DEADLINE.as_secs() }),
    }
}

/// Clients for every connection; with JetStream, the stream is made.
async fn connect(address: SocketAddr, shape: &Shape, keeps: Keeps) -> Result<Vec<Client>, LoadError> {
    let mut clients = Vec::new();
    for _ in 0..shape.connections {
        clients.push(due("connecting", async_nats::connect(address.to_string())).await?);
    }
    if keeps != Keeps::Nothing
        && let Some(client) = clients.first()
    {
        let memory = keeps == Keeps::Memory;
        let config = Config {
            name: STREAM.to_owned(),
            subjects: vec!["bench.>".to_owned()],
            storage: if memory { StorageType::Memory } else { StorageType::File },
            max_bytes: if memory { KEPT_BYTES } else { -1 },
            discard: DiscardPolicy::Old,
            num_replicas: 1,
            ..Config::default()
        };
        let context = async_nats::jetstream::new(client.clone());
        due("the stream", context.create_stream(config)).await?;
    }
    Ok(clients)
}

/// What all tasks of a run share, on one thread.
struct Shared {
    window: RefCell<Window>,
    ends: Cell<bool>,
    sent: Cell<Sent>,
    shape: Shape,
    record: Bytes,
}

impl Shared {
    fn add(&self, change: impl FnOnce(&mut Sent)) {
        let mut sent = self.sent.get();
        change(&mut sent);
        self.sent.set(sent);
    }
}

/// How a batch is answered.
enum Answered {
    /// By its last message, which comes back.
    Mark { client: Client, mark: Subject, back: Subscriber },
    /// By an acknowledgement of each message.
    Acks { context: Context },
}

/// One batch under way after another.
struct Task {
    subject: Subject,
    answered: Answered,
}

impl Task {
    async fn new(client: &Client, subject: String, mark: String, keeps: Keeps) -> Result<Task, LoadError> {
        let answered = if keeps == Keeps::Nothing {
            let mark = Subject::from(mark);
            let back = due("subscribing", client.subscribe(mark.clone())).await?;
            Answered::Mark { client: client.clone(), mark, back }
        } else {
            let context = ContextBuilder::new().ack_timeout(DEADLINE).build(client.clone());
            Answered::Acks { context }
        };
        Ok(Task { subject: Subject::from(subject), answered })
    }

    async fn publish(mut self, shared: Rc<Shared>) -> Result<(), LoadError> {
        while !shared.ends.get() {
            let begun = Instant::now();
            shared.add(|sent| sent.batches += 1);
            let records = shared.shape.batch_records;
            let accepted = match &mut self.answered {
                Answered::Mark { client, mark, back } => {
                    for _ in 1..records {
                        let sent = client.publish(self.subject.clone(), shared.record.clone()).await;
                        sent.map_err(|error| LoadError::Closed(error.to_string()))?;
                    }
                    let sent = client.publish(mark.clone(), shared.record.clone()).await;
                    sent.map_err(|error| LoadError::Closed(error.to_string()))?;
                    came_back(back).await?
                }
                Answered::Acks { context } => {
                    acknowledged(context, &self.subject, &shared.record, records).await?
                }
            };
            match accepted {
                Some(true) => {
                    let mut window = shared.window.borrow_mut();
                    count(&mut window, shared.shape.batch_bytes(), begun.elapsed());
                }
                Some(false) => shared.add(|sent| sent.refused += 1),
                None => {
                    shared.add(|sent| sent.unanswered += 1);
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// True once the mark is back; nothing when it does not come.
async fn came_back(back: &mut Subscriber) -> Result<Option<bool>, LoadError> {
    match timeout(DEADLINE, back.next()).await {
        Ok(Some(_)) => Ok(Some(true)),
        Ok(None) => Err(LoadError::Closed("a subscription ended".to_owned())),
        Err(_) => Ok(None),
    }
}

/// True when every message was stored.
async fn acknowledged(
    context: &Context,
    subject: &Subject,
    record: &Bytes,
    records: u32,
) -> Result<Option<bool>, LoadError> {
    let mut acks = Vec::with_capacity(records as usize);
    for _ in 0..records {
        let sent = context.publish(subject.clone(), record.clone()).await;
        acks.push(sent.map_err(|error| LoadError::Closed(error.to_string()))?);
    }
    let mut stored = true;
    for ack in acks {
        stored &= ack.await.is_ok();
    }
    Ok(Some(stored))
}
