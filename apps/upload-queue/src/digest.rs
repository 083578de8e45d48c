//! Digests of items in HTTP: the fields Content-Digest, Repr-Digest and those that request them (RFC 9530).
//!
//! An upload has no encoding and is never a part, so both digests are of the same bytes.

use crate::error::StoreError;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use glasshouse::http::Request;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

const FIELDS: [&str; 2] = ["Content-Digest", "Repr-Digest"];

/// Members of a field with digests that are read; more are refused.
const MEMBERS_MAX: usize = 16;

/// Byte sequences of structured fields (RFC 9651, section 4.2.7): parsers do not require the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A hash function for digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256 (FIPS 180-4)
    Sha256,
    /// SHA-512
    Sha512,
    /// SHA-1 (FIPS 180-4), against faults of the network only: each server of tus has to know it.
    Sha1,
}

const ALGORITHMS: [Algorithm; 2] = [Algorithm::Sha256, Algorithm::Sha512];

impl Algorithm {
    /// Its key in the registry of RFC 9530.
    pub fn key(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha-256",
            Algorithm::Sha512 => "sha-512",
            Algorithm::Sha1 => "sha1",
        }
    }

    fn digest_bytes(self) -> usize {
        match self {
            Algorithm::Sha256 => 32,
            Algorithm::Sha512 => 64,
            Algorithm::Sha1 => 20,
        }
    }

    /// The algorithm and the digest of the field `Upload-Checksum` of tus.
    pub(crate) fn of_tus(field: &[u8]) -> Result<(Algorithm, Vec<u8>), &'static str> {
        let malformed = "Upload-Checksum takes sha1, sha256 or sha512, and the checksum in Base64";
        let mut words = field.split(|&byte| byte == b' ');
        let algorithm = match words.next() {
            Some(b"sha1") => Algorithm::Sha1,
            Some(b"sha256") => Algorithm::Sha256,
            Some(b"sha512") => Algorithm::Sha512,
            _ => return Err(malformed),
        };
        let digest = words.next().and_then(|text| BASE64.decode(text).ok());
        let digest = digest.filter(|digest| digest.len() == algorithm.digest_bytes() && words.next().is_none());
        Ok((algorithm, digest.ok_or(malformed)?))
    }

    fn of_key(key: &[u8]) -> Option<Algorithm> {
        ALGORITHMS.into_iter().find(|algorithm| algorithm.key().as_bytes() == key)
    }
}

/// A digest that is being computed.
pub(crate) struct Hasher {
    algorithm: Algorithm,
    state: State,
}

enum State {
    Sha256(Box<Sha256>),
    Sha512(Box<Sha512>),
    Sha1(Box<Sha1>),
}

impl Hasher {
    pub(crate) fn new(algorithm: Algorithm) -> Hasher {
        let state = match algorithm {
            Algorithm::Sha256 => State::Sha256(Box::default()),
            Algorithm::Sha512 => State::Sha512(Box::default()),
            Algorithm::Sha1 => State::Sha1(Box::default()),
        };
        Hasher { algorithm, state }
    }

    #[inline(never)]
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Sha256(state) => state.update(bytes),
            State::Sha512(state) => state.update(bytes),
            State::Sha1(state) => state.update(bytes),
        }
    }

    // Not in the frame of a transfer, which has no room for a copy of the state.
    #[inline(never)]
    fn digest(&self) -> Vec<u8> {
        match &self.state {
            State::Sha256(state) => state.as_ref().clone().finalize().to_vec(),
            State::Sha512(state) => state.as_ref().clone().finalize().to_vec(),
            State::Sha1(state) => state.as_ref().clone().finalize().to_vec(),
        }
    }

    /// The value of a field with this digest.
    pub(crate) fn field(&self) -> String {
        format!("{}=:{}:", self.algorithm.key(), BASE64.encode(self.digest()))
    }
}

/// The digests that the bytes of an upload must have.
#[derive(Default)]
pub struct Digests {
    hashers: Vec<Hasher>,
    expected: Vec<(Algorithm, Vec<u8>)>,
}

impl Digests {
    /// Those in the head of an upload. If it announces some for the end of the body (Trailer), all algorithms are computed.
    pub(crate) fn of_head(request: &Request) -> Result<Digests, &'static str> {
        Digests::of(request, &FIELDS)
    }

    /// Those of the bytes of a request, which are a part of an upload.
    pub(crate) fn of_content(request: &Request) -> Result<Digests, &'static str> {
        Digests::of(request, &FIELDS[..1])
    }

    /// Those of the whole upload of which the bytes of a request are a part. They may not follow the body.
    pub(crate) fn of_representation(request: &Request) -> Result<Digests, &'static str> {
        Digests::of(request, &FIELDS[1..])
    }

    fn of(request: &Request, names: &[&str]) -> Result<Digests, &'static str> {
        let mut digests = Digests::default();
        let is_named = |name: &[u8]| names.iter().any(|wanted| name.eq_ignore_ascii_case(wanted.as_bytes()));
        if request.list("Trailer").any(is_named) {
            digests.hashers.extend(ALGORITHMS.map(Hasher::new));
        }
        let fields = request.headers().filter(|(name, _)| is_named(name.as_bytes()));
        for (algorithm, digest) in parse(fields.map(|(_, value)| value))? {
            digests.expect(algorithm, digest);
        }
        Ok(digests)
    }

    /// The bytes must also have the digests that came after the body.
    pub(crate) fn add_trailers<'a>(
        &mut self,
        fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<(), &'static str> {
        let fields = fields.filter(|(name, _)| is_digest(name.as_bytes()));
        for (algorithm, digest) in parse(fields.map(|(_, value)| value))? {
            if !self.hashers.iter().any(|hasher| hasher.algorithm == algorithm) {
                return Err("A digest after the body has to be announced before it, by the field Trailer");
            }
            self.expected.push((algorithm, digest));
        }
        Ok(())
    }

    /// Requires a digest; call it before the first byte.
    pub fn expect(&mut self, algorithm: Algorithm, digest: Vec<u8>) {
        if !self.hashers.iter().any(|hasher| hasher.algorithm == algorithm) {
            self.hashers.push(Hasher::new(algorithm));
        }
        self.expected.push((algorithm, digest));
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.hashers.is_empty()
    }

    /// The next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hashers.iter_mut().for_each(|hasher| hasher.update(bytes));
    }

    /// Fails if the bytes so far do not have all digests that are required.
    pub(crate) fn verify(&self) -> Result<(), StoreError> {
        for (algorithm, expected) in &self.expected {
            let hasher = self.hashers.iter().find(|hasher| hasher.algorithm == *algorithm);
            if hasher.is_none_or(|hasher| hasher.digest() != *expected) {
                return Err(StoreError::Digest { algorithm: *algorithm });
            }
        }
        Ok(())
    }
}

