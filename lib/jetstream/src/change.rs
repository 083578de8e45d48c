//! Changes of items: each replaces exactly the state that was seen, so of two programs that change one item at once, one is refused.

use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::link::Failure;
use crate::mirror::{Known, Place};
use crate::record::{Record, State};
use std::time::{Duration, Instant};

/// How often a change that another one has overtaken is made again, and the pause before it.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(20);

/// A lease that was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Greater than that of all leases of the item before.
    pub number: u64,
    /// How often the item was given out, with this time.
    pub tries: u32,
}

/// Why a lease cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseError {
    /// There is no such item (any more).
    NoItem,
    /// It has no lease, or another one.
    OtherLease,
    /// The engine failed.
    Engine(EngineError),
}

impl From<EngineError> for LeaseError {
    fn from(error: EngineError) -> LeaseError {
        LeaseError::Engine(error)
    }
}

impl Engine {
    /// Gives out item `id`, if it is still as it was seen last and has not been given out since lease number `before`. `None`: another consumer was faster.
    pub async fn take(&self, id: u64, before: u64, time: Duration) -> Result<Option<Lease>, EngineError> {
        let wanted = move |known: &Known| {
            let is_leased = known.place(0, Instant::now()) != Place::Ready;
            if known.record.lease != before || is_leased {
                return None;
            }
            let (lease, tries) = (known.record.lease + 1, known.record.tries + 1);
            Some(Record { lease, tries, secs: time.as_secs().max(1), ..known.record.with(State::Leased) })
        };
        match self.change(id, wanted).await {
            Ok(record) => {
                Ok(Some(Lease { number: record.lease, tries: u32::try_from(record.tries).unwrap_or(u32::MAX) }))
            }
            Err(LeaseError::NoItem | LeaseError::OtherLease) => Ok(None),
            Err(LeaseError::Engine(error)) => Err(error),
        }
    }

    /// Removes item `id`, if lease `number` is its newest one, also after its time.
    pub async fn acknowledge(&self, id: u64, number: u64) -> Result<(), LeaseError> {
        self.remove_if(id, move |record| record.lease == number).await
    }

    /// The lease has this time from now on.
    pub async fn extend(&self, id: u64, number: u64, time: Duration) -> Result<(), LeaseError> {
        let wanted = move |known: &Known| {
            let secs = time.as_secs().max(1);
            (known.record.lease == number).then(|| Record { secs, ..known.record.with(State::Leased) })
        };
        self.change(id, wanted).await.map(drop)
    }

    /// The item is ready again at once. What was tried counts.
    pub async fn give_back(&self, id: u64, number: u64) -> Result<(), LeaseError> {
        let wanted = move |known: &Known| (known.record.lease == number).then(|| known.record.with(State::Ready));
        self.change(id, wanted).await.map(drop)
    }

    /// An item without a lease may be given out again as if it had never been.
    pub async fn revive(&self, id: u64) -> Result<(), LeaseError> {
        let wanted = |known: &Known| {
            let is_free = known.place(0, Instant::now()) == Place::Ready;
            is_free.then(|| Record { tries: 0, ..known.record.with(State::Ready) })
        };
        self.change(id, wanted).await.map(drop)
    }

    /// Removes item `id`, whether or not a consumer has it.
    pub async fn remove(&self, id: u64) -> Result<(), LeaseError> {
        self.remove_if(id, |_| true).await
    }

    /// Removes item `id`, unless a consumer has it.
    pub async fn remove_free(&self, id: u64) -> Result<(), LeaseError> {
        let wanted = |known: &Known| {
            let is_free = known.place(0, Instant::now()) == Place::Ready;
            is_free.then(|| known.record.with(State::Removed))
        };
        self.remove_by(id, wanted).await
    }

    async fn remove_if(&self, id: u64, is_wanted: impl Fn(&Record) -> bool + Send + 'static) -> Result<(), LeaseError> {
        self.remove_by(id, move |known| is_wanted(&known.record).then(|| known.record.with(State::Removed))).await
    }

    async fn remove_by(
        &self,
        id: u64,
        wanted: impl Fn(&Known) -> Option<Record> + Send + 'static,
    ) -> Result<(), LeaseError> {
        let key = self.shared.with_mirror(|mirror| mirror.get(id)).map(|known| known.key);
        self.change(id, wanted).await?;
        if let Some(key) = key {
            let shared = self.shared.clone();
            // What fails is repeated when old data is looked for.
            self.spawn(move || async move {
                let link = &shared.link;
                link.purge(&link.names.data(), link.names.chunk(key, "*"), None).await
            });
        }
        Ok(())
    }

    /// Replaces the state of item `id` by the one that `wanted` makes of it; `None` refuses. Returns the new one.
    async fn change(
        &self,
        id: u64,
        wanted: impl Fn(&Known) -> Option<Record> + Send + 'static,
    ) -> Result<Record, LeaseError> {
        self.shared.check()?;
        let shared = self.shared.clone();
        self.run(move || async move {
            for _ in 0..ATTEMPTS {
                let known = shared.with_mirror(|mirror| mirror.get(id)).ok_or(LeaseError::NoItem)?;
                let record = wanted(&known).ok_or(LeaseError::OtherLease)?;
                match shared.link.change(known.key, known.sequence, record).await {
                    Ok(sequence) => {
                        shared.learn(known, sequence, record);
                        return Ok(record);
                    }
                    Err(Failure::Engine(error)) => return Err(error.into()),
                    // The next attempt decides by the newer state.
                    Err(Failure::Conflict(Some((sequence, newest)))) if sequence > known.sequence => {
                        shared.learn(known, sequence, newest);
                    }
                    // Another change of it is in progress.
                    Err(Failure::Conflict(Some((sequence, _)))) if sequence == known.sequence => {
                        tokio::time::sleep(PAUSE).await;
                    }
                    // It was removed so long ago that nothing shows it any more, or the stream was made anew.
                    Err(Failure::Conflict(_)) => return Err(LeaseError::NoItem),
                }
            }
            Err(EngineError::Absent.into())
        })
        .await
    }
}

impl Shared {
    /// The server has this record of an item.
    pub(crate) fn learn(&self, known: Known, sequence: u64, record: Record) {
        let id = known.record.id;
        self.with_mirror(|mirror| mirror.learn(known.key, sequence, Record { id, ..record }, Instant::now()));
        self.notify();
    }
}
