//! The configuration: a file in TOML, and what the command line has instead.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Samples a second of each vCPU at most: an agent is to be forgotten.
const RATE_HZ_MAX: u32 = 199;
/// How long a recording may be: a shorter one is mostly attaching, a longer one is seen late.
const SEGMENT_SECONDS: std::ops::RangeInclusive<u64> = 2..=3600;
/// The least space for recordings.
const KEEP_MIB_MIN: u64 = 16;

/// What the agent does. Every key is optional.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Samples a second of each vCPU.
    pub rate_hz: u32,
    /// Seconds of a recording.
    pub segment_seconds: u64,
    /// Where recordings are kept, and profiles that are to be sent.
    pub folder: PathBuf,
    /// MiB of recordings that are kept; the oldest go first.
    pub keep_mib: u64,
    /// MiB of profiles that wait for their engine; the oldest go first.
    pub spool_mib: u64,
    /// Where all recorders together take more than this, in percent of all CPUs of the host, those that take most sample at half of their rate from then on.
    pub cpu_percent_max: f64,
    /// Where tasks of this host wait for a CPU in more percent of the time than this, all recorders sample less often, too.
    pub pressure_percent_max: u32,
    /// Where the page and the metrics are served: an address of this host's loopback.
    pub listen: SocketAddr,
    /// Who sees the names of processes in guests, and the paths of programs.
    pub process_names: Names,
    /// Names of VMs that are recorded, `*` for any text; all if there are none.
    pub vms: Vec<String>,
    /// Engines that get profiles.
    pub sink: Vec<SinkConfig>,
}

/// Who sees the names of processes in guests, and the paths of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Names {
    /// They are not recorded.
    None,
    /// Who may read the recordings, and the page: on this host.
    Host,
    /// The engines, too.
    Engines,
}

/// The kind of an engine for profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SinkKind {
    /// `push.v1.PusherService/Push`.
    Pyroscope,
    /// `parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw`.
    Parca,
    /// Profiles for a collector of OpenTelemetry, which is experimental there.
    #[serde(rename = "otlp-profiles")]
    OtlpProfiles,
    /// Spans of services of Glasshouse for a collector of OpenTelemetry.
    #[serde(rename = "otlp-traces")]
    OtlpTraces,
}

impl SinkKind {
    /// All of them.
    pub const ALL: [SinkKind; 4] = [SinkKind::Pyroscope, SinkKind::Parca, SinkKind::OtlpProfiles, SinkKind::OtlpTraces];

    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            SinkKind::Pyroscope => "pyroscope",
            SinkKind::Parca => "parca",
            SinkKind::OtlpProfiles => "otlp-profiles",
            SinkKind::OtlpTraces => "otlp-traces",
        }
    }
}

/// An engine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkConfig {
    /// Its kind.
    pub kind: SinkKind,
    /// Its address, without a path: `http://127.0.0.1:4040`.
    pub url: String,
    /// Headers of each request, such as `Authorization`.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Labels of each profile beside `service_name`, `host` and `vm`; attributes for OpenTelemetry.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// A file with certificates (PEM) of those whom it is trusted to be certified by, instead of those that browsers trust.
    #[serde(default)]
    pub ca: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            rate_hz: 19,
            segment_seconds: 60,
            folder: PathBuf::from("/var/lib/glass-agent"),
            keep_mib: 1024,
            spool_mib: 256,
            cpu_percent_max: 1.5,
            pressure_percent_max: 90,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 4040)),
            process_names: Names::Host,
            vms: Vec::new(),
            sink: Vec::new(),
        }
    }
}

