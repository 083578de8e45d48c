//! What a process is: a VM of `glass run`, another QEMU, or just a process.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::GuestError;
use crate::{kvm, registry};

/// Where a gdbstub listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GdbAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String, u16),
}

/// A VMM: a QEMU process, or another under KVM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vm {
    /// Its process id.
    pub pid: u32,
    /// What the user calls it.
    pub name: String,
    /// The image with symbols, as far as known.
    pub elf: Option<PathBuf>,
    /// Where its gdbstub listens, if it has one.
    pub gdb: Option<GdbAddress>,
    /// "kvm", "tcg" or empty if unknown.
    pub accel: String,
}

/// What a process id stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A VM.
    Vm(Vm),
    /// A process of its own.
    Process,
}

/// Looks at a process.
pub fn by_pid(pid: u32) -> Result<Found, GuestError> {
    if fs::metadata(format!("/proc/{pid}")).is_err() {
        return Err(GuestError::NoProcess(pid));
    }
    // A registry that cannot be read only means that nothing is registered.
    if let Some(entry) = registry::list().unwrap_or_default().into_iter().find(|entry| entry.pid == pid) {
        return Ok(Found::Vm(from_entry(entry)));
    }
    let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let arguments: Vec<String> =
        command_line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let folder = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
    let mut vm = parse_qemu(pid, &arguments, &folder);
    if kvm::is_vmm(pid) {
        // Whatever the command line says or does not say; and a VMM that is not QEMU is one as well.
        let name = Path::new(&arguments[0]).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let vm = vm.get_or_insert(Vm { pid, name, elf: None, gdb: None, accel: String::new() });
        vm.accel = "kvm".to_owned();
    }
    Ok(vm.map_or(Found::Process, Found::Vm))
}

/// Finds a VM of `glass run` by its name.
pub fn by_name(name: &str) -> Result<Vm, GuestError> {
    let entries = registry::list().map_err(|error| GuestError::NotFound(format!("cannot list VMs: {error}")))?;
    let mut named: Vec<_> = entries.iter().filter(|entry| entry.name == name).cloned().collect();
    match (named.pop(), named.len()) {
        (Some(entry), 0) => Ok(from_entry(entry)),
        (Some(entry), _) => {
            let pids = named.iter().chain([&entry]).map(|entry| entry.pid.to_string()).collect::<Vec<_>>().join(", ");
            Err(GuestError::NotFound(format!("several VMs have the name {name}: choose with --pid ({pids})")))
        }
        (None, _) => {
            let running = entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
            let hint = if running.is_empty() {
                "none runs; start one with `glass run`".to_owned()
            } else {
                format!("running: {running}")
            };
            Err(GuestError::NotFound(format!("there is no VM with the name {name} ({hint})")))
        }
    }
}

fn from_entry(entry: registry::Entry) -> Vm {
    let gdb = Some(GdbAddress::Unix(entry.gdb));
    Vm { pid: entry.pid, name: entry.name, elf: Some(entry.elf), gdb, accel: entry.accel }
}

/// The value of `key` in QEMU's option syntax: `a,key=value,b`, with doubled commas inside of values.
fn suboption(options: &str, key: &str) -> Option<String> {
    const MARK: char = '\u{1}';
    let marked = options.replace(",,", &MARK.to_string());
    let value = marked.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))?;
    Some(value.replace(MARK, ","))
}

