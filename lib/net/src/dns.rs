//! Messages of DNS (RFC 1035, section 4), as bytes: what smoltcp's client does not report of an answer, and queries over TCP.

use crate::link::{ETHERNET_BYTES, addresses_in};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use glass_api::NetError;
use smoltcp::wire::{DnsFlags, DnsPacket, DnsQuestion, DnsRcode, DnsRecord, DnsRecordData, IpAddress, UdpPacket};

/// The port of name servers.
pub(crate) const PORT: u16 = 53;
const HEADER_BYTES: usize = 12;
const CLASS_INTERNET: u16 = 1;

/// What an answer is, besides its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has all addresses that there are.
    Complete,
    /// There is no such name.
    NoSuchName,
    /// It is too long for a datagram: request it over TCP.
    Truncated,
    /// The server does not know it.
    Failed,
}

impl Outcome {
    fn of(packet: &DnsPacket<&[u8]>) -> Outcome {
        match packet.rcode() {
            DnsRcode::NXDomain => Outcome::NoSuchName,
            _ if packet.flags().contains(DnsFlags::TRUNCATED) => Outcome::Truncated,
            DnsRcode::NoError => Outcome::Complete,
            _ => Outcome::Failed,
        }
    }

    /// The result of a query with this answer.
    pub(crate) fn result(self, addresses: impl Iterator<Item = IpAddress>) -> Result<Vec<IpAddr>, NetError> {
        match self {
            Outcome::NoSuchName => Err(NetError::NoSuchName),
            Outcome::Truncated | Outcome::Failed => Err(NetError::NameServerFailed),
            Outcome::Complete => {
                let found: Vec<_> = addresses.filter(IpAddress::is_unicast).map(IpAddr::from).collect();
                if found.is_empty() { Err(NetError::NoAddress) } else { Ok(found) }
            }
        }
    }
}

/// Where the datagram of UDP in a frame starts, and who has sent it.
fn datagram(frame: &[u8]) -> Option<(usize, IpAddr)> {
    let (source, _) = addresses_in(frame)?;
    let (start, protocol) = match source {
        IpAddress::Ipv4(_) => (ETHERNET_BYTES + 4 * usize::from(frame[ETHERNET_BYTES] & 15), frame[ETHERNET_BYTES + 9]),
        IpAddress::Ipv6(_) => (ETHERNET_BYTES + 40, frame[ETHERNET_BYTES + 6]),
    };
    (protocol == 17).then_some((start, source.into()))
}

/// The outcome in a frame from a name server, and the server. Whether it answers a query of ours is not checked.
pub(crate) fn outcome_in(frame: &[u8]) -> Option<(SocketAddr, Outcome)> {
    let (start, server) = datagram(frame)?;
    let packet = UdpPacket::new_checked(frame.get(start..)?).ok().filter(|packet| packet.src_port() == PORT)?;
    let message = DnsPacket::new_checked(packet.payload()).ok()?;
    Some((SocketAddr::new(server, PORT), Outcome::of(&message)))
}

/// The frame without the records of its answer, of which the last may be cut.
pub(crate) fn without_records(frame: &[u8]) -> Option<Vec<u8>> {
    let (start, _) = datagram(frame)?;
    let (source, destination) = addresses_in(frame)?;
    let mut frame = frame.to_vec();
    let mut packet = UdpPacket::new_checked(frame.get_mut(start..)?).ok()?;
    let counts = packet.payload_mut().get_mut(6..HEADER_BYTES)?;
    counts.fill(0);
    packet.fill_checksum(&source, &destination);
    Some(frame)
}

/// A query for the addresses of `name`, of the kind `kind` (a record type), with this number.
pub(crate) fn query(number: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + name.len() + 6);
    bytes.extend(number.to_be_bytes());
    // Recursion is desired; one question.
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.trim_end_matches('.').split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(CLASS_INTERNET.to_be_bytes());
    bytes
}

