//! A store on a simulated disk, and a model of what it must contain.

use glass_api::{Block, JoinHandle, Panicked, Spawn, SpawnError};
use glass_lib_executor::{Executor, Uncontained, Unpark};
use glass_lib_store::{Batch, Log, Map, Options, Refused, Store, StoreError};
use glass_platform_sim::Chance;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

struct NoUnpark;

impl Unpark for NoUnpark {
    fn unpark(&self) {}
}

/// Tasks of a test.
#[derive(Clone)]
pub struct Tasks(pub Executor);

impl Spawn for Tasks {
    fn spawn<T: 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + 'static,
    ) -> Result<JoinHandle<T>, SpawnError> {
        self.0.spawn(name, task)
    }

    fn contain<F: Future>(&self, task: F) -> impl Future<Output = Result<F::Output, Panicked>> + use<F> {
        Uncontained::new(task)
    }
}

/// Runs a test that waits for nothing but disks without a world.
pub fn run<T: 'static>(test: impl AsyncFnOnce(Tasks) -> T + 'static) -> T {
    let tasks = Tasks(Executor::new(Arc::new(NoUnpark)));
    let result = Rc::new(RefCell::new(None));
    let (own, place) = (tasks.clone(), result.clone());
    tasks.spawn("test", async move { *place.borrow_mut() = Some(test(own).await) }).unwrap();
    loop {
        let polled = tasks.0.run_ready();
        if let Some(value) = result.borrow_mut().take() {
            tasks.0.cancel_all();
            return value;
        }
        assert!(polled > 0, "everything waits: {} tasks", tasks.0.task_count());
    }
}

/// A store with a map and a log.
#[derive(Clone)]
pub struct Opened<B: Block> {
    pub store: Store<B>,
    pub map: Map<B>,
    pub log: Log<B>,
}

/// Few pages in the cache, so that the disk is read.
pub const OPTIONS: Options = Options { cache_bytes: 0 };

pub async fn open<B: Block>(tasks: &impl Spawn, disk: B) -> Opened<B> {
    let (store, _) = Store::open(disk, tasks, OPTIONS).await.unwrap();
    of(store)
}

pub fn of<B: Block>(store: Store<B>) -> Opened<B> {
    Opened { map: store.map("map").unwrap(), log: store.log("log").unwrap(), store }
}

/// What a store must contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    pub map: BTreeMap<Vec<u8>, Vec<u8>>,
    pub log: BTreeMap<u64, Vec<u8>>,
    pub next_index: u64,
}

/// A change of the model and of the store.
#[derive(Debug, Clone)]
pub enum Step {
    Put(Vec<u8>, Vec<u8>),
    Insert(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    /// Appends a byte to a value of at most so many.
    Grow(Vec<u8>, usize),
    Append(Vec<u8>),
}

impl Model {
    /// Makes the changes, all or none; returns whether they were made.
    pub fn apply(&mut self, steps: &[Step]) -> bool {
        let before = self.clone();
        for step in steps {
            match step {
                Step::Put(key, value) => drop(self.map.insert(key.clone(), value.clone())),
                Step::Insert(key, value) => {
                    if self.map.contains_key(key) {
                        *self = before;
                        return false;
                    }
                    self.map.insert(key.clone(), value.clone());
                }
                Step::Remove(key) => drop(self.map.remove(key)),
                Step::Grow(key, most) => {
                    let value = self.map.entry(key.clone()).or_default();
                    if value.len() >= *most {
                        *self = before;
                        return false;
                    }
                    value.push(7);
                }
                Step::Append(record) => {
                    self.log.insert(self.next_index, record.clone());
                    self.next_index += 1;
                }
            }
        }
        true
    }
}

pub fn batch<B: Block>(opened: &Opened<B>, steps: &[Step]) -> Batch {
    let mut batch = Batch::new();
    for step in steps {
        match step {
            Step::Put(key, value) => batch.put(&opened.map, key, value),
            Step::Insert(key, value) => batch.insert(&opened.map, key, value),
            Step::Remove(key) => batch.remove(&opened.map, key),
            Step::Grow(key, most) => {
                let most = *most;
                batch.update(&opened.map, key, move |before| {
                    let mut value = before.unwrap_or_default().to_vec();
                    if value.len() >= most {
                        return Err(Refused);
                    }
                    value.push(7);
                    Ok(Some(value))
                });
            }
            Step::Append(record) => batch.append(&opened.log, record),
        }
    }
    batch
}

/// Bytes that follow from a number.
pub fn content(number: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Chance::new(number).fill(&mut bytes);
    bytes
}

/// Some changes; `keys` different keys.
pub fn steps(chance: &mut Chance, keys: u64) -> Vec<Step> {
    let count = if chance.below(12) == 0 { 40 } else { 1 + chance.below(4) };
    (0..count).map(|_| step(chance, keys)).collect()
}

fn step(chance: &mut Chance, keys: u64) -> Step {
    let number = chance.below(keys);
    // Keys of very different lengths.
    let mut key = content(number, 1 + (number * 37 % 300) as usize);
    key[0] = number as u8;
    let length = match chance.below(40) {
        0 => 4000 + chance.below(20_000),
        1..4 => 500 + chance.below(1000),
        _ => chance.below(300),
    };
    let value = content(chance.next_u64(), length as usize);
    match chance.below(10) {
        0..4 => Step::Put(key, value),
        4 => Step::Insert(key, value),
        5..7 => Step::Remove(key),
        7 => Step::Grow(key, 200),
        _ => Step::Append(value),
    }
}

/// Everything that the store contains, read in order.
pub async fn read_all<B: Block>(opened: &Opened<B>) -> Result<Model, StoreError> {
    let mut model = Model { next_index: opened.log.next_index(), ..Model::default() };
    let (mut scan, mut before) = (opened.map.scan(), None);
    while let Some((key, value)) = scan.next().await? {
        assert!(before.is_none_or(|before| before < key), "the keys do not ascend");
        assert_eq!(opened.map.get(&key).await?.as_ref(), Some(&value));
        before = Some(key.clone());
        model.map.insert(key, value);
    }
    let mut records = opened.log.records(0);
    while let Some((index, record)) = records.next().await? {
        model.log.insert(index, record);
    }
    assert_eq!((opened.map.len(), opened.log.len()), (model.map.len() as u64, model.log.len() as u64));
    Ok(model)
}
