//! Why a file cannot be read as a recording, in a sentence with what to do.

use std::fmt;

use super::VERSION;

/// Why a file is not a recording that we can read. `Display` continues after the file's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadError {
    /// There is nothing in it.
    Empty,
    /// It is not a Perfetto trace.
    NotATrace,
    /// It is a file of another known kind: a program, a page, a compressed file.
    OtherKind(OtherKind),
    /// It is a Perfetto trace, but not ours.
    NotOurs,
    /// It was written by a newer version of the format.
    TooNew(u32),
}

/// The kind of a file that is not a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherKind {
    /// An ELF file.
    Program,
    /// Compressed by gzip.
    Gzip,
    /// Compressed by zstd.
    Zstd,
    /// HTML or SVG.
    Page,
    /// A recording of Linux's `perf`.
    PerfData,
}

impl OtherKind {
    /// Detects the kind from the first bytes.
    pub(super) fn of(bytes: &[u8]) -> Option<OtherKind> {
        let known: [(&[u8], OtherKind); 6] = [
            (b"\x7fELF", OtherKind::Program),
            (b"\x1f\x8b", OtherKind::Gzip),
            (b"\x28\xb5\x2f\xfd", OtherKind::Zstd),
            (b"<!doctype html", OtherKind::Page),
            (b"<?xml", OtherKind::Page),
            (b"PERFILE2", OtherKind::PerfData),
        ];
        let starts = |magic: &[u8]| bytes.get(..magic.len()).is_some_and(|start| start.eq_ignore_ascii_case(magic));
        known.into_iter().find(|(magic, _)| starts(magic)).map(|(_, kind)| kind)
    }

    fn sentence(self) -> &'static str {
        match self {
            OtherKind::Program => "is a program (ELF), not a recording: record it with `glass record -- PROGRAM` first",
            OtherKind::Gzip => "is compressed: unpack it with gunzip first, if it is a recording",
            OtherKind::Zstd => "is compressed: unpack it with unzstd first, if it is a recording",
            OtherKind::Page => "is a page, not a recording: a browser opens it",
            OtherKind::PerfData => "was recorded by perf, not by glass: `perf report` reads it",
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Empty => write!(f, "is empty: the recorder ended before its first sample"),
            ReadError::NotATrace => {
                write!(f, "is not a recording (no Perfetto trace packet at its start): give a file of `glass record`")
            }
            ReadError::OtherKind(kind) => f.write_str(kind.sentence()),
            ReadError::NotOurs => {
                write!(f, "is a Perfetto trace, but was not recorded by glass: ui.perfetto.dev opens it")
            }
            ReadError::TooNew(version) => write!(
                f,
                "has version {version} of the recording format and this glass supports {VERSION}: use the glass that recorded it, or a newer one"
            ),
        }
    }
}

impl std::error::Error for ReadError {}
