//! A TAP device: frames with the header of virtio-net in front (Linux, Documentation/networking/tuntap.rst; `linux/if_tun.h`).

use super::Link;
use crate::device::Host;
use crate::jail;
use anyhow::{Context, Result, bail};
use glass_lib_jail::SystemCalls;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;

/// Offloads of the guest (virtio 1.2, section 5.1.3), and what `TUNSETOFFLOAD` calls them.
const OFFLOADS: [(u64, libc::c_uint); 4] = [
    (super::GUEST_CSUM, libc::TUN_F_CSUM),
    (super::GUEST_TSO4, libc::TUN_F_TSO4),
    (super::GUEST_TSO6, libc::TUN_F_TSO6),
    (super::GUEST_ECN, libc::TUN_F_TSO_ECN),
];

/// An open TAP device. All calls return at once.
pub struct Tap {
    file: File,
    /// What stands in for a device has none.
    has_offloads: bool,
}

impl Tap {
    /// Attaches to the existing device `name`.
    pub fn open(name: &str) -> Result<Tap> {
        // Linux makes a device that does not exist, which would have no address.
        check(name)?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun");
        let file = file.context("cannot open /dev/net/tun")?;
        // SAFETY: zeroes are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.is_empty() || name.len() >= request.ifr_name.len() {
            bail!("a network device has a name of 1 to {} bytes, not {name:?}", request.ifr_name.len() - 1);
        }
        for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *place = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: the kernel reads and writes one `ifreq`, which lives until the call returns.
        let attached = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) };
        if attached < 0 {
            let error = io::Error::last_os_error();
            let advice = match error.raw_os_error() {
                Some(libc::EBUSY) => ": another program has it",
                Some(libc::EPERM) => ": make it with `ip tuntap add mode tap user NAME`, or run as root",
                _ => "",
            };
            bail!("cannot open the TAP device {name} ({error}){advice}");
        }
        Ok(Tap { file, has_offloads: true })
    }

    /// Anything whose reads and writes are frames, without blocking.
    #[cfg(any(test, feature = "script"))]
    pub fn from_file(file: File) -> Tap {
        Tap { file, has_offloads: false }
    }

    /// Sets the length of the headers, and which frames the guest can take.
    fn agree(&self, header_bytes: usize, features: u64) -> io::Result<()> {
        if !self.has_offloads {
            return Ok(());
        }
        let bytes = header_bytes as libc::c_int;
        // SAFETY: the kernel reads one `int`, which lives until the call returns.
        let is_set = unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &bytes) };
        if is_set < 0 {
            return Err(io::Error::last_os_error());
        }
        let offloads = OFFLOADS.into_iter().filter(|(feature, _)| features & feature != 0);
        let offloads = offloads.fold(0, |all, (_, offload)| all | offload);
        // SAFETY: the argument is a number.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETOFFLOAD as _, libc::c_ulong::from(offloads)) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Link for Tap {
    /// What a driver agrees to reaches the TAP device.
    fn allow(system_calls: SystemCalls) -> SystemCalls {
        jail::allow_control(system_calls, &[libc::TUNSETVNETHDRSZ, libc::TUNSETOFFLOAD])
    }

    fn features(&self) -> u64 {
        super::CHECKSUMS_AND_SEGMENTS | super::GUEST_ECN | super::HOST_ECN
    }

    fn mtu(&self) -> Option<u16> {
        None
    }

    fn agree(&mut self, header_bytes: usize, features: u64) -> Result<()> {
        Tap::agree(self, header_bytes, features).context("the TAP device does not have the guest's offloads")
    }

    unsafe fn read(&mut self, pieces: &[libc::iovec]) -> io::Result<usize> {
        // SAFETY: the caller's promise; the kernel checks the count.
        length(unsafe { libc::readv(self.file.as_raw_fd(), pieces.as_ptr(), pieces.len() as libc::c_int) })
    }

    unsafe fn write(&mut self, pieces: &[libc::iovec]) -> io::Result<usize> {
        // SAFETY: the caller's promise; the kernel checks the count.
        length(unsafe { libc::writev(self.file.as_raw_fd(), pieces.as_ptr(), pieces.len() as libc::c_int) })
    }

    fn takes_joined_datagrams(&self) -> bool {
        true
    }

    fn host(&self) -> Host<'_> {
        Host { file: self.file.as_fd(), error: "the TAP device has been removed" }
    }
}

/// Refuses a TAP device that does not exist.
pub fn check(name: &str) -> Result<()> {
    // Not /sys/class/net, which has the devices of the network namespace that mounted it.
    let devices = fs::read_to_string("/proc/self/net/dev").context("cannot read /proc/self/net/dev")?;
    if !is_listed(&devices, name) {
        bail!("there is no network device {name}: make it with `ip tuntap add mode tap {name}`");
    }
    Ok(())
}

/// Whether a device is in the kernel's table of them: two lines of headings, then a name and a colon in each line.
fn is_listed(devices: &str, name: &str) -> bool {
    devices.lines().skip(2).filter_map(|line| line.split_once(':')).any(|(listed, _)| listed.trim() == name)
}

fn length(returned: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_by_its_whole_name_in_the_network_namespace_of_this_process() {
        let devices = "Inter-|   Receive  |  Transmit\n face |bytes    packets|bytes\n    lo:  1 2\n  tap10: 3 4\n";
        let found = ["lo", "tap10", "tap1", "10", "face |bytes", ""].map(|name| is_listed(devices, name));
        assert_eq!(found, [true, true, false, false, false, false]);
        assert!(check("lo").is_ok() && check("no such device").is_err());
    }
}
