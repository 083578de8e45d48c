//! Wycheproof's vectors against the algorithms that `lib/tls` uses: ring's, and the signatures as webpki checks them.
//!
//! The first disk has them: its first eight bytes are the length of what follows, which are records of an algorithm (its place in
//! [`ALGORITHMS`]), a verdict (0 invalid, 1 valid, 2 either), and five texts, each with its length in four bytes. Numbers are little-endian.

use alloc::vec;
use alloc::vec::Vec;
use glasshouse::{Block, Buf, Error, Platform};
use ring::agreement::{self, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use ring::{aead, hkdf, hmac};
use rustls_pki_types::SignatureVerificationAlgorithm;
use webpki::ring as verify;

/// Bytes of vectors at most.
const BYTES_MAX: u64 = 16 << 20;
/// Vectors with another result that are printed.
const PRINTED_MAX: usize = 10;

enum Algorithm {
    Aead(&'static aead::Algorithm),
    Agreement(&'static agreement::Algorithm),
    Signature(&'static dyn SignatureVerificationAlgorithm),
    Hkdf(hkdf::Algorithm),
    Hmac(hmac::Algorithm),
}

/// What the provider of `lib/tls` has (`lib/tls/src/provider.rs`), in the order of the records' numbers.
static ALGORITHMS: [(&str, Algorithm); 21] = [
    ("AES-128-GCM", Algorithm::Aead(&aead::AES_128_GCM)),
    ("AES-256-GCM", Algorithm::Aead(&aead::AES_256_GCM)),
    ("ChaCha20-Poly1305", Algorithm::Aead(&aead::CHACHA20_POLY1305)),
    ("X25519", Algorithm::Agreement(&agreement::X25519)),
    ("ECDH P-256", Algorithm::Agreement(&agreement::ECDH_P256)),
    ("ECDH P-384", Algorithm::Agreement(&agreement::ECDH_P384)),
    ("ECDSA P-256 SHA-256", Algorithm::Signature(verify::ECDSA_P256_SHA256)),
    ("ECDSA P-256 SHA-384", Algorithm::Signature(verify::ECDSA_P256_SHA384)),
    ("ECDSA P-384 SHA-256", Algorithm::Signature(verify::ECDSA_P384_SHA256)),
    ("ECDSA P-384 SHA-384", Algorithm::Signature(verify::ECDSA_P384_SHA384)),
    ("Ed25519", Algorithm::Signature(verify::ED25519)),
    ("RSA PSS SHA-256", Algorithm::Signature(verify::RSA_PSS_2048_8192_SHA256_LEGACY_KEY)),
    ("RSA PSS SHA-384", Algorithm::Signature(verify::RSA_PSS_2048_8192_SHA384_LEGACY_KEY)),
    ("RSA PSS SHA-512", Algorithm::Signature(verify::RSA_PSS_2048_8192_SHA512_LEGACY_KEY)),
    ("RSA PKCS #1 SHA-256", Algorithm::Signature(verify::RSA_PKCS1_2048_8192_SHA256)),
    ("RSA PKCS #1 SHA-384", Algorithm::Signature(verify::RSA_PKCS1_2048_8192_SHA384)),
    ("RSA PKCS #1 SHA-512", Algorithm::Signature(verify::RSA_PKCS1_2048_8192_SHA512)),
    ("HKDF SHA-256", Algorithm::Hkdf(hkdf::HKDF_SHA256)),
    ("HKDF SHA-384", Algorithm::Hkdf(hkdf::HKDF_SHA384)),
    ("HMAC SHA-256", Algorithm::Hmac(hmac::HMAC_SHA256)),
    ("HMAC SHA-384", Algorithm::Hmac(hmac::HMAC_SHA384)),
];

/// What an algorithm makes of a vector.
#[derive(Debug, PartialEq)]
enum Made {
    /// The result that the vector has.
    Expected,
    /// Another result.
    Other,
    /// It is refused.
    Refused,
}

impl Made {
    fn of(found: &[u8], expected: &[u8]) -> Made {
        if found == expected { Made::Expected } else { Made::Other }
    }
}

/// Checks all vectors on the first disk, and prints one line with the counts.
pub(crate) async fn run(platform: &impl Platform) -> Result<(), Error> {
    let bytes = read(platform).await?;
    let mut counts = [0usize; ALGORITHMS.len()];
    let mut wrong = 0;
    let mut rest = bytes.as_slice();
    while let Some((record, later)) = Record::of(rest) {
        rest = later;
        let (name, algorithm) = ALGORITHMS.get(record.algorithm).ok_or("there is no such algorithm")?;
        counts[record.algorithm] += 1;
        let made = check(algorithm, &record.texts);
        let is_right = match (record.verdict, &made) {
            (1, made) => *made == Made::Expected,
            (0, made) => *made == Made::Refused,
            (_, made) => *made != Made::Other,
        };
        if !is_right {
            wrong += 1;
            if wrong <= PRINTED_MAX {
                let count = counts[record.algorithm];
                platform.print(format_args!("{name}: vector {count} with verdict {}: {made:?}", record.verdict));
            }
        }
    }
    for ((name, _), count) in ALGORITHMS.iter().zip(counts) {
        platform.print(format_args!("{name}: {count} vectors"));
    }
    platform.print(format_args!("{} vectors, {wrong} wrong", counts.iter().sum::<usize>()));
    platform.writable(usize::MAX).await;
    if rest.is_empty() { Ok(()) } else { Err("the last vector is cut".into()) }
}

async fn read(platform: &impl Platform) -> Result<Vec<u8>, Error> {
    const PIECE_BYTES: usize = 64 << 10;
    let disk = platform.block(0).ok_or("start it with --disk FILE, which has the vectors")?;
    let size_bytes = disk.info().size_bytes;
    if size_bytes > BYTES_MAX || size_bytes % PIECE_BYTES as u64 != 0 {
        return Err("the disk has to have at most 16 MiB, in pieces of 64 KiB".into());
    }
    let mut all = Vec::new();
    while (all.len() as u64) < size_bytes {
        let (outcome, buf) = disk.read(all.len() as u64, Buf::zeroed(PIECE_BYTES)?).await;
        outcome?;
        all.extend_from_slice(&buf);
    }
    let length = all.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let end = usize::try_from(length).ok().and_then(|length| length.checked_add(8));
    Ok(end.and_then(|end| all.get(8..end)).ok_or("the disk has no vectors")?.to_vec())
}

struct Record<'a> {
    algorithm: usize,
    verdict: u8,
    texts: [&'a [u8]; 5],
}

impl Record<'_> {
    /// The first record, and what follows it.
    fn of(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
        let ([algorithm, verdict], mut rest) = bytes.split_first_chunk()?;
        let mut texts = [&[][..]; 5];
        for text in &mut texts {
            let (length, later) = rest.split_first_chunk()?;
            (*text, rest) = later.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        }
        Some((Record { algorithm: usize::from(*algorithm), verdict: *verdict, texts }, rest))
    }
}

fn check(algorithm: &Algorithm, [first, second, third, fourth, fifth]: &[&[u8]; 5]) -> Made {
    match algorithm {
        Algorithm::Aead(algorithm) => seal_and_open(algorithm, [first, second, third, fourth, fifth]),
        Algorithm::Agreement(algorithm) => agree(algorithm, first, second, third),
        Algorithm::Signature(algorithm) => match algorithm.verify_signature(first, second, third) {
            Ok(()) => Made::Expected,
            Err(_) => Made::Refused,
        },
        Algorithm::Hkdf(algorithm) => derive(*algorithm, [first, second, third, fourth]),
        Algorithm::Hmac(algorithm) => {
            let key = hmac::Key::new(*algorithm, first);
            if hmac::verify(&key, second, third).is_ok() { Made::Expected } else { Made::Refused }
        }
    }
}

/// Opens a ciphertext, and makes it again from its plain text.
fn seal_and_open(algorithm: &'static aead::Algorithm, [key, nonce, aad, sealed, plain]: [&[u8]; 5]) -> Made {
    let Ok(key) = aead::UnboundKey::new(algorithm, key).map(aead::LessSafeKey::new) else { return Made::Refused };
    let Ok(nonce) = <[u8; aead::NONCE_LEN]>::try_from(nonce) else { return Made::Refused };
    let nonce = || aead::Nonce::assume_unique_for_key(nonce);
    let mut bytes = sealed.to_vec();
    match key.open_in_place(nonce(), aead::Aad::from(aad), &mut bytes) {
        Err(_) => return Made::Refused,
        Ok(found) if found != plain => return Made::Other,
        Ok(_) => {}
    }
    let mut bytes = plain.to_vec();
    match key.seal_in_place_append_tag(nonce(), aead::Aad::from(aad), &mut bytes) {
        Ok(()) => Made::of(&bytes, sealed),
        Err(_) => Made::Other,
    }
}

/// As `lib/tls/src/fixed_random.rs`: ring takes the bytes of a private key from a source of randomness.
#[allow(deprecated)]
fn agree(algorithm: &'static agreement::Algorithm, private: &[u8], public: &[u8], shared: &[u8]) -> Made {
    let random = ring::test::rand::FixedSliceRandom { bytes: private };
    let Ok(private) = EphemeralPrivateKey::generate(algorithm, &random) else { return Made::Refused };
    let agreed = agree_ephemeral(private, &UnparsedPublicKey::new(algorithm, public), |found| Made::of(found, shared));
    agreed.unwrap_or(Made::Refused)
}

fn derive(algorithm: hkdf::Algorithm, [secret, salt, info, expected]: [&[u8]; 4]) -> Made {
    struct Length(usize);
    impl hkdf::KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let mut found = vec![0; expected.len()];
    let extracted = hkdf::Salt::new(algorithm, salt).extract(secret);
    let info = [info];
    match extracted.expand(&info, Length(found.len())).and_then(|okm| okm.fill(&mut found)) {
        Ok(()) => Made::of(&found, expected),
        Err(_) => Made::Refused,
    }
}
