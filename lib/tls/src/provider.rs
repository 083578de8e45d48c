//! The cryptography of a context: algorithms of ring, with the platform's randomness and time.

use crate::agreement;
use crate::entropy::Entropy;
use crate::signing::Keys;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use glass_api::{Clock, Random};
use rustls::SignatureScheme;
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use webpki::ring as verify;

/// Randomness, time and algorithms of one server or client. It is made once, and lives as long as the program: rustls wants that of a
/// source of randomness. Some 300 bytes.
#[derive(Clone)]
pub(crate) struct Provider {
    pub(crate) entropy: &'static Entropy,
    pub(crate) time: Arc<Time>,
    pub(crate) algorithms: Arc<CryptoProvider>,
}

impl Provider {
    pub(crate) fn new(platform: &(impl Random + Clock)) -> Provider {
        let entropy: &'static Entropy = Box::leak(Box::new(Entropy::new(platform)));
        let algorithms = CryptoProvider {
            // AES-128 first: as safe as the rest of the handshake, and faster.
            cipher_suites: alloc::vec![
                TLS13_AES_128_GCM_SHA256,
                TLS13_AES_256_GCM_SHA384,
                TLS13_CHACHA20_POLY1305_SHA256
            ],
            kx_groups: agreement::groups(entropy).to_vec(),
            signature_verification_algorithms: SIGNATURES,
            secure_random: entropy,
            key_provider: Box::leak(Box::new(Keys(entropy))),
        };
        let provider = Provider { entropy, time: Arc::default(), algorithms: Arc::new(algorithms) };
        provider.time.set(platform);
        provider
    }

    /// Before a handshake: fresh randomness and the time of day.
    pub(crate) fn refresh(&self, platform: &(impl Random + Clock)) {
        self.entropy.stir(platform);
        self.time.set(platform);
    }
}

/// What signs certificates and handshakes. Certificates may be signed with RSA by PKCS #1; SHA-1 is not there.
static SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[
        verify::ECDSA_P256_SHA256,
        verify::ECDSA_P256_SHA384,
        verify::ECDSA_P384_SHA256,
        verify::ECDSA_P384_SHA384,
        verify::ED25519,
        verify::RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
        verify::RSA_PSS_2048_8192_SHA384_LEGACY_KEY,
        verify::RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
        verify::RSA_PKCS1_2048_8192_SHA256,
        verify::RSA_PKCS1_2048_8192_SHA384,
        verify::RSA_PKCS1_2048_8192_SHA512,
    ],
    mapping: &[
        (SignatureScheme::ECDSA_NISTP256_SHA256, &[verify::ECDSA_P256_SHA256, verify::ECDSA_P384_SHA256]),
        (SignatureScheme::ECDSA_NISTP384_SHA384, &[verify::ECDSA_P384_SHA384, verify::ECDSA_P256_SHA384]),
        (SignatureScheme::ED25519, &[verify::ED25519]),
        (SignatureScheme::RSA_PSS_SHA256, &[verify::RSA_PSS_2048_8192_SHA256_LEGACY_KEY]),
        (SignatureScheme::RSA_PSS_SHA384, &[verify::RSA_PSS_2048_8192_SHA384_LEGACY_KEY]),
        (SignatureScheme::RSA_PSS_SHA512, &[verify::RSA_PSS_2048_8192_SHA512_LEGACY_KEY]),
        (SignatureScheme::RSA_PKCS1_SHA256, &[verify::RSA_PKCS1_2048_8192_SHA256]),
        (SignatureScheme::RSA_PKCS1_SHA384, &[verify::RSA_PKCS1_2048_8192_SHA384]),
        (SignatureScheme::RSA_PKCS1_SHA512, &[verify::RSA_PKCS1_2048_8192_SHA512]),
    ],
};

/// The time of day when the last handshake began, in seconds since 1970.
#[derive(Debug)]
pub(crate) struct Time(AtomicU64);

/// In place of a time.
const UNKNOWN: u64 = u64::MAX;

impl Default for Time {
    fn default() -> Time {
        Time(AtomicU64::new(UNKNOWN))
    }
}

impl Time {
    fn set(&self, clock: &impl Clock) {
        let secs = clock.wall().map_or(UNKNOWN, |wall| wall.since_epoch.as_secs());
        // Relaxed: nothing else depends on it.
        self.0.store(secs, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn set_secs(&self, secs: u64) {
        self.0.store(secs, Ordering::Relaxed);
    }

    /// Seconds since 1970, if the platform has the time of day.
    pub(crate) fn secs(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|secs| *secs != UNKNOWN)
    }
}

impl TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        self.secs().map(|secs| UnixTime::since_unix_epoch(Duration::from_secs(secs)))
    }
}
