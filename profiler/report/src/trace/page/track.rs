//! A track: slices that do not overlap, in order, with a pyramid of what they look like from farther away.

use serde::Serialize;

use super::kinds::{KINDS, TYPES, Weight};
use super::pack::{Class, Packer, Piece, varint, zigzag};

/// Entries of a piece.
const PIECE_ENTRIES: usize = 16_384;
/// A track with fewer slices is its own overview.
const PYRAMID_MIN: usize = 1_024;
/// A level of the pyramid that has more than this many buckets across the trace can get a coarser one.
const COARSEST_BUCKETS: u64 = 1_500;
/// Levels that are there when a page opens: the one before the coarsest is what a wide window shows of the whole.
const COARSE_LEVELS: usize = 2;
/// Characters of a text that a page keeps.
const TEXT_BYTES_MAX: usize = 2_000;

/// Slices under construction. Times are from the start of the trace.
pub struct Track {
    kind: usize,
    slices: Vec<Slice>,
    /// As many as the type has columns, for each slice.
    columns: Vec<u64>,
    texts: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Slice {
    start_ns: u64,
    end_ns: u64,
    name: u32,
    kind: u8,
}

/// A level: its pieces, and two to what power a bucket is wide; -1 for the slices themselves.
#[derive(Debug, Serialize)]
pub struct Level(pub i32, pub Vec<Piece>);

/// Where the slices of a track are, the slices first and the coarsest level last.
#[derive(Debug, Serialize)]
pub struct Written {
    pub levels: Vec<Level>,
    pub count: usize,
}

/// Neighbouring buckets of the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bucket {
    index: u64,
    run: u64,
    kind: u8,
    name: u32,
    /// Shares of the three weights in 255ths.
    cover: [u8; 3],
    /// Slices that start here.
    count: u64,
}

impl Track {
    /// A track of a type of [`TYPES`].
    pub fn new(kind: usize) -> Track {
        Track { kind, slices: Vec::new(), columns: Vec::new(), texts: Vec::new() }
    }

    pub fn push(&mut self, (start_ns, end_ns): (u64, u64), kind: u8, name: u32, columns: &[u64]) {
        debug_assert_eq!(columns.len(), TYPES[self.kind].columns.len());
        self.slices.push(Slice { start_ns, end_ns: end_ns.max(start_ns), name, kind });
        self.columns.extend_from_slice(columns);
    }

    /// The text of the slice that was pushed last.
    pub fn text(&mut self, mut text: String) {
        if text.len() > TEXT_BYTES_MAX {
            let end = (0..=TEXT_BYTES_MAX).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
            text.truncate(end);
            text.push('…');
        }
        self.texts.push(text);
    }

    /// Names, kinds, starts and durations of what is in it.
    pub fn each(&self, mut visit: impl FnMut(u32, u8, u64, u64)) {
        for slice in &self.slices {
            visit(slice.name, slice.kind, slice.start_ns, slice.end_ns - slice.start_ns);
        }
    }

    /// Brings slices in order and cuts those that overlap: what a guest writes may be anything.
    fn order(&mut self) {
        if !self.slices.is_sorted_by_key(|slice| (slice.start_ns, slice.end_ns)) {
            let width = TYPES[self.kind].columns.len();
            let mut order: Vec<u32> = (0..self.slices.len() as u32).collect();
            order.sort_by_key(|&index| {
                let slice = &self.slices[index as usize];
                (slice.start_ns, slice.end_ns)
            });
            self.slices = order.iter().map(|&index| self.slices[index as usize]).collect();
            let columns = &self.columns;
            self.columns =
                order.iter().flat_map(|&index| &columns[index as usize * width..][..width]).copied().collect();
            if !self.texts.is_empty() {
                self.texts = order.iter().map(|&index| std::mem::take(&mut self.texts[index as usize])).collect();
            }
        }
        let mut end = 0;
        for slice in &mut self.slices {
            slice.start_ns = slice.start_ns.max(end);
            slice.end_ns = slice.end_ns.max(slice.start_ns);
            end = slice.end_ns;
        }
    }

