//! Wycheproof's vectors for the cryptography of TLS, in a process and in VMs: ring chooses its code by what it finds of the processor there.

use glass_tests::folder::Folder;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use std::process::Command;
use std::time::Duration;
use wycheproof::rsa_pkcs1_verify::TestName as Pkcs1;
use wycheproof::rsa_pss_verify::TestName as Pss;
use wycheproof::{TestResult, aead, ecdh, ecdsa, eddsa, hkdf, mac, rsa_pkcs1_verify, rsa_pss_verify, xdh};

glass_tests::in_every_world! {
    no_vector_has_another_result within 300;
}

const LIMIT: Duration = Duration::from_secs(720);
/// As `bench-tls` reads the disk.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes of a nonce, and bits of a tag, in TLS.
const NONCE_BITS: usize = 96;
const TAG_BITS: usize = 128;

/// Records as `apps/bench-tls/src/vectors.rs` reads them, and how many.
#[derive(Default)]
struct Disk {
    bytes: Vec<u8>,
    count: usize,
}

impl Disk {
    /// `algorithm` is a place in the list of `bench-tls`.
    fn add(&mut self, algorithm: u8, result: TestResult, texts: [&[u8]; 5]) {
        let verdict = match result {
            TestResult::Invalid => 0,
            TestResult::Valid => 1,
            TestResult::Acceptable => 2,
        };
        self.bytes.extend([algorithm, verdict]);
        for text in texts {
            self.bytes.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
            self.bytes.extend(text);
        }
        self.count += 1;
    }

    fn image(&self) -> Vec<u8> {
        let mut image = (self.bytes.len() as u64).to_le_bytes().to_vec();
        image.extend(&self.bytes);
        image.resize(image.len().next_multiple_of(PIECE_BYTES), 0);
        image
    }

    fn add_ciphers(&mut self) {
        for (name, key_bits, algorithm) in [
            (aead::TestName::AesGcm, 128, 0),
            (aead::TestName::AesGcm, 256, 1),
            (aead::TestName::ChaCha20Poly1305, 256, 2),
        ] {
            let groups = aead::TestSet::load(name).unwrap().test_groups;
            let is_used = |group: &&aead::TestGroup| {
                (group.nonce_size, group.tag_size, group.key_size) == (NONCE_BITS, TAG_BITS, key_bits)
            };
            for test in groups.iter().filter(is_used).flat_map(|group| &group.tests) {
                let sealed = [&test.ct[..], &test.tag[..]].concat();
                self.add(algorithm, test.result, [&test.key, &test.nonce, &test.aad, &sealed, &test.pt]);
            }
        }
    }

    fn add_agreements(&mut self) {
        for test in xdh::TestSet::load(xdh::TestName::X25519).unwrap().test_groups.iter().flat_map(|group| &group.tests)
        {
            self.add(3, test.result, [&test.private_key, &test.public_key, &test.shared_secret, &[], &[]]);
        }
        for (name, bytes, algorithm) in
            [(ecdh::TestName::EcdhSecp256r1Ecpoint, 32, 4), (ecdh::TestName::EcdhSecp384r1Ecpoint, 48, 5)]
        {
            for test in ecdh::TestSet::load(name).unwrap().test_groups.iter().flat_map(|group| &group.tests) {
                // A number without its leading zeros, or with one more.
                let key: Vec<u8> = test.private_key.iter().copied().skip_while(|byte| *byte == 0).collect();
                let key = [&vec![0; bytes - key.len()][..], &key[..]].concat();
                // TLS 1.3 has no compressed points (RFC 8446, section 4.2.8.2).
                let is_compressed = matches!(test.public_key.first(), Some(2 | 3));
                let result = if is_compressed { TestResult::Invalid } else { test.result };
                self.add(algorithm, result, [&key, &test.public_key, &test.shared_secret, &[], &[]]);
            }
        }
    }

