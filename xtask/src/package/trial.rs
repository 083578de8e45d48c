//! The path of a new user in a clean Debian, by the README alone: installs the package, profiles a program, a VM and a service of one's own, and removes
//! the package again. Each step prints its time.

use super::of_commit;
use super::root::{Root, VISITOR};
use crate::run;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What all steps may take together; issue 39.
const LIMIT: Duration = Duration::from_secs(300);
/// What one step may take before it is ended, in seconds.
const STEP_SECONDS: u32 = 600;
/// A program whose time is in one function.
const PROGRAM: &str = r"
#include <stdlib.h>
#include <time.h>
volatile unsigned sum;
__attribute__((noinline)) void add_squares(void) { for (unsigned i = 0; i < 1000000; i++) sum += i * i; }
int main(int count, char **arguments) {
    time_t end = time(0) + (count > 1 ? atoi(arguments[1]) : 2);
    while (time(0) < end) add_squares();
}
";
/// Files that are not a package's: lists and logs of apt, and what is of one moment.
const FILES: &str = "find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /home -o -path /var/lib/dpkg \
    -o -path /var/lib/apt -o -path /var/cache -o -path /var/log -o -name 'group-' -o -name 'gshadow-' \\) -prune -o -print | sort";

/// The steps, with their times.
struct Trial<'a> {
    root: &'a Root,
    total: Duration,
}

impl Trial<'_> {
    /// Runs one and returns what it prints.
    fn step(&mut self, title: &str, user: &str, script: &str) -> Result<String> {
        let start = Instant::now();
        let printed = self.root.run(user, script, STEP_SECONDS).with_context(|| title.to_owned())?;
        let time = start.elapsed();
        self.total += time;
        eprintln!("    {title}: {:.1} s", time.as_secs_f64());
        Ok(printed)
    }
}

/// Runs it; returns what all steps took. `is_short`: without the VM and the service.
pub fn run(root: &Root, deb: &Path, glass: &Path, is_short: bool) -> Result<String> {
    let home = root.path("home").join(VISITOR);
    let name = deb.file_name().and_then(|name| name.to_str()).context("the package has a name")?;
    fs::copy(deb, root.path("tmp").join(name)).context("cannot copy the package")?;
    compile(&home.join("program"))?;
    let before = root.run("root", FILES, 60)?;
    let mut trial = Trial { root, total: Duration::ZERO };
    trial.step(&format!("apt install ./{name}"), "root", &format!("apt-get install --yes -qq /tmp/{name}"))?;
    installed(root)?;
    rights(root)?;
    let printed = trial.step("glass record --open -- ./program", VISITOR, "glass record --open -- ./program")?;
    ensure!(printed.contains("file:///home/visitor/"), "no page is made: {printed}");
    let report = root.run(VISITOR, "glass report --text glass.pftrace", 60)?;
    ensure!(report.contains("add_squares"), "the report does not have the program's function: {report}");
    if !is_short {
        vm(&mut trial, root, glass)?;
        service(&mut trial)?;
        agent(root)?;
    }
    removed(root, &before, is_short)?;
    let seconds = trial.total.as_secs_f64();
    ensure!(trial.total < LIMIT, "the path of a new user took {seconds:.0} s, more than {} s", LIMIT.as_secs());
    Ok(format!("{seconds:.1} s in all"))
}

/// Compiles a program without libraries.
fn compile(program: &Path) -> Result<()> {
    let source = program.with_extension("c");
    fs::write(&source, PROGRAM)?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-g", "-static", "-fno-omit-frame-pointer", "-o"]).arg(program).arg(&source);
    run::quiet(&mut gcc).map(drop)
}

/// What a user finds besides the program.
fn installed(root: &Root) -> Result<()> {
    let version = root.run(VISITOR, "glass --version", 20)?;
    let expected = format!("glass {} ({})\n", env!("CARGO_PKG_VERSION"), of_commit("%h %cs")?);
    ensure!(version == expected, "glass --version prints {version}, not {expected}");
    for file in [
        "usr/share/man/man1/glass-record.1.gz",
        "usr/share/bash-completion/completions/glass",
        "usr/share/doc/glass/third-party-licences.gz",
    ] {
        // A minimal Debian may leave documents out, by a rule of dpkg.
        ensure!(root.path(file).is_file() || root.path("etc/dpkg/dpkg.cfg.d/excludes").exists(), "{file} is missing");
    }
    root.run(
        VISITOR,
        "glass new shop; grep -q 'path = ./usr/share/glasshouse/glasshouse' shop/Cargo.toml; rm -r shop",
        20,
    )?;
    let changed = root.run("root", "dpkg --verify glass", 20)?;
    ensure!(changed.is_empty(), "dpkg --verify: {changed}");
    Ok(())
}

