//! What the stream of items has, in memory. It follows the stream; decisions are made by the server, which refuses a change of a state that
//! is not the newest.

use crate::record::{Key, Record, State};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// An item of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Greater than that of all items that were complete before.
    pub id: u64,
    /// Bytes.
    pub length: u64,
    /// XXH3 of its bytes.
    pub checksum: u64,
    /// How often it was given out.
    pub tries: u32,
    /// The number of its newest lease.
    pub lease: u64,
    /// Random, and the same for all leases of the item.
    pub random: u64,
    /// Where it is.
    pub place: Place,
}

/// Where an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The next consumer gets it.
    Ready,
    /// A consumer has it for so long.
    Leased(Duration),
    /// It was given out as often as it may be.
    Dead,
}

/// An item, as the stream has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) key: Key,
    /// Of its newest record.
    pub(crate) sequence: u64,
    pub(crate) record: Record,
    /// When its lease ends.
    until: Option<Instant>,
}

/// A record of what is no item (any more).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gone {
    pub(crate) sequence: u64,
    pub(crate) state: State,
    pub(crate) since: Instant,
}

/// The items, and what was removed lately.
#[derive(Default)]
pub(crate) struct Mirror {
    items: BTreeMap<u64, Known>,
    ids: HashMap<Key, u64>,
    gone: HashMap<Key, Gone>,
    /// The sequence of the stream up to which everything is here.
    applied: u64,
    bytes: u64,
}

impl Mirror {
    /// The stream has this record, which is `age` old. They come in order.
    pub(crate) fn follow(&mut self, key: Key, sequence: u64, record: Record, age: Duration, now: Instant) {
        self.apply(key, sequence, record, age, now);
        self.reached(sequence);
    }

    /// Everything up to there is here.
    pub(crate) fn reached(&mut self, sequence: u64) {
        self.applied = self.applied.max(sequence);
    }

    pub(crate) fn applied(&self) -> u64 {
        self.applied
    }

    /// The server has answered with this record, before it is here in order.
    pub(crate) fn learn(&mut self, key: Key, sequence: u64, record: Record, now: Instant) {
        // Otherwise what followed it may have been here, and be forgotten.
        if sequence > self.applied {
            self.apply(key, sequence, record, Duration::ZERO, now);
        }
    }

    fn apply(&mut self, key: Key, sequence: u64, record: Record, age: Duration, now: Instant) {
        let before = self.ids.get(&key).and_then(|id| self.items.get(id)).map(|known| known.sequence);
        let before = before.or(self.gone.get(&key).map(|gone| gone.sequence));
        if before.is_some_and(|before| before >= sequence) {
            return;
        }
        if let Some(known) = self.ids.remove(&key).and_then(|id| self.items.remove(&id)) {
            self.bytes -= known.record.length;
        }
        self.gone.remove(&key);
        let since = now.checked_sub(age).unwrap_or(now);
        if !record.is_item() {
            self.gone.insert(key, Gone { sequence, state: record.state, since });
            return;
        }
        let id = if record.id == 0 { sequence } else { record.id };
        let until = (record.state == State::Leased).then(|| since + Duration::from_secs(record.secs));
        let record = Record { id, ..record };
        self.ids.insert(key, id);
        self.items.insert(id, Known { key, sequence, record, until });
        self.bytes = self.bytes.saturating_add(record.length);
    }

    pub(crate) fn get(&self, id: u64) -> Option<Known> {
        self.items.get(&id).copied()
    }

    pub(crate) fn after(&self, id: Option<u64>) -> impl Iterator<Item = &Known> {
        self.items.range(id.map_or(0, |id| id.saturating_add(1))..).map(|(_, known)| known)
    }

    pub(crate) fn count(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the stream has a record of this key.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.ids.contains_key(key) || self.gone.contains_key(key)
    }

    pub(crate) fn gone(&self) -> Vec<(Key, Gone)> {
        self.gone.iter().map(|(key, gone)| (*key, *gone)).collect()
    }

