//! The loop of the admin thread: calls to the control plane, messages of the cores, the certificate, signals, the end.
//! Scope: per process. Owns: everything that is not a core's.
//! Invariants: nothing here blocks the thread; the metrics listener is the last to end (semantics 8.2).
//! Not here: starting (`node`), the decisions (`agent`, `shutdown`).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use felix_runtime::mailbox::AsyncReceiver;
use felix_runtime::{Clock, Tick};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::NodeError;
use super::agent::Agent;
use super::links::Links;
use super::ready_file::ReadyFile;
use super::shutdown::{Shutdown, Step};
use super::status::{NodeStatus, Readiness};
use super::storage::{KnownRoots, LogBook};
use super::tenants::SharedTenants;
use super::tls::{CertificateFiles, FileWatch};
use crate::snapshot::FromCore;

/// How soon a lane without room is tried again.
const LANE_RETRY: Duration = Duration::from_millis(2);
/// From one try to write the ready file to the next while there is no space for it.
const READY_FILE_RETRY: Duration = Duration::from_secs(10);
/// Longest time without looking at clocks and lanes.
const IDLE: Duration = Duration::from_secs(1);

/// A certificate that is read again when it changes.
pub struct Certificate {
    pub files: CertificateFiles,
    pub watch: FileWatch,
}

