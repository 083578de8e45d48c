//! Logs are read, and those that are damaged are refused or read up to there.

use crate::common::{Maker, SECTOR, read};

static BASE: [u8; 64 * SECTOR] = [0; 64 * SECTOR];

/// A flush makes durable what had completed when it arrived, and nothing that completed later.
#[test]
fn a_flush_covers_what_had_completed_before_it() {
    let mut maker = Maker::new(&BASE);
    maker.written(0, 1, 1);
    let late = maker.write(1, &[2; SECTOR], false);
    let flush = maker.flush();
    maker.complete(late, false);
    maker.complete(flush, false);
    let log = maker.read();
    assert_eq!(log.epochs.len(), 2);
    assert_eq!((log.unflushed(0), log.unflushed(1)), (vec![0, 1], vec![1]));
    assert_eq!(log.epochs[0].end_request, Some(flush));
    assert_eq!((log.epochs[0].end_ns, log.flushes), (maker.now(), 1));
}

#[test]
fn requests_that_fail_make_nothing_durable() {
    let mut maker = Maker::new(&BASE);
    maker.written(0, 1, 1);
    let flush = maker.flush();
    maker.complete(flush, true);
    let write = maker.write(1, &[2; SECTOR], false);
    maker.complete(write, true);
    maker.flushed();
    maker.flushed();
    let log = maker.read();
    // The second flush has nothing more to make durable.
    assert_eq!((log.epochs.len(), log.flushes), (2, 2));
    assert_eq!(log.unflushed(1), [1]);
}

#[test]
fn writes_through_are_durable_when_they_complete() {
    let mut maker = Maker::new(&BASE);
    let through = maker.write(3, &[7; SECTOR], true);
    maker.written(4, 8, 1);
    maker.complete(through, false);
    let log = maker.read();
    assert_eq!((log.unflushed(0), log.unflushed(1)), (vec![0, 1], vec![1]));
}

#[test]
fn a_log_that_ends_early_is_read_up_to_there() {
    let mut maker = Maker::new(&BASE);
    maker.written(0, 1, 2);
    maker.flushed();
    let whole = maker.bytes.len();
    maker.write(5, &[1; SECTOR], false);
    for end in whole..maker.bytes.len() {
        let log = read(&maker.bytes[..end]).unwrap();
        assert_eq!((log.writes.len(), log.epochs.len(), log.remarks.len()), (1, 2, 1));
    }
    maker.end();
    assert!(maker.read().remarks.is_empty());
    assert_eq!(maker.read().writes.len(), 2);
}

#[test]
fn damaged_logs_are_refused() {
    let mut maker = Maker::new(&BASE);
    maker.written(0, 1, 1);
    let twice = maker.write(1, &[2; SECTOR], false);
    let before = maker.bytes.clone();
    let error = |change: &dyn Fn(&mut Maker)| {
        let mut maker = Maker::new(&BASE);
        maker.bytes = before.clone();
        change(&mut maker);
        format!("{:#}", read(&maker.bytes).unwrap_err())
    };
    assert!(error(&|maker| maker.bytes[0] = 0).contains("no log"));
    assert!(error(&|maker| maker.bytes[64] = 9).contains("damaged at byte 64"));
    assert!(error(&|maker| maker.bytes[64 + 8] = 0).contains("time runs backwards"));
    let mut completes = Maker::new(&BASE);
    completes.written(0, 1, 1);
    completes.complete(0, false);
    assert!(format!("{:#}", read(&completes.bytes).unwrap_err()).contains("not in flight"));
    // The number of a request that is in flight.
    let mut same = before.clone();
    let last = same.len() - SECTOR - 32;
    let copy = same[last..].to_vec();
    same.extend(copy);
    assert!(format!("{:#}", read(&same).unwrap_err()).contains("one number"), "{twice}");
}
