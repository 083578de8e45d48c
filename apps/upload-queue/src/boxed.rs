//! Large futures, kept off the stack.

use alloc::boxed::Box;
use core::pin::Pin;

/// A future on the heap. Without it the future of each caller would contain this one, and the frame of the caller's poll too, where it is made: a
/// profiler copies only a part of a stack.
#[inline(never)]
pub(crate) fn boxed<'a, F: Future + 'a>(make: impl FnOnce() -> F) -> Pin<Box<dyn Future<Output = F::Output> + 'a>> {
    Box::pin(make())
}
