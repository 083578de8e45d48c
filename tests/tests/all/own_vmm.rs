//! Our own VMM: for which VMs `glass run` takes it, its jail, and how it ends.

use crate::buses::PCI;
use crate::suspended::{assert_walls, wait_until};
use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::limit::within;
use glass_tests::process::{self, Process, Signal};
use glass_tests::programs;
use glass_tests::queue::{Options, Queue, World};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(480);
const PATIENCE: Duration = Duration::from_secs(240);

fn options(more: &[&'static str]) -> Options {
    Options { vm: [&["--vmm", "own"], more].concat(), ..Options::default() }
}

/// A queue in a VM of our own; `None` where there cannot be one.
fn start(folder: &Folder, more: &[&'static str]) -> Option<Queue> {
    Queue::start(World::Kvm, &folder.file("queue.img"), &options(more)).unwrap()
}

fn item(seed: u64) -> Content {
    Content { seed, length_bytes: 300_000 }
}

/// `glass run` with options that come too late for a queue.
fn run(words: &[&str], folder: &Folder) -> Option<Process> {
    if let Some(reason) = World::Kvm.obstacle() {
        programs::skip(reason);
        return None;
    }
    let (glass, image) = (programs::built("glass")?, programs::image("faults")?);
    let mut command = Command::new(glass);
    command.arg("run").arg(image).args(["--accel", "kvm", "--net", "none"]).args(words);
    Some(Process::spawn(&mut command, &folder.file("log")).unwrap())
}

/// One process with all devices: it has no file of the host but what is open, and of a root it is no root.
#[test]
fn the_vmm_is_jailed() {
    within(LIMIT, || {
        let folder = Folder::new("own-jail").unwrap();
        let Some(queue) = start(&folder, &["--cores", "2"]) else { return };
        let pid = queue.service_pid().unwrap();
        let walls = assert_walls(pid);
        assert!(!walls.contains("Uid:\t0\t"), "{walls}");
        // Two processors, the disk, the card and the console, beside those that the kernel makes.
        let threads: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().collect();
        let status = |thread: &std::fs::DirEntry| std::fs::read_to_string(thread.path().join("status")).unwrap();
        let open: Vec<_> = threads.iter().map(status).filter(|status| !status.contains("Seccomp:\t2")).collect();
        assert!(threads.len() >= 5 && open.is_empty(), "{} threads, {open:?}", threads.len());
        queue.put(item(1)).unwrap();
        queue.take(item(1)).unwrap();
    });
}

/// Ten clients that upload and download at once, each over new connections, by the user network. None waits for what was lost, or longer.
#[test]
fn no_connection_of_the_user_network_stalls() {
    within(LIMIT, || {
        let folder = Folder::new("own-clients").unwrap();
        let Some(queue) = start(&folder, &["--net", "user"]) else { return };
        let longest = Mutex::new(Duration::ZERO);
        let client = |number: u64| {
            for round in 0..4 {
                let item = Content { seed: number << 8 | round, length_bytes: 3_000_000 };
                let begin = Instant::now();
                // The disk may be full for a moment, and there are as many items as clients.
                let status = queue.put(item).unwrap().status();
                assert!([200, 507].contains(&status), "client {number}, round {round}: {status}");
                let mut bytes = Vec::new();
                let response = queue.connect().unwrap().get_into("/downloader", &mut bytes).unwrap();
                if response.status() == 200 {
                    // Another client may have removed it already.
                    queue.connect().unwrap().request_if_match("DELETE", "/downloader", response.etag()).unwrap();
                }
                let mut longest = longest.lock().unwrap();
                *longest = begin.elapsed().max(*longest);
            }
        };
        std::thread::scope(|scope| {
            (0..10).for_each(|number| {
                drop(scope.spawn({
                    let client = &client;
                    move || client(number)
                }))
            })
        });
        let longest = longest.into_inner().unwrap();
        assert!(longest < Duration::from_secs(20), "one waited for {longest:?}");
    });
}

/// What was answered is there after the VMM was killed, and the disk is free for the next one.
#[test]
fn nothing_is_lost_when_it_is_killed() {
    within(LIMIT, || {
        let folder = Folder::new("own-kill").unwrap();
        for round in 0..3 {
            let Some(queue) = start(&folder, &[]) else { return };
            for seed in 0..round {
                queue.take(item(seed)).unwrap();
            }
            for seed in 0..=round {
                assert_eq!(queue.put(item(seed)).unwrap().status(), 200);
            }
            let pid = queue.service_pid().unwrap();
            process::send(pid, Signal::KILL);
        }
    });
}

/// What a VMM that was taken over would try.
#[test]
fn an_end_by_the_jail_is_a_sentence() {
    within(LIMIT, || {
        let folder = Folder::new("own-ends").unwrap();
        let Some(mut queue) = start(&folder, &[]) else { return };
        process::send(queue.service_pid().unwrap(), Signal::SYS);
        wait_until("it does not end", || !queue.is_running());
        let said = queue.output();
        assert!(said.contains("it made a system call that its jail forbids"), "{said}");
    });
}

#[test]
fn with_restart_it_starts_again() {
    within(LIMIT, || {
        let folder = Folder::new("own-restart").unwrap();
        let Some(queue) = start(&folder, &["--restart"]) else { return };
        assert_eq!(queue.put(item(7)).unwrap().status(), 200);
        let pid = queue.service_pid().unwrap();
        process::send(pid, Signal::KILL);
        let is_new = || queue.service_pid().is_ok_and(|new| new != pid);
        wait_until("it does not start again", is_new);
        let answers = || glass_tests::queue::answer(queue.address, Duration::from_secs(1)).is_some();
        wait_until("it does not answer again", answers);
        queue.take(item(7)).unwrap();
    });
}

/// How a service ends reaches the caller, and what it printed last, too.
#[test]
fn its_exit_codes_are_those_of_qemu() {
    within(LIMIT, || {
        for (words, code, text) in [
            (&["--", "panic"][..], 101, "PANIC at"),
            (&["--", "null"], 102, "EXCEPTION"),
            (&["--", "error"], 1, "error:"),
        ] {
            let outcome = |vmm: &str| {
                let folder = Folder::new("own-codes").unwrap();
                let mut process = run(&[&["--vmm", vmm], words].concat(), &folder)?;
                let status = process.wait(PATIENCE).expect("it ends");
                Some((status.code(), process.output().contains(text), process.output()))
            };
            let (Some(ours), Some(qemus)) = (outcome("own"), outcome("qemu")) else { return };
            assert_eq!((ours.0, ours.1), (qemus.0, qemus.1), "{words:?}: {} and {}", ours.2, qemus.2);
            if words[1] != "error" {
                assert_eq!((ours.0, ours.1), (Some(code), true), "{}", ours.2);
            }
        }
    });
}

/// What ours lacks leads to QEMU, and to one sentence.
#[test]
fn qemu_runs_what_it_cannot() {
    within(LIMIT, || {
        let folder = Folder::new("own-lacks").unwrap();
        let Some(mut refused) = run(&[&["--vmm", "own"], PCI].concat(), &folder) else { return };
        assert_eq!(refused.wait(PATIENCE).and_then(|status| status.code()), Some(1));
        let said = refused.output();
        assert!(said.contains("our own VMM cannot run this VM: it has no PCI; use --vmm qemu, or auto"), "{said}");
        let Some(mut auto) = run(&[PCI, &["--", "panic"]].concat(), &folder) else { return };
        auto.wait(PATIENCE);
        let said = auto.output();
        assert!(said.contains("with kvm, 64 MiB; by QEMU, because it has no PCI"), "{said}");
    });
}
