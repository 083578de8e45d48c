//! Names are stored once, in a table: events have their numbers.

use crate::sys::CONTROL;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use glass_formats::trace::{NAME_BYTES, NAME_TEXT_BYTES, NAMES_MAX, words_of_name};

const BUCKETS: usize = 2 * NAMES_MAX;
const _: () = assert!(BUCKETS.is_power_of_two() && BUCKETS >= 2 * NAMES_MAX);

/// Numbers of names by the hash of their texts, 0 for none.
static NUMBERS: [AtomicU32; BUCKETS] = [const { AtomicU32::new(0) }; BUCKETS];
/// Hashes of names that found no room.
static LOST: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
static IS_ADDING: AtomicBool = AtomicBool::new(false);

/// A name in the trace. It is entered into the table of names at its first use.
#[derive(Debug)]
pub struct Name {
    text: &'static str,
    /// 0 unknown yet, [`TABLE_FULL`] or its number.
    number: AtomicU32,
}

/// The table was full when the name was looked up: another lookup would count the same loss twice.
const TABLE_FULL: u32 = u32::MAX;

impl Name {
    /// A name that has no number yet.
    pub const fn new(text: &'static str) -> Name {
        Name { text, number: AtomicU32::new(0) }
    }

    /// The name itself.
    pub const fn text(&self) -> &'static str {
        self.text
    }

    /// Its number; 0 while tracing is impossible or if the table is full.
    #[inline]
    pub fn number(&self) -> u32 {
        match self.number.load(Ordering::Relaxed) {
            0 => self.lookup(),
            TABLE_FULL => 0,
            number => number,
        }
    }

    #[cold]
    fn lookup(&self) -> u32 {
        let was_possible = is_possible();
        let number = intern(self.text);
        if was_possible {
            self.number.store(if number == 0 { TABLE_FULL } else { number }, Ordering::Relaxed);
        }
        number
    }
}

/// Numbers of texts by their address, which saves reading the text: address << 16 | length << 10 | number.
static BY_ADDRESS: [AtomicU64; 1 << ADDRESS_BITS] = [const { AtomicU64::new(0) }; 1 << ADDRESS_BITS];
const ADDRESS_BITS: u32 = 8;
/// Slots in which a text can be; if more texts have the same first slot, the others are looked up each time.
const PROBES: usize = 4;
const NUMBER_MASK: u32 = (1 << 10) - 1;
const _: () = assert!(NAMES_MAX <= 1 << 10 && NAME_BYTES <= 1 << 6);

/// [`intern`] for a text that stays where it is; some 2 ns from the second time on.
pub(crate) fn intern_static(text: &'static str) -> u32 {
    let address = text.as_ptr().addr() as u64;
    let key = address << 6 | text.len().min(NAME_TEXT_BYTES) as u64;
    let first = first_place(address);
    for place in (0..PROBES).map(|step| &BY_ADDRESS[first.wrapping_add(step) % BY_ADDRESS.len()]) {
        let known = place.load(Ordering::Relaxed);
        if known >> 10 == key & u64::MAX >> 10 {
            return known as u32 & NUMBER_MASK;
        }
        if known == 0 {
            return intern_into(place, key, text);
        }
    }
    intern(text)
}

/// Texts lie close to each other, and two of a span that took each other's place would cost 100 ns: the best bits of a product.
fn first_place(address: u64) -> usize {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - ADDRESS_BITS)) as usize
}

#[cold]
fn intern_into(place: &AtomicU64, key: u64, text: &str) -> u32 {
    let was_possible = is_possible();
    let number = intern(text);
    if was_possible {
        place.store(key << 10 | u64::from(number), Ordering::Relaxed);
    }
    number
}

fn is_possible() -> bool {
    // Acquire: pairs with the store in `start`.
    CONTROL.magic.load(Ordering::Acquire) != 0
}

