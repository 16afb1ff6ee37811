//! Looks at the machine, binds the client port and starts the cores. Scope: per process, once at start.
//! Owns: which processor each core gets, the lanes and mailboxes between everybody.
//! Invariants: a core that cannot start is an error of the whole start, and those started before it are stopped.
//! Not here: the loop afterwards (`admin`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use felix_runtime::Clock;
use felix_runtime::counters::{CounterReader, counters};
use felix_runtime::executor::CoreJoin;
use felix_runtime::mailbox::{AsyncReceiver, MAILBOX_SLOTS, lane_from_core, lane_to_core, mesh};
use felix_runtime::probe::{Facts, Needs, Severity, evaluate};
use felix_runtime::udp::{BufferSizes, ReusePortGroup};
use felix_runtime::waker::CoreWaker;
use felix_wire::id::CoreId;

use super::NodeError;
use super::config::{CORES_MAX, CoreList, Settings};
use super::links::{LANE_SLOTS, Links};
use super::memory;
use super::transport::{TransportKeys, boot_number};
use crate::snapshot::FromCore;
use crate::turn::counters::Counter;
use crate::turn::{CoreArgs, CoreStorage, run_core};

/// Slots of the lane from each core to the admin thread: requests for keys beyond it are made again by the core.
const FROM_CORE_SLOTS: u32 = 256;
/// Descriptors beside the executors': sockets, HTTP, watches.
const OPEN_FILES: u64 = 256;

/// What the machine offers, measured against the settings.
#[derive(Debug)]
pub struct Machine {
    /// One per core; the same processor may come twice where more cores than processors were asked for.
    cpus: Vec<usize>,
    memory_bytes: u64,
}

impl Machine {
    /// Probes the machine and logs what is not as it should be.
    ///
    /// # Errors
    /// `Machine` with everything that keeps the broker from starting.
    pub fn look(settings: &Settings) -> Result<Machine, NodeError> {
        let facts = Facts::read(buffers(settings));
        let mut cpus = match &settings.cores {
            CoreList::Cpus(cpus) => cpus.clone(),
            CoreList::Auto if facts.cpus_allowed.is_empty() => vec![0],
            CoreList::Auto => facts.cpus_allowed.clone(),
        };
        cpus.truncate(CORES_MAX);
        let needs = Needs {
            cores: u16::try_from(cpus.len()).unwrap_or(u16::MAX),
            cpus: if settings.pin { cpus.clone() } else { Vec::new() },
            open_files: OPEN_FILES,
            udp_buffers: buffers(settings),
            ipv6: settings.quic_bind.is_ipv6(),
        };
        let mut fatal = Vec::new();
        for finding in evaluate(&facts, &needs) {
            match finding.severity {
                Severity::Fatal => fatal.push(finding.to_string()),
                Severity::Warning => tracing::warn!("{finding}"),
                Severity::Note => tracing::info!("{finding}"),
            }
        }
        if fatal.is_empty() {
            Ok(Machine { cpus, memory_bytes: memory::available_bytes() })
        } else {
            Err(NodeError::Machine(fatal))
        }
    }

    /// Cores to run, at least one.
    pub fn cores(&self) -> u16 {
        u16::try_from(self.cpus.len()).unwrap_or(u16::MAX)
    }

    /// Binds the client port for all cores.
    ///
    /// # Errors
    /// A port that somebody else has, or an address that is not ours.
    pub fn bind(&self, settings: &Settings) -> Result<ReusePortGroup, NodeError> {
        let group = ReusePortGroup::bind(settings.quic_bind, self.cores(), buffers(settings))?;
        tracing::debug!(steering = ?group.steering, dual_stack = group.dual_stack, granted = ?group.granted, "bound");
        Ok(group)
    }
}

fn buffers(settings: &Settings) -> BufferSizes {
    BufferSizes { recv_bytes: settings.udp_recv_buffer.get(), send_bytes: settings.udp_send_buffer.get() }
}

/// What cores are started from.
pub struct Cores<'a> {
    pub settings: &'a Settings,
    pub machine: &'a Machine,
    pub keys: &'a TransportKeys,
    pub tls: Arc<rustls::ServerConfig>,
    pub clock: Clock,
    /// The folders of the volumes, which are there, and the kernel's boot id.
    pub roots: &'a [PathBuf],
    pub kernel_boot: [u8; 16],
}

/// The admin thread's ends of the running cores.
pub struct StartedCores {
    pub links: Links,
    pub from_cores: AsyncReceiver<FromCore>,
    /// In core order.
    pub counters: Vec<CounterReader>,
    pub joins: Vec<CoreJoin<()>>,
}

impl Cores<'_> {
    fn storage(&self) -> Option<CoreStorage> {
        (!self.roots.is_empty()).then(|| CoreStorage {
            settings: self.settings.store_settings(),
            files: self.settings.files_settings(),
            roots: self.roots.to_vec(),
            boot: self.kernel_boot,
            entropy: rand::random(),
        })
    }

    /// Starts one core for each socket.
    ///
    /// # Errors
    /// The first core that does not start.
    pub fn start(self, group: ReusePortGroup) -> Result<StartedCores, NodeError> {
        let cores = self.machine.cores();
        let limits = Arc::new(self.settings.core_limits(cores, self.machine.memory_bytes));
        let boot = boot_number();
        let wakers: Vec<CoreWaker> = (0..cores).map(|_| CoreWaker::new()).collect();
        let (to_admin, from_cores) = lane_from_core(FROM_CORE_SLOTS.saturating_mul(u32::from(cores)));
        let mut lanes = Vec::new();
        let mut readers = Vec::new();
        let mut joins = Vec::new();
        let sockets = group.sockets.into_iter().zip(mesh(&wakers, MAILBOX_SLOTS)).zip(&wakers);
        for (core, ((socket, mailboxes), waker)) in (0..cores).zip(sockets) {
            let (to_core, from_admin) = lane_to_core(LANE_SLOTS, waker);
            let (counters, reader) = counters(Counter::ALL.len());
            let cpu = self.machine.cpus.get(usize::from(core)).copied().filter(|_| self.settings.pin);
            lanes.push(to_core);
            readers.push(reader);
            let started = run_core(CoreArgs {
                core: CoreId(core),
                cores,
                cpu,
                spin: self.settings.spin(),
                socket,
                quic: self.keys.settings(self.settings, &limits, self.clock, (core, cores)),
                tls: Arc::clone(&self.tls),
                limits: Arc::clone(&limits),
                clock: self.clock,
                waker: waker.clone(),
                mailboxes,
                from_admin,
                to_admin: to_admin.clone(),
                counters,
                boot,
                storage: self.storage(),
            });
            match started {
                Ok(join) => joins.push(join),
                Err(error) => {
                    Links::new(lanes).stop();
                    return Err(error.into());
                }
            }
        }
        Ok(StartedCores { links: Links::new(lanes), from_cores, counters: readers, joins })
    }
}

/// Waits for the threads of cores that were told to stop; those that take longer are left to the end of the process.
pub async fn join(joins: Vec<CoreJoin<()>>, budget: Duration) {
    let waiting = tokio::task::spawn_blocking(move || {
        for join in joins {
            let core = join.core();
            if let Err(error) = join.join() {
                tracing::error!(core, %error, "core ended badly");
            }
        }
    });
    if tokio::time::timeout(budget, waiting).await.is_err() {
        tracing::warn!("a core's thread did not end in time");
    }
}
