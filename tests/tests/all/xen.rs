//! Domains of Xen, sampled from dom0: one machine is booted for all cases.
//!
//! `GLASS_XEN_CASE=NAME` runs only the cases whose names contain a word.

use glass_tests::folder::Folder;
use glass_tests::limit::{say, within};
use glass_tests::programs;
use glass_tests::xen::guests::{self, Guest, judge};
use glass_tests::xen::{SHARED, World};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// All cases together; they take five minutes, with --long twenty.
const LIMIT: Duration = Duration::from_secs(3000);
/// One script in dom0.
const SCRIPT: Duration = Duration::from_secs(720);
/// Times that `glass` is killed by one script.
const KILLS: u32 = 10;
/// Samples per second in cases that want many.
const RATE: &str = "800";

/// A case and its name.
type Case = (&'static str, fn(&mut Dom0));

const CASES: [Case; 12] = [
    ("domains_are_listed", domains_are_listed),
    ("paravirtualized", |dom0| whole_stacks(dom0, &guests::PV)),
    ("virtualized_with_small_pages", |dom0| whole_stacks(dom0, &guests::PVH_4K)),
    ("virtualized_with_large_pages", |dom0| whole_stacks(dom0, &guests::PVH_2M)),
    ("two_vcpus", |dom0| whole_stacks(dom0, &guests::TWO_VCPUS)),
    ("without_frame_pointers", |dom0| whole_stacks(dom0, &guests::WITHOUT_POINTERS)),
    ("waiting_domains_are_idle", waiting_domains_are_idle),
    ("a_paused_domain_stays_paused", a_paused_domain_stays_paused),
    ("killed_at_any_moment", killed_at_any_moment),
    ("the_end_of_a_domain", the_end_of_a_domain),
    ("what_is_refused", what_is_refused),
    ("linux", linux),
];

#[test]
fn domains_of_xen() {
    if !programs::is_long() && std::env::var_os("GLASS_XEN_CASE").is_none() {
        return programs::skip("it takes 5 minutes: run it by --long, or a case by GLASS_XEN_CASE=WORD");
    }
    within(LIMIT, || {
        let (Some(glass), Some(sampler)) =
            (programs::built_static("glass", false), programs::built_static("examples/xen_looks", false))
        else {
            return;
        };
        let Some(host) = programs::built("glass") else { return };
        let begin = Instant::now();
        let mut world = match World::boot() {
            Ok(world) => world,
            Err(error) => return programs::skip(&format!("{error:#}")),
        };
        world.bring(&glass).unwrap();
        world.bring(&sampler).unwrap();
        world.expect(&format!("cp {SHARED}/glass {SHARED}/xen_looks /usr/bin/"), SCRIPT).unwrap();
        let mut dom0 = Dom0 { world, host, recordings: Folder::new("xen-recordings").unwrap() };
        let only = std::env::var("GLASS_XEN_CASE").unwrap_or_default();
        let mut failed = Vec::new();
        for (name, case) in CASES.into_iter().filter(|(name, _)| name.contains(&only)) {
            let begin = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| case(&mut dom0)));
            let verdict = if result.is_ok() { "ok" } else { "FAILED" };
            say(&format!("xen {name}: {verdict}, {:.1} s", begin.elapsed().as_secs_f64()));
            if result.is_err() {
                failed.push(name);
                dom0.clear();
            }
        }
        dom0.world.power_off().unwrap();
        say(&format!("xen: {:.1} s in all", begin.elapsed().as_secs_f64()));
        assert!(failed.is_empty(), "these cases failed: {failed:?}");
    });
}

struct Dom0 {
    world: World,
    /// `glass` of this machine, which reads the recordings.
    host: PathBuf,
    recordings: Folder,
}

/// A line of `xl list`.
#[derive(Debug)]
struct Listed {
    is_paused: bool,
    seconds: f64,
}

impl Dom0 {
    fn run(&mut self, script: &str) -> String {
        self.world.expect(script, SCRIPT).unwrap()
    }

    /// Runs a script that has to fail; returns its output.
    fn refuse(&mut self, script: &str) -> String {
        let done = self.world.run(script, SCRIPT).unwrap();
        assert_ne!(done.code, 0, "{script} succeeded: {}", done.output);
        assert!(!done.output.contains("panicked") && done.output.len() < 600, "{script}: {}", done.output);
        done.output
    }

