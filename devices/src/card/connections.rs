//! Connections of TCP as a card sees them go by: which the guest opens and closes, and windows of which all fit into the socket of the other side.
//! Pure: frames in, frames out.
//!
//! passt, as of March 2023, loses a frame for which its socket has no space, and sends a lost SYN never again. A window that the guest offers
//! is what passt may send without an answer, so the windows of all connections together are kept smaller than the socket. That needs no
//! checksum: nothing checks those of the guest's frames.

/// Flags of TCP.
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
/// Where a segment has its flags and its window, and where its options start.
const FLAGS: usize = 13;
const WINDOW: usize = 14;
const OPTIONS: usize = 20;
/// The factor of windows that we offer, as a power of two (RFC 7323, section 2.2), and the largest window.
const FACTOR_LOG2: u8 = 2;
const WINDOW_BYTES_MAX: usize = 0xffff << FACTOR_LOG2;
/// The smallest one: two segments and more.
const WINDOW_BYTES_MIN: usize = 4096;
/// Connections that are distinguished. Those that have a number in common are handled as one, which costs space or time, no data.
const COUNT: usize = 1 << 12;
/// How much of a frame has to be known: the longest headers of Ethernet, IP and TCP.
pub(crate) const HEADERS_BYTES_MAX: usize = 14 + 60 + 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Closed,
    Open,
    /// The guest has sent its end.
    Closing,
}

/// A connection: its state, and the factors of its window, the guest's and ours.
#[derive(Debug, Clone, Copy, Default)]
struct Connection {
    state: State,
    guest_log2: u8,
    ours_log2: u8,
    /// The last acknowledgement, and its window as the guest and as we have sent it.
    acknowledged: [u8; 4],
    windows: (u16, u16),
}

/// What becomes of a frame of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is sent.
    WithOthers,
    /// It is sent so that the other side does not read it together with others: its segment opens its connection, or comes with its end or after that.
    Alone,
    /// It is not sent: it would only offer a larger window, which we have made as small as the last one. For passt it would be a repeated
    /// acknowledgement, the first of which makes it send everything again.
    Not,
}

/// All connections of a card.
pub(crate) struct Connections {
    all: Vec<Connection>,
    open: usize,
    /// What all windows together may have.
    bytes_max: usize,
}

/// A segment of TCP in a frame: where it starts, and a number of its connection.
struct Segment {
    start: usize,
    number: usize,
}

impl Segment {
    /// The segment of a frame of the guest, or to it.
    fn of(frame: &[u8], is_sent: bool) -> Option<Segment> {
        const TCP: u8 = 6;
        let (start, addresses, bytes) = match frame.get(12..15)? {
            [8, 0, version] if frame.get(23) == Some(&TCP) => (14 + usize::from(version & 15) * 4, 26, 4),
            [0x86, 0xdd, _] if frame.get(20) == Some(&TCP) => (14 + 40, 22, 16),
            _ => return None,
        };
        // All that is looked at without options.
        frame.get(start..start + OPTIONS)?;
        let word = |at: usize| frame.get(at..at + 2).map_or(0, |word| usize::from(word[0]) << 8 | usize::from(word[1]));
        let (peer, ports) =
            if is_sent { (addresses + bytes, (start + 2, start)) } else { (addresses, (start, start + 2)) };
        let address = (peer..peer + bytes).step_by(2).fold(0, |sum, at| sum ^ word(at));
        let number = address ^ word(ports.0) ^ word(ports.1).rotate_left(7);
        Some(Segment { start, number: (number ^ number >> 16) % COUNT })
    }
}

impl Connections {
    /// None yet. `socket_bytes`: the room that the other side has for frames to the guest.
    pub(crate) fn new(socket_bytes: usize) -> Connections {
        // The rest is for headers, and for what the kernel needs beside bytes.
        Connections { all: vec![Connection::default(); COUNT], open: 0, bytes_max: socket_bytes / 8 * 5 }
    }

    fn change(&mut self, number: usize, state: State) {
        let before = std::mem::replace(&mut self.all[number].state, state);
        self.open -= usize::from(before == State::Open);
        self.open += usize::from(state == State::Open);
    }

