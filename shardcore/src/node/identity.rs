//! Who this node says it is: its name, and the addresses it gives to others. Scope: per process, once at start.
//! Invariants: an address given out is never an unspecified one (`0.0.0.0`, `::`) and never has port 0.
//! Not here: registering (`agent`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use felix_wire::control::{Capacity, NodeSpec, RegisterNode};

use super::config::Settings;

/// How the node presents itself once `bound` is its client address.
pub fn registration(settings: &Settings, node_id: &str, bound: SocketAddr) -> RegisterNode {
    let reachable =
        SocketAddr::new(reachable_ip(bound.ip(), settings.controlplane_url.as_deref()), bound.port());
    RegisterNode {
        node_id: node_id.to_owned(),
        spec: NodeSpec {
            advertise_addr: settings.node_advertise_addr.clone().unwrap_or_else(|| reachable.to_string()),
            client_addr: Some(
                settings.client_advertise_addr.clone().unwrap_or_else(|| reachable.to_string()),
            ),
            kafka_addr: None,
            region: settings.region_id.clone(),
            zone: settings.node_zone.clone(),
            labels: std::collections::BTreeMap::new(),
            capacity: Capacity::default(),
        },
        features: Vec::new(),
    }
}

/// A bound address as others on this machine reach it, for the ready file.
pub fn local_address(bound: SocketAddr) -> SocketAddr {
    if bound.ip().is_unspecified() { SocketAddr::from((Ipv4Addr::LOCALHOST, bound.port())) } else { bound }
}

/// `ip` itself, or, when it stands for all addresses, the one that packets to the control plane leave from.
fn reachable_ip(ip: IpAddr, controlplane_url: Option<&str>) -> IpAddr {
    if !ip.is_unspecified() {
        return ip;
    }
    controlplane_url.and_then(source_ip_towards).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The source address of the route to the host of `url`; no packet is sent.
fn source_ip_towards(url: &str) -> Option<IpAddr> {
    let url = reqwest::Url::parse(url).ok()?;
    let host = url.host_str()?.trim_start_matches('[').trim_end_matches(']');
    let port = url.port_or_known_default()?;
    (host, port).to_socket_addrs().ok()?.find_map(|target| {
        let any: IpAddr = if target.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(target).ok()?;
        socket.local_addr().ok().map(|addr| addr.ip()).filter(|ip| !ip.is_unspecified())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { controlplane_url: Some("http://127.0.0.1:8443".to_owned()), ..Settings::default() }
    }

    #[test]
    fn all_addresses_become_the_one_that_the_control_plane_sees() {
        let node = registration(&settings(), "n", "[::]:5000".parse().unwrap());
        assert_eq!(node.spec.client_addr.as_deref(), Some("127.0.0.1:5000"));
        assert_eq!(node.spec.advertise_addr, "127.0.0.1:5000");
    }

    #[test]
    fn configured_addresses_win_and_a_bound_one_stands() {
        let asked = Settings { client_advertise_addr: Some("felix.example:5000".to_owned()), ..settings() };
        let node = registration(&asked, "n", "10.1.2.3:5001".parse().unwrap());
        assert_eq!(node.spec.client_addr.as_deref(), Some("felix.example:5000"));
        assert_eq!(node.spec.advertise_addr, "10.1.2.3:5001");
    }

    #[test]
    fn the_ready_file_never_names_an_unspecified_address() {
        assert_eq!(local_address("[::]:7".parse().unwrap()).to_string(), "127.0.0.1:7");
        assert_eq!(local_address("[::1]:7".parse().unwrap()).to_string(), "[::1]:7");
    }
}
