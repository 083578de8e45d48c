//! SYNs, and acknowledgements that complete handshakes, for which there was no room, or no listener because the service is
//! starting, kept for a moment.
//!
//! In a burst, connections that are being opened or closed take the room, and free it soon. A peer retransmits its
//! SYN after a second, QEMU's user-mode network after six. A waiting SYN costs its frame, not the buffers of a connection.

use crate::table::Ends;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;
use glass_api::Instant;

/// SYNs that wait at most.
const COUNT_MAX: usize = 256;
/// A longer frame is not an ordinary SYN.
const FRAME_BYTES_MAX: usize = 128;
/// How long one waits. Its peer retransmits it soon after, and in a flood older ones only delay the newer.
const PATIENCE: Duration = Duration::from_millis(500);

/// SYNs by age.
#[derive(Default)]
pub(crate) struct Refused {
    frames: VecDeque<Syn>,
}

struct Syn {
    ends: Ends,
    until: Instant,
    frame: Vec<u8>,
}

impl Refused {
    /// Keeps a frame, unless too many wait already or this SYN is waiting already.
    pub(crate) fn keep(&mut self, now: Instant, ends: Ends, frame: &[u8]) {
        self.forget_old(now);
        let is_kept = self.frames.iter().any(|syn| syn.ends == ends);
        if !is_kept && self.frames.len() < COUNT_MAX && frame.len() <= FRAME_BYTES_MAX {
            self.frames.push_back(Syn { ends, until: now + PATIENCE, frame: frame.to_vec() });
        }
    }

    /// The two ends of the frame that has waited longest.
    pub(crate) fn first(&self, now: Instant) -> Option<Ends> {
        self.frames.iter().find(|syn| now < syn.until).map(|syn| syn.ends)
    }

    /// The frame that has waited longest.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.forget_old(now);
        self.frames.pop_front().map(|syn| syn.frame)
    }

    fn forget_old(&mut self, now: Instant) {
        while self.frames.pop_front_if(|syn| syn.until <= now).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use smoltcp::wire::{IpAddress, IpEndpoint};

    fn ends(port: u16) -> Ends {
        let end = |port| IpEndpoint::new(IpAddress::v4(10, 0, 0, 1), port);
        Ends { local: end(80), remote: end(port) }
    }

    #[test]
    fn each_waits_once_and_not_for_long_and_there_is_a_bound() {
        let mut refused = Refused::default();
        let (begin, end) = (Instant(0), Instant(0) + PATIENCE);
        for port in [1, 2, 1] {
            refused.keep(begin, ends(port), &[port as u8]);
        }
        refused.keep(begin, ends(3), &[0; FRAME_BYTES_MAX + 1]);
        assert_eq!((refused.first(begin), refused.take(begin)), (Some(ends(1)), Some(vec![1])));
        refused.keep(Instant(1), ends(1), &[1]);
        assert_eq!((refused.first(end), refused.take(end), refused.take(end)), (Some(ends(1)), Some(vec![1]), None));
        for port in 0..1000 {
            refused.keep(end, ends(port), &[0; FRAME_BYTES_MAX]);
        }
        assert_eq!(core::iter::from_fn(|| refused.take(end)).count(), COUNT_MAX);
        assert_eq!(refused.first(end), None);
    }
}