    /// `glass record` in dom0; the recording is brought here.
    fn record(&mut self, name: &str, options: &str) -> PathBuf {
        let symbols = format!("--symbols {SHARED}/{name}.elf");
        self.run(&format!("glass record --domain {name} {symbols} {options} --output /tmp/{name}.pftrace && mv /tmp/{name}.pftrace {SHARED}/"));
        self.fetch(name)
    }

    /// Takes a recording out of the shared folder.
    fn fetch(&mut self, name: &str) -> PathBuf {
        let recording = self.recordings.file(&format!("{name}.pftrace"));
        std::fs::rename(self.world.folder().join(format!("{name}.pftrace")), &recording).unwrap();
        recording
    }

    /// `glass` of this machine.
    fn glass(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.host).args(arguments).current_dir(self.recordings.path()).output().unwrap();
        assert!(output.status.success(), "glass {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn folded(&self, recording: &std::path::Path) -> String {
        let recording = recording.to_str().unwrap();
        self.glass(&["export", recording, "--format", "folded", "--states", "all", "--output", "-"])
    }

    fn listed(&mut self, name: &str) -> Option<Listed> {
        let text = self.run("xl list");
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [.., state, seconds] = words[..] else { panic!("{line}") };
        Some(Listed { is_paused: state.contains('p'), seconds: seconds.parse().unwrap() })
    }

    /// Its running time grows, and it is not paused.
    fn assert_runs(&mut self, name: &str, moment: &str) {
        let start = Instant::now();
        let first = self.listed(name).unwrap_or_else(|| panic!("{name} is gone {moment}"));
        loop {
            let now = self.listed(name).unwrap_or_else(|| panic!("{name} is gone {moment}"));
            if !now.is_paused && now.seconds > first.seconds {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(120), "{name} stands still {moment}: {now:?}");
        }
    }

    /// Ends what a case has left, so that the next one has the machine for itself.
    fn clear(&mut self) {
        let script =
            "killall -9 glass xen_looks; for id in $(xl list | awk 'NR > 2 {print $2}'); do xl destroy $id; done; true";
        self.run(script);
    }
}

