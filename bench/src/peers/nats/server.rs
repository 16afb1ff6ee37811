//! A NATS server of our own. Scope: one process.
//! Owns: the process; it is ended when dropped.
//! Invariants: it listens on loopback on a port it chose and keeps its files in the folder it was given.
//! Not here: loading it (`load`).

use std::ffi::OsString;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::cluster::Process;
use crate::peers::PeerError;
use crate::peers::programs::{self, NATS_SERVER};

/// From start to the first word of the server.
const READY_DEADLINE: Duration = Duration::from_secs(20);
/// For one look at a server that is starting.
const LOOK_DEADLINE: Duration = Duration::from_millis(500);

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// It is passed on.
    Nothing,
    /// JetStream keeps it in memory.
    Memory,
    /// JetStream writes it to a file and syncs every two minutes, its default.
    File,
    /// JetStream writes it to a file and syncs each time.
    FileAlways,
}

/// See the module.
#[derive(Debug)]
pub struct NatsServer {
    process: Process,
    address: SocketAddr,
}

impl NatsServer {
    /// Starts one on `cpu` with its files in `folder` and waits until it speaks.
    ///
    /// # Errors
    /// There is no `nats-server`, or it did not speak within 20 seconds; nothing is left running then.
    pub fn start(keeps: Keeps, cpu: usize, folder: &Path) -> Result<NatsServer, PeerError> {
        let file = folder.join("nats.conf");
        std::fs::write(&file, configuration(keeps, folder))
            .map_err(|error| PeerError::Folder { dir: folder.to_owned(), error })?;
        let mut process = programs::start(NATS_SERVER, &[OsString::from("-c"), file.into()], cpu, folder)?;
        let ports = folder.join(format!("nats-server_{}.ports", process.id()));
        let address = process.wait_for("no file with its port", READY_DEADLINE, || {
            let address = client_address(&std::fs::read_to_string(&ports).ok()?)?;
            speaks(address).then_some(address)
        })?;
        Ok(NatsServer { process, address })
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

fn configuration(keeps: Keeps, folder: &Path) -> String {
    let quoted = |path: &Path| serde_json::Value::from(path.to_string_lossy()).to_string();
    let mut text = format!("listen: \"127.0.0.1:-1\"\nports_file_dir: {}\n", quoted(folder));
    if keeps != Keeps::Nothing {
        let sync = if keeps == Keeps::FileAlways { "  sync_interval: always\n" } else { "" };
        let store = quoted(&folder.join("jetstream"));
        text.push_str(&format!(
            "jetstream {{\n  store_dir: {store}\n  max_memory_store: 1GB\n  max_file_store: 64GB\n{sync}}}\n"
        ));
    }
    text
}

/// The first address for clients in a file of ports.
fn client_address(text: &str) -> Option<SocketAddr> {
    let ports: serde_json::Value = serde_json::from_str(text).ok()?;
    ports.get("nats")?.as_array()?.iter().find_map(|url| url.as_str()?.strip_prefix("nats://")?.parse().ok())
}

/// Whether a server at `address` begins as NATS does.
fn speaks(address: SocketAddr) -> bool {
    let mut word = [0; 5];
    let read = TcpStream::connect_timeout(&address, LOOK_DEADLINE).and_then(|mut socket| {
        socket.set_read_timeout(Some(LOOK_DEADLINE))?;
        socket.read_exact(&mut word)
    });
    read.is_ok() && &word == b"INFO "
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_says_what_is_kept_and_when_it_is_synced() {
        let folder = Path::new("/data/a \"b\"");
        let nothing = configuration(Keeps::Nothing, folder);
        assert!(nothing.contains(r#"ports_file_dir: "/data/a \"b\"""#) && !nothing.contains("jetstream"));
        assert!(!configuration(Keeps::File, folder).contains("sync_interval"));
        assert!(configuration(Keeps::FileAlways, folder).contains("sync_interval: always"));
    }

    #[test]
    fn the_address_for_clients_is_read_from_the_file_of_ports() {
        let text =
            r#"{"nats":["nats://127.0.0.1:41233","nats://[::1]:4"],"monitoring":["http://127.0.0.1:1"]}"#;
        assert_eq!(client_address(text), Some("127.0.0.1:41233".parse().unwrap()));
        for bad in ["", "{", "[]", "{}", r#"{"nats":7}"#, r#"{"nats":["tls://a"]}"#] {
            assert_eq!(client_address(bad), None, "{bad}");
        }
    }
}
