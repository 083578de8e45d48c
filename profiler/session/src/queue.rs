//! The queue between the thread that samples and the one that works on what it got: bounded in
//! messages and in bytes, so that a slow consumer costs samples, which are counted, and not memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, channel};
use std::time::Duration;

use glass_profiler_core::event::Event;
use glass_profiler_core::trace::raw::{Piece, Words};

/// Messages that may wait.
const MESSAGES_MAX: usize = 8192;
/// Bytes of samples that may wait: at 16 KiB a sample, two seconds of them at 1000 a second.
const BYTES_MAX: usize = 32 << 20;

/// How long what is not dropped waits before it looks for room again.
const ROOM_LOOK: Duration = Duration::from_millis(1);

/// What an event takes while it waits.
fn event_bytes(event: &Event) -> usize {
    match event {
        Event::Sample(sample) => {
            let pieces = sample.segments.iter().flat_map(|segment| &segment.stack);
            let chains = sample.segments.iter().map(|segment| segment.chain.capacity() * size_of::<u64>());
            pieces.map(|(_, bytes)| bytes.capacity()).chain(chains).sum::<usize>() + size_of::<Event>()
        }
        Event::Trace(Piece::Chunk { events, .. }) => events.capacity() * size_of::<Words>() + size_of::<Event>(),
        _ => size_of::<Event>(),
    }
}

/// Something that was queued, and what it takes.
struct Queued<M> {
    message: M,
    bytes: usize,
}

/// What waits. Relaxed everywhere: the counts only bound memory; the channel orders everything else.
#[derive(Default)]
struct Waiting {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    /// The consumer has ended.
    has_ended: AtomicBool,
}

