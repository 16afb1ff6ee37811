//! Broker addresses as people write them and as brokers announce them. Scope: none, a value.
//! Owns: the `host:port` syntax.
//! Invariants: the host is a name, an IPv4 address, or an IPv6 address without its brackets; the port is not 0.
//! Not here: dialling.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::error::Error;

/// `host:port`, with an IPv6 host in brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct HostPort {
    host: Arc<str>,
    port: u16,
}

impl HostPort {
    /// # Errors
    /// [`Error::Config`] when the text is not `host:port`.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let wrong = || Error::config(format!("{text:?} is not host:port"));
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or_else(wrong)?,
            None if host.contains(':') => return Err(wrong()),
            None => host,
        };
        let port: u16 = port.parse().map_err(|_| wrong())?;
        if host.is_empty() || port == 0 {
            return Err(wrong());
        }
        Ok(Self { host: host.into(), port })
    }

    /// The host when it is a name and not an address: what its certificate must be for (client-protocol 1.3).
    pub(crate) fn dns_name(&self) -> Option<&str> {
        self.host.parse::<IpAddr>().is_err().then_some(&*self.host)
    }

    /// Every address the host has now.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when the name does not resolve.
    pub(crate) async fn resolve(&self) -> Result<Vec<SocketAddr>, Error> {
        let failed = |message: String| Error::Unreachable { broker: self.to_string(), message };
        let found: Vec<SocketAddr> = tokio::net::lookup_host((&*self.host, self.port))
            .await
            .map_err(|e| failed(e.to_string()))?
            .collect();
        if found.is_empty() {
            return Err(failed("the name has no address".to_owned()));
        }
        Ok(found)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_they_were_written() {
        for text in ["localhost:7000", "10.0.0.1:1", "[::1]:65535", "broker-0.example:443"] {
            assert_eq!(HostPort::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(HostPort::parse("[::1]:9").unwrap().dns_name(), None);
        assert_eq!(HostPort::parse("a.b:9").unwrap().dns_name(), Some("a.b"));
    }

    #[test]
    fn anything_but_host_and_port_is_refused() {
        for text in ["", "host", ":1", "host:", "host:0", "host:70000", "::1:5", "[::1:5", "host:x", "[]:1"] {
            assert!(HostPort::parse(text).is_err(), "{text}");
        }
    }
}
