//! The QEMU that runs a service: machine, bus, devices and the command line of the image.

use super::escape::escape;
use super::options::{Network, tcp_ports};
use super::qemu_options::{Accel, Bus, Machine};
use super::{Args, DISK_TIMEOUT_DEFAULT, LOG_DEFAULT, devices, disk, firmware, share, stopped, vsock};
use crate::build::Target;
use anyhow::{Result, bail};
use std::fs::OpenOptions;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

/// QEMU for a processor, and Debian's package with it.
pub(super) fn program(target: Target) -> (&'static str, &'static str) {
    match target {
        Target::X86_64 => ("qemu-system-x86_64", "qemu-system-x86"),
        Target::Aarch64 => ("qemu-system-aarch64", "qemu-system-arm"),
    }
}

/// How QEMU treats the disk. An error of the host, a full file system above all, reaches the guest: QEMU's default stops
/// the VM without a word.
const DRIVE: &str = "discard=unmap,werror=report,rerror=report";
/// The thread of QEMU that serves the disk. For this long, in nanoseconds, it looks for the next request or the end of one before it
/// sleeps, if it found some so before: as long as a fast disk takes.
const DISK_THREAD: &str = "iothread,id=disk-thread";
/// What the user network gives a guest, QEMU's and ours (`devices/src/card/user`), and where the gateway is.
const USER_NETWORK_IP: &str = "10.0.2.15/24,10.0.2.2";
/// Where that network passes queries on to the host's name server.
const USER_NETWORK_DNS: &str = "10.0.2.3";

/// KVM or TCG, and a word on why if that was ours to choose.
pub(super) fn choose_accel(accel: Accel, target: Target) -> Result<(&'static str, Option<String>)> {
    match (accel, target) {
        (_, Target::X86_64) => {}
        (Accel::Kvm, Target::Aarch64) => bail!("KVM runs code for this host's processor only: use --accel tcg"),
        (Accel::Auto | Accel::Tcg, Target::Aarch64) => return Ok(("tcg", None)),
    }
    let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    match (accel, kvm) {
        (Accel::Kvm | Accel::Auto, Ok(_)) => Ok(("kvm", None)),
        (Accel::Tcg, _) => Ok(("tcg", None)),
        (Accel::Kvm, Err(error)) => bail!("cannot use KVM: /dev/kvm: {error}; use --accel tcg, or join the group kvm"),
        (Accel::Auto, Err(error)) => Ok(("tcg", Some(format!("no KVM here (/dev/kvm: {error}): emulating with TCG")))),
    }
}

/// The bus of the devices on a machine.
pub(super) fn choose_bus(target: Target, machine: Machine, bus: Option<Bus>) -> Result<Bus> {
    match (machine, bus) {
        (Machine::Q35, _) if target == Target::Aarch64 => bail!("q35 is a PC: leave out --machine for AArch64"),

        (Machine::Q35, Some(Bus::Mmio)) => bail!("the machine q35 has no virtio-mmio: use --bus pci, or leave it out"),
        (Machine::Q35, _) => Ok(Bus::Pci),
        (Machine::Microvm, bus) => Ok(bus.unwrap_or(Bus::Pci)),
    }
}

/// The percent-encoding that the image's command line undoes (platform/vm/src/command_line.rs).
fn encode(arg: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'%' && byte != b'"' && byte != b',';
    arg.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") }).collect()
}

/// What `-M` gets. Each lacks what no image of ours uses; of the PC's timer all do without KVM.
fn machine(machine: Machine, bus: Bus, cores: u32) -> &'static str {
    match (machine, bus) {
        // Where the cores are is in ACPI's tables.
        (Machine::Microvm, Bus::Mmio) if cores > 1 => {
            "microvm,acpi=on,pic=off,rtc=on,pit=on,auto-kernel-cmdline=on,memory-backend=ram"
        }
        (Machine::Microvm, Bus::Mmio) => {
            "microvm,acpi=off,pic=off,rtc=on,pit=on,auto-kernel-cmdline=on,memory-backend=ram"
        }
        // Where the buses are is in ACPI's tables.
        (Machine::Microvm, Bus::Pci) => {
            "microvm,acpi=on,pcie=on,pic=off,rtc=on,pit=on,auto-kernel-cmdline=off,memory-backend=ram"
        }
        (Machine::Q35, _) => "q35,sata=off,smbus=off,vmport=off,hpet=off,memory-backend=ram",
    }
}