/// SIGTERM and SIGINT.
pub struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    /// From here on the signals do not end the process by themselves.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn install() -> std::io::Result<EndSignals> {
        Ok(EndSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// What the loop owns.
pub struct Admin<W: FnMut() -> Result<Option<ReadyFile>, NodeError>> {
    pub clock: Clock,
    pub status: Arc<NodeStatus>,
    pub agent: Agent,
    pub links: Links,
    pub logs: LogBook,
    pub known_roots: KnownRoots,
    pub from_cores: AsyncReceiver<FromCore>,
    pub tenants: SharedTenants,
    pub certificate: Option<Certificate>,
    pub signals: EndSignals,
    pub shutdown: Shutdown,
    /// Called when the node first becomes ready, and again while there is no space for the file.
    pub when_ready: W,
}

/// What ended a wait.
enum Event {
    Call(super::agent::Done),
    Core(FromCore),
    /// All cores have dropped their lane.
    CoresGone,
    CertificateTouched,
    Signal(&'static str),
    Time,
}

impl<W: FnMut() -> Result<Option<ReadyFile>, NodeError>> Admin<W> {
    /// Runs until the end is done.
    ///
    /// # Errors
    /// A core that ended by itself, or a ready file that cannot be written.
    pub async fn run(&mut self) -> Result<(), NodeError> {
        let mut ready_file = None;
        let mut was_ready = false;
        let mut ready_file_due = None;
        let mut told = Step::Run;
        while self.shutdown.step() < Step::Done {
            let now = self.clock.now();
            self.status.now_ms.store(now.as_micros() / 1_000, Relaxed);
            self.status.unix_s.store(self.clock.unix_micros() / 1_000_000, Relaxed);
            if self.shutdown.step() < Step::Stop {
                self.agent.ask();
                self.agent.tell(&mut self.links, &mut self.logs);
                self.status.logs_unclaimed.store(self.logs.unclaimed() as u64, Relaxed);
            }
            self.links.flush();
            if self.links.any_closed() && self.shutdown.step() < Step::Drain {
                return Err(NodeError::CoreEnded);
            }
            if !was_ready && self.status.readiness() == Readiness::Ready {
                was_ready = true;
                tracing::info!("ready");
                ready_file_due = Some(now);
            }
            if ready_file_due.is_some_and(|due| now >= due) && self.shutdown.step() == Step::Run {
                match (self.when_ready)() {
                    Err(error) if error.is_no_space() => {
                        tracing::warn!(%error, "it is written when there is space");
                        ready_file_due = Some(now + READY_FILE_RETRY);
                    }
                    written => (ready_file, ready_file_due) = (written?, None),
                }
            }
            let event = self.next_event(now).await;
            if matches!(event, Event::CoresGone) && self.shutdown.step() < Step::Stop {
                return Err(NodeError::CoreEnded);
            }
            self.take(event)?;
            self.shutdown.advance(self.clock.now());
            if self.shutdown.step() != told {
                told = self.shutdown.step();
                self.enter(told);
                if let Some(file) = ready_file.take() {
                    file.remove();
                }
            }
        }
        Ok(())
    }

    async fn next_event(&mut self, now: Tick) -> Event {
        let mut until = (now + IDLE).min(self.shutdown.deadline());
        if self.links.is_waiting() {
            until = until.min(now + LANE_RETRY);
        }
        if let Some(due) = self.agent.next_due() {
            until = until.min(due);
        }
        let touched = async {
            match &mut self.certificate {
                Some(certificate) => certificate.watch.wait().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            signal = self.signals.next() => Event::Signal(signal),
            message = self.from_cores.recv() => message.map_or(Event::CoresGone, Event::Core),
            done = self.agent.done() => Event::Call(done),
            () = touched => Event::CertificateTouched,
            () = tokio::time::sleep_until(self.clock.instant(until).into()) => Event::Time,
        }
    }

    fn take(&mut self, event: Event) -> Result<(), NodeError> {
        let now = self.clock.now();
        match event {
            Event::Call(done) => self.agent.take(done),
            Event::Core(FromCore::Ready { core, addr }) => {
                tracing::debug!(%core, %addr, "core serves");
                self.status.core_ready();
            }
            Event::Core(FromCore::NeedKeys { tenant, kid }) => self.agent.request_keys(&tenant, &kid),
            Event::Core(FromCore::Tenants(report)) => self.tenants.take(report),
            Event::Core(FromCore::Recovered(Ok(volumes))) => {
                match self.known_roots.remember(self.logs.roots()) {
                    Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                        tracing::warn!(%error, "data_dir: storage-folders waits for the next start with space");
                    }
                    remembered => remembered.map_err(NodeError::io("data_dir: storage-folders"))?,
                }
                let starts = self.logs.recovered(volumes, self.status.cores(), rand::random);
                self.links.volumes(starts);
                self.status.logs_refused.store(self.logs.refused() as u64, Relaxed);
            }
            Event::Core(FromCore::Recovered(Err(why)) | FromCore::StoreFailed { why, .. }) => {
                return Err(NodeError::Storage(why));
            }
            Event::Core(FromCore::LogReleased { key, volume, source }) => {
                self.logs.released(key, volume, source, &mut self.links);
            }
            Event::Core(FromCore::LogDeleted { key }) => self.logs.deleted(key),
            Event::Core(FromCore::Space { core, volume, writes }) => {
                self.logs.space(core, volume, writes);
            }
            Event::Core(FromCore::Drained { core }) => {
                tracing::debug!(%core, "core is drained");
                self.shutdown.core_drained(now);
            }
            Event::CoresGone => self.shutdown.cores_ended(),
            Event::CertificateTouched => self.reload(),
            Event::Signal(name) => {
                tracing::info!(signal = name, bound_s = self.shutdown.bound().as_secs(), "asked to end");
                self.shutdown.signal(now);
            }
            Event::Time => {}
        }
        Ok(())
    }

    fn reload(&mut self) {
        let Some(certificate) = &mut self.certificate else { return };
        match certificate.files.reload() {
            Ok(None) => {}
            Ok(Some(tls)) => {
                tracing::info!("certificate replaced; open connections stay");
                self.status.certificate_reloads.fetch_add(1, Relaxed);
                self.links.tls(&tls);
            }
            Err(error) => tracing::warn!(%error, "the changed certificate cannot be used; the old one stays"),
        }
    }

    fn enter(&mut self, step: Step) {
        match step {
            Step::Run => {}
            Step::Predrain => self.status.set_draining(),
            Step::Drain => {
                self.status.set_draining();
                self.links.drain();
            }
            Step::Stop => {
                let (took, forced) = self.shutdown.outcome(self.clock.now());
                tracing::info!(took_ms = took.as_millis(), forced, "drained");
                self.status.set_draining();
                self.status
                    .drain_duration_ms
                    .store(u64::try_from(took.as_millis()).unwrap_or(u64::MAX), Relaxed);
                self.status.drain_forced.store(u64::from(forced), Relaxed);
                self.agent.stop();
                self.links.stop();
            }
            Step::Done => self.agent.stop(),
        }
    }
}