impl Config {
    /// Reads a file. An error names the key and the line.
    ///
    /// # Errors
    /// The file cannot be read, or is not as described.
    pub fn read(path: &Path) -> Result<Config> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Config::parse(&text).with_context(|| format!("{} is not a configuration", path.display()))
    }

    fn parse(text: &str) -> Result<Config> {
        let config: Config = toml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    /// Whether each value is in its range.
    ///
    /// # Errors
    /// One is not: a sentence that names its key.
    pub fn check(&self) -> Result<()> {
        ensure!((1..=RATE_HZ_MAX).contains(&self.rate_hz), "rate_hz: give 1 to {RATE_HZ_MAX}");
        let (least, most) = (SEGMENT_SECONDS.start(), SEGMENT_SECONDS.end());
        ensure!(SEGMENT_SECONDS.contains(&self.segment_seconds), "segment_seconds: give {least} to {most}");
        ensure!(self.keep_mib >= KEEP_MIB_MIN, "keep_mib: give {KEEP_MIB_MIN} or more");
        ensure!(self.spool_mib >= 1, "spool_mib: give 1 or more");
        ensure!((0.1..=100.0).contains(&self.cpu_percent_max), "cpu_percent_max: give 0.1 to 100");
        ensure!((1..=100).contains(&self.pressure_percent_max), "pressure_percent_max: give 1 to 100");
        ensure!(
            self.listen.ip().is_loopback(),
            "listen: {} is not of the loopback: give 127.0.0.1, and serve others by a proxy with passwords",
            self.listen.ip()
        );
        for (index, sink) in self.sink.iter().enumerate() {
            let is_same = |other: &SinkConfig| (other.kind, &other.url) == (sink.kind, &sink.url);
            ensure!(!self.sink[..index].iter().any(is_same), "sink.url: {} is there twice", sink.url);
            let host = ["http://", "https://"].iter().find_map(|scheme| sink.url.strip_prefix(scheme));
            ensure!(host.is_some(), "sink.url: {} does not start with http:// or https://", sink.url);
            ensure!(host != Some(""), "sink.url: {} names no host", sink.url);
        }
        Ok(())
    }

    /// How long a recording is.
    pub(crate) fn segment(&self) -> Duration {
        Duration::from_secs(self.segment_seconds)
    }

    /// Whether spans of services are recorded.
    pub(crate) fn wants_spans(&self) -> bool {
        self.sink.iter().any(|sink| sink.kind == SinkKind::OtlpTraces)
    }

    /// Whether a VM of this name is recorded.
    pub(crate) fn selects(&self, name: &str) -> bool {
        self.vms.is_empty() || self.vms.iter().any(|pattern| matches(pattern, name))
    }
}

/// Whether a name is of a pattern, in which `*` is any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(before) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_what_it_says_and_defaults() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
        let text = r#"
            rate_hz = 49
            process_names = "engines"
            vms = ["web-*", "db"]
            [[sink]]
            kind = "pyroscope"
            url = "http://127.0.0.1:4041"
            headers = { Authorization = "Bearer x" }
            [[sink]]
            kind = "parca"
            url = "https://parca"
        "#;
        let config = Config::parse(text).unwrap();
        assert_eq!((config.rate_hz, config.process_names, config.sink.len()), (49, Names::Engines, 2));
        assert_eq!((config.sink[0].kind, config.sink[1].kind), (SinkKind::Pyroscope, SinkKind::Parca));
        assert_eq!(config.sink[0].headers["Authorization"], "Bearer x");
        assert_eq!(["web-1", "db", "db2", "other"].map(|name| config.selects(name)), [true, true, false, false]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("rate = 5", "rate"),
            ("rate_hz = 0", "rate_hz: give 1 to 199"),
            ("rate_hz = 'x'", "rate_hz"),
            ("segment_seconds = 1", "segment_seconds"),
            ("keep_mib = 1", "keep_mib"),
            ("listen = '0.0.0.0:4040'", "not of the loopback"),
            ("process_names = 'all'", "process_names"),
            ("[[sink]]\nkind = 'pyroscope'\nurl = 'x'", "sink.url: x does not start"),
            ("[[sink]]\nkind = 'parca'\nurl = 'http://'", "names no host"),
            ("[[sink]]\nkind = 'grafana'\nurl = 'http://x'", "grafana"),
            (
                "[[sink]]\nkind = 'parca'\nurl = 'http://x'\n[[sink]]\nkind = 'parca'\nurl = 'http://x'",
                "is there twice",
            ),
        ] {
            let error = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn stars_are_any_text() {
        for (pattern, name, is_match) in [
            ("*", "", true),
            ("a*", "a", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*a", "a", false),
            ("a", "ab", false),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
    }
}
