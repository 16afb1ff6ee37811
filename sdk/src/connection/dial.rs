//! Opens one QUIC connection. Scope: one attempt.
//! Owns: the order in which a host's addresses are tried.
//! Invariants: the first address that completes the handshake wins and the other attempts end; the whole
//! attempt has a deadline. A silent address is begun again every second, since one handshake waits longer and
//! longer between its packets and would notice late that a broker has come back.
//! Not here: authentication and everything after it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use quinn::{ClientConfig, Connection, Endpoint};
use socket2::SockRef;
use tokio::task::JoinSet;

use crate::address::HostPort;
use crate::error::Error;
use crate::limits::{DIAL_AGAIN, DIAL_STAGGER, UDP_BUFFER_BYTES};

/// A finished handshake. The endpoint is this connection's own: its socket and its driver.
pub(crate) struct Dialled {
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: Connection,
}

/// Dials `broker` under the certificate name `server_name`, both address families staggered.
///
/// # Errors
/// [`Error::Unreachable`] with what the last address said, within `timeout` at the latest.
pub(crate) async fn dial(
    broker: &HostPort,
    server_name: &str,
    config: ClientConfig,
    timeout: Duration,
) -> Result<Dialled, Error> {
    let unreachable = |message: String| Error::Unreachable { broker: broker.to_string(), message };
    let race = async {
        let addresses = broker.resolve().await?;
        race(addresses, server_name, config).await.map_err(unreachable)
    };
    match tokio::time::timeout(timeout, race).await {
        Ok(outcome) => outcome,
        Err(_) => Err(unreachable(format!("no handshake within {timeout:?}"))),
    }
}

async fn race(
    addresses: Vec<SocketAddr>,
    server_name: &str,
    config: ClientConfig,
) -> Result<Dialled, String> {
    let ordered = interleave(addresses);
    let mut attempts = JoinSet::new();
    let mut last = String::from("no address");
    for (round, address) in ordered.iter().cycle().enumerate() {
        let all_tried = round >= ordered.len();
        if all_tried && attempts.is_empty() {
            break;
        }
        attempts.spawn(handshake(*address, server_name.to_owned(), config.clone()));
        let more = round + 1 < ordered.len();
        let stagger = if more { DIAL_STAGGER } else { DIAL_AGAIN };
        match tokio::time::timeout(stagger, attempts.join_next()).await {
            Ok(Some(Ok(Ok(dialled)))) => return Ok(dialled),
            Ok(Some(Ok(Err(message)))) => last = message,
            Ok(Some(Err(join))) => last = join.to_string(),
            Ok(None) | Err(_) => {}
        }
    }
    Err(last)
}

async fn handshake(
    address: SocketAddr,
    server_name: String,
    config: ClientConfig,
) -> Result<Dialled, String> {
    let local: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let endpoint = bind(local).map_err(|e| format!("{address}: {e}"))?;
    let connecting =
        endpoint.connect_with(config, address, &server_name).map_err(|e| format!("{address}: {e}"))?;
    let connection = connecting.await.map_err(|e| format!("{address}: {e}"))?;
    Ok(Dialled { endpoint, connection })
}

/// A socket of our own, with room for a burst: a default one loses datagrams as soon as events come at full speed.
fn bind(local: SocketAddr) -> std::io::Result<Endpoint> {
    let socket = std::net::UdpSocket::bind(local)?;
    let buffers = SockRef::from(&socket);
    // As much as the system allows; a refusal costs speed and nothing else.
    let _ = buffers.set_recv_buffer_size(UDP_BUFFER_BYTES);
    let _ = buffers.set_send_buffer_size(UDP_BUFFER_BYTES);
    let runtime = quinn::default_runtime().ok_or_else(|| std::io::Error::other("no async runtime"))?;
    Endpoint::new(quinn::EndpointConfig::default(), None, socket, runtime)
}

/// The families in turn, each in the resolver's order, so one broken family costs one stagger.
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let mut second = second.into_iter();
    let mut ordered = Vec::new();
    for address in first {
        ordered.push(address);
        ordered.extend(second.next());
    }
    ordered.extend(second);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_and_no_address_is_lost() {
        let text = ["[::1]:1", "[::2]:1", "1.1.1.1:1", "1.1.1.2:1", "1.1.1.3:1"];
        let given: Vec<SocketAddr> = text.iter().map(|a| a.parse().unwrap()).collect();
        let ordered: Vec<String> = interleave(given).iter().map(ToString::to_string).collect();
        assert_eq!(ordered, ["[::1]:1", "1.1.1.1:1", "[::2]:1", "1.1.1.2:1", "1.1.1.3:1"]);
        assert_eq!(interleave(Vec::new()), Vec::new());
    }
}
