//! A client's socket and QUIC machine with a plain poll loop around them. Scope: one per load thread.
//! Owns: the socket, the machine, the batch of datagrams on its way out.
//! Invariants: `wait` returns at once while anything is left to do; nothing is lost when the socket is full.
//! Not here: what is said on the connections (`load`), the server's loop (`sink`).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU64;
use std::time::Duration;

use felix_runtime::quic::{KEY_BYTES, Quic, QuicSettings, Transmits};
use felix_runtime::udp::{BufferSizes, DEFAULT_PINNED_BYTES, ReusePortGroup, UdpIo};
use felix_runtime::{Clock, Tick};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Bytes received before the machine runs.
const RECV_BYTES: usize = 1 << 20;
/// Trains in one send batch.
const TRANSMITS: usize = 64;
/// A wait without a deadline still looks around this often.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// See the module.
pub struct Endpoint {
    pub quic: Quic,
    udp: UdpIo,
    clock: Clock,
    batch: Transmits,
    /// The last receive emptied the socket.
    drained: bool,
    /// The last send found the socket full.
    blocked: bool,
}

impl Endpoint {
    /// A client endpoint that can reach `remote`, with datagrams of up to `mtu` bytes. Also makes the waits of the calling
    /// thread, which should be the one that drives it, end on time.
    ///
    /// # Errors
    /// No socket, or settings out of their bounds.
    pub fn open(remote: SocketAddr, mtu: u16) -> io::Result<Endpoint> {
        let local = if remote.is_ipv4() {
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
        } else {
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
        };
        // The kernel's default of 50 us would be part of every latency of an open loop. Refused: it stays.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let group = ReusePortGroup::bind(local, 1, BufferSizes::default()).map_err(io::Error::other)?;
        let socket = group.sockets.into_iter().next().ok_or_else(|| io::Error::other("no socket"))?;
        let clock = Clock::start();
        let settings = QuicSettings {
            mtu_upper_bound: mtu,
            max_udp_payload: mtu.max(4_096),
            conn_window_before_auth: 64 << 20,
            idle_timeout: Duration::from_secs(30),
            keep_alive: Some(Duration::from_secs(2)),
            // A client resets nobody and validates no address.
            ..QuicSettings::new([0; KEY_BYTES], [0; KEY_BYTES])
        };
        let quic = Quic::new(settings, None, clock.zero()).map_err(io::Error::other)?;
        Ok(Endpoint {
            quic,
            udp: UdpIo::new(socket, DEFAULT_PINNED_BYTES),
            clock,
            batch: Transmits::new(TRANSMITS),
            drained: false,
            blocked: false,
        })
    }

    pub fn now(&self) -> Tick {
        self.clock.now()
    }

    /// Takes what has arrived and fires what is due. Events are ready afterwards.
    ///
    /// # Errors
    /// The socket is unusable.
    pub fn receive(&mut self) -> io::Result<Tick> {
        let now = self.clock.now();
        let quic = &mut self.quic;
        let outcome = self.udp.recv(RECV_BYTES, |datagram| {
            quic.handle_datagram(now, datagram.remote, datagram.local_ip, datagram.ecn, datagram.data);
        })?;
        self.drained = outcome.drained;
        self.quic.handle_timeouts(now);
        Ok(now)
    }

    /// Sends until nothing is left or the socket is full.
    pub fn transmit(&mut self) {
        self.blocked = false;
        loop {
            if self.batch.is_empty() {
                self.quic.poll_transmit(self.clock.now(), &mut self.batch);
            }
            if self.batch.is_empty() {
                return;
            }
            let outcome = self.udp.send(self.batch.iter());
            self.batch.advance(outcome.taken);
            if outcome.blocked {
                self.blocked = true;
                return;
            }
        }
    }

    /// Waits for a datagram, for room to send when the socket was full, for the machine's next deadline, or for
    /// `until`, whichever comes first.
    ///
    /// # Errors
    /// The socket is unusable.
    pub fn wait(&mut self, until: Option<Tick>) -> io::Result<()> {
        if !self.drained || (self.quic.has_work() && !self.blocked) {
            return Ok(());
        }
        let now = self.clock.now();
        let latest = now + WAIT_MAX;
        let due = self.quic.next_timeout().into_iter().chain(until).min().map_or(latest, |at| at.min(latest));
        let left = due.saturating_since(now);
        if left.is_zero() {
            return Ok(());
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let flags = if self.blocked { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        match poll(&mut [PollFd::new(&self.udp, flags)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
