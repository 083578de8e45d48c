//! What the sending half sends next.

use crate::congestion::Phase;
use crate::sender::Sender;
use glass_api::Instant;

/// How long segments and frames may be, in payload bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// Of one segment on the wire, the options of this one deducted.
    pub segment: u64,
    /// Of what is given to the card at once, which cuts it into such segments. Not less than one.
    pub frame: u64,
}

/// Positions to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The first one.
    pub start: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// A FIN follows.
    pub has_fin: bool,
    /// They were sent before.
    pub is_retransmission: bool,
    /// Nothing that is queued follows.
    pub is_last: bool,
    /// One segment, which is longer than others.
    pub is_probe: bool,
}

impl Piece {
    /// The position after it.
    pub fn end(&self) -> u64 {
        self.start + self.bytes + u64::from(self.has_fin)
    }
}

/// Why nothing is sent.
enum Stop {
    Nothing,
    /// The peer's window.
    Window,
    /// The congestion window.
    Congestion,
    /// Too early.
    Pacing,
}

impl Sender {
    /// The piece to send now, which is noted as sent.
    pub fn next_piece(&mut self, now: Instant, lengths: Lengths) -> Option<Piece> {
        let piece = self.choose(now, lengths);
        match piece {
            Ok(piece) => {
                self.note(now, &piece);
                return Some(piece);
            }
            Err(Stop::Congestion) => self.is_window_limited = true,
            Err(Stop::Nothing) if self.unsent() < self.segment && self.board.lost_bytes() == 0 => {
                let in_flight = self.in_flight();
                self.rate.limit_by_app(in_flight);
            }
            Err(Stop::Nothing | Stop::Window | Stop::Pacing) => {}
        }
        let is_shut = matches!(piece, Err(Stop::Window)) && self.board.is_empty();
        if !is_shut {
            (self.persist_at, self.persists) = (None, 0);
        } else if self.persist_at.is_none() {
            self.persist_at = Some(now + self.rtt.timeout() * (1 << self.persists.min(PERSIST_SHIFT_MAX)));
            self.persist_at = self.persist_at.min(Some(now + PERSIST_MAX));
        }
        None
    }

    fn choose(&mut self, now: Instant, lengths: Lengths) -> Result<Piece, Stop> {
        if self.board.lost_bytes() > 0 {
            return self.choose_lost(now, lengths);
        }
        if self.wants_probe
            && let Some(probe) = self.choose_probe(now, lengths)
        {
            return Ok(probe);
        }
        self.choose_new(now, lengths)
    }

    /// What is in flight may grow by so much.
    pub(crate) fn space(&self) -> u64 {
        self.congestion_window().saturating_sub(self.in_flight())
    }

    pub(crate) fn release_at(&self, now: Instant) -> Option<Instant> {
        let burst = self.control.burst_bytes(self.segment);
        self.pacing.release(now, self.control.pacing_bytes_per_sec(), burst)
    }

    /// The longest frame: not more than what is released at once.
    fn frame(&self, lengths: Lengths) -> u64 {
        if self.control.pacing_bytes_per_sec().is_none() {
            return lengths.frame;
        }
        whole(lengths.frame.min(self.control.burst_bytes(self.segment)), lengths.segment).max(lengths.segment)
    }

    fn choose_lost(&self, now: Instant, lengths: Lengths) -> Result<Piece, Stop> {
        let range = self.board.first_lost().ok_or(Stop::Nothing)?;
        let is_first = range.start == self.una;
        // The first one is retransmitted even if the peer has taken its window back: it probes that.
        if !is_first && range.start >= self.una + self.window {
            return Err(Stop::Window);
        }
        let (data_end, space) = (self.data_end(), self.space());
        let end = range.end.min(data_end).max(range.start);
        let most = whole(space, lengths.segment).max(lengths.segment);
        let bytes = (end - range.start).min(self.frame(lengths)).min(most);
        if space < bytes.min(lengths.segment) && self.in_flight() > 0 && !self.must_retransmit {
            return Err(Stop::Congestion);
        }
        if self.release_at(now).is_some() && !self.must_retransmit {
            return Err(Stop::Pacing);
        }
        let has_fin = range.start + bytes == data_end && range.end > data_end;
        let is_last = range.start + bytes == data_end;
        Ok(Piece { start: range.start, bytes, has_fin, is_retransmission: true, is_last, is_probe: false })
    }

    /// New data if there is some and the peer has room for it, else the last segment again (RFC 8985, section 7.3).
    fn choose_probe(&mut self, now: Instant, lengths: Lengths) -> Option<Piece> {
        let usable = (self.una + self.window).saturating_sub(self.next);
        let bytes = self.unsent().min(usable).min(lengths.segment);
        let data_end = self.data_end();
        let piece = if bytes > 0 && self.board.has_space() {
            let is_last = self.next + bytes == data_end;
            Piece {
                start: self.next,
                bytes,
                has_fin: is_last && self.is_closed,
                is_retransmission: false,
                is_last,
                is_probe: false,
            }
        } else {
            let last = self.board.last()?;
            let end = last.end.min(data_end);
            let start = end.saturating_sub(lengths.segment).max(last.start).min(end);
            let has_fin = last.end > data_end;
            Piece {
                start,
                bytes: end - start,
                has_fin,
                is_retransmission: true,
                is_last: end == data_end,
                is_probe: false,
            }
        };
        let end = self.next.max(piece.end());
        self.sends_probe(now, end, piece.is_retransmission);
        Some(piece)
    }