    /// Writes the track, of a trace of `duration_ns`. `near` is what its coarsest levels are: for a track that is not in
    /// sight at first, details like all others.
    pub fn write(mut self, packer: &mut Packer, duration_ns: u64, near: Class) -> Written {
        self.order();
        let mut levels = Vec::new();
        let mut finer = self.slices.len();
        if finer >= PYRAMID_MIN {
            for shift in (2..64).step_by(2) {
                if let Some(buckets) = buckets(&self.slices, shift, finer / 2) {
                    finer = buckets.len();
                    levels.push((shift, buckets));
                }
                if duration_ns >> shift <= COARSEST_BUCKETS {
                    break;
                }
            }
        }
        let class = |index: usize| if index + COARSE_LEVELS > levels.len() { near } else { Class::Detail };
        let mut written = vec![Level(-1, self.write_slices(packer, class(0)))];
        for (index, (shift, buckets)) in levels.iter().enumerate() {
            let class = class(index + 1);
            written.push(Level(*shift as i32, write_buckets(packer, class, buckets, *shift)));
        }
        Written { levels: written, count: self.slices.len() }
    }

    fn write_slices(&self, packer: &mut Packer, class: Class) -> Vec<Piece> {
        let width = TYPES[self.kind].columns.len();
        let has_text = TYPES[self.kind].has_text;
        let mut pieces = Vec::new();
        for (number, slices) in self.slices.chunks(PIECE_ENTRIES).enumerate() {
            let first = number * PIECE_ENTRIES;
            let range = (slices[0].start_ns, slices[slices.len() - 1].end_ns);
            pieces.push(packer.add(class, slices.len(), range, |bytes| {
                let mut end = range.0;
                for slice in slices {
                    varint(bytes, slice.start_ns - end);
                    end = slice.end_ns;
                }
                slices.iter().for_each(|slice| varint(bytes, slice.end_ns - slice.start_ns));
                slices.iter().for_each(|slice| bytes.push(slice.kind));
                slices.iter().for_each(|slice| varint(bytes, u64::from(slice.name)));
                for column in 0..width {
                    for index in first..first + slices.len() {
                        varint(bytes, self.columns[index * width + column]);
                    }
                }
                if has_text {
                    let texts = &self.texts[first..first + slices.len()];
                    texts.iter().for_each(|text| varint(bytes, text.len() as u64));
                    texts.iter().for_each(|text| bytes.extend_from_slice(text.as_bytes()));
                }
            }));
        }
        pieces
    }
}

fn write_buckets(packer: &mut Packer, class: Class, buckets: &[Bucket], shift: u32) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for buckets in buckets.chunks(PIECE_ENTRIES) {
        let last = &buckets[buckets.len() - 1];
        let range = (buckets[0].index << shift, (last.index + last.run) << shift);
        pieces.push(packer.add(class, buckets.len(), range, |bytes| {
            let mut end = buckets[0].index;
            for bucket in buckets {
                varint(bytes, bucket.index - end);
                end = bucket.index + bucket.run;
            }
            buckets.iter().for_each(|bucket| varint(bytes, bucket.run));
            buckets.iter().for_each(|bucket| bytes.push(bucket.kind));
            buckets.iter().for_each(|bucket| varint(bytes, u64::from(bucket.name)));
            for weight in 0..3 {
                buckets.iter().for_each(|bucket| bytes.push(bucket.cover[weight]));
            }
            buckets.iter().for_each(|bucket| varint(bytes, bucket.count));
        }));
    }
    pieces
}

/// A bucket that is being filled.
#[derive(Default)]
struct Filling {
    index: u64,
    /// Nanoseconds of each weight.
    cover: [u64; 3],
    /// Slices without length.
    marks: u64,
    /// The longest part of each weight, and what it was.
    most: [(u64, u8, u32); 3],
    count: u64,
    is_used: bool,
}

