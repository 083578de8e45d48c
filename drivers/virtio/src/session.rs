//! The use of a device until it is reset: what all drivers share.

use crate::error::Lie;
use crate::transport::{self, Transport};
use core::mem;

pub struct Session<T: Transport> {
    pub transport: T,
    has_ended: bool,
    interrupted_for_nothing: bool,
}

impl<T: Transport> Session<T> {
    pub fn new(transport: T) -> Session<T> {
        Session { transport, has_ended: false, interrupted_for_nothing: false }
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Resets the device, so that it lets go of our memory; only once. If it does not obey, `leak` gives up for ever all memory
    /// that it may still use.
    pub fn end(&mut self, leak: impl FnOnce()) {
        if !mem::replace(&mut self.has_ended, true) && !transport::reset(&mut self.transport) {
            leak();
        }
    }

    /// Takes the interrupt down. `has_used`: there are completions, which explain it.
    pub fn acknowledge_interrupt(&mut self, has_used: bool) {
        self.transport.acknowledge_interrupt();
        self.interrupted_for_nothing = !has_used;
    }

    /// Whether the device has given up by itself, which an interrupt without a completion may mean. Asking costs an exit, so
    /// drivers do it only when there is time: before sleeping.
    pub fn check_alive(&mut self) -> Option<Lie> {
        let is_suspect = mem::take(&mut self.interrupted_for_nothing);
        if is_suspect { transport::check_alive(&mut self.transport).err() } else { None }
    }
}
