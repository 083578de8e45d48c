//! What a power cut may leave: the durable writes of an epoch, and any part of the others.

use crate::log::Log;
use fastrand::Rng;
use std::iter;
use std::ops::Range;

/// What is there of a write that may be lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// These of its sectors, from 0 on, in order.
    Sectors(Vec<Range<u64>>),
}

/// A state of the disk: what is durable in an epoch, and beside it parts of writes that are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The power is cut at the end of this epoch.
    pub epoch: usize,
    /// What is there of writes that are not durable, in order of arrival. All others are lost.
    pub kept: Vec<(u32, Part)>,
}

impl State {
    /// What is there of a write that is not durable.
    pub fn part(&self, write: u32) -> Option<&Part> {
        let place = self.kept.binary_search_by_key(&write, |(write, _)| *write).ok()?;
        Some(&self.kept[place].1)
    }

    /// Writes that had arrived and are not there, or not whole.
    pub fn missing(&self, log: &Log) -> Vec<u32> {
        let is_missing = |write: &u32| self.part(*write) != Some(&Part::Whole);
        log.unflushed(self.epoch).into_iter().filter(is_missing).collect()
    }

    /// The same state with these writes whole.
    pub fn with_whole(&self, writes: &[u32]) -> State {
        let mut kept: Vec<(u32, Part)> =
            self.kept.iter().filter(|(write, _)| !writes.contains(write)).cloned().collect();
        kept.extend(writes.iter().map(|write| (*write, Part::Whole)));
        kept.sort_unstable_by_key(|(write, _)| *write);
        State { epoch: self.epoch, kept }
    }

    /// Moves the cut to the latest moment at which it may leave this: the more was acknowledged before, the more must be there.
    fn latest(mut self, log: &Log) -> State {
        while let Some(next) = log.epochs.get(self.epoch + 1) {
            let is_there = |write: &u32| {
                log.writes[*write as usize].is_durable(self.epoch) || self.part(*write) == Some(&Part::Whole)
            };
            if !next.durable.iter().all(is_there) {
                break;
            }
            self.epoch += 1;
            let epoch = self.epoch;
            self.kept.retain(|(write, _)| !log.writes[*write as usize].is_durable(epoch));
        }
        self
    }
}

/// Ways to lose something.
const KINDS: u64 = 6;

/// Chooses states, the same ones for the same seed.
#[derive(Debug, Clone)]
pub struct Chooser<'log> {
    log: &'log Log,
    seed: u64,
    /// How many states have their epochs spread over the log; within these, epochs ascend.
    round: u64,
}

impl Chooser<'_> {
    /// For about so many states.
    pub fn new(log: &Log, seed: u64, states: u64) -> Chooser<'_> {
        let round = (states / 4).clamp(8, 256).min(log.epochs.len() as u64);
        Chooser { log, seed, round }
    }

    /// The state with a number, from 0 on. Some are equal.
    pub fn state(&self, number: u64) -> State {
        let mut random = Rng::with_seed(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
        let (round, place) = (number / self.round, number % self.round);
        let epochs = self.log.epochs.len() as f64;
        // Multiples of the golden ratio: each round meets other epochs, as far from those before as possible.
        let shift = (round as f64 * 0.618_033_988_749_895 + self.seed as f64 * 0.414_213_562_373_095).fract();
        let epoch = ((place as f64 + shift) * epochs / self.round as f64) as usize;
        let epoch = epoch.min(self.log.epochs.len() - 1);
        let kept = self.keep((place + round) % KINDS, &self.log.unflushed(epoch), &mut random);
        State { epoch, kept }.latest(self.log)
    }

    fn keep(&self, kind: u64, writes: &[u32], random: &mut Rng) -> Vec<(u32, Part)> {
        let whole = |write: u32| (write, Part::Whole);
        if writes.is_empty() {
            return Vec::new();
        }
        let one = random.usize(..writes.len());
        match kind {
            // Nothing but what is durable.
            0 => Vec::new(),
            // The first ones, in order of arrival: as a disk without a cache.
            1 => writes[..one].iter().copied().map(whole).collect(),
            // All but one.
            2 => writes.iter().copied().filter(|write| *write != writes[one]).map(whole).collect(),
            // The first ones, and a part of the next one.
            3 => {
                let torn = self.torn(writes[one], random);
                writes[..one].iter().copied().map(whole).chain(torn).collect()
            }
            // One alone.
            4 => vec![whole(writes[one])],
            // Any.
            _ => {
                let share = [0.25, 0.5, 0.75][random.usize(..3)];
                let mut kept = Vec::new();
                for write in writes {
                    if random.f64() < 0.2 {
                        kept.extend(self.torn(*write, random));
                    } else if random.f64() < share {
                        kept.push(whole(*write));
                    }
                }
                kept
            }
        }
    }

    /// A part of a write; nothing of a write of one sector.
    fn torn(&self, write: u32, random: &mut Rng) -> Option<(u32, Part)> {
        let sectors = self.log.writes[write as usize].sectors();
        if sectors < 2 {
            return None;
        }
        let at = random.u64(1..sectors);
        let ranges: Vec<Range<u64>> = match random.u8(..4) {
            0 | 1 => iter::once(0..at).collect(),
            2 => iter::once(at..sectors).collect(),
            // Every other piece of some length.
            _ => {
                let step = 1 + random.u64(..sectors / 2);
                let starts = (0..sectors).step_by(step as usize * 2);
                starts.map(|start| start..(start + step).min(sectors)).collect()
            }
        };
        let is_whole = ranges.iter().map(|range| range.end - range.start).sum::<u64>() == sectors;
        let part = if is_whole { Part::Whole } else { Part::Sectors(ranges) };
        Some((write, part))
    }
}
