//! In the place of `engine.rs` where there is none: in VMs, and on processors other than x86-64 (decision 71).

use crate::account::Charge;
use crate::digest::Digests;
use crate::error::StoreError;
use crate::format::Entry;
use crate::items::{LeaseError, Listed, Named};
use crate::leases::Fence;
use alloc::string::String;
use alloc::vec::Vec;
use core::any::Any;
use core::convert::Infallible;
use core::time::Duration;
use glasshouse::{Instant, Platform};

/// There is none.
pub(crate) struct Engine(Infallible);

/// There is none.
pub(crate) struct Upload(Infallible);

/// There is none.
pub(crate) struct Download(Infallible);

/// There is none.
pub(crate) struct Changed(Infallible);

impl Engine {
    /// Fails always.
    pub(crate) async fn open<P: Platform>(_: &P, _: &str, _: u32) -> Result<Engine, String> {
        Err("--store: an engine needs the process on x86-64; a VM keeps its items on its disk".into())
    }

    pub(crate) fn address(&self) -> String {
        match self.0 {}
    }

    pub(crate) fn set_tries(&self, _: u32) {
        match self.0 {}
    }

    pub(crate) fn given(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn ready(&self) -> Result<(), String> {
        match self.0 {}
    }

    pub(crate) fn oldest(&self, _: Instant) -> Option<Entry> {
        match self.0 {}
    }

    pub(crate) fn get(&self, _: u64, _: Instant) -> Option<Listed> {
        match self.0 {}
    }

    pub(crate) fn after(&self, _: Option<u64>, _: usize, _: Instant) -> Vec<Listed> {
        match self.0 {}
    }

    pub(crate) fn usage(&self) -> (usize, u64) {
        match self.0 {}
    }

    pub(crate) async fn take(&self, _: u64, _: Duration) -> Result<Option<(Fence, u32)>, StoreError> {
        match self.0 {}
    }

    pub(crate) async fn acknowledge(&self, _: u64, _: Named<'_>) -> Result<(), LeaseError> {
        match self.0 {}
    }

    pub(crate) async fn extend(&self, _: u64, _: Named<'_>, _: Duration) -> Result<(), LeaseError> {
        match self.0 {}
    }

    pub(crate) async fn give_back(&self, _: u64, _: Named<'_>) -> Result<(), LeaseError> {
        match self.0 {}
    }

    pub(crate) async fn revive(&self, _: u64) -> Result<(), LeaseError> {
        match self.0 {}
    }

    pub(crate) async fn remove(&self, _: u64) -> Result<(), LeaseError> {
        match self.0 {}
    }

    pub(crate) async fn remove_free(&self, _: u64) -> Result<(), LeaseError> {
        match self.0 {}
    }

    pub(crate) fn changed(&self) -> Changed {
        match self.0 {}
    }

    pub(crate) fn next_end(&self, _: Instant) -> Option<Instant> {
        match self.0 {}
    }

    pub(crate) fn upload(&self, _: Option<u64>, _: u64) -> Result<Upload, StoreError> {
        match self.0 {}
    }

    pub(crate) fn fetch(&self, _: u64) -> Option<Download> {
        match self.0 {}
    }
}

impl Changed {
    pub(crate) async fn wait(self) {
        match self.0 {}
    }
}

impl Upload {
    pub(crate) fn hold(&mut self, _: impl Any) {
        match self.0 {}
    }

    pub(crate) fn digests(&mut self) -> &mut Digests {
        match self.0 {}
    }

    pub(crate) fn set_charge(&mut self, _: Option<Charge>) {
        match self.0 {}
    }

    pub(crate) fn arrived(&mut self, _: u64) -> bool {
        match self.0 {}
    }

    pub(crate) fn missing_bytes(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn is_open(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn end(&mut self) {
        match self.0 {}
    }

    pub(crate) async fn receive<E>(
        &mut self,
        _: impl AsyncFnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Result<usize, E>, StoreError> {
        match self.0 {}
    }

    pub(crate) async fn finish(self) -> Result<u64, StoreError> {
        match self.0 {}
    }
}

impl Download {
    pub(crate) fn again(&self) -> Result<Download, StoreError> {
        match self.0 {}
    }

    pub(crate) fn hold(&mut self, _: impl Any) {
        match self.0 {}
    }

    pub(crate) fn entry(&self) -> &Entry {
        match self.0 {}
    }

    pub(crate) fn bytes_left(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        match self.0 {}
    }
}
