//! What datagrams arrive whole, and whether the kernel joins and splits them. Scope: sockets of the probe alone.
//! Owns: the echo that answers probes, the sockets that ask.
//! Invariants: datagrams are never fragmented (the sockets are those of the broker); the echo answers only what carries
//! its own mark, with as many bytes as came; every wait has a deadline.
//! Not here: path discovery of connections (`felix_runtime::quic`).

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use felix_runtime::quic::Transmit;
use felix_runtime::udp::{BufferSizes, DEFAULT_PINNED_BYTES, ReusePortGroup, UdpIo};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

/// Sizes tried beside the wanted one: common paths, jumbo frames, the most that UDP holds.
const SIZES: [u16; 5] = [1_200, 1_452, 3_872, 8_900, 65_507];
/// What a probe begins with.
const MARK: &[u8; 16] = b"felix-path-probe";
/// For an answer to one probe, asked this often.
const ANSWER: Duration = Duration::from_millis(100);
const TRIES: usize = 3;
/// A wait of the echo ends this often to see whether it is over.
const LOOK: Duration = Duration::from_millis(20);
/// Datagrams of the train that offloads are tried with.
const TRAIN: usize = 16;
const TRAIN_DATAGRAM_BYTES: usize = 1_200;

/// One size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeProbe {
    /// Bytes of UDP payload.
    pub bytes: u16,
    pub arrived: bool,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathProbe {
    pub sizes: Vec<SizeProbe>,
    /// The largest datagram that arrived whole, bytes of UDP payload.
    pub largest: u16,
    /// The kernel takes trains of datagrams in one call.
    pub gso: bool,
    /// The kernel gives trains of datagrams in one call.
    pub gro: bool,
}

impl fmt::Display for PathProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |works: bool| if works { "works" } else { "does not work" };
        writeln!(
            f,
            "path       datagrams of {} bytes arrive whole, GSO {}, GRO {}",
            self.largest,
            word(self.gso),
            word(self.gro)
        )
    }
}

/// Answers probes until dropped.
#[derive(Debug)]
pub struct Echo {
    address: SocketAddr,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Answers on a free port of `ip`.
    ///
    /// # Errors
    /// No socket is to be had there.
    pub fn start(ip: IpAddr) -> io::Result<Echo> {
        let mut udp = socket(ip)?;
        let address = udp.local_addr();
        let ending = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ending);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                let mut answers = Vec::new();
                let got = udp.recv(1 << 20, |datagram| {
                    if datagram.data.starts_with(MARK) {
                        answers.push((datagram.remote, datagram.data));
                    }
                });
                let transmits = answers.iter().map(|(remote, data)| whole(*remote, data));
                udp.send(transmits);
                if got.is_err() || answers.is_empty() {
                    wait(&udp, LOOK);
                }
            }
        });
        Ok(Echo { address, ending, thread: Some(thread) })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Asks an echo with datagrams of `wanted` bytes and of the common sizes, from a socket on `from`.
///
/// # Errors
/// No socket is to be had.
pub fn probe(from: IpAddr, echo: SocketAddr, wanted: u16) -> io::Result<Vec<SizeProbe>> {
    let mut udp = socket(from)?;
    let mut sizes: Vec<u16> = SIZES.into_iter().chain([wanted.max(MARK.len() as u16)]).collect();
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes.into_iter().map(|bytes| SizeProbe { bytes, arrived: arrives(&mut udp, echo, bytes) }).collect())
}

/// Everything about the path from this machine to `address` of this machine.
///
/// # Errors
/// No socket is to be had there.
pub fn local(address: IpAddr, wanted: u16) -> io::Result<PathProbe> {
    let echo = Echo::start(address)?;
    let sizes = probe(address, echo.address(), wanted)?;
    let (gso, gro) = offloads(address)?;
    let largest = sizes.iter().filter(|size| size.arrived).map(|size| size.bytes).max().unwrap_or(0);
    Ok(PathProbe { sizes, largest, gso, gro })
}

