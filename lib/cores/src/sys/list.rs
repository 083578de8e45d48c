//! A list that many cores push to and one takes as a whole: one word, and a link in each element.

use super::{AtomicPtr, Ordering, UnsafeCell, constructor};
use core::ptr::{self, NonNull};

/// What an element begins with while it is in a list.
#[derive(Debug)]
pub struct Link {
    next: UnsafeCell<*mut Link>,
}

impl Link {
    constructor! {
        /// One that is in no list.
        pub fn new() -> Link { Link { next: UnsafeCell::new(ptr::null_mut()) } }
    }
}

impl Default for Link {
    fn default() -> Link {
        Link::new()
    }
}

/// Elements that were pushed since the last [`List::take`], the newest first. A push costs an atomic exchange on one word, and
/// so does taking them all; there is no ABA problem, because nothing else removes an element.
#[derive(Debug)]
pub struct List {
    newest: AtomicPtr<Link>,
}

impl List {
    constructor! {
        /// An empty list.
        pub fn new() -> List { List { newest: AtomicPtr::new(ptr::null_mut()) } }
    }

    /// Adds the element that starts with `link`; whether the list was empty.
    ///
    /// # Safety
    /// `link` points to a [`Link`] that only the caller uses, that is in no list, and that stays where it is until it is taken.
    pub unsafe fn push(&self, link: NonNull<Link>) -> bool {
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            // SAFETY: the caller vouches that the link is there and its own; it is not in the list yet.
            unsafe { link.as_ref() }.next.with_mut(|next| {
                // SAFETY: as above.
                unsafe { *next = newest }
            });
            // Release: pairs with the Acquire in `take`, also for the elements that were pushed before this one.
            match self.newest.compare_exchange_weak(newest, link.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return newest.is_null(),
                Err(other) => newest = other,
            }
        }
    }

    /// Whether there is nothing to take. A push at the same time may be missed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.newest.load(Ordering::Relaxed).is_null()
    }

    /// Takes all elements and passes them to `element`, the newest first. They are the caller's then.
    #[inline]
    pub fn take(&self, mut element: impl FnMut(NonNull<Link>)) {
        if self.is_empty() {
            return;
        }
        // Acquire: pairs with the Release in `push`.
        let mut newest = NonNull::new(self.newest.swap(ptr::null_mut(), Ordering::Acquire));
        while let Some(link) = newest {
            // SAFETY: who pushed it has promised that it stays; since the exchange it is ours. It is read before it is passed on.
            newest = NonNull::new(unsafe { link.as_ref() }.next.with(|next| {
                // SAFETY: as above.
                unsafe { *next }
            }));
            element(link);
        }
    }
}

impl Default for List {
    fn default() -> List {
        List::new()
    }
}
