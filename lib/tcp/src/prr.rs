//! Proportional rate reduction: the window shrinks to its target during one recovery, at the pace of delivery (RFC 6937).

/// The state of one recovery.
#[derive(Debug, Default)]
pub struct Reduction {
    /// In flight when it started.
    start: u64,
    delivered: u64,
    sent: u64,
    /// What may be in flight now.
    window: u64,
}

impl Reduction {
    /// A recovery starts with `outstanding` bytes sent and not acknowledged. One segment may be retransmitted at once.
    pub fn start(outstanding: u64, in_flight: u64, segment: u64) -> Reduction {
        Reduction { start: outstanding.max(1), delivered: 0, sent: 0, window: in_flight + segment }
    }

    /// Something was sent.
    pub fn sends(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// One segment may be sent in any case.
    pub fn permit(&mut self, in_flight: u64, segment: u64) {
        self.window = self.window.max(in_flight + segment);
    }

    /// What may be in flight.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// An acknowledgement delivers `delivered` bytes. `target` is the window at the end; `advances` means that it acknowledges data and
    /// shows no loss.
    pub fn acknowledges(&mut self, delivered: u64, in_flight: u64, target: u64, segment: u64, advances: bool) {
        self.delivered += delivered;
        let more = if in_flight > target {
            (u128::from(self.delivered) * u128::from(target)).div_ceil(self.start.into()) as u64
        } else {
            let due = self.delivered.saturating_sub(self.sent).max(delivered);
            // The slow start of its reduction bound, if all goes well; else packet conservation.
            let due = if advances { due + segment } else { due };
            self.sent + due.min(target - in_flight)
        };
        let more = more.saturating_sub(self.sent);
        // The first retransmission is sent in any case.
        let more = if self.sent == 0 { more.max(segment) } else { more };
        self.window = in_flight + more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_the_share_of_what_arrives_and_one_for_one_below_the_target() {
        // Ten segments were in flight, and five are to be.
        let mut reduction = Reduction::start(10, 9, 1);
        assert_eq!(reduction.window(), 10, "the first retransmission");
        reduction.sends(1);
        let mut windows = [0; 4];
        for (window, in_flight) in windows.iter_mut().zip([9, 8, 7, 6]) {
            reduction.acknowledges(1, in_flight, 5, 1, false);
            *window = reduction.window() - in_flight;
        }
        // After one, two, three and four: a half, rounded up, less what was sent.
        assert_eq!(windows, [0, 0, 1, 1]);
        reduction.sends(1);
        // Below the target: as much as arrives, and one more if all goes well, but not beyond the target.
        for (in_flight, advances, more) in [(3, false, 1), (3, true, 2), (5, true, 0)] {
            let mut reduction = Reduction { start: 10, delivered: 5, sent: 5, window: 0 };
            reduction.acknowledges(1, in_flight, 5, 1, advances);
            assert_eq!(reduction.window() - in_flight, more, "{in_flight} {advances}");
        }
    }
}
