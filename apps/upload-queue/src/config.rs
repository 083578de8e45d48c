//! The service's settings: arguments, and a file with the same names.
//!
//! A file has `KEY = VALUE` on each line, where KEY is an argument without its dashes and VALUE a string in double quotes, a number, `true`,
//! `false`, or a list of strings and numbers in brackets: a part of TOML. Arguments count more than the file.

use crate::limits::{ORIGINS_MAX, SCRUB_DAYS_MAX, TRIES};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use glasshouse::Port;

/// Bytes of the file at most.
pub(crate) const FILE_BYTES_MAX: u64 = 64 << 10;

/// The settings of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where to listen, by default TCP port 8080.
    pub ports: Vec<Port>,
    /// Longest item that is accepted, by default the disk's capacity.
    pub item_bytes_max: Option<u64>,
    /// Erase the disk and start with an empty queue.
    pub format: bool,
    /// Take all of a disk that has become larger.
    pub grow: bool,
    /// Give the space of removed items back to the host.
    pub discard: bool,
    /// All items that wait are read and compared with their checksums once in so many days; 0 is never.
    pub scrub_days: u64,
    /// A DELETE without If-Match removes the item that its connection received last. This assumes that each connection has one client:
    /// behind a proxy that shares its connections among clients, one client removes what another one received.
    pub delete_by_connection: bool,
    /// The engine that has the items, instead of a disk: `nats://HOST:PORT/NAME`.
    pub store: Option<String>,
    /// Files in PEM with the chain of certificates and with its key.
    pub tls: Option<(String, String)>,
    /// The file with the tokens.
    pub tokens: Option<String>,
    /// How often an item is given out by leases; 0 is without end.
    pub tries: u32,
    /// Where a line for each request goes: a file, or `-` for the console.
    pub access_log: Option<String>,
    /// Origins whose pages may send requests; `*` is all.
    pub origins: Vec<String>,
}

/// Invalid arguments, or an invalid file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The argument, or the place in the file and the key.
    place: String,
    what: &'static str,
    /// The usage follows.
    is_argument: bool,
}

impl ConfigError {
    fn of_file(place: String, what: &'static str) -> ConfigError {
        ConfigError { place, what, is_argument: false }
    }

    fn of_argument(argument: &str, what: &'static str) -> ConfigError {
        ConfigError { place: argument.to_string(), what, is_argument: true }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)?;
        if self.is_argument {
            write!(
                f,
                " (arguments: [--config FILE] [--store nats://HOST:PORT/NAME] [--port PORT]... [--max-item-bytes NUMBER] [--format] [--grow] [--discard] [--scrub DAYS] [--delete-by-connection] \
                 [--tls-chain FILE [--tls-key FILE]] [--tokens FILE] [--tries NUMBER] [--access-log FILE] [--cors-origin ORIGIN]...)"
            )?;
        }
        Ok(())
    }
}

impl core::error::Error for ConfigError {}

/// Names of settings without a value.
const FLAGS: [&str; 4] = ["format", "grow", "discard", "delete-by-connection"];

/// The settings of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Given {
    /// The file to read first.
    pub(crate) config: Option<String>,
    ports: Vec<Port>,
    item_bytes_max: Option<u64>,
    format: bool,
    grow: Option<bool>,
    discard: Option<bool>,
    scrub_days: Option<u64>,
    delete_by_connection: Option<bool>,
    store: Option<String>,
    chain: Option<String>,
    key: Option<String>,
    tokens: Option<String>,
    tries: Option<u32>,
    access_log: Option<String>,
    origins: Vec<String>,
}

