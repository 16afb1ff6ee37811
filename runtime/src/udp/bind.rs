//! Binds one UDP port for all cores of a process.
//! Scope: called once per process, from one thread. Owns nothing afterwards.
//! Invariants: the port is taken exclusively before it is shared, so a second process on it is an error and never a
//! silent share; sockets join the group in core order, which is the order the steering program counts in; no socket
//! of a steered group is closed before all are let go (the kernel would renumber the others).
//! Not here: reading and writing (`UdpIo`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Socket buffer sizes to ask for, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferSizes {
    pub recv_bytes: usize,
    pub send_bytes: usize,
}

impl Default for BufferSizes {
    fn default() -> Self {
        BufferSizes { recv_bytes: 8 * 1024 * 1024, send_bytes: 8 * 1024 * 1024 }
    }
}

/// How a datagram finds its core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steering {
    /// One core, one socket.
    Single,
    /// One port; a kernel program picks the socket from a byte of the destination connection id.
    Bpf,
    /// The kernel refused the program: each core has a port of its own.
    PerCorePorts,
}

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else has the port; nothing is bound.
    #[error("UDP port {port} on {ip} is in use by another process or socket")]
    AddrInUse { ip: IpAddr, port: u16 },
    #[error("a group needs at least one core")]
    NoCores,
    /// `{cores}` consecutive ports were needed and the last one would be above 65535.
    #[error("no room for {cores} ports from {port} on")]
    NoPorts { port: u16, cores: u16 },
    #[error("{what} on {address}: {source}")]
    Io { what: &'static str, address: SocketAddr, source: io::Error },
}

/// A bound socket on its way to its core.
#[derive(Debug)]
pub struct PortSocket {
    socket: Socket,
    local: SocketAddr,
    group: Option<GroupHold>,
}

/// Keeps every socket of a steered group open until the last core has let go of its own.
pub(super) type GroupHold = Arc<[OwnedFd]>;

impl PortSocket {
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn into_parts(self) -> (Socket, SocketAddr, Option<GroupHold>) {
        (self.socket, self.local, self.group)
    }
}

impl AsFd for PortSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The sockets of all cores, in core order.
#[derive(Debug)]
pub struct ReusePortGroup {
    /// One per core; hand `sockets[k]` to core `k`.
    pub sockets: Vec<PortSocket>,
    pub steering: Steering,
    /// Where clients reach core 0 (and, unless ports are per core, all cores).
    pub local_addr: SocketAddr,
    /// Both IPv4 and IPv6 clients reach these sockets.
    pub dual_stack: bool,
    /// What the kernel granted, which may be less than was asked for.
    pub granted: BufferSizes,
}

impl ReusePortGroup {
    /// Binds `address` for `cores` cores. `[::]` means both families where the host has IPv6 and IPv4 otherwise. Port 0
    /// lets the kernel choose; all cores then share the chosen port.
    ///
    /// # Errors
    /// `AddrInUse` when the port is taken by anybody, sharing or not. On any error nothing stays bound.
    pub fn bind(address: SocketAddr, cores: u16, buffers: BufferSizes) -> Result<ReusePortGroup, BindError> {
        if cores == 0 {
            return Err(BindError::NoCores);
        }
        let address = match address.ip() {
            IpAddr::V6(ip) if ip.is_unspecified() && !host_has_ipv6() => {
                SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()))
            }
            IpAddr::V4(_) | IpAddr::V6(_) => address,
        };
        let first = open_and_bind(address, Share::No, buffers)?;
        if cores == 1 {
            return ReusePortGroup::of(vec![first], Steering::Single);
        }
        // The first socket took the port alone. Only now it is opened to the others, so nobody could slip in between.
        share_port(&first.socket).map_err(|source| io_error("SO_REUSEPORT", address, source))?;
        let mut sockets = vec![first];
        for _ in 1..cores {
            sockets.push(open_and_bind(sockets[0].local, Share::Yes, buffers)?);
        }
        match attach_steering(&sockets[0].socket, cores) {
            Ok(()) => ReusePortGroup::of(sockets, Steering::Bpf),
            Err(error) => {
                tracing::warn!(%error, "the kernel refused the steering program: one port per core");
                drop(sockets);
                ReusePortGroup::bind_per_core(address, cores, buffers)
            }
        }
    }

    /// One port per core: `port`, `port + 1`, ... or any free ports when it is 0.
    ///
    /// # Errors
    /// As [`ReusePortGroup::bind`].
    pub fn bind_per_core(
        address: SocketAddr,
        cores: u16,
        buffers: BufferSizes,
    ) -> Result<ReusePortGroup, BindError> {
        let port = address.port();
        if port != 0 && port.checked_add(cores).is_none() {
            return Err(BindError::NoPorts { port, cores });
        }
        let sockets = (0..cores)
            .map(|core| {
                let port = if port == 0 { 0 } else { port + core };
                open_and_bind(SocketAddr::new(address.ip(), port), Share::No, buffers)
            })
            .collect::<Result<Vec<_>, _>>()?;
        ReusePortGroup::of(sockets, Steering::PerCorePorts)
    }

    fn of(mut sockets: Vec<PortSocket>, steering: Steering) -> Result<ReusePortGroup, BindError> {
        let Some(first) = sockets.first() else { return Err(BindError::NoCores) };
        let local_addr = first.local;
        let granted = granted(&first.socket).map_err(|source| io_error("SO_RCVBUF", local_addr, source))?;
        if steering == Steering::Bpf {
            let seconds: io::Result<Vec<OwnedFd>> =
                sockets.iter().map(|socket| socket.as_fd().try_clone_to_owned()).collect();
            let hold = GroupHold::from(seconds.map_err(|source| io_error("dup", local_addr, source))?);
            sockets.iter_mut().for_each(|socket| socket.group = Some(hold.clone()));
        }
        let dual_stack = local_addr.is_ipv6() && local_addr.ip().is_unspecified();
        Ok(ReusePortGroup { sockets, steering, local_addr, dual_stack, granted })
    }
}

