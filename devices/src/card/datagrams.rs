//! Datagrams of UDP that follow each other to the same receiver, sent as one frame that the host cuts again (`VIRTIO_NET_HDR_GSO_UDP_L4`, since
//! Linux 6.2): the way through the host's network is paid once for many. A guest can hardly do it itself, since QEMU offers cards this
//! offload only since 8.1.

/// Offsets: of the Ethernet header behind that of virtio, of its type, and of the IP header.
const ETHERNET: usize = 12;
const ETHERNET_TYPE: usize = ETHERNET + 12;
const IP: usize = ETHERNET + 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const UDP: u8 = 17;
/// The longest headers in front of data.
const HEADERS_BYTES_MAX: usize = IP + IPV6_BYTES + UDP_BYTES;
/// The first word of an IPv4 header without options, the flag that a packet may not be cut, alone, and the version of IPv6.
const IPV4_FIRST: u8 = 0x45;
const IPV4_WHOLE: u16 = 0x4000;
const IPV6_FIRST: u8 = 0x60;
/// Of the header of virtio (virtio 1.2, section 5.1.6): the checksum is not complete, and the kind of frame that the host cuts.
const NEEDS_CHECKSUM: u8 = 1;
const CUT_UDP: u8 = 5;
/// As many datagrams and bytes as Linux cuts at once. The length of an IP packet has 16 bits.
const COUNT_MAX: usize = 64;
const PACKET_BYTES_MAX: usize = 65_535;

/// The headers of a datagram, and how many bytes of data follow.
#[derive(Debug)]
pub(crate) struct Datagram {
    headers: [u8; HEADERS_BYTES_MAX],
    headers_bytes: usize,
    data_bytes: usize,
}

/// Datagrams that follow each other and become one frame.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    first: &'a Datagram,
    count: usize,
    data_bytes: usize,
    /// A shorter datagram is the last one.
    is_complete: bool,
}

impl Datagram {
    /// The datagram in a frame with the header of virtio 1, if it is one that can be joined to others. Its headers are copied: the guest may
    /// change its own.
    pub(crate) fn parse(pieces: &[libc::iovec]) -> Option<Datagram> {
        let mut headers = [0; HEADERS_BYTES_MAX];
        let (mut copied, mut frame_bytes) = (0, 0_usize);
        for piece in pieces {
            let count = piece.iov_len.min(HEADERS_BYTES_MAX - copied);
            // SAFETY: the piece is memory of the guest, as long as it states, to which there are no references.
            unsafe { std::ptr::copy_nonoverlapping(piece.iov_base.cast(), headers[copied..].as_mut_ptr(), count) };
            copied += count;
            frame_bytes = frame_bytes.checked_add(piece.iov_len)?;
        }
        let packet_bytes = frame_bytes.checked_sub(IP)?;
        let word = |at: usize| usize::from(u16::from_be_bytes([headers[at], headers[at + 1]]));
        let is_whole = usize::from(IPV4_WHOLE) == word(IP + 6);
        let (udp, is_udp) = match (word(ETHERNET_TYPE), headers[IP]) {
            (0x0800, IPV4_FIRST) => {
                (IP + IPV4_BYTES, headers[IP + 9] == UDP && is_whole && word(IP + 2) == packet_bytes)
            }
            (0x86dd, first) if first & 0xf0 == IPV6_FIRST => {
                (IP + IPV6_BYTES, headers[IP + 6] == UDP && word(IP + 4) + IPV6_BYTES == packet_bytes)
            }
            _ => return None,
        };
        let headers_bytes = udp + UDP_BYTES;
        let data_bytes = frame_bytes.checked_sub(headers_bytes).filter(|bytes| *bytes > 0)?;
        let little = |at: usize| usize::from(u16::from_le_bytes([headers[at], headers[at + 1]]));
        let is_cut_already = headers[1] != 0;
        let leaves_checksum = headers[0] == NEEDS_CHECKSUM && little(6) == udp - ETHERNET && little(8) == 6;
        let is_good = is_udp && leaves_checksum && !is_cut_already && word(udp + 4) == UDP_BYTES + data_bytes;
        is_good.then_some(Datagram { headers, headers_bytes, data_bytes })
    }

    fn is_v4(&self) -> bool {
        self.headers_bytes == IP + IPV4_BYTES + UDP_BYTES
    }

    /// What two datagrams of a batch have in common: all but lengths, checksums and, in IPv4, the number of the packet, which means nothing
    /// in one that may not be cut (RFC 6864, section 4.1).
    fn flow(&self) -> [&[u8]; 4] {
        let udp = self.headers_bytes - UDP_BYTES;
        let headers = &self.headers;
        match self.is_v4() {
            true => {
                [&headers[ETHERNET..IP + 2], &headers[IP + 6..IP + 10], &headers[IP + 12..udp], &headers[udp..udp + 4]]
            }
            false => [&headers[ETHERNET..IP + 4], &headers[IP + 6..udp], &headers[udp..udp + 4], &[]],
        }
    }
}

impl<'a> Batch<'a> {
    /// A batch of one datagram.
    pub(crate) fn new(first: &'a Datagram) -> Batch<'a> {
        Batch { first, count: 1, data_bytes: first.data_bytes, is_complete: false }
    }

    /// How many datagrams it has.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Adds the next datagram. Whether it belongs to the batch.
    pub(crate) fn add(&mut self, next: &Datagram) -> bool {
        let headers_bytes = self.first.headers_bytes - IP;
        let fits = self.count < COUNT_MAX
            && headers_bytes + self.data_bytes + next.data_bytes <= PACKET_BYTES_MAX
            && next.data_bytes <= self.first.data_bytes;
        if self.is_complete
            || !fits
            || next.headers_bytes != self.first.headers_bytes
            || next.flow() != self.first.flow()
        {
            return false;
        }
        self.is_complete = next.data_bytes < self.first.data_bytes;
        self.data_bytes += next.data_bytes;
        self.count += 1;
        true
    }

    /// The headers of the frame that all become; each of them has as many bytes of headers.
    pub(crate) fn headers(&self) -> Vec<u8> {
        let udp = self.first.headers_bytes - UDP_BYTES;
        let mut headers = self.first.headers[..self.first.headers_bytes].to_vec();
        let mut set = |at: usize, bytes: [u8; 2]| headers[at..at + 2].copy_from_slice(&bytes);
        set(0, [NEEDS_CHECKSUM, CUT_UDP]);
        set(2, ((self.first.headers_bytes - ETHERNET) as u16).to_le_bytes());
        set(4, (self.first.data_bytes as u16).to_le_bytes());
        let udp_bytes = (UDP_BYTES + self.data_bytes) as u16;
        set(udp + 4, udp_bytes.to_be_bytes());
        let addresses = if self.first.is_v4() {
            set(IP + 2, (IPV4_BYTES as u16 + udp_bytes).to_be_bytes());
            set(IP + 10, [0, 0]);
            let checksum = !sum(&headers[IP..udp], 0);
            headers[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
            IP + 12..udp
        } else {
            set(IP + 4, udp_bytes.to_be_bytes());
            IP + 8..udp
        };
        // Of the pseudo header only: the host completes it.
        let checksum = sum(&headers[addresses], u32::from(UDP) + u32::from(udp_bytes));
        headers[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
        headers
    }
}

/// The sum of the internet checksum (RFC 1071), without its complement, of an even number of bytes and of `start`.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let words = bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum = words.fold(start, |sum, word| sum + word);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