impl Given {
    /// Reads `--port PORT` (`8080`, `vsock:80`; several times for several), `--format` and so on; a value may also follow its name and `=`.
    pub(crate) fn from_args(args: &[String]) -> Result<Given, ConfigError> {
        let mut given = Given::default();
        let mut rest = args.iter().map(String::as_str);
        while let Some(argument) = rest.next() {
            let error = |what| ConfigError::of_argument(argument, what);
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (argument, None),
            };
            let key = name.strip_prefix("--").ok_or(error(NO_ARGUMENT))?;
            let value = match FLAGS.contains(&key) {
                true if value.is_some() => return Err(error(NO_ARGUMENT)),
                true => "true",
                // No setting takes an empty value.
                false => value.or_else(|| rest.next()).unwrap_or_default(),
            };
            given.set(key, value).map_err(error)?;
        }
        Ok(given)
    }

    /// Reads the text of a file, whose name is `path`.
    pub(crate) fn from_file(path: &str, text: &[u8]) -> Result<Given, ConfigError> {
        let mut given = Given::default();
        let mut seen: Vec<&str> = Vec::new();
        let text = str::from_utf8(text).map_err(|_| ConfigError::of_file(path.to_string(), "it is not UTF-8"))?;
        for (number, line) in text.lines().enumerate() {
            let place = |key: &str| format!("{path}, line {}: {key}", number + 1);
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (key, value) = line
                .split_once('=')
                .map(|(key, value)| (key.trim(), value.trim()))
                .ok_or_else(|| ConfigError::of_file(place(line), "a line is KEY = VALUE, or starts with #"))?;
            let error = |what| ConfigError::of_file(place(key), what);
            match key {
                "config" => return Err(error("a file names no other file")),
                "format" => return Err(error("it would erase the disk at each start: give --format as an argument")),
                _ if seen.contains(&key) => return Err(error("it is there twice: a list is written [\"a\", \"b\"]")),
                _ => seen.push(key),
            }
            let values = values(value).ok_or(error(
                "the value is a string in double quotes, a number, true, false, or a list [..., ...] of the first two",
            ))?;
            if values.is_list && !matches!(key, "port" | "cors-origin") {
                return Err(error("it takes one value, and no list"));
            }
            for (value, kind) in &values.values {
                match (kind, FLAGS.contains(&key)) {
                    (Kind::Boolean, true) | (Kind::Text | Kind::Number, false) => {}
                    (_, true) => return Err(error("true or false must follow")),
                    (Kind::Boolean, false) => return Err(error("it is not true or false, but takes a value")),
                }
                given
                    .set(key, value)
                    .map_err(|what| error(if what == NO_ARGUMENT { "there is no such key" } else { what }))?;
            }
        }
        Ok(given)
    }

    /// One setting.
    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        let text = |what| if value.is_empty() { Err(what) } else { Ok(Some(value.to_string())) };
        match key {
            "port" => {
                let port =
                    value.parse().map_err(|_| "a number from 0 to 65535, or vsock: and a number, must follow")?;
                self.ports.push(port);
            }
            "max-item-bytes" => self.item_bytes_max = Some(number(value).ok_or("a number of bytes must follow")?),
            "tries" => {
                let tries = number(value).and_then(|tries| u32::try_from(tries).ok());
                self.tries = Some(tries.ok_or("a number must follow")?);
            }
            "format" => self.format = value == "true",
            "grow" => self.grow = Some(value == "true"),
            "discard" => self.discard = Some(value == "true"),
            "scrub" => {
                let days = number(value).filter(|days| *days <= SCRUB_DAYS_MAX);
                self.scrub_days = Some(days.ok_or("a number of days up to 1000, or 0 for never, must follow")?);
            }
            "delete-by-connection" => self.delete_by_connection = Some(value == "true"),
            "config" => self.config = text(NO_FILE)?,
            "store" => self.store = text("an engine must follow: nats://HOST:PORT/NAME")?,
            "tls-chain" => self.chain = text(NO_FILE)?,
            "tls-key" => self.key = text(NO_FILE)?,
            "tokens" => self.tokens = text(NO_FILE)?,
            "access-log" => self.access_log = text("the name of a file of --share must follow, or - for the console")?,
            "cors-origin" => {
                if !is_origin(value) {
                    return Err("an origin such as https://site.example:8443, without a path, or * must follow");
                }
                if self.origins.len() == ORIGINS_MAX {
                    return Err("there are too many origins");
                }
                self.origins.push(value.to_string());
            }
            _ => return Err(NO_ARGUMENT),
        }
        Ok(())
    }

    /// Both: those of this one count more.
    pub(crate) fn over(self, file: Given) -> Given {
        fn or<T>(own: Vec<T>, other: Vec<T>) -> Vec<T> {
            if own.is_empty() { other } else { own }
        }
        // The key belongs to its chain.
        let (chain, key) =
            if self.chain.is_some() { (self.chain, self.key) } else { (file.chain, self.key.or(file.key)) };
        Given {
            config: self.config,
            ports: or(self.ports, file.ports),
            item_bytes_max: self.item_bytes_max.or(file.item_bytes_max),
            format: self.format,
            grow: self.grow.or(file.grow),
            discard: self.discard.or(file.discard),
            scrub_days: self.scrub_days.or(file.scrub_days),
            delete_by_connection: self.delete_by_connection.or(file.delete_by_connection),
            store: self.store.or(file.store),
            chain,
            key,
            tokens: self.tokens.or(file.tokens),
            tries: self.tries.or(file.tries),
            access_log: self.access_log.or(file.access_log),
            origins: or(self.origins, file.origins),
        }
    }

    /// With what is by default.
    pub(crate) fn config(self) -> Result<Config, ConfigError> {
        let tls = match (self.chain, self.key) {
            (None, Some(_)) => return Err(ConfigError::of_argument("--tls-key", "it takes --tls-chain as well")),
            (chain, key) => chain.map(|chain| (chain.clone(), key.unwrap_or(chain))),
        };
        if self.store.is_some() {
            let own = |argument| {
                Err(ConfigError::of_argument(
                    argument,
                    "it is about a disk, and the items are in an engine: leave it out",
                ))
            };
            let about_disks = [
                ("--format", self.format),
                ("--grow", self.grow == Some(true)),
                ("--discard", self.discard == Some(true)),
                ("--scrub", self.scrub_days.unwrap_or_default() > 0),
            ];
            if let Some((argument, _)) = about_disks.into_iter().find(|(_, is_given)| *is_given) {
                return own(argument);
            }
        }
        Ok(Config {
            store: self.store,
            ports: if self.ports.is_empty() { vec![Port::Tcp(8080)] } else { self.ports },
            item_bytes_max: self.item_bytes_max,
            format: self.format,
            grow: self.grow.unwrap_or_default(),
            discard: self.discard.unwrap_or_default(),
            scrub_days: self.scrub_days.unwrap_or_default(),
            delete_by_connection: self.delete_by_connection.unwrap_or_default(),
            tls,
            tokens: self.tokens,
            tries: self.tries.unwrap_or(TRIES),
            access_log: self.access_log,
            origins: self.origins,
        })
    }
}

