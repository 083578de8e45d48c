//! Error classes, with the numbers that the standard's ABI gives them.

use core::fmt;

macro_rules! classes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// Why an operation failed: a class of the standard.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(i32)]
        pub enum Error { $(#[doc = $text] $name = $code,)* }

        impl Error {
            /// The class with this number.
            pub fn from_code(code: i32) -> Option<Error> {
                match code { $($code => Some(Error::$name),)* _ => None }
            }

            /// What it means, as a phrase.
            pub fn text(self) -> &'static str {
                match self { $(Error::$name => $text,)* }
            }
        }
    };
}

classes! {
    Buffer = 1, "invalid buffer pointer";
    Count = 2, "invalid count";
    Type = 3, "invalid datatype";
    Tag = 4, "invalid tag";
    Comm = 5, "invalid communicator";
    Rank = 6, "invalid rank";
    Request = 7, "invalid request";
    Root = 8, "invalid root";
    Group = 9, "invalid group";
    Op = 10, "invalid operation, or one that is not defined for the datatype";
    Topology = 11, "invalid topology";
    Dims = 12, "invalid dimensions";
    Arg = 13, "invalid argument";
    Unknown = 14, "unknown error";
    Truncate = 15, "the message is longer than the buffer that receives it";
    Other = 16, "error of another kind";
    Intern = 17, "internal error";
    Pending = 18, "the request is neither complete nor failed";
    InStatus = 19, "the error is in the status of each request";
    InfoKey = 31, "the key of the info object is too long or empty";
    InfoNoKey = 32, "the info object has no such key";
    InfoValue = 33, "the value of the info object is too long or empty";
    Info = 34, "invalid info object";
    Keyval = 36, "invalid attribute key";
    Name = 38, "invalid service name";
    NoMem = 39, "out of memory";
    NotSame = 40, "the argument differs between ranks";
    Port = 43, "invalid port name";
    Service = 49, "invalid service name";
    Size = 51, "invalid size";
    Spawn = 52, "processes cannot be started";
    UnsupportedOperation = 55, "the operation is not supported";
    Win = 56, "invalid window";
    ProcAborted = 58, "a rank of the job ended or called MPI_Abort";
    ValueTooLarge = 59, "the value is too large to be stored";
    Session = 60, "invalid session";
    Errhandler = 61, "invalid error handler";
    Abi = 62, "the ABI does not allow it";
}

impl Error {
    /// Its number.
    pub fn code(self) -> i32 {
        self as i32
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl core::error::Error for Error {}
