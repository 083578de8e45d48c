//! A VM whose owner pauses it, resets it, and moves it away by QEMU's monitor while the agent records it: nothing hangs or stays stopped, and the page
//! has what happened.

use super::{Host, LIMIT, PATIENCE, SEGMENT, is_busy, kept, wait_for};
use glass_tests::limit::within;
use glass_tests::process;
use glass_tests::programs;
use glass_tests::qmp::Qmp;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longer than two recordings.
const PAUSE: Duration = Duration::from_secs(6);

/// The recordings in which code ran, the oldest first.
fn busy(folder: &Path, vm: &str) -> Vec<PathBuf> {
    let mut recordings: Vec<PathBuf> = kept(folder, vm).into_iter().filter(|recording| is_busy(recording)).collect();
    // Their names begin with the time.
    recordings.sort();
    recordings
}

/// A report in words.
pub fn report(glass: &Path, recording: &Path) -> String {
    let output = Command::new(glass).args(["report", "--text"]).arg(recording).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Waits for two more recordings in which code ran, of which the last one is not of before; returns that.
pub fn next_busy(folder: &Path, vm: &str) -> PathBuf {
    let count = busy(folder, vm).len();
    wait_for("it is recorded again", PATIENCE, || busy(folder, vm).len() >= count + 2);
    busy(folder, vm).pop().unwrap()
}

/// Writes a VM to a file, as if to move it to another host, and ends its QEMU.
pub fn migrate(qmp: &mut Qmp, file: &Path) {
    qmp.execute("migrate", json!({ "uri": format!("exec:cat > {}", file.display()) })).unwrap();
    let mut status = String::new();
    wait_for("it has moved", PATIENCE, || {
        let answer = qmp.execute("query-migrate", json!({})).unwrap();
        status = answer["status"].as_str().unwrap_or_default().to_owned();
        assert_ne!(status, "failed", "{answer}");
        status == "completed"
    });
    assert!(std::fs::metadata(file).unwrap().len() > 1 << 20);
    qmp.execute("quit", json!({})).unwrap();
}

#[test]
fn a_vm_that_is_paused_reset_and_moved_is_followed() {
    within(LIMIT, || {
        let Some(host) = Host::new("agent-changes") else { return };
        let Some(image) = programs::image("busy") else { return };
        let mut vm = host.vm_of(&image, "agent-changes", &["--vmm", "qemu"]);
        vm.wait_for_text("rounds until", PATIENCE, || ());
        let is_qemu = |pid: &u32| process::name(*pid).is_some_and(|name| name.starts_with("qemu-system"));
        let qemu = process::descendants(vm.pid()).into_iter().find(is_qemu).unwrap();
        let mut qmp = Qmp::of_glass_run(qemu).unwrap();
        let (folder, config) = (host.folder.file("kept"), host.folder.file("agent.toml"));
        let settings = format!(
            "folder = '{}'\nsegment_seconds = {SEGMENT}\ncpu_percent_max = 100\npressure_percent_max = 100\nvms = ['agent-changes']\n",
            folder.display()
        );
        std::fs::write(&config, settings).unwrap();
        let mut agent = host.agent(&config);
        next_busy(&folder, "agent-changes");

        qmp.execute("stop", json!({})).unwrap();
        std::thread::sleep(PAUSE);
        wait_for("the page has the pause", PATIENCE, || agent.page().contains("the VM was paused by its owner"));
        assert_eq!(qmp.execute("query-status", json!({})).unwrap()["status"], "paused", "the agent has started it");
        qmp.execute("cont", json!({})).unwrap();
        next_busy(&folder, "agent-changes");
        wait_for("the page has its end", PATIENCE, || agent.page().contains("the VM runs again after a pause"));

        // `glass run` ends QEMU at a reset otherwise.
        qmp.execute("set-action", json!({ "reboot": "reset" })).unwrap();
        qmp.execute("system_reset", json!({})).unwrap();
        let newest = next_busy(&folder, "agent-changes");
        assert!(report(&host.glass, &newest).contains("busy::heavy"), "{}", report(&host.glass, &newest));

        migrate(&mut qmp, &host.folder.file("moved"));
        wait_for("a VM that has gone is on the page", PATIENCE, || {
            agent.page().contains(">agent-changes <small>has ended")
        });
        assert_eq!(agent.metric("vms "), 0.0);
        assert!(agent.process.interrupt(PATIENCE), "it does not end: {}", agent.process.output());
        assert!(vm.wait(PATIENCE).is_some(), "it does not end: {}", vm.output());
    });
}