const NO_ARGUMENT: &str = "there is no such argument";
const NO_FILE: &str = "the name of a file of --share must follow";

impl Config {
    /// Reads arguments, and no file.
    pub fn from_args(args: &[String]) -> Result<Config, ConfigError> {
        Given::from_args(args)?.config()
    }

    /// Reads arguments and the text of the file that they name.
    pub fn from_args_and_file(args: &[String], text: &[u8]) -> Result<Config, ConfigError> {
        let given = Given::from_args(args)?;
        let path = given.config.clone().unwrap_or_default();
        given.over(Given::from_file(&path, text)?).config()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Boolean,
}

struct Values {
    is_list: bool,
    values: Vec<(String, Kind)>,
}

/// The values after a key; `None` if they are none. A comment may follow.
fn values(text: &str) -> Option<Values> {
    let mut values = Vec::new();
    let is_list = text.starts_with('[');
    let mut rest = text.strip_prefix('[').unwrap_or(text).trim_start();
    loop {
        if is_list && let Some(after) = rest.strip_prefix(']') {
            rest = after;
            break;
        }
        let (value, after) = value(rest)?;
        values.push(value);
        rest = after.trim_start();
        if !is_list {
            break;
        }
        match rest.strip_prefix(',') {
            Some(after) => rest = after.trim_start(),
            None if rest.starts_with(']') => {}
            None => return None,
        }
    }
    let rest = rest.trim_start();
    let has_boolean = values.iter().any(|(_, kind)| *kind == Kind::Boolean);
    ((rest.is_empty() || rest.starts_with('#')) && !(is_list && has_boolean)).then_some(Values { is_list, values })
}

/// The first value of a text, and what follows it. A string has no escapes: no setting needs one.
fn value(text: &str) -> Option<((String, Kind), &str)> {
    if let Some(rest) = text.strip_prefix('"') {
        let (value, rest) = rest.split_once('"')?;
        let is_plain = !value.contains('\\') && !value.chars().any(char::is_control);
        return is_plain.then(|| ((value.to_string(), Kind::Text), rest));
    }
    let end = text.find(|character: char| !character.is_ascii_alphanumeric()).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let kind = match word {
        "true" | "false" => Kind::Boolean,
        _ if number(word).is_some() => Kind::Number,
        _ => return None,
    };
    Some(((word.to_string(), kind), rest))
}

/// Whether a text is an origin as browsers send it, `*`, or `null`, which pages without an origin send.
fn is_origin(text: &str) -> bool {
    let host = ["https://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let is_host = |host: &str| {
        !host.is_empty()
            && host.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._:[]".contains(&byte))
    };
    text == "*" || text == "null" || host.is_some_and(is_host)
}

/// Digits and nothing else: `parse` would accept a plus sign.
pub(crate) fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