    fn add_signatures(&mut self) {
        for (name, algorithm) in [
            (ecdsa::TestName::EcdsaSecp256r1Sha256, 6),
            (ecdsa::TestName::EcdsaSecp384r1Sha256, 8),
            (ecdsa::TestName::EcdsaSecp384r1Sha384, 9),
        ] {
            for group in ecdsa::TestSet::load(name).unwrap().test_groups {
                for test in &group.tests {
                    self.add(algorithm, test.result, [&group.key.key, &test.msg, &test.sig, &[], &[]]);
                }
            }
        }
        for group in eddsa::TestSet::load(eddsa::TestName::Ed25519).unwrap().test_groups {
            for test in &group.tests {
                self.add(10, test.result, [&group.key.pk, &test.msg, &test.sig, &[], &[]]);
            }
        }
        for (name, algorithm) in [
            (Pss::RsaPss2048Sha256Mgf1SaltLen32, 11),
            (Pss::RsaPss3072Sha256Mgf1SaltLen32, 11),
            (Pss::RsaPss4096Sha256Mgf1SaltLen32, 11),
            (Pss::RsaPss2048Sha384Mgf1SaltLen48, 12),
            (Pss::RsaPss4096Sha384Mgf1SaltLen48, 12),
            (Pss::RsaPss4096Sha512Mgf1SaltLen64, 13),
        ] {
            for group in rsa_pss_verify::TestSet::load(name).unwrap().test_groups {
                for test in &group.tests {
                    self.add(algorithm, test.result, [&group.asn_key, &test.msg, &test.sig, &[], &[]]);
                }
            }
        }
        for (name, algorithm) in [
            (Pkcs1::Rsa2048Sha256, 14),
            (Pkcs1::Rsa3072Sha256, 14),
            (Pkcs1::Rsa4096Sha256, 14),
            (Pkcs1::Rsa2048Sha384, 15),
            (Pkcs1::Rsa3072Sha384, 15),
            (Pkcs1::Rsa4096Sha384, 15),
            (Pkcs1::Rsa2048Sha512, 16),
            (Pkcs1::Rsa3072Sha512, 16),
            (Pkcs1::Rsa4096Sha512, 16),
            (Pkcs1::Rsa8192Sha512, 16),
        ] {
            for group in rsa_pkcs1_verify::TestSet::load(name).unwrap().test_groups {
                for test in &group.tests {
                    self.add(algorithm, test.result, [&group.asn_key, &test.msg, &test.sig, &[], &[]]);
                }
            }
        }
    }

    fn add_hashes(&mut self) {
        for (name, algorithm) in [(hkdf::TestName::HkdfSha256, 17), (hkdf::TestName::HkdfSha384, 18)] {
            for test in hkdf::TestSet::load(name).unwrap().test_groups.iter().flat_map(|group| &group.tests) {
                // What cannot be made has no bytes.
                let made = if test.okm.is_empty() { vec![0; test.size] } else { test.okm.to_vec() };
                self.add(algorithm, test.result, [&test.ikm, &test.salt, &test.info, &made, &[]]);
            }
        }
        for (name, bits, algorithm) in [(mac::TestName::HmacSha256, 256, 19), (mac::TestName::HmacSha384, 384, 20)] {
            let groups = mac::TestSet::load(name).unwrap().test_groups;
            for test in groups.iter().filter(|group| group.tag_size == bits).flat_map(|group| &group.tests) {
                self.add(algorithm, test.result, [&test.key, &test.msg, &test.tag, &[], &[]]);
            }
        }
    }
}

fn no_vector_has_another_result(world: World) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let mut disk = Disk::default();
    disk.add_ciphers();
    disk.add_agreements();
    disk.add_signatures();
    disk.add_hashes();
    assert!(disk.count > 3000, "{} vectors", disk.count);
    let folder = Folder::new("vectors").unwrap();
    let image = folder.write("vectors.img", &disk.image()).unwrap();
    let command = match world {
        World::Process => programs::built("bench-tls").map(Command::new),
        _ => programs::built("glass").zip(programs::image("bench-tls")).map(|(glass, image)| {
            let mut command = Command::new(glass);
            command.arg("run").arg(image).args(["--accel", &world.to_string(), "--net", "none"]);
            command
        }),
    };
    let Some(mut command) = command else { return };
    command.arg("--disk").arg(image).args(["--", "--vectors"]);
    let mut process = Process::spawn(&mut command, &folder.file("log")).unwrap();
    let status = process.wait(LIMIT);
    let output = process.output();
    assert!(status.is_some_and(|status| status.success()), "{output}");
    assert!(output.contains(&format!("{} vectors, 0 wrong", disk.count)), "{output}");
    println!("{world}: {output}");
}
