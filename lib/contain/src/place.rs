//! Where the last panic of a thread was. Only the hook for panics can see it, and it is one for all of a process: ours notes the place and calls
//! the one before, which prints.

use std::cell::RefCell;
use std::panic::{set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes the places of panics from now on.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            LAST.set(panic.location().map(ToString::to_string));
            before(panic);
        }));
    });
}

/// The place of this thread's last panic, once. A hook that replaced ours has kept it for itself.
pub(crate) fn last() -> String {
    LAST.take().unwrap_or_else(|| "an unknown place".to_owned())
}
