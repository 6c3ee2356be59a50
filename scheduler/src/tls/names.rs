//! By which names and addresses a replica can be reached.

use nix::net::if_::InterfaceFlags;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// Beyond this a host has interfaces of containers, which nobody connects to from outside.
const ADDRESSES_MAX: usize = 100;

/// For the certificate: names that were given, those of this machine, and its addresses.
pub fn all(given: &[String], listen: SocketAddr) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = given.iter().cloned().collect();
    names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    names.extend(host_name());
    if !listen.ip().is_unspecified() {
        names.insert(listen.ip().to_string());
    }
    names.extend(addresses().iter().map(IpAddr::to_string));
    names
}

/// For somebody on another machine, the likeliest first. Empty where only this machine reaches it.
pub fn outward(given: &[String], listen: SocketAddr) -> Vec<String> {
    if listen.ip().is_loopback() {
        return Vec::new();
    }
    let mut names = given.to_vec();
    if listen.ip().is_unspecified() {
        names.extend(addresses().iter().map(IpAddr::to_string));
        names.extend(host_name());
    } else {
        names.push(listen.ip().to_string());
    }
    names
}

fn host_name() -> Option<String> {
    let name = nix::unistd::gethostname().ok()?.into_string().ok()?;
    (name.is_ascii() && !name.is_empty()).then_some(name)
}

/// Of interfaces that are up, IPv4 first; none that means another machine on each machine.
fn addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else {
        return Vec::new();
    };
    let mut found: Vec<IpAddr> = interfaces
        .filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP))
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        .filter(|ip| match ip {
            IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local() && !v4.is_unspecified(),
            IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local() && !v6.is_unspecified(),
        })
        .take(ADDRESSES_MAX)
        .collect();
    found.sort_by_key(IpAddr::is_ipv6);
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_address_is_not_offered_to_others() {
        let given = ["systole.example.org".to_owned()];
        assert!(outward(&given, "127.0.0.1:1".parse().expect("valid")).is_empty());
        assert_eq!(
            outward(&given, "10.0.0.5:1".parse().expect("valid")),
            ["systole.example.org", "10.0.0.5"]
        );
        let all = all(&given, "10.0.0.5:1".parse().expect("valid"));
        for name in ["systole.example.org", "10.0.0.5", "127.0.0.1", "::1", "localhost"] {
            assert!(all.contains(name), "{name}");
        }
    }
}
