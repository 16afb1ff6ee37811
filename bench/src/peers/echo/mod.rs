//! The echo: a server that answers each request at once, on the broker's driver. What a broker's answer takes longer is
//! the broker's own work. Scope: one per process, one core.
//! Owns: its certificate, its socket, its core's thread; with a folder, a file there.
//! Invariants: the same driver, windows, MTU and allocator as the broker; an answer is eight bytes; with a folder, each
//! request is answered after one block was written there so that it survives a power cut.
//! Not here: what a publish frame is (`sink`).

mod commits;
mod load;
mod requests;
mod serve;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use felix_runtime::executor::{CoreJoin, ExecutorError, spawn_core};
use felix_runtime::file::DiskError;
use felix_runtime::quic::{Quic, QuicError};
use felix_runtime::udp::{BindError, BufferSizes, ReusePortGroup};
use felix_runtime::waker::CoreWaker;
use felix_runtime::{Clock, Tick};

use crate::raw_disk::{RawError, RawFile};
use crate::sink::{self, SinkError};
use crate::target::Ready;

pub use load::run;
pub use serve::EchoCounts;

/// Bytes of the file that commits are written to, again and again.
const COMMIT_FILE_BYTES: u64 = 16 << 20;

/// How the echo is run.
#[derive(Debug, Clone)]
pub struct EchoOptions {
    /// The processor to stay on; `None` leaves it to the kernel.
    pub cpu: Option<usize>,
    pub address: SocketAddr,
    /// Largest datagram that path discovery tries, bytes.
    pub mtu: u16,
    /// How long to look for work before parking.
    pub spin: Duration,
    /// Folder of the file that a block is written to before each answer; absent: nothing is written.
    pub commit_dir: Option<PathBuf>,
}

impl Default for EchoOptions {
    /// Unpinned, on a free loopback port, without spinning, without a disk.
    fn default() -> EchoOptions {
        EchoOptions {
            cpu: None,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            mtu: 8_900,
            spin: Duration::ZERO,
            commit_dir: None,
        }
    }
}

/// Why there is no echo.
#[derive(Debug, thiserror::Error)]
pub enum EchoError {
    #[error(transparent)]
    Server(#[from] SinkError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Quic(#[from] QuicError),
    #[error(transparent)]
    Core(#[from] ExecutorError),
    /// The file could not be made.
    #[error(transparent)]
    File(#[from] RawError),
    #[error("{dir}: {why}")]
    Volume { dir: PathBuf, why: String },
    #[error("{what}: {error}")]
    Disk { what: &'static str, error: DiskError },
    #[error("{0}")]
    Memory(&'static str),
}

/// A running echo. Ends when dropped.
#[derive(Debug)]
pub struct Echo {
    address: SocketAddr,
    certificate_pem: String,
    ending: Arc<AtomicBool>,
    waker: CoreWaker,
    core: Option<CoreJoin<Result<EchoCounts, EchoError>>>,
}

impl Echo {
    /// Serves from here on, on a thread of its own. With a folder, its file is made first.
    ///
    /// # Errors
    /// No socket, no thread, no certificate, or a folder that is not good for direct I/O.
    pub fn start(options: &EchoOptions) -> Result<Echo, EchoError> {
        let (certificate_pem, tls) = sink::certificate()?;
        if let Some(dir) = &options.commit_dir {
            RawFile::make(dir, commits::FILE, COMMIT_FILE_BYTES, options.cpu.unwrap_or(0))?;
        }
        let group = ReusePortGroup::bind(options.address, 1, BufferSizes::default())?;
        let address = group.local_addr;
        let clock = Clock::start();
        let waker = CoreWaker::new();
        let quic = Quic::new(sink::settings(options.mtu), Some(tls), clock.instant(Tick::ZERO))?;
        let spec = sink::core_spec("felix-echo", options.cpu, options.spin, (clock, waker.clone()));
        let ending = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ending);
        let dir = options.commit_dir.clone();
        let socket = group.sockets.into_iter().next().ok_or(BindError::NoCores)?;
        let core = spawn_core(spec, socket, move |io| serve::serve(io, quic, dir, seen))?;
        Ok(Echo { address, certificate_pem, ending, waker, core: Some(core) })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes the certificate into `folder` and describes the echo as a ready file does.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn describe(&self, folder: &Path) -> Result<Ready, EchoError> {
        Ok(sink::describe(self.address, &self.certificate_pem, folder)?)
    }

    /// Ends the echo and says what it answered.
    ///
    /// # Errors
    /// Its core panicked, or its disk failed meanwhile.
    pub fn stop(mut self) -> Result<EchoCounts, EchoError> {
        self.tell_to_end();
        match self.core.take() {
            Some(core) => core.join()?,
            None => Ok(EchoCounts::default()),
        }
    }

    /// Serves until the process is ended from outside.
    ///
    /// # Errors
    /// Its core panicked, or its disk failed.
    pub fn run(mut self) -> Result<(), EchoError> {
        match self.core.take() {
            Some(core) => core.join()?.map(|_| ()),
            None => Ok(()),
        }
    }

    fn tell_to_end(&self) {
        self.ending.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.tell_to_end();
        if let Some(core) = self.core.take() {
            // Whoever wants to know how it ended calls `stop`.
            let _ = core.join();
        }
    }
}
