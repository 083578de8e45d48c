//! Private keys that sign: ECDSA on P-256 and P-384, Ed25519, RSA, all of ring.

use crate::entropy::Entropy;
use crate::fixed_random::with_random;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use ring::rand::SecureRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaKeyPair,
};
use rustls::crypto::KeyProvider;
use rustls::pki_types::{AlgorithmIdentifier, PrivateKeyDer, SubjectPublicKeyInfoDer, alg_id};
use rustls::sign::{Signer, SigningKey, public_key_to_spki};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

use alloc::sync::Arc;

/// Reads private keys.
#[derive(Debug)]
pub(crate) struct Keys(pub(crate) &'static Entropy);

impl KeyProvider for Keys {
    fn load_private_key(&self, key: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        let pair = match &key {
            PrivateKeyDer::Pkcs8(der) => self.load_pkcs8(der.secret_pkcs8_der()),
            PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()).ok().map(Pair::Rsa),
            PrivateKeyDer::Sec1(der) => [P256, P384]
                .iter()
                .find_map(|curve| self.load_ecdsa(curve, &pkcs8_of_sec1(curve, der.secret_sec1_der()))),
            _ => None,
        };
        let pair = pair.ok_or(Error::General("it is no key of ECDSA (P-256, P-384), Ed25519 or RSA".into()))?;
        Ok(Arc::new(Key { pair: Arc::new(pair), entropy: self.0 }))
    }
}

impl Keys {
    fn load_pkcs8(&self, der: &[u8]) -> Option<Pair> {
        [P256, P384]
            .iter()
            .find_map(|curve| self.load_ecdsa(curve, der))
            .or_else(|| Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).ok().map(Pair::Ed25519))
            .or_else(|| RsaKeyPair::from_pkcs8(der).ok().map(Pair::Rsa))
    }

    fn load_ecdsa(&self, curve: &Curve, der: &[u8]) -> Option<Pair> {
        // The bytes hide the key from who can predict those of each signature.
        let load = |random: &dyn SecureRandom| {
            EcdsaKeyPair::from_pkcs8(curve.algorithm, der, random).map_err(|_| ring::error::Unspecified)
        };
        let pair = match curve.scheme {
            SignatureScheme::ECDSA_NISTP256_SHA256 => with_random::<32, _>(self.0, load),
            _ => with_random::<48, _>(self.0, load),
        };
        pair.map(|pair| Pair::Ecdsa(curve.scheme, pair))
    }
}

/// A curve of ECDSA.
struct Curve {
    scheme: SignatureScheme,
    algorithm: &'static ring::signature::EcdsaSigningAlgorithm,
    identifier: AlgorithmIdentifier,
}

const P256: Curve = Curve {
    scheme: SignatureScheme::ECDSA_NISTP256_SHA256,
    algorithm: &ECDSA_P256_SHA256_ASN1_SIGNING,
    identifier: alg_id::ECDSA_P256,
};
const P384: Curve = Curve {
    scheme: SignatureScheme::ECDSA_NISTP384_SHA384,
    algorithm: &ECDSA_P384_SHA384_ASN1_SIGNING,
    identifier: alg_id::ECDSA_P384,
};

/// A key of SEC 1 (`EC PRIVATE KEY`) as PKCS #8 (RFC 5208, section 5), which names its curve.
fn pkcs8_of_sec1(curve: &Curve, sec1: &[u8]) -> Vec<u8> {
    const INTEGER_ZERO: [u8; 3] = [2, 1, 0];
    let body = [&INTEGER_ZERO[..], &der(0x30, curve.identifier.as_ref()), &der(0x04, sec1)].concat();
    der(0x30, &body)
}

/// A value of ASN.1 in DER (X.690, section 8.1): its tag, length and contents, of less than 64 KiB.
fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
    let length = contents.len();
    let mut bytes = match length {
        0..=0x7f => vec![tag, length as u8],
        0x80..=0xff => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    bytes.extend_from_slice(contents);
    bytes
}

