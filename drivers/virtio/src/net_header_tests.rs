//! Checksums and segments of frames that the device verifies, completes and cuts.

use crate::net_header::{self, HEADER_BYTES};
use crate::net_tests::frame;
use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU16;
use glass_drivers_device::{Offload, Segmentation, Sum, Verdict};
use proptest::prelude::*;

#[test]
fn an_extension_header_does_not_hide_a_wrong_checksum() {
    let plain = frame(6, 17, b"payload");
    let extend = |next: u8| {
        let mut extended = plain[..54].to_vec();
        extended[20] = next;
        extended[18..20].copy_from_slice(&(8 + 15u16).to_be_bytes());
        extended.extend([17, 0, 1, 4, 0, 0, 0, 0]);
        extended.extend_from_slice(&plain[54..]);
        extended
    };
    for next in [0, 43, 60] {
        let mut extended = extend(next);
        assert_eq!(net_header::verify(&[0; HEADER_BYTES], &extended), Verdict::Good);
        extended[70] ^= 1;
        assert_eq!(net_header::verify(&[0; HEADER_BYTES], &extended), Verdict::Wrong);
    }
    // One of 24 bytes.
    let mut long = extend(0);
    long[55] = 2;
    long.splice(62..62, [0; 16]);
    long[18..20].copy_from_slice(&(24 + 15u16).to_be_bytes());
    assert_eq!(net_header::verify(&[0; HEADER_BYTES], &long), Verdict::Good);
    *long.last_mut().unwrap() ^= 1;
    assert_eq!(net_header::verify(&[0; HEADER_BYTES], &long), Verdict::Wrong);
    assert_eq!(net_header::verify(&[0; HEADER_BYTES], &extend(44)), Verdict::Fragment);
}

#[test]
fn options_do_not_hide_a_wrong_checksum() {
    let mut frame = frame(4, 17, b"payload");
    frame[14] = 0x46;
    frame.splice(34..34, [1; 4]);
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    assert_eq!(net_header::verify(&[0; HEADER_BYTES], &frame), Verdict::Good);
    frame[46] ^= 1;
    assert_eq!(net_header::verify(&[0; HEADER_BYTES], &frame), Verdict::Wrong);
}

/// The stack above finds out what they are.
#[test]
fn headers_that_make_no_sense_are_not_judged_here() {
    let changed = |version, at: usize, byte: u8| {
        let mut frame = frame(version, 17, b"payload");
        *frame.last_mut().unwrap() ^= 1;
        assert_eq!(net_header::verify(&[0; HEADER_BYTES], &frame), Verdict::Wrong);
        frame[at] = byte;
        net_header::verify(&[0; HEADER_BYTES], &frame)
    };
    // Another protocol whose bytes look like those of IP.
    assert_eq!((changed(4, 13, 6), changed(6, 13, 6)), (Verdict::Good, Verdict::Good));
    // A header of 16 bytes, another version.
    assert_eq!((changed(4, 14, 0x44), changed(4, 14, 0x65)), (Verdict::Good, Verdict::Good));
    assert_eq!(changed(6, 14, 0x40), Verdict::Good);
    // Longer than the frame, or too short for the header of UDP.
    assert_eq!((changed(4, 17, 20 + 16), changed(4, 17, 20 + 7)), (Verdict::Good, Verdict::Good));
    assert_eq!((changed(6, 19, 16), changed(6, 19, 7)), (Verdict::Good, Verdict::Good));
}

/// Such a segment has no length in its IPv6 header, and one of more than 16 bits in its checksum (RFC 8200, section 8.1).
#[test]
fn a_segment_of_more_than_64_kib_has_its_whole_length_in_its_checksum() {
    let mut long = frame(6, 6, &[7; 66_000]);
    long[18..20].fill(0);
    let sum = Sum::default().with(&long[22..54]).with_word(1).with_word((66_020 - 65_536) as u16).with_word(6);
    let partial_sum = sum.fold();
    long[70..72].fill(0);
    let checksum = !sum.with(&long[54..]).fold();
    long[70..72].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(net_header::verify(&[0; HEADER_BYTES], &long), Verdict::Good);
    let mut header = [0; HEADER_BYTES];
    net_header::prepare(&mut header, &mut long, NonZeroU16::new(1440));
    assert_eq!(header, [1, 4, 74, 0, 0xa0, 5, 54, 0, 16, 0, 0, 0]);
    assert_eq!(long[70..72], partial_sum.to_be_bytes());
}

