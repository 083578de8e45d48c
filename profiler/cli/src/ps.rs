//! `glass ps`: the VMs of this machine, in a dom0 the domains of Xen, and how each would be sampled; or the processes of one Linux guest.

mod domains;
mod tasks;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use glass_profiler_core::arch::Architecture;
use glass_profiler_core::names::safe_chars;
use glass_profiler_guests::backends::Backend;
use glass_profiler_guests::backends::choose::{self, BackendChoice, Plan};
use glass_profiler_guests::find::registry::{Links, Share, Vsock};
use glass_profiler_guests::find::{self, Vm};
use glass_profiler_guests::proc;
use serde_json::json;

use crate::console;
use crate::linux::LinuxArgs;

/// Columns of the screen that the table fits.
const WIDTH: usize = 100;
const NAME_WIDTH_MAX: usize = 22;
const VMM_WIDTH_MAX: usize = 20;
/// Indentation of the remarks under a row.
const REMARK_INDENT: usize = 9;

/// Lists the VMs of this machine; with --pid, the processes of a Linux VM.
///
/// In dom0 it lists the domains of Xen, too. BACKEND is how `glass record` would stop and read the VM.
///
/// The guest is not stopped: its list of processes is read from its RAM. START is when the process started, counted from the guest's
/// boot, NSPID the process ID in the process's own namespace.
#[derive(clap::Args)]
#[command(
    override_usage = "glass ps [--json]\n       glass ps [--threads] [--json] <--pid PID | --name NAME | --post-mortem FILE>"
)]
pub struct Args {
    #[command(flatten)]
    guest: LinuxArgs,
    /// List the threads of the processes, too.
    #[arg(long, requires = "guest")]
    threads: bool,
    /// Print JSON, for scripts.
    #[arg(long)]
    json: bool,
}

/// A row of the table.
struct Row {
    pid: u32,
    name: String,
    vmm: String,
    version: Option<String>,
    accel: String,
    vcpus: Option<u32>,
    ram_bytes: Option<u64>,
    symbols: Option<PathBuf>,
    backend: Option<Backend>,
    links: Links,
    /// The processor of its guest, if glass supports that.
    architecture: Option<Architecture>,
    /// Why there is no better backend, and what would help.
    remarks: Vec<String>,
}

fn row(vm: Vm, version: Option<String>) -> Row {
    let Plan { backends, obstacles, drawback } = choose::plan(&vm, BackendChoice::Any);
    // What else its backends lack is of no use to a user who may reach none.
    let remarks = match foreign_owner(vm.pid).filter(|_| backends.is_empty()) {
        Some(owner) => vec![format!("it belongs to {owner}: run glass as that user, or as root")],
        None => obstacles.iter().map(|(_, error)| error.to_string()).chain(drawback).collect(),
    };
    Row {
        remarks,
        backend: backends.first().copied(),
        pid: vm.pid,
        name: vm.name,
        vmm: vm.vmm,
        version,
        accel: vm.accel,
        vcpus: vm.vcpus,
        ram_bytes: vm.ram_bytes,
        symbols: vm.elf,
        links: vm.links,
        architecture: vm.architecture,
    }
}

/// The user of a process that we may not read: another one's, and we are not root.
fn foreign_owner(pid: u32) -> Option<String> {
    let owner = proc::owner(pid).filter(|owner| !proc::is_us(*owner))?;
    (!proc::is_us(0)).then(|| if owner == 0 { "root".to_owned() } else { format!("user {owner}") })
}

/// What is special about a VM's processor and what joins the VM with its host, a sentence each.
fn sentences(row: &Row) -> Vec<String> {
    let Row { links, architecture, .. } = row;
    let processor = match architecture {
        Some(Architecture::X86_64) | None => None,
        Some(Architecture::Aarch64) => Some("processor: AArch64".to_owned()),
    };
    let vsock = links.vsock.as_ref().map(|Vsock { cid, socket, ports }| {
        let ports = ports.iter().map(|(host, guest)| format!(", 127.0.0.1:{host} leads to its port {guest}"));
        format!("vsock: CID {cid}, by the unix socket {}{}", shown(socket), ports.collect::<String>())
    });
    let share = links.share.as_ref().map(|Share { path, is_read_only }| {
        format!("files: {}{}", shown(path), if *is_read_only { " (read only)" } else { "" })
    });
    processor.into_iter().chain(vsock).chain(share).collect()
}

/// A path without characters that could change the terminal.
fn shown(path: &Path) -> String {
    safe_chars(&path.to_string_lossy()).collect()
}

