//! The receiving half: RFC 9293, RFC 2018, RFC 2883, RFC 5681, RFC 7323.

use crate::common::script::{run, run_with};
use crate::common::settings;
use glass_api::Instant;
use glass_lib_tcp::wire::Flags;
use glass_lib_tcp::{Connection, HalfOpen, Header, Segment, Settings};

/// Sixteen segments, each acknowledged at once, then none is quick any more.
const SIXTEEN: &str = "open
    +1ms < P. 1:101 ack 1
    +0 > . 1:1 ack 101
    +0 < P. 101:201 ack 1
    +0 > . 1:1 ack 201
    +0 < P. 201:301 ack 1
    +0 > . 1:1 ack 301
    +0 < P. 301:401 ack 1
    +0 > . 1:1 ack 401
    +0 < P. 401:501 ack 1
    +0 > . 1:1 ack 501
    +0 < P. 501:601 ack 1
    +0 > . 1:1 ack 601
    +0 < P. 601:701 ack 1
    +0 > . 1:1 ack 701
    +0 < P. 701:801 ack 1
    +0 > . 1:1 ack 801
    +0 < P. 801:901 ack 1
    +0 > . 1:1 ack 901
    +0 < P. 901:1001 ack 1
    +0 > . 1:1 ack 1001
    +0 < P. 1001:1101 ack 1
    +0 > . 1:1 ack 1101
    +0 < P. 1101:1201 ack 1
    +0 > . 1:1 ack 1201
    +0 < P. 1201:1301 ack 1
    +0 > . 1:1 ack 1301
    +0 < P. 1301:1401 ack 1
    +0 > . 1:1 ack 1401
    +0 < P. 1401:1501 ack 1
    +0 > . 1:1 ack 1501
    +0 < . 1501:3001 ack 1
    +0 > . 1:1 ack 3001
";

#[test]
fn rfc9293_3_8_6_3_an_acknowledgement_waits_for_a_second_segment() {
    run(&format!(
        "{SIXTEEN}
         +1ms < P. 3001:3101 ack 1
         +40ms > . 1:1 ack 3101
         +1ms < . 3101:4601 ack 1
         +1ms < . 4601:6101 ack 1
         +0 > . 1:1 ack 6101
         # A frame of two merged segments is two.
         +1ms < . 6101:9101 ack 1
         +0 > . 1:1 ack 9101
         # Data takes the acknowledgement along.
         +1ms < P. 9101:9201 ack 1
         +1ms write 5
         +0 > P. 1:6 ack 9201
         +1ms < . 9201:9201 ack 6
         +100ms quiet"
    ));
}

