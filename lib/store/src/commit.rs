//! The task that stores batches: all that wait share one commit.

use crate::batch::{Batch, Operation, check};
use crate::error::StoreError;
use crate::format::{INLINE_BYTES_MAX, Kind, LargeValue, Name, Roots, TREES_MAX, Tree, pages_of};
use crate::open::write_slot;
use crate::rewrite::{Change, Writer};
use crate::scan::get;
use crate::store::{Committed, Inner};
use crate::value;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use glass_api::Block;
use glass_lib_executor::sync::{OneSender, Receiver};
use glass_lib_trace::Counter;

/// Batches join a commit until they have so many bytes together.
const GROUP_BYTES: usize = 1 << 20;

static COMMITS: Counter = Counter::new("store commits");

/// A batch, and its caller.
pub(crate) struct Request {
    pub batch: Batch,
    pub answer: OneSender<Result<Committed, StoreError>>,
}

/// The task that writes.
pub(crate) struct Committer<B: Block> {
    pub inner: Rc<Inner<B>>,
    pub requests: Receiver<Request>,
    /// The newest sequence of which a slot may be on the disk. If it is not that of the current state, its commit has failed.
    pub attempted: u64,
}

/// The trees with the changes of a group of batches, which are not written yet.
#[derive(Clone)]
struct Changed {
    trees: Vec<Tree>,
    values: BTreeMap<(usize, Vec<u8>), Option<Vec<u8>>>,
}

impl<B: Block> Committer<B> {
    /// Stores batches until no handle of the store is left.
    pub async fn run(mut self) {
        while let Some(request) = self.requests.recv().await {
            let mut bytes = request.batch.bytes;
            let mut group = Vec::from([request]);
            while bytes < GROUP_BYTES {
                let Some(request) = self.requests.try_recv() else { break };
                bytes += request.batch.bytes;
                group.push(request);
            }
            let results = self.commit(&group.iter().map(|request| &request.batch).collect::<Vec<_>>()).await;
            for (request, result) in group.into_iter().zip(results) {
                // A caller that no longer waits needs no answer.
                let _ = request.answer.send(result);
            }
        }
    }

    /// Stores these batches with one flush. If all together do not fit, or need a page that is damaged, each is stored by itself.
    async fn commit(&mut self, batches: &[&Batch]) -> Vec<Result<Committed, StoreError>> {
        let (results, written) = self.commit_together(batches).await;
        let concerns_one = matches!(written, Err(StoreError::Full { .. } | StoreError::Damaged { .. }));
        if concerns_one && batches.len() > 1 {
            let mut results = Vec::new();
            for batch in batches {
                let (result, written) = self.commit_together(&[batch]).await;
                results.extend(result.into_iter().map(|result| written.and(result)));
            }
            return results;
        }
        // If nothing was stored, a refusal may be due to a batch that failed.
        results.into_iter().map(|result| written.and(result)).collect()
    }

    /// What each batch returns if the commit succeeds, and whether it did.
    async fn commit_together(
        &mut self,
        batches: &[&Batch],
    ) -> (Vec<Result<Committed, StoreError>>, Result<(), StoreError>) {
        if !self.inner.is_writable {
            return (batches.iter().map(|_| Err(StoreError::ReadOnly)).collect(), Ok(()));
        }
        if let Err(error) = self.settle().await {
            return (batches.iter().map(|_| Err(error)).collect(), Ok(()));
        }
        let roots = self.inner.roots.borrow().clone();
        let mut changed = Changed { trees: roots.trees.clone(), values: BTreeMap::new() };
        let mut results = Vec::new();
        for batch in batches {
            let mut committed = Committed { sequence: roots.sequence + 1, indices: Vec::new(), values: Vec::new() };
            let result = self.apply(batch, &mut changed, &mut committed).await;
            results.push(result.map(|()| committed));
        }
        if changed.values.is_empty() {
            let unchanged = |result: Result<Committed, StoreError>| {
                result.map(|committed| Committed { sequence: roots.sequence, ..committed })
            };
            return (results.into_iter().map(unchanged).collect(), Ok(()));
        }
        (results, self.write(&roots, changed).await)
    }

    /// Adds the changes of one batch, or none of them.
    async fn apply(&self, batch: &Batch, changed: &mut Changed, committed: &mut Committed) -> Result<(), StoreError> {
        if let Some(error) = batch.error {
            return Err(error);
        }
        let mut own = Changed { trees: changed.trees.clone(), values: BTreeMap::new() };
        for (name, kind, operation) in &batch.operations {
            let tree = own.tree(name, *kind)?;
            match operation {
                Operation::Put(key, value) => drop(own.values.insert((tree, key.clone()), Some(value.clone()))),
                Operation::Remove(key) => drop(own.values.insert((tree, key.clone()), None)),
                Operation::Append(record) => {
                    let index = own.trees[tree].next_index;
                    own.trees[tree].next_index += 1;
                    own.values.insert((tree, index.to_be_bytes().to_vec()), Some(record.clone()));
                    committed.indices.push(index);
                }
                Operation::Insert(key, value) => {
                    if self.before(&own, changed, tree, key).await?.is_some() {
                        return Err(StoreError::Refused);
                    }
                    own.values.insert((tree, key.clone()), Some(value.clone()));
                }
                Operation::Update(key, update) => {
                    let before = self.before(&own, changed, tree, key).await?;
                    let value = update(before.as_deref()).map_err(|_| StoreError::Refused)?;
                    check(key.len(), value.as_ref().map_or(0, Vec::len))?;
                    committed.values.push(value.clone());
                    own.values.insert((tree, key.clone()), value);
                }
            }
        }
        changed.trees = own.trees;
        changed.values.extend(own.values);
        Ok(())
    }

