//! The service's arguments.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use glasshouse::Port;

/// What the arguments say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where to listen, by default TCP port 8080.
    pub ports: Vec<Port>,
}

/// Invalid arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    argument: String,
    what: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {} (arguments: [--port PORT]...)", self.argument, self.what)
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// Reads `--port PORT`: `8080`, or `vsock:80`; several times for several.
    pub fn from_args(args: &[String]) -> Result<Config, ConfigError> {
        let mut ports = Vec::new();
        let mut rest = args.iter().map(String::as_str);
        while let Some(argument) = rest.next() {
            let error = |what| ConfigError { argument: String::from(argument), what };
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (argument, None),
            };
            if name != "--port" {
                return Err(error("there is no such argument"));
            }
            let port = value.or_else(|| rest.next()).and_then(|value| value.parse().ok());
            ports.push(port.ok_or(error("a number from 0 to 65535, or vsock: and a number, must follow"))?);
        }
        if ports.is_empty() {
            ports.push(Port::Tcp(8080));
        }
        Ok(Config { ports })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Vec<Port>, ConfigError> {
        let args: Vec<String> = args.iter().map(|arg| String::from(*arg)).collect();
        Config::from_args(&args).map(|config| config.ports)
    }

    #[test]
    fn ports_are_read_or_refused() {
        assert_eq!(parse(&[]), Ok(vec![Port::Tcp(8080)]));
        assert_eq!(parse(&["--port", "80", "--port=vsock:80"]), Ok(vec![Port::Tcp(80), Port::Vsock(80)]));
        for bad in [&["--port"][..], &["--port", "x"], &["--prot", "1"], &["80"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
