//! What each uploader has in the queue, and how much it may send now. In memory: a restart forgets it.

use crate::limits::RATE_BURST;
use crate::tokens::Grant;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use glasshouse::Instant;

const NANOS: u128 = 1_000_000_000;

/// The accounts of all uploaders, by their names.
#[derive(Default)]
pub(crate) struct Accounts {
    accounts: RefCell<BTreeMap<Rc<str>, Rc<Account>>>,
}

#[derive(Default)]
struct Account {
    /// Bytes of items and of uploads in progress.
    used_bytes: Cell<u64>,
    /// Bytes that may still be sent; negative while more was sent than the rate allows.
    level: Cell<i64>,
    /// When the level was right; `None` before the first upload.
    at: Cell<Option<Instant>>,
}

impl Accounts {
    /// Of this uploader, from its first upload on.
    fn of(&self, name: &Rc<str>) -> Rc<Account> {
        self.accounts.borrow_mut().entry(name.clone()).or_default().clone()
    }

    /// Forgets those that no token has and no item counts for.
    pub(crate) fn retain<'a>(&self, names: impl Iterator<Item = &'a Rc<str>>) {
        let names: alloc::collections::BTreeSet<_> = names.collect();
        self.accounts.borrow_mut().retain(|name, account| names.contains(name) || account.used_bytes.get() > 0);
    }

    /// A new upload of the holder of `grant`, unless more was sent than its rate allows: then when there may be one again.
    pub(crate) fn admit(&self, grant: &Grant, now: Instant) -> Result<Charge, Duration> {
        let account = self.of(&grant.name);
        match grant.rate {
            Some(rate) => {
                account.refill(rate, now);
                let level = account.level.get();
                if level <= 0 {
                    return Err(Duration::from_secs(level.unsigned_abs() / rate + 1));
                }
            }
            // If a rate is set later, it starts then.
            None => account.at.set(None),
        }
        Ok(Charge { account, bytes: 0, quota_bytes: grant.quota_bytes })
    }
}

impl Account {
    fn refill(&self, rate: u64, now: Instant) {
        let full = i64::try_from(rate.saturating_mul(RATE_BURST.as_secs())).unwrap_or(i64::MAX);
        let Some(before) = self.at.get() else {
            self.at.set(Some(now));
            return self.level.set(full);
        };
        let added = u128::from(rate) * (now - before).as_nanos() / NANOS;
        // The time of a part of a byte is counted by the next call, however often it is called.
        let counted = u64::try_from(added * NANOS / u128::from(rate)).unwrap_or(u64::MAX);
        self.at.set(Some(before + Duration::from_nanos(counted)));
        let level = self.level.get().saturating_add(i64::try_from(added).unwrap_or(i64::MAX));
        self.level.set(level.min(full));
    }
}

/// The bytes that an upload, later its item, counts for its uploader, until this is dropped.
pub(crate) struct Charge {
    account: Rc<Account>,
    bytes: u64,
    quota_bytes: Option<u64>,
}

impl Charge {
    /// Counts `bytes` more; false if the quota does not allow them.
    pub(crate) fn add(&mut self, bytes: u64) -> bool {
        let used = self.account.used_bytes.get().saturating_add(bytes);
        if self.quota_bytes.is_some_and(|quota| used > quota) {
            return false;
        }
        self.account.used_bytes.set(used);
        self.bytes += bytes;
        true
    }

    /// Counts exactly `bytes` from now on; false, without a change, if that is more than the quota allows.
    pub(crate) fn set(&mut self, bytes: u64) -> bool {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.add(more),
            None => {
                self.account.used_bytes.set(self.account.used_bytes.get() - (self.bytes - bytes));
                self.bytes = bytes;
                true
            }
        }
    }

    /// `bytes` have arrived.
    pub(crate) fn arrived(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.account.level.set(self.account.level.get().saturating_sub(bytes));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let used = self.account.used_bytes.get();
        self.account.used_bytes.set(used - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Tokens;
    use alloc::format;

    const SECOND: u64 = 1_000_000_000;

    fn grant(limits: &str) -> Rc<Grant> {
        use sha2::{Digest, Sha256};
        let token = b"0123456789abcdef012345";
        let hash: alloc::string::String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
        Tokens::parse(format!("uploader a {hash} {limits}").as_bytes()).unwrap().find(token).unwrap()
    }

    #[test]
    fn a_quota_counts_items_and_uploads_until_they_are_gone() {
        let (accounts, grant) = (Accounts::default(), grant("bytes=100"));
        let charge = || accounts.admit(&grant, Instant(0)).unwrap();
        let (mut first, mut second) = (charge(), charge());
        assert!(first.add(60) && !second.add(41) && second.add(40) && !first.add(1));
        drop(first);
        assert!(second.add(60) && !second.add(u64::MAX));
        assert!(!second.set(101) && second.set(30) && charge().add(70) && second.set(100));
        drop(second);
        assert!(charge().add(100));
    }

    #[test]
    fn a_rate_admits_uploads_until_more_was_sent() {
        let (accounts, grant) = (Accounts::default(), grant("rate=10"));
        let at = |secs: u64| accounts.admit(&grant, Instant(secs * SECOND));
        // A minute's worth at once, and all of an upload that was admitted.
        at(0).unwrap().arrived(599);
        at(0).unwrap().arrived(101);
        assert_eq!(at(0).err(), Some(Duration::from_secs(11)));
        assert_eq!(at(9).err(), Some(Duration::from_secs(2)));
        assert!(at(11).is_ok());
        // One that tries again and again is not delayed by that.
        at(11).unwrap().arrived(31);
        let quarter = |number: u64| accounts.admit(&grant, Instant(11 * SECOND + number * SECOND / 40));
        assert!((1..84).all(|number| quarter(number).is_err()) && quarter(88).is_ok());
        // Not more than a minute's worth, however long it was not used.
        at(1_000_000).unwrap().arrived(600);
        assert!(at(1_000_000).is_err());
    }

    #[test]
    fn an_account_is_kept_for_a_token_or_an_item() {
        let (accounts, grant) = (Accounts::default(), grant(""));
        let count = || accounts.accounts.borrow().len();
        let mut charge = accounts.admit(&grant, Instant(0)).unwrap();
        charge.add(1);
        accounts.retain([].iter());
        assert_eq!(count(), 1);
        drop(charge);
        accounts.retain([grant.name.clone()].iter());
        assert_eq!(count(), 1);
        accounts.retain([].iter());
        assert_eq!(count(), 0);
    }
}