    /// The value of a key with the changes of a batch so far, which come after those of others.
    async fn before(
        &self,
        own: &Changed,
        others: &Changed,
        tree: usize,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let place = (tree, key.to_vec());
        match own.values.get(&place).or_else(|| others.values.get(&place)) {
            Some(value) => Ok(value.clone()),
            None => get(&self.inner, &own.trees[tree], key).await,
        }
    }

    /// Writes the changes to free pages, then the slot that is not the current one, and flushes.
    async fn write(&mut self, before: &Roots, changed: Changed) -> Result<(), StoreError> {
        let inner = self.inner.clone();
        let sequence = before.sequence + 1;
        let only_removes = changed.values.values().all(Option::is_none);
        let mut writer = Writer::new(&inner, sequence, only_removes);
        let result = match write_trees(&inner, &mut writer, changed).await {
            Ok(trees) => {
                self.attempted = sequence;
                self.write_state(Roots { sequence, pages: before.pages, trees }).await
            }
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => inner.space.borrow_mut().free_after(sequence, writer.freed),
            // A power cut may leave this commit as the newest state; nothing is written to its pages before it is settled.
            Err(_) => inner.space.borrow_mut().release(writer.taken),
        }
        result
    }

    /// Makes a state the current one: writes its slot, and flushes.
    async fn write_state(&self, roots: Roots) -> Result<(), StoreError> {
        write_slot(&self.inner.pages.block, &roots).await?;
        *self.inner.roots.borrow_mut() = Rc::new(roots);
        COMMITS.add(1);
        Ok(())
    }

    /// After a failed commit, or one that was dropped at the start: writes the current state to its slot, so that it cannot return
    /// when pages that it had are used again.
    async fn settle(&mut self) -> Result<(), StoreError> {
        let before = self.inner.roots.borrow().clone();
        if self.attempted == before.sequence {
            return Ok(());
        }
        self.write_state(Roots { sequence: self.attempted, ..(*before).clone() }).await
    }
}

impl Changed {
    /// The place of a tree, which is made if there is none of this name.
    fn tree(&mut self, name: &Name, kind: Kind) -> Result<usize, StoreError> {
        match self.trees.iter().position(|tree| tree.name == *name) {
            Some(place) if self.trees[place].kind == kind => Ok(place),
            Some(_) => Err(StoreError::Kind),
            None if self.trees.len() == TREES_MAX => Err(StoreError::Trees),
            None => {
                let root = Default::default();
                self.trees.push(Tree { name: *name, kind, level: 0, root, entries: 0, next_index: 0 });
                Ok(self.trees.len() - 1)
            }
        }
    }
}

/// Writes values with pages of their own, which it flushes, and then the pages of the trees.
async fn write_trees<B: Block>(
    inner: &Inner<B>,
    writer: &mut Writer<'_, B>,
    changed: Changed,
) -> Result<Vec<Tree>, StoreError> {
    let mut trees = changed.trees;
    let mut changes: Vec<Vec<(Vec<u8>, Change)>> = trees.iter().map(|_| Vec::new()).collect();
    let mut has_large = false;
    for ((tree, key), value) in changed.values {
        let change = match value {
            None => Change::Remove,
            Some(value) if value.len() <= INLINE_BYTES_MAX => Change::Put { payload: value, is_large: false },
            Some(value) => {
                has_large = true;
                Change::Put { payload: write_large(inner, writer, &value).await?.encode(), is_large: true }
            }
        };
        changes[tree].push((key, change));
    }
    if has_large {
        // The data of a value is not read at the start, so it has to be there before a slot that names it.
        inner.pages.block.flush().await?;
    }
    for (tree, changes) in trees.iter_mut().zip(&changes).filter(|(_, changes)| !changes.is_empty()) {
        writer.change(tree, changes).await?;
    }
    writer.send().await?;
    Ok(trees)
}

async fn write_large<B: Block>(
    inner: &Inner<B>,
    writer: &mut Writer<'_, B>,
    value: &[u8],
) -> Result<LargeValue, StoreError> {
    let pages = pages_of(value.len() as u64) as u32;
    let runs = inner.take_runs(pages, LargeValue::RUNS_MAX)?;
    writer.taken.extend(&runs);
    value::write(&inner.pages.block, runs, value).await
}
