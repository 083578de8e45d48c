//! States are what a power cut may leave, each of them, and nothing else.

use crate::common::{Folder, Maker, SECTOR, sectors};
use glass_profiler_powercut::image::Builder;
use glass_profiler_powercut::log::Log;
use glass_profiler_powercut::state::{Chooser, Part, State};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};
use std::fs;

const SECTORS: usize = 64;
static BASE: [u8; SECTORS * SECTOR] = [0xee; SECTORS * SECTOR];

/// The images of the first states.
fn images(name: &str, maker: &Maker, seed: u64, count: u64) -> Vec<(State, u64, Vec<u8>)> {
    let folder = Folder::new(name, &BASE);
    let log = maker.read();
    let mut builder = Builder::new(&log, &maker.bytes[..], &folder.base(), &folder.0).unwrap();
    let chooser = Chooser::new(&log, seed, count);
    let path = folder.0.join("state.img");
    let image = |number| {
        let state = chooser.state(number);
        let hash = builder.hash(&state).unwrap();
        builder.build(&state, &path).unwrap();
        (state, hash, sectors(&path))
    };
    (0..count).map(image).collect()
}

#[test]
fn two_unflushed_writes_have_every_subset() {
    let mut maker = Maker::new(&BASE);
    maker.written(0, 1, 1);
    maker.flushed();
    maker.written(1, 2, 1);
    maker.written(2, 3, 1);
    maker.flushed();
    maker.end();
    let found: BTreeSet<_> =
        images("subsets", &maker, 1, 60).into_iter().map(|(_, _, image)| image[..3].to_vec()).collect();
    let all = [[0xee; 3], [1, 0xee, 0xee], [1, 2, 0xee], [1, 0xee, 3], [1, 2, 3]];
    assert_eq!(found, all.iter().map(|image| image.to_vec()).collect());
}

/// Of two writes to one place either may be the last that is there.
#[test]
fn an_older_write_may_outlive_a_newer_one() {
    let mut maker = Maker::new(&BASE);
    maker.written(5, 1, 1);
    maker.written(5, 2, 1);
    maker.end();
    let found: BTreeSet<_> = images("overlap", &maker, 1, 60).into_iter().map(|(_, _, image)| image[5]).collect();
    assert_eq!(found, BTreeSet::from([0xee, 1, 2]));
}

#[test]
fn writes_are_torn_between_sectors() {
    let mut maker = Maker::new(&BASE);
    maker.written(8, 1, 8);
    maker.end();
    let found: BTreeSet<_> =
        images("torn", &maker, 1, 200).into_iter().map(|(_, _, image)| image[8..16].to_vec()).collect();
    let is_old = |sectors: &[u8]| sectors.iter().all(|sector| *sector == 0xee);
    let is_new = |sectors: &[u8]| sectors.iter().all(|sector| *sector == 1);
    assert!(found.iter().any(|image| is_new(&image[..3]) && is_old(&image[4..])), "a start");
    assert!(found.iter().any(|image| is_old(&image[..1]) && is_new(&image[7..])), "an end");
    let changes = |image: &[u8]| image.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(found.iter().any(|image| changes(image) > 1), "pieces");
    assert!(found.len() > 10, "{}", found.len());
}

/// What is durable survives a write that arrived before and completed later.
#[test]
fn a_durable_write_is_not_overwritten_by_an_earlier_one() {
    let mut maker = Maker::new(&BASE);
    let early = maker.write(5, &[1; SECTOR], false);
    let through = maker.write(5, &[2; SECTOR], true);
    maker.complete(through, false);
    maker.complete(early, false);
    maker.end();
    for (state, _, image) in images("order", &maker, 1, 60) {
        assert!(state.epoch == 0 || image[5] == 2, "{state:?}");
    }
}

/// The cut is at the latest moment that can leave a state.
#[test]
fn a_state_that_a_later_cut_can_leave_is_of_that_cut() {
    let mut maker = Maker::new(&BASE);
    for (sector, byte) in [(0, 1), (1, 2), (2, 3)] {
        maker.written(sector, byte, 1);
        maker.flushed();
    }
    maker.end();
    for (state, _, image) in images("latest", &maker, 1, 40) {
        let there = image[..3].iter().take_while(|byte| **byte != 0xee).count();
        assert_eq!(state.epoch, there);
    }
}

