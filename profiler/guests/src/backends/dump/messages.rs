//! The messages of the process that holds a VM for a dump, to the one that the user started. The other way there are none: the end of the
//! socket is a request to end.

use std::time::Duration;

use super::elf::Notes;
use crate::bytes::{Reader, Writer};
use crate::error::GuestError;

/// What a dump holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    /// How many vCPUs have their registers in it, and how many there are.
    pub(super) vcpus: (u32, u32),
    pub(super) ram_bytes: u64,
    /// How much of it is no page of zeros.
    pub(super) written_bytes: u64,
    /// How much of it could not be read.
    pub(super) unread_bytes: u64,
    /// For how long the guest was stopped; of vCPUs that are stopped one by one, the longest.
    pub(super) stood: Duration,
    pub(super) notes: Notes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Report {
    /// How much of the RAM was copied.
    Progress {
        done_bytes: u64,
        all_bytes: u64,
    },
    Warning(String),
    /// The dump is complete, and the VM runs without us.
    Done(Outcome),
    Failed {
        is_of_the_backend: bool,
        sentence: String,
    },
}

impl Report {
    pub(super) fn failed(error: &GuestError) -> Report {
        let sentence: String = error.to_string().chars().take(4096).collect();
        Report::Failed { is_of_the_backend: error.is_of_the_backend(), sentence }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let kind = Writer::of_kind;
        let writer = match self {
            Report::Progress { done_bytes, all_bytes } => kind(1).words(&[*done_bytes, *all_bytes]),
            Report::Warning(text) => kind(2).bytes(text.as_bytes()),
            Report::Done(outcome) => {
                let Outcome { vcpus, ram_bytes, written_bytes, unread_bytes, stood, notes } = outcome;
                let writer = kind(3).number(vcpus.0).number(vcpus.1);
                let stood_ns = u64::try_from(stood.as_nanos()).unwrap_or(u64::MAX);
                writer.words(&[*ram_bytes, *written_bytes, *unread_bytes, stood_ns, notes.0.start, notes.0.end])
            }
            Report::Failed { is_of_the_backend, sentence } => {
                kind(4).flag(*is_of_the_backend).bytes(sentence.as_bytes())
            }
        };
        writer.0
    }

    /// `None` if they are no report.
    pub(super) fn parse(bytes: &[u8]) -> Option<Report> {
        let mut reader = Reader(bytes);
        let report = match reader.byte()? {
            1 => {
                let [done_bytes, all_bytes] = reader.words()?;
                Report::Progress { done_bytes, all_bytes }
            }
            2 => Report::Warning(reader.text()?),
            3 => {
                let vcpus = (reader.number()?, reader.number()?);
                let [ram_bytes, written_bytes, unread_bytes, stood_ns, start, end] = reader.words()?;
                let (stood, notes) = (Duration::from_nanos(stood_ns), Notes(start..end));
                Report::Done(Outcome { vcpus, ram_bytes, written_bytes, unread_bytes, stood, notes })
            }
            4 => Report::Failed { is_of_the_backend: reader.flag()?, sentence: reader.text()? },
            _ => return None,
        };
        reader.end(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_arrives_as_it_was_sent() {
        let outcome = Outcome {
            vcpus: (1, 2),
            ram_bytes: 3,
            written_bytes: 4,
            unread_bytes: 5,
            stood: Duration::from_nanos(6),
            notes: Notes(7..8),
        };
        let reports = [
            Report::Progress { done_bytes: 1, all_bytes: 2 },
            Report::Warning("a warning".to_owned()),
            Report::Done(outcome),
            Report::Failed { is_of_the_backend: true, sentence: "no".to_owned() },
        ];
        for report in reports {
            let bytes = report.to_bytes();
            assert_eq!(Report::parse(&bytes), Some(report));
            assert_eq!(Report::parse(&bytes[..bytes.len() - 1]), None);
            assert_eq!(Report::parse(&[&bytes[..], &[0]].concat()), None);
        }
    }
}
