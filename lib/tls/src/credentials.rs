//! Certificates: our own with their key, and roots that we trust.

use crate::TlsError;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use glass_api::{Buf, File, FileError, Files, Open};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Bytes of a file with certificates or a key at most.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A chain of certificates, our own first, with its private key: ECDSA (P-256, P-384), Ed25519 or RSA (2048 to 8192 bits).
pub struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Identity {
    /// From text in PEM: the chain, and the key in PKCS #8, PKCS #1 or SEC 1, without a password. Both may be in one text. Whether they belong together is
    /// checked when a context is made.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Identity, TlsError> {
        let chain = certificates(chain)?;
        if chain.is_empty() {
            return Err(TlsError::Credentials("there is no `BEGIN CERTIFICATE`".into()));
        }
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| TlsError::Credentials("there is no `BEGIN PRIVATE KEY`, or it is not valid".into()))?;
        Ok(Identity { chain, key })
    }

    /// From two files in PEM; the same path may be given twice.
    pub async fn from_files(files: &impl Files, chain: &str, key: &str) -> Result<Identity, TlsError> {
        Identity::from_pem(&read(files, chain).await?, &read(files, key).await?)
    }
}

impl Clone for Identity {
    fn clone(&self) -> Identity {
        Identity { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

/// Roots that we trust: the certificate of the peer has to be issued by one of them, with any intermediates that the peer presents.
#[derive(Clone)]
pub struct Roots(pub(crate) Arc<RootCertStore>);

impl Roots {
    /// From certificates in PEM, at least one.
    pub fn from_pem(certificates_pem: &[u8]) -> Result<Roots, TlsError> {
        let mut store = RootCertStore::empty();
        for certificate in certificates(certificates_pem)? {
            store.add(certificate).map_err(TlsError::credentials)?;
        }
        match store.is_empty() {
            true => Err(TlsError::Credentials("there is no `BEGIN CERTIFICATE`".into())),
            false => Ok(Roots(Arc::new(store))),
        }
    }

    /// From a file in PEM.
    pub async fn from_file(files: &impl Files, path: &str) -> Result<Roots, TlsError> {
        Roots::from_pem(&read(files, path).await?)
    }

    /// Those that Mozilla's browsers trust, as of when the service was built.
    #[cfg(feature = "built-in-roots")]
    pub fn built_in() -> Roots {
        Roots(Arc::new(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }))
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| TlsError::Credentials(error.to_string()))
}

async fn read(files: &impl Files, path: &str) -> Result<Vec<u8>, TlsError> {
    let failed = |error: FileError| TlsError::Credentials(alloc::format!("{path}: {error}"));
    let file = files.open(path, Open::Read).await.map_err(failed)?;
    let bytes = file.metadata().await.map_err(failed)?.bytes;
    if bytes > FILE_BYTES_MAX {
        return Err(TlsError::Credentials(alloc::format!("{path} has more than {FILE_BYTES_MAX} bytes")));
    }
    let buf = Buf::zeroed(bytes as usize).map_err(TlsError::credentials)?;
    let (count, buf) = file.read(0, buf).await;
    Ok(buf[..count.map_err(failed)?].to_vec())
}
