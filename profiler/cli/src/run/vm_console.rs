//! The VM's console on our standard output.
//!
//! QEMU drops what nothing reads from its output at once. So a thread does nothing but read, and what standard output does not take yet
//! waits in memory. If that is full, the text is dropped here, where it is counted.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::fcntl_setpipe_size;

use crate::console::say;
use crate::symbolizer::Symbolizer;
use glass_formats::Exit;
use glass_profiler_core::format::count;

/// Room in the pipe from QEMU, the most that Linux allows without privilege.
const PIPE_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;
/// The most text that waits for standard output.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// A guest that never ends its line cannot use up our memory.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Prints what the guest prints until it ends; addresses of its last report become functions and lines. Returns the exit that it has announced,
/// which is not printed. Fails if the rest cannot be.
pub fn copy(output: impl Read + AsFd + Send + 'static, symbolizer: &Symbolizer) -> io::Result<Option<Exit>> {
    // A smaller pipe is filled sooner, and that is all.
    let _ = fcntl_setpipe_size(&output, PIPE_BYTES);
    let waiting = Arc::new(Waiting::default());
    let reader = waiting.clone();
    // It ends with the guest, or when standard output is closed.
    std::thread::spawn(move || reader.fill(Watched(output)));
    print(&waiting, symbolizer, &mut io::stdout())
}

/// Prints what waits, until the end.
fn print(waiting: &Waiting, symbolizer: &Symbolizer, to: &mut impl Write) -> io::Result<Option<Exit>> {
    let mut text = Vec::new();
    let mut announced = None;
    loop {
        let end = waiting.take(&mut text);
        if end.dropped > 0 {
            say!("glass: {} bytes of the console were dropped: standard output is too slow", count(end.dropped));
        }
        let is_last = end.result.is_some();
        let mut printed = String::new();
        let mut done = 0;
        while let Some(line) = next_line(&text[done..], is_last) {
            done += line.len();
            let (line, exit) = without_announcement(line);
            announced = exit.or(announced);
            if exit.is_some() && line.is_empty() {
                continue;
            }
            printed += &symbolizer.explain_line(String::from_utf8_lossy(&line).trim_end());
            printed.push('\n');
        }
        text.drain(..done);
        to.write_all(printed.as_bytes())?;
        to.flush()?;
        if let Some(result) = end.result {
            return result.map(|()| announced);
        }
    }
}

/// A line without the exit that it announces, and that exit.
fn without_announcement(line: &[u8]) -> (Cow<'_, [u8]>, Option<Exit>) {
    match Exit::announced(line) {
        Some((exit, before, behind)) => ([before, behind].concat().into(), Some(exit)),
        None => (line.into(), None),
    }
}

/// The first line of `text` with its end; what has no end is a line only if it is too long or if nothing follows.
fn next_line(text: &[u8], is_last: bool) -> Option<&[u8]> {
    let most = &text[..text.len().min(LINE_BYTES_MAX)];
    match most.iter().position(|byte| *byte == b'\n') {
        Some(end) => Some(&most[..=end]),
        None => Some(most).filter(|most| most.len() == LINE_BYTES_MAX || (is_last && !most.is_empty())),
    }
}

/// Text between its reader and its printer.
#[derive(Default)]
struct Waiting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    text: Vec<u8>,
    end: End,
}

/// What there is beside the text.
#[derive(Default)]
struct End {
    /// Bytes for which there was no room.
    dropped: u64,
    /// How it ended.
    result: Option<io::Result<()>>,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads until the end.
    fn fill(&self, mut from: impl Read) {
        let mut piece = vec![0; READ_BYTES];
        loop {
            let read = from.read(&mut piece);
            let mut state = self.lock();
            match read {
                Ok(0) => state.end.result = Some(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => state.end.result = Some(Err(error)),
                Err(_) => state.end.result = Some(Ok(())),
                Ok(count) if state.text.len() + count > WAITING_BYTES_MAX => state.end.dropped += count as u64,
                Ok(count) => state.text.extend_from_slice(&piece[..count]),
            }
            self.changed.notify_one();
            if state.end.result.is_some() {
                return;
            }
        }
    }

    /// Waits for text or the end, and appends it to `text`.
    fn take(&self, text: &mut Vec<u8>) -> End {
        let is_idle = |state: &mut State| state.text.is_empty() && state.end.result.is_none();
        let mut state = self.changed.wait_while(self.lock(), is_idle).unwrap_or_else(PoisonError::into_inner);
        text.append(&mut state.text);
        mem::take(&mut state.end)
    }
}

/// The guest's console. A read fails once our standard output is closed, though nothing may be printed for hours.
struct Watched<R>(R);

impl<R: Read + AsFd> Read for Watched<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let stdout = io::stdout();
        // An error of a descriptor is reported without a request.
        let mut polled = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(&stdout, PollFlags::empty())];
        rustix::io::retry_on_intr(|| poll(&mut polled, None))?;
        if polled[1].revents().contains(PollFlags::ERR) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.0.read(buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn printed(waiting: &Waiting) -> String {
        let mut text = Vec::new();
        print(waiting, &Symbolizer::new(Path::new("none")), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn lines_are_printed_whole_and_the_last_one_without_its_end() {
        let waiting = Waiting::default();
        waiting.fill(&b"one\r\ntwo \xff\n\nlast"[..]);
        assert_eq!(printed(&waiting), "one\ntwo \u{fffd}\n\nlast\n");
    }

    #[test]
    fn the_announced_exit_is_returned_and_not_printed() {
        let waiting = Waiting::default();
        waiting.fill(&[b"one\nlast\n".as_slice(), &Exit::Error.announcement()].concat()[..]);
        let mut text = Vec::new();
        let exit = print(&waiting, &Symbolizer::new(Path::new("none")), &mut text).unwrap();
        assert_eq!((text.as_slice(), exit), (b"one\nlast\n".as_slice(), Some(Exit::Error)));
    }

    #[test]
    fn a_line_in_two_pieces_is_one() {
        assert_eq!(next_line(b"on", false), None);
        assert_eq!(next_line(b"one\nt", false), Some(&b"one\n"[..]));
        assert_eq!(next_line(b"", true), None);
        let long = vec![b'x'; LINE_BYTES_MAX + 1];
        assert_eq!(next_line(&long, false).map(<[u8]>::len), Some(LINE_BYTES_MAX));
    }

    #[test]
    fn what_has_no_room_is_counted_and_the_rest_is_printed() {
        let waiting = Waiting::default();
        let lines = "a line\n".repeat(WAITING_BYTES_MAX / 7 + READ_BYTES);
        waiting.fill(lines.as_bytes());
        let kept = waiting.lock().text.len();
        let dropped = waiting.lock().end.dropped;
        assert!(kept <= WAITING_BYTES_MAX && kept > WAITING_BYTES_MAX - READ_BYTES, "{kept}");
        assert_eq!(kept as u64 + dropped, lines.len() as u64);
        assert!(printed(&waiting).starts_with("a line\na line\n"));
    }
}
