//! RFC 9293: states, RFC 5961: answers to guesses, RFC 6191: TIME-WAIT.

use crate::common::script::{run, run_with};
use crate::common::settings;
use glass_lib_tcp::Settings;
use std::time::Duration;

#[test]
fn rfc9293_3_5_a_handshake_and_its_options() {
    run("+0 < S 0:0 win 1000 <mss 1000,sack,ts 7 0,ws 3>
         +0 > S. 0:0 ack 1 win 65535 <mss 1500,sack,ts 0 7,ws 1>
         +5ms < . 1:1 ack 1 win 100 <ts 12 0>
         state Established
         write 900
         # Without timestamps 800 bytes fit the window of 100 << 3.
         +0 > . 1:801 ack 1 win 32768 <ts 5 12>
         +5ms < . 1:1 ack 801 win 100 <ts 17 5>
         +0 > P. 801:901 ack 1 <ts 10 17>");
}

#[test]
fn rfc7323_2_2_no_shift_without_the_peers() {
    run_with(
        Settings { receive_bytes: 1 << 20, ..settings() },
        0,
        "+0 < S 0:0 win 1000 <mss 1000>
         +0 > S. 0:0 ack 1 win 65535 <mss 1500>
         +5ms < . 1:1 ack 1
         +0 < P. 1:101 ack 1
         +0 > . 1:1 ack 101 win 65535",
    );
}

#[test]
fn rfc6298_2_1_an_answer_to_a_syn_is_sent_again_after_1_and_2_seconds() {
    run("+0 < S 0:0 <mss 1000>
         +0 > S. 0:0 ack 1
         +1s > S. 0:0 ack 1
         +2s > S. 0:0 ack 1
         # The SYN again is answered at once.
         +1s < S 0:0 <mss 1000>
         +0 > S. 0:0 ack 1
         +10ms < . 1:1 ack 1
         state Established");
}

#[test]
fn rfc9293_3_10_7_4_what_does_not_acknowledge_our_syn_is_refused() {
    run("+0 < S 0:0 <mss 1000>
         +0 > S. 0:0 ack 1
         +10ms < . 1:1 ack 7
         +0 > R 7:7
         # A reset counts only with the next number (RFC 5961, section 3.2).
         +0 < R 5:5
         +0 < . 1:1 ack 1
         state Established");
}

#[test]
fn rfc9293_3_10_7_3_an_active_open() {
    run("connect
         +0 > S 0:0 win 65535 <mss 1500,sack,ts 0 0,ws 1>
         +1s > S 0:0
         +2s > S 0:0
         +10ms < S. 0:0 ack 1 win 500 <mss 1000,sack>
         +0 > . 1:1 ack 1
         state Established
         write 10
         +0 > P. 1:11 ack 1");
}

#[test]
fn rfc9293_3_10_7_3_a_wrong_answer_to_our_syn_is_refused_and_a_reset_needs_the_right_number() {
    run("connect
         +0 > S 0:0
         +1ms < S. 0:0 ack 9 <mss 1000>
         +0 > R 9:9
         +0 < R. 0:0 ack 9
         +0 < R 0:0
         state SynSent
         +0 < R. 0:0 ack 1
         end Reset");
}

#[test]
fn rfc9293_3_5_both_ends_open() {
    run("connect
         +0 > S 0:0
         +1ms < S 0:0 win 500 <mss 1000,sack>
         +0 > S. 0:0 ack 1 <mss 1500,sack>
         state SynReceived
         +1ms < S. 0:0 ack 1 win 500 <mss 1000,sack>
         +0 > . 1:1 ack 1
         state Established");
}

#[test]
fn an_open_has_a_time_limit() {
    run("connect
         +0 > S 0:0
         +1s > S 0:0
         +2s > S 0:0
         +4s > S 0:0
         +3s quiet
         end TimedOut");
}

#[test]
fn rfc9293_3_6_we_close_first() {
    run("open
         write 10
         +0 > P. 1:11 ack 1
         close
         +0 > F. 11:11 ack 1
         state FinWait1
         +1ms < . 1:1 ack 12
         state FinWait2
         # The other half is still open.
         +1ms < P. 1:101 ack 12
         +0 > . 12:12 ack 101
         +1ms < F. 101:101 ack 12
         +0 > . 12:12 ack 102
         state TimeWait
         # The FIN again is answered, and the time starts again; a reset is ignored (RFC 1337).
         +5s < F. 101:101 ack 12
         +0 > . 12:12 ack 102
         +1s < R 102:102
         +8s quiet
         state TimeWait
         readable 100
         +1s quiet
         end Finished
         read 100");
}

#[test]
fn rfc9293_3_6_the_peer_closes_first() {
    run("open
         +1ms < FP. 1:11 ack 1
         +0 > . 1:1 ack 12
         state CloseWait
         write 5
         +0 > P. 1:6 ack 12
         close
         +0 > F. 6:6 ack 12
         state LastAck
         +1ms < . 12:12 ack 7
         end Finished");
}

#[test]
fn rfc9293_3_6_both_close() {
    run("open
         close
         +0 > F. 1:1 ack 1
         +1ms < F. 1:1 ack 1
         +0 > . 2:2 ack 2
         state Closing
         +1ms < . 2:2 ack 2
         state TimeWait");
}

#[test]
fn a_lost_fin_is_sent_again() {
    run("open
         +0 < F. 1:1 ack 1
         +0 > . 1:1 ack 2
         close
         +0 > F. 1:1 ack 2
         # The tail loss probe comes instead of the first timeout (RFC 8985, section 7.2).
         +210ms > F. 1:1 ack 2
         +210ms > F. 1:1 ack 2
         +420ms > F. 1:1 ack 2
         +1ms < . 2:2 ack 2
         end Finished");
}

#[test]
fn rfc5961_3_2_a_reset_needs_the_next_number() {
    run("open
         # Outside the window.
         +1ms < R 70000:70000
         # Inside: a challenge, not more than one in half a second (section 7).
         +1ms < R 2:2
         +0 > . 1:1 ack 1
         +1ms < R 3:3
         +499ms < R 4:4
         +0 > . 1:1 ack 1
         state Established
         +1ms < R 1:1
         end Reset");
}

#[test]
fn rfc5961_4_2_a_syn_is_challenged_whatever_its_number() {
    run("open
         +1ms < S 5:5
         +0 > . 1:1 ack 1
         +1s < S 900000:900000
         +0 > . 1:1 ack 1
         state Established");
}

#[test]
fn rfc5961_5_2_an_acknowledgement_of_what_was_never_sent_changes_nothing() {
    run("open
         write 10
         +0 > P. 1:11 ack 1
         # It would be dropped as delivered (the finding G16 about smoltcp 0.14.0).
         +1ms < P. 1:6 ack 12
         +0 > . 11:11 ack 1
         readable 0
         +1ms < . 1:1 ack 11
         +10s quiet");
}

#[test]
fn rfc5961_5_2_an_acknowledgement_that_is_older_than_any_window_changes_nothing() {
    run("open
         +1ms < P. 1:6 ack -60001
         +0 > . 1:1 ack 1
         readable 0
         +1ms < P. 1:6 ack -59999
         +0 > . 1:1 ack 6");
}

#[test]
fn rfc6528_and_9293_3_4_1_a_number_follows_the_clock_and_the_key() {
    use glass_api::Instant;
    use std::hash::{DefaultHasher, Hasher};
    let keyed = |key: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write(&[key]);
        hasher
    };
    let number =
        |micros: u64, key, ends: &[u8]| glass_lib_tcp::initial_number(Instant(micros * 1000), keyed(key), ends);
    assert_eq!(number(4_000_000, 1, &[1]).wrapping_sub(number(0, 1, &[1])), 1_000_000);
    assert_ne!(number(0, 1, &[1]), number(0, 1, &[2]));
    assert_ne!(number(0, 1, &[1]), number(0, 2, &[1]));
}

#[test]
fn rfc9293_3_8_4_an_idle_peer_is_probed_and_a_silent_one_is_gone() {
    run("open
         +15s > . 0:0 ack 1
         +1ms < . 1:1 ack 1
         +15s > . 0:0 ack 1
         +15s > . 0:0 ack 1
         +15s > . 0:0 ack 1
         +15s > R. 1:1 ack 1
         end TimedOut");
}

#[test]
fn a_probe_of_the_peer_is_answered() {
    run("open
         +1ms < . 0:0 ack 1
         +0 > . 1:1 ack 1
         +1ms < . 0:1 ack 1
         +0 > . 1:1 ack 1 <sacks 0-1>");
}

#[test]
fn an_abort_resets_the_peer() {
    run("open
         write 10
         +0 > P. 1:11 ack 1
         abort
         +0 > R. 11:11 ack 1
         end Aborted");
}

#[test]
fn a_connection_without_an_answer_ends_after_its_time() {
    let settings = Settings { peer_timeout: Duration::from_secs(2), ..settings() };
    run_with(
        settings,
        0,
        "open
         write 10
         +0 > P. 1:11 ack 1
         +210ms > P. 1:11 ack 1
         +210ms > P. 1:11 ack 1
         +420ms > P. 1:11 ack 1
         +840ms > P. 1:11 ack 1
         +320ms > R. 11:11 ack 1
         end TimedOut",
    );
}

#[test]
fn rfc6191_a_newer_syn_ends_time_wait() {
    // Without timestamps, its number has to be new; with them, its timestamp.
    for (kind, ts, number) in [("", "", 1), (" ts", "<ts 120 0>", 1)] {
        let syn = |number: i32, value: i32| match ts {
            "" => format!("S {number}:{number}"),
            _ => format!("S {number}:{number} <ts {value} 0>"),
        };
        let mut script = format!(
            "open{kind}
             refuses {}
             close
             +0 > F. 1:1 ack 1
             +1ms < F. {number}:{number} ack 2 {ts}
             +0 > . 2:2 ack 2
             state TimeWait\n",
            syn(5, 200)
        );
        let cases = if ts.is_empty() {
            [(true, 2, 0), (true, 100_000, 0), (false, 1, 0), (false, -5, 0)]
        } else {
            [(true, -5, 121), (true, 2, 120), (false, 1, 120), (false, 100_000, 119)]
        };
        for (reopens, number, value) in cases {
            script += &format!("{} {}\n", if reopens { "reopens" } else { "refuses" }, syn(number, value));
        }
        run(&script);
    }
}
