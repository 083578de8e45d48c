//! The process's command line: what the platform is, and what goes to the service.

use glass_lib_trace::{LEVELS, LevelFilter, parse_level};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The most threads with tasks, as many as cores of a VM.
pub const CORES_MAX: usize = glass_formats::CORES_MAX;

/// The platform's options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Disks, in order.
    pub disks: Vec<DiskOption>,
    /// The directory whose files the service gets.
    pub share: Option<ShareOption>,
    /// The address that services listen on; `::` stands for every one of IPv6 and IPv4.
    pub bind: IpAddr,
    /// The unix socket that stands for vsock; without it, vsock is that of the host.
    pub vsock: Option<PathBuf>,
    /// Messages of the macros of `tracing` that are printed.
    pub log: LevelFilter,
    /// Cores: threads with tasks.
    pub cores: usize,
    /// The service's own arguments.
    pub service_args: Vec<String>,
}

/// One disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOption {
    /// A file or a block device.
    pub path: PathBuf,
    /// Create a file of this size if there is none.
    pub create_bytes: Option<u64>,
}

/// A directory of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareOption {
    /// Its path.
    pub path: PathBuf,
    /// The service cannot change it.
    pub is_read_only: bool,
}

/// Why the command line is of no use, or a request for its help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionsError {
    /// `--help` was given.
    Help,
    /// There is no such option; service arguments come behind `--`.
    Unknown(String),
    /// The option needs a value.
    NoValue(&'static str),
    /// The option's value is not understood.
    BadValue {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// `--disk-size` came before any `--disk`.
    SizeWithoutDisk,
    /// A service argument is not UTF-8.
    NotText(OsString),
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            OptionsError::Help => write!(f, "help is requested"),
            OptionsError::Unknown(option) => {
                write!(f, "unknown option {option}: --help lists them; the service's own arguments go behind --")
            }
            OptionsError::NoValue(option) => write!(f, "{option} needs a value: --help shows an example"),
            OptionsError::BadValue { option, value, wanted } => write!(f, "{option} {value} is not {wanted}"),
            OptionsError::SizeWithoutDisk => write!(f, "--disk-size belongs behind the --disk that it is about"),
            OptionsError::NotText(value) => write!(f, "argument {} is not UTF-8", value.display()),
        }
    }
}

impl std::error::Error for OptionsError {}

/// What `--help` prints for a service called `name`.
pub(crate) fn help(name: &str) -> String {
    format!(
        "Usage: {name} [OPTIONS] [-- SERVICE ARGUMENTS]

Runs the service {name} as a process of this machine.

Options:
  --disk PATH        a file or block device as the next disk; may be repeated
  --disk-size SIZE   create that disk with this size if it is missing: 1G, 512M, 64K or bytes
  --share PATH[:ro]  a directory whose files the service may use, or only read
  --bind ADDRESS     the address to listen on (default 127.0.0.1, for this machine only; :: is every address of IPv6 and IPv4)
  --vsock PATH       a unix socket that stands for vsock, as VMs have it: a client writes `CONNECT PORT` and a line end
  --log LEVEL        print messages of this level and worse: off, error, warn (default), info, debug or trace
  --cores COUNT      threads that run tasks of the service, if it uses them (default 1, at most {CORES_MAX})
  --help             this text

Example: {name} --disk {name}.img --disk-size 1G --bind :: -- --port 8080
"
    )
}

