//! Errors of the engine.

use std::fmt;

/// Why the engine did not do what was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineError {
    /// It is not connected, or does not answer. Nothing was changed.
    Absent,
    /// The connection was lost before the answer: a change may have been made.
    Unknown,
    /// Its streams cannot be used as they are; [`crate::Engine::ready`] states why.
    Unusable,
    /// It has no space for more.
    Full,
    /// An item, or a part of it, is not there any more.
    Gone,
    /// It refused a request, with this code of its own.
    Refused(u64),
    /// An upload was interrupted for so long that its data may have been removed.
    TooSlow,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            EngineError::Absent => write!(f, "the engine does not answer: try again later"),
            EngineError::Unknown => write!(
                f,
                "the connection to the engine was lost before its answer: try again later; the change may have been made"
            ),
            EngineError::Unusable => write!(f, "the streams of the engine cannot be used as they are"),
            EngineError::Full => write!(f, "the engine has no space for more"),
            EngineError::Gone => write!(f, "the item was removed from the engine meanwhile, or its data is lost"),
            EngineError::Refused(code) => write!(f, "the engine refused the request with its error {code}"),
            EngineError::TooSlow => write!(f, "the upload was interrupted for too long: send it again"),
        }
    }
}

impl std::error::Error for EngineError {}
