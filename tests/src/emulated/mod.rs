//! A machine in QEMU's emulation, made of Debian's packages, that runs scripts of the shell for its owner. It shares a folder with its
//! owner: the script N is the file N.sh, its output N.out and its code N.code. A line N on the console starts it.

pub mod packages;

use crate::folder::Folder;
use crate::process::Process;
use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::time::{Duration, Instant};

/// The last part of the first process's script: runs the scripts. Before it `$shared` is set to the shared folder, and the function
/// `run_script` defined, which gets the file of a script.
pub const SCRIPTS: &str = include_str!("scripts.sh");

/// A file of the shared folder that a machine may write again and again, as a sign that it runs.
const SIGN_OF_LIFE: &str = "alive";
/// A machine that has written it once and then not for this long has failed; it writes every two seconds.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// What Linux prints before it gives up.
pub(crate) const PANIC: &str = "Kernel panic - not syncing";
/// What Linux prints when a CPU has done nothing of the kernel's for 21 s, but has not slept.
const STALL: &str = "detected stalls on CPUs";
/// How long a machine may take to power off.
const END_PATIENCE: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(5);

/// A running machine. Dropping it ends it.
#[derive(Debug)]
pub struct Machine {
    process: Process,
    console: ChildStdin,
    /// The folder that it shares with its owner.
    pub shared: Folder,
    scripts: u32,
    sign: Vec<u8>,
    sign_changed: Instant,
    /// Whether the machine has failed once a CPU of its stalls. A busy host stalls CPUs, too.
    pub fails_by_stall: bool,
}

/// What a script has printed, and with which code it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// 0 if it succeeded.
    pub code: i32,
    /// Both streams.
    pub output: String,
}

/// Why a machine can run no script any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Its kernel has printed a panic: this line.
    Panic(String),
    /// It has ended, or shows no sign of life, without a printed reason.
    Silence(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Failure::Panic(line) => write!(f, "the kernel of the emulated machine panics: {line}"),
            Failure::Silence(reason) => f.write_str(reason),
        }
    }
}

impl Machine {
    /// Starts `qemu`, whose serial line is its standard input and output, and waits until the machine has printed `ready`.
    pub fn boot(qemu: &mut Command, shared: Folder, ready: &str, limit: Duration) -> Result<Machine> {
        let (process, console) = Process::spawn_with_input(qemu, &shared.file("console.log"))?;
        let sign_changed = Instant::now();
        let mut machine =
            Machine { process, console, shared, scripts: 0, sign: Vec::new(), sign_changed, fails_by_stall: false };
        machine.wait_until(&format!("the machine has printed {ready:?}"), limit, |machine| {
            machine.process.output().contains(ready)
        })?;
        Ok(machine)
    }

    /// Why it can run no script any more; `None` if nothing speaks against it.
    pub fn failure(&mut self) -> Option<Failure> {
        let ended = self.process.ended();
        let output = self.process.output();
        if let Some(line) = output.lines().find(|line| line.contains(PANIC)) {
            return Some(Failure::Panic(line.trim().to_owned()));
        }
        if self.fails_by_stall && output.contains(STALL) {
            return Some(Failure::Silence("a CPU of the machine stalls".to_owned()));
        }
        if let Some(status) = ended {
            return Some(Failure::Silence(format!("QEMU has ended ({status})")));
        }
        // Without the file there is no sign to wait for.
        let sign = std::fs::read(self.shared.file(SIGN_OF_LIFE)).unwrap_or_default();
        if sign != self.sign || sign.is_empty() {
            (self.sign, self.sign_changed) = (sign, Instant::now());
        }
        let silence = self.sign_changed.elapsed();
        (silence > SILENCE_MAX)
            .then(|| Failure::Silence(format!("no sign of life of the machine for {} s", silence.as_secs())))
    }

