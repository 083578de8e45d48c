//! Sessions: uploads that start where an earlier one ended, and whose progress is saved.

use crate::changes::Outcome;
use crate::digest::Digests;
use crate::download::Download;
use crate::error::StoreError;
use crate::format::{self, BLOCK_BYTES, EXTENTS_MAX, Entry, Extent, UploadEntry, UploadName, UploadProgress};
use crate::limits::{SAVE_BYTES, resumable_max};
use crate::resumable::{Resumable, Saved, place_of};
use crate::store::Store;
use crate::upload::Upload;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use glasshouse::tracing::{Instrument, info_span};
use glasshouse::{Block, Buf};
use xxhash_rust::xxh3::Xxh3;

/// What an [`Upload`] has in addition if it can be resumed.
pub(crate) struct Session {
    pub(crate) of: Rc<Resumable>,
    /// The bytes of the block that was begun before; its first chunk starts with them.
    pub(crate) begun: Vec<u8>,
    /// Digests of all bytes of the upload.
    pub(crate) whole: Digests,
    /// When the upload may be forgotten, for the next save.
    deadline_secs: u64,
    /// Whether progress is saved before the end: not of a request with a digest, whose bytes may turn out to be wrong.
    saves_progress: bool,
    /// What is saved once it is written.
    mark: Option<Mark>,
    /// The save of which the outcome is not known.
    saving: Option<Outcome>,
}

/// A moment of an upload.
struct Mark {
    offset: u64,
    hasher: Box<Xxh3>,
}

impl<B: Block> Upload<B> {
    /// The upload that it continues.
    pub fn resumable(&self) -> Option<&Rc<Resumable>> {
        self.session.as_ref().map(|session| &session.of)
    }

    /// Its client has announced its length, in bytes.
    pub(crate) fn set_length(&mut self, length: u64) {
        (self.length, self.length_max) = (Some(length), length);
    }

    /// All bytes must have these digests, or [`Upload::finish`] fails. Those of before are read.
    pub(crate) async fn verify_whole(&mut self, mut digests: Digests) -> Result<(), StoreError> {
        if let Some(session) = &mut self.session {
            if !digests.is_empty() {
                self.store.read_saved(&session.of, |bytes| digests.update(bytes)).await?;
            }
            session.whole = digests;
        }
        Ok(())
    }

    /// No progress is saved before the end.
    pub(crate) fn save_at_the_end_only(&mut self) {
        if let Some(session) = &mut self.session {
            session.saves_progress = false;
        }
    }

    /// Saves progress after each [`SAVE_BYTES`], beside what is received.
    pub(crate) fn save_progress(&mut self) {
        let Some(session) = &mut self.session else { return };
        if session.saving.as_ref().is_some_and(|outcome| outcome.get().is_some()) {
            session.saving = None;
        }
        // Whole blocks only: the next chunk continues after them. All chunks but the last are whole.
        let is_whole = self.hashed.is_multiple_of(BLOCK_BYTES as u64);
        let is_due = self.hashed >= session.of.offset() + SAVE_BYTES;
        if session.saves_progress && session.mark.is_none() && session.saving.is_none() && is_whole && is_due {
            session.mark = Some(Mark { offset: self.hashed, hasher: self.hasher.clone() });
        }
        if let Some(mark) = session.mark.take_if(|mark| mark.offset <= self.written)
            && self.lost_flushes == self.store.lost_flushes()
            && let Some(space) = &self.space
        {
            let saved = session.saved(mark.offset, &mark.hasher, space.first(blocks(mark.offset)), self.length);
            session.saving = Some(self.store.save(&session.of, saved, mark.hasher));
        }
    }

    /// Ends the session: what was received is on stable storage when this returns how much that is. Fails if a digest is wrong; then, and
    /// after another failure, the upload has what it had saved before.
    pub async fn save(mut self) -> Result<u64, StoreError> {
        self.write_all().await?;
        self.digests.verify()?;
        if self.lost_flushes != self.store.lost_flushes() {
            return Err(StoreError::Lost);
        }
        let session = self.session.as_ref().expect("the caller has a session");
        let space = self.space.take().expect("only the end takes the space of an upload");
        let saved = session.saved(self.received, &self.hasher, space.first(blocks(self.received)), self.length);
        let outcome = self.store.save(&session.of, saved, self.hasher.clone());
        session.of.charge.replace(self.charge.take());
        session.of.park(space);
        self.store.until_durable(outcome).instrument(info_span!("commit")).await?;
        Ok(self.received)
    }

    /// The upload is an item with this length when this returns its id.
    pub(crate) async fn finish_session(mut self, length: u64) -> Result<u64, StoreError> {
        if self.lost_flushes != self.store.lost_flushes() {
            return Err(StoreError::Lost);
        }
        let session = self.session.as_ref().expect("the caller has a session");
        session.whole.verify()?;
        let space = self.space.take().expect("only the end takes the space of an upload");
        let (extents, checksum) = (space.first(blocks(length)), self.hasher.digest());
        session.of.charge.replace(self.charge.take());
        session.of.park(space);
        let completed = self.store.complete(&session.of, length, checksum, extents, session.deadline_secs);
        completed.instrument(info_span!("commit")).await
    }
}

impl Session {
    fn saved(&self, offset: u64, hasher: &Xxh3, extents: [Extent; EXTENTS_MAX], length: Option<u64>) -> Saved {
        let progress = UploadProgress::Open { offset, checksum: hasher.digest(), extents };
        Saved { length, deadline_secs: self.deadline_secs, progress }
    }
}

