//! Server-sent events: the format `text/event-stream` of the HTML standard, section 9.2.

use crate::HttpError;
use alloc::string::String;
use core::fmt::Write;
use core::time::Duration;

/// One event of a stream, which [`Connection::send_event`](crate::Connection::send_event) sends.
///
/// ```
/// use glass_lib_http::Event;
///
/// let event = Event { name: "price", id: "17", ..Event::new("EUR 5\nUSD 6") };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Event<'a> {
    /// The text, in any number of lines.
    pub data: &'a str,
    /// The type of the event; empty for `message`.
    pub name: &'a str,
    /// What a client that connects again sends as `Last-Event-ID`; empty to leave it as it is.
    pub id: &'a str,
    /// How long the client is to wait before it connects again; zero to leave it as it is.
    pub retry: Duration,
}

/// A line that clients skip.
pub(crate) const HEARTBEAT: &[u8] = b":\n\n";

impl<'a> Event<'a> {
    /// An event with nothing but its text.
    pub fn new(data: &'a str) -> Event<'a> {
        Event { data, ..Event::default() }
    }

    /// The bytes; an error if the name or the id has a line end, or the id a null.
    pub(crate) fn text(&self) -> Result<String, HttpError> {
        if self.name.contains(['\r', '\n']) || self.id.contains(['\r', '\n', '\0']) {
            return Err(HttpError::BadEvent);
        }
        let mut text = String::with_capacity(self.data.len() + self.name.len() + self.id.len() + 64);
        let mut line = |name: &str, value: core::fmt::Arguments| {
            // A `String` never fails to be written to.
            let _ = writeln!(text, "{name}: {value}");
        };
        if !self.name.is_empty() {
            line("event", format_args!("{}", self.name));
        }
        if !self.id.is_empty() {
            line("id", format_args!("{}", self.id));
        }
        if !self.retry.is_zero() {
            line("retry", format_args!("{}", self.retry.as_millis()));
        }
        // A carriage return ends a line, too.
        for piece in self.data.split('\n').flat_map(|piece| piece.strip_suffix('\r').unwrap_or(piece).split('\r')) {
            line("data", format_args!("{piece}"));
        }
        text.push('\n');
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_keeps_its_lines_and_no_other_field_gets_in() {
        assert_eq!(Event::new("").text().unwrap(), "data: \n\n");
        assert_eq!(
            Event::new("a\nid: 5\r\nb\rc\n").text().unwrap(),
            "data: a\ndata: id: 5\ndata: b\ndata: c\ndata: \n\n"
        );
        let event = Event { name: "n", id: "i", retry: Duration::from_secs(3), data: " x" };
        assert_eq!(event.text().unwrap(), "event: n\nid: i\nretry: 3000\ndata:  x\n\n");
        for event in [Event { name: "a\nb", ..event }, Event { id: "a\rb", ..event }, Event { id: "\0", ..event }] {
            assert_eq!(event.text(), Err(HttpError::BadEvent));
        }
    }
}