/// The addresses in the answer to a query: those of its name, and of the names that this one is an alias for.
pub(crate) fn addresses_for(query: &[u8], answer: &[u8]) -> Result<Vec<IpAddr>, NetError> {
    let invalid = NetError::NameServerFailed;
    let message = DnsPacket::new_checked(answer).map_err(|_| invalid)?;
    let is_answer = answer.first_chunk::<2>() == query.first_chunk::<2>()
        && message.flags().contains(DnsFlags::RESPONSE)
        && message.question_count() == 1;
    let (mut records, question) = DnsQuestion::parse(message.payload()).map_err(|_| invalid)?;
    let asked = query.get(HEADER_BYTES..query.len() - 4).and_then(|name| labels(&message, name));
    let mut owner = labels(&message, question.name).ok_or(invalid)?;
    if !is_answer || asked.is_none_or(|asked| !is_same(&asked, &owner)) {
        return Err(invalid);
    }
    let mut found = Vec::new();
    for _ in 0..message.answer_record_count() {
        let (rest, record) = DnsRecord::parse(records).map_err(|_| invalid)?;
        records = rest;
        if !is_same(&labels(&message, record.name).ok_or(invalid)?, &owner) {
            continue;
        }
        match record.data {
            DnsRecordData::A(address) => found.push(IpAddress::Ipv4(address)),
            DnsRecordData::Aaaa(address) => found.push(IpAddress::Ipv6(address)),
            DnsRecordData::Cname(name) => owner = labels(&message, name).ok_or(invalid)?,
            DnsRecordData::Other(..) => {}
        }
    }
    Outcome::of(&message).result(found.into_iter())
}

/// The labels of a name; `None` if it is invalid.
fn labels<'m>(message: &'m DnsPacket<&[u8]>, name: &'m [u8]) -> Option<Vec<&'m [u8]>> {
    message.parse_name(name).collect::<Result<_, _>>().ok()
}

fn is_same(one: &[&[u8]], other: &[&[u8]]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.eq_ignore_ascii_case(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn answer(query: &[u8], flags: [u8; 2], records: &[&[u8]]) -> Vec<u8> {
        let mut bytes = query.to_vec();
        bytes[2..4].copy_from_slice(&flags);
        bytes[7] = records.len() as u8;
        bytes.extend(records.concat());
        bytes
    }

    const ADDRESS: &[u8] = &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1];
    const OTHER: &[u8] = &[1, b'x', 0, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 9];
    const ALIAS: &[u8] = &[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 3, 1, b'x', 0];
    const GROUP: &[u8] = &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 224, 0, 0, 1];
    const OK: [u8; 2] = [0x81, 0x80];

    #[test]
    fn an_answer_has_the_addresses_of_its_name_and_of_aliases() {
        let query = query(7, "Queue.example.", 1);
        let addresses = |flags, records: &[&[u8]]| addresses_for(&query, &answer(&query, flags, records));
        let found = |last| Ok(vec![IpAddr::from([192, 0, 2, last])]);
        assert_eq!(addresses(OK, &[OTHER, ADDRESS]), found(1));
        assert_eq!(addresses(OK, &[ALIAS, OTHER]), found(9));
        assert_eq!(addresses(OK, &[GROUP, ADDRESS]), found(1));
        assert_eq!(addresses(OK, &[GROUP]), Err(NetError::NoAddress));
        assert_eq!(addresses([0x81, 0x83], &[]), Err(NetError::NoSuchName));
        assert_eq!(addresses([0x81, 0x82], &[]), Err(NetError::NameServerFailed));
        let right = answer(&query, OK, &[ADDRESS]);
        for bytes in 0..right.len() {
            assert!(addresses_for(&query, &right[..bytes]).is_err(), "{bytes} bytes");
        }
        // Another number, no answer, another name.
        for at in [1, 2, 14] {
            let mut wrong = right.clone();
            wrong[at] ^= 0x81;
            assert_eq!(addresses_for(&query, &wrong), Err(NetError::NameServerFailed), "byte {at}");
        }
    }
}
