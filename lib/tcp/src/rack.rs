//! When data counts as lost: something that was sent later has arrived for long enough (RACK, RFC 8985, section 6).

use crate::scoreboard::{Fate, Range, Scoreboard};
use core::time::Duration;
use glass_api::Instant;

/// Segments beyond a hole that show a loss before any reordering was seen.
const DUPLICATE_THRESHOLD: u64 = 3;
/// A larger reordering window holds for so many recoveries (section 6.2, step 4).
const PERSISTENCE: u8 = 16;
/// The window is a quarter of the smallest round trip, at most so often.
const MULTIPLE_MAX: u32 = 16;

/// The state of one connection.
#[derive(Debug, Default)]
pub struct Rack {
    /// Of what was sent last and has arrived: when it was sent, where it ends, and its round trip.
    newest: Option<(Instant, u64)>,
    rtt: Duration,
    /// The end of what the peer has, in order or not.
    forward: u64,
    /// Something arrived after what was sent later.
    pub is_reordered: bool,
    multiple: u32,
    persistence: u8,
    /// The last round trip in which a duplicate made the window larger ends here.
    duplicate_round: Option<u64>,
}

impl Rack {
    /// A piece has arrived (section 6.2, steps 1 to 3). `is_original` means that an acknowledgement's timestamp shows it to be of the
    /// first transmission.
    pub fn delivers(&mut self, now: Instant, piece: &Range, min_rtt: Option<Duration>, is_original: bool) {
        let rtt = now.since(piece.sent_at);
        // A retransmission cannot be acknowledged that soon: the original was.
        let is_early = piece.retransmissions > 0 && (is_original || min_rtt.is_some_and(|min| rtt < min));
        if !is_early {
            let this = (piece.sent_at, piece.end);
            if self.newest.is_none_or(|newest| this > newest) {
                (self.newest, self.rtt) = (Some(this), rtt);
            }
        }
        if piece.end > self.forward {
            self.forward = piece.end;
        } else if piece.end < self.forward && piece.retransmissions == 0 {
            self.is_reordered = true;
        }
    }

    /// The peer has received something twice, so it was reordered and not lost (step 4).
    pub fn sees_duplicate(&mut self, acknowledged: u64, next: u64) {
        if self.duplicate_round.is_none_or(|round| acknowledged >= round) {
            self.duplicate_round = Some(next);
            self.multiple = (self.multiple + 1).min(MULTIPLE_MAX);
            self.persistence = PERSISTENCE;
        }
    }

    /// A recovery is over.
    pub fn recovers(&mut self) {
        self.persistence = self.persistence.saturating_sub(1);
        if self.persistence == 0 {
            self.multiple = 0;
        }
    }

    /// How long after what was sent later has arrived.
    fn window(
        &self,
        board: &Scoreboard,
        segment: u64,
        rtt: (Option<Duration>, Option<Duration>),
        recovers: bool,
    ) -> Duration {
        let (min, smoothed) = rtt;
        if !self.is_reordered && (recovers || board.sacked_bytes() >= DUPLICATE_THRESHOLD * segment) {
            return Duration::ZERO;
        }
        let window = min.unwrap_or_default() / 4 * (1 + self.multiple);
        smoothed.map_or(window, |smoothed| window.min(smoothed))
    }

    /// Marks what is lost (step 5), calls `lose` for each, and returns when something else will be if it does not arrive.
    /// `rtt` are the smallest and the smoothed round trip; `recovers` means that a recovery is in progress.
    pub fn detect(
        &self,
        now: Instant,
        board: &mut Scoreboard,
        segment: u64,
        rtt: (Option<Duration>, Option<Duration>),
        recovers: bool,
        lose: impl FnMut(&Range),
    ) -> Option<Instant> {
        let newest = self.newest?;
        let wait = self.rtt + self.window(board, segment, rtt, recovers);
        let mut next = None;
        // Nothing behind what has arrived was sent earlier, unless that is a retransmission.
        board.lose(
            u64::MAX,
            |range| {
                debug_assert_eq!(range.fate, Fate::Sent);
                if (range.sent_at, range.end) >= newest {
                    return false;
                }
                let due = range.sent_at + wait;
                if due > now {
                    next = Some(next.map_or(due, |next: Instant| next.max(due)));
                }
                due <= now
            },
            lose,
        );
        next
    }
}
