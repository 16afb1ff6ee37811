//! The one loop of a core: socket, disks, mailboxes and clock around `Core`. Scope: one per core thread.
//! Invariants: nothing waits inside a turn; one wait per core; what found no room in a mailbox goes first next time; a core
//! with logs ends only when they are closed, or had their time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use felix_runtime::clock::{Clock, Tick};
use felix_runtime::counters::CounterWriter;
use felix_runtime::executor::{CoreIo, CoreJoin, CoreSpec, ExecutorError, spawn_core};
use felix_runtime::failpoint::{self, Phase};
use felix_runtime::mailbox::{CoreReceiver, Full, LaneError, LaneSender, Mailboxes};
use felix_runtime::quic::{Quic, QuicError, QuicSettings, Transmits};
use felix_runtime::udp::{DEFAULT_PINNED_BYTES, PortSocket, RecvDatagram};
use felix_runtime::waker::CoreWaker;
use felix_wire::id::CoreId;

use super::core::{Core, CoreParts, Datagram, Mail};
use super::counters::CoreCounters;
use super::disks::{CoreStorage, Disks, wait_unserved};
use crate::snapshot::{CoreLimits, FromCore, ToCore};

/// Messages taken from other cores before the machines run.
const MAIL_BATCH: usize = 1_024;
/// Trains in one send batch.
const TRANSMITS: usize = 64;
/// How long logs may take to write down what has to be when the core ends.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// With messages that found no room, the mailbox is tried again this often.
const MAIL_RETRY: Duration = Duration::from_micros(200);

/// Everything a core is started with.
pub struct CoreArgs {
    pub core: CoreId,
    pub cores: u16,
    /// The processor to stay on.
    pub cpu: Option<usize>,
    pub spin: Duration,
    pub socket: PortSocket,
    pub quic: QuicSettings,
    pub tls: Arc<rustls::ServerConfig>,
    pub limits: Arc<CoreLimits>,
    pub clock: Clock,
    pub waker: CoreWaker,
    pub mailboxes: Mailboxes<Mail>,
    pub from_admin: CoreReceiver<ToCore>,
    pub to_admin: LaneSender<FromCore>,
    pub counters: CounterWriter,
    /// Random per process.
    pub boot: u64,
    /// Where its logs are, if it is to have any.
    pub storage: Option<CoreStorage>,
}

/// Why a core did not start.
#[derive(Debug, thiserror::Error)]
pub enum CoreStart {
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    #[error(transparent)]
    Quic(#[from] QuicError),
}

/// Starts the core's thread. It ends after `ToCore::Stop`.
///
/// # Errors
/// When the QUIC settings or the certificate cannot be used, or the thread or its ring is not to be had.
pub fn run_core(args: CoreArgs) -> Result<CoreJoin<()>, CoreStart> {
    let addr = args.socket.local_addr();
    let spec = CoreSpec {
        index: args.core.0,
        cpu: args.cpu,
        spin: args.spin,
        name: "felix-core".to_owned(),
        pinned_bytes: DEFAULT_PINNED_BYTES,
        clock: args.clock,
        waker: args.waker,
    };
    let quic = Quic::new(args.quic, Some(args.tls), args.clock.instant(Tick::ZERO))?;
    let parts = CoreParts {
        id: args.core,
        cores: args.cores,
        boot: args.boot,
        limits: args.limits,
        counters: CoreCounters::new(args.counters),
        quic,
    };
    let links = Links {
        mailboxes: args.mailboxes,
        from_admin: args.from_admin,
        to_admin: args.to_admin,
        unsent: VecDeque::new(),
    };
    let core = args.core;
    let storage = args.storage;
    Ok(spawn_core(spec, args.socket, move |io| async move {
        let mut links = links;
        let mut io = io;
        let mut disks = None;
        if let Some(storage) = storage {
            match Disks::open(storage, core, &mut io) {
                Ok((open, recovered)) => {
                    disks = Some(open);
                    if let Some(recovered) = recovered {
                        links.tell(FromCore::Recovered(recovered));
                    }
                }
                Err(why) => links.tell(FromCore::StoreFailed { core, why }),
            }
        }
        links.tell(FromCore::Ready { core, addr });
        run(Core::new(parts), io, links, disks);
    })?)
}

/// The core's ends of everything that is not the socket.
struct Links {
    mailboxes: Mailboxes<Mail>,
    from_admin: CoreReceiver<ToCore>,
    to_admin: LaneSender<FromCore>,
    unsent: VecDeque<FromCore>,
}

impl Links {
    fn tell(&mut self, message: FromCore) {
        self.unsent.push_back(message);
        self.flush();
    }

