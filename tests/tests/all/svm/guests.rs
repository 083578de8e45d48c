//! What the cases have in common: an emulated machine, and the guests that run in it.

use glass_tests::emulated::Machine;
use glass_tests::limit::say;
use glass_tests::stacks::{self, State, Track};
use glass_tests::svm::Lab;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// One script.
pub const SCRIPT: Duration = Duration::from_secs(360);
/// How long Linux may take to boot: 30 s on a quiet host.
const LINUX_PATIENCE: Duration = Duration::from_secs(540);
/// How often Linux is started until it has booted: QEMU's emulation resets it now and then.
const BOOTS_MAX: u32 = 3;
/// How long a guest may take to write another line, which it does each second.
const LINE_PATIENCE: Duration = Duration::from_secs(120);
/// How long a recording may take.
const RECORDING_PATIENCE: Duration = Duration::from_secs(900);
/// Few enough that none is dropped: a pause takes milliseconds where everything is emulated.
pub const RATE: &str = "--rate 25";
/// What Linux prints when it has booted.
const BOOTED: &str = "LINUX READY";
/// What is reported of its QEMU's end.
const ENDED: &str = "QEMU ended";

/// A line that Linux writes each second.
#[derive(Debug, Clone)]
pub struct Line {
    /// Which one it is.
    second: u64,
    /// Time since its boot, in ticks of 10 ms.
    pub uptime: u64,
    /// The times of its CPU 1 in ticks: user nice system idle iowait irq softirq steal (proc_stat(5)).
    pub times: Vec<u64>,
}

/// What Linux counts about its CPU 1 between two lines, in percent.
#[derive(Debug, Clone)]
pub struct Counted {
    /// It had nothing to do.
    pub idle: f64,
    /// It had, and its vCPU did not run.
    pub stolen: f64,
}

impl Counted {
    /// Between these two lines.
    pub fn between(before: &Line, after: &Line) -> Counted {
        let ticks = |index: usize| (after.times[index] - before.times[index]) as f64;
        let percent = |ticks: f64| ticks * 100.0 / (after.uptime - before.uptime) as f64;
        Counted { idle: percent(ticks(3) + ticks(4)), stolen: percent(ticks(7)) }
    }
}

/// The machine and its guests.
#[derive(Debug)]
pub struct Guests {
    /// The machine.
    pub lab: Lab,
    /// `glass`, which reads recordings on this machine.
    pub glass: PathBuf,
    /// The image of the upload queue.
    pub queue: PathBuf,
    /// The script that starts Linux.
    pub start: &'static str,
}

impl Guests {
    /// Runs a script in the machine, which must not fail.
    pub fn run(&mut self, script: &str) -> String {
        self.lab.run(script, SCRIPT).unwrap()
    }

