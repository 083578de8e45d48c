//! Which versions of Xen's interface for tools are known, and what its answers hold (`xen/include/public/domctl.h`).
//!
//! The interface has a number that grows whenever a structure of it changes. What is used here was the same in all versions
//! of the list:
//!
//! | in `xen_domctl_getdomaininfo` | offset | bytes |
//! |---|---|---|
//! | `domain` | 0 | 2 |
//! | `flags` | 4 | 4 |
//! | `tot_pages` | 8 | 8 |
//! | `nr_online_vcpus`, `max_vcpu_id` | 64, 68 | 4 each |
//!
//! | in `xen_domctl_getvcpuinfo` | offset | bytes |
//! |---|---|---|
//! | `online`, `blocked` | 4, 5 | 1 each |
//! | `cpu_time` in nanoseconds | 8 | 8 |

/// An interface, and the versions of Xen that have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) version: u32,
    xen: &'static str,
}

/// The layouts that are known, the newest first: it is tried first, and taken for an unknown version if that is forced. Run was
/// that of 4.17. Of 4.11 and 4.12 the headers were read, of the others only the patches that changed the number.
pub(crate) const KNOWN: [Layout; 8] = [
    Layout { version: 0x17, xen: "4.19 to 4.21" },
    Layout { version: 0x16, xen: "4.18" },
    Layout { version: 0x15, xen: "4.17" },
    Layout { version: 0x14, xen: "4.16" },
    Layout { version: 0x13, xen: "4.15" },
    Layout { version: 0x12, xen: "4.13 and 4.14" },
    Layout { version: 0x11, xen: "4.12" },
    Layout { version: 0x10, xen: "4.11" },
];
/// Other versions that Xen may have: it refuses all but its own.
pub(crate) const UNKNOWN: std::ops::Range<u32> = 0x05..0x60;

/// Why an unknown version is refused.
pub(crate) fn refusal(version: u32) -> String {
    let (newest, oldest) = (KNOWN[0], KNOWN[KNOWN.len() - 1]);
    format!(
        "this Xen has version {version:#x} of the interface for tools, and glass supports {:#x} (Xen {}) to {:#x} (Xen {}): take another version of glass, or try --force-xen",
        oldest.version, oldest.xen, newest.version, newest.xen
    )
}

const FLAG_DYING: u32 = 1;
const FLAG_HVM: u32 = 1 << 1;
const FLAG_SHUTDOWN: u32 = 1 << 2;
const FLAG_PAUSED: u32 = 1 << 3;
const SHUTDOWN_SHIFT: u32 = 16;
/// `SHUTDOWN_suspend`: it is being moved or saved, and may be resumed.
const REASON_SUSPEND: u32 = 2;

/// How much of the answer about a domain is used.
pub(crate) const DOMAIN_BYTES: usize = 72;
/// The same of a vCPU.
pub(crate) const VCPU_BYTES: usize = 16;

/// A domain at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DomainInfo {
    /// Its number: Xen before 4.18 answers with the next domain if there is none of the number.
    pub(crate) id: u16,
    /// It runs by the processor's virtualization.
    pub(crate) is_hvm: bool,
    /// It has ended, or is about to.
    pub(crate) has_ended: bool,
    /// Others have paused it, or it is suspended to be moved or saved.
    pub(crate) is_paused: bool,
    pub(crate) pages: u64,
    pub(crate) vcpus_online: u32,
    /// How many vCPUs it may have.
    pub(crate) vcpus: u32,
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

impl DomainInfo {
    pub(crate) fn parse(bytes: &[u8; DOMAIN_BYTES]) -> DomainInfo {
        let flags = half(bytes, 4);
        let is_shut_down = flags & FLAG_SHUTDOWN != 0;
        let is_suspended = is_shut_down && flags >> SHUTDOWN_SHIFT & 0xff == REASON_SUSPEND;
        DomainInfo {
            id: u16::from_le_bytes([bytes[0], bytes[1]]),
            is_hvm: flags & FLAG_HVM != 0,
            has_ended: flags & FLAG_DYING != 0 || (is_shut_down && !is_suspended),
            is_paused: flags & FLAG_PAUSED != 0 || is_suspended,
            pages: word(bytes, 8),
            vcpus_online: half(bytes, 64),
            // A domain without vCPUs has the largest number here.
            vcpus: half(bytes, 68).wrapping_add(1),
        }
    }
}

/// A vCPU at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VcpuInfo {
    /// It was started.
    pub(crate) is_online: bool,
    /// It waits for an event.
    pub(crate) is_blocked: bool,
    /// How long it has run; grows only while it does.
    pub(crate) cpu_ns: u64,
}

impl VcpuInfo {
    pub(crate) fn parse(bytes: &[u8; VCPU_BYTES]) -> VcpuInfo {
        VcpuInfo { is_online: bytes[4] != 0, is_blocked: bytes[5] != 0, cpu_ns: word(bytes, 8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_where_xen_puts_them() {
        let mut bytes = [0; DOMAIN_BYTES];
        for (at, value) in [(0, 3), (4, 0b1010), (8, 0), (9, 16), (64, 1), (68, 1)] {
            bytes[at] = value;
        }
        let info = DomainInfo::parse(&bytes);
        let expected = DomainInfo {
            id: 3,
            is_hvm: true,
            has_ended: false,
            is_paused: true,
            pages: 4096,
            vcpus_online: 1,
            vcpus: 2,
        };
        assert_eq!(info, expected);
        // It powered off; it is suspended; it dies; nothing has given it a vCPU yet.
        bytes[4] = 0b110;
        assert!(DomainInfo::parse(&bytes).has_ended);
        bytes[6] = 2;
        let info = DomainInfo::parse(&bytes);
        assert!(!info.has_ended && info.is_paused);
        bytes[4] = 0b11;
        assert!(DomainInfo::parse(&bytes).has_ended);
        bytes[68..72].fill(0xff);
        assert_eq!(DomainInfo::parse(&bytes).vcpus, 0);
        let info = VcpuInfo::parse(&[0, 0, 0, 0, 1, 1, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(info, VcpuInfo { is_online: true, is_blocked: true, cpu_ns: 9 });
    }

    #[test]
    fn a_refusal_names_both_ends() {
        let text = refusal(0x42);
        assert!(text.contains("0x42") && text.contains("0x10 (Xen 4.11) to 0x17") && text.contains("--force-xen"));
        assert!(KNOWN.iter().all(|layout| UNKNOWN.contains(&layout.version)));
    }
}
