//! Lines to standard output, by a separate thread: a reader that stops must not stop the service.

use crate::requests::{Device, Request};
use crate::trace;
use glass_lib_trace::{BlockKind, Name, Operation};
use std::fmt;
use std::future::poll_fn;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that wait to be written; further lines are lost and counted.
const LINES_MAX: usize = 1024;

/// How long the end of the process waits for the last lines.
const DRAIN_TIME: Duration = Duration::from_secs(1);

enum Message {
    Line(String, Request),
    /// Answered when everything before it was written.
    Drain(SyncSender<()>),
}

/// The resource that a task waits for when it prints more than the reader takes.
static CONSOLE_FULL: Name = Name::new("console: no room until the host reads");

/// The shared state of both ends.
#[derive(Default)]
struct Shared {
    lost: AtomicU64,
    /// Lines that wait to be written, for tasks that wait rather than lose one.
    waiting: AtomicUsize,
    /// Tasks that wait for room; bounded by the number of tasks.
    wakers: Mutex<Vec<Waker>>,
}

impl Shared {
    fn wakers(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_fewer_than(&self, lines: usize) -> bool {
        self.waiting.load(Ordering::SeqCst) < lines
    }

    /// A line was written.
    fn written(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        let wakers = std::mem::take(&mut *self.wakers());
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The sending end to the console's thread.
pub(crate) struct Lines {
    sender: SyncSender<Message>,
    shared: Arc<Shared>,
    device: Device,
}

impl Lines {
    pub(crate) fn new(out: impl Write + Send + 'static) -> io::Result<Lines> {
        let (sender, receiver) = mpsc::sync_channel(LINES_MAX);
        let shared = Arc::new(Shared::default());
        let seen = shared.clone();
        thread::Builder::new().name("glass-console".into()).spawn(move || write(out, &receiver, &seen))?;
        Ok(Lines { sender, shared, device: Device::new("console") })
    }

    pub(crate) fn print(&self, line: fmt::Arguments) {
        let text = format!("{line}\n");
        let request = self.device.request(Operation::Write, text.len());
        request.submitted();
        // Counted before it is sent: the thread may write it before we continue.
        self.shared.waiting.fetch_add(1, Ordering::SeqCst);
        let Err(error) = self.sender.try_send(Message::Line(text, request)) else { return };
        self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
        if let TrySendError::Full(Message::Line(_, request)) = error {
            request.completed(true);
            // Relaxed: a statistic.
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Completes when there is room for one more line of any length, or, for `usize::MAX` bytes, when all are written.
    pub(crate) async fn writable(&self, bytes: usize) {
        let lines = if bytes == usize::MAX { 1 } else { LINES_MAX };
        poll_fn(|context| {
            if self.shared.has_fewer_than(lines) {
                return Poll::Ready(());
            }
            let mut wakers = self.shared.wakers();
            // Check again: the thread counts, then takes the list, so one of the two sees the other's change.
            if self.shared.has_fewer_than(lines) {
                return Poll::Ready(());
            }
            if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
            glass_lib_trace::block(BlockKind::Resource, &CONSOLE_FULL, lines as u64);
            Poll::Pending
        })
        .await;
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

fn write(mut out: impl Write, lines: &Receiver<Message>, shared: &Shared) {
    trace::attach("console thread");
    while let Ok(message) = lines.recv() {
        // When standard output is closed, an error cannot be reported.
        let _ = match message {
            Message::Line(line, request) => {
                let written = out.write_all(line.as_bytes()).and_then(|()| out.flush());
                request.completed(written.is_err());
                shared.written();
                written
            }
            Message::Drain(answer) => answer.try_send(()).map_err(io::Error::other),
        };
        let count = shared.lost.swap(0, Ordering::Relaxed);
        if count > 0 {
            let _ = writeln!(out, "({count} lines lost)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Sender;

    /// A terminal that accepts a line only when the test allows it.
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

    /// Wakes a thread and records it.
    struct Parker {
        thread: thread::Thread,
        woken: Sender<()>,
    }

    impl std::task::Wake for Parker {
        fn wake(self: Arc<Self>) {
            let _ = self.woken.send(());
            self.thread.unpark();
        }
    }

    #[test]
    fn who_waits_for_room_loses_nothing() {
        const LINES: usize = 3 * LINES_MAX;
        let (written, texts) = mpsc::channel();
        let (go, wait) = mpsc::channel();
        let lines = Lines::new(Terminal { written, go: wait }).unwrap();
        let (woken, wakes) = mpsc::channel();
        let printer = thread::spawn(move || {
            let waker = Waker::from(Arc::new(Parker { thread: thread::current(), woken }));
            for number in 0..LINES {
                let mut writable = std::pin::pin!(lines.writable(80));
                while writable.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending() {
                    thread::park_timeout(Duration::from_secs(10));
                }
                lines.print(format_args!("line {number}"));
            }
            lines.drain();
        });
        // The terminal accepts its first line only after every task had time to find the queue full.
        thread::sleep(Duration::from_millis(100));
        drop(go);
        printer.join().unwrap();
        assert!(wakes.try_recv().is_ok(), "no task had to wait");
        let all: Vec<String> = texts.try_iter().collect();
        assert_eq!(all.len(), LINES);
        assert!(all.iter().enumerate().all(|(number, text)| *text == format!("line {number}\n")));
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
        // The thread holds one line while the queue fills, or has not started.
        let kept = all.iter().filter(|text| text.starts_with("line")).count();
        let text = all.concat();
        assert!(text.contains(&format!("({} lines lost)\n", LINES_MAX + 100 - kept)), "{kept} kept");
        assert!(kept == LINES_MAX || kept == LINES_MAX + 1, "{kept}");
    }
}
