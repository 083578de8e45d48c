//! The console of a domain (`xen/include/public/io/console.h`): 1 KiB in, 2 KiB out, in one page.

use crate::Events;
use crate::byte_ring::{ByteRing, Layout};
use crate::error::BackendViolation;
use crate::page::SharedPages;

const IN: Layout = Layout { data: 0, bytes: 1024, consumed: 3072, produced: 3076 };
const OUT: Layout = Layout { data: 1024, bytes: 2048, consumed: 3080, produced: 3084 };

/// A console. Its daemon reads output at a limited rate, so a full ring is normal: write the rest after the next event.
pub struct Console<E: Events> {
    input: ByteRing,
    output: ByteRing,
    port: u32,
    events: E,
}

impl<E: Events> Console<E> {
    /// The console in `page` with our end `port` of its event channel (`HVM_PARAM_CONSOLE_PFN`, `HVM_PARAM_CONSOLE_EVTCHN`).
    pub fn new(page: SharedPages, port: u32, events: E) -> Console<E> {
        Console { input: ByteRing::reader(page.clone(), IN), output: ByteRing::writer(page, OUT), port, events }
    }

    /// Writes as much of `bytes` as there is room for. Returns their number, which may be 0.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, BackendViolation> {
        let count = self.output.write(bytes)?;
        self.notify_after(count)
    }

    /// Reads what was typed. Returns the number of bytes, which may be 0.
    pub fn read(&mut self, target: &mut [u8]) -> Result<usize, BackendViolation> {
        let count = self.input.read(target)?;
        self.notify_after(count)
    }

    fn notify_after(&self, count: usize) -> Result<usize, BackendViolation> {
        if count > 0 {
            self.events.notify(self.port);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Frames, IdentityFrames};
    use core::cell::Cell;
    use core::sync::atomic::Ordering;

    #[test]
    fn bytes_lie_where_the_daemon_reads_them() {
        let (page, events) = (IdentityFrames.allocate(1).unwrap(), Cell::new(0));
        let mut console = Console::new(page.clone(), 7, &events);
        assert_eq!(console.write(&[b'x'; 3000]), Ok(2048));
        assert_eq!(console.write(b"more"), Ok(0));
        // One event for the bytes, none for nothing.
        assert_eq!((page.word_u32(3084).load(Ordering::Relaxed), events.get()), (2048, 7));
        page.word_u32(3080).store(2048, Ordering::Relaxed);
        assert_eq!(console.write(b"more"), Ok(4));
        let mut bytes = [0; 5];
        page.read(1024, &mut bytes);
        assert_eq!(&bytes, b"morex");

        page.write(0, b"typed");
        page.word_u32(3076).store(5, Ordering::Relaxed);
        let mut typed = [0; 8];
        assert_eq!((console.read(&mut typed), &typed[..5]), (Ok(5), &b"typed"[..]));
        assert_eq!(page.word_u32(3072).load(Ordering::Relaxed), 5);
        page.word_u32(3076).store(5 + 1025, Ordering::Relaxed);
        assert_eq!(console.read(&mut typed), Err(BackendViolation::RingOverfull { bytes: 1025, size: 1024 }));
    }
}