#[test]
fn the_seed_determines_the_states() {
    let mut maker = Maker::new(&BASE);
    for sector in 0..20 {
        maker.written(sector, sector as u8 + 1, 2);
        if sector % 5 == 4 {
            maker.flushed();
        }
    }
    maker.end();
    let of_seed = |name, seed| images(name, &maker, seed, 50).into_iter().map(|(_, hash, _)| hash).collect::<Vec<_>>();
    let first = of_seed("seed-1", 1);
    assert_eq!(first, of_seed("seed-1-again", 1));
    assert_ne!(first, of_seed("seed-2", 2));
    let different = first.iter().collect::<BTreeSet<_>>().len();
    assert!(different > 30, "{different} of {} states are different", first.len());
}

#[test]
fn another_image_is_refused() {
    let maker = Maker::new(&BASE);
    let log = maker.read();
    let mut other = BASE;
    other[0] = 1;
    let folder = Folder::new("other", &other);
    let refused = Builder::new(&log, &maker.bytes[..], &folder.base(), &folder.0).err().unwrap().to_string();
    assert!(refused.contains("is not the image that the disk of the log had"), "{refused}");
    fs::write(folder.base(), [0; SECTOR]).unwrap();
    let refused = Builder::new(&log, &maker.bytes[..], &folder.base(), &folder.0).err().unwrap().to_string();
    assert!(refused.contains("has 512 bytes"), "{refused}");
}

/// What a guest does.
#[derive(Debug, Clone)]
enum Step {
    Write {
        sector: u64,
        sectors: usize,
        is_durable: bool,
    },
    Zero {
        sector: u64,
        sectors: u64,
    },
    Flush,
    /// One of the requests in flight.
    Complete {
        index: usize,
        is_failed: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..SECTORS as u64 - 8, 1..8_usize, prop::bool::weighted(0.1))
            .prop_map(|(sector, sectors, is_durable)| Step::Write { sector, sectors, is_durable }),
        1 => (0..SECTORS as u64 - 8, 1..8_u64).prop_map(|(sector, sectors)| Step::Zero { sector, sectors }),
        2 => Just(Step::Flush),
        6 => (0..8_usize, prop::bool::weighted(0.1)).prop_map(|(index, is_failed)| Step::Complete { index, is_failed }),
    ]
}

/// The log of steps, each write with a byte of its own.
fn log_of(steps: &[Step]) -> Maker {
    let mut maker = Maker::new(&BASE);
    let (mut in_flight, mut byte) = (Vec::new(), 0_u8);
    for step in steps {
        match *step {
            Step::Write { sector, sectors, is_durable } => {
                byte += 1;
                in_flight.push(maker.write(sector, &vec![byte; sectors * SECTOR], is_durable));
            }
            Step::Zero { sector, sectors } => in_flight.push(maker.zero(sector, sectors)),
            Step::Flush => in_flight.push(maker.flush()),
            Step::Complete { index, is_failed } if !in_flight.is_empty() => {
                let request = in_flight.remove(index % in_flight.len());
                maker.complete(request, is_failed);
            }
            Step::Complete { .. } => {}
        }
    }
    maker.end();
    maker
}

/// What a sector may be at the end of an epoch: what the last durable write has left, or any write that arrived later.
fn may_be(log: &Log, epoch: usize, sector: u64) -> BTreeSet<u8> {
    let mut may = BTreeSet::from([0xee]);
    let mut byte = 0;
    for write in &log.writes {
        byte += u8::from(write.data.is_some());
        let range = write.offset / SECTOR as u64..(write.offset + write.bytes) / SECTOR as u64;
        if write.arrived as usize > epoch || !range.contains(&sector) {
            continue;
        }
        if write.is_durable(epoch) {
            may.clear();
        }
        may.insert(write.data.map_or(0, |_| byte));
    }
    may
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn every_state_is_one_that_a_cut_may_leave(steps in prop::collection::vec(step(), 1..120), seed in 0..1000_u64) {
        let maker = log_of(&steps);
        let log = maker.read();
        let mut by_hash: HashMap<u64, Vec<u8>> = HashMap::new();
        for (state, hash, image) in images(&format!("any-{seed}"), &maker, seed, 24) {
            for (sector, byte) in (0..).zip(&image) {
                let may = may_be(&log, state.epoch, sector);
                prop_assert!(may.contains(byte), "sector {sector} is {byte}, not one of {may:?}: {state:?}");
            }
            // Equal hashes are equal contents, and the other way round.
            let other = by_hash.entry(hash).or_insert_with(|| image.clone());
            prop_assert_eq!(&*other, &image);
            for (write, part) in &state.kept {
                let sectors = log.writes[*write as usize].sectors();
                if let Part::Sectors(ranges) = part {
                    prop_assert!(ranges.iter().all(|range| range.start < range.end && range.end <= sectors));
                }
            }
        }
        let contents: BTreeSet<_> = by_hash.values().collect();
        prop_assert_eq!(contents.len(), by_hash.len());
    }
}
