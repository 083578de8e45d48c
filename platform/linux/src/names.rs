//! Host names, by the host's resolver: its calls block, so threads make them.

use crate::requests::Device;
use crate::workers::Workers;
use glass_api::{NetError, check_host_name};
use glass_lib_trace::Operation;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};

/// Resolves names.
pub(crate) struct Names {
    device: Device,
    workers: Workers,
}

impl Names {
    pub(crate) fn new() -> Names {
        Names { device: Device::new("names"), workers: Workers::new("names") }
    }

    /// The addresses of `name`, each once, in the order of the host's preference.
    pub(crate) async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        if let Ok(address) = name.parse() {
            return Ok(vec![address]);
        }
        check_host_name(name)?;
        let request = self.device.request(Operation::Other, name.len());
        let (name, ending) = (name.to_owned(), request.clone());
        let lookup = move || {
            let answer = addresses(&name);
            ending.completed(answer.is_err());
            answer
        };
        self.workers.run(request, lookup).await
    }
}

fn addresses(name: &str) -> Result<Vec<IpAddr>, NetError> {
    let found = (name, 0).to_socket_addrs().map_err(|error: io::Error| match error.raw_os_error() {
        Some(errno) => NetError::Host(errno),
        // The resolver's errors have no number; that no server answers is one of them.
        None => NetError::NoSuchName,
    })?;
    let mut addresses = Vec::new();
    for address in found.map(|address| address.ip()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err(NetError::NoSuchName) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_file_is_a_source_of_names() {
        let local = addresses("localhost").unwrap();
        assert!(local.iter().all(IpAddr::is_loopback), "{local:?}");
        let mut unique = local.clone();
        unique.dedup();
        assert_eq!(unique, local);
        // A name that may not exist (RFC 6761).
        assert!(addresses("glass.invalid").is_err());
    }
}
