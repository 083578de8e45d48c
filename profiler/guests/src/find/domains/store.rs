//! Xenstore, through the device of the kernel: names of domains, and what the tools have noted about them.
//!
//! A message has a header of four words of 4 bytes (type, number of the request, number of a transaction, bytes that
//! follow) and a path that ends with a zero (`xen/include/public/io/xs_wire.h`).

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use crate::sys::can_read;

/// The device, by its name now and before Linux 3.3.
const DEVICES: [&str; 2] = ["/dev/xen/xenbus", "/proc/xen/xenbus"];
const HEADER_BYTES: usize = 16;
/// `XENSTORE_PAYLOAD_MAX`.
const PAYLOAD_BYTES_MAX: usize = 4096;
/// How long an answer is waited for: the store is a process, here or in a domain of its own.
const PATIENCE: Duration = Duration::from_secs(5);
/// Answers to requests that are not ours.
const OTHERS_MAX: usize = 64;

/// `XS_DIRECTORY`, `XS_READ`, `XS_ERROR`.
const DIRECTORY: u32 = 1;
const READ: u32 = 2;
const ERROR: u32 = 16;

/// A connection.
#[derive(Debug)]
pub(super) struct Store {
    device: File,
    requests: u32,
}

impl Store {
    /// Opens the device.
    pub(super) fn open() -> io::Result<Store> {
        let open = |path| OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
        let device = open(DEVICES[0]).or_else(|first| open(DEVICES[1]).map_err(|_| first))?;
        Ok(Store { device, requests: 0 })
    }

    /// The names below a path; none if it is not there.
    pub(super) fn list(&mut self, path: &str) -> io::Result<Vec<String>> {
        let bytes = self.request(DIRECTORY, path)?.unwrap_or_default();
        let names = bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    /// The value at a path, if it is there.
    pub(super) fn read(&mut self, path: &str) -> io::Result<Option<String>> {
        Ok(self.request(READ, path)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// The answer; `None` if the store has no such path.
    fn request(&mut self, kind: u32, path: &str) -> io::Result<Option<Vec<u8>>> {
        self.requests = self.requests.wrapping_add(1);
        let deadline = Instant::now() + PATIENCE;
        self.device.write_all(&message(kind, self.requests, path))?;
        for _ in 0..OTHERS_MAX {
            let mut header = [0; HEADER_BYTES];
            self.fill(&mut header, deadline)?;
            let [kind, number, _, bytes] =
                [0, 4, 8, 12].map(|at| u32::from_le_bytes(std::array::from_fn(|index| header[at + index])));
            if bytes as usize > PAYLOAD_BYTES_MAX {
                return Err(io::Error::other(format!("an answer of {bytes} bytes")));
            }
            let mut payload = vec![0; bytes as usize];
            self.fill(&mut payload, deadline)?;
            if number == self.requests {
                return answer(kind, payload);
            }
        }
        Err(io::Error::other("answers to other requests"))
    }

    /// Reads all of it, and waits for what is not there yet.
    fn fill(&mut self, mut into: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !into.is_empty() {
            match self.device.read(into) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => into = &mut into[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() || !can_read(&self.device, left) {
                        return Err(io::Error::new(ErrorKind::TimedOut, "xenstore does not answer"));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn message(kind: u32, number: u32, path: &str) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_BYTES + path.len() + 1);
    for word in [kind, number, 0, path.len() as u32 + 1] {
        message.extend(word.to_le_bytes());
    }
    message.extend(path.as_bytes());
    message.push(0);
    message
}

fn answer(kind: u32, mut payload: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    match kind {
        READ | DIRECTORY => Ok(Some(payload)),
        ERROR => {
            payload.retain(|byte| *byte != 0);
            if payload == b"ENOENT" {
                return Ok(None);
            }
            Err(io::Error::other(format!("xenstore: {}", String::from_utf8_lossy(&payload))))
        }
        other => Err(io::Error::other(format!("xenstore: an answer of type {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_the_store_has_them() {
        let message = message(READ, 7, "/a");
        assert_eq!(message, [2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, b'/', b'a', 0]);
        assert_eq!(answer(READ, b"web".to_vec()).unwrap(), Some(b"web".to_vec()));
        assert_eq!(answer(ERROR, b"ENOENT\0".to_vec()).unwrap(), None);
        assert!(answer(ERROR, b"EACCES\0".to_vec()).unwrap_err().to_string().contains("EACCES"));
        assert!(answer(15, Vec::new()).is_err());
    }
}