/// Whether an IPv6 socket can be bound on this host.
pub fn host_has_ipv6() -> bool {
    let loopback = SockAddr::from(SocketAddr::from((Ipv6Addr::LOCALHOST, 0)));
    Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))
        .is_ok_and(|socket| socket.bind(&loopback).is_ok())
}

/// Asks a throw-away socket for `wanted` and says what the kernel grants.
///
/// # Errors
/// When no UDP socket can be made at all.
pub(crate) fn grantable(wanted: BufferSizes) -> io::Result<BufferSizes> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    raise_buffers(&socket, wanted);
    granted(&socket)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    No,
    Yes,
}

fn open_and_bind(address: SocketAddr, share: Share, buffers: BufferSizes) -> Result<PortSocket, BindError> {
    let fail = |what| move |source| io_error(what, address, source);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))
        .map_err(fail("socket"))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified()).map_err(fail("IPV6_V6ONLY"))?;
    }
    if share == Share::Yes {
        share_port(&socket).map_err(fail("SO_REUSEPORT"))?;
    }
    ask_for_metadata(&socket, address).map_err(fail("socket options"))?;
    raise_buffers(&socket, buffers);
    socket.bind(&SockAddr::from(address)).map_err(|source| match source.raw_os_error() {
        Some(libc::EADDRINUSE) => BindError::AddrInUse { ip: address.ip(), port: address.port() },
        _ => io_error("bind", address, source),
    })?;
    let local = socket.local_addr().map_err(fail("getsockname"))?.as_socket().unwrap_or(address);
    Ok(PortSocket { socket, local, group: None })
}

fn io_error(what: &'static str, address: SocketAddr, source: io::Error) -> BindError {
    BindError::Io { what, address, source }
}

/// Destination address, ECN and joined receives for every datagram; the datagrams we send are never fragmented.
fn ask_for_metadata(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    set_int(socket, libc::SOL_UDP, libc::UDP_GRO, 1).or_else(|error| match error.raw_os_error() {
        // Kernels before 5.0: datagrams come one by one.
        Some(libc::ENOPROTOOPT) => Ok(()),
        _ => Err(error),
    })?;
    // IPv4 options also on IPv6 sockets: IPv4 peers reach a dual-stack socket.
    if address.is_ipv4() || address.ip().is_unspecified() {
        set_int(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        set_int(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
    }
    if address.is_ipv4() {
        set_int(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
    } else {
        set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)?;
    }
    Ok(())
}

/// Beyond the system limit where we are allowed to, up to it otherwise. Too little is reported, not an error.
fn raise_buffers(socket: &Socket, buffers: BufferSizes) {
    let wanted = |bytes: usize| libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX / 2);
    for (force, plain, bytes) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, wanted(buffers.recv_bytes)),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, wanted(buffers.send_bytes)),
    ] {
        if set_int(socket, libc::SOL_SOCKET, force, bytes).is_err() {
            let _ = set_int(socket, libc::SOL_SOCKET, plain, bytes);
        }
    }
}

/// The kernel reports twice what it granted, half of it for its own bookkeeping.
fn granted(socket: &Socket) -> io::Result<BufferSizes> {
    Ok(BufferSizes { recv_bytes: socket.recv_buffer_size()? / 2, send_bytes: socket.send_buffer_size()? / 2 })
}

fn share_port(socket: &Socket) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
}

fn set_int(socket: &Socket, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer and the size describe `value`, which lives through the call; the descriptor is open.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Classic BPF over the UDP payload: the first byte of the destination connection id, modulo the number of cores, is
/// the index of the socket. Long headers (bit 0x80 of byte 0) have it at byte 6, short ones at byte 1. A datagram that
/// ends before that byte goes to core 0.
fn steering_program(cores: u16) -> [libc::sock_filter; 7] {
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const JUMP_IF_SET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
    const MODULO: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
    const RETURN_A: u32 = libc::BPF_RET | 0x10;
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    [
        op(LOAD_BYTE, 0, 0, 0),
        op(JUMP_IF_SET, 0, 2, 0x80),
        op(LOAD_BYTE, 0, 0, 6),
        op(JUMP, 0, 0, 1),
        op(LOAD_BYTE, 0, 0, 1),
        op(MODULO, 0, 0, u32::from(cores)),
        op(RETURN_A, 0, 0, 0),
    ]
}

fn attach_steering(socket: &Socket, cores: u16) -> io::Result<()> {
    let mut program = steering_program(cores);
    let header = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the pointer and the size describe `header`, whose `filter` points at `program`; both live through the call
    // and the kernel copies them. The descriptor is open.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const header).cast(),
            size,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
