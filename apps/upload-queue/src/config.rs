//! The service's arguments.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use glasshouse::Port;

/// What the arguments say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where to listen, by default TCP port 8080.
    pub ports: Vec<Port>,
    /// Longest item that is accepted, by default the disk's capacity.
    pub item_bytes_max: Option<u64>,
    /// Erase the disk and start with an empty queue.
    pub format: bool,
    /// Give the space of removed items back to the host.
    pub discard: bool,
    /// A DELETE without If-Match removes the item that its connection received last. This assumes that each connection has one client:
    /// behind a proxy that shares its connections among clients, one client removes what another one received.
    pub delete_by_connection: bool,
}

/// Invalid arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    argument: String,
    what: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "{}: {} (arguments: [--port PORT]... [--max-item-bytes NUMBER] [--format] [--discard] [--delete-by-connection])",
            self.argument, self.what
        )
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// Reads `--port PORT` (`8080`, `vsock:80`; several times for several), `--max-item-bytes NUMBER`, `--format`, `--discard` and
    /// `--delete-by-connection`; a value may also follow its name and `=`.
    pub fn from_args(args: &[String]) -> Result<Config, ConfigError> {
        let mut config = Config {
            ports: Vec::new(),
            item_bytes_max: None,
            format: false,
            discard: false,
            delete_by_connection: false,
        };
        let mut rest = args.iter().map(String::as_str);
        while let Some(argument) = rest.next() {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (argument, None),
            };
            let error = |what| ConfigError { argument: String::from(argument), what };
            match name {
                "--port" => {
                    let port = value.or_else(|| rest.next()).and_then(|value| value.parse().ok());
                    let what = "a number from 0 to 65535, or vsock: and a number, must follow";
                    config.ports.push(port.ok_or(error(what))?);
                }
                "--max-item-bytes" => {
                    let value = value.or_else(|| rest.next()).and_then(number);
                    config.item_bytes_max = Some(value.ok_or(error("a number of bytes must follow"))?);
                }
                "--format" if value.is_none() => config.format = true,
                "--discard" if value.is_none() => config.discard = true,
                "--delete-by-connection" if value.is_none() => config.delete_by_connection = true,
                _ => return Err(error("there is no such argument")),
            }
        }
        if config.ports.is_empty() {
            config.ports = vec![Port::Tcp(8080)];
        }
        Ok(config)
    }
}

/// Digits and nothing else: `parse` would accept a plus sign.
pub(crate) fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn parse(args: &[&str]) -> Result<Config, String> {
        let args: Vec<String> = args.iter().map(|arg| arg.to_string()).collect();
        Config::from_args(&args).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_are_read_or_refused_by_name() {
        let default = Config {
            ports: vec![Port::Tcp(8080)],
            item_bytes_max: None,
            format: false,
            discard: false,
            delete_by_connection: false,
        };
        assert_eq!(parse(&[]), Ok(default));
        let ports = vec![Port::Tcp(0), Port::Vsock(80)];
        let all = Config { ports, item_bytes_max: Some(7), format: true, discard: true, delete_by_connection: true };
        let words = ["--port", "0", "--port=vsock:80", "--max-item-bytes=7", "--format", "--discard"];
        assert_eq!(parse(&[&words[..], &["--delete-by-connection"]].concat()), Ok(all));
        for bad in [&["--port"][..], &["--port", "65536"], &["--port=+1"], &["--port="]] {
            assert!(parse(bad).unwrap_err().contains("must follow"), "{bad:?}");
        }
        for bad in ["", "-1", "+1", "1k", "99999999999999999999"] {
            assert!(
                parse(&["--max-item-bytes", bad]).unwrap_err().contains("a number of bytes must follow"),
                "{bad:?}"
            );
        }
        for bad in ["--prot", "--format=yes", "", "8080"] {
            assert!(parse(&[bad]).unwrap_err().contains("no such argument"), "{bad:?}");
        }
    }
}
