//! Logs of a disk's writes.

use std::io::Cursor;

use glass_formats::write_log::{Header, Kind, Record};
use glass_profiler_powercut::log::Log;
use glass_profiler_powercut::state::{Chooser, Part};

use super::Target;

/// A log, and states that are derived from it.
pub struct WriteLogs;

/// States of a log.
const STATES: u64 = 12;

fn example(flushes: bool) -> Vec<u8> {
    let header = Header { disk_bytes: 1 << 20, start_ns: 10, fingerprint: 0 };
    let mut bytes = header.to_bytes().to_vec();
    let mut time_ns = 10;
    let mut add = |kind, request, offset, length: u64| {
        time_ns += 5;
        bytes.extend(Record { kind, request, time_ns, offset, bytes: length }.to_bytes());
        if matches!(kind, Kind::Write { .. }) {
            bytes.extend(vec![request as u8; length as usize]);
        }
    };
    for group in 0..6 {
        let first = group * 4;
        add(Kind::Write { is_durable: group == 3 }, first, 4096 * u64::from(group), 2048);
        add(Kind::Zero { is_durable: false }, first + 1, 8192, 1024);
        add(Kind::Complete { is_failed: false }, first, 0, 0);
        add(Kind::Complete { is_failed: group == 2 }, first + 1, 0, 0);
        if flushes {
            add(Kind::Flush, first + 2, 0, 0);
            add(Kind::Complete { is_failed: false }, first + 2, 0, 0);
        }
    }
    add(Kind::Discard, 40, 0, 4096);
    add(Kind::End { is_cut: true }, 41, 0, 0);
    bytes
}

impl Target for WriteLogs {
    fn name(&self) -> &'static str {
        "write-log"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        vec![example(true), example(false)]
    }

    fn run(&self, input: &[u8]) {
        let Ok(log) = Log::read(Cursor::new(input), input.len() as u64) else { return };
        let chooser = Chooser::new(&log, 1, STATES);
        for number in 0..STATES {
            let state = chooser.state(number);
            let unflushed = log.unflushed(state.epoch);
            assert!(state.missing(&log).len() <= unflushed.len());
            for (write, part) in &state.kept {
                assert!(unflushed.binary_search(write).is_ok(), "a durable write is kept twice");
                let found = &log.writes[*write as usize];
                assert!(found.offset + found.bytes <= log.header.disk_bytes);
                assert!(found.data.is_none_or(|at| at + found.bytes <= input.len() as u64));
                if let Part::Sectors(ranges) = part {
                    assert!(ranges.iter().all(|range| range.start < range.end && range.end <= found.sectors()));
                }
            }
        }
    }
}
