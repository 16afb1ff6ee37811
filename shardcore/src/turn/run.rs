//! The one loop of a core: socket, mailboxes and clock around `Core`. Scope: one per core thread.
//! Invariants: nothing waits inside a turn; one wait per core; what found no room in a mailbox goes first next time.

use std::sync::Arc;
use std::time::Duration;

use felix_runtime::clock::{Clock, Tick};
use felix_runtime::counters::CounterWriter;
use felix_runtime::executor::{CoreIo, CoreJoin, CoreSpec, ExecutorError, spawn_core};
use felix_runtime::mailbox::{CoreReceiver, Full, LaneError, LaneSender, Mailboxes};
use felix_runtime::quic::{Quic, QuicError, QuicSettings, Transmits};
use felix_runtime::udp::{DEFAULT_PINNED_BYTES, PortSocket, RecvDatagram};
use felix_runtime::waker::CoreWaker;
use felix_wire::id::CoreId;

use super::core::{Core, CoreParts, Datagram, Mail};
use super::counters::CoreCounters;
use crate::snapshot::{CoreLimits, FromCore, ToCore};

/// Bytes received before the machines run.
const RECV_BYTES: usize = 1 << 20;
/// Messages taken from other cores before the machines run.
const MAIL_BATCH: usize = 1_024;
/// Trains in one send batch.
const TRANSMITS: usize = 64;
/// Registered memory of an executor that does no disk work.
const IO_MEMORY_BYTES: usize = 1 << 20;
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
        io_memory_bytes: IO_MEMORY_BYTES,
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
        unsent: None,
    };
    let core = args.core;
    Ok(spawn_core(spec, args.socket, move |io| async move {
        let mut links = links;
        links.tell(FromCore::Ready { core, addr });
        run(Core::new(parts), io, links).await;
    })?)
}

/// The core's ends of everything that is not the socket.
struct Links {
    mailboxes: Mailboxes<Mail>,
    from_admin: CoreReceiver<ToCore>,
    to_admin: LaneSender<FromCore>,
    unsent: Option<FromCore>,
}

impl Links {
    fn tell(&mut self, message: FromCore) {
        if let Err(LaneError::Full(message)) = self.to_admin.try_send(message) {
            self.unsent = Some(message);
        }
    }

    /// Takes what other threads sent. False when the core is to end.
    fn receive(&mut self, core: &mut Core, now: Tick) -> bool {
        while let Some(message) = self.from_admin.try_recv() {
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
        if let Some(message) = self.unsent.take() {
            self.tell(message);
        }
        while self.unsent.is_none() {
            let Some(message) = core.poll_admin() else { break };
            self.tell(message);
        }
    }
}

async fn run(mut core: Core, mut io: CoreIo, mut links: Links) {
    let mut batch = Transmits::new(TRANSMITS);
    loop {
        let now = io.now();
        let received = io.udp.recv(RECV_BYTES, |datagram| {
            let RecvDatagram { remote, local_ip, ecn, data } = datagram;
            core.handle_datagram(now, Datagram { remote, local_ip, ecn, data });
        });
        let drained = received.as_ref().map_or(true, |r| r.drained);
        let goes_on = links.receive(&mut core, now);
        let unix_s = io.clock().unix_micros() / 1_000_000;
        let more = core.turn(now, unix_s);
        let sent_all = transmit(&mut core, &mut io, &mut batch);
        links.send(&mut core);
        if !goes_on {
            transmit(&mut core, &mut io, &mut batch);
            return;
        }
        if more || !drained {
            io.yield_if_needed().await;
            continue;
        }
        let mut until = core.next_timeout();
        if core.has_mail() || links.unsent.is_some() || !sent_all {
            let retry = io.now() + MAIL_RETRY;
            until = Some(until.map_or(retry, |at| at.min(retry)));
        }
        io.wait(until).await;
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
        let outcome = io.udp.send(batch.iter());
        batch.advance(outcome.taken);
        if outcome.blocked {
            return false;
        }
    }
}
