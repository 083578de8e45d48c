//! Why a request has no response.

use crate::{HttpError, Status};
use core::fmt;
use glass_api::NetError;

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A URL cannot be used; the text states why.
    Url(&'static str),
    /// The method, or the name or value of a field, has a character that may not be in one.
    BadRequest,
    /// The URL is `https`, and the client has no TLS.
    NoTls,
    /// The response violates the protocol; the text states how.
    Bad(&'static str),
    /// The response's head is longer than this many bytes.
    HeadTooLong(usize),
    /// The server ended the connection before the response was whole.
    Cut,
    /// The request was not complete in its time, or the peer made too little progress.
    TimedOut,
    /// There were more redirects than this.
    TooManyRedirects(usize),
    /// The response's body is longer than this many bytes.
    TooLong(usize),
    /// More or less of a request's body was written than its length.
    WrongLength,
    /// The proxy refused to connect.
    Proxy(Status),
    /// There is no memory for a head.
    OutOfMemory,
    /// The connection could not be made, or failed.
    Net(NetError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Error::Url(why) => write!(f, "the URL cannot be used: {why}"),
            Error::BadRequest => write!(f, "the method or a field has a forbidden character"),
            Error::NoTls => write!(f, "the URL is https: give the client roots of TLS"),
            Error::Bad(why) => write!(f, "bad response: {why}"),
            Error::HeadTooLong(bytes) => write!(f, "the response's head is longer than {bytes} bytes"),
            Error::Cut => write!(f, "the server closed the connection before the end of the response"),
            Error::TimedOut => write!(f, "the request was not complete in time"),
            Error::TooManyRedirects(count) => write!(f, "there were more than {count} redirects"),
            Error::TooLong(bytes) => write!(f, "the response's body is longer than {bytes} bytes"),
            Error::WrongLength => write!(f, "the request's body has not the length that was declared"),
            Error::Proxy(status) => write!(f, "the proxy refused to connect: {} {}", status.0, status.reason()),
            Error::OutOfMemory => write!(f, "no memory for the response's head"),
            Error::Net(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for Error {}

impl From<NetError> for Error {
    fn from(error: NetError) -> Error {
        if error == NetError::TimedOut { Error::TimedOut } else { Error::Net(error) }
    }
}

impl From<HttpError> for Error {
    /// Of what both halves of HTTP use.
    fn from(error: HttpError) -> Error {
        match error {
            HttpError::Bad(why) => Error::Bad(why),
            HttpError::Stalled { .. } | HttpError::HeadTimeout(_) => Error::TimedOut,
            HttpError::TooManyHeaders(_) => Error::Bad("it has too many header fields"),
            HttpError::OutOfMemory => Error::OutOfMemory,
            HttpError::WrongLength { .. } => Error::WrongLength,
            HttpError::BadResponseHeader => Error::BadRequest,
            HttpError::Net(error) => error.into(),
            _ => Error::Cut,
        }
    }
}
