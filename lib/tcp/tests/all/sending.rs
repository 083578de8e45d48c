//! The sending half: RFC 5681, RFC 6298, RFC 6675, RFC 6937, RFC 8985, RFC 3042, RFC 6582, RFC 3522, RFC 9293.

use crate::common::script::{run, run_with};
use crate::common::settings;

#[test]
fn rfc6928_ten_segments_are_sent_and_two_for_each_that_is_acknowledged() {
    run("open
         write 40000
         +0 > . 1:1001 ack 1
         +0 > . 1001:2001 ack 1
         +0 > . 2001:3001 ack 1
         +0 > . 3001:4001 ack 1
         +0 > . 4001:5001 ack 1
         +0 > . 5001:6001 ack 1
         +0 > . 6001:7001 ack 1
         +0 > . 7001:8001 ack 1
         +0 > . 8001:9001 ack 1
         +0 > . 9001:10001 ack 1
         +5ms < . 1:1 ack 1001
         +0 > . 10001:11001 ack 1
         +0 > . 11001:12001 ack 1
         +1ms < . 1:1 ack 3001
         +0 > . 12001:13001 ack 1
         +0 > . 13001:14001 ack 1
         +0 > . 14001:15001 ack 1
         +0 > . 15001:16001 ack 1");
}

#[test]
fn a_card_that_cuts_gets_whole_segments_in_one_frame() {
    run_with(
        settings(),
        65_000,
        "open
         write 30500
         +0 > . 1:10001 ack 1 cut 1000
         +5ms < . 1:1 ack 2001
         +0 > . 10001:14001 ack 1 cut 1000
         +1ms < . 1:1 ack 14001
         +0 > P. 14001:30501 ack 1 cut 1000",
    );
}

#[test]
fn rfc9293_3_7_1_timestamps_and_blocks_take_from_the_payload() {
    run("open ts
         +0 < P. 101:201 ack 1 <ts 120 0>
         +0 > . 1:1 ack 1 <sacks 101-201>
         write 3000
         +0 > . 1:989 ack 1 <sacks 101-201>
         +0 > . 989:1977 ack 1 <sacks 101-201>
         +0 > . 1977:2965 ack 1 <sacks 101-201>
         +0 > P. 2965:3001 ack 1 <sacks 101-201>");
}

/// Ten segments of 1000 bytes are in flight, and 20,000 more bytes wait.
const TEN: &str = "
         write 30000
         +0 > . 1:1001 ack 1
         +0 > . 1001:2001 ack 1
         +0 > . 2001:3001 ack 1
         +0 > . 3001:4001 ack 1
         +0 > . 4001:5001 ack 1
         +0 > . 5001:6001 ack 1
         +0 > . 6001:7001 ack 1
         +0 > . 7001:8001 ack 1
         +0 > . 8001:9001 ack 1
         +0 > . 9001:10001 ack 1
";

#[test]
fn rfc3042_and_6675_two_blocks_send_new_data_and_the_third_one_retransmits() {
    run(&format!(
        "open {TEN}
         +10ms < . 1:1 ack 1 <sacks 1001-2001>
         +0 > . 10001:11001 ack 1
         +0 < . 1:1 ack 1 <sacks 1001-3001>
         +0 > . 11001:12001 ack 1
         +0 < . 1:1 ack 1 <sacks 1001-4001>
         +0 > . 1:1001 ack 1
         # Proportional rate reduction to five segments in flight (RFC 6937): five twelfths of what arrives, and then one for one.
         +0 < . 1:1 ack 1 <sacks 1001-5001>
         +0 < . 1:1 ack 1 <sacks 1001-6001>
         +0 < . 1:1 ack 1 <sacks 1001-7001>
         +0 < . 1:1 ack 1 <sacks 1001-8001>
         +0 < . 1:1 ack 1 <sacks 1001-9001>
         +0 > . 12001:13001 ack 1
         +0 < . 1:1 ack 1 <sacks 1001-10001>
         +0 > . 13001:14001 ack 1"
    ));
}

#[test]
fn rfc8985_6_2_without_three_blocks_time_shows_the_loss() {
    // Of the last segments one is lost; a quarter of the round trip after the one behind it has arrived, it is retransmitted.
    run("open
         write 3000
         +0 > . 1:1001 ack 1
         +0 > . 1001:2001 ack 1
         +0 > P. 2001:3001 ack 1
         +10ms < . 1:1 ack 1001
         +0 < . 1:1 ack 1001 <sacks 2001-3001>
         +2.5ms > . 1001:2001 ack 1
         +10ms < . 1:1 ack 3001
         +10s quiet");
}

#[test]
fn rfc8985_6_2_what_overtakes_is_not_lost() {
    run("open
         write 3000
         +0 > . 1:1001 ack 1
         +0 > . 1001:2001 ack 1
         +0 > P. 2001:3001 ack 1
         +10ms < . 1:1 ack 1001
         +0 < . 1:1 ack 1001 <sacks 2001-3001>
         +2ms < . 1:1 ack 3001
         +10s quiet");
}

#[test]
fn rfc8985_7_the_tail_is_probed_after_two_round_trips() {
    run("open
         write 3000
         +0 > . 1:1001 ack 1
         +0 > . 1001:2001 ack 1
         +0 > P. 2001:3001 ack 1
         # The last two are lost.
         +10ms < . 1:1 ack 1001
         +20ms > P. 2001:3001 ack 1
         # Its acknowledgement shows that the other one is lost, too.
         +10ms < . 1:1 ack 1001 <sacks 2001-3001>
         +0 > . 1001:2001 ack 1
         +10ms < . 1:1 ack 3001
         +10s quiet");
}

#[test]
fn rfc8985_7_3_a_probe_is_new_data_if_there_is_some() {
    run("open
         write 1000
         +0 > P. 1:1001 ack 1
         hold
         write 500
         +210ms > P. 1001:1501 ack 1
         +5ms < . 1:1 ack 1501
         +10s quiet");
}

#[test]
fn rfc6298_5_the_timeout_doubles_and_the_window_is_one_segment() {
    run(&format!(
        "open {TEN}
         # The probe is new data, and then all is lost.
         +20ms > . 10001:11001 ack 1
         +210ms > . 1:1001 ack 1
         +420ms > . 1:1001 ack 1
         +840ms > . 1:1001 ack 1
         +1ms < . 1:1 ack 1001
         +0 > . 1001:2001 ack 1
         +0 > . 2001:3001 ack 1
         +5ms < . 1:1 ack 3001
         +0 > . 3001:4001 ack 1
         +0 > . 4001:5001 ack 1
         +0 > . 5001:6001 ack 1
         +0 > . 6001:7001 ack 1"
    ));
}

#[test]
fn rfc2018_8_a_peer_that_drops_what_it_has_reported_gets_it_again() {
    run("open
         write 2000
         +0 > . 1:1001 ack 1
         +0 > P. 1001:2001 ack 1
         +10ms < . 1:1 ack 1 <sacks 1001-2001>
         +2.5ms > . 1:1001 ack 1
         +10ms < . 1:1 ack 1001
         # It has forgotten the block: the timeout retransmits it.
         +210ms > P. 1001:2001 ack 1
         +10ms < . 1:1 ack 2001
         +10s quiet");
}

#[test]
fn rfc6582_a_peer_without_sack_repeats_itself_three_times() {
    run(&format!(
        "open old {TEN}
         +10ms < . 1:1 ack 1
         +0 > . 10001:11001 ack 1
         +0 < . 1:1 ack 1
         +0 > . 11001:12001 ack 1
         +0 < . 1:1 ack 1
         +0 > . 1:1001 ack 1
         # A partial acknowledgement: the next one is lost, too.
         +10ms < . 1:1 ack 3001
         +0 > . 3001:4001 ack 1"
    ));
}

#[test]
fn rfc3522_a_timestamp_of_before_shows_that_nothing_was_lost() {
    run("open ts
         write 3000
         +0 > . 1:1001 ack 1 <ts 10 110>
         +0 > . 1001:2001 ack 1
         +0 > P. 2001:3001 ack 1
         # All acknowledgements are late: a probe and a timeout.
         +20ms > P. 2001:3001 ack 1
         +210ms > . 1:1001 ack 1
         # The first one has arrived, not its retransmission.
         +1ms < . 1:1 ack 1001 <ts 300 10>
         write 12000
         +0 > . 3001:4001 ack 1
         +0 > . 4001:5001 ack 1
         +0 > . 5001:6001 ack 1
         +0 > . 6001:7001 ack 1
         +0 > . 7001:8001 ack 1
         +0 > . 8001:9001 ack 1
         +0 > . 9001:10001 ack 1
         +0 > . 10001:11001 ack 1
         +0 > . 11001:12001 ack 1");
}

#[test]
fn rfc3708_duplicates_of_all_that_was_retransmitted_show_that_nothing_was_lost() {
    run(&format!(
        "open {TEN}
         +10ms < . 1:1 ack 1 <sacks 1001-4001>
         +0 > . 1:1001 ack 1
         # The original arrives, then the retransmission: the window is ten segments again.
         +1ms < . 1:1 ack 4001
         +0 > . 10001:11001 ack 1
         +1ms < . 1:1 ack 4001 <sacks 1-1001>
         +0 > . 11001:12001 ack 1
         +0 > . 12001:13001 ack 1
         +0 > . 13001:14001 ack 1"
    ));
}

#[test]
fn rfc9293_3_8_6_1_a_window_of_0_is_probed_less_and_less_often() {
    run("open
         write 100
         +0 > P. 1:101 ack 1
         +1ms < . 1:1 ack 101 win 0
         write 100
         +200ms quiet
         # A number that the peer has makes it answer.
         +10ms >* . 100:100 ack 1
         +1ms < . 1:1 ack 101 win 0
         +400ms quiet
         +20ms >* . 100:100 ack 1
         # Half of the data fits, which is not half of the largest window: it is sent when a probe would be.
         +1ms < . 1:1 ack 101 win 50
         +800ms quiet
         +50ms >* . 101:151 ack 1
         +1ms < . 1:1 ack 151 win 60000
         +0 > P. 151:201 ack 1");
}

#[test]
fn a_timeout_while_the_window_is_0_leaves_a_timer() {
    // The finding G16 about smoltcp 0.14.0: the peer takes its window back, and nothing would ever be retransmitted.
    run("open
         write 100
         +0 > P. 1:101 ack 1
         +1ms < . 1:1 ack 1 win 0
         +209ms > P. 1:101 ack 1
         +210ms > P. 1:101 ack 1
         +420ms > P. 1:101 ack 1
         +1ms < . 1:1 ack 101 win 1000
         +10s quiet");
}

#[test]
fn rfc9293_3_7_4_a_short_segment_waits_if_its_writer_has_more() {
    run("open
         hold
         write 1500
         +0 > . 1:1001 ack 1
         # As long as something is in flight.
         +5ms < . 1:1 ack 1001
         +0 > P. 1001:1501 ack 1
         write 700
         write 300
         +0 > P. 1501:2501 ack 1");
}

#[test]
fn rfc9293_3_8_6_2_1_a_window_of_1_is_filled() {
    run("+0 < S 0:0 win 1 <mss 1000,sack>
         +0 > S. 0:0 ack 1
         +10ms < . 1:1 ack 1 win 1
         write 3
         +0 > . 1:2 ack 1
         +1ms < . 1:1 ack 2 win 1
         +0 > . 2:3 ack 1
         +1ms < . 1:1 ack 3 win 1
         +0 > P. 3:4 ack 1");
}

#[test]
fn rfc5681_4_1_after_a_pause_the_window_is_that_of_a_new_connection() {
    let mut script = format!("open {TEN}");
    let mut sent = 10_001;
    // The window becomes 20 segments.
    for acknowledged in 1..=10 {
        script += &format!("+0 < . 1:1 ack {}\n", acknowledged * 1000 + 1);
        for _ in 0..2 {
            let flags = if sent == 29_001 { "P." } else { "." };
            script += &format!("+0 > {flags} {sent}:{} ack 1\n", sent + 1000);
            sent += 1000;
        }
    }
    script += "+1ms < . 1:1 ack 30001\n+5s write 30000\n";
    for _ in 0..10 {
        script += &format!("+0 > . {sent}:{} ack 1\n", sent + 1000);
        sent += 1000;
    }
    run(&script);
}

#[test]
fn blocks_of_what_was_never_sent_mean_nothing() {
    run(&format!(
        "open {TEN}
         +1ms < . 1:1 ack 1 <sacks 20001-21001 5-3 30001-90001>
         +0 < . 1:1 ack 1001 <sacks 11001-12001>
         +0 > . 10001:11001 ack 1
         +0 > . 11001:12001 ack 1"
    ));
}

#[test]
fn a_writer_that_has_more_fills_frames() {
    run_with(
        settings(),
        65_000,
        "open
         hold
         write 5000
         +0 > P. 1:5001 ack 1 cut 1000
         write 3000
         +1ms quiet
         write 3000
         # When all is acknowledged, there is nothing to wait for.
         +4ms < . 1:1 ack 5001
         +0 > P. 5001:11001 ack 1 cut 1000",
    );
}

#[test]
fn rfc9293_3_8_6_2_1_a_window_that_is_no_whole_number_of_segments_gets_whole_ones() {
    run_with(
        settings(),
        65_000,
        "open
         +0 < . 1:1 ack 1 win 4500
         write 30000
         +0 > . 1:4001 ack 1 cut 1000
         +5ms < . 1:1 ack 4001 win 4500
         +0 > . 4001:8001 ack 1 cut 1000",
    );
}

#[test]
fn rfc8985_6_2_after_reordering_three_blocks_wait_too() {
    run(&format!(
        "open {TEN}
         +10ms < . 1:1 ack 1 <sacks 1001-2001>
         +0 > . 10001:11001 ack 1
         +0 < . 1:1 ack 2001
         +0 > . 11001:12001 ack 1
         +0 > . 12001:13001 ack 1
         +0 > . 13001:14001 ack 1
         +0 < . 1:1 ack 2001 <sacks 3001-6001>
         +0 > . 14001:15001 ack 1
         +0 > . 15001:16001 ack 1
         +0 > . 16001:17001 ack 1
         +2.5ms > . 2001:3001 ack 1"
    ));
}

#[test]
fn rfc6298_5_4_a_timeout_retransmits_the_first_segment_whatever_is_in_flight() {
    run("open
         write 1000
         +0 > P. 1:1001 ack 1
         +210ms > P. 1:1001 ack 1
         +205ms write 1000
         +0 > P. 1001:2001 ack 1
         # This one may still arrive, and the window is one segment.
         +5ms > . 1:1001 ack 1");
}
