//! Connections whose handshake is not done, and SYNs that wait for room.
//!
//! A flood of SYNs comes from addresses that never answer. So until the peer has acknowledged our SYN, a connection is only what
//! [`HalfOpen`] remembers; these are bounded apart from all others, and a new one takes the place of the oldest. Buffers are made when the
//! acknowledgement is received.
//!
//! In a burst, connections that are being opened or closed take the room, and free it soon; a service that starts listens soon. A peer
//! retransmits its SYN after a second, QEMU's user-mode network after six. So a SYN, or an acknowledgement that would complete a handshake,
//! is kept for a moment: its header, not the buffers of a connection.

use crate::table::Ends;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;
use glass_api::Instant;
use glass_lib_tcp::{HalfOpen, Header, Reply, Segment};
use smoltcp::wire::EthernetAddress;

/// Handshakes that may be in progress.
const COUNT_MAX: usize = 256;
/// How often our answer is sent: at once, and after 1, 2 and 4 seconds.
const ANSWERS_MAX: u32 = 4;
/// A handshake with a peer that exists is done after this time, mostly.
const USUAL_TIME: Duration = Duration::from_millis(100);
/// Segments that wait for room at most.
const WAITING_MAX: usize = 256;
/// How long one waits. Its peer retransmits it soon after, and in a flood older ones only delay the newer.
const PATIENCE: Duration = Duration::from_millis(500);

/// A handshake in progress.
pub(crate) struct Handshake {
    /// In the order of their start.
    number: u64,
    ends: Ends,
    /// Where its SYN came from.
    from: Option<EthernetAddress>,
    started_at: Instant,
    pub(crate) half_open: HalfOpen,
}

/// A header to send, and where.
pub(crate) struct Answer {
    pub(crate) ends: Ends,
    pub(crate) to: Option<EthernetAddress>,
    pub(crate) header: Header,
}

/// All handshakes in progress.
#[derive(Default)]
pub(crate) struct Handshakes {
    /// In no order. They are few, and most are over soon.
    all: Vec<Handshake>,
    made: u64,
}

impl Handshakes {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn contains(&self, ends: Ends) -> bool {
        self.all.iter().any(|handshake| handshake.ends == ends)
    }

    fn oldest(&self) -> Option<&Handshake> {
        self.all.iter().min_by_key(|handshake| handshake.number)
    }

    /// How many connections these handshakes are likely to become: all of them while all are young, as in a burst of clients; none if
    /// some are old, as in a flood, which must not take the room of real clients.
    pub(crate) fn likely(&self, now: Instant) -> usize {
        let is_burst = self.oldest().is_some_and(|oldest| now.since(oldest.started_at) < USUAL_TIME);
        if is_burst { self.len() } else { 0 }
    }

    /// Whether an answer is to be retransmitted.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next_deadline().is_some_and(|at| at <= now)
    }

    /// Starts a handshake, which takes the place of one between the same ends. Returns the answer to its SYN, and whether another one had
    /// to end for it.
    pub(crate) fn start(
        &mut self,
        now: Instant,
        ends: Ends,
        from: Option<EthernetAddress>,
        mut half_open: HalfOpen,
    ) -> (Header, bool) {
        self.remove(ends);
        let is_full = self.len() >= COUNT_MAX;
        if is_full && let Some(oldest) = self.oldest() {
            self.remove(oldest.ends);
        }
        let header = half_open.answer(now);
        self.all.push(Handshake { number: self.made, ends, from, started_at: now, half_open });
        self.made += 1;
        (header, is_full)
    }

    /// What a segment means for the handshake between these ends, if there is one.
    pub(crate) fn reply(&self, ends: Ends, segment: &Segment) -> Option<Reply> {
        let handshake = self.all.iter().find(|handshake| handshake.ends == ends)?;
        Some(handshake.half_open.reply(segment))
    }

    /// The answer once more, to a SYN that came again.
    pub(crate) fn repeat(&mut self, now: Instant, ends: Ends) -> Option<Header> {
        let handshake = self.all.iter_mut().find(|handshake| handshake.ends == ends)?;
        Some(handshake.half_open.answer(now))
    }

    /// Ends the handshake between these ends.
    pub(crate) fn remove(&mut self, ends: Ends) -> Option<Handshake> {
        let at = self.all.iter().position(|handshake| handshake.ends == ends)?;
        Some(self.all.swap_remove(at))
    }

    pub(crate) fn remove_port(&mut self, port: u16) {
        self.all.retain(|handshake| handshake.ends.local.port != port);
    }

    /// The next answer to retransmit. The second value counts handshakes that have ended because nothing answered.
    pub(crate) fn next_resend(&mut self, now: Instant) -> (Option<Answer>, u64) {
        let mut ended = 0;
        while let Some(at) = self.all.iter().position(|handshake| handshake.half_open.resend_at() <= now) {
            let Handshake { ends, from, half_open, .. } = &mut self.all[at];
            if half_open.answers() < ANSWERS_MAX {
                let header = half_open.answer(now);
                return (Some(Answer { ends: *ends, to: *from, header }), ended);
            }
            self.all.swap_remove(at);
            ended += 1;
        }
        (None, ended)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.all.iter().map(|handshake| handshake.half_open.resend_at()).min()
    }
}

/// A segment that waits for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) ends: Ends,
    pub(crate) from: Option<EthernetAddress>,
    pub(crate) header: Header,
}

/// All of them, by age.
#[derive(Default)]
pub(crate) struct WaitingSegments {
    all: VecDeque<(Instant, Waiting)>,
}

impl WaitingSegments {
    /// Keeps a segment, unless too many wait already or one between these ends is waiting already.
    pub(crate) fn keep(&mut self, now: Instant, waiting: Waiting) {
        self.forget_old(now);
        let is_kept = self.all.iter().any(|(_, other)| other.ends == waiting.ends);
        if !is_kept && self.all.len() < WAITING_MAX {
            self.all.push_back((now + PATIENCE, waiting));
        }
    }

    /// The two ends of the segment that has waited longest.
    pub(crate) fn first(&self, now: Instant) -> Option<Ends> {
        self.all.iter().find(|(until, _)| now < *until).map(|(_, waiting)| waiting.ends)
    }

    /// The segment that has waited longest.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Waiting> {
        self.forget_old(now);
        self.all.pop_front().map(|(_, waiting)| waiting)
    }

    fn forget_old(&mut self, now: Instant) {
        while self.all.pop_front_if(|(until, _)| *until <= now).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::{IpAddress, IpEndpoint};

    fn waiting(port: u16) -> Waiting {
        let end = |port| IpEndpoint::new(IpAddress::v4(10, 0, 0, 1), port);
        Waiting { ends: Ends { local: end(80), remote: end(port) }, from: None, header: Header::default() }
    }

    #[test]
    fn each_waits_once_and_not_for_long_and_there_is_a_bound() {
        let mut kept = WaitingSegments::default();
        let (begin, end) = (Instant(0), Instant(0) + PATIENCE);
        for port in [1, 2, 1] {
            kept.keep(begin, waiting(port));
        }
        assert_eq!((kept.first(begin), kept.take(begin)), (Some(waiting(1).ends), Some(waiting(1))));
        kept.keep(Instant(1), waiting(1));
        assert_eq!((kept.first(end), kept.take(end), kept.take(end)), (Some(waiting(1).ends), Some(waiting(1)), None));
        for port in 0..1000 {
            kept.keep(end, waiting(port));
        }
        assert_eq!(core::iter::from_fn(|| kept.take(end)).count(), WAITING_MAX);
        assert_eq!(kept.first(end), None);
    }
}