fn domains_are_listed(dom0: &mut Dom0) {
    assert!(dom0.run("glass ps").contains("no VM found"));
    dom0.world.start(&guests::WAITS_PV).unwrap();
    dom0.world.start(&guests::WAITS_PVH).unwrap();
    let text = dom0.run("glass ps");
    let row = |name: &str| {
        let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some(name));
        line.unwrap_or_else(|| panic!("{text}")).split_whitespace().skip(2).collect::<Vec<_>>().join(" ")
    };
    assert_eq!((row("waitspv").as_str(), row("waitspvh").as_str()), ("PV 1 16 MiB xen", "PVH 1 16 MiB xen"));
    let json: serde_json::Value = serde_json::from_str(&dom0.run("glass ps --json")).unwrap();
    let kinds: Vec<_> =
        json["domains"].as_array().unwrap().iter().map(|domain| domain["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["PV", "PVH"]);
    dom0.clear();
}

fn whole_stacks(dom0: &mut Dom0, guest: &Guest) {
    let wanted = if programs::is_long() { 10_000 } else { 300 };
    dom0.world.start(guest).unwrap();
    let name = guest.name;
    // The guest and dom0 share a CPU with this machine: a recording has fewer samples than its rate, on a busy machine far fewer.
    let mut seconds = wanted / 100;
    let (recording, judged) = loop {
        let recording = dom0.record(name, &format!("--rate {RATE} --duration {seconds}"));
        dom0.assert_runs(name, "after the recording");
        let judged = judge(&dom0.folded(&recording));
        say(&format!("xen {name}: {judged:?}"));
        if judged.samples >= wanted / 3 {
            break (recording, judged);
        }
        seconds *= 2;
        assert!(seconds <= 60.max(wanted / 25), "{judged:?}");
    };
    assert_eq!((judged.torn, judged.broken), (0, 0), "{judged:?}");
    let least = judged.samples / guests::COLOURS.len() as u64 / 3;
    assert!(judged.colours.iter().all(|count| *count > least), "{judged:?}");
    let roots: Vec<&str> = judged.roots.keys().map(String::as_str).collect();
    assert_eq!(roots, if guest.vcpus > 1 { vec!["run", "run_other"] } else { vec!["run"] });
    let path = recording.to_str().unwrap();
    let report = dom0.glass(&["report", path, "--text"]);
    assert!(
        guests::COLOURS.iter().any(|colour| report.contains(&format!("{colour}_5"))) && report.contains("of Xen"),
        "{report}"
    );
    let info: serde_json::Value = serde_json::from_str(&dom0.glass(&["info", path, "--json"])).unwrap();
    assert!(info.to_string().contains("Xen"), "{info}");
    if guest.name == guests::PV.name {
        let again = dom0.recordings.file("again.pftrace");
        std::fs::copy(&recording, &again).unwrap();
        assert!(dom0.glass(&["diff", path, again.to_str().unwrap(), "--text"]).contains("red_5"));
        let top = dom0.run(&format!("glass top --domain {name} --symbols {SHARED}/{name}.elf --once --duration 1"));
        assert!(top.contains("red_"), "{top}");
    }
    dom0.world.destroy(name).unwrap();
}

fn waiting_domains_are_idle(dom0: &mut Dom0) {
    for guest in [&guests::WAITS_PV, &guests::WAITS_PVH] {
        dom0.world.start(guest).unwrap();
        let recording = dom0.record(guest.name, "--rate 200 --duration 1");
        let folded = dom0.folded(&recording);
        let (idle, others): (Vec<&str>, Vec<&str>) =
            folded.lines().partition(|line| line.starts_with("[idle];run;wait"));
        assert!(!idle.is_empty() && others.is_empty(), "{folded}");
        // To be attached to has held it once, and no sample has.
        let report = dom0.glass(&["report", recording.to_str().unwrap(), "--text"]);
        let pauses = report.lines().find(|line| line.contains("auses")).unwrap_or_default().to_owned();
        say(&format!("xen {}: {}; {pauses}", guest.name, idle.join(" ")));
        dom0.world.destroy(guest.name).unwrap();
    }
}

fn a_paused_domain_stays_paused(dom0: &mut Dom0) {
    let name = guests::PVH_4K.name;
    dom0.world.start(&guests::PVH_4K).unwrap();
    dom0.run(&format!("xl pause {name}"));
    let before = dom0.listed(name).unwrap();
    let recording = dom0.record(name, "--rate 500 --duration 1");
    let folded = dom0.folded(&recording);
    assert!(folded.lines().all(|line| line.starts_with("[paused];run")) && !folded.is_empty(), "{folded}");
    // Killed too, while it holds it and not.
    dom0.run(&format!("xen_looks {name} {SHARED}/{name}.elf die; true"));
    let after = dom0.listed(name).unwrap();
    assert!(before.is_paused && after.is_paused && before.seconds == after.seconds, "{before:?} {after:?}");
    dom0.run(&format!("xl unpause {name}"));
    dom0.assert_runs(name, "after it was let go");
    // Paused and let go while it is sampled.
    let script = format!(
        "glass record --domain {name} --symbols {SHARED}/{name}.elf --rate 500 --output /tmp/during.pftrace & recorder=$!
        sleep 2; xl pause {name}; sleep 1; xl list {name}; xl unpause {name}; sleep 1
        kill -INT $recorder; wait $recorder; code=$?; mv /tmp/during.pftrace {SHARED}/; exit $code"
    );
    let listed = dom0.run(&script);
    assert!(listed.lines().any(|line| line.starts_with(name) && line.contains("--p---")), "{listed}");
    let recording = dom0.fetch("during");
    let judged = dom0.folded(&recording);
    assert!(judged.contains("[paused];run") && judged.lines().any(|line| line.starts_with("run;red_1")), "{judged}");
    dom0.assert_runs(name, "after a recording with a pause in it");
    dom0.world.destroy(name).unwrap();
}

fn killed_at_any_moment(dom0: &mut Dom0) {
    let name = guests::PV.name;
    dom0.world.start(&guests::PV).unwrap();
    let elf = format!("{SHARED}/{name}.elf");
    // In the middle of a pause: only the guardian can resume it.
    dom0.run(&format!("xen_looks {name} {elf} die; true"));
    dom0.assert_runs(name, "after a death while it was held");
    let script = format!(
        "for kill in $(seq {KILLS}); do
            glass record --domain {name} --symbols {elf} --rate 5000 --output /tmp/killed.pftrace 2>/tmp/said & recorder=$!
            looks=0
            until grep -qs guardian /proc/[0-9]*/comm; do
                looks=$((looks + 1)); [ $looks -lt 1000 ] || {{ echo no sample: $(cat /tmp/said); exit 1; }}; usleep 10000
            done
            usleep $((RANDOM * 10)); kill -9 $recorder; wait $recorder; rm -f /tmp/killed.pftrace
        done; true"
    );
    for _ in 0..if programs::is_long() { 20 } else { 2 } {
        dom0.run(&script);
        dom0.assert_runs(name, "after kills");
    }
    // Nothing is left of the profilers, and no memory is kept: the domain can go away.
    let start = Instant::now();
    while dom0.run("cat /proc/[0-9]*/comm").contains("glass") {
        assert!(start.elapsed() < Duration::from_secs(120), "a process is left");
    }
    dom0.world.destroy(name).unwrap();
    assert!(dom0.listed("(null)").is_none() && dom0.listed(name).is_none());
}

fn the_end_of_a_domain(dom0: &mut Dom0) {
    let name = guests::PVH_2M.name;
    dom0.world.start(&guests::PVH_2M).unwrap();
    let script = format!(
        "glass record --domain {name} --symbols {SHARED}/{name}.elf --rate 500 --output /tmp/end.pftrace & recorder=$!
        sleep 2; xl destroy {name}; wait $recorder; code=$?; mv /tmp/end.pftrace {SHARED}/; exit $code"
    );
    dom0.run(&script);
    let recording = dom0.fetch("end");
    let judged = judge(&dom0.folded(&recording));
    assert!(judged.samples > 20 && judged.torn == 0, "{judged:?}");
    let start = Instant::now();
    while dom0.listed("(null)").is_some() || dom0.listed(name).is_some() {
        assert!(start.elapsed() < Duration::from_secs(120), "the domain does not go away");
    }
}

fn what_is_refused(dom0: &mut Dom0) {
    let said = dom0.refuse("glass record --domain nobody --output /tmp/none");
    assert!(said.contains("no domain nobody") && said.contains("none runs"), "{said}");
    let said = dom0.refuse("glass record --domain 0 --output /tmp/none");
    assert!(said.contains("domain 0 runs glass itself"), "{said}");
    dom0.world.start(&guests::NARROW).unwrap();
    let name = guests::NARROW.name;
    let said = dom0.refuse(&format!("glass record --domain {name} --output /tmp/none"));
    assert!(said.contains("is unknown") && said.contains("--symbols"), "{said}");
    let said = dom0.refuse(&format!("glass record --domain {name} --symbols {SHARED}/{name}.elf --output /tmp/none"));
    assert!(said.contains("32 bits"), "{said}");
    guests::PVH_2M.build(dom0.world.folder()).unwrap();
    dom0.assert_runs(name, "after it was refused");
    dom0.world.destroy(name).unwrap();
    dom0.world.start(&guests::PVH_4K).unwrap();
    let other = guests::PVH_2M.name;
    let said = dom0.refuse(&format!(
        "glass record --domain {} --symbols {SHARED}/{other}.elf --output /tmp/none",
        guests::PVH_4K.name
    ));
    assert!(said.contains("does not run"), "{said}");
    dom0.assert_runs(guests::PVH_4K.name, "after another image was refused");
    dom0.world.destroy(guests::PVH_4K.name).unwrap();
    assert!(!dom0.run("ls /tmp").contains("none"), "a refusal leaves no recording");
}

/// A Linux: the kernel of dom0 once more, with dom0's list of its symbols.
fn linux(dom0: &mut Dom0) {
    for kind in ["pv", "pvh"] {
        dom0.world.start_linux(kind).unwrap();
        dom0.run(&format!("grep -v '\\[' /proc/kallsyms >{SHARED}/linux-{kind}.elf"));
        let name = format!("linux-{kind}");
        let recording = dom0.record(&name, "--rate 200 --duration 3");
        let report = dom0.glass(&["report", recording.to_str().unwrap(), "--text"]);
        say(&report);
        let folded = dom0.folded(&recording);
        assert!(folded.contains("entry_SYSCALL_64"), "{folded}");
        let broken: u64 = folded
            .lines()
            .filter(|line| line.contains("[broken"))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
            .sum();
        let samples: u64 = folded.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum();
        assert!(broken * 100 <= samples, "{broken} of {samples}:\n{folded}");
        dom0.world.destroy(&name).unwrap();
    }
}
