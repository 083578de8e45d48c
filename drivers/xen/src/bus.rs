//! Xenstore as a bus: which devices a domain has, and the states by which both ends of a device agree (`xen/include/public/io/xenbus.h`).

use crate::Events;
use crate::grants::Domain;
use crate::store::{Store, StoreError};
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// How far an end of a device is (`enum xenbus_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It waits until the other end has published what it needs.
    InitWait = 2,
    /// It has published everything.
    Initialised = 3,
    /// The device works.
    Connected = 4,
    /// It ends the use of the device.
    Closing = 5,
    /// It does not use the device any more.
    Closed = 6,
}

/// A device's front end, which has a folder in the domain's part of xenstore and one in that of its back end.
pub struct Device<E: Events> {
    store: Store<E>,
    path: String,
    back: String,
    /// Where the back end runs.
    pub domain: Domain,
}

/// Why a device is of no use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BusError {
    /// Xenstore has not done what was requested.
    Store(StoreError),
    /// A key of the back end is missing, or its value makes no sense.
    BadValue(&'static str),
    /// The back end has closed the device.
    Closed,
    /// There is no memory, or no grant, for its pages.
    NoMemory,
}

impl fmt::Display for BusError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            BusError::Store(error) => write!(f, "{error}"),
            BusError::BadValue(key) => write!(f, "its back end has no usable value of `{key}`"),
            BusError::Closed => write!(f, "its back end has closed it"),
            BusError::NoMemory => {
                write!(f, "there is no memory or no grant for its pages: give the domain more memory")
            }
        }
    }
}

impl core::error::Error for BusError {}

impl From<StoreError> for BusError {
    fn from(error: StoreError) -> BusError {
        BusError::Store(error)
    }
}

impl<E: Events> Device<E> {
    /// The devices of a kind (`vbd`, `vif`), in the order of their numbers. Those whose keys make no sense are left out.
    pub async fn list(store: &Store<E>, kind: &str) -> Result<Vec<Device<E>>, BusError> {
        let folder = format!("device/{kind}");
        let names = match store.list(&folder).await {
            Err(StoreError::Refused(_)) => return Ok(Vec::new()),
            names => names?,
        };
        let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        let mut devices = Vec::new();
        for number in numbers {
            let path = format!("{folder}/{number}");
            let back = store.read(&format!("{path}/backend")).await;
            let domain = store.read(&format!("{path}/backend-id")).await;
            if let (Ok(back), Some(domain)) = (back, domain.ok().and_then(|domain| domain.parse().ok())) {
                devices.push(Device { store: store.clone(), path, back, domain: Domain(domain) });
            }
        }
        Ok(devices)
    }

    /// Its place in xenstore, for display.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A value in the front end's folder, where the tools put some.
    pub async fn value(&self, key: &'static str) -> Result<String, BusError> {
        self.store.read(&format!("{}/{key}", self.path)).await.map_err(|error| absent(error, key))
    }

    /// A value that the back end has published.
    pub async fn back_value(&self, key: &'static str) -> Result<String, BusError> {
        self.store.read(&format!("{}/{key}", self.back)).await.map_err(|error| absent(error, key))
    }

    /// A number that the back end has published; `default` without it.
    pub async fn back_number(&self, key: &'static str, default: u64) -> Result<u64, BusError> {
        match self.back_value(key).await {
            Ok(value) => value.trim().parse().map_err(|_| BusError::BadValue(key)),
            Err(BusError::BadValue(_)) => Ok(default),
            Err(error) => Err(error),
        }
    }

    /// Publishes values and the front end's state, all at once.
    pub async fn publish(&self, values: &[(&str, String)], state: State) -> Result<(), BusError> {
        let work = async |transaction: &crate::Transaction<'_, E>| {
            for (key, value) in values {
                transaction.write(&format!("{}/{key}", self.path), value).await?;
            }
            transaction.write(&format!("{}/state", self.path), &(state as u32).to_string()).await
        };
        Ok(self.store.transaction(work).await?)
    }

    /// Waits until the back end has reached `state`. Fails when it closes the device.
    pub async fn wait_for(&self, state: State) -> Result<(), BusError> {
        let mut watch = self.store.watch(&format!("{}/state", self.back)).await?;
        loop {
            watch.changed().await?;
            let reached = self.back_number("state", 0).await?;
            if reached >= State::Closing as u64 {
                return Err(BusError::Closed);
            }
            if reached >= state as u64 {
                return Ok(());
            }
        }
    }

    /// Waits until the back end closes the device, or is gone.
    pub async fn closed(&self) -> Result<(), BusError> {
        let mut watch = self.store.watch(&format!("{}/state", self.back)).await?;
        loop {
            watch.changed().await?;
            // Without the key there is no back end any more.
            let reached = self.back_number("state", State::Closed as u64).await?;
            if reached >= State::Closing as u64 {
                return Ok(());
            }
        }
    }

    /// The same device, for another task.
    pub fn handle(&self) -> Device<E> {
        let Device { store, path, back, domain } = self;
        Device { store: store.clone(), path: path.to_owned(), back: back.to_owned(), domain: *domain }
    }
}

/// Xenstore refuses what is not there.
fn absent(error: StoreError, key: &'static str) -> BusError {
    match error {
        StoreError::Refused(_) => BusError::BadValue(key),
        error => BusError::Store(error),
    }
}
