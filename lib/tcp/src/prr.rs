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
