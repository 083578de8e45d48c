//! Reads the properties of a VM from QEMU's command line.

use std::path::Path;

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::names::safe_chars;

use super::Vm;
use crate::find::monitor::{Language, MonitorAddress};
use crate::stream::SocketAddress;

/// RAM of a VM without `-m`.
const RAM_BYTES_DEFAULT: u64 = 128 << 20;

/// The options of a command line.
struct Options<'a> {
    arguments: &'a [String],
    folder: &'a Path,
}

/// The value of `key` in QEMU's option syntax: `a,key=value,b`, with doubled commas inside of values.
fn suboption(options: &str, key: &str) -> Option<String> {
    const MARK: char = '\u{1}';
    let marked = options.replace(",,", &MARK.to_string());
    let value = marked.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))?;
    Some(value.replace(MARK, ","))
}

/// The text before the first comma, if it has no key.
fn first(options: &str) -> Option<&str> {
    options.split(',').next().filter(|word| !word.is_empty() && !word.contains('='))
}

/// A size in QEMU's syntax; `unit` applies to a number without one.
fn parse_size(text: &str, unit: u64) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => unit,
        "b" => 1,
        "k" | "kb" => 1 << 10,
        "m" | "mb" => 1 << 20,
        "g" | "gb" => 1 << 30,
        "t" | "tb" => 1 << 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

impl Options<'_> {
    /// The values of an option, which has one dash or two. The last one counts for most of them.
    fn values(&self, name: &'static str) -> impl DoubleEndedIterator<Item = &str> {
        self.arguments.windows(2).filter_map(move |pair| {
            let option = pair[0].strip_prefix('-')?;
            (option.strip_prefix('-').unwrap_or(option) == name).then_some(pair[1].as_str())
        })
    }

    fn value(&self, name: &'static str) -> Option<&str> {
        self.values(name).next_back()
    }

    fn has(&self, name: &str) -> bool {
        self.arguments
            .iter()
            .any(|word| word.strip_prefix('-').is_some_and(|word| word.trim_start_matches('-') == name))
    }

    fn accel(&self) -> String {
        let machines = self.values("machine").chain(self.values("M"));
        let of_machine = machines.filter_map(|machine| suboption(machine, "accel")).next_back();
        // Of several, QEMU tries the first one first.
        let named = self
            .values("accel")
            .next()
            .map(|text| suboption(text, "accel").or(first(text).map(str::to_owned)).unwrap_or_default());
        let chosen = match named.or(of_machine) {
            Some(chosen) => chosen,
            None if self.has("enable-kvm") || self.is_kvm_by_name() => "kvm".to_owned(),
            // QEMU's own default.
            None => "tcg".to_owned(),
        };
        chosen.split(':').next().unwrap_or_default().to_owned()
    }

    fn is_kvm_by_name(&self) -> bool {
        self.arguments.first().is_some_and(|program| program.ends_with("qemu-kvm"))
    }

    fn vcpus(&self) -> u32 {
        let Some(text) = self.value("smp") else { return 1 };
        let number = |key: &str| suboption(text, key).and_then(|value| value.parse::<u32>().ok());
        let total = first(text).and_then(|word| word.parse().ok()).or(number("cpus"));
        total.unwrap_or_else(|| {
            let levels = ["sockets", "dies", "clusters", "cores", "threads"];
            levels.iter().filter_map(|level| number(level)).fold(1, u32::saturating_mul)
        })
    }

    fn ram_bytes(&self) -> Option<u64> {
        let Some(text) = self.value("m") else { return Some(RAM_BYTES_DEFAULT) };
        parse_size(&suboption(text, "size").or(first(text).map(str::to_owned))?, 1 << 20)
    }

    fn name(&self) -> Option<String> {
        let text = self.value("name")?;
        let name = suboption(text, "guest").or(first(text).map(str::to_owned))?;
        Some(safe_chars(&name).collect()).filter(|name: &String| !name.is_empty())
    }

    /// The socket of a `-chardev socket,id=...`.
    fn chardev(&self, id: &str) -> Option<SocketAddress> {
        let options = self.values("chardev").find(|text| suboption(text, "id").as_deref() == Some(id))?;
        // Only sockets that QEMU listens on: one that it has connected to belongs to another process.
        let listens = match suboption(options, "server") {
            Some(value) => matches!(value.as_str(), "on" | "yes" | "true"),
            None => options.split(',').any(|word| word == "server"),
        };
        if first(options) != Some("socket") || !listens {
            return None;
        }
        match (suboption(options, "path"), suboption(options, "port")) {
            (Some(path), _) => Some(SocketAddress::Unix(self.folder.join(path))),
            (None, Some(port)) => tcp(&suboption(options, "host").unwrap_or_default(), &port),
            // A descriptor that QEMU was started with (libvirt): it has no address for us.
            (None, None) => None,
        }
    }

    /// A socket in the short form: `unix:path,server=on`, `tcp:host:port`, `chardev:id`.
    fn socket(&self, text: &str) -> Option<SocketAddress> {
        if let Some(id) = text.strip_prefix("chardev:") {
            return self.chardev(id);
        }
        const MARK: &str = "\u{1}";
        let marked = text.replace(",,", MARK);
        let address = marked.split(',').next()?.replace(MARK, ",");
        if let Some(path) = address.strip_prefix("unix:") {
            return Some(SocketAddress::Unix(self.folder.join(path)));
        }
        let (host, port) = address.strip_prefix("tcp:")?.rsplit_once(':')?;
        tcp(host, port)
    }

    fn gdb(&self) -> Option<SocketAddress> {
        match self.value("gdb") {
            Some(text) => self.socket(text),
            None if self.has("s") => tcp("", "1234"),
            None => None,
        }
    }

    /// The monitor that is most likely to have no client: users rarely keep one of HMP open.
    fn monitor(&self) -> Option<MonitorAddress> {
        let address = |language, socket| MonitorAddress { language, socket };
        let short = |name: &'static str, language| {
            self.values(name).filter_map(|text| self.socket(text)).map(move |socket| address(language, socket))
        };
        let long = self.values("mon").filter_map(|text| {
            let id = suboption(text, "chardev").or(first(text).map(str::to_owned))?;
            let is_qmp = suboption(text, "mode").as_deref() == Some("control");
            Some(address(if is_qmp { Language::Qmp } else { Language::Hmp }, self.chardev(&id)?))
        });
        let short = short("monitor", Language::Hmp).chain(short("qmp", Language::Qmp));
        let all: Vec<_> = short
            .chain(self.values("qmp-pretty").filter_map(|text| Some(address(Language::Qmp, self.socket(text)?))))
            .chain(long)
            .collect();
        all.iter().find(|monitor| monitor.language == Language::Hmp).or(all.first()).cloned()
    }
}

