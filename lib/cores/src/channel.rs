//! Values from one task to one on another core, in order.

use crate::sys::{AtomicBool, Consumer, Ordering, Producer, WakerCell, ring};
use crate::wait::{BlockKind, Name, SendError, TrySendError, block};
use alloc::sync::Arc;
use core::future::poll_fn;
use core::hint::spin_loop;
use core::task::{Context, Poll};

static CHANNEL: Name = Name::new("channel between cores");

/// Polls of the slot before a receiver waits: a fraction of a microsecond to a few, by how long the CPU's `pause` takes. Fewer while
/// they find nothing.
const SPINS_MAX: u32 = if cfg!(loom) { 0 } else { 64 };
/// Every so many waits they are all made again, so that a peer that has become faster is noticed.
const SPIN_AGAIN: u32 = 32;
/// Values that a task sends or receives in a row before other tasks of its core have their turn.
const TURN_MAX: u32 = 64;

/// A channel that holds up to `capacity` values; each end may be on any core, and be sent to one. Everything that was sent can be received after the
/// sender is dropped.
///
/// A value costs one transfer of its slot between the cores while both keep up with each other, and a wake-up of the receiver when
/// it waits.
///
/// ```
/// use glass_lib_cores::channel;
///
/// # async fn example() {
/// let (mut sender, mut receiver) = channel(1);
/// sender.send("hello").await.unwrap();
/// assert!(sender.try_send("world").is_err());
/// assert_eq!(receiver.recv().await, Some("hello"));
/// drop(sender);
/// assert_eq!(receiver.recv().await, None);
/// # }
/// ```
///
/// # Panics
/// When `capacity` is 0.
pub fn channel<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    channel_named(&CHANNEL, capacity)
}

/// A [`channel`] whose waits have a name in traces: what is sent, such as "orders". Waiting for room is a wait for a resource of that
/// name.
pub fn channel_named<T: Send>(name: &'static Name, capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a channel holds at least one value");
    let (producer, consumer) = ring(capacity);
    let ends = Arc::new(Ends {
        arrival: WakerCell::new(),
        space: WakerCell::new(),
        sender_is_gone: AtomicBool::new(false),
        receiver_is_gone: AtomicBool::new(false),
    });
    let sender = Sender { ring: producer, ends: ends.clone(), name, turn: 0 };
    (sender, Receiver { ring: consumer, ends, name, turn: 0, spins: SPINS_MAX, waits: 0 })
}

struct Ends {
    /// The receiver, while it waits for a value.
    arrival: WakerCell,
    /// The sender, while it waits for room.
    space: WakerCell,
    sender_is_gone: AtomicBool,
    receiver_is_gone: AtomicBool,
}

/// The end of a [`channel`] that sends.
pub struct Sender<T> {
    ring: Producer<T>,
    ends: Arc<Ends>,
    name: &'static Name,
    turn: u32,
}

/// The end of a [`channel`] that receives. Dropping it drops what it holds when the sender is dropped too, and every send fails.
pub struct Receiver<T> {
    ring: Consumer<T>,
    ends: Arc<Ends>,
    name: &'static Name,
    turn: u32,
    /// Polls of the next slot that are worth their time.
    spins: u32,
    /// Times that they found nothing.
    waits: u32,
}

/// After many operations in a row lets other tasks have their turn.
fn must_yield(turn: &mut u32, context: &mut Context) -> bool {
    *turn += 1;
    if *turn <= TURN_MAX {
        return false;
    }
    *turn = 0;
    block(BlockKind::Yield, &CHANNEL, 0);
    context.waker().wake_by_ref();
    true
}

impl<T: Send> Sender<T> {
    /// Waits for room and sends `value`. Dropping the future sends nothing.
    pub async fn send(&mut self, value: T) -> Result<(), SendError<T>> {
        poll_fn(|context| self.poll_space(context)).await;
        self.try_send(value).map_err(|error| match error {
            TrySendError::Closed(value) | TrySendError::Full(value) => SendError(value),
        })
    }

    /// Sends `value` if there is room now.
    pub fn try_send(&mut self, value: T) -> Result<(), TrySendError<T>> {
        if self.is_closed() {
            return Err(TrySendError::Closed(value));
        }
        self.ring.push(value).map_err(TrySendError::Full)?;
        self.ends.arrival.wake();
        Ok(())
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.ends.receiver_is_gone.load(Ordering::Relaxed)
    }

    /// Ready when there is room, which only this sender takes, or the receiver is gone.
    fn poll_space(&mut self, context: &mut Context) -> Poll<()> {
        if must_yield(&mut self.turn, context) {
            return Poll::Pending;
        }
        if self.ring.has_space() || self.is_closed() {
            return Poll::Ready(());
        }
        self.turn = 0;
        self.ends.space.register(context.waker());
        if self.ring.has_space() || self.is_closed() {
            return Poll::Ready(());
        }
        block(BlockKind::Resource, self.name, 0);
        Poll::Pending
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `poll_recv`, so that the receiver sees what was sent before, also by a sender that was
        // moved to this core since.
        self.ends.sender_is_gone.store(true, Ordering::Release);
        self.ends.arrival.wake();
    }
}

impl<T: Send> Receiver<T> {
    /// The next value; `None` once the sender is dropped and everything was received. Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    fn poll_recv(&mut self, context: &mut Context) -> Poll<Option<T>> {
        if must_yield(&mut self.turn, context) {
            return Poll::Pending;
        }
        if let Some(value) = self.try_recv().or_else(|| self.spin()) {
            return Poll::Ready(Some(value));
        }
        self.turn = 0;
        self.ends.arrival.register(context.waker());
        // In this order: what was sent before the sender was dropped is seen.
        let sender_is_gone = self.ends.sender_is_gone.load(Ordering::Acquire);
        match self.try_recv() {
            Some(value) => Poll::Ready(Some(value)),
            None if sender_is_gone => Poll::Ready(None),
            None => {
                block(BlockKind::Notify, self.name, 0);
                Poll::Pending
            }
        }
    }

    /// Polls the next slot for a moment. A wake-up costs as much as several transfers between cores.
    fn spin(&mut self) -> Option<T> {
        for _ in 0..self.spins {
            spin_loop();
            if let Some(value) = self.try_recv() {
                self.spins = (self.spins * 2).min(SPINS_MAX);
                return Some(value);
            }
        }
        self.waits = self.waits.wrapping_add(1);
        self.spins = if self.waits.is_multiple_of(SPIN_AGAIN) { SPINS_MAX } else { self.spins / 2 };
        None
    }

    /// The next value, if one is there.
    pub fn try_recv(&mut self) -> Option<T> {
        let value = self.ring.pop()?;
        self.ends.space.wake();
        Some(value)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.ends.receiver_is_gone.store(true, Ordering::Relaxed);
        self.ends.space.wake();
    }
}
