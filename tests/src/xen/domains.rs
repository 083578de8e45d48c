//! Domains of our images and of Linux.

use super::{BOOT_PATIENCE, SHARED, World};
use crate::archive::Archive;
use crate::port::free_port;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// How many addresses domains have in turn, from 10.0.2.20 on. QEMU's user network keeps connections for a while: a new domain with an old one's
/// address would receive what the old one's clients have sent.
const ADDRESSES: u32 = 200;
/// The disk of an upload queue, in the shared folder.
const QUEUE_DISK: &str = "queue-disk";
/// Where dom0 has what the domain `service` prints.
const SERVICE_LOG: &str = "/var/log/xen/guest-service.log";
/// What `xl` reports of it.
const SERVICE_REPORTS: &str = "/var/log/xen/xl-service.log";
/// One script in dom0.
const SCRIPT: Duration = Duration::from_secs(480);
/// How long a domain may take to end, in seconds of dom0.
const END_SECONDS: u32 = 90;
/// What the first process of a Linux guest does.
const LINUX_INIT: &str = "#!/busybox sh\n/busybox mount -t proc proc /proc\necho UP\nwhile :; do while read -r line; do :; done </proc/self/maps; done\n";

/// How the first process of one with a device begins.
const LINUX_HEAD: &str = "#!/busybox sh
/busybox --install -s /bin
export PATH=/bin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
insmod /module.ko
";

/// A Linux domain: the kernel of dom0 once more, with other files.
#[derive(Debug)]
pub struct Linux<'a> {
    /// The name of the domain.
    pub name: &'a str,
    /// `pv` or `pvh`.
    pub kind: &'a str,
    /// Its memory.
    pub memory_mib: u32,
    /// Lines of its configuration.
    pub devices: &'a str,
    /// Its first file system, whose program `init` is its first process; `busybox` is added.
    pub files: Archive,
}

impl World {
    /// Starts an image of ours, which is in the shared folder, as the domain `service`, with these lines of its configuration and this kernel
    /// command line.
    pub fn start_service(&mut self, image: &str, memory_mib: u32, devices: &str, line: &str) -> Result<()> {
        let configuration = format!(
            "name = \"service\"\ntype = \"pvh\"\nkernel = \"{SHARED}/{image}\"\nmemory = {memory_mib}\nvcpus = 2\ntsc_mode = \"native\"\non_poweroff = \"destroy\"\non_crash = \"destroy\"\n{devices}extra = \"{line}\"\n"
        );
        self.machine.shared.write("service.cfg", configuration.as_bytes())?;
        self.expect(&format!("rm -f {SERVICE_LOG}; xl create -q {SHARED}/service.cfg"), SCRIPT).map(drop)
    }

