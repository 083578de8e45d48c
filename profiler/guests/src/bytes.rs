//! How numbers, texts and lists are laid out in a message: little-endian, a length of 4 bytes before each text and list.

use std::ops::Range;

/// A message is longer than this only by a fault.
pub(crate) const MESSAGE_BYTES_MAX: usize = 160 << 10;

/// Writes a message.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn of_kind(kind: u8) -> Writer {
        Writer(vec![kind])
    }

    pub(crate) fn byte(mut self, value: u8) -> Writer {
        self.0.push(value);
        self
    }

    pub(crate) fn flag(self, value: bool) -> Writer {
        self.byte(u8::from(value))
    }

    pub(crate) fn number(mut self, value: u32) -> Writer {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn word(mut self, value: u64) -> Writer {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn words(self, values: &[u64]) -> Writer {
        values.iter().fold(self, |writer, value| writer.word(*value))
    }

    pub(crate) fn perhaps(self, value: Option<u64>) -> Writer {
        self.flag(value.is_some()).word(value.unwrap_or(0))
    }

    pub(crate) fn bytes(mut self, value: &[u8]) -> Writer {
        self = self.number(value.len() as u32);
        self.0.extend(value);
        self
    }

    pub(crate) fn list<T>(self, values: &[T], write: impl Fn(Writer, &T) -> Writer) -> Writer {
        let writer = self.number(values.len() as u32);
        values.iter().fold(writer, write)
    }

    pub(crate) fn ranges(self, ranges: &[Range<u64>]) -> Writer {
        self.list(ranges, |writer, range| writer.words(&[range.start, range.end]))
    }
}

/// Reads a message. Each function returns `None` if the rest is shorter or has another form.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn array<const BYTES: usize>(&mut self) -> Option<[u8; BYTES]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(crate) fn number(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn word(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn words<const COUNT: usize>(&mut self) -> Option<[u64; COUNT]> {
        let mut words = [0; COUNT];
        for word in &mut words {
            *word = self.word()?;
        }
        Some(words)
    }

    pub(crate) fn perhaps(&mut self) -> Option<Option<u64>> {
        let is_there = self.flag()?;
        let value = self.word()?;
        Some(is_there.then_some(value))
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = self.number()? as usize;
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    pub(crate) fn list<T>(&mut self, mut read: impl FnMut(&mut Reader<'a>) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number()? as usize;
        // Each item has a byte or more, so that a message bounds the list.
        if count > self.0.len() {
            return None;
        }
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(read(self)?);
        }
        Some(items)
    }

    pub(crate) fn ranges(&mut self) -> Option<Vec<Range<u64>>> {
        self.list(|reader| reader.words().map(|[start, end]| start..end))
    }

    /// The value, if nothing follows it.
    pub(crate) fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}