impl Waiting {
    /// A message of so many bytes waits no longer.
    fn take(&self, bytes: usize) {
        self.messages.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The end that samples.
pub(crate) struct Sender<M> {
    // Bounded by `waiting`: a bounded channel of the standard library takes the memory of all its places at once.
    queue: mpsc::Sender<Queued<M>>,
    waiting: Arc<Waiting>,
    dropped: u64,
}

/// The end that works.
pub(crate) struct Consumer<M> {
    queue: Receiver<Queued<M>>,
    waiting: Arc<Waiting>,
}

impl<M> Drop for Consumer<M> {
    fn drop(&mut self) {
        self.waiting.has_ended.store(true, Ordering::Relaxed);
    }
}

/// A queue of messages that events turn into.
pub(crate) fn queue<M: From<Event>>() -> (Sender<M>, Consumer<M>) {
    let (sender, receiver) = channel();
    let waiting = Arc::new(Waiting::default());
    let consumer = Consumer { queue: receiver, waiting: waiting.clone() };
    (Sender { queue: sender, waiting, dropped: 0 }, consumer)
}

impl<M: From<Event>> Sender<M> {
    /// Queues an event. Samples never wait: one that finds no room is dropped and counted. Tracks and
    /// mappings do wait, since what follows needs them; and so do pieces of a trace, whose guest meanwhile keeps what
    /// it writes, as far as its rings reach.
    pub(crate) fn event(&mut self, event: Event) {
        let bytes = event_bytes(&event);
        match event {
            Event::Sample(_) => self.dropped += u64::from(!self.try_send(event.into(), bytes)),
            Event::Trace(_) => {
                self.wait_while(|waiting| waiting.bytes.load(Ordering::Relaxed) > BYTES_MAX);
                self.wait_and_send(event.into(), bytes);
            }
            _ => self.send(event.into()),
        }
    }

    /// Queues samples as one message, for which the consumer is woken once. If there is no room for all of them, all are dropped.
    pub(crate) fn samples(&mut self, samples: Vec<Event>)
    where
        M: From<Vec<Event>>,
    {
        let (count, bytes) = (samples.len() as u64, samples.iter().map(event_bytes).sum());
        if count > 0 && !self.try_send(samples.into(), bytes) {
            self.dropped += count;
        }
    }

    /// Another end for another thread, which counts for itself.
    pub(crate) fn another(&self) -> Sender<M> {
        Sender { queue: self.queue.clone(), waiting: self.waiting.clone(), dropped: 0 }
    }

    /// Queues something else; waits for room.
    pub(crate) fn send(&mut self, message: M) {
        self.wait_and_send(message, 0);
    }

    /// Queues something that may as well be left out.
    pub(crate) fn offer(&self, message: M) {
        self.try_send(message, 0);
    }

    /// Samples that found no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// False if there is no room.
    fn try_send(&self, message: M, bytes: usize) -> bool {
        let messages = self.waiting.messages.fetch_add(1, Ordering::Relaxed);
        let waiting = self.waiting.bytes.fetch_add(bytes, Ordering::Relaxed);
        let has_room = messages < MESSAGES_MAX && waiting + bytes <= BYTES_MAX;
        if !has_room || self.queue.send(Queued { message, bytes }).is_err() {
            self.waiting.take(bytes);
            return false;
        }
        true
    }

    fn wait_and_send(&self, message: M, bytes: usize) {
        self.wait_while(|waiting| waiting.messages.load(Ordering::Relaxed) >= MESSAGES_MAX);
        self.waiting.messages.fetch_add(1, Ordering::Relaxed);
        self.waiting.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Fails only if the consumer has ended, which its thread's result reports.
        let _ = self.queue.send(Queued { message, bytes });
    }

    /// A consumer that has ended makes no room.
    fn wait_while(&self, is_full: impl Fn(&Waiting) -> bool) {
        while is_full(&self.waiting) && !self.waiting.has_ended.load(Ordering::Relaxed) {
            std::thread::sleep(ROOM_LOOK);
        }
    }
}

impl<M> Consumer<M> {
    /// The next message; `None` when there will be no more.
    pub(crate) fn next(&self) -> Option<M> {
        let queued = self.queue.recv().ok()?;
        self.waiting.take(queued.bytes);
        Some(queued.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::event::{RawSample, Segment};

    fn sample(stack_bytes: usize) -> Event {
        let segment = Segment { stack: vec![(0, vec![0; stack_bytes])], ..Default::default() };
        Event::Sample(RawSample { segments: vec![segment], ..Default::default() })
    }

    #[test]
    fn samples_beyond_the_bytes_are_dropped_and_counted() {
        let (mut sender, consumer) = queue::<Event>();
        for _ in 0..4000 {
            sender.event(sample(16 << 10));
        }
        let kept = 4000 - sender.dropped();
        assert!((1900..=2048).contains(&kept), "{kept}");
        assert!(sender.waiting.bytes.load(Ordering::Relaxed) <= BYTES_MAX);
        for _ in 0..kept {
            assert!(matches!(consumer.next(), Some(Event::Sample(_))));
        }
        assert_eq!(sender.waiting.bytes.load(Ordering::Relaxed), 0);
        sender.event(sample(16 << 10));
        assert_eq!(sender.dropped(), 4000 - kept, "there is room again");
    }

    #[test]
    fn pieces_of_a_trace_wait_for_room_and_are_not_dropped() {
        let (sender, consumer) = queue::<Event>();
        let mut other = sender.another();
        let count = 200;
        let writer = std::thread::spawn(move || {
            for first in 0..count {
                let events = vec![[first; 4]; 8192];
                other.event(Event::Trace(Piece::Chunk { ring: 0, first, events }));
            }
        });
        drop(sender);
        for number in 0..count {
            assert!(consumer.waiting.bytes.load(Ordering::Relaxed) <= BYTES_MAX + (256 << 10) + size_of::<Event>());
            let Some(Event::Trace(Piece::Chunk { first, .. })) = consumer.next() else { panic!("one is missing") };
            assert_eq!(first, number);
            std::thread::sleep(Duration::from_micros(100));
        }
        writer.join().unwrap();
        assert!(consumer.next().is_none());

        // A sender does not wait for room that will never be.
        let (mut sender, consumer) = queue::<Event>();
        drop(consumer);
        for first in 0..count {
            sender.event(Event::Trace(Piece::Chunk { ring: 0, first, events: vec![[0; 4]; 8192] }));
        }
    }

    #[test]
    fn samples_together_are_one_message_and_are_dropped_together() {
        struct Events(Vec<Event>);
        impl From<Event> for Events {
            fn from(event: Event) -> Events {
                Events(vec![event])
            }
        }
        impl From<Vec<Event>> for Events {
            fn from(events: Vec<Event>) -> Events {
                Events(events)
            }
        }
        let (mut sender, consumer) = queue::<Events>();
        sender.samples(Vec::new());
        sender.samples(vec![sample(9), sample(9)]);
        sender.samples(vec![sample(BYTES_MAX), sample(0), sample(0)]);
        assert_eq!(sender.dropped(), 3);
        drop(sender);
        assert_eq!(consumer.next().map(|events| events.0.len()), Some(2));
        assert!(consumer.next().is_none());
        assert_eq!(consumer.waiting.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn samples_beyond_the_count_are_dropped_and_counted() {
        let (mut sender, consumer) = queue::<Event>();
        (0..MESSAGES_MAX + 5).for_each(|_| sender.event(sample(0)));
        assert_eq!(sender.dropped(), 5);
        drop(sender);
        assert_eq!(std::iter::from_fn(|| consumer.next()).count(), MESSAGES_MAX);
    }
}
