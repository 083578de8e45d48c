//! The errors of `glass` for invalid input: one sentence with what to do, an
//! exit code that is not 0, and never a panic.

use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How long any of these may take.
const LIMIT: Duration = Duration::from_secs(120);
/// The longest message that is still a sentence or two.
const MESSAGE_BYTES_MAX: usize = 600;

/// Runs `glass` with bad input; its message must name each of `words`.
fn refuses(folder: &Folder, arguments: &[&str], words: &[&str]) {
    let Some(glass) = programs::built("glass") else { return };
    let mut command = Command::new(glass);
    command.args(arguments).current_dir(programs::root());
    check(Process::spawn(&mut command, &folder.file("glass.log")).unwrap(), arguments, words);
}

fn check(mut process: Process, arguments: &[&str], words: &[&str]) {
    let Some(status) = process.wait(LIMIT) else { panic!("glass {arguments:?} does not end: {}", process.output()) };
    let said = process.output();
    assert!(!status.success(), "glass {arguments:?} succeeded: {said}");
    let lower = said.to_lowercase();
    assert!(
        !lower.contains("panicked") && status.code().is_some_and(|code| code < 100),
        "{arguments:?}: {status} {said}"
    );
    assert!(!said.trim().is_empty() && said.len() <= MESSAGE_BYTES_MAX, "glass {arguments:?} said: {said}");
    for word in words {
        assert!(lower.contains(word), "glass {arguments:?} does not mention {word:?}: {said}");
    }
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[test]
fn a_missing_file_is_named() {
    within(LIMIT * 6, || {
        let folder = Folder::new("missing").unwrap();
        let missing = path(&folder.file("missing"));
        refuses(&folder, &["report", &missing], &["missing"]);
        refuses(&folder, &["run", &missing], &["missing"]);
        refuses(&folder, &["build", "no-such-package"], &["no-such-package"]);
        let Some(image) = programs::image("upload-queue") else { return };
        refuses(&folder, &["run", &path(&image), "--disk", &missing], &["missing", "--disk-size"]);
    });
}

#[test]
fn tasks_are_those_of_a_linux_guest() {
    within(LIMIT * 6, || {
        let folder = Folder::new("tasks").unwrap();
        let other = path(&folder.file("other"));
        std::fs::write(&other, "no dump").unwrap();
        refuses(&folder, &["ps", "--threads"], &["--pid"]);
        refuses(&folder, &["stacks"], &["--pid", "--post-mortem"]);
        refuses(&folder, &["stacks", "--pid", "1", "--name", "x"], &["--name"]);
        refuses(&folder, &["ps", "--pid", &std::process::id().to_string()], &["not a vm"]);
        refuses(&folder, &["stacks", "--post-mortem", &other], &["other", "dump-guest-memory"]);
    });
}

#[test]
fn arguments_are_checked_before_a_vm_starts() {
    within(LIMIT * 10, || {
        let folder = Folder::new("arguments").unwrap();
        let Some(image) = programs::image("hello") else { return };
        let image = path(&image);
        let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let taken = taken.local_addr().unwrap().port().to_string();
        for (arguments, words) in [
            (&["--ip", "1.2.3"][..], &["--ip", "10.0.2.15/24"][..]),
            (&["--memory", "99999999G"], &["--memory", "this host has"]),
            (&["--net", "tap=no-such-tap"], &["no-such-tap", "ip tuntap"]),
            (&["--port", "1:2", "--net", "none"], &["--port", "--net"]),
            (&["--port", &taken], &[&taken, "in use"]),
            (&["--port", "18080:1", "--port", "18080:2"], &["18080", "twice"]),
            (&["--log", "loud"], &["loud", "debug"]),
            (&["--platform", "linux", "--port", "1"], &["--port", "after `--`"]),
            (&["--platform", "linux", "--memory", "32"], &["--memory", "for a vm", "ulimit"]),
            (&["--platform", "linux", "--ip", "1.2.3.4/24"], &["--ip", "for a vm"]),
            (&["--bind", "::"], &["--bind", "for a process"]),
            (&["--restart", "--trace"], &["--restart", "--trace"]),
        ] {
            let all = [&["run", &image][..], arguments].concat();
            refuses(&folder, &all, words);
        }
        let socket = path(&folder.file("card"));
        refuses(&folder, &["tap", "no-such-tap", "--socket", &socket], &["no-such-tap", "ip tuntap"]);
        refuses(&folder, &["run", "--ranks", "2", "--net", "none", "--", "true"], &["--net", "for a vm"]);
        refuses(&folder, &["run", "--ranks", "2", "--cores", "2", "--", "true"], &["--cores", "ranks"]);
    });
}

#[test]
fn a_file_of_another_kind_is_refused() {
    within(LIMIT * 8, || {
        let folder = Folder::new("kind").unwrap();
        let noise = folder.file("noise");
        std::fs::write(&noise, [0x5a; 5000]).unwrap();
        refuses(&folder, &["report", &path(&noise)], &["noise"]);
        refuses(&folder, &["run", &path(&noise)], &["noise"]);
        std::fs::write(&noise, []).unwrap();
        refuses(&folder, &["report", &path(&noise)], &["noise"]);
        // A program of this machine is not an image.
        if programs::has_qemu() {
            refuses(&folder, &["run", "/bin/true", "--accel", "tcg"], &["/bin/true"]);
        }
    });
}

#[test]
fn a_process_that_is_not_there_is_told() {
    within(LIMIT * 4, || {
        let folder = Folder::new("pid").unwrap();
        let output = path(&folder.file("recording"));
        // Above the kernel's largest pid, so no process can have it.
        refuses(&folder, &["record", "--pid", "4194999", "--duration", "1", "--output", &output], &["4194999"]);
        refuses(&folder, &["record", "--name", "nobody-has-this-name", "--output", &output], &["nobody-has-this-name"]);
        let own = std::process::id().to_string();
        let nowhere = path(&folder.file("no/such/folder"));
        refuses(&folder, &["record", "--pid", &own, "--duration", "1", "--output", &nowhere], &["no/such/folder"]);
    });
}

#[test]
fn a_process_of_somebody_else_is_told() {
    within(LIMIT * 2, || {
        let folder = Folder::new("rights").unwrap();
        let Some(glass) = programs::built("glass") else { return };
        let mut command = Command::new("setpriv");
        // The user `nobody`, who may not read process 1.
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&glass);
        command.args(["record", "--pid", "1", "--duration", "1", "--output", "/dev/null"]);
        let can_change_user = Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .arg(&glass)
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success());
        if !can_change_user {
            return programs::skip("only root can run glass as another user");
        }
        let process = Process::spawn(&mut command, &folder.file("glass.log")).unwrap();
        check(process, &["record", "--pid", "1"], &["perm"]);
    });
}

#[test]
fn symbols_that_do_not_fit_the_guest_are_refused() {
    within(LIMIT * 6, || {
        let folder = Folder::new("symbols").unwrap();
        let Some(image) = programs::image("upload-queue") else { return };
        let disk = folder.file("queue.img");
        let Some(queue) = Queue::start(World::Tcg, &disk, &Options::default()).unwrap() else { return };
        let pid = queue.service_pid().unwrap().to_string();
        let stripped = folder.file("stripped");
        let status = Command::new("strip").arg("-o").arg(&stripped).arg(&image).status().unwrap();
        assert!(status.success());
        let output = path(&folder.file("recording"));
        let record = |symbols: &str, words: &[&str]| {
            let arguments = ["record", "--pid", &pid, "--duration", "1", "--output", &output, "--symbols", symbols];
            refuses(&folder, &arguments, words);
        };
        record(&path(&stripped), &["stripped", "symbols"]);
        record("/bin/true", &["/bin/true"]);
        record(&path(&folder.file("none")), &["none"]);
        assert!(queue.put(glass_tests::content::Content { seed: 1, length_bytes: 10 }).unwrap().status() == 200);
    });
}