fn tcp(host: &str, port: &str) -> Option<SocketAddress> {
    // A socket on all addresses is reached by the loopback address.
    let host = if matches!(host, "" | "0.0.0.0" | "::" | "[::]") { "127.0.0.1" } else { host };
    Some(SocketAddress::Tcp(host.to_owned(), port.parse().ok()?))
}

/// Reads the command line of a process whose working directory is `folder`; `None` if it is not QEMU.
pub(super) fn parse(pid: u32, arguments: &[String], folder: &Path) -> Option<Vm> {
    let program = Path::new(arguments.first()?).file_name()?.to_string_lossy().into_owned();
    let is_system = program.starts_with("qemu-system-") || matches!(program.as_str(), "qemu-kvm" | "qemu");
    let options = Options { arguments, folder };
    if !is_system {
        return None;
    }
    // A build for one kind of machine has its name at the end: Debian's `qemu-system-x86_64-microvm`.
    let architecture = match program.strip_prefix("qemu-system-").and_then(|machine| machine.split('-').next()) {
        None | Some("x86_64" | "i386" | "x86") => Some(Architecture::X86_64),
        Some("aarch64") => Some(Architecture::Aarch64),
        Some(_) => None,
    };
    Some(Vm {
        pid,
        name: options.name().unwrap_or(program),
        vmm: "QEMU".to_owned(),
        elf: options.value("kernel").map(|path| folder.join(path)),
        gdb: options.gdb(),
        monitor: options.monitor(),
        accel: options.accel(),
        architecture,
        vcpus: Some(options.vcpus()),
        ram_bytes: options.ram_bytes(),
        links: Default::default(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn parse_line(line: &str) -> Option<Vm> {
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        parse(5, &arguments, Path::new("/home/a"))
    }

    fn vm(options: &str) -> Vm {
        parse_line(&format!("/usr/bin/qemu-system-x86_64 {options}")).unwrap()
    }

    fn unix(path: &str) -> SocketAddress {
        SocketAddress::Unix(PathBuf::from(path))
    }

    #[test]
    fn the_gdbstub_of_a_command_line() {
        let gdb = |options: &str| vm(options).gdb;
        let tcp = |port| Some(SocketAddress::Tcp("127.0.0.1".to_owned(), port));
        assert_eq!(gdb("-m 64"), None);
        assert_eq!(gdb("-s"), tcp(1234));
        assert_eq!(gdb("-gdb tcp::99"), tcp(99));
        assert_eq!(gdb("--gdb tcp:127.0.0.1:98,nodelay"), tcp(98));
        assert_eq!(gdb("-gdb unix:g.sock,server=on,wait=off"), Some(unix("/home/a/g.sock")));
        assert_eq!(gdb("-chardev socket,path=/x,,y/gdb,server=on,id=gdb -gdb chardev:gdb"), Some(unix("/x,y/gdb")));
        assert_eq!(gdb("-chardev socket,path=/x/gdb,id=gdb -gdb chardev:gdb"), None);
        assert_eq!(gdb("-gdb chardev:other"), None);
        assert_eq!(gdb("-gdb"), None);
    }

    #[test]
    fn the_monitor_of_a_command_line() {
        let monitor = |options: &str| vm(options).monitor.map(|monitor| (monitor.language, monitor.socket));
        assert_eq!(monitor("-monitor none"), None);
        assert_eq!(monitor("-monitor stdio -serial mon:stdio"), None);
        assert_eq!(monitor("-qmp unix:q,server=on,wait=off"), Some((Language::Qmp, unix("/home/a/q"))));
        let tcp = SocketAddress::Tcp("127.0.0.1".to_owned(), 44);
        assert_eq!(monitor("-monitor tcp:127.0.0.1:44,server,nowait"), Some((Language::Hmp, tcp)));
        // Both: that of HMP.
        assert_eq!(monitor("-qmp unix:/q,server -monitor unix:/m,server"), Some((Language::Hmp, unix("/m"))));
        let chardev = "-chardev socket,id=mon0,path=/m,server=on,wait=off -mon";
        assert_eq!(
            monitor(&format!("{chardev} chardev=mon0,id=monitor,mode=control")),
            Some((Language::Qmp, unix("/m")))
        );
        assert_eq!(monitor(&format!("{chardev} mon0")), Some((Language::Hmp, unix("/m"))));
        assert_eq!(monitor("-chardev socket,id=c,fd=24,server=on -mon chardev=c,mode=control"), None);
    }

    #[test]
    fn name_kernel_and_accelerator() {
        let web = vm("-M microvm,accel=kvm:tcg -name guest=web,debug-threads=on -kernel k.elf");
        assert_eq!((web.name.as_str(), web.accel.as_str()), ("web", "kvm"));
        assert_eq!(web.elf, Some(PathBuf::from("/home/a/k.elf")));
        assert_eq!(vm("-accel tcg,thread=multi").accel, "tcg");
        assert_eq!(vm("-machine q35,usb=off,accel=kvm,dump-guest-core=off").accel, "kvm");
        assert_eq!(vm("-machine accel=xen").accel, "xen");
        assert_eq!(vm("-enable-kvm").accel, "kvm");
        assert_eq!(vm("-m 64").accel, "tcg");
        let architecture = |program: &str| parse_line(&format!("{program} -m 64")).unwrap().architecture;
        let is_x86 = |program: &str| architecture(program) == Some(Architecture::X86_64);
        assert!(["x86_64", "i386", "x86"].iter().all(|name| is_x86(&format!("/usr/bin/qemu-system-{name}"))));
        assert!(is_x86("qemu-kvm") && is_x86("qemu"));
        // Debian's own build for the microvm was refused (2026-11-25).
        assert!(is_x86("qemu-system-x86_64-microvm"));
        assert_eq!(architecture("/opt/qemu-system-aarch64"), Some(Architecture::Aarch64));
        for other in ["arm", "aarch64be", "x86_64be", "microvm-x86_64", ""] {
            assert_eq!(architecture(&format!("qemu-system-{other}")), None, "{other}");
        }
        assert_eq!(vm("-name web").name, "web");
        assert_eq!(vm("-name debug-threads=on").name, "qemu-system-x86_64");
        for other in ["nginx -s reload", "", "qemu-img convert a b", "qemu-nbd -c /dev/nbd0 a"] {
            assert_eq!(parse_line(other), None);
        }
    }

    #[test]
    fn vcpus_and_ram() {
        let vcpus = |options: &str| vm(options).vcpus;
        assert_eq!(vcpus("-m 64"), Some(1));
        assert_eq!(vcpus("-smp 4,sockets=4,cores=1,threads=1"), Some(4));
        assert_eq!(vcpus("-smp cpus=2"), Some(2));
        assert_eq!(vcpus("-smp sockets=2,cores=3,threads=2"), Some(12));
        let ram = |options: &str| vm(options).ram_bytes;
        assert_eq!(ram("-smp 2"), Some(128 << 20));
        assert_eq!(ram("-m 64"), Some(64 << 20));
        assert_eq!(ram("-m 2G"), Some(2 << 30));
        assert_eq!(ram("-m size=1048576k"), Some(1 << 30));
        assert_eq!(ram("-m 512,slots=2,maxmem=8G"), Some(512 << 20));
        assert_eq!(ram("-m nonsense"), None);
        assert_eq!(ram("-m 99999999999999999999G"), None);
    }
}