impl<B: Block> Store<B> {
    /// A new upload that can be resumed by this name, and its first session. It is on stable storage when this returns. `length` in
    /// bytes is announced, or else there are `length_max` at most.
    pub async fn begin(
        &self,
        name: UploadName,
        length: Option<u64>,
        length_max: u64,
        deadline_secs: u64,
    ) -> Result<Upload<B>, StoreError> {
        self.make_space_for_an_upload()?;
        let space = match length {
            Some(length) => self.reserve(length)?,
            None => self.reserve_some(length_max)?,
        };
        let entry = self.take_entry()?;
        let hasher = format::hasher();
        let progress = UploadProgress::Open { offset: 0, checksum: hasher.digest(), extents: Default::default() };
        let upload = UploadEntry { name, length, deadline_secs, progress };
        let upload = Resumable::new(upload, entry, Some(space), Some(hasher.clone()));
        let saved = self.save(&upload, upload.saved(), hasher);
        self.until_durable(saved).instrument(info_span!("commit")).await?;
        self.resume(&upload, length_max, deadline_secs).await
    }

    /// The next session of an upload, when the one before has ended. After a restart its bytes are read once.
    pub async fn resume(
        &self,
        upload: &Rc<Resumable>,
        length_max: u64,
        deadline_secs: u64,
    ) -> Result<Upload<B>, StoreError> {
        let (mut space, hasher) = loop {
            let changed = self.changed();
            if upload.is_in_doubt() {
                self.write_again().await?;
            }
            if upload.is_forgotten() || upload.item().is_some() {
                return Err(StoreError::UploadEnded);
            }
            if let Some(taken) = upload.take_space() {
                break taken;
            }
            changed.await;
        };
        let Saved { length, progress, .. } = upload.saved();
        let UploadProgress::Open { offset, extents, .. } = progress else { return Err(StoreError::UploadEnded) };
        space.rewind(offset / BLOCK_BYTES as u64);
        let session = Session {
            of: upload.clone(),
            begun: Vec::new(),
            whole: Digests::default(),
            deadline_secs,
            saves_progress: true,
            mark: None,
            saving: None,
        };
        let length_max = length.unwrap_or(length_max);
        let has_hasher = hasher.is_some();
        let hasher = hasher.unwrap_or_else(format::hasher);
        // From here on a failure gives the space back.
        let mut resumed = Upload::at(self.clone(), space, length, length_max, offset, hasher, Some(Box::new(session)));
        resumed.charge = upload.charge.take();
        if !has_hasher {
            resumed.hasher = self.read_saved(upload, |_| ()).instrument(info_span!("read what was saved")).await?;
        }
        let begun_bytes = (offset % BLOCK_BYTES as u64) as usize;
        if begun_bytes > 0 {
            let place = place_of(&extents, offset / BLOCK_BYTES as u64).expect("the index was checked");
            let (result, block) = self.block().read(place, Buf::zeroed(BLOCK_BYTES)?).await;
            result?;
            let session = resumed.session.as_mut().expect("it was given one");
            session.begun = block[..begun_bytes].to_vec();
        }
        Ok(resumed)
    }

    /// Reads what is saved of an upload, piece by piece.
    pub(crate) async fn read_saved(
        &self,
        upload: &Rc<Resumable>,
        mut each: impl FnMut(&[u8]),
    ) -> Result<Box<Xxh3>, StoreError> {
        let UploadProgress::Open { offset, checksum, extents } = upload.saved().progress else {
            return Err(StoreError::UploadEnded);
        };
        let entry = Entry { id: 0, length: offset, checksum, extents };
        let mut download = Download::new(self.clone(), entry, upload.clone());
        while let Some(bytes) = download.next().await.map_err(damaged_upload)? {
            each(&bytes);
        }
        Ok(download.hasher())
    }

    /// Ends an upload without an item, or forgets one that has become an item; its space is free when this returns. The session before
    /// must have ended or be about to.
    pub async fn forget(&self, upload: &Rc<Resumable>) -> Result<(), StoreError> {
        loop {
            let changed = self.changed();
            if upload.is_forgotten() {
                return Ok(());
            }
            if !upload.is_busy() {
                break;
            }
            changed.await;
        }
        let ended = self.end(upload);
        self.until_durable(ended).await
    }

    /// The upload with this name.
    pub fn find(&self, name: &UploadName) -> Option<Rc<Resumable>> {
        self.with_changes(|changes| changes.uploads().get(name).cloned())
    }

    /// All uploads that can be resumed, and those that were completed lately.
    pub fn resumables(&self) -> Vec<Rc<Resumable>> {
        self.with_changes(|changes| changes.uploads().values().cloned().collect())
    }

    /// Fails if too many uploads are in progress. Of those that are complete, the one that was so first gives its place.
    fn make_space_for_an_upload(&self) -> Result<(), StoreError> {
        let uploads = self.resumables();
        let count_max = resumable_max(self.usage().items_max);
        let (complete, open): (Vec<_>, Vec<_>) = uploads.into_iter().partition(|upload| upload.item().is_some());
        if open.len() >= count_max {
            return Err(StoreError::TooManyUploads { count_max });
        }
        if open.len() + complete.len() >= count_max
            && let Some(oldest) = complete.iter().filter(|upload| !upload.is_busy()).min_by_key(|upload| upload.item())
        {
            // Its outcome is not waited for: if it fails, the next one tries again.
            self.give_place(oldest);
        }
        Ok(())
    }
}

fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES as u64)
}

/// What is read of an upload is no item.
fn damaged_upload(error: StoreError) -> StoreError {
    match error {
        StoreError::Damaged { .. } => StoreError::DamagedUpload,
        error => error,
    }
}
