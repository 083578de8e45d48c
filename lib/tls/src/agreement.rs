//! Key agreement: X25519, P-256 and P-384 of ring, with keys from the context's [`Entropy`].

use crate::entropy::Entropy;
use crate::fixed_random::with_random;
use alloc::boxed::Box;
use core::fmt;
use ring::agreement::{
    Algorithm, ECDH_P256, ECDH_P384, EphemeralPrivateKey, PublicKey, UnparsedPublicKey, X25519, agree_ephemeral,
};
use rustls::crypto::{ActiveKeyExchange, GetRandomFailed, SharedSecret, SupportedKxGroup};
use rustls::{Error, NamedGroup, PeerMisbehaved};

/// A group of RFC 8446, section 4.2.7.
struct Group {
    name: NamedGroup,
    algorithm: &'static Algorithm,
    entropy: &'static Entropy,
}

/// The groups, best first, for as long as the program runs.
pub(crate) fn groups(entropy: &'static Entropy) -> [&'static dyn SupportedKxGroup; 3] {
    let group =
        |name, algorithm| -> &'static dyn SupportedKxGroup { Box::leak(Box::new(Group { name, algorithm, entropy })) };
    [
        group(NamedGroup::X25519, &X25519),
        group(NamedGroup::secp256r1, &ECDH_P256),
        group(NamedGroup::secp384r1, &ECDH_P384),
    ]
}

impl Group {
    fn generate(&self) -> Option<EphemeralPrivateKey> {
        let generate = |random: &dyn ring::rand::SecureRandom| EphemeralPrivateKey::generate(self.algorithm, random);
        match self.name {
            NamedGroup::secp384r1 => with_random::<48, _>(self.entropy, generate),
            _ => with_random::<32, _>(self.entropy, generate),
        }
    }
}

impl SupportedKxGroup for Group {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let private = self.generate().ok_or(GetRandomFailed)?;
        let public = private.compute_public_key().map_err(|_| GetRandomFailed)?;
        Ok(Box::new(Exchange { name: self.name, algorithm: self.algorithm, private, public }))
    }

    fn name(&self) -> NamedGroup {
        self.name
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.name.fmt(f)
    }
}

struct Exchange {
    name: NamedGroup,
    algorithm: &'static Algorithm,
    private: EphemeralPrivateKey,
    public: PublicKey,
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        // ring checks the length, the form (uncompressed only), and that the point is on the curve.
        agree_ephemeral(self.private, &UnparsedPublicKey::new(self.algorithm, peer), |secret| secret.into())
            .map_err(|_| PeerMisbehaved::InvalidKeyShare.into())
    }

    fn pub_key(&self) -> &[u8] {
        self.public.as_ref()
    }

    fn group(&self) -> NamedGroup {
        self.name
    }
}
