//! Messages of the macros of `tracing` as lines of a platform's console.

use crate::tracing_subscriber::MESSAGE;
use core::fmt::{self, Debug, Display};
use tracing_core::field::{Field, Visit};
use tracing_core::{Event, Metadata};

pub use tracing_core::LevelFilter;

/// What `--log` takes: no messages, or those of a level and the levels before it.
pub const LEVELS: &str = "off, error, warn, info, debug or trace";

/// The level that `--log` names; `None` if it is none of [`LEVELS`].
pub fn parse_level(text: &str) -> Option<LevelFilter> {
    Some(match text {
        "off" => LevelFilter::OFF,
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => return None,
    })
}

/// Which messages a platform prints, and how.
#[derive(Debug, Clone, Copy)]
pub struct ConsoleLog {
    /// Messages of this level and of more severe ones.
    pub level: LevelFilter,
    /// Prints a line.
    pub print: fn(fmt::Arguments),
}

impl ConsoleLog {
    /// Prints nothing.
    pub const OFF: ConsoleLog = ConsoleLog { level: LevelFilter::OFF, print: |_| () };

    pub(crate) fn prints(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level
    }
}

/// A message as text: level, place, text, fields.
pub(crate) struct Line<'a, 'b>(pub(crate) &'a Event<'b>);

impl Display for Line<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let metadata = self.0.metadata();
        write!(f, "{} {}:", metadata.level(), metadata.target())?;
        let mut fields = Fields { f, of_text: true, outcome: Ok(()) };
        self.0.record(&mut fields);
        fields.of_text = false;
        self.0.record(&mut fields);
        fields.outcome
    }
}

/// Writes the text, or everything else.
struct Fields<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    of_text: bool,
    outcome: fmt::Result,
}

impl Visit for Fields<'_, '_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if self.outcome.is_err() || (field.name() == MESSAGE) != self.of_text {
            return;
        }
        self.outcome = match self.of_text {
            true => write!(self.f, " {value:?}"),
            false => write!(self.f, " {}={value:?}", field.name()),
        };
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString;

    #[test]
    fn every_level_has_its_name() {
        for name in ["off", "error", "warn", "info", "debug", "trace"] {
            assert!(LEVELS.contains(name));
            assert_eq!(parse_level(name).map(|level| level.to_string()).as_deref(), Some(name));
        }
        assert_eq!(parse_level("TRACE"), None);
    }
}
