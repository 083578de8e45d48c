//! Host names: a VM sends queries to a name server, which here is a part of the test.

use glass_tests::folder::Folder;
use glass_tests::limit::SetOnDrop;
use glass_tests::process::Process;
use glass_tests::programs;
use glass_tests::queue::World;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

glass_tests::in_worlds!(kvm Kvm: a_vm_uses_the_name_server_that_it_was_given within 300;);
glass_tests::in_worlds!(tcg Tcg: a_vm_uses_the_name_server_that_it_was_given within 300;);

const LIMIT: Duration = Duration::from_secs(240);
/// The address of the test's answers: not one of the network's.
const ANSWER: [u8; 4] = [192, 0, 2, 55];

fn resolve(options: &[&str], name: &str) -> Option<(bool, String)> {
    let folder = Folder::new("names").unwrap();
    let (glass, image) = (programs::built("glass")?, programs::image("faults")?);
    let mut command = Command::new(glass);
    command.arg("run").arg(image).args(options).args(["--", "resolve", name]);
    let mut process = Process::spawn(&mut command, &folder.file("log")).unwrap();
    let status = process.wait(LIMIT).unwrap_or_else(|| panic!("it does not end: {}", process.output()));
    Some((status.success(), process.output()))
}

fn a_vm_uses_the_name_server_that_it_was_given(world: World) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    // One at a time: there is one such port.
    static PORT: Mutex<()> = Mutex::new(());
    let _mine = PORT.lock();
    // Only this port is passed on: QEMU's network gives the VM 10.0.2.2 for the host's loopback.
    let server = match UdpSocket::bind("127.0.0.1:53") {
        Ok(server) => server,
        Err(error) => return programs::skip(&format!("port 53 of the loopback cannot be had: {error}")),
    };
    server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buf = [0; 600];
            let end = Instant::now() + 3 * LIMIT;
            while !is_over.load(Ordering::Relaxed) && Instant::now() < end {
                let Ok((count, from)) = server.recv_from(&mut buf) else { continue };
                let mut answer = buf[..count].to_vec();
                let is_known = answer[12..].starts_with(b"\x05queue\x07example\0");
                (answer[2], answer[3]) = (0x81, if is_known { 0x80 } else { 0x83 });
                if is_known {
                    answer[7] = 1;
                    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                    answer.extend(ANSWER);
                }
                server.send_to(&answer, from).unwrap();
            }
        });
        let _end = SetOnDrop(&is_over);
        let accel = world.to_string();
        let check = |name: &str, is_known: bool, text: &str| {
            let Some((success, output)) = resolve(&["--accel", &accel, "--dns", "10.0.2.2"], name) else { return };
            assert_eq!(success, is_known, "{name}: {output}");
            assert!(output.contains(text), "{name}: {output}");
        };
        check("queue.example", true, "queue.example is 192.0.2.55");
        check("nothing.example", false, "there is no host of this name");
    });
}
