//! Where a server listens for the others: which address of the node, which port.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};

use anyhow::{bail, ensure, Context, Result};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use weir_config::settings::Fabric;
use weir_config::{FabricAddress, Ports};

/// Binds the address for other servers. `alone` is of a machine that no other takes part with.
pub fn fabric_listener(fabric: &Fabric, host: &str, alone: bool) -> Result<TcpListener> {
    let address = choose(&fabric.address, host, alone, &interfaces()?)?;
    bind(address, fabric.ports)
}

/// The address that [`fabric_listener`] would take, of a node that is not alone.
pub fn of_this_node(fabric: &Fabric, host: &str) -> Result<IpAddr> {
    choose(&fabric.address, host, false, &interfaces()?)
}

fn bind(address: IpAddr, ports: Ports) -> Result<TcpListener> {
    for port in ports.first..=ports.last {
        match TcpListener::bind(SocketAddr::new(address, port)) {
            Ok(listener) => return Ok(listener),
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(e).with_context(|| format!("listening on {address}:{port}")),
        }
    }
    bail!(
        "all ports {}-{} of {address} are in use (fabric.ports)",
        ports.first,
        ports.last
    )
}

/// An interface that is up, and one of its addresses.
#[derive(Clone, Debug)]
pub struct Interface {
    name: String,
    address: IpAddr,
}

/// The addresses of this node, in the kernel's order.
pub fn interfaces() -> Result<Vec<Interface>> {
    let all = getifaddrs().context("listing the interfaces")?;
    let up = all.filter(|found| found.flags.contains(InterfaceFlags::IFF_UP));
    let known = up.filter_map(|found| {
        let address = found.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let v6 = || address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
        Some(Interface {
            name: found.interface_name,
            address: v4.or_else(v6)?,
        })
    });
    Ok(known.collect())
}

fn choose(wanted: &FabricAddress, host: &str, alone: bool, here: &[Interface]) -> Result<IpAddr> {
    let usable = || here.iter().filter(|found| reachable(found.address));
    match wanted {
        FabricAddress::Auto if alone => Ok(Ipv4Addr::LOCALHOST.into()),
        FabricAddress::Auto => {
            let named = addresses_of(host);
            let of_name = usable().find(|found| named.contains(&found.address));
            // IPv4 first: where both are there, it is the one that clusters have in order.
            let any = || usable().min_by_key(|found| found.address.is_ipv6());
            let found = of_name.or_else(any);
            Ok(found
                .context("this node has no address but loopbacks")?
                .address)
        }
        FabricAddress::Interface(name) => {
            let of_name = usable().filter(|found| found.name == *name);
            let found = of_name.min_by_key(|found| found.address.is_ipv6());
            let names: Vec<&str> = here.iter().map(|found| found.name.as_str()).collect();
            let found = found.with_context(|| {
                format!(
                    "fabric.address: no interface {name} with an address is up; there are {}",
                    names.join(", ")
                )
            });
            Ok(found?.address)
        }
        FabricAddress::Network(network, bits) => {
            let found = here
                .iter()
                .find(|found| within(found.address, *network, *bits));
            let found = found
                .with_context(|| format!("fabric.address: no address here is in {network}/{bits}"));
            Ok(found?.address)
        }
    }
}

/// True if another node could use it: no loopback, and none that needs a scope beside it.
fn reachable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

/// The addresses that a name stands for; none if it cannot be told.
pub fn addresses_of(host: &str) -> Vec<IpAddr> {
    let found = (host, 0).to_socket_addrs().into_iter().flatten();
    found.map(|address| address.ip()).collect()
}

fn within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let differ = match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(n)) => u128::from(a.to_bits() ^ n.to_bits()) << 96,
        (IpAddr::V6(a), IpAddr::V6(n)) => a.to_bits() ^ n.to_bits(),
        _ => return false,
    };
    differ.leading_zeros() >= u32::from(bits)
}

/// True if `host` names this very node: by its own name, short or long, or by an address.
pub fn is_here(host: &str) -> Result<bool> {
    let own = nix::unistd::gethostname().context("gethostname")?;
    let own = own.to_string_lossy().into_owned();
    ensure!(!own.is_empty(), "this node has no host name");
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(interfaces()?.iter().any(|found| found.address == address));
    }
    let one_is_short = !host.contains('.') || !own.contains('.');
    Ok(host == own || host == "localhost" || (one_is_short && short(host) == short(&own)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Vec<Interface> {
        let list = [
            ("lo", "127.0.0.1"),
            ("eth0", "fe80::1"),
            ("eth0", "10.0.0.5"),
            ("ib0", "fd00::5"),
            ("ib0", "10.9.0.5"),
        ];
        let interface = |(name, address): (&str, &str)| Interface {
            name: name.into(),
            address: address.parse().unwrap(),
        };
        list.into_iter().map(interface).collect()
    }

    fn chosen(wanted: &FabricAddress, host: &str) -> String {
        let found = choose(wanted, host, false, &here());
        found.map_or_else(|e| format!("{e:#}"), |address| address.to_string())
    }

    #[test]
    fn the_address_follows_the_setting() {
        assert_eq!(chosen(&FabricAddress::Auto, "10.9.0.5"), "10.9.0.5");
        assert_eq!(chosen(&FabricAddress::Auto, "127.0.0.1"), "10.0.0.5");
        let ib0 = FabricAddress::Interface("ib0".into());
        assert_eq!(chosen(&ib0, "x"), "10.9.0.5");
        let network = FabricAddress::Network("10.9.0.0".parse().unwrap(), 16);
        assert_eq!(chosen(&network, "x"), "10.9.0.5");
        let absent = chosen(&FabricAddress::Interface("hsn0".into()), "x");
        assert!(absent.contains("no interface hsn0"), "{absent}");
        let alone = choose(&FabricAddress::Auto, "x", true, &here()).unwrap();
        assert!(alone.is_loopback());
    }

    #[test]
    fn a_range_of_ports_that_is_used_up_says_so() {
        let first = bind(Ipv4Addr::LOCALHOST.into(), Ports { first: 0, last: 0 }).unwrap();
        let taken = first.local_addr().unwrap().port();
        let ports = Ports {
            first: taken,
            last: taken,
        };
        let error = bind(Ipv4Addr::LOCALHOST.into(), ports).unwrap_err();
        assert!(error.to_string().contains("in use"), "{error}");
    }

    #[test]
    fn this_node_knows_itself() {
        let own = nix::unistd::gethostname().unwrap();
        assert!(is_here(&own.to_string_lossy()).unwrap());
        assert!(is_here("127.0.0.1").unwrap());
        assert!(!is_here("192.0.2.77").unwrap());
        assert!(!is_here("no-such-node").unwrap());
    }
}