/// The option for a virtio device of kind `kind` on `bus`.
fn device(bus: Bus, kind: &str, options: &str) -> String {
    match bus {
        Bus::Mmio => format!("virtio-{kind}-device{options}"),
        // Virtio 1.0 and later only. A card's program for booting from the network is not wanted.
        Bus::Pci => {
            let rom = if kind == "net" { ",romfile=" } else { "" };
            format!("virtio-{kind}-pci,disable-legacy=on{rom}{options}")
        }
    }
}

/// Whether a thread of its own can serve a device: without KVM, QEMU 7.2 hands notifications over to another thread only on PCI.
fn can_serve_apart(bus: Bus, accel: &str) -> bool {
    bus == Bus::Pci || accel == "kvm"
}

/// The device of kind `kind` that a helper on the host serves.
fn vhost_user(bus: Bus, kind: &str) -> String {
    match (bus, kind) {
        (Bus::Mmio, "blk") => "vhost-user-blk".to_owned(),
        (Bus::Mmio, _) => format!("vhost-user-{kind}-device"),
        // Some exist as devices before virtio 1.0, too.
        (Bus::Pci, "blk") => "vhost-user-blk-pci,disable-legacy=on".to_owned(),
        (Bus::Pci, _) => format!("vhost-user-{kind}-pci"),
    }
}

/// QEMU with everything that the VM needs; `folder` is for its sockets.
pub(super) fn command(args: &Args, bus: Bus, image: &Path, accel: &str, folder: &Path) -> Command {
    let memory = args.memory;
    let mut qemu = super::ends_with_us(Path::new(program(args.target).0));
    let machine = match args.target {
        Target::X86_64 => machine(args.qemu.machine, bus, args.cores).to_owned(),
        Target::Aarch64 => format!("virt,gic-version={},memory-backend=ram", args.qemu.gic),
    };
    qemu.args(["-M", &machine, "-accel", accel]);
    if args.cores > 1 {
        qemu.args(["-smp", &args.cores.to_string()]);
    }
    qemu.args(["-cpu", if accel == "kvm" { "host,-arch-capabilities" } else { "max" }]);
    qemu.args(["-object", &format!("memory-backend-memfd,id=ram,size={memory},share=on")]);
    qemu.args(["-m", &format!("{}K", memory / 1024), "-nodefaults", "-no-user-config"]);
    qemu.args(["-display", "none", "-no-reboot"]);
    if args.target == Target::X86_64
        && args.qemu.machine == Machine::Microvm
        && !args.qemu.qemu_firmware
        && let Some(firmware) = firmware::of_image(image)
    {
        qemu.arg("-bios").arg(firmware);
    }
    // AArch64 images report their exit code on the console.
    if args.target == Target::X86_64 {
        qemu.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
    }
    if bus == Bus::Mmio {
        qemu.args(["-global", "virtio-mmio.force-legacy=false"]);
    }
    qemu.args(["-chardev", "stdio,id=console,mux=on,signal=on", "-serial", "chardev:console"]);
    qemu.args(["-device", &device(bus, "serial", ""), "-device", "virtconsole,chardev=console"]);
    let gdb = escape(&folder.join("gdb"));
    qemu.args(["-chardev", &format!("socket,path={gdb},server=on,wait=off,id=gdb"), "-gdb", "chardev:gdb"]);
    qemu.args(stopped::arguments(folder));
    if let Some(path) = &args.disk {
        disk_of(args, path, bus, accel, folder, &mut qemu);
    }
    if let Some(path) = &args.files_disk {
        qemu.args(["-drive", &format!("if=none,id=files,format=raw,file={},readonly=on", escape(path))]);
        qemu.args(["-device", &device(bus, "blk", ",drive=files")]);
    }
    network(args, bus, accel, folder, &mut qemu);
    if vsock::is_wanted(args) {
        qemu.args(vsock::arguments(folder, &vhost_user(bus, "vsock")));
    }
    if args.share.is_some() {
        qemu.args(share::arguments(folder, &vhost_user(bus, "fs")));
    }
    qemu.arg("-kernel").arg(image).args(["-append", &kernel_command_line(args)]);
    qemu
}