enum Pair {
    Ecdsa(SignatureScheme, EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Rsa(RsaKeyPair),
}

/// A private key.
struct Key {
    pair: Arc<Pair>,
    entropy: &'static Entropy,
}

/// The schemes of RSA that TLS 1.3 allows (RFC 8446, section 4.2.3).
const RSA_SCHEMES: [SignatureScheme; 3] =
    [SignatureScheme::RSA_PSS_SHA256, SignatureScheme::RSA_PSS_SHA384, SignatureScheme::RSA_PSS_SHA512];

impl SigningKey for Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = match &*self.pair {
            Pair::Ecdsa(scheme, _) => Some(*scheme),
            Pair::Ed25519(_) => Some(SignatureScheme::ED25519),
            Pair::Rsa(_) => RSA_SCHEMES.into_iter().find(|scheme| offered.contains(scheme)),
        };
        let scheme = scheme.filter(|scheme| offered.contains(scheme))?;
        Some(Box::new(Signing { pair: self.pair.clone(), scheme, entropy: self.entropy }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(match &*self.pair {
            Pair::Ecdsa(scheme, pair) => {
                let curve = if *scheme == P256.scheme { P256 } else { P384 };
                public_key_to_spki(&curve.identifier, pair.public_key())
            }
            Pair::Ed25519(pair) => public_key_to_spki(&alg_id::ED25519, pair.public_key()),
            Pair::Rsa(pair) => public_key_to_spki(&alg_id::RSA_ENCRYPTION, pair.public_key()),
        })
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        match &*self.pair {
            Pair::Ecdsa(..) => SignatureAlgorithm::ECDSA,
            Pair::Ed25519(_) => SignatureAlgorithm::ED25519,
            Pair::Rsa(_) => SignatureAlgorithm::RSA,
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Key({:?})", self.algorithm())
    }
}

/// A key with the scheme that the peer has chosen.
struct Signing {
    pair: Arc<Pair>,
    scheme: SignatureScheme,
    entropy: &'static Entropy,
}

impl fmt::Debug for Signing {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Signing({:?})", self.scheme)
    }
}

impl Signer for Signing {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signature = match &*self.pair {
            Pair::Ecdsa(scheme, pair) => {
                let sign = |random: &dyn SecureRandom| pair.sign(random, message);
                match *scheme {
                    SignatureScheme::ECDSA_NISTP256_SHA256 => with_random::<32, _>(self.entropy, sign),
                    _ => with_random::<80, _>(self.entropy, sign),
                }
                .map(|signature| signature.as_ref().to_vec())
            }
            Pair::Ed25519(pair) => Some(pair.sign(message).as_ref().to_vec()),
            Pair::Rsa(pair) => self.sign_rsa(pair, message),
        };
        signature.ok_or(Error::General("signing failed".into()))
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

impl Signing {
    /// The random bytes are the salt, as long as the hash (RFC 8446, section 4.2.3).
    fn sign_rsa(&self, pair: &RsaKeyPair, message: &[u8]) -> Option<Vec<u8>> {
        let bytes = pair.public().modulus_len();
        let sign = |padding: &'static dyn ring::signature::RsaEncoding, random: &dyn SecureRandom| {
            let mut signature = vec![0; bytes];
            pair.sign(padding, random, message, &mut signature).map(|()| signature)
        };
        match self.scheme {
            SignatureScheme::RSA_PSS_SHA256 => {
                with_random::<32, _>(self.entropy, |random| sign(&RSA_PSS_SHA256, random))
            }
            SignatureScheme::RSA_PSS_SHA384 => {
                with_random::<48, _>(self.entropy, |random| sign(&RSA_PSS_SHA384, random))
            }
            _ => with_random::<64, _>(self.entropy, |random| sign(&RSA_PSS_SHA512, random)),
        }
    }
}
