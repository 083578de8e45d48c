//! A file to a client, in pieces.

use crate::cache;
use crate::limits::PIECE_BYTES;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;
use glasshouse::future::join;
use glasshouse::http::{Connection, HttpError, Slot};
use glasshouse::{Buf, Clock, File, FileError, Files, Metadata, Stream};

/// Where a body comes from.
pub(crate) enum Content<F> {
    File(F),
    /// All of it, from the cache.
    Cached(Rc<cache::Content>),
}

/// A part of what is in the cache.
pub(crate) fn part<'a>(content: &'a cache::Content, range: &Range<u64>) -> &'a [u8] {
    // It fits into memory.
    &content.bytes[range.start as usize..range.end as usize]
}

/// Why a body was not sent whole.
pub(crate) enum BodyError {
    /// The client's side.
    Http(HttpError),
    /// The file cannot be read any more, or is another version now.
    File(FileError),
    Changed,
    /// There was no slot for it in time.
    Busy,
}

impl From<HttpError> for BodyError {
    fn from(error: HttpError) -> BodyError {
        BodyError::Http(error)
    }
}

/// The part of a file that is read next. One piece is read while the one before is sent.
pub(crate) struct Pieces<'a, D: Files> {
    pub files: &'a D,
    /// Where the file was.
    pub path: &'a str,
    pub file: &'a D::File,
    /// What the response's head is about.
    pub version: &'a Metadata,
    pub range: Range<u64>,
}

impl<D: Files> Pieces<'_, D> {
    /// The next piece, as long as a piece at most; `buf` is of the last one.
    pub(crate) async fn next(&mut self, buf: Option<Buf>) -> Result<Buf, BodyError> {
        let bytes = (self.range.end - self.range.start).min(PIECE_BYTES as u64) as usize;
        let reusable = buf.filter(|buf| buf.len() == bytes);
        let buf = match reusable {
            Some(buf) => buf,
            None => Buf::zeroed(bytes).map_err(|_| BodyError::File(FileError::OutOfMemory))?,
        };
        let (count, buf) = self.file.read(self.range.start, buf).await;
        if count.map_err(BodyError::File)? != bytes {
            return Err(BodyError::Changed);
        }
        self.range.start += bytes as u64;
        // Checked once all was read: the first bytes may be of one version, and the last ones of another.
        if self.range.is_empty() && !self.is_same().await.map_err(BodyError::File)? {
            return Err(BodyError::Changed);
        }
        Ok(buf)
    }

    /// Whether the open file still has the content of its version. That it was removed, renamed or replaced by a file that was renamed
    /// makes another [`Metadata::changed`], and so does a program that has changed the content and set the time of that back: the
    /// first is excused if the file has other names now.
    async fn is_same(&self) -> Result<bool, FileError> {
        let now = self.file.metadata().await?;
        let is_content = Metadata { changed: self.version.changed, links: self.version.links, ..now } == *self.version;
        if !is_content || now.changed == self.version.changed || now.links != self.version.links {
            return Ok(is_content);
        }
        match self.files.metadata(self.path).await {
            Ok(there) => Ok(there.number != now.number),
            Err(FileError::NotFound | FileError::NotADirectory | FileError::SymbolicLink) => Ok(true),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

/// Appends all pieces to `bytes`, which has room for them.
pub(crate) async fn read<D: Files>(mut pieces: Pieces<'_, D>, bytes: &mut Vec<u8>) -> Result<(), BodyError> {
    let mut piece = None;
    while !pieces.is_empty() {
        let next = pieces.next(piece.take()).await?;
        bytes.extend_from_slice(&next);
        piece = Some(next);
    }
    Ok(())
}

/// Sends `first` and what follows it.
pub(crate) async fn send<S: Stream, C: Clock, D: Files>(
    to: &mut Client<'_, S, C>,
    mut pieces: Pieces<'_, D>,
    first: Buf,
) -> Result<(), BodyError> {
    let (mut current, mut spare) = (first, None);
    while !pieces.is_empty() {
        let (sent, next) = join(to.write(&current), pieces.next(spare.take())).await;
        sent?;
        spare = Some(core::mem::replace(&mut current, next?));
    }
    Ok(to.write(&current).await?)
}

/// The client of a body.
pub(crate) struct Client<'a, S, C> {
    pub connection: &'a mut Connection<S, C>,
    pub clock: &'a C,
    /// `None` for a body that is so short that it needs none.
    pub slot: Option<Slot>,
}

impl<S: Stream, C: Clock> Client<'_, S, C> {
    /// Sends the next bytes of the body, while the client keeps its slot.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<(), HttpError> {
        let Some(slot) = &self.slot else { return self.connection.write_body(bytes).await };
        for piece in bytes.chunks(PIECE_BYTES) {
            let write = async { self.connection.write_body(piece).await.map(|()| piece.len()) };
            slot.watch(self.clock, write).await?;
        }
        Ok(())
    }
}