#[test]
fn rfc5681_4_2_what_is_out_of_order_is_acknowledged_at_once_and_rfc2018_4_its_blocks_latest_first() {
    run("open
         +1ms < P. 101:201 ack 1
         +0 > . 1:1 ack 1 <sacks 101-201>
         +0 < P. 301:401 ack 1
         +0 > . 1:1 ack 1 <sacks 301-401 101-201>
         +0 < P. 501:601 ack 1
         +0 > . 1:1 ack 1 <sacks 501-601 301-401 101-201>
         +0 < P. 201:301 ack 1
         +0 > . 1:1 ack 1 <sacks 101-401 501-601>
         +0 < P. 1:101 ack 1
         +0 > . 1:1 ack 401 <sacks 501-601>
         readable 400
         +0 < P. 401:501 ack 1
         +0 > . 1:1 ack 601
         read 600");
}

#[test]
fn rfc2018_beside_timestamps_there_is_room_for_three_blocks() {
    run("open ts
         +0 < P. 101:201 ack 1 <ts 120 0>
         +0 > . 1:1 ack 1 <ts 10 110,sacks 101-201>
         +0 < P. 301:401 ack 1 <ts 120 0>
         +0 > . 1:1 ack 1 <sacks 301-401 101-201>
         +0 < P. 501:601 ack 1 <ts 120 0>
         +0 > . 1:1 ack 1 <sacks 501-601 301-401 101-201>
         +0 < P. 701:801 ack 1 <ts 120 0>
         +0 > . 1:1 ack 1 <sacks 701-801 501-601 301-401>");
}

#[test]
fn rfc2883_4_what_arrives_twice_is_reported_first() {
    run("open
         +0 < P. 1:101 ack 1
         +0 > . 1:1 ack 101
         +0 < P. 1:101 ack 1
         +0 > . 1:1 ack 101 <sacks 1-101>
         # Once.
         +0 < P. 201:301 ack 1
         +0 > . 1:1 ack 101 <sacks 201-301>
         +0 < P. 201:301 ack 1
         +0 > . 1:1 ack 101 <sacks 201-301 201-301>
         # Half of it is new.
         +0 < P. 51:151 ack 1
         +0 > . 1:1 ack 151 <sacks 51-101 201-301>
         read 150");
}

#[test]
fn a_peer_without_sack_gets_no_blocks() {
    run("open old
         +0 < P. 101:201 ack 1
         +0 > . 1:1 ack 1
         +0 < P. 1:101 ack 1
         +0 > . 1:1 ack 201");
}

#[test]
fn a_fin_before_the_data_waits_for_it() {
    run("open
         +0 < FP. 101:201 ack 1
         +0 > . 1:1 ack 1 <sacks 101-201>
         state Established
         +0 < P. 1:101 ack 1
         +0 > . 1:1 ack 202
         state CloseWait
         read 200
         # Nothing follows a FIN.
         +0 < P. 202:302 ack 1
         +0 > . 1:1 ack 202
         readable 0");
}

#[test]
fn rfc9293_3_8_6_2_2_a_window_that_was_shut_opens_when_it_is_worth_it() {
    run_with(
        Settings { receive_bytes: 4000, ..settings() },
        0,
        "open
         +0 < . 1:1001 ack 1
         +0 > . 1:1 ack 1001 win 3000
         +0 < . 1001:4001 ack 1
         +0 > . 1:1 ack 4001 win 0
         # A probe is answered, and its data is not taken.
         +1s < . 4001:4002 ack 1
         +0 > . 1:1 ack 4001 win 0
         read 1000
         read 400
         read 100
         +0 > . 1:1 ack 4001 win 1500
         read 1500
         +0 > . 1:1 ack 4001 win 3000",
    );
}

#[test]
fn rfc9293_3_10_7_4_a_window_of_0_still_takes_acknowledgements_and_resets() {
    run_with(
        Settings { receive_bytes: 100, ..settings() },
        0,
        "open
         write 10
         +0 > P. 1:11 ack 1
         +0 < P. 1:101 ack 1
         +0 > . 11:11 ack 101 win 0
         +0 < P. 101:111 ack 11
         +0 > . 11:11 ack 101 win 0
         write 5
         +0 > P. 11:16 ack 101
         +0 < R 101:101
         end Reset",
    );
}

#[test]
fn what_does_not_fit_the_window_is_cut() {
    run_with(
        Settings { receive_bytes: 100, ..settings() },
        0,
        "open
         +0 < P. 1:201 ack 1
         +0 > . 1:1 ack 101 win 0
         readable 100",
    );
}

#[test]
fn rfc7323_5_3_old_timestamps_are_not_taken() {
    run("open ts
         +0 < P. 1:101 ack 1 <ts 120 0>
         +0 > . 1:1 ack 101 <ts 10 120>
         +0 < P. 101:201 ack 1 <ts 119 0>
         +0 > . 1:1 ack 101 <ts 10 120>
         readable 100
         # Without a timestamp, it is dropped (section 3.2); a reset is not.
         +1s < P. 101:201 ack 1
         readable 100
         +0 < P. 101:201 ack 1 <ts 120 0>
         +0 > . 1:1 ack 201 <ts 1010 120>
         +0 < R 201:201
         end Reset");
}

#[test]
fn rfc7323_4_3_the_timestamp_that_is_returned_is_that_of_the_first_segment_that_waits() {
    run(&format!(
        "{}
         +1ms < P. 401:501 ack 1 <ts 130 0>
         +0 > . 1:1 ack 1 <ts 11 110,sacks 401-501>
         +1ms < P. 1:401 ack 1 <ts 140 0>
         +0 > . 1:1 ack 501 <ts 12 140>",
        "open ts"
    ));
}

#[test]
fn two_ends_that_have_lost_each_others_acknowledgements_find_together() {
    // Both retransmit, and each has what the other one sends: what it acknowledges counts (RFC 9293, section 3.10.7.4 does not say so; BSD).
    run("open
         write 100
         +0 > P. 1:101 ack 1
         +0 < P. 1:51 ack 1
         +0 > . 101:101 ack 51
         +1ms < P. 1:51 ack 101
         +0 > . 101:101 ack 51 <sacks 1-51>
         +10s quiet");
}

#[test]
fn there_is_a_bound_on_holes() {
    let mut script = String::from("open\n");
    for hole in 0..1100 {
        let at = |hole: u64| 101 + 2 * hole;
        script += &format!("+1ms < P. {}:{} ack 1\n", at(hole), at(hole) + 1);
        let blocks = (0..=hole.min(1023)).rev().take(4).map(|hole| format!("{}-{}", at(hole), at(hole) + 1));
        script += &format!("+0 > . 1:1 ack 1 <sacks {}>\n", blocks.collect::<Vec<_>>().join(" "));
    }
    run(&script);
}

/// A connection that a peer with this shift of its windows has opened.
fn opened(settings: Settings, sack: bool) -> Connection {
    let mut syn = Header { seq: 0, flags: Flags::SYN, window: 60_000, ..Header::default() };
    (syn.options.sack_permitted, syn.options.shift) = (sack, Some(0));
    let mut half_open = HalfOpen::new(NOW, &syn, 0, settings);
    half_open.answer(NOW);
    half_open.open(NOW)
}

const NOW: Instant = Instant(1_000_000_000);

/// Gives it a segment of 100 bytes.
fn receive(connection: &mut Connection, seq: u32) {
    let header = Header { seq, ack: 1, flags: Flags::ACK, window: 60_000, ..Header::default() };
    connection.receive(NOW, &Segment { source_port: 1, destination_port: 2, header, payload: &[1; 100] });
}

/// How many of twenty segments behind a hole, which start so many bytes after one another, are answered each by itself, when they arrive before anything else is
/// sent; and of what follows.
fn early_answers(sack: bool, interval: u32) -> (usize, usize) {
    let mut connection = opened(settings(), sack);
    let mut is_answered = |seq: u32| {
        receive(&mut connection, seq);
        connection.poll_answer(NOW).is_some()
    };
    let early = (1..=20).filter(|index| is_answered(101 + interval * index)).count();
    let late = std::iter::from_fn(|| connection.poll_transmit(NOW, 0)).count();
    (early, late)
}

#[test]
fn rfc5681_4_2_and_2018_many_segments_behind_a_hole_are_reported_together_to_a_peer_with_sack() {
    assert_eq!((early_answers(true, 100), early_answers(false, 100)), ((3, 1), (20, 0)));
}

/// An acknowledgement has three or four blocks, and one in a hundred is lost.
#[test]
fn rfc2018_4_each_new_range_and_what_arrives_twice_is_reported_at_once() {
    assert_eq!((early_answers(true, 200), early_answers(true, 0)), ((20, 0), (20, 0)));
}

#[test]
fn a_receive_buffer_is_short_when_half_of_it_is_behind_missing_data() {
    let mut connection = opened(Settings { receive_bytes: 4000, buffer_bytes_max: 200_000, ..settings() }, true);
    let mut short = Vec::new();
    for index in 1..25 {
        receive(&mut connection, 1 + 100 * index);
        short.push(connection.is_receive_buffer_short());
    }
    assert_eq!(short.iter().position(|is_short| *is_short), Some(18), "{short:?}");
    connection.lengthen(96_000, 0);
    assert_eq!((connection.is_receive_buffer_short(), connection.growth()), (false, (100_000, 200_000 - (64 << 10))));
    receive(&mut connection, 1);
    let answer = connection.poll_transmit(NOW, 0).unwrap();
    assert_eq!((connection.shifts().1, connection.readable()), (2, 2500));
    assert_eq!(usize::from(answer.header.window) << 2, 100_000 - 2500);
    connection.lengthen(usize::MAX, usize::MAX);
    assert_eq!(connection.growth(), (0, 0));
}

#[test]
fn a_receive_buffer_is_short_when_half_of_it_is_read_in_a_round_trip() {
    for reads in [true, false] {
        let mut connection = opened(Settings { receive_bytes: 4000, buffer_bytes_max: 200_000, ..settings() }, true);
        let mut short = Vec::new();
        for index in 0..30 {
            receive(&mut connection, 1 + 100 * index);
            short.push(connection.is_receive_buffer_short());
            if reads {
                assert_eq!(connection.read(&mut [0; 100]), 100);
            }
        }
        let expected = if reads { Some(20) } else { None };
        assert_eq!(short.iter().position(|is_short| *is_short), expected, "{short:?}");
        connection.lengthen(4000, 0);
        assert!(!connection.is_receive_buffer_short());
    }
}

#[test]
fn a_send_buffer_is_short_when_it_is_full_and_shorter_than_twice_the_windows() {
    let settings = Settings { send_bytes: 4000, buffer_bytes_max: 60_000, ..settings() };
    let mut connection = opened(settings, true);
    assert!(!connection.is_send_buffer_short(), "it is empty");
    assert_eq!((connection.write(&[1; 5000]), connection.is_send_buffer_short()), (4000, true));
    connection.lengthen(0, 6000);
    assert_eq!((connection.is_send_buffer_short(), connection.write(&[1; 50_000])), (false, 6000));
    assert!(connection.is_send_buffer_short());
    connection.lengthen(0, 6000);
    // The first congestion window is of ten segments of 536 bytes.
    assert_eq!((connection.write(&[1; 50_000]), connection.is_send_buffer_short()), (6000, false));
}
