//! Who may do what: the file of tokens.
//!
//! Each line is `ROLE NAME SHA256 [bytes=N] [rate=N]`; empty lines and those that start with `#` are skipped. SHA256 is that of a random token, in
//! hexadecimal: the file does not reveal it. N may end with K, M, G or T (powers of 1024).

use crate::config::number;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Bytes of the file at most.
pub(crate) const FILE_BYTES_MAX: u64 = 256 << 10;
/// Tokens in it at most: a request compares with each.
const TOKENS_MAX: usize = 1000;
/// Characters of a token: at least those of 128 random bits in base64.
const TOKEN_CHARACTERS: core::ops::RangeInclusive<usize> = 22..=256;
const NAME_BYTES_MAX: usize = 64;
const HASH_BYTES: usize = 32;

/// What the holder of a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Upload items.
    Uploader,
    /// Receive and remove items.
    Consumer,
    /// Both, and see the usage.
    Admin,
}

impl Role {
    pub(crate) fn may(self, wanted: Role) -> bool {
        self == wanted || self == Role::Admin
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Role::Uploader => "uploader",
            Role::Consumer => "consumer",
            Role::Admin => "admin",
        })
    }
}

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) role: Role,
    /// Several tokens of one name share a quota and a rate.
    pub(crate) name: Rc<str>,
    hash: [u8; HASH_BYTES],
    /// Bytes of this uploader's items and uploads in progress at most.
    pub(crate) quota_bytes: Option<u64>,
    /// Bytes a second that this uploader may send.
    pub(crate) rate: Option<u64>,
}

/// The whole file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    grants: Vec<Rc<Grant>>,
}

impl Tokens {
    /// Reads the file; the error names the line.
    pub(crate) fn parse(file: &[u8]) -> Result<Tokens, String> {
        let text = str::from_utf8(file).map_err(|error| error.to_string())?;
        let mut grants: Vec<Rc<Grant>> = Vec::new();
        for (place, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let error = |what: &str| format!("line {}: {what}", place + 1);
            let grant = parse_line(line).map_err(error)?;
            if grants.iter().any(|other| other.hash == grant.hash) {
                return Err(error("its token is on another line, too"));
            }
            if grants.len() == TOKENS_MAX {
                return Err(error("there are more tokens than 1000"));
            }
            grants.push(Rc::new(grant));
        }
        Ok(Tokens { grants })
    }

    pub(crate) fn count(&self) -> usize {
        self.grants.len()
    }

    /// Whether an uploader has a quota.
    pub(crate) fn have_quotas(&self) -> bool {
        self.grants.iter().any(|grant| grant.quota_bytes.is_some())
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &Rc<str>> {
        self.grants.iter().map(|grant| &grant.name)
    }

    /// What the holder of this token may do; `None` if there is no such token. How long it takes does not show how much of a hash is the
    /// same.
    pub(crate) fn find(&self, token: &[u8]) -> Option<Rc<Grant>> {
        if !TOKEN_CHARACTERS.contains(&token.len()) {
            return None;
        }
        let presented: [u8; HASH_BYTES] = Sha256::digest(token).into();
        let mut found = None;
        for grant in &self.grants {
            if bool::from(grant.hash.ct_eq(&presented)) {
                found = Some(grant.clone());
            }
        }
        found
    }
}

fn parse_line(line: &str) -> Result<Grant, &'static str> {
    let mut words = line.split_ascii_whitespace();
    let role = match words.next() {
        Some("uploader") => Role::Uploader,
        Some("consumer") => Role::Consumer,
        Some("admin") => Role::Admin,
        _ => return Err("it starts with none of uploader, consumer and admin"),
    };
    let is_name = |name: &&str| {
        name.len() <= NAME_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte))
    };
    let name = words.next().filter(is_name).ok_or("its second word is no name of letters, digits and . _ - @")?;
    let hash =
        words.next().and_then(hash).ok_or("its third word is not the SHA-256 of a token, 64 hexadecimal digits")?;
    let (mut quota_bytes, mut rate) = (None, None);
    for word in words {
        let place = match word.split_once('=') {
            Some(("bytes", _)) => &mut quota_bytes,
            Some(("rate", _)) => &mut rate,
            _ => return Err("after the hash there may be bytes=N and rate=N"),
        };
        let value = word.split_once('=').and_then(|(_, value)| amount(value)).ok_or("a number is not valid")?;
        if place.replace(value).is_some() {
            return Err("a number is there twice");
        }
    }
    if role == Role::Consumer && (quota_bytes.is_some() || rate.is_some()) {
        return Err("a consumer has neither bytes nor rate");
    }
    if rate == Some(0) {
        return Err("a rate of 0 admits nothing: remove the line instead");
    }
    Ok(Grant { role, name: name.into(), hash, quota_bytes, rate })
}

