//! Path MTU: RFC 8201, RFC 4821, RFC 8899.

use crate::common::script::run_with;
use crate::common::settings;
use glass_lib_tcp::Settings;
use glass_lib_tcp::congestion::Kind;
use std::time::Duration;

/// Segments of 1460 bytes vanish: a timeout leaves those of 1128, which arrive.
const BLACK_HOLE: &str = "
         +0 < S 0:0 <mss 1460,sack>
         +0 > S. 0:0 ack 1
         +10ms < . 1:1 ack 1 win 7000
         write 1999
         +0 > . 1:1461 ack 1
         +0 > P. 1461:2000 ack 1
         +10ms < . 1:1 ack 1 win 7000 <sacks 1461-2000>
         +2.5ms > . 1:1461 ack 1
         +210ms > . 1:1129 ack 1
         +0 > . 1129:1461 ack 1
         +10ms < . 1:1 ack 2000 win 7000
";
/// The peer's window.
const WINDOW: u64 = 7000;

/// Runs a script after the black hole, without congestion control: the peer's window limits what is sent.
fn run(script: &str) {
    let settings =
        Settings { congestion: Kind::None, send_bytes: 1 << 20, peer_timeout: Duration::from_secs(3600), ..settings() };
    run_with(settings, 0, &format!("{BLACK_HOLE}{script}"));
}

/// What is sent at once: a probe of so many bytes perhaps, and as many segments of so many as the window has room for.
#[derive(Debug, Clone, Copy)]
struct Flight {
    probe: Option<u64>,
    segment: u64,
    /// The probe arrives with the others.
    arrives: bool,
}

impl Flight {
    fn lengths(self) -> Vec<u64> {
        let count = (WINDOW - self.probe.unwrap_or(0)) / self.segment;
        self.probe.into_iter().chain((0..count).map(|_| self.segment)).collect()
    }
}

fn flight(probe: u64, segment: u64, arrives: bool) -> Flight {
    Flight { probe: Some(probe), segment, arrives }
}

fn plain(segment: u64) -> Flight {
    Flight { probe: None, segment, arrives: true }
}

/// Writes as much as these flights have, which start at `start`, and moves that to their end. What is sent is acknowledged after 10 ms. A probe that
/// does not arrive is retransmitted in shorter segments.
fn script(start: &mut u64, flights: &[Flight]) -> String {
    let total = flights.iter().flat_map(|flight| flight.lengths()).sum::<u64>();
    let (mut lines, end) = (format!("write {total}\n"), *start + total);
    for flight in flights {
        let first = *start;
        for bytes in flight.lengths() {
            let flags = if *start + bytes == end { "P." } else { "." };
            lines += &format!("+0 > {flags} {start}:{} ack 1\n", *start + bytes);
            *start += bytes;
        }
        if !flight.arrives {
            let after = first + flight.lengths()[0];
            lines += &format!("+10ms < . 1:1 ack {first} win {WINDOW} <sacks {after}-{start}>\n");
            for piece in (first..after).step_by(flight.segment as usize) {
                lines += &format!("+0 > . {piece}:{} ack 1\n", (piece + flight.segment).min(after));
            }
        }
        lines += &format!("+10ms < . 1:1 ack {start} win {WINDOW}\n");
    }
    lines
}

#[test]
fn rfc8899_5_3_1_the_longest_segment_is_probed_first() {
    // The timeout had another reason than the path.
    run(&script(&mut 2000, &[flight(1460, 1128, true), plain(1460), plain(1460)]));
}

#[test]
fn rfc8899_5_3_2_lengths_are_halved_until_the_rest_is_not_worth_a_probe() {
    let lost = |probe, segment| [flight(probe, segment, false); 3];
    let mut flights = lost(1460, 1128).to_vec();
    flights.push(flight(1294, 1128, true));
    flights.extend(lost(1377, 1294));
    flights.push(flight(1335, 1294, true));
    flights.push(flight(1356, 1335, true));
    flights.extend(lost(1366, 1356));
    flights.push(plain(1356));
    let mut start = 2000;
    let search = script(&mut start, &flights);
    // PMTU_RAISE_TIMER, section 5.1.1: it starts when the third probe is found to be lost, 20 ms before the search's script ends.
    let early = script(&mut start, &[plain(1356)]);
    let late = script(&mut start, &[flight(1460, 1356, true), plain(1460)]);
    run(&format!("{search}+599s quiet\n{early}+970ms quiet\n{late}"));
}

