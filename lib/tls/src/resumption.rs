//! Sessions that are continued: the server's tickets, and the client's store of them (RFC 8446, section 2.2).

use crate::entropy::Entropy;
use crate::provider::Time;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;
use rustls::server::ProducesTickets;
use spin::Mutex;

/// How long a key encrypts tickets, and how long a ticket is good: each key decrypts for one period more.
const PERIOD_SECS: u64 = 6 * 3600;

/// Encrypts what a server has to remember of a session, for the client to keep: nothing of it stays here. Keys change every six hours;
/// what was encrypted with one of twelve hours ago cannot be read any more.
pub(crate) struct Tickets {
    keys: Mutex<Keys>,
    entropy: &'static Entropy,
    time: Arc<Time>,
}

struct Keys {
    /// The latest first.
    keys: [TicketKey; 2],
    /// When the first was made, in seconds since 1970; 0 without a time of day, so that keys then stay the same.
    since_secs: u64,
}

/// A key, and its random name, which the tickets that it encrypts begin with.
struct TicketKey {
    name: [u8; NAME_BYTES],
    key: LessSafeKey,
}

const NAME_BYTES: usize = 16;

impl TicketKey {
    fn new(entropy: &Entropy) -> TicketKey {
        let key = UnboundKey::new(&AES_256_GCM, &entropy.bytes::<32>()).expect("32 bytes are a key of AES-256");
        TicketKey { name: entropy.bytes(), key: LessSafeKey::new(key) }
    }
}

impl Tickets {
    pub(crate) fn new(entropy: &'static Entropy, time: Arc<Time>) -> Tickets {
        let keys =
            Keys { keys: [TicketKey::new(entropy), TicketKey::new(entropy)], since_secs: time.secs().unwrap_or(0) };
        Tickets { keys: Mutex::new(keys), entropy, time }
    }

    /// Replaces keys that are too old.
    fn rotate(&self, keys: &mut Keys) {
        let now = self.time.secs().unwrap_or(0);
        let age = now.saturating_sub(keys.since_secs);
        if age < PERIOD_SECS {
            return;
        }
        keys.keys.swap(0, 1);
        keys.keys[0] = TicketKey::new(self.entropy);
        if age >= 2 * PERIOD_SECS {
            keys.keys[1] = TicketKey::new(self.entropy);
        }
        keys.since_secs = now;
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        PERIOD_SECS as u32
    }

    /// A ticket: the key's name, a random nonce, the ciphertext and its tag.
    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let mut keys = self.keys.lock();
        self.rotate(&mut keys);
        let TicketKey { name, key } = &keys.keys[0];
        // Random nonces of 96 bits: 2^32 tickets of a key are safe (NIST SP 800-38D, section 8.3), in six hours.
        let nonce: [u8; NONCE_LEN] = self.entropy.bytes();
        let mut ticket = [&name[..], &nonce, plain].concat();
        let sealed = &mut ticket[NAME_BYTES + NONCE_LEN..];
        let tag = key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(name), sealed).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let mut keys = self.keys.lock();
        self.rotate(&mut keys);
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let TicketKey { key, .. } = keys.keys.iter().find(|key| key.name == *name)?;
        let mut sealed = sealed.to_vec();
        let plain = key.open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(name), &mut sealed).ok()?;
        let bytes = plain.len();
        sealed.truncate(bytes);
        Some(sealed)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Tickets")
    }
}

/// Tickets of a client that are kept at most, and of one server.
const STORED_MAX: usize = 64;
const STORED_OF_SERVER_MAX: usize = 4;

/// What a client keeps of servers, the latest last.
#[derive(Default)]
pub(crate) struct Store(Mutex<Stored>);

#[derive(Default)]
struct Stored {
    tickets: VecDeque<(ServerName<'static>, Tls13ClientSessionValue)>,
    groups: VecDeque<(ServerName<'static>, NamedGroup)>,
}

impl ClientSessionStore for Store {
    fn set_kx_hint(&self, server: ServerName<'static>, group: NamedGroup) {
        let groups = &mut self.0.lock().groups;
        groups.retain(|(name, _)| *name != server);
        groups.push_back((server, group));
        if groups.len() > STORED_MAX {
            groups.pop_front();
        }
    }

    fn kx_hint(&self, server: &ServerName<'_>) -> Option<NamedGroup> {
        self.0.lock().groups.iter().find(|(name, _)| name == server).map(|(_, group)| *group)
    }

    fn set_tls12_session(&self, _server: ServerName<'static>, _value: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _server: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _server: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, server: ServerName<'static>, value: Tls13ClientSessionValue) {
        let tickets = &mut self.0.lock().tickets;
        let of_server = tickets.iter().filter(|(name, _)| *name == server).count();
        if of_server >= STORED_OF_SERVER_MAX {
            let oldest = tickets.iter().position(|(name, _)| *name == server);
            oldest.map(|index| tickets.remove(index));
        } else if tickets.len() >= STORED_MAX {
            tickets.pop_front();
        }
        tickets.push_back((server, value));
    }

    fn take_tls13_ticket(&self, server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let tickets = &mut self.0.lock().tickets;
        // The newest: it is good for longest. Each is used once (RFC 8446, appendix C.4).
        let index = tickets.iter().rposition(|(name, _)| name == server)?;
        tickets.remove(index).map(|(_, ticket)| ticket)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Store")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_api::Random;

    struct Constant;

    impl Random for Constant {
        fn fill_random(&self, bytes: &mut [u8]) {
            bytes.fill(7);
        }
    }

    #[test]
    fn a_ticket_is_read_for_one_period_more_and_only_unchanged() {
        let entropy = alloc::boxed::Box::leak(alloc::boxed::Box::new(Entropy::new(&Constant)));
        let time = Arc::new(Time::default());
        let tickets = Tickets::new(entropy, time.clone());
        time.set_secs(PERIOD_SECS);
        let ticket = tickets.encrypt(b"session").unwrap();
        assert_eq!(tickets.decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        for place in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[place] ^= 1;
            assert_eq!(tickets.decrypt(&changed), None, "{place}");
            assert_eq!(tickets.decrypt(&ticket[..place]), None, "{place}");
        }
        time.set_secs(2 * PERIOD_SECS);
        assert!(tickets.decrypt(&ticket).is_some(), "the key before the last");
        time.set_secs(3 * PERIOD_SECS);
        assert_eq!(tickets.decrypt(&ticket), None);
    }
}
