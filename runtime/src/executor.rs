//! A thread for each core, and what the core's one task is given.
//! Scope: one [`CoreIo`] per core, used only on its own thread.
//! Owns: the glommio executor of the core, its socket, its one wait.
//! Invariants: a core that could not start is an error of [`spawn_core`], not of its later life; while anything is
//! ready the wait returns at once; a ring of the core's waker is never lost; a panic ends the core and is reported by
//! [`CoreJoin::join`] (release builds abort the process instead).
//! Not here: what a turn does, and in which order cores are stopped.

#[cfg(test)]
mod tests;
mod wait;

use std::any::Any;
use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::time::Duration;

use glommio::{
    BuilderErrorKind, ExecutorJoinHandle, GlommioError, LocalExecutorBuilder, Placement, ReactorErrorKind,
};

use crate::clock::{Clock, Tick};
use crate::udp::{PortSocket, UdpIo};
use crate::waker::CoreWaker;
use wait::Wait;
pub use wait::Wake;

/// The executor's own preemption is as good as off: a core has one task, which waits in the kernel by itself.
const PREEMPT: Duration = Duration::from_secs(60);
/// Registered memory of an executor, which does no disk operations: the least it takes.
const IO_MEMORY_BYTES: usize = 64 * 1024;
/// How long a core may take to start before it counts as failed.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// How one core is to be run.
#[derive(Debug, Clone)]
pub struct CoreSpec {
    /// Which core of the process this is, from 0.
    pub index: u16,
    /// The processor to stay on; `None` leaves it to the kernel (tests, more cores than processors).
    pub cpu: Option<usize>,
    /// How long to look for work before parking. Zero parks at once.
    pub spin: Duration,
    /// Start of the thread's name.
    pub name: String,
    /// Receive memory that datagrams kept by others may hold, see [`UdpIo::new`].
    pub pinned_bytes: usize,
    /// The process's clock: the same for every core.
    pub clock: Clock,
    /// The bell that mailboxes and other threads ring for this core.
    pub waker: CoreWaker,
}

#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// `RLIMIT_MEMLOCK` is below what an executor needs.
    #[error("core {core}: memlock limit is {limit_bytes} bytes, an executor needs {needed_bytes}")]
    MemLock { core: u16, limit_bytes: u64, needed_bytes: u64 },
    /// No ring, no such processor, no thread.
    #[error("core {core} could not start: {reason}")]
    Start { core: u16, reason: String },
    #[error("core {core} did not start within {waited:?}")]
    StartTimeout { core: u16, waited: Duration },
    /// Its task panicked; whatever the core held is gone.
    #[error("core {core} panicked: {message}")]
    Panicked { core: u16, message: String },
}

/// What a core's task gets.
pub struct CoreIo {
    /// Which core this is.
    pub index: u16,
    pub udp: UdpIo,
    clock: Clock,
    waker: CoreWaker,
    wait: Wait,
}

impl CoreIo {
    /// Now.
    pub fn now(&self) -> Tick {
        self.clock.now()
    }

    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The bell of this core, to give to others.
    pub fn waker(&self) -> &CoreWaker {
        &self.waker
    }
}

/// A running core.
#[derive(Debug)]
pub struct CoreJoin<T: Send + 'static> {
    core: u16,
    handle: ExecutorJoinHandle<io::Result<T>>,
}

impl<T: Send + 'static> CoreJoin<T> {
    pub fn core(&self) -> u16 {
        self.core
    }

    /// Waits for the core's task to return. Other tasks of the core are dropped then, so the task must have stopped
    /// them in order before.
    ///
    /// # Errors
    /// `Panicked` when a task of the core panicked.
    pub fn join(self) -> Result<T, ExecutorError> {
        let core = self.core;
        match self.handle.join() {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(ExecutorError::Start { core, reason: error.to_string() }),
            Err(error) => Err(describe(core, error)),
        }
    }
}

/// Starts a core: a thread (on its processor if one is named) whose executor runs `task` until it returns. Returns once
/// the core is up.
///
/// # Errors
/// When the thread, the processor or a ring is not to be had. Nothing is left running then, except after `StartTimeout`:
/// the thread then still hangs in the kernel.
pub fn spawn_core<F, Fut, T>(
    spec: CoreSpec,
    socket: PortSocket,
    task: F,
) -> Result<CoreJoin<T>, ExecutorError>
where
    F: FnOnce(CoreIo) -> Fut + Send + 'static,
    Fut: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let core = spec.index;
    let (started, starting) = mpsc::channel();
    let placement = spec.cpu.map_or(Placement::Unbound, Placement::Fixed);
    let handle = LocalExecutorBuilder::new(placement)
        .name(&format!("{}-{core}", spec.name))
        .io_memory(IO_MEMORY_BYTES)
        .preempt_timer(PREEMPT)
        .spawn(move || async move {
            let io = open(spec, socket)?;
            let _ = started.send(());
            io::Result::Ok(task(io).await)
        })
        .map_err(|error| describe(core, error))?;
    match starting.recv_timeout(START_DEADLINE) {
        Ok(()) => Ok(CoreJoin { core, handle }),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            Err(ExecutorError::StartTimeout { core, waited: START_DEADLINE })
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(match handle.join() {
            Err(error) => describe(core, error),
            Ok(Err(error)) => ExecutorError::Start { core, reason: error.to_string() },
            Ok(Ok(_)) => ExecutorError::Start { core, reason: "it ended before it began".to_owned() },
        }),
    }
}

fn open(spec: CoreSpec, socket: PortSocket) -> io::Result<CoreIo> {
    let udp = UdpIo::new(socket, spec.pinned_bytes);
    let wait = Wait::new(spec.spin);
    spec.waker.open_event()?;
    Ok(CoreIo { index: spec.index, udp, clock: spec.clock, waker: spec.waker, wait })
}

fn describe(core: u16, error: GlommioError<()>) -> ExecutorError {
    match error {
        GlommioError::ReactorError(ReactorErrorKind::MemLockLimit(limit_bytes, needed_bytes)) => {
            ExecutorError::MemLock { core, limit_bytes, needed_bytes }
        }
        GlommioError::BuilderError(BuilderErrorKind::ThreadPanic(payload)) => {
            ExecutorError::Panicked { core, message: panic_message(payload.as_ref()) }
        }
        other => ExecutorError::Start { core, reason: other.to_string() },
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "no message".to_owned(),
    }
}
