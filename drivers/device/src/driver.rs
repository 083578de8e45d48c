//! What a core's loop does with a device.

use crate::error::{SetupError, Violation};
use core::fmt;
use core::time::Duration;
use glass_api::Instant;

/// What became of a device, for its user. The device is neither reset nor given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A request has taken this long.
    Silent(Duration),
    /// The device has completed all that it had not answered.
    Answers,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Notice::Silent(time) => {
                write!(f, "has not answered a request for {} s; all fail until it does", time.as_secs_f64())
            }
            Notice::Answers => write!(f, "answers again"),
        }
    }
}

/// What a core's loop does with every driver, whatever its device and bus. All calls return at once.
///
/// A round: `poll` each driver, run tasks, `kick` each driver. To sleep: `arm` each driver; if one
/// reports that work is there, `disarm` and continue; else sleep, `acknowledge` the driver whose interrupt ended that, and
/// `disarm`. A driver that reports a `violation` is of no use until its `restart` succeeds.
pub trait Driver {
    /// Takes what the device has completed. Returns whether there was any, so whether tasks may
    /// have been woken or frames wait to be read. A core that spins only polls, and then sleeps: what a poll that returns false has
    /// added to a queue it publishes itself.
    fn poll(&mut self) -> bool;

    /// Hands over everything that tasks have queued, and notifies the device, once, if it wants to know. Returns whether
    /// that has made work: run the tasks before sleeping. A device that requests everything at its start has nothing to hand over.
    fn kick(&mut self) -> bool {
        false
    }

    /// Requests an interrupt when there is work. Returns true when work is there already: do not
    /// sleep then. No completion is lost between the question and the sleep.
    fn arm(&mut self) -> bool;

    /// Requests no more interrupts.
    fn disarm(&mut self);

    /// When to poll next, if nothing else happens.
    fn deadline(&mut self) -> Option<Instant> {
        None
    }

    /// Whether the next round has something to do, whatever the device does. Never sleep then.
    fn has_work(&self) -> bool {
        false
    }

    /// Whether something that was sent has not reached its receiver yet. A platform that ends continues to poll while this is true,
    /// within a limit.
    fn is_delivering(&self) -> bool {
        false
    }

    /// Takes the device's interrupt down. Call it first when its interrupt came, then `poll`; and once after the device was started,
    /// because it may have interrupted before its interrupt was listened to.
    fn acknowledge(&mut self);

    /// How the device violated its protocol, which ended its use; `None` while it is in use. All of its requests have failed or will at the next `poll`.
    fn violation(&self) -> Option<Violation>;

    /// Starts a device that has a [`Driver::violation`] once more, with its memory and interrupts as before. After an error it is as broken as before.
    fn restart(&mut self) -> Result<(), SetupError>;

    /// What became of the device since the last call, if its user should see that.
    fn take_notice(&mut self) -> Option<Notice> {
        None
    }

    /// What the trace calls the device: a number of `glass_lib_trace::intern`. Without effect on a device whose requests are not traced.
    fn set_trace_name(&mut self, _name: u32) {}

    /// Reports to the trace what is there already: groups of events were switched on (bits of `glass_lib_trace::Group`).
    fn announce(&self, _groups: u32) {}
}