    fn choose_new(&mut self, now: Instant, lengths: Lengths) -> Result<Piece, Stop> {
        let (unsent, data_end) = (self.unsent(), self.data_end());
        if unsent == 0 {
            if self.is_closed && self.next == data_end && self.board.has_space() {
                let start = data_end;
                return Ok(Piece {
                    start,
                    bytes: 0,
                    has_fin: true,
                    is_retransmission: false,
                    is_last: true,
                    is_probe: false,
                });
            }
            return Err(Stop::Nothing);
        }
        let is_idle = self.board.is_empty();
        let usable = (self.una + self.window).saturating_sub(self.next);
        if usable == 0 {
            return Err(Stop::Window);
        }
        if is_idle {
            self.control.on_idle_restart(now, now.since(self.active_at), self.rtt.timeout());
        }
        if let Some(probe) = self.choose_path_probe(now, lengths) {
            return Ok(probe);
        }
        let (space, frame) = (self.space(), self.frame(lengths));
        let most = unsent.min(usable).min(frame);
        if space < most && self.waits_for_space(space, most.min(lengths.segment)) {
            return Err(Stop::Congestion);
        }
        if self.holds_short && most == unsent && unsent < frame && self.waits_for_writer(unsent) {
            return Err(Stop::Nothing);
        }
        // At least a segment, and whole segments if more follow.
        let mut bytes = most.min(space.max(lengths.segment));
        if bytes < unsent {
            bytes = whole(bytes, lengths.segment);
        }
        if bytes < lengths.segment && !self.may_be_short(bytes, unsent) {
            return Err(if bytes < unsent { Stop::Window } else { Stop::Nothing });
        }
        if !self.board.has_space() {
            return Err(Stop::Congestion);
        }
        if self.release_at(now).is_some() {
            return Err(Stop::Pacing);
        }
        let is_last = bytes == unsent;
        let has_fin = is_last && self.is_closed;
        Ok(Piece { start: self.next, bytes, has_fin, is_retransmission: false, is_last, is_probe: false })
    }

    /// Whether to wait for acknowledgements because the congestion window has too little space: less than a segment, or less than a quarter of it,
    /// so that frames are long.
    fn waits_for_space(&self, space: u64, least: u64) -> bool {
        let is_regular = self.phase != Phase::Recovery && self.control.pacing_bytes_per_sec().is_none();
        let worthwhile = if is_regular { least.max(self.congestion_window() / 4) } else { least };
        space < worthwhile && self.in_flight() > 0
    }

    /// Whether the rest of what is queued waits until its writer has filled a frame: as long as something is in flight, and while that rest is a
    /// small part of the buffer, so that the writer is woken before all is acknowledged.
    fn waits_for_writer(&self, unsent: u64) -> bool {
        !self.is_closed && !self.board.is_empty() && unsent < self.ring.limit() as u64 / 8
    }

    /// Whether a segment may have fewer bytes than a full one (RFC 9293, section 3.8.6.2.1).
    fn may_be_short(&self, bytes: u64, unsent: u64) -> bool {
        if bytes == unsent {
            return self.board.is_empty() || !self.holds_short || self.is_closed;
        }
        2 * bytes >= self.window_max || (self.wants_persist && self.board.is_empty())
    }

    /// Notes that a piece is sent.
    fn note(&mut self, now: Instant, piece: &Piece) {
        let (start, end) = (piece.start, piece.end());
        if self.board.is_empty() {
            self.progress_at = now;
        }
        let before = self.in_flight();
        let stamp = self.rate.sends(now, end - start, before);
        if piece.is_retransmission {
            self.must_retransmit = false;
            if start == self.una {
                self.progress_at = now;
            }
            self.board.retransmit(start, end, now, stamp);
            self.note_retransmission(end - start);
        } else {
            self.board.push(start, end, now, piece.is_probe, stamp);
            self.next = end;
            self.active_at = now;
            (self.persist_at, self.wants_persist) = (None, false);
        }
        self.pacing.sends(now, end - start, self.control.pacing_bytes_per_sec());
        if self.phase == Phase::Recovery {
            self.reduction.sends(end - start);
        }
    }

    /// When the sender has something to do: what is lost, what a window waits for, or what is paced.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let has_more = self.unsent() > 0 || self.board.lost_bytes() > 0;
        let paced = if has_more { self.release_at(now) } else { None };
        [self.loss_deadline(), self.persist_at, paced].into_iter().flatten().min()
    }
}

/// Waits for a window double so often at most, and are not longer than that (RFC 9293, section 3.8.6.1).
const PERSIST_SHIFT_MAX: u32 = 10;
const PERSIST_MAX: core::time::Duration = core::time::Duration::from_secs(60);

/// The most of `bytes` that fills whole segments; all, if that is none.
fn whole(bytes: u64, segment: u64) -> u64 {
    if bytes < segment { bytes } else { bytes - bytes % segment }
}