    /// `glass` of this machine.
    pub fn glass(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.glass).args(arguments).current_dir(self.lab.folder()).output().unwrap();
        assert!(output.status.success(), "glass {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `glass record` in the lab; returns the tracks.
    pub fn record(&mut self, name: &str, options: &str) -> Vec<Track> {
        self.run(&format!("glass record {options} {RATE} --output $shared/{name}.pftrace"));
        self.tracks(name)
    }

    /// The tracks of a recording in the shared folder.
    pub fn tracks(&self, name: &str) -> Vec<Track> {
        let file = format!("{name}.pftrace");
        let text =
            self.glass(&["export", &file, "--format", "speedscope", "--by-vcpu", "--states", "all", "--output", "-"]);
        let tracks = stacks::parse(&text).unwrap();
        for track in &tracks {
            let shares = [State::Running, State::Spinning, State::Idle, State::Paused];
            let shares = shares.map(|state| format!("{state:?} {:.1} %", track.percent_in(state)));
            say(&format!("{name}: {}: {}", track.name, shares.join(", ")));
        }
        tracks
    }

    /// `glass ps` lists a VM of two vCPUs, which it would sample by KVM.
    pub fn assert_is_listed(&mut self, name: &str) {
        let table = self.run("glass ps; glass ps --json >$shared/ps.json");
        say(&table);
        let listed: serde_json::Value = serde_json::from_str(&self.lab.text("ps.json")).unwrap();
        let vm = listed["vms"].as_array().unwrap().iter().find(|vm| vm["name"] == name);
        let vm = vm.unwrap_or_else(|| panic!("no {name}: {listed}"));
        assert_eq!((&vm["backend"], &vm["accel"], &vm["vcpus"]), (&"kvm".into(), &"kvm".into(), &2.into()), "{vm}");
    }

    /// Waits until Linux has booted. One that has ended before, which nothing has stopped or read, is started again.
    pub fn wait_for_linux(&mut self) {
        for _ in 1..BOOTS_MAX {
            self.wait_for_linux_or_its_end(BOOTED, LINUX_PATIENCE);
            if !self.linux_has_not_booted() {
                break;
            }
            say(&format!(
                "Linux is started again, because it has ended while it booted: {}",
                self.lab.text("linux.end")
            ));
            self.run(self.start);
        }
        self.wait_for_linux_to_print(BOOTED, LINUX_PATIENCE);
        // The line before it is whole.
        self.wait_for_linux_to_print("SECOND 2 ", LINE_PATIENCE);
    }

    /// Ends Linux. Then no case depends on it, and it is not reported as one that has ended by itself.
    pub fn end_linux(&mut self) {
        self.run(
            "[ ! -f linux.pid ] || kill $(cat linux.pid)
            gone() { [ ! -f linux.pid ]; }
            wait_for 40 'Linux has ended' gone
            rm -f $shared/linux.end",
        );
    }

    /// Waits until Linux has printed a text. It must not end.
    fn wait_for_linux_to_print(&mut self, text: &str, limit: Duration) {
        self.wait_for_linux_or_its_end(text, limit);
        assert!(self.lab.text("linux.log").contains(text), "Linux has ended: {}", self.about_linux());
    }

    /// Waits until Linux has printed a text or has ended.
    fn wait_for_linux_or_its_end(&mut self, text: &str, limit: Duration) {
        let (log, end) = (self.lab.file("linux.log"), self.lab.file("linux.end"));
        let has = |file: &Path, text: &str| {
            std::fs::read(file).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text))
        };
        let is_judged = |_: &Machine| has(&log, text) || has(&end, ENDED);
        let waited = self.lab.machine.wait_until(&format!("Linux has printed {text:?}"), limit, is_judged);
        waited.unwrap_or_else(|error| panic!("{error:#}\n{}", self.about_linux()));
    }

    /// Its QEMU has ended by itself.
    pub fn linux_has_ended(&self) -> bool {
        self.lab.text("linux.end").contains(ENDED)
    }

    /// Its QEMU has ended before it had.
    pub fn linux_has_not_booted(&self) -> bool {
        self.linux_has_ended() && !self.lab.text("linux.log").contains(BOOTED)
    }

    /// What its QEMU reports, and what it has printed.
    pub fn about_linux(&self) -> String {
        format!("{}{}", self.lab.text("linux.end"), self.lab.text("linux.log"))
    }

    /// What follows a word at the start of a line of Linux.
    fn linux_line(&self, word: &str) -> String {
        let text = self.lab.text("linux.log");
        let rest = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        rest.unwrap_or_else(|| panic!("no {word}: {text}")).to_owned()
    }

    /// The processor's features that Linux uses.
    pub fn linux_flags(&self) -> Vec<String> {
        self.linux_line("FLAGS").split_whitespace().map(str::to_owned).collect()
    }

    /// Where the kernel's code starts.
    pub fn linux_text(&self) -> u64 {
        let line = self.linux_line("TEXT");
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    }

    /// What the last whole line of Linux is about.
    pub fn last_line(&self) -> Line {
        let text = self.lab.text("linux.log");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let line = whole.lines().rev().find_map(|line| line.strip_prefix("SECOND ")).unwrap_or_default();
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
        let (Some(second), Some(uptime)) = (numbers.next(), numbers.next()) else { panic!("no line: {text}") };
        Line { second, uptime, times: numbers.collect() }
    }

    /// Waits for a line of Linux that is written from now on.
    fn wait_for_next_line(&mut self) {
        // A line that is being written is not counted as one of now.
        let next = self.last_line().second + 2;
        self.wait_for_linux_to_print(&format!("SECOND {next} "), LINE_PATIENCE);
    }

    /// `glass record` of Linux; returns the tracks, and what Linux counts while it is sampled, not while `glass` attaches.
    pub fn record_beside_linux(&mut self, name: &str, options: &str) -> (Vec<Track>, Counted) {
        self.run(&format!(
            "rm -f $shared/record.log
            {{
                glass record --pid $(cat linux.pid) {options} {RATE} --output $shared/{name}.pftrace || echo failed
                echo recorded
            }} >$shared/record.log 2>&1 &"
        ));
        self.lab.wait_for_text("record.log", "sampling", SCRIPT).unwrap();
        let before = self.last_line();
        self.lab.wait_for_text("record.log", "recorded", RECORDING_PATIENCE).unwrap();
        let after = self.last_line();
        assert!(!self.lab.text("record.log").contains("failed"), "{}", self.lab.text("record.log"));
        let tracks = self.tracks(name);
        assert_eq!(tracks.len(), 2, "{tracks:?}");
        (tracks, Counted::between(&before, &after))
    }

    /// No thread of Linux's VM is traced, and it runs.
    pub fn assert_linux_is_released(&mut self) {
        let traced = "grep -h TracerPid: /proc/$(cat linux.pid)/task/*/status";
        self.run(&format!(
            "untraced() {{ [ $({traced} | wc -l) -gt 2 ] && ! {traced} | grep -qv '[[:space:]]0$'; }}
            wait_for 20 'all threads are released' untraced || {{ {traced}; exit 1; }}"
        ));
        self.wait_for_next_line();
    }
}