fn parse_qemu(pid: u32, arguments: &[String], folder: &Path) -> Option<Vm> {
    let program = Path::new(arguments.first()?).file_name()?.to_string_lossy().into_owned();
    if !program.starts_with("qemu") {
        return None;
    }
    // QEMU takes options with one dash or two.
    let value = |name: &str| {
        let index = arguments
            .iter()
            .position(|word| word.strip_prefix('-').is_some_and(|o| o.trim_start_matches('-') == name))?;
        arguments.get(index + 1).cloned()
    };
    let has = |name: &str| arguments.iter().any(|word| word == name);
    let machine = value("machine").or(value("M")).unwrap_or_default();
    let accel = if has("-enable-kvm") {
        "kvm".to_owned()
    } else {
        let chosen = value("accel").or(suboption(&machine, "accel")).unwrap_or_default();
        chosen.split([',', ':']).next().unwrap_or_default().to_owned()
    };
    let gdb = match value("gdb") {
        Some(text) => parse_gdb(&text, arguments, folder),
        None if has("-s") => Some(GdbAddress::Tcp("127.0.0.1".to_owned(), 1234)),
        None => None,
    };
    let name = value("name").map(|text| suboption(&text, "guest").unwrap_or(text));
    let name = name.and_then(|text| text.split(',').next().map(str::to_owned)).filter(|name| !name.is_empty());
    Some(Vm { pid, name: name.unwrap_or(program), elf: value("kernel").map(|path| folder.join(path)), gdb, accel })
}

fn parse_gdb(text: &str, arguments: &[String], folder: &Path) -> Option<GdbAddress> {
    if let Some(id) = text.strip_prefix("chardev:") {
        let options = arguments.iter().find(|word| suboption(word, "id").is_some_and(|found| found == id))?;
        if let Some(path) = suboption(options, "path") {
            return Some(GdbAddress::Unix(folder.join(path)));
        }
        let host = suboption(options, "host").filter(|host| !host.is_empty());
        return Some(GdbAddress::Tcp(
            host.unwrap_or("127.0.0.1".to_owned()),
            suboption(options, "port")?.parse().ok()?,
        ));
    }
    if let Some(rest) = text.strip_prefix("unix:") {
        return Some(GdbAddress::Unix(folder.join(rest.split(',').next()?)));
    }
    let rest = text.strip_prefix("tcp:")?.split(',').next()?;
    let (host, port) = rest.rsplit_once(':')?;
    let host = if host.is_empty() || host == "0.0.0.0" { "127.0.0.1" } else { host };
    Some(GdbAddress::Tcp(host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Vm> {
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        parse_qemu(5, &arguments, Path::new("/home/a"))
    }

    #[test]
    fn the_gdbstub_of_a_command_line() {
        let gdb = |line: &str| parse(line).unwrap().gdb;
        let unix = |path: &str| Some(GdbAddress::Unix(PathBuf::from(path)));
        let tcp = |port| Some(GdbAddress::Tcp("127.0.0.1".to_owned(), port));
        assert_eq!(gdb("qemu-system-x86_64 -m 64"), None);
        assert_eq!(gdb("/usr/bin/qemu-system-x86_64 -s"), tcp(1234));
        assert_eq!(gdb("qemu-system-x86_64 -gdb tcp::99"), tcp(99));
        assert_eq!(gdb("qemu-system-x86_64 --gdb tcp:127.0.0.1:98,nodelay"), tcp(98));
        assert_eq!(gdb("qemu-system-x86_64 -gdb unix:g.sock,server=on,wait=off"), unix("/home/a/g.sock"));
        let chardev = "qemu-system-x86_64 -chardev socket,path=/x,,y/gdb,server=on,id=gdb -gdb chardev:gdb";
        assert_eq!(gdb(chardev), unix("/x,y/gdb"));
        assert_eq!(gdb("qemu-system-x86_64 -gdb chardev:other"), None);
        assert_eq!(gdb("qemu-system-x86_64 -gdb"), None);
    }

    #[test]
    fn name_kernel_and_accelerator() {
        let vm = parse("qemu-system-x86_64 -M microvm,accel=kvm:tcg -name guest=web,debug-threads=on -kernel k.elf")
            .unwrap();
        assert_eq!((vm.name.as_str(), vm.accel.as_str()), ("web", "kvm"));
        assert_eq!(vm.elf, Some(PathBuf::from("/home/a/k.elf")));
        assert_eq!(parse("qemu-system-x86_64 -accel tcg,thread=multi").unwrap().accel, "tcg");
        assert_eq!(parse("nginx -s reload"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_process_that_is_gone() {
        assert!(matches!(by_pid(1 << 22 | 1), Err(GuestError::NoProcess(_))));
        assert_eq!(by_pid(std::process::id()).unwrap(), Found::Process);
    }
}