fn hash(text: &str) -> Option<[u8; HASH_BYTES]> {
    let mut hash = [0; HASH_BYTES];
    if text.len() != 2 * HASH_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, place) in hash.iter_mut().zip((0..text.len()).step_by(2)) {
        *byte = u8::from_str_radix(&text[place..place + 2], 16).ok()?;
    }
    Some(hash)
}

/// A number, with a unit or without.
fn amount(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        b'T' => (&text[..text.len() - 1], 1 << 40),
        _ => (text, 1),
    };
    if digits.is_empty() { None } else { number(digits)?.checked_mul(unit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SHA-256 of `0123456789abcdef012345`.
    fn line(start: &str, token: &str, rest: &str) -> String {
        let hash: String = Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{start} {hash} {rest}\n")
    }

    const TOKEN: &str = "0123456789abcdef012345";

    #[test]
    fn a_token_is_found_by_its_hash_alone() {
        let file = line("# admin x", TOKEN, "")
            + "\n"
            + &line("uploader al@ice-1", TOKEN, "rate=5M bytes=10")
            + &line("  consumer bob", "x0123456789abcdef012345", "")
                .to_uppercase()
                .replace("CONSUMER BOB", "consumer bob");
        let tokens = Tokens::parse(file.as_bytes()).unwrap();
        assert_eq!(tokens.count(), 2);
        let found = tokens.find(TOKEN.as_bytes()).unwrap();
        assert_eq!(
            (found.role, &*found.name, found.quota_bytes, found.rate),
            (Role::Uploader, "al@ice-1", Some(10), Some(5 << 20))
        );
        assert_eq!(tokens.find(b"x0123456789abcdef012345").unwrap().role, Role::Consumer);
        for other in ["", "0123456789abcdef01234", "0123456789abcdef0123456", "1123456789abcdef012345"] {
            assert_eq!(tokens.find(other.as_bytes()), None, "{other}");
        }
        // A token that is too short to be random is none, whatever the file has.
        let short = Tokens::parse(line("admin x", "secret", "").as_bytes()).unwrap();
        assert_eq!((short.count(), short.find(b"secret")), (1, None));
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        let good = line("uploader a", TOKEN, "");
        for (bad, reason) in [
            ("guest a 00".into(), "starts with none"),
            ("uploader".into(), "no name"),
            (line("uploader a:b", TOKEN, ""), "no name"),
            (line(&format!("uploader {}", "a".repeat(65)), TOKEN, ""), "no name"),
            ("uploader a".into(), "SHA-256"),
            (format!("uploader a {TOKEN}"), "SHA-256"),
            (format!("uploader a {}", "+".repeat(64)), "SHA-256"),
            (format!("uploader a {}", "é".repeat(32)), "SHA-256"),
            (line("uploader a", "b", "bytes"), "bytes=N"),
            (line("uploader a", "b", "bytes=1 bytes=1"), "twice"),
            (line("uploader a", "b", "bytes=-1"), "not valid"),
            (line("uploader a", "b", "bytes=99999999T"), "not valid"),
            (line("uploader a", "b", "rate=K"), "not valid"),
            (line("uploader a", "b", "rate=0"), "rate of 0"),
            (line("consumer a", "b", "rate=1"), "neither"),
            (good.clone(), "another line"),
        ] {
            let error = Tokens::parse(format!("\n{good}{bad}").as_bytes()).unwrap_err();
            assert!(error.starts_with("line 3: ") && error.contains(reason), "{bad}: {error}");
        }
        assert!(Tokens::parse(b"\xff").is_err());
        let many: String = (0..=TOKENS_MAX).map(|number| line("admin a", &format!("{number}"), "")).collect();
        assert!(Tokens::parse(many.as_bytes()).unwrap_err().starts_with("line 1001: "));
    }
}
