//! Why a connection cannot continue.

use crate::Status;
use core::fmt;
use core::time::Duration;
use glass_api::NetError;

/// Why a connection failed. [`HttpError::status`] is the matching answer, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HttpError {
    /// The request violates the protocol; the text states how.
    Bad(&'static str),
    /// The request line is longer than this many bytes.
    RequestLineTooLong(usize),
    /// The head is longer than this many bytes.
    HeadTooLong(usize),
    /// The head has more than this many header fields.
    TooManyHeaders(usize),
    /// The request is of another major version of HTTP.
    Version,
    /// The request expects something other than `100-continue`.
    Expectation,
    /// The body has a transfer coding other than chunked.
    LengthRequired,
    /// The head did not arrive within this time.
    HeadTimeout(Duration),
    /// Less than this many bytes of a body were transferred in this time.
    Stalled {
        /// Bytes that had to be transferred.
        bytes_min: u64,
        /// Time spent waiting for them.
        window: Duration,
    },
    /// The peer finished sending before the end of a head.
    HeadCut,
    /// The peer finished sending with this many bytes of the body missing.
    BodyCut {
        /// Bytes that did not arrive.
        missing_bytes: u64,
    },
    /// The peer finished sending before the last chunk of a body.
    ChunksCut,
    /// There is no memory for the head.
    OutOfMemory,
    /// The service ended its work on a request without an answer.
    NoResponse,
    /// The service wrote more or less than the length it declared.
    WrongLength {
        /// Bytes that were missing at the end of the body; 0 if there were too many.
        missing_bytes: u64,
    },
    /// The service did not end the body that it streamed.
    NotEnded,
    /// A header of a response has a character that may not be in one, or may not follow a body.
    BadResponseHeader,
    /// The name or the id of an event has a line end.
    BadEvent,
    /// The handler has panicked.
    Panicked,
    /// The connection failed.
    Net(NetError),
}

impl HttpError {
    /// The status to answer with; `None` if the peer is gone.
    pub fn status(&self) -> Option<Status> {
        match self {
            HttpError::Bad(_) | HttpError::BodyCut { .. } | HttpError::ChunksCut => Some(Status::BAD_REQUEST),
            HttpError::RequestLineTooLong(_) => Some(Status::URI_TOO_LONG),
            HttpError::HeadTooLong(_) | HttpError::TooManyHeaders(_) => Some(Status::HEADER_FIELDS_TOO_LARGE),
            HttpError::Version => Some(Status::HTTP_VERSION_NOT_SUPPORTED),
            HttpError::Expectation => Some(Status::EXPECTATION_FAILED),
            HttpError::LengthRequired => Some(Status::LENGTH_REQUIRED),
            HttpError::HeadTimeout(_) | HttpError::Stalled { .. } => Some(Status::REQUEST_TIMEOUT),
            HttpError::OutOfMemory => Some(Status::SERVICE_UNAVAILABLE),
            HttpError::NoResponse | HttpError::BadResponseHeader | HttpError::BadEvent | HttpError::Panicked => {
                Some(Status::INTERNAL_SERVER_ERROR)
            }
            HttpError::HeadCut | HttpError::WrongLength { .. } | HttpError::NotEnded | HttpError::Net(_) => None,
        }
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            HttpError::Bad(why) => write!(f, "bad request: {why}"),
            HttpError::RequestLineTooLong(bytes) => write!(f, "the request line is longer than {bytes} bytes"),
            HttpError::HeadTooLong(bytes) => write!(f, "the request's head is longer than {bytes} bytes"),
            HttpError::TooManyHeaders(count) => write!(f, "the request has more than {count} header fields"),
            HttpError::Version => write!(f, "only HTTP/1.1 and HTTP/1.0 are supported"),
            HttpError::Expectation => write!(f, "only the expectation 100-continue is supported"),
            HttpError::LengthRequired => write!(f, "send the body with Content-Length or chunked"),
            HttpError::HeadTimeout(time) => write!(f, "the request's head did not arrive within {time:?}"),
            HttpError::Stalled { bytes_min, window } => {
                write!(f, "less than {bytes_min} bytes were transferred in {window:?}")
            }
            HttpError::HeadCut => write!(f, "the peer closed the connection before the end of a head"),
            HttpError::BodyCut { missing_bytes } => write!(f, "the body ended {missing_bytes} bytes early"),
            HttpError::ChunksCut => write!(f, "bad request: the body ended before its last chunk"),
            HttpError::OutOfMemory => write!(f, "no memory for the request's head"),
            HttpError::NoResponse => write!(f, "the service did not answer"),
            HttpError::WrongLength { missing_bytes: 0 } => {
                write!(f, "the response's body is longer than the length it declared")
            }
            HttpError::WrongLength { missing_bytes } => {
                write!(f, "the response's body ended {missing_bytes} bytes before the length it declared")
            }
            HttpError::NotEnded => write!(f, "the response's body was not ended"),
            HttpError::BadResponseHeader => write!(f, "a header of the response has a forbidden character or name"),
            HttpError::BadEvent => write!(f, "the name or the id of an event has a line end"),
            HttpError::Panicked => write!(f, "the service failed at this request"),
            HttpError::Net(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for HttpError {}

impl From<NetError> for HttpError {
    fn from(error: NetError) -> HttpError {
        HttpError::Net(error)
    }
}