fn socket(ip: IpAddr) -> io::Result<UdpIo> {
    let group =
        ReusePortGroup::bind(SocketAddr::new(ip, 0), 1, BufferSizes::default()).map_err(io::Error::other)?;
    let socket = group.sockets.into_iter().next().ok_or_else(|| io::Error::other("no socket"))?;
    Ok(UdpIo::new(socket, DEFAULT_PINNED_BYTES))
}

fn whole(remote: SocketAddr, contents: &[u8]) -> Transmit<'_> {
    Transmit { remote, local_ip: None, ecn: None, segment_size: None, contents }
}

fn wait(udp: &UdpIo, at_most: Duration) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: at_most.subsec_nanos().into() };
    // Interrupted or refused: the caller looks again and has a deadline.
    let _ = poll(&mut [PollFd::new(udp, PollFlags::IN)], Some(&timeout));
}

fn arrives(udp: &mut UdpIo, echo: SocketAddr, bytes: u16) -> bool {
    let mut contents = vec![0; usize::from(bytes)];
    contents[..MARK.len()].copy_from_slice(MARK);
    for _ in 0..TRIES {
        if udp.send([whole(echo, &contents)]).failed > 0 {
            return false;
        }
        let until = Instant::now() + ANSWER;
        while Instant::now() < until {
            let mut arrived = false;
            let got = udp.recv(1 << 20, |datagram| arrived |= datagram.data == contents);
            if arrived {
                return true;
            }
            if got.is_err() {
                break;
            }
            wait(udp, LOOK);
        }
    }
    false
}

/// Whether one call sends a train, and whether one call receives one.
fn offloads(ip: IpAddr) -> io::Result<(bool, bool)> {
    let (mut from, mut to) = (socket(ip)?, socket(ip)?);
    let contents = vec![7; TRAIN * TRAIN_DATAGRAM_BYTES];
    let train = Transmit { segment_size: Some(TRAIN_DATAGRAM_BYTES), ..whole(to.local_addr(), &contents) };
    from.send([train]);
    let until = Instant::now() + ANSWER * TRIES as u32;
    while to.counts().recv_datagrams < TRAIN as u64 && Instant::now() < until {
        to.recv(1 << 20, |_| {})?;
        wait(&to, LOOK);
    }
    let (sent, got) = (from.counts(), to.counts());
    let gso = sent.trains_refused == 0 && sent.send_calls > 0 && sent.send_calls < TRAIN as u64;
    // Calls that found nothing count too, so compare with what one call per datagram would take.
    Ok((gso, got.recv_datagrams == TRAIN as u64 && got.recv_calls < TRAIN as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn loopback_takes_what_udp_holds_and_nothing_is_cut() {
        let found = local(LOOPBACK, 5_000).unwrap();
        assert!(found.sizes.iter().any(|size| size.bytes == 5_000 && size.arrived), "{found:?}");
        assert_eq!(found.largest, 65_507);
    }

    #[test]
    fn an_echo_that_is_not_there_is_no_path() {
        let gone = Echo::start(LOOPBACK).unwrap().address();
        let found = probe(LOOPBACK, gone, 1_452).unwrap();
        assert!(found.iter().all(|size| !size.arrived), "{found:?}");
    }

    #[test]
    fn an_echo_is_silent_to_strangers() {
        let echo = Echo::start(LOOPBACK).unwrap();
        let stranger = std::net::UdpSocket::bind((LOOPBACK, 0)).unwrap();
        stranger.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        stranger.send_to(b"anybody there?", echo.address()).unwrap();
        assert!(stranger.recv_from(&mut [0; 64]).is_err());
        stranger.send_to(MARK, echo.address()).unwrap();
        assert_eq!(stranger.recv_from(&mut [0; 64]).unwrap().0, MARK.len());
    }
}
