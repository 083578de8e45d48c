//! A reader of debug information and unwind tables that charges an [`Account`] for each thing that is read. It fails when
//! nothing is left, wherever a parser is at that time: no table can keep one busy or full for long.

use std::borrow::Cow;

use gimli::{Error, ReaderOffsetId, Result};

use crate::budget::Account;

/// Bytes that are looked through as one unit of work.
const BYTES_PER_UNIT: usize = 16;

/// A reader, and the account of its file.
#[derive(Debug, Clone)]
pub(crate) struct Metered<R> {
    inner: R,
    account: Account,
}

impl<R: gimli::Reader<Offset = usize>> Metered<R> {
    pub(crate) fn new(inner: R, account: Account) -> Metered<R> {
        Metered { inner, account }
    }

    #[inline]
    fn charge(&self, bytes: usize) -> Result<()> {
        // What else a parser fails with where a table ends too early.
        self.account.work(1 + (bytes / BYTES_PER_UNIT) as u64).map_err(|_| Error::UnexpectedEof(self.inner.offset_id()))
    }
}

impl<R: gimli::Reader<Offset = usize>> gimli::Reader for Metered<R> {
    type Endian = R::Endian;
    type Offset = usize;

    fn endian(&self) -> R::Endian {
        self.inner.endian()
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn empty(&mut self) {
        self.inner.empty();
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.inner.truncate(len)
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.inner.offset_from(&base.inner)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        self.inner.offset_id()
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        self.inner.lookup_offset_id(id)
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let found = self.inner.find(byte);
        self.charge(*found.as_ref().unwrap_or(&self.inner.len()))?;
        found
    }

    fn skip(&mut self, len: usize) -> Result<()> {
        self.charge(0)?;
        self.inner.skip(len)
    }

    fn split(&mut self, len: usize) -> Result<Self> {
        self.charge(0)?;
        Ok(Metered { inner: self.inner.split(len)?, account: self.account.clone() })
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        self.charge(self.inner.len())?;
        self.inner.to_slice()
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        self.charge(self.inner.len())?;
        self.inner.to_string()
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        self.charge(self.inner.len())?;
        self.inner.to_string_lossy()
    }

    #[inline]
    fn read_slice(&mut self, buf: &mut [u8]) -> Result<()> {
        self.charge(buf.len())?;
        self.inner.read_slice(buf)
    }
}