impl Filling {
    fn add(&mut self, slice: &Slice, ns: u64) {
        let weight = match KINDS[slice.kind as usize].weight {
            Weight::Strong => 0,
            Weight::Middle => 1,
            Weight::Faint => 2,
        };
        self.is_used = true;
        self.cover[weight] = self.cover[weight].saturating_add(ns);
        self.marks += u64::from(slice.start_ns == slice.end_ns);
        if ns >= self.most[weight].0 {
            self.most[weight] = (ns, slice.kind, slice.name);
        }
    }

    fn bucket(&self, width_ns: u64) -> Bucket {
        let mut cover = self.cover.map(|ns| (u128::from(ns) * 255).div_ceil(u128::from(width_ns)).min(255) as u8);
        if self.marks > 0 {
            // Events have no length: their number is what is seen of them.
            cover[0] = cover[0].max(self.marks.saturating_mul(12).saturating_add(48).min(255) as u8);
        }
        let weight = (0..3).find(|&weight| cover[weight] > 0).unwrap_or(0);
        let (_, kind, name) = self.most[weight];
        Bucket { index: self.index, run: 1, kind, name, cover, count: self.count }
    }
}

/// What slices look like in buckets of `1 << shift` nanoseconds; `None` if that takes more than `limit` entries.
fn buckets(slices: &[Slice], shift: u32, limit: usize) -> Option<Vec<Bucket>> {
    let width_ns = 1_u64 << shift;
    let mut done = Vec::new();
    let mut now = Filling::default();
    for slice in slices {
        let first = slice.start_ns >> shift;
        let last = slice.end_ns.saturating_sub(1).max(slice.start_ns) >> shift;
        if now.index != first || !now.is_used {
            flush(&mut done, &now, width_ns);
            now = Filling { index: first, ..Filling::default() };
        }
        now.count += 1;
        let bucket_end = (slice.start_ns | (width_ns - 1)).saturating_add(1);
        now.add(slice, slice.end_ns.min(bucket_end) - slice.start_ns);
        if last > first {
            flush(&mut done, &now, width_ns);
            now = Filling { index: last, ..Filling::default() };
            if last - first > 1 {
                let mut whole = Filling { index: first + 1, ..Filling::default() };
                whole.add(slice, width_ns);
                done.push(Bucket { run: last - first - 1, ..whole.bucket(width_ns) });
            }
            now.add(slice, slice.end_ns - (last << shift));
        }
        if done.len() > limit {
            return None;
        }
    }
    flush(&mut done, &now, width_ns);
    (done.len() <= limit).then_some(done)
}

fn flush(done: &mut Vec<Bucket>, now: &Filling, width_ns: u64) {
    if now.is_used {
        done.push(now.bucket(width_ns));
    }
}

/// Writes steps of a counter: times and values, and levels of lowest, highest and last value.
pub fn write_counter(points: &[(u64, i64)], packer: &mut Packer, duration_ns: u64, near: Class) -> Written {
    let mut levels = Vec::new();
    let mut finer = points.len();
    if finer >= PYRAMID_MIN {
        for shift in (2..64).step_by(2) {
            let level = steps(points, shift);
            if level.len() <= finer / 2 {
                finer = level.len();
                levels.push((shift as i32, level));
            }
            if duration_ns >> shift <= COARSEST_BUCKETS {
                break;
            }
        }
    }
    let exact: Vec<Step> =
        points.iter().map(|&(time, value)| Step { index: time, low: value, high: value, last: value }).collect();
    let class = |index: usize| if index + COARSE_LEVELS > levels.len() { near } else { Class::Detail };
    let mut written = vec![Level(-1, write_steps(packer, class(0), &exact, 0))];
    for (index, (shift, steps)) in levels.iter().enumerate() {
        written.push(Level(*shift, write_steps(packer, class(index + 1), steps, *shift as u32)));
    }
    Written { levels: written, count: points.len() }
}

/// What a counter was in a bucket.
struct Step {
    index: u64,
    low: i64,
    high: i64,
    last: i64,
}

fn steps(points: &[(u64, i64)], shift: u32) -> Vec<Step> {
    let mut done: Vec<Step> = Vec::new();
    for &(time, value) in points {
        match done.last_mut().filter(|step| step.index == time >> shift) {
            Some(step) => {
                step.low = step.low.min(value);
                step.high = step.high.max(value);
                step.last = value;
            }
            None => done.push(Step { index: time >> shift, low: value, high: value, last: value }),
        }
    }
    done
}

