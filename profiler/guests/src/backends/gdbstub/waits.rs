//! What a thread of QEMU waits for, by its line in `/proc/PID/task/TID/syscall`.

use crate::sys::arch;

/// The system call of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// It waits for a condition.
    Condition(Word),
    /// It waits for the lock at this address.
    Lock(u64),
    /// It waits for events.
    Idle,
    Other,
}

/// A word in memory, and its value while a thread waits at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) address: u64,
    pub(super) value: u32,
}

/// glibc waits for a lock by FUTEX_WAIT and for a condition by FUTEX_WAIT_BITSET. (musl takes the first for
/// both. Then no thread has the lock, each vCPU is resumed from call to call, and so stops too.)
pub(super) fn parse_call(text: &str) -> Call {
    let mut words = text.split_ascii_whitespace();
    let number = |word: Option<&str>| u64::from_str_radix(word?.strip_prefix("0x")?, 16).ok();
    match words.next().and_then(|call| call.parse().ok()) {
        Some(libc::SYS_futex) => {}
        Some(call) if arch::is_poll(call) => return Call::Idle,
        _ => return Call::Other,
    }
    match (number(words.next()), number(words.next()), number(words.next())) {
        (Some(address), Some(operation), Some(value)) => match operation as i32 & libc::FUTEX_CMD_MASK {
            libc::FUTEX_WAIT => Call::Lock(address),
            libc::FUTEX_WAIT_BITSET => Call::Condition(Word { address, value: value as u32 }),
            _ => Call::Other,
        },
        _ => Call::Other,
    }
}

/// Where a vCPU's thread waits when it has nothing to do, and when it is stopped: that is one condition, and QEMU has one for each vCPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct HaltPlace {
    address: u64,
    /// How often it was there when it was stopped, one time after the other.
    seen: u32,
}

impl HaltPlace {
    /// So often it has to have been seen: a thread may wait for another one for a moment.
    const CERTAIN: u32 = 3;

    /// It waits here when the VM is stopped.
    pub(super) fn note(&mut self, call: Call) {
        let Some(address) = HaltPlace::of(call).filter(|_| self.seen < HaltPlace::CERTAIN) else { return };
        let seen = if address == self.address { self.seen + 1 } else { 1 };
        *self = HaltPlace { address, seen };
    }

    pub(super) fn is_at(&self, call: Call) -> bool {
        self.seen >= HaltPlace::CERTAIN && HaltPlace::of(call) == Some(self.address)
    }

    /// A condition of glibc has two words for those who wait, one after the other, and those who come later wait at the other one.
    fn of(call: Call) -> Option<u64> {
        if let Call::Condition(word) = call { Some(word.address & !7) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_vcpu_has_nothing_to_do() {
        let at = |address| Call::Condition(Word { address, value: 2 });
        let mut halt = HaltPlace::default();
        assert!(!halt.is_at(at(0)));
        // For a moment it waits for another one.
        for address in [0x5580, 0x6600, 0x5580, 0x5584] {
            halt.note(at(address));
            assert!(!halt.is_at(at(0x5580)), "{address:x}");
        }
        halt.note(Call::Lock(0x5580));
        halt.note(at(0x5580));
        assert!(halt.is_at(at(0x5580)) && halt.is_at(at(0x5584)), "it is either word of the condition");
        let others = [at(0x5588), at(0x557c), Call::Lock(0x5580), Call::Idle, Call::Other];
        assert!(!others.into_iter().any(|call| halt.is_at(call)));
        (0..5).for_each(|_| halt.note(at(0x6600)));
        assert!(halt.is_at(at(0x5580)), "it stays there");
    }

    #[test]
    fn what_the_main_thread_waits_for() {
        assert_eq!(parse_call("running\n"), Call::Other);
        assert_eq!(parse_call("271 0x55 0x9 0x7ff 0x0 0x8 0x0 0x7f10 0x7f20\n"), Call::Idle);
        assert_eq!(parse_call("202 0x5580 0x80 0x2 0x0 0x0 0x0 0x7f10 0x7f20\n"), Call::Lock(0x5580));
        assert_eq!(
            parse_call("202 0x5580 0x189 0x2 0x0 0x0 0xffffffff 0x7f10 0x7f20\n"),
            Call::Condition(Word { address: 0x5580, value: 2 })
        );
        assert_eq!(parse_call("202 0x5580 0x81 0x1 0x0 0x0 0x0 0x7f10 0x7f20\n"), Call::Other);
        assert_eq!(parse_call("202 0x5580"), Call::Other);
        assert_eq!(parse_call("202 zz 0x80"), Call::Other);
        assert_eq!(parse_call(""), Call::Other);
    }
}
