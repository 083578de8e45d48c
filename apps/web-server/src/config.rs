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
    /// Where to answer with metrics; nowhere without it.
    pub metrics: Option<Port>,
    /// The files are those of the FAT file system on the first disk.
    pub on_disk: bool,
    /// Answer a directory without `index.html` with a page of its entries.
    pub lists: bool,
    /// Memory for files, in bytes; 0 keeps none.
    pub cache_bytes: u64,
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
            "{}: {} (arguments: [--port PORT]... [--metrics PORT] [--disk] [--list] [--cache SIZE])",
            self.argument, self.what
        )
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// Reads `--port PORT` (`8080`, or `vsock:80`; several times for several), `--metrics PORT`, `--disk`, `--list` and `--cache SIZE` (bytes, or with `K`,
    /// `M` or `G` behind the number).
    pub fn from_args(args: &[String]) -> Result<Config, ConfigError> {
        let mut config = Config { ports: Vec::new(), metrics: None, on_disk: false, lists: false, cache_bytes: 0 };
        let mut rest = args.iter().map(String::as_str);
        while let Some(argument) = rest.next() {
            let error = |what| ConfigError { argument: String::from(argument), what };
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (argument, None),
            };
            match name {
                "--port" | "--metrics" => {
                    let port = value.or_else(|| rest.next()).and_then(|value| value.parse().ok());
                    let what = "a number from 0 to 65535, or vsock: and a number, must follow";
                    let port = port.ok_or(error(what))?;
                    match name {
                        "--port" => config.ports.push(port),
                        _ => config.metrics = Some(port),
                    }
                }
                "--cache" => {
                    let size = value.or_else(|| rest.next()).and_then(size);
                    config.cache_bytes = size.ok_or(error("a size such as 8M must follow"))?;
                }
                "--disk" if value.is_none() => config.on_disk = true,
                "--list" if value.is_none() => config.lists = true,
                _ => return Err(error("there is no such argument")),
            }
        }
        if config.ports.is_empty() {
            config.ports.push(Port::Tcp(8080));
        }
        Ok(config)
    }
}

/// A number of bytes, KiB, MiB or GiB.
fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    // `parse` would accept a plus sign.
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn parse(args: &[&str]) -> Result<Config, ConfigError> {
        let args: Vec<String> = args.iter().map(|arg| String::from(*arg)).collect();
        Config::from_args(&args)
    }

    #[test]
    fn arguments_are_read_or_refused() {
        let default =
            Config { ports: vec![Port::Tcp(8080)], metrics: None, on_disk: false, lists: false, cache_bytes: 0 };
        assert_eq!(parse(&[]), Ok(default.clone()));
        let ports = vec![Port::Tcp(80), Port::Vsock(80)];
        assert_eq!(parse(&["--port", "80", "--port=vsock:80"]), Ok(Config { ports, ..default.clone() }));
        let metrics = Some(Port::Tcp(9100));
        assert_eq!(parse(&["--metrics", "9100"]), Ok(Config { metrics, ..default.clone() }));
        assert_eq!(parse(&["--disk"]), Ok(Config { on_disk: true, ..default.clone() }));
        assert_eq!(parse(&["--list"]), Ok(Config { lists: true, ..default.clone() }));
        for (text, cache_bytes) in [("0", 0), ("1000", 1000), ("2K", 2048), ("8M", 8 << 20), ("1G", 1 << 30)] {
            assert_eq!(parse(&["--cache", text]), Ok(Config { cache_bytes, ..default.clone() }));
        }
        let sizes = ["", "M", "x", "-1", "+1", "1T", "1.5M", "99999999999G", "8m", "\u{fc}"];
        for bad in
            [&["--port"][..], &["--port", "x"], &["--prot", "1"], &["80"], &["--list=1"], &["--disk=a"], &["--cache"]]
        {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        for size in sizes {
            let error = parse(&["--cache", size]).unwrap_err().to_string();
            assert!(error.starts_with("--cache: a size such as 8M must follow"), "{size}: {error}");
        }
    }
}