#[test]
fn offloaded_frames_say_where_the_checksum_goes_and_where_to_cut() {
    for (version, protocol, start, offset) in [(4, 6, 34, 16), (4, 17, 34, 6), (6, 6, 54, 16), (6, 17, 54, 6)] {
        let expected = frame(version, protocol, b"payload");
        let mut sent = expected.clone();
        sent[start + offset..start + offset + 2].fill(0);
        let mut header = [0; HEADER_BYTES];
        net_header::prepare(&mut header, &mut sent, None);
        assert_eq!(header, [1, 0, 0, 0, 0, 0, start as u8, 0, offset as u8, 0, 0, 0]);
        // What the device does: sum from there to the end, field included.
        let sum = !Sum::default().with(&sent[start..]).fold();
        sent[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(sent, expected);
    }
    let mut header = [0; HEADER_BYTES];
    net_header::prepare(&mut header, &mut frame(4, 6, &[0; 5000]), NonZeroU16::new(1460));
    assert_eq!(header, [1, 1, 54, 0, 0xb4, 5, 34, 0, 16, 0, 0, 0]);
    let mut header = [0; HEADER_BYTES];
    net_header::prepare(&mut header, &mut frame(6, 6, &[0; 5000]), NonZeroU16::new(1440));
    assert_eq!(header, [1, 4, 74, 0, 0xa0, 5, 54, 0, 16, 0, 0, 0]);
    // A frame that is longer than its field can say has a zero there.
    let mut long = frame(4, 6, &[0; 5000]);
    long[16..18].fill(0);
    assert_eq!(net_header::verify(&[0; HEADER_BYTES], &long), Verdict::Good);
    let mut header = [0; HEADER_BYTES];
    net_header::prepare(&mut header, &mut long, NonZeroU16::new(1460));
    assert_eq!(header, [1, 1, 54, 0, 0xb4, 5, 34, 0, 16, 0, 0, 0]);
    let mut arp = vec![0; 42];
    arp[12..14].copy_from_slice(&[8, 6]);
    let (mut header, before) = ([0; HEADER_BYTES], arp.clone());
    net_header::prepare(&mut header, &mut arp, None);
    assert_eq!((header, arp), ([0; HEADER_BYTES], before));
}

#[test]
fn another_card_is_informed_where_to_cut() {
    for (version, headers_bytes, is_ipv6) in [(4, 54, false), (6, 74, true)] {
        let offload = |segment_bytes| Offload::prepare(&mut frame(version, 6, &[0; 5000]), segment_bytes);
        let whole = offload(None);
        assert!(whole.checksum.is_some() && whole.segmentation.is_none(), "{whole:?}");
        let cut = Offload { segmentation: Some(Segmentation { payload_bytes: 1440, headers_bytes, is_ipv6 }), ..whole };
        assert_eq!(offload(NonZeroU16::new(1440)), cut);
    }
    // Neither TCP nor UDP: there is nothing to do.
    assert_eq!(Offload::prepare(&mut frame(4, 1, b"ping"), None), Offload::default());
}

proptest! {
    #[test]
    fn no_frame_makes_the_parser_panic(
        start in prop_oneof![Just(frame(4, 6, b"payload")), Just(frame(6, 17, b"payload")), Just(Vec::new())],
        changes in prop::collection::vec((0usize..80, any::<u8>()), 0..12),
        length in 14usize..120,
    ) {
        let mut bytes = start;
        bytes.resize(length, 0);
        for (at, value) in changes {
            let at = at % length;
            bytes[at] = value;
        }
        net_header::verify(&[0; HEADER_BYTES], &bytes);
        let mut header = [0; HEADER_BYTES];
        net_header::prepare(&mut header, &mut bytes, NonZeroU16::new(1000));
    }
}
