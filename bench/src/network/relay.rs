//! A wire between two TAP devices: it passes frames on as a [`Link`] in each direction decides. Frames that a sender leaves to its card to be cut
//! are cut first, so a share of losses is one of segments. Segments that arrive together stay together, as behind a card that joins them.

mod frame;
pub mod link;

use crate::sys;
use anyhow::{Context, Result};
use frame::{Frame, HEADER_BYTES};
use glass_tests::netns::Namespace;
use link::{Conditions, Counts, Link};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The largest frame: an IPv4 packet of 64 KiB behind both headers.
const FRAME_BYTES_MAX: usize = HEADER_BYTES + 14 + (64 << 10);
/// Frames that are read before those that are due are written.
const READS_MAX: usize = 32;
/// A direction checks so often whether it is to end.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// The two ends.
pub struct Relay {
    near: File,
    far: File,
}

/// What happened in each direction.
#[derive(Debug, Clone, Copy)]
pub struct BothCounts {
    /// From the near end to the far one.
    pub to_far: Counts,
    /// The other direction.
    pub to_near: Counts,
}

impl Relay {
    /// Attaches to two TAP devices, each in its namespace.
    pub fn attach(near: (&Namespace, &str), far: (&Namespace, &str)) -> Result<Relay> {
        let open = |(namespace, name): (&Namespace, &str)| {
            let open = || sys::open_tap(name).with_context(|| format!("cannot attach to the TAP device {name}"));
            namespace.inside(open)
        };
        Ok(Relay { near: open(near)?, far: open(far)? })
    }

    /// Passes frames on as long as `work` runs, under the same conditions in both directions. What is on its way at the end is lost.
    pub fn during<R>(
        &self,
        conditions: &Conditions,
        seed: u64,
        work: impl FnOnce() -> Result<R>,
    ) -> Result<(R, BothCounts)> {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let start = |from, to, seed| {
                let is_over = &is_over;
                scope.spawn(move || Direction::new(from, to, *conditions, seed).run(is_over))
            };
            let to_far = start(&self.near, &self.far, seed);
            let to_near = start(&self.far, &self.near, !seed);
            let result = work();
            is_over.store(true, Ordering::Relaxed);
            let [to_far, to_near] = [to_far, to_near].map(|thread| thread.join().expect("a relay does not panic"));
            Ok((result?, BothCounts { to_far: to_far?, to_near: to_near? }))
        })
    }
}

/// A segment of a frame.
type Segment = (Rc<Frame>, usize);

/// One direction.
struct Direction<'f> {
    from: &'f File,
    to: &'f File,
    link: Link<Segment>,
    start: Instant,
    read: Vec<u8>,
    written: Vec<u8>,
}

impl<'f> Direction<'f> {
    fn new(from: &'f File, to: &'f File, conditions: Conditions, seed: u64) -> Direction<'f> {
        let (link, read) = (Link::new(conditions, seed), vec![0; FRAME_BYTES_MAX]);
        Direction { from, to, link, start: Instant::now(), read, written: Vec::new() }
    }

    fn run(mut self, is_over: &AtomicBool) -> Result<Counts> {
        while !is_over.load(Ordering::Relaxed) {
            let has_read = self.receive()?;
            self.deliver()?;
            if !has_read {
                let until_due = self.link.due().map(|due| due.saturating_sub(self.start.elapsed()));
                let time = until_due.map_or(CHECK_EVERY, |time| time.min(CHECK_EVERY));
                let time = Timespec { tv_sec: 0, tv_nsec: time.as_nanos() as _ };
                poll(&mut [PollFd::new(self.from, PollFlags::IN)], Some(&time)).context("cannot wait for a frame")?;
            }
        }
        Ok(self.link.counts())
    }

    /// Reads frames and gives their segments to the link. Returns whether there were any.
    fn receive(&mut self) -> Result<bool> {
        for count in 0..READS_MAX {
            let length = match rustix::io::read(self.from, &mut self.read) {
                Ok(length) => length,
                Err(Errno::AGAIN) => return Ok(count > 0),
                Err(error) => return Err(error).context("cannot read a frame"),
            };
            let Some(frame) = Frame::new(self.read[..length].to_vec()) else { continue };
            let (frame, now) = (Rc::new(frame), self.start.elapsed());
            for segment in 0..frame.segments() {
                if frame.is_tcp() {
                    self.link.push(now, frame.wire_bytes(segment), (frame.clone(), segment));
                } else {
                    self.link.push_intact(now, (frame.clone(), segment));
                }
            }
        }
        Ok(true)
    }

    /// Writes all that is due.
    fn deliver(&mut self) -> Result<()> {
        let now = self.start.elapsed();
        let mut piece: Option<(Rc<Frame>, Range<usize>)> = None;
        while let Some((frame, segment)) = self.link.pop(now) {
            match &mut piece {
                Some((same, segments)) if Rc::ptr_eq(same, &frame) && segments.end == segment => segments.end += 1,
                _ => {
                    let before = piece.replace((frame, segment..segment + 1));
                    self.write(before)?;
                }
            }
        }
        self.write(piece)
    }

    fn write(&mut self, piece: Option<(Rc<Frame>, Range<usize>)>) -> Result<()> {
        let Some((frame, segments)) = piece else { return Ok(()) };
        rustix::io::write(self.to, frame.piece(segments, &mut self.written)).context("cannot write a frame")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_tests::{limit, netns};
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    /// Two namespaces that a relay joins, with their addresses.
    fn ends() -> ([Namespace; 2], [Ipv4Addr; 2], Relay) {
        let namespaces = [(); 2].map(|()| Namespace::new().unwrap());
        let addresses = [1, 2].map(|host| Ipv4Addr::new(10, 77, 0, host));
        for (namespace, address) in namespaces.iter().zip(addresses) {
            namespace.tap("relay0", address).unwrap();
        }
        let relay = Relay::attach((&namespaces[0], "relay0"), (&namespaces[1], "relay0")).unwrap();
        (namespaces, addresses, relay)
    }

    #[test]
    fn linux_receives_every_byte_in_order_over_a_bad_wire() {
        if let Some(reason) = netns::obstacle() {
            return limit::say(&format!("skipped: {reason}"));
        }
        let ([near, far], [_, address], relay) = ends();
        let listener = far.inside(|| Ok(TcpListener::bind((address, 0))?)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let conditions = Conditions {
            delay: Duration::from_millis(2),
            loss: 0.01,
            duplication: 0.01,
            reordering: 0.01,
            ..Conditions::default()
        };
        let sent: Vec<u8> = (0..3_000_000_u32).map(|index| (index >> 3) as u8).collect();
        let begin = Instant::now();
        let (received, counts) = relay
            .during(&conditions, 1, || {
                std::thread::scope(|scope| {
                    let receiver = scope.spawn(|| {
                        let mut received = Vec::new();
                        listener.accept()?.0.read_to_end(&mut received).map(|_| received)
                    });
                    let mut stream = near.inside(|| Ok(TcpStream::connect((address, port))?))?;
                    stream.write_all(&sent)?;
                    drop(stream);
                    Ok(receiver.join().expect("it does not panic")?)
                })
            })
            .unwrap();
        assert!(begin.elapsed() > Duration::from_millis(4 * 4), "the delay was too short");
        assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
        // 2,055 segments of 1,460 bytes at most.
        let BothCounts { to_far, to_near } = counts;
        assert!(to_far.segments > 2055 && to_near.segments > 20, "{counts:?}");
        assert!(to_far.lost > 2 && to_far.duplicated > 2 && to_far.reordered > 2, "{counts:?}");
    }
}