    /// The stream does not have the record of this key any more.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.gone.remove(key);
    }

    /// How long until the next lease ends.
    pub(crate) fn next_end(&self, now: Instant) -> Option<Duration> {
        let ends = self.items.values().filter_map(|known| known.until).filter(|until| *until > now);
        ends.min().map(|until| until - now)
    }
}

impl Known {
    /// Items may be given out `tries_max` times; 0 is without end.
    pub(crate) fn place(&self, tries_max: u32, now: Instant) -> Place {
        match self.until {
            Some(until) if until > now => Place::Leased(until - now),
            _ if tries_max > 0 && self.record.tries >= u64::from(tries_max) => Place::Dead,
            _ => Place::Ready,
        }
    }

    pub(crate) fn item(&self, tries_max: u32, now: Instant) -> Item {
        let Record { id, length, checksum, tries, lease, .. } = self.record;
        let tries = u32::try_from(tries).unwrap_or(u32::MAX);
        Item { id, length, checksum, tries, lease, random: self.key.high(), place: self.place(tries_max, now) }
    }
}

/// Completes when the mirror has changed since this was made.
pub struct Changed(pub(crate) watch::Receiver<u64>);

impl Changed {
    /// Waits for the change.
    pub async fn wait(mut self) {
        // Without a sender the engine has ended, and nothing changes any more.
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_record_of_an_item_counts_whichever_comes_first() {
        let (now, key) = (Instant::now(), Key::new());
        let mut mirror = Mirror::default();
        let first = Record::new(9, 1, 1);
        mirror.follow(key, 5, first, Duration::ZERO, now);
        let leased = Record { id: 5, lease: 1, tries: 1, secs: 60, ..first.with(State::Leased) };
        // The answer to the own change is here before the stream's message.
        mirror.learn(key, 8, leased, now);
        let late = Record { id: 5, ..first };
        mirror.follow(key, 7, late, Duration::ZERO, now);
        let place =
            |mirror: &Mirror, after| mirror.get(5).map(|known| known.place(0, now + Duration::from_secs(after)));
        assert_eq!(
            (place(&mirror, 59), place(&mirror, 60)),
            (Some(Place::Leased(Duration::from_secs(1))), Some(Place::Ready))
        );
        assert_eq!((mirror.count(), mirror.bytes(), mirror.applied()), (1, 9, 7));
        mirror.follow(key, 9, leased.with(State::Removed), Duration::ZERO, now);
        assert_eq!((mirror.get(5).is_none(), mirror.count(), mirror.bytes(), mirror.has(&key)), (true, 0, 0, true));
        mirror.forget(&key);
        // Late: the stream was further when it was sent.
        mirror.learn(key, 8, leased, now);
        assert_eq!((mirror.count(), mirror.has(&key)), (0, false));
    }

    #[test]
    fn items_are_in_the_order_of_their_first_records() {
        let (now, keys) = (Instant::now(), [Key::new(), Key::new()]);
        let mut mirror = Mirror::default();
        for (number, key) in keys.into_iter().enumerate() {
            mirror.follow(key, number as u64 + 1, Record::new(1, 0, 1), Duration::ZERO, now);
        }
        let first = mirror.get(1).unwrap().record;
        mirror.follow(keys[0], 3, Record { tries: 2, ..first.with(State::Ready) }, Duration::ZERO, now);
        assert_eq!(mirror.after(None).map(|known| known.record.id).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(mirror.after(Some(1)).map(|known| known.key).collect::<Vec<_>>(), [keys[1]]);
        assert_eq!(
            (mirror.get(1).unwrap().place(2, now), mirror.get(1).unwrap().place(3, now)),
            (Place::Dead, Place::Ready)
        );
    }

    #[test]
    fn a_lease_of_before_the_start_has_the_rest_of_its_time() {
        let (now, key) = (Instant::now(), Key::new());
        let mut mirror = Mirror::default();
        let leased = Record { id: 1, lease: 1, tries: 1, secs: 60, ..Record::new(1, 0, 1).with(State::Leased) };
        mirror.follow(key, 2, leased, Duration::from_secs(20), now);
        assert_eq!(mirror.next_end(now), Some(Duration::from_secs(40)));
    }
}
