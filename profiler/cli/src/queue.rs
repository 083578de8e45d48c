//! The queue between the thread that samples and the one that works on what it got: bounded in
//! messages and in bytes, so that a slow consumer costs samples, which are counted, and not memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use glass_profile::event::Event;

/// Messages that may wait.
const MESSAGES_MAX: usize = 8192;
/// Bytes of samples that may wait: at 16 KiB a sample, two seconds of them at 1000 a second.
const BYTES_MAX: usize = 32 << 20;

/// What an event takes while it waits.
fn event_bytes(event: &Event) -> usize {
    match event {
        Event::Sample(sample) => sample.stack.capacity() + size_of::<Event>(),
        _ => size_of::<Event>(),
    }
}

/// Something that was queued, and what it takes.
struct Queued<M> {
    message: M,
    bytes: usize,
}

/// The end that samples.
pub(crate) struct Sender<M> {
    queue: SyncSender<Queued<M>>,
    bytes: Arc<AtomicUsize>,
    dropped: u64,
}

/// The end that works.
pub(crate) struct Consumer<M> {
    queue: Receiver<Queued<M>>,
    bytes: Arc<AtomicUsize>,
}

/// A queue of messages that events turn into.
pub(crate) fn queue<M: From<Event>>() -> (Sender<M>, Consumer<M>) {
    let (sender, receiver) = sync_channel(MESSAGES_MAX);
    let bytes = Arc::new(AtomicUsize::new(0));
    (Sender { queue: sender, bytes: bytes.clone(), dropped: 0 }, Consumer { queue: receiver, bytes })
}

impl<M: From<Event>> Sender<M> {
    /// Queues an event. Samples never wait: one that finds no room is dropped and counted. Tracks and
    /// mappings do wait, since what follows needs them.
    pub(crate) fn event(&mut self, event: Event) {
        if !matches!(event, Event::Sample(_)) {
            return self.send(event.into());
        }
        let bytes = event_bytes(&event);
        // Relaxed: the count only bounds memory; the channel orders everything else.
        let waiting = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let queued = Queued { message: event.into(), bytes };
        if waiting + bytes > BYTES_MAX || self.queue.try_send(queued).is_err() {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.dropped += 1;
        }
    }

    /// Queues something else; waits for room.
    pub(crate) fn send(&mut self, message: M) {
        // Fails only if the consumer has ended, which its thread's result tells.
        let _ = self.queue.send(Queued { message, bytes: 0 });
    }

    /// Queues something that may as well be left out.
    pub(crate) fn offer(&self, message: M) {
        let _ = self.queue.try_send(Queued { message, bytes: 0 });
    }

    /// Samples that found no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl<M> Consumer<M> {
    /// The next message; `None` when there will be no more.
    pub(crate) fn next(&self) -> Option<M> {
        self.queue.recv().ok().map(|queued| self.taken(queued))
    }

    /// The next message within `wait`; `Ok(None)` if none came, an error when there will be no more.
    pub(crate) fn next_within(&self, wait: Duration) -> Result<Option<M>, Ended> {
        match self.queue.recv_timeout(wait) {
            Ok(queued) => Ok(Some(self.taken(queued))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Ended),
        }
    }

    fn taken(&self, queued: Queued<M>) -> M {
        self.bytes.fetch_sub(queued.bytes, Ordering::Relaxed);
        queued.message
    }
}

/// There will be no more messages.
#[derive(Debug)]
pub(crate) struct Ended;

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profile::event::RawSample;

    fn sample(stack_bytes: usize) -> Event {
        Event::Sample(RawSample { stack: vec![0; stack_bytes], ..Default::default() })
    }

    #[test]
    fn samples_beyond_the_bytes_are_dropped_and_counted() {
        let (mut sender, consumer) = queue::<Event>();
        for _ in 0..4000 {
            sender.event(sample(16 << 10));
        }
        let kept = 4000 - sender.dropped();
        assert!((1900..=2048).contains(&kept), "{kept}");
        assert!(sender.bytes.load(Ordering::Relaxed) <= BYTES_MAX);
        for _ in 0..kept {
            assert!(matches!(consumer.next(), Some(Event::Sample(_))));
        }
        assert_eq!(sender.bytes.load(Ordering::Relaxed), 0);
        sender.event(sample(16 << 10));
        assert_eq!(sender.dropped(), 4000 - kept, "there is room again");
    }

    #[test]
    fn samples_beyond_the_count_are_dropped_and_counted() {
        let (mut sender, consumer) = queue::<Event>();
        (0..MESSAGES_MAX + 5).for_each(|_| sender.event(sample(0)));
        assert_eq!(sender.dropped(), 5);
        drop(sender);
        assert_eq!(std::iter::from_fn(|| consumer.next()).count(), MESSAGES_MAX);
        assert!(consumer.next_within(Duration::ZERO).is_err());
    }
}