    /// Waits until a condition holds; an error after `limit`, or when the machine fails.
    pub fn wait_until(
        &mut self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut(&Machine) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        // Checked as rarely as it changes.
        let mut next_check = Instant::now();
        while !condition(self) {
            let now = Instant::now();
            if now >= next_check {
                next_check = now + Duration::from_millis(100);
                if let Some(failure) = self.failure() {
                    bail!("{failure}, before {what}:\n{}", last_lines(&self.process.output(), 30));
                }
            }
            ensure!(
                now < deadline,
                "{} s have passed, but not until {what}:\n{}",
                limit.as_secs(),
                last_lines(&self.process.output(), 30)
            );
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// The folder that it shares with its owner.
    pub fn folder(&self) -> &Path {
        self.shared.path()
    }

    /// Puts a copy of a file into the folder.
    pub fn bring(&self, file: &Path) -> Result<PathBuf> {
        let copy = self.shared.file(&file.file_name().unwrap_or_default().to_string_lossy());
        std::fs::copy(file, &copy).with_context(|| format!("cannot copy {}", file.display()))?;
        Ok(copy)
    }

    /// Runs a script of the shell, as root.
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<Done> {
        self.scripts += 1;
        let number = self.scripts;
        self.shared.write(&format!("{number}.sh"), script.as_bytes())?;
        writeln!(self.console, "{number}").context("the console of the machine is closed")?;
        let code = self.shared.file(&format!("{number}.code"));
        let output = self.shared.file(&format!("{number}.out"));
        let read = |path: &Path| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        self.wait_until(&format!("it has run {script:?}"), limit, |_| code.exists())
            .with_context(|| format!("the output of the script: {}", read(&output).unwrap_or_default()))?;
        let code = read(&code)?.trim().parse().context("a code that is no number")?;
        Ok(Done { code, output: read(&output)? })
    }

    /// The same; it is an error if the script fails.
    pub fn expect(&mut self, script: &str, limit: Duration) -> Result<String> {
        let Done { code, output } = self.run(script, limit)?;
        ensure!(code == 0, "{script:?} failed in the emulated machine with {code}:\n{output}");
        Ok(output)
    }

    /// Powers it off.
    pub fn power_off(mut self) -> Result<()> {
        self.shared.write("off.sh", b"poweroff -f")?;
        writeln!(self.console, "off").context("the console of the machine is closed")?;
        let ended = self.process.wait(END_PATIENCE);
        ensure!(ended.is_some(), "the machine does not power off:\n{}", last_lines(&self.process.output(), 30));
        Ok(())
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that is a shell of this one.
    fn machine(script: &str) -> Result<Machine> {
        let shared = Folder::new("machine").unwrap();
        let mut shell = Command::new("sh");
        let head =
            format!("shared={}\nrun_script() {{ sh \"$1\"; }}\npoweroff() {{ exit; }}\n", shared.path().display());
        shell.args(["-c", &format!("{head}{script}\n{SCRIPTS}")]);
        Machine::boot(&mut shell, shared, "READY", Duration::from_secs(120))
    }

    #[test]
    fn scripts_have_output_and_a_code() {
        let mut machine = machine("echo READY").unwrap();
        let limit = Duration::from_secs(120);
        let done = machine.run("echo out; echo err >&2; exit 3", limit).unwrap();
        assert_eq!(done, Done { code: 3, output: "out\nerr\n".to_owned() });
        assert_eq!(machine.expect("echo again", limit).unwrap(), "again\n");
        assert!(machine.expect("echo why; false", limit).unwrap_err().to_string().contains("with 1:\nwhy"));
        assert_eq!(machine.failure(), None);
        let error = format!("{:#}", machine.run("echo stuck; sleep 60", Duration::from_secs(1)).unwrap_err());
        assert!(error.contains("1 s have passed") && error.contains("stuck"), "{error}");
    }

    #[test]
    fn a_panic_is_distinguished_from_silence() {
        let panic = "[  7.0] Kernel panic - not syncing: corrupted stack end";
        let error = format!("{:#}", machine(&format!("echo '{panic}'; exit")).unwrap_err());
        assert!(error.contains("panics: [  7.0] Kernel panic"), "{error}");
        let mut machine = machine("echo 1 >$shared/alive; exec 9>&1; echo READY").unwrap();
        assert_eq!(machine.failure(), None);
        machine.sign_changed -= SILENCE_MAX + Duration::from_secs(1);
        assert!(matches!(machine.failure(), Some(Failure::Silence(reason)) if reason.contains("no sign of life")));
        machine.shared.write("alive", b"2").unwrap();
        assert_eq!(machine.failure(), None);
        machine
            .run("echo 'rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:' >&9", Duration::from_secs(120))
            .unwrap();
        assert_eq!(machine.failure(), None);
        machine.fails_by_stall = true;
        assert!(matches!(machine.failure(), Some(Failure::Silence(reason)) if reason.contains("stalls")));
        machine.fails_by_stall = false;
        machine.run("kill $PPID", Duration::from_secs(120)).unwrap_err();
        assert!(matches!(machine.failure(), Some(Failure::Silence(reason)) if reason.contains("QEMU has ended")));
    }
}