fn write_steps(packer: &mut Packer, class: Class, steps: &[Step], shift: u32) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for steps in steps.chunks(PIECE_ENTRIES) {
        let range = (steps[0].index << shift, steps[steps.len() - 1].index << shift);
        pieces.push(packer.add(class, steps.len(), range, |bytes| {
            let mut before = steps[0].index;
            for step in steps {
                varint(bytes, step.index.saturating_sub(before));
                before = step.index.max(before);
            }
            let mut before = 0_i64;
            for step in steps {
                varint(bytes, zigzag(step.last.wrapping_sub(before)));
                before = step.last;
            }
            steps.iter().for_each(|step| varint(bytes, step.last.wrapping_sub(step.low) as u64));
            steps.iter().for_each(|step| varint(bytes, step.high.wrapping_sub(step.last) as u64));
        }));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{READY, RUN, wait};
    use super::*;
    use glass_profiler_core::trace::model::BlockKind;

    fn slice(start_ns: u64, end_ns: u64, kind: u8, name: u32) -> Slice {
        Slice { start_ns, end_ns, name, kind }
    }

    #[test]
    fn buckets_say_how_much_of_what() {
        let waits = wait(BlockKind::Timer);
        let slices = [
            slice(0, 4, RUN, 1),
            slice(4, 8, READY, 2),
            slice(8, 80, waits, 3),
            slice(80, 81, RUN, 4),
            slice(81, 90, waits, 5),
        ];
        let seen = buckets(&slices, 4, 100).expect("fits");
        let expected = [
            Bucket { index: 0, run: 1, kind: RUN, name: 1, cover: [64, 64, 128], count: 3 },
            Bucket { index: 1, run: 3, kind: waits, name: 3, cover: [0, 0, 255], count: 0 },
            Bucket { index: 4, run: 1, kind: waits, name: 3, cover: [0, 0, 255], count: 0 },
            Bucket { index: 5, run: 1, kind: RUN, name: 4, cover: [16, 0, 144], count: 2 },
        ];
        assert_eq!(seen, expected);
        assert!(buckets(&slices, 4, 3).is_none());
    }

    #[test]
    fn marks_are_seen_by_their_number() {
        let slices: Vec<Slice> = (0..3).map(|time| slice(time, time, 23, 0)).collect();
        let seen = buckets(&slices, 10, 100).expect("fits");
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].cover[0], seen[0].count), (48 + 36, 3));
    }

    #[test]
    fn overlaps_are_cut_and_order_is_made() {
        let mut track = Track::new(super::super::kinds::INTERRUPTS);
        track.push((50, 90), 32, 2, &[2]);
        track.push((0, 60), 32, 1, &[1]);
        track.push((70, 75), 32, 3, &[3]);
        track.order();
        let seen: Vec<(u64, u64, u32)> =
            track.slices.iter().map(|slice| (slice.start_ns, slice.end_ns, slice.name)).collect();
        assert_eq!(seen, [(0, 60, 1), (60, 90, 2), (90, 90, 3)]);
        assert_eq!(track.columns, [1, 2, 3]);
    }

    #[test]
    fn levels_shrink() {
        let mut track = Track::new(super::super::kinds::INTERRUPTS);
        for number in 0..100_000 {
            track.push((number * 1_000, number * 1_000 + 100), 32, 1, &[0]);
        }
        let written = track.write(&mut Packer::new(), 100_000_000, Class::Overview);
        let entries: Vec<(i32, u32)> =
            written.levels.iter().map(|level| (level.0, level.1.iter().map(|piece| piece.count).sum())).collect();
        assert_eq!(entries[0], (-1, 100_000));
        assert!(entries.windows(2).all(|pair| pair[1].1 <= pair[0].1 / 2), "{entries:?}");
        assert!(entries.last().is_some_and(|last| last.1 <= 2_000), "{entries:?}");
    }
}