/// Lists the current VMs.
pub fn run(arguments: Args) -> Result<()> {
    if arguments.guest.is_some() {
        return tasks::run(&arguments.guest, arguments.threads, arguments.json);
    }
    let listing = find::list()?;
    // A program is read once, however many VMs it runs.
    let mut versions: HashMap<PathBuf, Option<String>> = HashMap::new();
    let rows: Vec<Row> = listing
        .vms
        .into_iter()
        .map(|vm| {
            let program = std::fs::read_link(format!("/proc/{}/exe", vm.pid)).unwrap_or_default();
            let version = versions.entry(program).or_insert_with(|| find::version(vm.pid)).clone();
            row(vm, version)
        })
        .collect();
    let domains = domains::find();
    if arguments.json {
        return console::print(&json(&rows, listing.hidden, &domains)?);
    }
    let text = match &domains {
        Some(Ok(found)) if rows.is_empty() && !found.is_empty() => domains::table(found),
        Some(Ok(found)) if !found.is_empty() => table(&rows, listing.hidden) + "\n" + &domains::table(found),
        Some(Err(error)) => table(&rows, listing.hidden) + &domains::remark(error),
        _ => table(&rows, listing.hidden),
    };
    console::print(&text)
}

fn json(rows: &[Row], hidden: usize, domains: &domains::Domains) -> Result<String> {
    let vms: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({
                "pid": row.pid,
                "name": row.name,
                "vmm": row.vmm,
                "version": row.version,
                "architecture": row.architecture.map(Architecture::name),
                "accel": Some(&row.accel).filter(|accel| !accel.is_empty()),
                "vcpus": row.vcpus,
                "ram_bytes": row.ram_bytes,
                "symbols": row.symbols,
                "vsock": row.links.vsock,
                "share": row.links.share,
                "backend": row.backend.map(|backend| backend.to_string()),
                "remarks": row.remarks,
            })
        })
        .collect();
    let all = json!({ "vms": vms, "processes_not_seen": hidden, "domains": domains::to_json(domains) });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

fn ram(bytes: Option<u64>) -> String {
    match bytes {
        None => "-".to_owned(),
        Some(bytes) if bytes >= 1 << 30 && bytes % (1 << 30) == 0 => format!("{} GiB", bytes >> 30),
        Some(bytes) if bytes >= 10 << 30 => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
        Some(bytes) => format!("{} MiB", bytes >> 20),
    }
}

/// At most `width` characters.
fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

/// Writes a sentence in lines, each indented.
fn write_indented(text: &str, out: &mut String) {
    for line in console::wrap(text, WIDTH - REMARK_INDENT) {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{:REMARK_INDENT$}{line}", "");
    }
}

fn table(rows: &[Row], hidden: usize) -> String {
    const TITLES: [&str; 7] = ["PID", "NAME", "VMM", "ACCEL", "VCPUS", "RAM", "BACKEND"];
    const IS_NUMBER: [bool; 7] = [true, false, false, false, true, true, false];
    let mut out = String::new();
    if rows.is_empty() {
        out.push_str("no VM found\n");
    } else {
        let cells: Vec<[String; 7]> = rows.iter().map(cells).collect();
        let width = |column: usize| {
            let widths = cells.iter().map(|row| row[column].chars().count());
            widths.max().unwrap_or(0).max(TITLES[column].len())
        };
        let widths: [usize; 7] =
            std::array::from_fn(|column| if column == 0 { width(0).max(7) } else { width(column) });
        let line = |cells: [&str; 7], out: &mut String| {
            let mut text = String::new();
            for (column, cell) in cells.iter().enumerate() {
                let width = widths[column];
                // Writing to a string does not fail.
                let _ =
                    if IS_NUMBER[column] { write!(text, "{cell:>width$}  ") } else { write!(text, "{cell:<width$}  ") };
            }
            out.push_str(text.trim_end());
            out.push('\n');
        };
        line(TITLES, &mut out);
        for (row, cells) in rows.iter().zip(&cells) {
            line(std::array::from_fn(|column| cells[column].as_str()), &mut out);
            sentences(row).iter().chain(&row.remarks).for_each(|sentence| write_indented(sentence, &mut out));
        }
    }
    if hidden > 0 {
        let processes = if hidden == 1 { "1 process".to_owned() } else { format!("{hidden} processes") };
        let _ = writeln!(out, "{processes} cannot be inspected, so VMs may be missing (CAP_SYS_PTRACE permits most)");
    }
    out
}

