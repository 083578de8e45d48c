//! Values from any core to one, in order and bounded.

use super::{AtomicUsize, Link, List, Ordering};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// Values that wait to be taken. Any core puts one in; it costs an allocation.
#[derive(Debug)]
pub struct Inbox<T> {
    list: List,
    count: AtomicUsize,
    count_max: usize,
    values: PhantomData<T>,
}

#[repr(C)]
struct Node<T> {
    link: Link,
    value: T,
}

/// The inbox is full; this is the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full<T>(pub T);

// SAFETY: an inbox owns its values and hands each to one thread, by value; no reference to one is shared.
unsafe impl<T: Send> Send for Inbox<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Inbox<T> {}

impl<T> Inbox<T> {
    /// An empty one for at most `count_max` values.
    pub fn new(count_max: usize) -> Inbox<T> {
        Inbox { list: List::new(), count: AtomicUsize::new(0), count_max, values: PhantomData }
    }

    /// Adds `value`.
    pub fn push(&self, value: T) -> Result<(), Full<T>> {
        // Relaxed: only a bound.
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.count_max {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(Full(value));
        }
        let node = NonNull::from(Box::leak(Box::new(Node { link: Link::new(), value })));
        // SAFETY: the node is new, starts with its link (`repr(C)`), and is freed only by `take`.
        unsafe { self.list.push(node.cast()) };
        Ok(())
    }

    /// Whether there is nothing to take.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes what is there, in the order in which it was put in.
    pub fn take(&self) -> Vec<T> {
        let mut values = Vec::new();
        self.list.take(|link| {
            // SAFETY: only `push` puts links into this list, each the start of a node that it leaked, and a link is taken once.
            let node = unsafe { Box::from_raw(link.cast::<Node<T>>().as_ptr()) };
            values.push(node.value);
        });
        self.count.fetch_sub(values.len(), Ordering::Relaxed);
        values.reverse();
        values
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
