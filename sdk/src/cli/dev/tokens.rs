//! The tokens of a development cluster: for people's commands, for brokers' clients, and for the broker itself.
//! Scope: per `felix dev`.
//! Owns: what each may, and when the files are rewritten.
//! Invariants: a file holds a valid token as long as the control plane can be reached; rewriting starts at two thirds
//! of the life and is tried again until it works.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use felix_wire::control::{Audience, DevTokenRequest};

use super::folder::Folder;
use super::{NODE_ID, TENANT};
use crate::cli::api::Api;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::nouns::token::mint;
use crate::cli::private_file;

/// After a failed renewal.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait between two looks at the clock, which may be set, or have stood still.
const LOOK_PAUSE: Duration = Duration::from_secs(5);

/// The files, and when they are due.
#[derive(Clone, Debug)]
pub struct Tokens {
    pub broker_file: PathBuf,
    pub controlplane_file: PathBuf,
    pub node_file: PathBuf,
    ttl: Duration,
    due: SystemTime,
}

impl Tokens {
    /// Nothing is written yet.
    pub fn new(folder: &Folder, ttl: Duration) -> Tokens {
        Tokens {
            broker_file: folder.token_file("broker.token"),
            controlplane_file: folder.token_file("controlplane.token"),
            node_file: folder.token_file("node.token"),
            ttl,
            due: SystemTime::now(),
        }
    }

    /// How long to wait before [`Tokens::is_due`] is asked again.
    pub fn pause(&self) -> Duration {
        self.due.duration_since(SystemTime::now()).unwrap_or_default().min(LOOK_PAUSE)
    }

    pub fn is_due(&self) -> bool {
        self.due <= SystemTime::now()
    }

    /// Mints and writes all of them; on failure they are due again soon. Blocks.
    ///
    /// # Errors
    /// What the control plane or the disk said.
    pub fn renew(&mut self, bootstrap: &Api) -> Outcome {
        let asked = SystemTime::now();
        let written = self.write_all(bootstrap);
        self.due = match written {
            Ok(()) => asked + self.ttl / 3 * 2,
            Err(_) => asked + RETRY_PAUSE,
        };
        written
    }

    fn write_all(&self, bootstrap: &Api) -> Outcome {
        let own = |action: &str, rest: &str| format!("{action}:{TENANT}/{rest}");
        let broker = vec![
            own("stream.publish:stream", "*/*"),
            own("stream.subscribe:stream", "*/*"),
            own("stream.manage:stream", "*/*"),
            own("cache.read:cache", "*/*"),
            own("cache.write:cache", "*/*"),
        ];
        let controlplane = vec![
            format!("tenant.manage:tenant:{TENANT}"),
            "tenant.manage:cluster:*".to_owned(),
            "node.view:cluster:*".to_owned(),
            "node.manage:cluster:*".to_owned(),
        ];
        let node = vec![format!("node.manage:node:{NODE_ID}"), "node.view:cluster:*".to_owned()];
        for (file, principal, permissions, audience) in [
            (&self.broker_file, "developer", broker, Audience::Broker),
            (&self.controlplane_file, "developer", controlplane, Audience::ControlPlane),
            (&self.node_file, NODE_ID, node, Audience::ControlPlane),
        ] {
            let request = DevTokenRequest {
                principal: principal.to_owned(),
                permissions,
                ttl_seconds: Some(self.ttl.as_secs()),
                audience,
            };
            let answer = mint(bootstrap, TENANT, &request)?;
            private_file::write(file, answer.felix_token.as_bytes())
                .map_err(|error| Failure::other(format!("{}: {error}", file.display())))?;
        }
        Ok(())
    }
}
