//! Attempts of the program `jail-prisoner`.

use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Could,
    Refused,
    /// By this signal.
    Killed(i32),
}
use End::{Could, Killed, Refused};

const PRISONER: &str = env!("CARGO_BIN_EXE_jail-prisoner");
const SIGSYS: End = Killed(libc::SIGSYS);

/// Tries something in a process of its own behind these walls, which leave `file` open. `None` if the host does not have them.
fn end(walls: &str, file: &str, attempt: &str, value: &str) -> Option<End> {
    let mut prisoner = Command::new(PRISONER);
    let prisoner = prisoner.args([walls, file, attempt, value]).stdin(Stdio::null());
    let output = prisoner.output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    if walls != "none" {
        let missing = printed.strip_suffix("in\n").unwrap_or_else(|| panic!("{walls} {attempt}: {errors}"));
        if !missing.is_empty() {
            println!("skipped: {walls} {attempt}: this host does not have {missing}");
            return None;
        }
    }
    Some(match (output.status.code(), output.status.signal()) {
        (Some(0), _) => Could,
        (Some(3), _) => Refused,
        (_, Some(signal)) => Killed(signal),
        _ => panic!("{walls} {attempt}: {} {errors}", output.status),
    })
}

/// Tries each, with a file that the walls leave open.
fn check(file: &str, cases: &[(&str, &str, &str, End)]) {
    for (walls, attempt, value, expected) in cases {
        if let Some(end) = end(walls, file, attempt, value) {
            assert_eq!(end, *expected, "{walls} {attempt} {value}");
        }
    }
}

/// A folder of this test's own.
fn folder(test: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("glass-jail-{}-{test}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn files_are_those_that_were_given() {
    let folder = folder("files");
    let [file, other] = ["file", "other"].map(|name| folder.join(name).display().to_string());
    let inner = folder.display().to_string();
    fs::write(&file, "text").unwrap();
    fs::write(&other, "text").unwrap();
    let cases = [
        ("none", "read", &*other, Could),
        ("files", "read", &*file, Could),
        ("files", "write", &*file, Refused),
        ("files", "read", &*other, Refused),
        ("written", "write", &*file, Could),
        ("written", "write", &*other, Refused),
        ("calls", "read", &*file, Refused),
        ("opens", "read", &*file, Could),
        ("all", "read", &*file, Refused),
    ];
    check(&file, &cases);
    let new = folder.join("new").display().to_string();
    check(
        &inner,
        &[("files", "write", &new, Refused), ("written", "write", &new, Could), ("written", "remove", &new, Could)],
    );
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn files_of_root_are_closed() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let folder = folder("root");
    let secret = folder.join("secret").display().to_string();
    fs::write(&secret, "text").unwrap();
    rustix::fs::chmod(&secret, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    for secret in ["/etc/shadow", &secret] {
        check(
            "/proc",
            &[("none", "read", secret, Could), ("user", "read", secret, Refused), ("files", "read", secret, Refused)],
        );
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn nothing_is_connected_to() {
    let folder = folder("connect");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let path = folder.join("socket").display().to_string();
    let _listener = UnixListener::bind(&path).unwrap();
    let cases = [
        ("none", "connect", &*address, Could),
        ("files", "connect", &*address, Refused),
        ("refused", "connect", &*address, Refused),
        ("calls", "connect", &*address, SIGSYS),
        ("all", "connect", &*address, SIGSYS),
        ("none", "connect-unix", &*path, Could),
        ("calls", "connect-unix", &*path, SIGSYS),
        ("all", "connect-unix", &*path, SIGSYS),
    ];
    check("/proc", &cases);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn other_processes_are_left_alone() {
    let cases = [
        ("none", "run", "", Could),
        // The program cannot be opened.
        ("files", "run", "", Refused),
        ("calls", "run", "", SIGSYS),
        ("all", "run", "", SIGSYS),
        ("none", "trace", "", Could),
        ("files", "trace", "", Refused),
        ("none", "signal", "", Could),
        ("files", "signal", "", Refused),
        ("calls", "signal", "", SIGSYS),
        ("calls", "thread", "", Could),
        ("all", "thread", "", Could),
    ];
    check("/proc", &cases);
    if rustix::process::geteuid().is_root() {
        check("/proc", &[("user", "trace", "", Refused), ("user", "signal", "", Refused)]);
    }
}

#[test]
fn memory_and_descriptors_have_limits() {
    let cases = [
        ("none", "allocate", "", Could),
        ("limits", "allocate", "", Refused),
        ("all", "allocate", "", Refused),
        ("none", "descriptors", "", Could),
        ("limits", "descriptors", "", Refused),
        ("limits", "nothing", "", Could),
        ("all", "nothing", "", Could),
    ];
    check("/proc", &cases);
}

/// `setpriv --pdeathsig` gives a child a signal for the end of its parent, which the kernel forgets when the user changes.
#[test]
fn a_process_still_ends_with_its_parent() {
    let mut parent = Command::new("setpriv");
    parent.args(["--pdeathsig", "KILL", "--"]).arg(PRISONER).args(["user", "/proc", "signal-of-parent", ""]);
    let output = parent.stdin(Stdio::null()).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.ends_with(&format!("{:?}\n", Some(libc::SIGKILL))), "{printed} {:?}", output.stderr);
}
