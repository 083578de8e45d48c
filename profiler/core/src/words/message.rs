//! Messages, spans and fields, whose text comes in events of its own.

use std::fmt::Write as _;

use crate::trace::model::Value;
use glass_formats::trace::{Event, Kind, ValueType};

use crate::names::printable;

/// Text that is kept of a message or field, in bytes; what comes beyond is counted.
const TEXT_BYTES_MAX: usize = 4096;
/// Fields of a message or span that are kept.
const FIELDS_MAX: usize = 32;
/// Bytes of text in an event.
const TEXT_BYTES: usize = 20;

/// A value as a person reads it; texts with quotes.
pub fn value(value: &Value) -> String {
    match value {
        Value::Unsigned(number) => number.to_string(),
        Value::Signed(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Text(text) if text.is_empty() => "\"\"".to_owned(),
        Value::Text(text) => format!("\"{}\"", printable(text)),
    }
}

/// The bytes of a [`Kind::Text`] event.
fn text_bytes(event: &Event) -> ([u8; TEXT_BYTES], usize) {
    let mut bytes = [0; TEXT_BYTES];
    bytes[..4].copy_from_slice(&event.a.to_le_bytes());
    bytes[4..12].copy_from_slice(&event.b.to_le_bytes());
    bytes[12..].copy_from_slice(&event.c.to_le_bytes());
    (bytes, usize::from(event.detail).min(TEXT_BYTES))
}

/// A message or span whose fields a core is still writing.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub event: Event,
    /// The text of the message, not yet printable.
    text: Vec<u8>,
    /// Names, and values as a person reads them.
    fields: Vec<(String, Vec<u8>)>,
    /// The field whose text follows is left out.
    is_full: bool,
    cut: u64,
}

impl Message {
    pub(super) fn new(event: Event) -> Message {
        Message { event, text: Vec::new(), fields: Vec::new(), is_full: false, cut: 0 }
    }

    /// Whether the event is a part of this.
    pub(super) fn has(event: &Event) -> bool {
        event.kind == Kind::Field as u16 || event.kind == Kind::Text as u16
    }

    /// Adds a [`Kind::Field`] or [`Kind::Text`]; `name` is the field's.
    pub(super) fn add(&mut self, event: &Event, name: &str) {
        if event.kind == Kind::Text as u16 {
            let (bytes, count) = text_bytes(event);
            let place = match self.fields.last_mut() {
                _ if self.is_full => None,
                Some((_, text)) => Some(text),
                None => Some(&mut self.text),
            };
            let kept = place.filter(|text| text.len() + count <= TEXT_BYTES_MAX);
            match kept {
                Some(text) => text.extend_from_slice(&bytes[..count]),
                None => self.cut += count as u64,
            }
            return;
        }
        self.is_full = self.fields.len() >= FIELDS_MAX;
        if self.is_full {
            self.cut += 1;
            return;
        }
        let number = match ValueType::from_number(event.detail) {
            Some(ValueType::Unsigned) | None => value(&Value::Unsigned(event.b)),
            Some(ValueType::Signed) => value(&Value::Signed(event.b as i64)),
            Some(ValueType::Bool) => value(&Value::Bool(event.b != 0)),
            Some(ValueType::Float) => value(&Value::Float(f64::from_bits(event.b))),
            Some(ValueType::Text) => String::new(),
        };
        self.fields.push((name.to_owned(), number.into_bytes()));
    }

    /// Text, then fields: `stored bytes=17 name="x"`.
    pub(super) fn words(&self) -> String {
        let mut words = match self.text.is_empty() {
            true => String::new(),
            false => printable(&String::from_utf8_lossy(&self.text)),
        };
        for (name, text) in &self.fields {
            let space = if words.is_empty() { "" } else { " " };
            let _ = write!(words, "{space}{}={}", printable(name), printable(&String::from_utf8_lossy(text)));
        }
        if self.cut > 0 {
            words.push('…');
        }
        words
    }
}
