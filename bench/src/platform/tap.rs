//! A TAP device that is slow, in network namespaces of its own: a bridge joins it to a link whose rate is limited, behind which the client is.

use anyhow::{Context, Result, bail};
use std::process::Command;

/// The address of the VM, with its prefix, and the client's.
pub const VM: &str = "10.77.0.2/24";
const CLIENT: &str = "10.77.0.1/24";
/// The TAP device, and the network of `glass run` with it.
pub const TAP: &str = "tap0";
pub const NETWORK: &str = "tap=tap0";
/// What QEMU's option for it gets in addition: the card waits while so many bytes of it have not left the host.
pub const SEND_BUFFER: &str = ",sndbuf=65536";

/// Two namespaces, removed with their owner: the VM's with the TAP device, and the client's.
pub struct SlowTap {
    vm: String,
    client: String,
}

impl SlowTap {
    /// Sets them up with a link of this rate. Fails without the right to do so.
    pub fn new(rate: &str) -> Result<SlowTap> {
        let own = std::process::id();
        let tap = SlowTap { vm: format!("glass-vm-{own}"), client: format!("glass-client-{own}") };
        let SlowTap { vm, client } = &tap;
        for line in [
            format!("ip netns add {vm}"),
            format!("ip netns add {client}"),
            format!("ip -n {vm} tuntap add tap0 mode tap"),
            format!("ip -n {vm} link add link0 type veth peer name link1 netns {client}"),
            format!("ip -n {vm} link add bridge0 type bridge"),
            format!("ip -n {vm} link set tap0 master bridge0 up"),
            format!("ip -n {vm} link set link0 master bridge0 up"),
            format!("ip -n {vm} link set bridge0 up"),
            format!("ip -n {client} addr add {CLIENT} dev link1"),
            format!("ip -n {client} link set link1 up"),
            // Frames wait here, longer than the VM's card may have bytes on their way.
            format!("tc -n {vm} qdisc add dev link0 root tbf rate {rate} burst 128kb limit 64mb"),
        ] {
            run(&line)?;
        }
        Ok(tap)
    }

    /// A command that runs where the TAP device is.
    pub fn beside_vm(&self) -> Command {
        inside(&self.vm)
    }

    /// A command that runs where the client is.
    pub fn beside_client(&self) -> Command {
        inside(&self.client)
    }
}

impl Drop for SlowTap {
    fn drop(&mut self) {
        for name in [&self.vm, &self.client] {
            let _ = run(&format!("ip netns del {name}"));
        }
    }
}

/// `ip` becomes the program that follows, so that its pid is the program's.
fn inside(namespace: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]);
    command
}

fn run(line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let program = words.next().context("an empty command")?;
    let output = Command::new(program).args(words).output().with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        bail!("`{line}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