    /// Makes the window of a frame of the guest, of which this is the start, as small as it has to be. `bytes`: the whole frame's.
    pub(crate) fn send(&mut self, frame: &mut [u8], bytes: usize) -> Sent {
        let Some(Segment { start, number }) = Segment::of(frame, true) else { return Sent::WithOthers };
        let flags = frame[start + FLAGS];
        if flags & SYN != 0 {
            let guest_log2 = factor_mut(frame, start).map(|factor| std::mem::replace(factor, FACTOR_LOG2));
            let ours_log2 = guest_log2.map_or(0, |_| FACTOR_LOG2);
            // More than 14 is 14.
            let guest_log2 = guest_log2.unwrap_or(0).min(14);
            self.all[number] = Connection { guest_log2, ours_log2, ..self.all[number] };
            self.change(number, State::Open);
        } else if flags & RST != 0 {
            self.change(number, State::Closed);
        } else if flags & FIN != 0 {
            self.change(number, State::Closing);
        }
        let Connection { state, guest_log2, ours_log2, acknowledged, windows } = self.all[number];
        // Those of a SYN have no factor.
        let (guest_log2, ours_log2) = if flags & SYN != 0 { (0, 0) } else { (guest_log2, ours_log2) };
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let offered = word(start + WINDOW);
        let limit = (self.bytes_max / self.open.max(1)).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX);
        let smaller = ((usize::from(offered) << guest_log2).min(limit) >> ours_log2).min(0xffff) as u16;
        let has_data = bytes > start + usize::from(frame[start + FLAGS - 1] >> 4) * 4;
        let mut acknowledges = [0; 4];
        acknowledges.copy_from_slice(&frame[start + 8..start + 12]);
        frame[start + WINDOW..start + WINDOW + 2].copy_from_slice(&smaller.to_be_bytes());
        let connection = &mut self.all[number];
        (connection.acknowledged, connection.windows) = (acknowledges, (offered, smaller));
        if flags & SYN != 0 || state == State::Closing {
            return Sent::Alone;
        }
        let is_repeated = acknowledges == acknowledged && windows.1 == smaller && windows.0 != offered;
        if is_repeated && !has_data && flags & RST == 0 { Sent::Not } else { Sent::WithOthers }
    }

    /// Notes a frame to the guest.
    pub(crate) fn receive(&mut self, frame: &[u8]) {
        if let Some(Segment { start, number }) = Segment::of(frame, false)
            && frame[start + FLAGS] & RST != 0
        {
            self.change(number, State::Closed);
        }
    }
}