/// The number of a name, which is added to the table if it is new. Some 50 ns, so keep it. 0 before
/// [`crate::start`] and if the table is full, which is counted. Names with the same first 62 bytes are one.
pub fn intern(text: &str) -> u32 {
    if !is_possible() {
        return 0;
    }
    let words = words_of_name(text);
    if let Ok(number) = find(&words) {
        return number;
    }
    while IS_ADDING.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        spin_loop();
    }
    // Another thread may have added it meanwhile.
    let number = find(&words).unwrap_or_else(|bucket| add(&words, bucket));
    IS_ADDING.store(false, Ordering::Release);
    number
}

/// FNV-1a over words instead of bytes, and the better bits of it first.
fn hash(words: &[u64; NAME_BYTES / 8]) -> u64 {
    let hash = words.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3));
    hash ^ hash >> 32
}

/// The name's number, or the bucket that it would be put in; [`BUCKETS`] if there is none.
fn find(words: &[u64; NAME_BYTES / 8]) -> Result<u32, usize> {
    let first = hash(words) as usize;
    for bucket in (0..BUCKETS).map(|step| first.wrapping_add(step) % BUCKETS) {
        // Acquire: the entry was written before its number.
        match NUMBERS[bucket].load(Ordering::Acquire) {
            0 => return Err(bucket),
            number => {
                let entry = &CONTROL.names[number as usize % NAMES_MAX];
                if entry.iter().zip(words).all(|(stored, word)| stored.load(Ordering::Relaxed) == *word) {
                    return Ok(number);
                }
            }
        }
    }
    Err(BUCKETS)
}

fn add(words: &[u64; NAME_BYTES / 8], bucket: usize) -> u32 {
    let number = CONTROL.names_used.load(Ordering::Relaxed).max(1);
    if number as usize >= NAMES_MAX || bucket >= BUCKETS {
        // Only the first of the uses of a name is counted, but names that share a place push each other out.
        let hash = hash(words);
        if LOST[hash as usize % LOST.len()].swap(hash, Ordering::Relaxed) != hash {
            CONTROL.names_lost.fetch_add(1, Ordering::Relaxed);
        }
        return 0;
    }
    for (word, value) in CONTROL.names[number as usize].iter().zip(words) {
        word.store(*value, Ordering::Relaxed);
    }
    CONTROL.names_used.store(number + 1, Ordering::Release);
    NUMBERS[bucket].store(number, Ordering::Release);
    number
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;
    use std::string::String;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::vec::Vec;

    /// Whether tracing is possible belongs to the whole program; it is not at first.
    fn alone() -> MutexGuard<'static, ()> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        CONTROL.magic.store(0, Ordering::Release);
        guard
    }

    #[test]
    fn a_name_that_is_looked_up_too_early_gets_its_number_later() {
        let _alone = alone();
        static EARLY: Name = Name::new("early");
        assert_eq!((EARLY.number(), intern_static("early"), intern("early")), (0, 0, 0));
        CONTROL.magic.store(1, Ordering::Release);
        let number = intern("early");
        assert_ne!(number, 0);
        for _ in 0..2 {
            assert_eq!((EARLY.number(), intern_static("early")), (number, number));
        }
        // The same place, but another length.
        assert_ne!(intern_static(&EARLY.text()[..4]), number);
        assert_eq!(EARLY.text(), "early");
    }

    #[test]
    fn a_text_that_stays_is_looked_up_once_and_never_taken_for_a_neighbour() {
        let _alone = alone();
        CONTROL.magic.store(1, Ordering::Release);
        let digits: &'static str = String::leak((0..200).map(|number| format!("{number:03}")).collect());
        let few: Vec<&'static str> = (0..8).map(|start| &digits[start..start + 2]).collect();
        let numbers: Vec<u32> = few.iter().map(|text| intern_static(text)).collect();
        // Nothing can be looked up now.
        CONTROL.magic.store(0, Ordering::Release);
        assert_eq!(intern(few[0]), 0);
        assert_eq!(few.iter().map(|text| intern_static(text)).collect::<Vec<_>>(), numbers);
        CONTROL.magic.store(1, Ordering::Release);
        // More texts than can be known by their address.
        for text in (0..2).flat_map(|_| (0..500).map(|start| &digits[start..start + 3])) {
            assert_eq!(intern_static(text), intern(text), "{text}");
        }
    }
}