fn cells(row: &Row) -> [String; 7] {
    let vmm = row.version.as_ref().map_or(row.vmm.clone(), |version| format!("{} {version}", row.vmm));
    [
        row.pid.to_string(),
        fit(&row.name, NAME_WIDTH_MAX),
        fit(&vmm, VMM_WIDTH_MAX),
        if row.accel.is_empty() { "-".to_owned() } else { fit(&row.accel, 6) },
        row.vcpus.map_or("-".to_owned(), |count| count.to_string()),
        ram(row.ram_bytes),
        row.backend.map_or("none".to_owned(), |backend| backend.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pid: u32, name: &str, backend: Option<Backend>, remark: &str) -> Row {
        let remarks = if remark.is_empty() { Vec::new() } else { vec![remark.to_owned()] };
        let (vmm, version, accel) = ("QEMU".to_owned(), Some("7.2.22".to_owned()), "kvm".to_owned());
        let (vcpus, ram_bytes) = (Some(2), Some(64 << 20));
        let links = Links::default();
        Row {
            pid,
            name: name.to_owned(),
            vmm,
            version,
            accel,
            vcpus,
            ram_bytes,
            symbols: None,
            backend,
            links,
            architecture: Some(Architecture::X86_64),
            remarks,
        }
    }

    #[test]
    fn columns_are_aligned_and_fit() {
        let long = "a-name-that-nobody-would-give-to-a-vm-but-somebody-did";
        let rows = [
            row(7, "web", Some(Backend::Kvm), ""),
            row(4_194_303, long, Some(Backend::Monitor), &"needs something that takes many words ".repeat(8)),
            Row { ram_bytes: Some(2 << 40), vcpus: None, vmm: "x".repeat(50), ..row(8, "ü", None, "") },
        ];
        let text = table(&rows, 3);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{text}");
        let at = |line: &str, word: &str| line.split_once(word).map(|(before, _)| before.chars().count());
        let backend = at(lines[0], "BACKEND");
        assert!(backend.is_some());
        assert_eq!(at(lines[1], "kvm\u{0}").or(lines[1].rfind("kvm")), backend, "{text}");
        assert_eq!(at(lines[2], "gdbstub via monitor"), backend, "{text}");
        assert_eq!(lines[1], "      7  web                     QEMU 7.2.22           kvm        2    64 MiB  kvm");
        assert!(lines[3].starts_with("         needs"), "{text}");
        assert_eq!(
            lines.last(),
            Some(&"3 processes cannot be inspected, so VMs may be missing (CAP_SYS_PTRACE permits most)")
        );
    }

    #[test]
    fn sockets_and_files_are_under_their_vm() {
        let vsock = Vsock { cid: 3, socket: "/run/v\x1bsock".into(), ports: vec![(8080, 80)] };
        let share = Share { path: "/srv/site".into(), is_read_only: true };
        let links = Links { vsock: Some(vsock), share: Some(share), snapshots: None, disk: None };
        let architecture = Some(Architecture::Aarch64);
        let rows = [Row { links, architecture, ..row(7, "web", Some(Backend::Kvm), "") }];
        let text = table(&rows, 0);
        let under: Vec<&str> = text.lines().skip(2).map(str::trim).collect();
        let socket = "vsock: CID 3, by the unix socket /run/vsock, 127.0.0.1:8080 leads to its port 80";
        assert_eq!(under, ["processor: AArch64", socket, "files: /srv/site (read only)"]);
        let value: serde_json::Value = serde_json::from_str(&json(&rows, 0, &None).unwrap()).unwrap();
        let vm = &value["vms"][0];
        assert_eq!(vm["architecture"], "aarch64");
        assert_eq!((&vm["vsock"]["cid"], &vm["vsock"]["ports"][0][1]), (&json!(3), &json!(80)));
        assert_eq!((&vm["share"]["path"], &vm["share"]["is_read_only"]), (&json!("/srv/site"), &json!(true)));
    }

    #[test]
    fn nothing_to_show() {
        assert_eq!(table(&[], 0), "no VM found\n");
    }

    #[test]
    fn sizes_of_ram() {
        let shown = [None, Some(64 << 20), Some(2 << 30), Some(1500 << 20), Some((20 << 30) + (512 << 20))].map(ram);
        assert_eq!(shown, ["-", "64 MiB", "2 GiB", "1500 MiB", "20.5 GiB"]);
    }

    #[test]
    fn json_says_what_is_unknown() {
        let row =
            Row { version: None, vcpus: None, ram_bytes: None, accel: String::new(), ..row(7, "web", None, "no") };
        let value: serde_json::Value = serde_json::from_str(&json(&[row], 0, &None).unwrap()).unwrap();
        let vm = &value["vms"][0];
        assert_eq!((&vm["pid"], &vm["name"], &vm["remarks"][0]), (&json!(7), &json!("web"), &json!("no")));
        assert!(["version", "vcpus", "ram_bytes", "accel", "backend"].iter().all(|key| vm[key].is_null()), "{value}");
    }
}
