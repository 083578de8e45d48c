//! VMs that start and are killed at random, also while they are attached to, and an agent that is killed between: none is missed, and none is left stopped.

use super::{Agent, Host, NOTICED, PATIENCE, wait_for};
use glass_tests::limit::{say, within};
use glass_tests::process::{self, Process};
use glass_tests::programs;
use std::path::Path;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(600);
/// VMs of the test, and of those how many run at a time.
const VMS: usize = 10;
const VMS_LONG: usize = 200;
const AT_ONCE: usize = 4;
/// Between two events at most.
const PAUSE_MS_MAX: u64 = 900;
/// How long a thread may be held by a recorder that samples it: one that stays so is left behind.
const HELD: Duration = Duration::from_secs(5);

struct Vm {
    name: String,
    process: Process,
    since: Instant,
    /// How soon it was on the page.
    seen: Option<Duration>,
}

#[test]
fn vms_that_come_and_go_are_seen_and_go_on() {
    within(LIMIT, || {
        let Some(host) = Host::new("agent-random") else { return };
        let Some(image) = programs::image("hello") else { return };
        let config = host.folder.file("agent.toml");
        let folder = host.folder.file("kept");
        let settings = format!("folder = '{}'\nsegment_seconds = 2\nvms = ['random-*']\n", folder.display());
        std::fs::write(&config, settings).unwrap();
        check(&host, &image, &config);
    });
}

fn check(host: &Host, image: &Path, config: &Path) {
    let count = if programs::is_long() { VMS_LONG } else { VMS };
    let seed = programs::number("GLASS_AGENT_SEED", 44);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut agent = host.agent(config);
    let (mut vms, mut started, mut slowest) = (Vec::<Vm>::new(), 0, Duration::ZERO);
    while started < count || vms.iter().any(|vm| vm.seen.is_none()) {
        if started < count && vms.len() < AT_ONCE && (vms.is_empty() || random.bool()) {
            vms.push(start(host, image, started));
            started += 1;
            // An agent that is killed with its recorders leaves nothing behind that the next one does not find.
            if started == count / 2 {
                agent.process.kill();
                agent = host.agent(config);
                vms.iter_mut().filter(|vm| vm.seen.is_none()).for_each(|vm| vm.since = Instant::now());
            }
        } else if started < count && vms.len() > 1 {
            let mut vm = vms.swap_remove(random.usize(..vms.len()));
            vm.process.kill();
        }
        let until = Instant::now() + Duration::from_millis(random.u64(..PAUSE_MS_MAX));
        while Instant::now() < until {
            check_page(&agent, &mut vms, seed);
            std::thread::sleep(Duration::from_millis(100));
        }
        slowest = vms.iter().filter_map(|vm| vm.seen).fold(slowest, Duration::max);
    }
    assert!(agent.process.interrupt(PATIENCE), "it does not end: {}", agent.process.output());
    for vm in &mut vms {
        assert!(vm.process.ended().is_none(), "{}: {}", vm.name, vm.process.output());
        wait_for("no VM is left stopped", HELD, || !is_held(vm.process.pid()));
    }
    say(&format!("{count} VMs, seed {seed}: the last one was seen after {:.1} s at most", slowest.as_secs_f64()));
}

fn start(host: &Host, image: &Path, number: usize) -> Vm {
    let name = format!("random-{number}");
    let process = host.vm_of(image, &name, &[]);
    Vm { name, process, since: Instant::now(), seen: None }
}

/// Which VMs are on the page by now.
fn check_page(agent: &Agent, vms: &mut [Vm], seed: u64) {
    let page = agent.page();
    for vm in vms.iter_mut().filter(|vm| vm.seen.is_none()) {
        let age = vm.since.elapsed();
        if page.contains(&format!("<h2>{} ", vm.name)) {
            vm.seen = Some(age);
        }
        assert!(age < NOTICED, "seed {seed}: {} is not on the page: {page}\n{}", vm.name, vm.process.output());
    }
}

/// Whether a thread of a VM, or of what runs it, is stopped or held by another process.
fn is_held(pid: u32) -> bool {
    let all = std::iter::once(pid).chain(process::descendants(pid));
    all.flat_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten()).any(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let has = |line: &str| status.lines().any(|found| found.starts_with(line));
        has("State:\tT") || has("State:\tt") || (!status.is_empty() && !has("TracerPid:\t0"))
    })
}
