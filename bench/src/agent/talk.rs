//! What driver and agent say to each other. Scope: one TCP connection.
//! Owns: the messages and their framing: four bytes of length, big-endian, then JSON or raw bytes.
//! Invariants: a length beyond the bound is refused before memory is taken for it; reads and writes have deadlines set by
//! whoever owns the connection.
//! Not here: what is done about a message (`agent`, `campaign::crew`).

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::campaign::result::Outcome;
use crate::preflight::{CpuNoise, Host, SizeProbe};
use crate::shape::Shape;

/// What both sides must speak.
pub const VERSION: u32 = 1;
/// A histogram is far smaller, a question smaller still.
const FRAME_MAX: u32 = 16 << 20;
/// Histograms behind a finished run, in the order of `Histograms::named`.
pub const HISTOGRAMS: usize = 4;

/// From the driver.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// The first message.
    Hello { version: u32, token: String },
    /// The time.
    Clock,
    /// What the machine gives, with datagrams to `echo`.
    Preflight { mtu: u16, spin_ms: u64, echo: SocketAddr },
    /// One load.
    Run(Box<Job>),
}

/// One load of one agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    pub address: SocketAddr,
    pub server_name: String,
    /// Certificates to trust, PEM.
    pub roots: String,
    pub token: String,
    pub tenant: String,
    pub namespace: String,
    pub stream: String,
    pub shape: Shape,
    /// When publishing begins, seconds since 1970 by the agent's clock.
    pub start_unix_s: f64,
}

/// From the agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    Welcome {
        version: u32,
    },
    Clock {
        unix_s: f64,
    },
    Preflight(Box<Found>),
    /// The load ended; its histograms follow.
    Done(Box<Outcome>),
    /// What was asked was not done.
    Failed {
        why: String,
    },
}

/// What an agent's machine gives.
#[derive(Debug, Serialize, Deserialize)]
pub struct Found {
    pub host: Host,
    pub noise: CpuNoise,
    pub path: Vec<SizeProbe>,
}

/// Writes one frame.
///
/// # Errors
/// The connection is gone, or takes nothing in time.
pub fn send_bytes(stream: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= FRAME_MAX);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a frame too long"))?;
    stream.write_all(&[&length.to_be_bytes(), bytes].concat())
}

/// Reads one frame.
///
/// # Errors
/// The connection is gone, gives nothing in time, or names a length beyond the bound.
pub fn receive_bytes(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > FRAME_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes")));
    }
    let mut bytes = Vec::new();
    // Memory grows with what comes, not with what is announced.
    stream.take(u64::from(length)).read_to_end(&mut bytes)?;
    if bytes.len() < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// Writes one message.
///
/// # Errors
/// As `send_bytes`.
pub fn send(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    send_bytes(stream, &serde_json::to_vec(message)?)
}

/// Reads one message.
///
/// # Errors
/// As `receive_bytes`, and when it is no such message.
pub fn receive<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    Ok(serde_json::from_slice(&receive_bytes(stream)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_and_a_cut_one_does_not() {
        let mut wire = Vec::new();
        send(&mut wire, &Ask::Preflight { mtu: 1_452, spin_ms: 3, echo: ([127, 0, 0, 1], 9).into() })
            .unwrap();
        let back: Ask = receive(&mut &wire[..]).unwrap();
        assert!(matches!(back, Ask::Preflight { mtu: 1_452, spin_ms: 3, .. }));
        for end in 0..wire.len() {
            assert!(receive::<Ask>(&mut &wire[..end]).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_anything_is_read() {
        let wire = [&(FRAME_MAX + 1).to_be_bytes()[..], b"x"].concat();
        assert_eq!(receive_bytes(&mut &wire[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let mut taken = Vec::new();
        assert!(send_bytes(&mut taken, &vec![0; FRAME_MAX as usize + 1]).is_err() && taken.is_empty());
    }
}
