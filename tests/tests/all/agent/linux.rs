//! A Linux VM and one of ours on the page of one agent. A test that has booted a Linux for something else calls this, too.

use super::changes::{migrate, next_busy, report};
use super::{Engine, Host, Mood, PATIENCE, SEGMENT_OF_LINUX, exported, kept, wait_for};
use glass_tests::limit::say;
use glass_tests::linux_guest::Guest;
use glass_tests::port::free_port;
use std::time::{Duration, Instant};

/// How soon both have to be on the page, with their recordings.
const ON_THE_PAGE: Duration = Duration::from_secs(240);

/// Longer than two recordings.
const PAUSE: Duration = Duration::from_secs(10);
/// What the Linux does after it has started again.
const WORK: &str = "(while :; do cat /proc/stat; done) >/dev/null &";
/// How long a command of its shell may take.
const SHORT: Duration = Duration::from_secs(240);

/// Both are on the page, the Linux (`name`) with its processes, such as `process`; an engine gets what `glass report` has of the same recordings. Then the Linux is paused, reset and
/// moved away.
pub fn check_on_the_page(guest: &mut Guest, name: &str, process: &str) {
    let Some(host) = Host::new("agent-linux") else { return };
    let port = free_port().unwrap();
    let engine = Engine::start(port);
    engine.set(Mood::Takes);
    let (folder, config) = (host.folder.file("kept"), host.folder.file("agent.toml"));
    let settings = format!(
        "folder = '{}'\nsegment_seconds = {SEGMENT_OF_LINUX}\ncpu_percent_max = 100\npressure_percent_max = 100\nvms = ['{name}', 'agent-beside']\n\
         process_names = 'engines'\n[[sink]]\nkind = 'pyroscope'\nurl = 'http://127.0.0.1:{port}'\n",
        folder.display()
    );
    std::fs::write(&config, settings).unwrap();
    let begun = Instant::now();
    let mut agent = host.agent(&config);
    let Some(_busy) = host.vm("busy", "agent-beside") else { return };
    let vms = [name, "agent-beside"];
    let are_shown = |page: &str| vms.iter().all(|vm| page.contains(&format!("/segment/{vm}/")));
    wait_for("both VMs are on the page", ON_THE_PAGE.saturating_sub(begun.elapsed()), || are_shown(&agent.page()));
    let page = agent.page();
    let segment = page.split("href='").find_map(|rest| rest.strip_prefix(&format!("/segment/{name}/"))).unwrap();
    let page_of_recording = agent.get(&format!("/segment/{name}/{}", segment.split('\'').next().unwrap()));
    assert!(
        page_of_recording.status() == 200 && page_of_recording.text().contains(process),
        "{process} is not in the report"
    );
    guest.pause().unwrap();
    std::thread::sleep(PAUSE);
    wait_for("the page has the pause", PATIENCE, || agent.page().contains("the VM was paused by its owner"));
    guest.resume().unwrap();
    next_busy(&folder, name);
    guest.restart(|| ()).unwrap();
    guest.expect(WORK, SHORT).unwrap();
    // One may have started before the reset.
    next_busy(&folder, name);
    let text = report(&host.glass, &next_busy(&folder, name));
    // The names of the new kernel, which is elsewhere, and of its processes.
    assert!(text.contains("entry_SYSCALL_64") || text.contains("asm_sysvec_apic_timer_interrupt"), "{text}");
    assert!(!text.contains(process), "{process} did not start again: {text}");
    assert!(!glass_tests::process::is_stopped(guest.pid()));
    migrate(&mut guest.monitor().unwrap(), &host.folder.file("moved"));
    let has_ended = format!(">{name} <small>has ended");
    wait_for("a Linux that has gone is on the page", PATIENCE, || agent.page().contains(&has_ended));
    assert!(agent.process.interrupt(PATIENCE), "it does not end: {}", agent.process.output());
    let recordings: Vec<_> = vms.iter().flat_map(|vm| kept(&folder, vm)).collect();
    let bytes = kept(&folder, name).iter().map(|path| std::fs::metadata(path).unwrap().len()).collect::<Vec<u64>>();
    let profiles = engine.profiles();
    say(&format!(
        "recordings of {SEGMENT_OF_LINUX} s of the Linux: {bytes:?} bytes; profiles of both VMs: {:?} bytes",
        { profiles.iter().map(Vec::len).collect::<Vec<usize>>() }
    ));
    let sent = profiles.into_iter().collect();
    assert_eq!(exported(&host.glass, &recordings, "process"), sent, "what was sent is not what is kept");
}