fn is_digest(name: &[u8]) -> bool {
    FIELDS.iter().any(|digest| name.eq_ignore_ascii_case(digest.as_bytes()))
}

/// The digests that these fields contain. Those of unknown algorithms are ignored, unless there are no others: then the client expects a
/// check that would not happen.
fn parse<'a>(fields: impl Iterator<Item = &'a [u8]>) -> Result<Vec<(Algorithm, Vec<u8>)>, &'static str> {
    let malformed = "A field with a digest is malformed: sha-256=:BASE64: is one";
    let (mut found, mut count) = (Vec::new(), 0);
    let members = fields.flat_map(|field| field.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii);
    for member in members {
        count += 1;
        let equals = member.iter().position(|&byte| byte == b'=').filter(|_| count <= MEMBERS_MAX).ok_or(malformed)?;
        let Some(algorithm) = Algorithm::of_key(&member[..equals]) else { continue };
        let value = member[equals + 1..].strip_prefix(b":").ok_or(malformed)?;
        let end = value.iter().position(|&byte| byte == b':').ok_or(malformed)?;
        let digest = BASE64.decode(&value[..end]).map_err(|_| malformed)?;
        let has_rest = !matches!(value[end + 1..], [] | [b';', ..]);
        if has_rest || digest.len() != algorithm.digest_bytes() {
            return Err(malformed);
        }
        found.push((algorithm, digest));
    }
    if count > 0 && found.is_empty() {
        return Err("Only the digests sha-256 and sha-512 can be verified: send one of them, or none");
    }
    Ok(found)
}

/// The algorithm that a request prefers by this field, Want-Content-Digest or Want-Repr-Digest. One without weight is not wanted; what is
/// malformed is ignored.
pub(crate) fn wanted(request: &Request, name: &str) -> Option<Algorithm> {
    let members = request.list(name).filter_map(|member| {
        let (key, weight) = member.split_at_checked(member.iter().position(|&byte| byte == b'=')?)?;
        let weight: u8 = str::from_utf8(&weight[1..]).ok()?.parse().ok()?;
        Some((Algorithm::of_key(key)?, weight))
    });
    let best = members
        .filter(|(_, weight)| (1..=10).contains(weight))
        .reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.map(|(algorithm, _)| algorithm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// Of no bytes, from FIPS 180-4's examples.
    const EMPTY: &str = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:";

    fn parsed(field: &str) -> Result<usize, &'static str> {
        parse([field.as_bytes()].into_iter()).map(|found| found.len())
    }

    #[test]
    fn a_digest_is_read_or_refused() {
        let long = vec!["sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"; MEMBERS_MAX].join(", ");
        for (field, count) in [
            (EMPTY, 1),
            (EMPTY.trim_end_matches("=:"), 0),
            ("sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU:;a=b", 1),
            (&format!("md5=:aaaa:, {EMPTY}"), 1),
            (&long, MEMBERS_MAX),
            (&format!("{long},{EMPTY}"), 0),
            ("md5=:1B2M2Y8AsgTpgAmY7PhCfg==:", 0),
            ("", 0),
            ("sha-256", 0),
            ("sha-256=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", 0),
            ("sha-256=:47DE:", 0),
            ("sha-512=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:", 0),
            ("sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:x", 0),
            ("sha-256=:*:", 0),
        ] {
            assert_eq!(parsed(field).unwrap_or(0), count, "{field}");
        }
        assert_eq!(parse([].into_iter()), Ok(vec![]));
    }

    #[test]
    fn bytes_have_the_digests_or_not() {
        let found = parse([EMPTY.as_bytes()].into_iter()).unwrap();
        let mut digests = Digests::default();
        found.into_iter().for_each(|(algorithm, digest)| digests.expect(algorithm, digest));
        assert_eq!(digests.verify(), Ok(()));
        digests.update(b"x");
        assert_eq!(digests.verify(), Err(StoreError::Digest { algorithm: Algorithm::Sha256 }));
        let mut hasher = Hasher::new(Algorithm::Sha512);
        hasher.update(b"abc");
        let expected =
            "sha-512=:3a81oZNherrMQXNJriBBMRLm+k6JqX6iCp7u5ktV05ohkpkqJ0/BqDa6PCOj/uu9RU1EI2Q86A4qmslPpUyknw==:";
        assert_eq!(hasher.field(), expected);
    }
}
