//! Where the engine is: `nats://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]].../NAME[?OPTION&...]`.

use std::fmt;
use std::time::Duration;

/// The port of NATS servers.
const PORT: u16 = 4222;
/// Replicas of a stream that servers support.
const REPLICAS_MAX: usize = 5;
/// By default; the service ends uploads without progress much earlier.
const INTERRUPTED: Duration = Duration::from_secs(60 * 60);
/// Bytes of a name of a queue.
const NAME_BYTES_MAX: usize = 64;

/// The servers of an engine, and the queue in it.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// Hosts and ports.
    pub servers: Vec<(String, u16)>,
    /// A user and a password.
    pub login: Option<(String, String)>,
    /// The queue. Its streams have names that start with it.
    pub name: String,
    /// Replicas of streams that are created.
    pub replicas: usize,
    /// The port of the first server's monitoring, where its configuration can be seen.
    pub monitor: Option<u16>,
    /// How old the newest data of an upload is that was interrupted: it is removed then.
    pub interrupted: Duration,
}

/// Why a text is no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressError(&'static str);

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl std::error::Error for AddressError {}

/// Without the password.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Without user and password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let servers: Vec<_> = self.servers.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        write!(f, "nats://{}/{}", servers.join(","), self.name)
    }
}

impl Address {
    /// Reads an address.
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        let rest = text.strip_prefix("nats://").ok_or(AddressError(
            "an engine is nats://HOST:PORT/NAME; another kind, such as TLS to the engine, is not supported",
        ))?;
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => {
                let (user, password) =
                    login.split_once(':').ok_or(AddressError("what is before @ is USER:PASSWORD"))?;
                (Some((user.to_owned(), password.to_owned())), rest)
            }
            None => (None, rest),
        };
        let (servers, rest) =
            rest.split_once('/').ok_or(AddressError("the name of the queue is missing: nats://HOST:PORT/NAME"))?;
        let (name, query) = rest.split_once('?').map_or((rest, None), |(name, query)| (name, Some(query)));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_name) {
            return Err(AddressError("the name of the queue has letters, digits, - and _, and 64 characters at most"));
        }
        let servers = servers.split(',').map(server).collect::<Option<Vec<_>>>();
        let servers =
            servers.ok_or(AddressError("a server is HOST or HOST:PORT; an address of IPv6 is in brackets"))?;
        let name = name.to_owned();
        let mut address = Address { servers, login, name, replicas: 1, monitor: None, interrupted: INTERRUPTED };
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("replicas", value)) => {
                    let replicas = value.parse().ok().filter(|replicas| (1..=REPLICAS_MAX).contains(replicas));
                    address.replicas = replicas.ok_or(AddressError("replicas is a number from 1 to 5"))?;
                }
                Some(("monitor", value)) => {
                    let port = value.parse().ok().filter(|port| *port > 0);
                    address.monitor = Some(port.ok_or(AddressError("monitor is the port of the server's monitoring"))?);
                }
                Some(("interrupted", value)) => {
                    let secs = value.parse().ok().filter(|secs| *secs > 0);
                    let secs = secs.ok_or(AddressError("interrupted is a number of seconds"))?;
                    address.interrupted = Duration::from_secs(secs);
                }
                _ => {
                    let text =
                        "after ? there may be replicas=NUMBER, monitor=PORT and interrupted=SECONDS, with & between";
                    return Err(AddressError(text));
                }
            }
        }
        Ok(address)
    }
}

fn server(text: &str) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (format!("[{host}]"), if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (text.to_owned(), None),
        },
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_host) {
        return None;
    }
    let port = match port {
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse().ok().filter(|port| *port > 0)?,
        Some(_) => return None,
        None => PORT,
    };
    Some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_servers_and_a_name() {
        let address = Address::parse("nats://one:4223,[::1],two/jobs?replicas=3&monitor=8222").unwrap();
        assert_eq!(address.servers, [("one".into(), 4223), ("[::1]".into(), 4222), ("two".into(), 4222)]);
        assert_eq!((&*address.name, address.replicas, address.monitor, &address.login), ("jobs", 3, Some(8222), &None));
        let address = Address::parse("nats://u:p@ss@host/q").unwrap();
        assert_eq!(address.login, Some(("u".into(), "p@ss".into())));
        assert_eq!(
            (format!("{address}"), format!("{address:?}")),
            ("nats://host:4222/q".into(), "nats://host:4222/q".into())
        );
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for bad in [
            "",
            "nats:",
            "tls://host/q",
            "nats://host",
            "nats://host/",
            "nats:///q",
            "nats://host:0/q",
            "nats://host:x/q",
            "nats://host:+1/q",
            "nats://user@host/q",
            "nats://host/a.b",
            "nats://host/q?replicas=0",
            "nats://host/q?replicas=6",
            "nats://host/q?x=1",
            "nats://host/q?monitor=0",
            "nats://host/q?interrupted=0",
            "nats://a,,b/q",
            "nats://[::1/q",
        ] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }
}
