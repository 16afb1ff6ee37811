//! How a client is configured. Scope: until `connect`.
//! Owns: the settings and their defaults.
//! Invariants: a client exists only after one broker accepted the identity.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use crate::address::HostPort;
use crate::client::{Client, Shared, keep_identity_fresh};
use crate::connection::{Deadlines, Identity};
use crate::error::Error;
use crate::tls::{Transport, Trust};
use crate::token::{TokenResult, TokenSource, Tokens};

/// The name a certificate must have unless another is given (client-protocol 1.3).
const DEFAULT_SERVER_NAME: &str = "localhost";

/// Settings of a client. At least a broker, a tenant and a token are needed.
#[must_use = "a builder does nothing until `connect`"]
#[derive(Default)]
pub struct ClientBuilder {
    brokers: Vec<String>,
    trust: Option<Trust>,
    server_name: Option<String>,
    tenant: Option<String>,
    namespace: Option<String>,
    token: Option<TokenSource>,
    deadlines: Deadlines,
}

impl ClientBuilder {
    /// Adds a broker, `host:port`; the first that answers is used, the others when it fails.
    pub fn broker(mut self, address: impl Into<String>) -> Self {
        self.brokers.push(address.into());
        self
    }

    /// Trusts the PEM certificates in this file instead of the system's.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.trust = Some(Trust::File(path.into()));
        self
    }

    /// Trusts these PEM certificates instead of the system's.
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.trust = Some(Trust::Pem(pem.into()));
        self
    }

    /// The name the broker's certificate must have, `localhost` by default. A broker learned by its DNS name is
    /// held to that name.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// The tenant the token is for.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// The namespace of streams that are named without one.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// A token that is used for ever.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(TokenSource::Fixed(token.into().into()));
        self
    }

    /// A token in a file, read again when two thirds of its life have passed and when it was refused.
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token = Some(TokenSource::File(path.into()));
        self
    }

    /// A token from `provider`, asked at the same times as a file is read, once at a time, 30 s per call.
    pub fn token_provider<P, F>(mut self, provider: P) -> Self
    where
        P: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = TokenResult> + Send + 'static,
    {
        self.token = Some(TokenSource::Provider(Arc::new(move || Box::pin(provider()))));
        self
    }

    /// How long the client waits for things.
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.deadlines = deadlines;
        self
    }

    /// Connects to the first broker that answers and accepts the identity. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`Error::Config`] for settings that cannot work, else what the last broker or the token source said.
    pub async fn connect(self) -> Result<Client, Error> {
        if self.brokers.is_empty() {
            return Err(Error::config("no broker is configured"));
        }
        let seeds = self.brokers.iter().map(|text| HostPort::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let tenant = self.tenant.ok_or_else(|| Error::config("no tenant is configured"))?;
        let token = self.token.ok_or_else(|| Error::config("no token is configured"))?;
        let trust = self.trust.unwrap_or(Trust::System);
        let transport = tokio::task::spawn_blocking(move || Transport::new(&trust))
            .await
            .map_err(|e| Error::config(e.to_string()))??;
        let identity = Identity {
            tenant: tenant.into(),
            tokens: Tokens::new(token),
            transport,
            deadlines: self.deadlines,
        };
        let server_name = self.server_name.as_deref().unwrap_or(DEFAULT_SERVER_NAME).into();
        let shared = Shared::new(identity, self.namespace.map(Into::into), server_name, seeds);
        shared.entry().await?;
        tokio::spawn(keep_identity_fresh(Arc::downgrade(&shared)));
        Ok(Client { shared })
    }
}