#[test]
fn rfc8899_4_3_a_path_that_becomes_shorter_again_is_found_again() {
    let mut start = 2000;
    let found = script(&mut start, &[flight(1460, 1128, true), plain(1460)]);
    let again = script(&mut { start + 1460 }, &[flight(1460, 1128, true), plain(1460)]);
    let end = start + 1460;
    run(&format!(
        "{found}
         write 1460
         +0 > P. {start}:{end} ack 1
         # A probe of the tail, and three timeouts.
         +220ms >* P. {start}:{end} ack 1
         +250ms >* P. {start}:{end} ack 1
         +500ms >* P. {start}:{end} ack 1
         +1s >* . {start}:{} ack 1
         +0 > P. {}:{end} ack 1
         +10ms < . 1:1 ack {end} win {WINDOW}
         {again}",
        start + 1128,
        start + 1128
    ));
}

#[test]
fn rfc8899_4_6_2_a_report_about_a_probe_says_which_one_is_next() {
    let mut start = 2000 + 1460 + 4 * 1128;
    let next = script(&mut start, &[flight(1300, 1128, true), plain(1300), plain(1300)]);
    run(&format!(
        "write 5972
         +0 > . 2000:3460 ack 1
         +0 > . 3460:4588 ack 1
         +0 > . 4588:5716 ack 1
         +0 > . 5716:6844 ack 1
         +0 > P. 6844:7972 ack 1
         # One about another segment, and one that would have passed the probe.
         limit 3460 1300
         limit 2000 1460
         +1ms limit 2000 1300
         +0 > . 2000:3128 ack 1
         +0 > . 3128:3460 ack 1
         +10ms < . 1:1 ack 7972 win {WINDOW}
         {next}"
    ));
}

#[test]
fn rfc4821_7_4_a_probe_waits_until_enough_follows_it() {
    // Its loss would be found by a timeout.
    run("write 4843
         +0 > . 2000:3128 ack 1
         +0 > . 3128:4256 ack 1
         +0 > . 4256:5384 ack 1
         +0 > . 5384:6512 ack 1
         +0 > P. 6512:6843 ack 1");
}

#[test]
fn rfc8899_4_1_a_segment_with_other_options_is_no_probe() {
    // Its length would not be what was found out.
    run("+0 < P. 101:201 ack 2000 win 7000
         +0 > . 2000:2000 ack 1 <sacks 101-201>
         write 9000
         +0 > . 2000:3116 ack 1 <sacks 101-201>
         +0 > . 3116:4232 ack 1 <sacks 101-201>
         +0 > . 4232:5348 ack 1 <sacks 101-201>
         +0 > . 5348:6464 ack 1 <sacks 101-201>
         +0 > . 6464:7580 ack 1 <sacks 101-201>
         +0 > . 7580:8696 ack 1 <sacks 101-201>");
}

#[test]
fn rfc8201_what_a_router_has_dropped_is_retransmitted_in_shorter_segments() {
    run_with(
        settings(),
        0,
        "open
         write 2500
         +0 > . 1:1001 ack 1
         +0 > . 1001:2001 ack 1
         +0 > P. 2001:2501 ack 1
         # Not in flight: forged (RFC 5927).
         limit 2501 600
         +1ms limit 1 600
         +0 > . 1:601 ack 1
         +0 > . 601:1201 ack 1
         +0 > . 1201:1801 ack 1
         +0 > . 1801:2401 ack 1
         +0 > P. 2401:2501 ack 1
         +5ms < . 1:1 ack 2501
         # A router that passes more is no reason to send more.
         write 600
         +0 > P. 2501:3101 ack 1
         limit 2501 900
         +1ms < . 1:1 ack 3101
         +10s quiet",
    );
}

#[test]
fn rfc8899_a_path_that_drops_long_segments_in_silence_gets_shorter_ones() {
    run_with(
        settings(),
        0,
        "+0 < S 0:0 <mss 1460,sack>
         +0 > S. 0:0 ack 1
         +10ms < . 1:1 ack 1
         write 2000
         +0 > . 1:1461 ack 1
         +0 > P. 1461:2001 ack 1
         # The short one arrives, the long one and its retransmission do not.
         +10ms < . 1:1 ack 1 <sacks 1461-2001>
         +2.5ms > . 1:1461 ack 1
         +210ms > . 1:1129 ack 1
         +10ms < . 1:1 ack 1129 <sacks 1461-2001>
         +0 > . 1129:1461 ack 1
         +10ms < . 1:1 ack 2001
         write 1200
         +0 > . 2001:3129 ack 1
         +0 > P. 3129:3201 ack 1",
    );
}