    fn flush(&mut self) {
        while let Some(message) = self.unsent.pop_front() {
            if let Err(LaneError::Full(message)) = self.to_admin.try_send(message) {
                self.unsent.push_front(message);
                return;
            }
        }
    }

    /// Takes what other threads sent. False when the core is to end.
    fn receive(&mut self, core: &mut Core, disks: &mut Option<Disks>, now: Tick) -> bool {
        while let Some(message) = self.from_admin.try_recv() {
            if let (ToCore::Volumes(volumes), Some(disks)) = (&message, disks.as_ref()) {
                if let Err(why) = disks.open_store(core, volumes, now) {
                    let failed = FromCore::StoreFailed { core: disks.core, why: why.to_owned() };
                    self.tell(failed);
                }
                continue;
            }
            if !core.handle_admin(now, message) {
                return false;
            }
        }
        for _ in 0..MAIL_BATCH {
            let Some((from, mail)) = self.mailboxes.recv() else { break };
            core.handle_mail(now, CoreId(from), mail);
        }
        true
    }

    /// Sends what the core has for other threads.
    fn send(&mut self, core: &mut Core) {
        for to in 0..self.mailboxes.cores() {
            while let Some(mail) = core.poll_mail(CoreId(to)) {
                if let Err(Full(mail)) = self.mailboxes.try_send(to, mail) {
                    core.give_back(CoreId(to), mail);
                    break;
                }
            }
        }
        self.mailboxes.flush();
        self.flush();
        while self.unsent.is_empty() {
            let Some(message) = core.poll_admin() else { break };
            self.tell(message);
        }
    }
}

fn run(mut core: Core, mut io: CoreIo, mut links: Links, mut disks: Option<Disks>) {
    let mut batch = Transmits::new(TRANSMITS);
    loop {
        let now = io.now();
        let received = io.udp.recv(core.receive_bytes(), |datagram| {
            let RecvDatagram { remote, local_ip, ecn, data } = datagram;
            core.handle_datagram(now, Datagram { remote, local_ip, ecn, data });
        });
        let drained = received.as_ref().map_or(true, |r| r.drained);
        core.set_time(io.clock().unix_micros() / 1_000);
        let goes_on = links.receive(&mut core, &mut disks, now);
        let more = turn(&mut core, &mut io, &mut disks);
        let sent_all = transmit(&mut core, &mut io, &mut batch);
        links.send(&mut core);
        if !goes_on {
            transmit(&mut core, &mut io, &mut batch);
            return close(core, io, disks);
        }
        if more || !drained {
            continue;
        }
        let mut until = core.next_timeout();
        if core.has_mail() || !links.unsent.is_empty() || !sent_all {
            let retry = io.now() + MAIL_RETRY;
            until = Some(until.map_or(retry, |at| at.min(retry)));
        }
        io.wait(until);
    }
}

/// One turn of the core with what the disks have answered, and what it asks of them. True when there is more to do.
fn turn(core: &mut Core, io: &mut CoreIo, disks: &mut Option<Disks>) -> bool {
    let now = io.now();
    let answered = disks.as_mut().is_some_and(|disks| disks.answers(core, now));
    let more = core.turn(now, io.clock().unix_micros() / 1_000);
    if answered {
        // What became durable is settled, and nobody has been told.
        failpoint::hit("settled");
    }
    let asked = disks.as_mut().is_some_and(|disks| disks.ask(core));
    more || answered && asked
}

/// The logs are closed, then the files.
fn close(mut core: Core, mut io: CoreIo, mut disks: Option<Disks>) {
    failpoint::enter(Phase::Stop);
    core.close_store();
    let until = io.now() + CLOSE_MAX;
    while !core.is_store_closed() && io.now() < until {
        turn(&mut core, &mut io, &mut disks);
        if core.is_store_closed() {
            break;
        }
        let timeout = core.next_timeout().map_or(until, |at| at.min(until));
        wait_unserved(&mut io, timeout);
    }
    if !core.is_store_closed() {
        tracing::error!("the logs were not closed in time; the next start looks at what is there");
    }
    if let Some(disks) = disks {
        disks.close();
    }
}

/// Sends until nothing is left or the socket is full. True when nothing is left.
fn transmit(core: &mut Core, io: &mut CoreIo, batch: &mut Transmits) -> bool {
    loop {
        if batch.is_empty() {
            core.poll_transmit(io.now(), batch);
        }
        if batch.is_empty() {
            return true;
        }
        failpoint::hit("before.send");
        let outcome = io.udp.send(batch.iter());
        failpoint::hit("after.send");
        batch.advance(outcome.taken);
        if outcome.blocked {
            return false;
        }
    }
}
