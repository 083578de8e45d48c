//! Why TLS cannot be used, or failed.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use glass_api::NetError;
use rustls::{CertificateError, Error, PeerIncompatible};

/// Why a context could not be made, or a handshake failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsError {
    /// Certificates or a key that we were given cannot be used; the text states why.
    Credentials(String),
    /// A text is neither a host name nor an address.
    ServerName(String),
    /// The handshake was not complete in time.
    TimedOut,
    /// The handshake or a record was refused, by us or by the peer; the text states why.
    Refused {
        /// The class of the reason, as [`NetError::Tls`] has it.
        class: &'static str,
        /// The reason.
        reason: String,
    },
    /// The stream below failed.
    Net(NetError),
}

impl TlsError {
    /// Of what rustls has refused.
    pub(crate) fn refused(error: &Error) -> TlsError {
        TlsError::Refused { class: class(error), reason: error.to_string() }
    }

    /// Of certificates or a key.
    pub(crate) fn credentials(error: impl fmt::Display) -> TlsError {
        TlsError::Credentials(format!("{error}"))
    }

    /// The same in the errors of a stream.
    pub fn of_stream(&self) -> NetError {
        match self {
            TlsError::Credentials(_) => NetError::Tls("certificates or a key cannot be used"),
            TlsError::ServerName(_) => NetError::InvalidName,
            TlsError::TimedOut => NetError::TimedOut,
            TlsError::Refused { class, .. } => NetError::Tls(class),
            TlsError::Net(error) => *error,
        }
    }
}

/// A short reason, without the details of one connection.
fn class(error: &Error) -> &'static str {
    match error {
        Error::InvalidCertificate(error) => match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "the peer's certificate has expired",
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the peer's certificate is not valid yet: is the time of day correct?"
            }
            CertificateError::UnknownIssuer => "no root that we trust has issued the peer's certificate",
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the peer's certificate is for another name"
            }
            _ => "the peer's certificate is not valid",
        },
        Error::NoCertificatesPresented => "the peer has presented no certificate",
        Error::FailedToGetCurrentTime => "the platform has no time of day, without which no certificate is valid",
        Error::AlertReceived(_) => "the peer refused the connection",
        Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13)
        | Error::PeerIncompatible(PeerIncompatible::SupportedVersionsExtensionRequired)
        | Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic)
        | Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered)
        | Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled) => "the peer has no TLS 1.3",
        Error::PeerIncompatible(_) | Error::NoApplicationProtocol => "the peer has nothing in common with us",
        Error::DecryptError => "a record was changed on its way",
        _ => "the peer violated the protocol",
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            TlsError::Credentials(why) => write!(f, "the certificates or the key cannot be used: {why}"),
            TlsError::ServerName(name) => write!(f, "{name:?} is neither a host name nor an address"),
            TlsError::TimedOut => write!(f, "the TLS handshake was not complete in time"),
            TlsError::Refused { class, reason } => write!(f, "TLS: {class} ({reason})"),
            TlsError::Net(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for TlsError {}

impl From<NetError> for TlsError {
    fn from(error: NetError) -> TlsError {
        TlsError::Net(error)
    }
}
