//! Changes that are stored together.

use crate::error::StoreError;
use crate::format::{KEY_BYTES_MAX, Kind, Name};
use crate::store::{BATCH_BYTES_MAX, Log, Map, VALUE_BYTES_MAX};
use alloc::boxed::Box;
use alloc::vec::Vec;
use glass_api::Block;

/// What an update returns to refuse the whole batch, which then fails with [`StoreError::Refused`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

type Update = Box<dyn Fn(Option<&[u8]>) -> Result<Option<Vec<u8>>, Refused>>;

/// One change.
pub(crate) enum Operation {
    Put(Vec<u8>, Vec<u8>),
    Insert(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    Update(Vec<u8>, Update),
    Append(Vec<u8>),
}

/// Changes of any maps and logs of one store, in order, which [`Store::commit`](crate::Store::commit) stores together or not at all.
#[derive(Default)]
pub struct Batch {
    pub(crate) operations: Vec<(Name, Kind, Operation)>,
    pub(crate) bytes: usize,
    /// The first change that is not possible.
    pub(crate) error: Option<StoreError>,
}

impl Batch {
    /// Without changes.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Sets the value of a key: at most [`VALUE_BYTES_MAX`] bytes at a key of 1 to [`KEY_BYTES_MAX`].
    pub fn put<B: Block>(&mut self, map: &Map<B>, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.check(key, value.len());
        self.add(map.name, Kind::Map, key.len() + value.len(), Operation::Put(key.to_vec(), value.to_vec()));
    }

    /// Sets the value of a key that has none, else refuses the batch.
    pub fn insert<B: Block>(&mut self, map: &Map<B>, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.check(key, value.len());
        self.add(map.name, Kind::Map, key.len() + value.len(), Operation::Insert(key.to_vec(), value.to_vec()));
    }

    /// Replaces the value of a key by what `update` returns for it, `None` for no value. It gets the value with all earlier changes,
    /// and may be called more than once. [`Committed::values`](crate::Committed::values) has what it returned.
    pub fn update<B: Block>(
        &mut self,
        map: &Map<B>,
        key: impl AsRef<[u8]>,
        update: impl Fn(Option<&[u8]>) -> Result<Option<Vec<u8>>, Refused> + 'static,
    ) {
        let key = key.as_ref();
        self.check(key, 0);
        self.add(map.name, Kind::Map, key.len(), Operation::Update(key.to_vec(), Box::new(update)));
    }

    /// Removes a key; no effect if it is not there.
    pub fn remove<B: Block>(&mut self, map: &Map<B>, key: impl AsRef<[u8]>) {
        let key = key.as_ref();
        self.check(key, 0);
        self.add(map.name, Kind::Map, key.len(), Operation::Remove(key.to_vec()));
    }

    /// Appends a record of at most [`VALUE_BYTES_MAX`] bytes.
    pub fn append<B: Block>(&mut self, log: &Log<B>, record: impl AsRef<[u8]>) {
        let record = record.as_ref();
        self.check(&[0], record.len());
        self.add(log.name, Kind::Log, record.len(), Operation::Append(record.to_vec()));
    }

    /// Removes a record, which [`Log::trim`] does.
    pub(crate) fn remove_record<B: Block>(&mut self, log: &Log<B>, index: u64) {
        self.add(log.name, Kind::Log, 8, Operation::Remove(index.to_be_bytes().to_vec()));
    }

    fn check(&mut self, key: &[u8], value_bytes: usize) {
        let error = check(key.len(), value_bytes).err();
        self.error = self.error.or(error);
    }

    fn add(&mut self, name: Name, kind: Kind, bytes: usize, operation: Operation) {
        // What an operation takes beside its bytes.
        self.bytes = self.bytes.saturating_add(bytes).saturating_add(32);
        if self.bytes > BATCH_BYTES_MAX {
            self.error = self.error.or(Some(StoreError::Batch));
        }
        if self.error.is_none() {
            self.operations.push((name, kind, operation));
        }
    }
}

/// Whether a key and a value may have these lengths.
pub(crate) fn check(key_bytes: usize, value_bytes: usize) -> Result<(), StoreError> {
    if !(1..=KEY_BYTES_MAX).contains(&key_bytes) {
        return Err(StoreError::Key { bytes: key_bytes });
    }
    if value_bytes > VALUE_BYTES_MAX {
        return Err(StoreError::Value { bytes: value_bytes });
    }
    Ok(())
}
