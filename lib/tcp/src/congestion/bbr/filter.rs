//! Maxima of the recent past, in two slots: the present one, and the one before.

/// The maximum of the present and of the previous slot. The owner decides when a slot ends.
#[derive(Debug, Clone, Copy, Default)]
pub struct TwoSlots {
    previous: u64,
    present: u64,
}

impl TwoSlots {
    /// Takes a value.
    pub fn add(&mut self, value: u64) {
        self.present = self.present.max(value);
    }

    /// The maximum.
    pub fn max(self) -> u64 {
        self.present.max(self.previous)
    }

    /// Ends the present slot. One without a value is not ended: no news would replace what is known.
    pub fn advance(&mut self) {
        if self.present > 0 {
            *self = TwoSlots { previous: self.present, present: 0 };
        }
    }
}

/// The maximum of the last round trips: of `length` to `2 * length` of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct OfRounds {
    slots: TwoSlots,
    since: u64,
}

impl OfRounds {
    /// Takes a value of this round.
    pub fn add(&mut self, value: u64, round: u64, length: u64) {
        if round.saturating_sub(self.since) >= length {
            self.slots = TwoSlots { previous: self.slots.present, present: 0 };
            self.since = round;
        }
        self.slots.add(value);
    }

    /// The maximum.
    pub fn max(self) -> u64 {
        self.slots.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_is_forgotten_after_two_slots() {
        let mut filter = TwoSlots::default();
        filter.add(5);
        filter.add(3);
        filter.advance();
        // Nothing was added, so nothing is forgotten.
        filter.advance();
        assert_eq!(filter.max(), 5);
        filter.add(4);
        assert_eq!(filter.max(), 5);
        filter.advance();
        assert_eq!(filter.max(), 4);
    }

    #[test]
    fn a_round_is_forgotten_after_twice_the_length() {
        let mut filter = OfRounds::default();
        filter.add(9, 1, 5);
        let maxima: [u64; 12] = core::array::from_fn(|round| {
            filter.add(1, round as u64 + 1, 5);
            filter.max()
        });
        assert_eq!(maxima, [9, 9, 9, 9, 9, 9, 9, 9, 9, 1, 1, 1]);
    }
}
