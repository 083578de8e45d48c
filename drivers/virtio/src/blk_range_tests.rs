//! Requests of the disk driver without data: to discard, and to set to zero.

use crate::blk_tests::{ALL, Platter, SECTORS, config, finish};
use crate::transport::feature;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::{Context, Poll, Waker};
use glass_api::{Block, BlockError};
use glass_drivers_device::{BlockDevice, Disk, Driver, Request, SubmitError};

/// The configuration of a device with both requests for ranges, of at most so many sectors.
fn config_with_ranges(discard_sectors: u32, zeroes_sectors: u32) -> Vec<u8> {
    let mut bytes = config(0, 126, 512);
    bytes.resize(60, 0);
    bytes[36..40].copy_from_slice(&discard_sectors.to_le_bytes());
    bytes[48..52].copy_from_slice(&zeroes_sectors.to_le_bytes());
    bytes
}

#[test]
fn ranges_are_discarded_and_set_to_zero_in_pieces() {
    let features = ALL | feature::BLK_DISCARD | feature::BLK_WRITE_ZEROES;
    let (mut platter, mut blk) = Platter::new(features, &config_with_ranges(8, 3));
    assert!(blk.writes_zeroes());
    blk.submit(Request::Discard { offset: 1024, len: 20 * 512 }).unwrap();
    assert_eq!(finish(&mut platter, &mut blk).len(), 1);
    platter.ranges.sort_unstable();
    assert_eq!(platter.ranges, [(11, 2, 8), (11, 10, 8), (11, 18, 4)]);
    platter.ranges.clear();
    blk.submit(Request::WriteZeroes { offset: 512, len: 4 * 512 }).unwrap();
    blk.submit(Request::WriteZeroes { offset: 0, len: 0 }).unwrap();
    let outcomes = finish(&mut platter, &mut blk);
    assert!(outcomes.len() == 2 && outcomes.iter().all(|(_, result, buf)| result.is_ok() && buf.is_none()));
    platter.ranges.sort_unstable();
    assert_eq!(platter.ranges, [(13, 1, 3), (13, 4, 1)]);
    assert_eq!(platter.bytes[512..5 * 512], [0; 2048]);
    let mut refused = |request| match blk.submit(request) {
        Err((SubmitError::Refused(error), _)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(Request::Discard { offset: 1, len: 512 }), BlockError::Misaligned { .. }));
    let past_the_end = Request::WriteZeroes { offset: SECTORS * 512, len: 512 };
    assert!(matches!(refused(past_the_end), BlockError::OutOfRange { .. }));
}

#[test]
fn a_device_without_ranges_discards_nothing_and_gets_zeroes_as_data() {
    // Without the features, and with them but no room for a sector.
    let both = feature::BLK_DISCARD | feature::BLK_WRITE_ZEROES;
    for (features, config) in [(ALL, config_with_ranges(8, 8)), (ALL | both, config_with_ranges(0, 0))] {
        let (mut platter, mut blk) = Platter::new(features, &config);
        let before = platter.bytes.clone();
        blk.submit(Request::Discard { offset: 0, len: 1024 }).unwrap();
        assert_eq!(finish(&mut platter, &mut blk).len(), 1);
        assert!(platter.bytes == before && platter.ranges.is_empty());
        assert!(!blk.writes_zeroes());
        let disk = Disk::new(blk);
        let mut zeroes = Box::pin(disk.write_zeroes(512, 1024));
        let mut driver = disk.clone();
        let mut context = Context::from_waker(Waker::noop());
        let result = loop {
            match zeroes.as_mut().poll(&mut context) {
                Poll::Ready(result) => break result,
                Poll::Pending => {
                    platter.answer_all();
                    driver.poll();
                }
            }
        };
        assert_eq!(result, Ok(()));
        assert_eq!(platter.bytes[512..1536], [0; 1024]);
        assert_eq!(platter.bytes[1536..], before[1536..]);
    }
}

#[test]
fn a_read_only_disk_refuses_ranges() {
    let features = ALL | feature::BLK_RO | feature::BLK_DISCARD | feature::BLK_WRITE_ZEROES;
    let (_, mut blk) = Platter::new(features, &config_with_ranges(8, 8));
    for request in [Request::Discard { offset: 0, len: 512 }, Request::WriteZeroes { offset: 0, len: 512 }] {
        let refused = blk.submit(request);
        assert!(matches!(refused, Err((SubmitError::Refused(BlockError::ReadOnly), _))), "{refused:?}");
    }
}
