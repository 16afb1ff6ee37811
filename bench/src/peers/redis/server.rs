//! A Redis server of our own. Scope: one process.
//! Owns: the process; it is ended when dropped.
//! Invariants: it listens on loopback, keeps its files in the folder it was given, makes no snapshots and rewrites no
//! append-only file while it is measured.
//! Not here: loading it (`load`, `benchmark`).

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use super::replies::{Replies, Reply};
use crate::cluster::Process;
use crate::peers::PeerError;
use crate::peers::programs::{self, REDIS_SERVER};

/// From start to the first answer.
const READY_DEADLINE: Duration = Duration::from_secs(20);
/// For one answer of a server that is starting.
const PING_DEADLINE: Duration = Duration::from_millis(500);

/// When a command is in the append-only file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aof {
    /// There is none.
    Off,
    /// Written before the answer, synced every second.
    Everysec,
    /// Synced before the answer.
    Always,
}

/// See the module.
#[derive(Debug)]
pub struct RedisServer {
    process: Process,
    address: SocketAddr,
}

impl RedisServer {
    /// Starts one on `cpu` with its files in `folder` and waits until it answers.
    ///
    /// # Errors
    /// There is no `redis-server`, or it did not answer within 20 seconds; nothing is left running then.
    pub fn start(aof: Aof, cpu: usize, folder: &Path) -> Result<RedisServer, PeerError> {
        let address = programs::free_port()?;
        let (append, fsync) = match aof {
            Aof::Off => ("no", "everysec"),
            Aof::Everysec => ("yes", "everysec"),
            Aof::Always => ("yes", "always"),
        };
        let port = address.port().to_string();
        let args = [
            ["--bind", "127.0.0.1"],
            ["--port", &port],
            ["--save", ""],
            ["--appendonly", append],
            ["--appendfsync", fsync],
            ["--auto-aof-rewrite-percentage", "0"],
            ["--daemonize", "no"],
        ];
        let mut args: Vec<OsString> = args.into_iter().flatten().map(OsString::from).collect();
        args.extend([OsString::from("--dir"), folder.into()]);
        let mut process = programs::start(REDIS_SERVER, &args, cpu, folder)?;
        process.wait_for("no answer to PING", READY_DEADLINE, || ping(address))?;
        Ok(RedisServer { process, address })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

/// Whether a server at `address` is up and has read its files.
fn ping(address: SocketAddr) -> Option<()> {
    let mut socket = TcpStream::connect_timeout(&address, PING_DEADLINE).ok()?;
    socket.set_read_timeout(Some(PING_DEADLINE)).ok()?;
    socket.write_all(b"PING\r\n").ok()?;
    let mut buffer = [0; 64];
    let count = socket.read(&mut buffer).ok()?;
    let reply = Replies::default().next(&mut buffer.get(..count)?).ok()??;
    (reply == Reply::Status("PONG".to_owned())).then_some(())
}