/// Only a member of the group has the rights, and no program that glass starts has them.
fn rights(root: &Root) -> Result<()> {
    let record = "/home/visitor/program 60 & su visitor -c \"cd; glass record --pid $! --duration 0.5 --output of-root.pftrace\"";
    let (is_permitted, printed) = root.attempt("root", record, 60)?;
    ensure!(!is_permitted && printed.contains("perm"), "a user without rights records a process of root: {printed}");
    let (is_permitted, printed) = root.attempt(VISITOR, "/usr/lib/glasshouse/glass --version", 20)?;
    ensure!(!is_permitted, "each user can run the copy with rights: {printed}");
    root.run("root", "adduser --quiet visitor glass", 20)?;
    root.run("root", record, 60).context("a member of the group cannot record a process of root")?;
    let child = "glass record --output of-child.pftrace -- grep CapEff /proc/self/status";
    let printed = root.run(VISITOR, child, 60)?;
    ensure!(printed.contains("CapEff:\t0000000000000000"), "a program that glass has started has rights: {printed}");
    Ok(())
}

/// A VM of an image of this repository.
fn vm(trial: &mut Trial, root: &Root, glass: &Path) -> Result<()> {
    let built = run::quiet(Command::new(glass).args(["build", "hello"]).current_dir(run::root()))?;
    let image = built.split_once("built: ").and_then(|(_, rest)| rest.split_once(" (")).map(|(path, _)| path);
    let image = image.with_context(|| format!("glass build prints no path: {built}"))?;
    fs::copy(image, root.path("home").join(VISITOR).join("hello.image"))?;
    trial.step(
        "apt install qemu-system-x86",
        "root",
        "apt-get install --yes -qq --no-install-recommends qemu-system-x86",
    )?;
    let script = format!(
        "glass run ./hello.image > vm.log 2>&1 & {}; glass top --once --pid $(pidof qemu-system-x86_64)",
        waits("vm.log")
    );
    let table = trial.step("a VM, and glass top --pid PID", VISITOR, &script)?;
    ensure!(table.contains("hello.image (VM") && table.contains("vcpu 0"), "glass top shows no VM: {table}");
    Ok(())
}

/// The agent as a service, with a Linux VM and one of ours. Not a part of the path of a new user: its time is not counted.
fn agent(root: &Root) -> Result<()> {
    let packages = "linux-image-cloud-amd64 busybox-static cpio";
    root.run("root", &format!("apt-get install --yes -qq --no-install-recommends {packages}"), STEP_SECONDS)?;
    fs::write(root.path("tmp/agent.sh"), include_str!("agent.sh"))?;
    let script = format!("bash /tmp/agent.sh /home/{VISITOR}/hello.image");
    let printed = root.run("root", &script, STEP_SECONDS).context("the agent of the package")?;
    let line = printed.lines().find(|line| line.starts_with("on the page")).context("the agent's script has no end")?;
    eprintln!("    glass agent, a Linux VM and one of ours: {line}");
    Ok(())
}

/// A service of one's own, by the Rust of this machine: its download is not what we measure.
fn service(trial: &mut Trial) -> Result<()> {
    let script = format!(
        "export PATH=/opt/rust/bin:$PATH CARGO_NET_OFFLINE=true; glass new shop; cd shop; glass run > ../shop.log 2>&1 & {}; cat ~/shop.log",
        waits("shop.log")
    );
    trial.step("apt install gcc", "root", "apt-get install --yes -qq --no-install-recommends gcc libc6-dev")?;
    let printed = trial.step("glass new shop && cd shop && glass run", VISITOR, &script)?;
    ensure!(printed.contains("shop listens on"), "the service does not run: {printed}");
    Ok(())
}

/// Shows the Rust of this machine, and the crates that it has, in `root`.
pub fn show_rust(root: &mut Root) -> Result<()> {
    let toolchain = run::quiet(Command::new("rustc").args(["--print", "sysroot"]).current_dir(run::root()))?;
    root.bind(toolchain.trim().into(), "opt/rust")?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    root.bind(home.context("there is no folder of cargo")?.join("registry"), "home/visitor/.cargo/registry")?;
    root.run("root", "chown visitor: /home/visitor/.cargo", 20).map(drop)
}

/// Waits until a service's log has its address.
fn waits(log: &str) -> String {
    format!("until grep -qs 'listens on' ~/{log}; do kill -0 $! || {{ cat ~/{log}; exit 1; }}; sleep 0.1; done")
}

/// Removes it with what was installed for it. What differs from `before`, in a short trial: in a long one more was installed.
fn removed(root: &Root, before: &str, is_short: bool) -> Result<()> {
    root.run("root", "deluser --quiet visitor glass; apt-get purge --yes -qq --autoremove glass", 300)?;
    let after = root.run("root", FILES, 60)?;
    let before: BTreeSet<&str> = before.lines().collect();
    let is_ours = |path: &&str| !before.contains(path) && (is_short || path.contains("glass"));
    let stays: Vec<&str> = after.lines().filter(is_ours).collect();
    ensure!(stays.is_empty(), "these files stay: {}", stays.join(", "));
    let (has_group, _) = root.attempt("root", "getent group glass", 20)?;
    ensure!(!has_group, "the group stays");
    Ok(())
}