/// The factor of the window in the options of a segment.
fn factor_mut(frame: &mut [u8], start: usize) -> Option<&mut u8> {
    const NONE: u8 = 1;
    const FACTOR: [u8; 2] = [3, 3];
    let end = start + usize::from(frame[start + FLAGS - 1] >> 4) * 4;
    let mut at = start + OPTIONS;
    while at < end {
        match frame.get(at..end)? {
            [0, ..] => return None,
            [NONE, ..] => at += 1,
            [kind, bytes, _, ..] if [*kind, *bytes] == FACTOR => return frame.get_mut(at + 2),
            [_, bytes, ..] if *bytes >= 2 => at += usize::from(*bytes),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK: u8 = 16;

    /// A frame of the guest, from its port 80 to `port`; a SYN with the options maximum segment size, window factor 128, and one that has no end.
    fn frame(port: u16, flags: u8, window: u16) -> Vec<u8> {
        let mut frame = vec![0xee; 66];
        (frame[12], frame[13], frame[14], frame[23]) = (8, 0, 0x45, 6);
        frame[34..36].copy_from_slice(&80_u16.to_be_bytes());
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        (frame[46], frame[47]) = (0x80, flags);
        frame[48..50].copy_from_slice(&window.to_be_bytes());
        frame[54..66].copy_from_slice(&[2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2, 1, 0]);
        frame
    }

    /// What becomes of its window, and whether it is alone.
    fn sent(connections: &mut Connections, port: u16, flags: u8, window: u16) -> (u16, bool) {
        let mut frame = frame(port, flags, window);
        let bytes = frame.len() + 1;
        let is_alone = connections.send(&mut frame, bytes) == Sent::Alone;
        assert_eq!(frame[61], if flags & SYN != 0 { FACTOR_LOG2 } else { 7 });
        (u16::from_be_bytes([frame[48], frame[49]]), is_alone)
    }

    /// The answer of the other side.
    fn reset(port: u16) -> Vec<u8> {
        let mut frame = frame(80, RST, 0);
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame[36..38].copy_from_slice(&80_u16.to_be_bytes());
        frame
    }

    #[test]
    fn all_windows_together_fit() {
        let mut connections = Connections::new(160_000);
        assert_eq!(sent(&mut connections, 1, SYN | ACK, 65535), (65535, true));
        assert_eq!(sent(&mut connections, 1, ACK, 8192), (25_000, false));
        assert_eq!(sent(&mut connections, 1, ACK, 100), (100 * 128 / 4, false));
        assert_eq!(sent(&mut connections, 1, ACK, 0), (0, false));
        sent(&mut connections, 2, SYN | ACK, 65535);
        assert_eq!(sent(&mut connections, 1, ACK, 8192).0, 50_000 / 4);
        // Retransmitted, it is no other one.
        sent(&mut connections, 2, SYN | ACK, 65535);
        assert_eq!(sent(&mut connections, 1, ACK, 8192).0, 50_000 / 4);
        connections.receive(&reset(2));
        assert_eq!(sent(&mut connections, 1, ACK, 8192).0, 25_000);
        for port in 10..500 {
            sent(&mut connections, port, SYN | ACK, 65535);
        }
        assert_eq!(sent(&mut connections, 1, ACK, 8192).0, 4096 / 4);
    }

    #[test]
    fn frames_of_a_connection_that_opens_or_closes_are_alone() {
        let mut connections = Connections::new(160_000);
        let mut is_alone = |port, flags| sent(&mut connections, port, flags, 100).1;
        assert_eq!([SYN | ACK, ACK, FIN | ACK, ACK].map(|flags| is_alone(1, flags)), [true, false, true, true]);
        assert!(!is_alone(2, ACK));
        // The port is used again.
        assert_eq!([SYN | ACK, ACK, RST, ACK].map(|flags| is_alone(1, flags)), [true, false, false, false]);
    }

    #[test]
    fn a_window_that_is_larger_for_the_guest_alone_is_no_acknowledgement() {
        let mut connections = Connections::new(160_000);
        connections.send(&mut frame(1, SYN | ACK, 65535), 66);
        let mut send = |window, bytes| connections.send(&mut frame(1, ACK, window), bytes);
        send(700, 66);
        assert_eq!(
            [(701, 66), (701, 67), (702, 66)].map(|(window, bytes)| send(window, bytes)),
            [Sent::WithOthers, Sent::WithOthers, Sent::WithOthers]
        );
        // The largest window that is offered.
        send(50_000, 66);
        assert_eq!(send(50_001, 66), Sent::Not);
        assert_eq!(send(50_002, 67), Sent::WithOthers);
        // One that the guest repeats is repeated.
        assert_eq!(send(50_002, 66), Sent::WithOthers);
    }

    #[test]
    fn a_peer_without_factors_gets_none() {
        let mut connections = Connections::new(160_000);
        let mut syn = frame(1, SYN | ACK, 65535);
        syn[46] = 0x50;
        connections.send(&mut syn, 66);
        assert_eq!(sent(&mut connections, 1, ACK, 50_000), (50_000, false));
    }

    /// Any bytes are a frame, and none makes it panic.
    #[test]
    fn any_bytes_are_a_frame() {
        let mut connections = Connections::new(160_000);
        let whole = frame(1, SYN, 1);
        let mut v6 = vec![0; 14 + 40 + 24];
        (v6[12], v6[13], v6[14], v6[20]) = (0x86, 0xdd, 0x60, 6);
        (v6[66], v6[67]) = (0x60, SYN | ACK);
        v6[74..78].copy_from_slice(&[3, 3, 9, 0]);
        for whole in [whole, v6] {
            for at in 12..whole.len() {
                for value in [0, 1, 2, 3, 0x45, 0x4f, 0xf0, 0xff] {
                    let mut other = whole.clone();
                    other[at] = value;
                    for bytes in 0..=other.len() {
                        connections.send(&mut other[..bytes].to_vec(), bytes);
                        connections.receive(&other[..bytes]);
                    }
                }
            }
        }
    }
}