    /// Starts the upload queue, whose image is in the shared folder, as the domain `service`. Its disk is a file of the host, which is created if
    /// it does not exist; `size` has the form of `truncate`. Returns its address on the host, where it listens soon.
    pub fn start_queue(&mut self, disk: &Path, size: &str, memory_mib: u32) -> Result<SocketAddr> {
        let is_new = !disk.exists();
        if is_new {
            std::fs::File::create(disk).with_context(|| format!("cannot create {}", disk.display()))?;
        }
        std::fs::hard_link(disk, self.machine.shared.file(QUEUE_DISK))?;
        let resize = if is_new { format!("truncate -s {size} {SHARED}/{QUEUE_DISK} &&") } else { String::new() };
        // A destroyed domain's last requests may still be running, and the device is busy until they end.
        let attach = format!(
            "looks=0; until losetup /dev/loop1 {SHARED}/{QUEUE_DISK}; do looks=$((looks+1)); [ $looks -lt 100 ] || exit 1; usleep 100000; done"
        );
        self.expect(&format!("{resize} {{ {attach}; }}"), SCRIPT)?;
        let devices = "disk = [\"phy:/dev/loop1,xvda,w\"]\nvif = [\"mac=00:16:3e:01:02:03\"]\n";
        let format = if is_new { " --format" } else { "" };
        let address = Ipv4Addr::new(10, 0, 2, 20 + (self.queues % ADDRESSES) as u8);
        self.queues += 1;
        let port = free_port()?;
        let forward = format!("hostfwd_add net tcp:127.0.0.1:{port}-{address}:8080");
        let monitor = self.monitor.as_mut().context("this machine was booted without a card")?;
        let refusal = monitor.execute("human-monitor-command", json!({ "command-line": forward }))?;
        ensure!(refusal == "", "QEMU refuses {forward}: {refusal}");
        self.start_service("upload-queue", memory_mib, devices, &format!("ip={address}/24 -- --port 8080{format}"))?;
        Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Ends the domain of [`World::start_queue`] at once, as a power cut would.
    pub fn destroy_queue(&mut self) -> Result<()> {
        let ends = format!("xl destroy service; losetup -d /dev/loop1; rm -f {SHARED}/{QUEUE_DISK}");
        self.expect(&ends, SCRIPT).map(drop)
    }

    /// Whether the domain `service` exists.
    pub fn has_service(&mut self) -> Result<bool> {
        Ok(self.run("xl domid service", SCRIPT)?.code == 0)
    }

    /// What the domain `service` has printed.
    pub fn log_of_service(&mut self) -> Result<String> {
        self.expect(&format!("cat {SERVICE_LOG}"), SCRIPT)
    }

    /// Waits until the domain `service` is gone. Returns what it has printed, and what `xl` reports of its end.
    pub fn end_of_service(&mut self) -> Result<(String, String)> {
        // Each look takes a busy dom0 half a second, so the wait is bounded by time.
        let gone = format!(
            "end=$(($(date +%s)+{END_SECONDS})); while xl domid service >/dev/null 2>&1; do [ $(date +%s) -lt $end ] || exit 1; usleep 100000; done"
        );
        let waited = self.run(&gone, SCRIPT)?;
        if waited.code != 0 {
            let script =
                format!("xl list; xl vcpu-list service; cat {SERVICE_LOG} {SERVICE_REPORTS}; dmesg | tail -n 8");
            anyhow::bail!("the service does not end: {}", self.run(&script, SCRIPT)?.output);
        }
        let log = self.log_of_service()?;
        Ok((log, self.expect(&format!("cat {SERVICE_REPORTS}"), SCRIPT)?))
    }

    /// Waits until the domain `service` has printed a text. Returns all that it has printed.
    pub fn wait_for_service(&mut self, text: &str) -> Result<String> {
        self.wait_for_line("service", text, SCRIPT)
    }

    /// Waits until a domain has printed a text, at most `limit`. Returns all that it has printed.
    fn wait_for_line(&mut self, name: &str, text: &str, limit: Duration) -> Result<String> {
        let (log, seconds) = (format!("/var/log/xen/guest-{name}.log"), limit.as_secs());
        let script = format!(
            "end=$(($(date +%s)+{seconds})); until grep -q '{text}' {log} || [ $(date +%s) -ge $end ]; do usleep 100000; done; cat {log}"
        );
        let printed = self.expect(&script, limit + BOOT_PATIENCE)?;
        ensure!(printed.contains(text), "the domain {name} has not printed {text:?}: {printed}");
        Ok(printed)
    }

    /// Files of a Linux domain whose first process loads `module`, `xen-blkfront` or `xen-netfront`, and then runs a script of the shell.
    pub fn linux_files(&self, module: &str, script: &str) -> Result<Archive> {
        let mut files = Archive::default();
        ["proc", "sys", "dev", "tmp", "bin"].into_iter().for_each(|folder| files.folder(folder));
        files.file("module.ko", false, &std::fs::read(self.image.modules.join(module))?);
        files.file("init", true, format!("{LINUX_HEAD}{script}").as_bytes());
        Ok(files)
    }

    /// Starts a Linux domain and waits until it has printed `text`, at most `limit`. Returns what it has printed.
    pub fn run_linux(&mut self, linux: Linux, text: &str, limit: Duration) -> Result<String> {
        let Linux { name, kind, memory_mib, devices, mut files } = linux;
        files.file("busybox", true, &std::fs::read(&self.image.busybox)?);
        self.machine.shared.write("linux-files", &files.finish())?;
        std::fs::copy(&self.image.kernel, self.machine.shared.file("linux-kernel"))?;
        let configuration = format!(
            "name = \"{name}\"\ntype = \"{kind}\"\nkernel = \"{SHARED}/linux-kernel\"\nramdisk = \"{SHARED}/linux-files\"\nmemory = {memory_mib}\ntsc_mode = \"native\"\n{devices}extra = \"console=hvc0 quiet mitigations=off\"\n"
        );
        self.machine.shared.write(&format!("{name}.cfg"), configuration.as_bytes())?;
        let create = format!("rm -f /var/log/xen/guest-{name}.log; xl create -q {SHARED}/{name}.cfg");
        self.expect(&create, BOOT_PATIENCE)?;
        self.wait_for_line(name, text, limit)
    }

    /// Starts the domain `linux-pv` or `linux-pvh`, which makes system calls all the time; it does so when this returns.
    pub fn start_linux(&mut self, kind: &str) -> Result<()> {
        let mut files = Archive::default();
        ["proc", "dev"].into_iter().for_each(|folder| files.folder(folder));
        files.file("init", true, LINUX_INIT.as_bytes());
        let name = format!("linux-{kind}");
        self.run_linux(Linux { name: &name, kind, memory_mib: 128, devices: "", files }, "UP", BOOT_PATIENCE).map(drop)
    }
}
