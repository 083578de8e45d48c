//! Lines to standard output, by a thread of its own: a reader that stops must not stop the service.

use crate::requests::{Device, Request};
use crate::trace;
use glass_trace::Operation;
use std::fmt;
use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, atomic::AtomicU64, atomic::Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that wait to be written; what comes beyond is lost and counted.
const LINES_MAX: usize = 1024;

/// How long the end of the process waits for the last lines.
const DRAIN_TIME: Duration = Duration::from_secs(1);

enum Message {
    Line(String, Request),
    /// Everything before was written when the answer comes.
    Drain(SyncSender<()>),
}

/// The way to the console's thread.
pub(crate) struct Lines {
    sender: SyncSender<Message>,
    lost: Arc<AtomicU64>,
    device: Device,
}

impl Lines {
    pub(crate) fn new(out: impl Write + Send + 'static) -> io::Result<Lines> {
        let (sender, receiver) = mpsc::sync_channel(LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = lost.clone();
        thread::Builder::new().name("glass-console".into()).spawn(move || write(out, &receiver, &counted))?;
        Ok(Lines { sender, lost, device: Device::new("console") })
    }

    pub(crate) fn print(&self, line: fmt::Arguments) {
        let text = format!("{line}\n");
        let request = self.device.request(Operation::Write, text.len());
        request.submitted();
        if let Err(TrySendError::Full(Message::Line(_, request))) = self.sender.try_send(Message::Line(text, request)) {
            request.completed(true);
            // Relaxed: a statistic.
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits a moment until everything is written.
    pub(crate) fn drain(&self) {
        let (answer, done) = mpsc::sync_channel(1);
        let end = Instant::now() + DRAIN_TIME;
        let mut message = Message::Drain(answer);
        while let Err(TrySendError::Full(back)) = self.sender.try_send(message) {
            if Instant::now() >= end {
                return;
            }
            message = back;
            thread::sleep(Duration::from_millis(1));
        }
        let _ = done.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

fn write(mut out: impl Write, lines: &Receiver<Message>, lost: &AtomicU64) {
    trace::attach("console thread");
    while let Ok(message) = lines.recv() {
        // Nobody can be told when standard output is closed.
        let _ = match message {
            Message::Line(line, request) => {
                let written = out.write_all(line.as_bytes()).and_then(|()| out.flush());
                request.completed(written.is_err());
                written
            }
            Message::Drain(answer) => answer.try_send(()).map_err(io::Error::other),
        };
        let count = lost.swap(0, Ordering::Relaxed);
        if count > 0 {
            let _ = writeln!(out, "({count} lines lost)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Sender;

    /// A terminal that takes a line only when the test lets it.
    struct Terminal {
        written: Sender<String>,
        go: Receiver<()>,
    }

    impl Write for Terminal {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.go.recv();
            let _ = self.written.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_terminal_loses_lines_and_says_how_many() {
        let (written, texts) = mpsc::channel();
        let (go, wait) = mpsc::channel();
        let lines = Lines::new(Terminal { written, go: wait }).unwrap();
        let began = Instant::now();
        for number in 0..LINES_MAX + 100 {
            lines.print(format_args!("line {number}"));
        }
        assert!(began.elapsed() < Duration::from_secs(10));
        drop(go);
        lines.drain();
        let all: Vec<String> = texts.try_iter().collect();
        assert_eq!(all[0], "line 0\n");
        // The thread has one line in its hands while the queue fills, or has not begun.
        let kept = all.iter().filter(|text| text.starts_with("line")).count();
        let text = all.concat();
        assert!(text.contains(&format!("({} lines lost)\n", LINES_MAX + 100 - kept)), "{kept} kept");
        assert!(kept == LINES_MAX || kept == LINES_MAX + 1, "{kept}");
    }
}