impl Options {
    /// Reads a command line without its program name.
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Options, OptionsError> {
        let bind = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut options = Options {
            disks: Vec::new(),
            share: None,
            bind,
            vsock: None,
            log: LevelFilter::WARN,
            cores: 1,
            service_args: Vec::new(),
        };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let Some(arg) = arg.to_str() else { return Err(OptionsError::NotText(arg)) };
            // `--option=value` is `--option value`.
            let (option, mut value) = match arg.split_once('=') {
                Some((option, value)) if option.starts_with("--") => (option, Some(OsString::from(value))),
                _ => (arg, None),
            };
            let mut value = |option| value.take().or_else(|| args.next()).ok_or(OptionsError::NoValue(option));
            match option {
                "--help" | "-h" => return Err(OptionsError::Help),
                "--disk" => {
                    options.disks.push(DiskOption { path: value("--disk")?.into(), create_bytes: None });
                }
                "--disk-size" => {
                    let value = text(value("--disk-size")?)?;
                    let wanted = "a size of whole 512-byte sectors, such as 1G, 512M, 64K or a number of bytes";
                    let bytes = parse_bytes(&value).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(512));
                    let Some(bytes) = bytes else {
                        return Err(OptionsError::BadValue { option: "--disk-size", value, wanted });
                    };
                    options.disks.last_mut().ok_or(OptionsError::SizeWithoutDisk)?.create_bytes = Some(bytes);
                }
                "--bind" => {
                    let value = text(value("--bind")?)?;
                    let wanted = "an IP address, such as 127.0.0.1";
                    let Ok(address) = value.parse() else {
                        return Err(OptionsError::BadValue { option: "--bind", value, wanted });
                    };
                    options.bind = address;
                }
                "--share" => options.share = Some(share(value("--share")?)),
                "--vsock" => options.vsock = Some(value("--vsock")?.into()),
                "--log" => {
                    let value = text(value("--log")?)?;
                    let Some(level) = parse_level(&value) else {
                        return Err(OptionsError::BadValue { option: "--log", value, wanted: LEVELS });
                    };
                    options.log = level;
                }
                "--cores" => {
                    let value = text(value("--cores")?)?;
                    let wanted = "a number of threads from 1 to 64";
                    let Some(cores) = value.parse().ok().filter(|cores| (1..=CORES_MAX).contains(cores)) else {
                        return Err(OptionsError::BadValue { option: "--cores", value, wanted });
                    };
                    options.cores = cores;
                }
                "--" => {
                    options.service_args = args.map(text).collect::<Result<_, _>>()?;
                    return Ok(options);
                }
                _ => return Err(OptionsError::Unknown(arg.into())),
            }
        }
        Ok(options)
    }
}

/// `PATH` or `PATH:ro`.
fn share(value: OsString) -> ShareOption {
    match value.as_bytes().strip_suffix(b":ro") {
        Some(path) => ShareOption { path: OsStr::from_bytes(path).into(), is_read_only: true },
        None => ShareOption { path: value.into(), is_read_only: false },
    }
}

fn text(value: OsString) -> Result<String, OptionsError> {
    value.into_string().map_err(OptionsError::NotText)
}

/// A size as people write it: digits, then nothing or one of K, M, G, T, which are powers of 1024.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let shift = match text.as_bytes().last()? {
        b'K' | b'k' => 10,
        b'M' | b'm' => 20,
        b'G' | b'g' => 30,
        b'T' | b't' => 40,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, OptionsError> {
        Options::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn reads_options_and_leaves_the_rest_to_the_service() {
        let options =
            parse("--disk a --disk-size=1G --disk b --bind ::1 --vsock v.sock --log debug -- --disk c -- --help")
                .unwrap();
        assert_eq!((options.log, options.vsock), (LevelFilter::DEBUG, Some("v.sock".into())));
        let disk = |path: &str, create_bytes| DiskOption { path: path.into(), create_bytes };
        assert_eq!(options.disks, [disk("a", Some(1 << 30)), disk("b", None)]);
        assert_eq!(options.bind, "::1".parse::<IpAddr>().unwrap());
        assert_eq!(options.service_args, ["--disk", "c", "--", "--help"]);
        let nothing = parse("").unwrap();
        assert_eq!((nothing.disks.len(), nothing.service_args.len()), (0, 0));
        assert!(nothing.bind.is_loopback(), "a service is reached from outside when its user wants it");
        assert_eq!(nothing.log, LevelFilter::WARN);
    }

    #[test]
    fn says_what_is_wrong_in_one_sentence() {
        for (line, sentence) in [
            ("--port 80", "unknown option --port: --help lists them; the service's own arguments go behind --"),
            ("--disk", "--disk needs a value: --help shows an example"),
            ("--disk-size 1G", "--disk-size belongs behind the --disk that it is about"),
            ("--bind localhost", "--bind localhost is not an IP address, such as 127.0.0.1"),
            ("--cores 0", "--cores 0 is not a number of threads from 1 to 64"),
            ("--log loud", "--log loud is not off, error, warn, info, debug or trace"),
        ] {
            assert_eq!(parse(line).unwrap_err().to_string(), sentence);
        }
        for size in ["0", "100", "1.5G", "-1K", "G", "", "99999999999T", "1GB", "+512"] {
            let error = Options::parse(["--disk", "a", "--disk-size", size].map(OsString::from)).unwrap_err();
            assert!(matches!(error, OptionsError::BadValue { option: "--disk-size", .. }), "{size}: {error}");
        }
        assert_eq!(parse("--disk a --help").unwrap_err(), OptionsError::Help);
    }
}
