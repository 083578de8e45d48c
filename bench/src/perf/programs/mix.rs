//! Hashes, sorts and formats until it is killed.

use std::collections::HashMap;

#[inline(never)]
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

struct Table(HashMap<u64, u64>);

impl Table {
    #[inline(never)]
    fn count(&mut self, key: u64) {
        *self.0.entry(key & 1023).or_default() += 1;
    }
}

#[inline(never)]
fn texts(count: u64) -> usize {
    (0..count).map(|index| format!("{index:x} and {}", index * 7).len()).sum()
}

#[inline(never)]
fn sort(values: &mut [u64]) {
    values.sort_unstable();
}

fn main() {
    let (mut table, mut state, mut sum) = (Table(HashMap::new()), 1u64, 0u64);
    let bytes = vec![3u8; 1 << 15];
    loop {
        let mut values: Vec<u64> = (0..2048)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state >> 20
            })
            .collect();
        values.iter().for_each(|value| table.count(*value));
        sort(&mut values);
        sum = sum.wrapping_add(checksum(&bytes)).wrapping_add(texts(300) as u64).wrapping_add(values[7]);
        std::hint::black_box(sum);
    }
}