fn disk_of(args: &Args, path: &Path, bus: Bus, accel: &str, folder: &Path, qemu: &mut Command) {
    if let Some(disk) = devices::disk(args, accel) {
        qemu.args(disk.chardev(folder));
        // With several queues, which QEMU would have with several cores, a driver has to spread its requests over them.
        qemu.args(["-device", &format!("{},chardev=disk,num-queues=1", vhost_user(bus, "blk"))]);
        return;
    }
    let (file, aio) = (escape(path), disk::aio(program(args.target).0));
    let cache = if args.disk_direct { "none" } else { "writeback" };
    qemu.args(["-drive", &format!("if=none,id=disk,format=raw,file={file},cache={cache},{DRIVE},aio={aio}")]);
    let mut options = ",drive=disk".to_string();
    if can_serve_apart(bus, accel) {
        qemu.args(["-object", DISK_THREAD]);
        options += ",iothread=disk-thread";
    }
    qemu.args(["-device", &device(bus, "blk", &options)]);
}

fn network(args: &Args, bus: Bus, accel: &str, folder: &Path, qemu: &mut Command) {
    let backend = match &args.net {
        Network::None => return,
        Network::User => {
            let forwards = tcp_ports(&args.port).map(|(host, guest)| format!(",hostfwd=tcp:127.0.0.1:{host}-:{guest}"));
            format!("user,id=net,ipv4=on,ipv6=on{}", forwards.collect::<String>())
        }
        Network::Tap(name) => match devices::card(args, accel) {
            Some(card) => {
                qemu.args(card.chardev(folder));
                "vhost-user,id=net,chardev=card".to_owned()
            }
            None => format!("tap,id=net,ifname={name},script=no,downscript=no,vnet_hdr=on"),
        },
    };
    qemu.args(["-netdev", &backend, "-device", &device(bus, "net", ",netdev=net")]);
}

/// Words for the platform, and behind `--` the service's.
pub(super) fn kernel_command_line(args: &Args) -> String {
    let ip = match (&args.ip, &args.net) {
        (Some(ip), _) => format!("ip={ip} "),
        (None, Network::User) => format!("ip={USER_NETWORK_IP} "),
        (None, _) => String::new(),
    };
    let ip6 = args.ip6.as_ref().map_or(String::new(), |ip6| format!("ip6={ip6} "));
    let servers = args.dns.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
    let dns = match (servers.as_str(), &args.ip, &args.net) {
        ("", None, Network::User) => format!("dns={USER_NETWORK_DNS} "),
        ("", ..) => String::new(),
        (servers, ..) => format!("dns={servers} "),
    };
    let trace = args.trace.map_or(String::new(), |groups| format!("trace={} ", groups.names()));
    let log = if args.log == LOG_DEFAULT { String::new() } else { format!("log={} ", args.log) };
    let cpus = args.cpus.map_or(String::new(), |cpus| format!("cpus={cpus} "));
    let (disk, congestion) = (disk_words(args), congestion_words(args));
    format!("{trace}{log}{cpus}{disk}{ip}{ip6}{dns}{congestion}{}", service_words(args))
}

/// The words for the platform about TCP.
pub(super) fn congestion_words(args: &Args) -> String {
    args.congestion.as_ref().map_or(String::new(), |name| format!("congestion={name} "))
}

/// The words for the platform about disks.
pub(super) fn disk_words(args: &Args) -> String {
    match args.disk_timeout {
        DISK_TIMEOUT_DEFAULT => String::new(),
        seconds => format!("disk-timeout={seconds} "),
    }
}

/// The end of the image's command line: what the service gets.
pub(super) fn service_words(args: &Args) -> String {
    let words: Vec<String> = args.args.iter().map(|arg| encode(arg)).collect();
    format!("-- {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_survive_the_kernel_command_line() {
        assert_eq!(encode("a b%\"ü"), "a%20b%25%22%c3%bc");
    }

    #[test]
    fn a_machine_has_the_bus_that_it_can_have() {
        assert!(choose_bus(Target::X86_64, Machine::Q35, None).is_ok_and(|bus| bus == Bus::Pci));
        assert!(choose_bus(Target::X86_64, Machine::Microvm, None).is_ok_and(|bus| bus == Bus::Pci));
        assert!(choose_bus(Target::X86_64, Machine::Microvm, Some(Bus::Mmio)).is_ok_and(|bus| bus == Bus::Mmio));
        let refusal = choose_bus(Target::X86_64, Machine::Q35, Some(Bus::Mmio)).unwrap_err().to_string();
        assert!(refusal.contains("use --bus pci"), "{refusal}");
        assert!(choose_bus(Target::Aarch64, Machine::Q35, None).is_err());
        assert_eq!(device(Bus::Mmio, "blk", ",drive=d"), "virtio-blk-device,drive=d");
        assert_eq!(device(Bus::Pci, "blk", ",drive=d"), "virtio-blk-pci,disable-legacy=on,drive=d");
    }
}
