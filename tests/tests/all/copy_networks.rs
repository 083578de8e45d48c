//! Copies behind TAP devices, and copies that start when a client comes.

use crate::copies::{Template, report, report_of};
use glass_tests::limit::within;
use glass_tests::netns::{self, Namespace};
use glass_tests::port::free_ports;
use glass_tests::process::{Process, descendants};
use glass_tests::programs;
use glass_tests::queue::World;
use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(480);
const COPIES: u8 = 3;
/// The host, the template, and the first copy.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const TEMPLATE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 60);

fn at(address: Ipv4Addr) -> SocketAddr {
    (address, 8080).into()
}

/// The link-local address of a copy, made of its card's address 2:0:10:77:0:60 and following (RFC 4291, appendix A).
fn link_local(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0x0aff, 0xfe4d, u16::from(FIRST.octets()[3] + number))
}

/// A bridge with a TAP device for the template and one for each copy, and a snapshot of the template, which has these options.
fn bridged(kind: &str, options: &[&str]) -> Option<(Namespace, Template, PathBuf)> {
    if let Some(reason) = World::Kvm.obstacle().or(netns::obstacle()) {
        programs::skip(reason);
        return None;
    }
    let near = Namespace::new().unwrap();
    near.bridge(&["tap0", "copy0", "copy1", "copy2"]).unwrap();
    near.add_address("bridge0", HOST).unwrap();
    let name = format!("{kind}-{}", std::process::id());
    let template = Template::boot_in(&near, &name, options)?;
    let snapshot = template.folder.file("snapshot");
    let (is_taken, text) = template.snapshot(&name, &snapshot);
    assert!(is_taken, "{text}");
    Some((near, template, snapshot))
}

#[test]
fn copies_behind_tap_devices_have_addresses_of_their_own() {
    within(LIMIT, || {
        let ip = format!("{TEMPLATE}/24,{HOST}");
        let Some((near, template, snapshot)) = bridged("bridged", &["--ip", &ip]) else { return };
        let before = near.inside(|| Ok(report_of(at(TEMPLATE)))).unwrap();
        assert_eq!(before.generation, 0);

        let count = COPIES.to_string();
        let refused = |words: &[&str]| {
            let mut command = near.command(&template.glass);
            let output = command.args(["run", "--from"]).arg(&snapshot).args(words).output().unwrap();
            assert!(!output.status.success());
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let text = refused(&["--net", "tap=copy0", "--copies", &count]);
        assert!(text.contains("write {} in its name"), "{text}");
        let text = refused(&["--net", "tap=copy{}", "--copies", "9"]);
        assert!(text.contains("no network device copy3"), "{text}");
        let text = refused(&["--net", "tap=copy{}", "--copies", &count, "--ip", "10.77.0.253/24"]);
        assert!(text.contains("no address for copy 2"), "{text}");
        let text = refused(&["--ip", "10.77.0.60/24"]);
        assert!(text.contains("leave out --ip"), "{text}");
        let text = refused(&["--port", &format!("{}:8080", free_ports(1).unwrap())]);
        assert!(text.contains("the kind of network of its template"), "{text}");

        let mut command = near.command(&template.glass);
        command.args(["run", "--from"]).arg(&snapshot).args(["--net", "tap=copy{}", "--copies", &count]);
        command.args(["--ip", &format!("{FIRST}/24,{HOST}")]);
        let mut copies = Process::spawn(&mut command, &template.folder.file("copies.log")).unwrap();
        let bridge = near.index("bridge0").unwrap();
        let (mut words, mut generations) = (HashSet::new(), HashSet::new());
        before.words.iter().for_each(|word| assert!(words.insert(*word)));
        for number in 0..COPIES {
            let address = Ipv4Addr::from_bits(FIRST.to_bits() + u32::from(number));
            let copy = near.inside(|| Ok(report_of(at(address)))).unwrap();
            assert!(generations.insert(copy.generation) && copy.generation != 0, "{copy:?}");
            assert!(copy.words.iter().all(|word| words.insert(*word)), "{copy:?}");
            // It has an IPv6 address of its card, too.
            let address = SocketAddrV6::new(link_local(number), 8080, 0, bridge);
            let same = near.inside(|| Ok(report_of(address.into()))).unwrap();
            assert_eq!(same.generation, copy.generation);
        }
        assert!(copies.ended().is_none() && !copies.output().contains("glass: copy "), "{}", copies.output());
        // The template has its address still.
        let after = near.inside(|| Ok(report_of(at(TEMPLATE)))).unwrap();
        assert_eq!((after.generation, after.failed), (0, 0));
        assert!(copies.interrupt(LIMIT), "{}", copies.output());
    });
}

#[test]
fn copies_on_demand_start_with_their_first_client() {
    within(LIMIT, || {
        let name = format!("demanded-{}", std::process::id());
        let Some(template) = Template::boot(&name, &[]) else { return };
        let snapshot = template.folder.file("snapshot");
        let (is_taken, text) = template.snapshot(&name, &snapshot);
        assert!(is_taken, "{text}");
        let text = template.refusal(&snapshot, &["--on-demand"]);
        assert!(text.contains("give --port"), "{text}");

        let first = free_ports(COPIES.into()).unwrap();
        let mut command = template.run_from(&snapshot, &["--on-demand", "--copies", &COPIES.to_string()]);
        command.args(["--port", &format!("{first}:8080")]);
        let mut copies = Process::spawn(&mut command, &template.folder.file("copies.log")).unwrap();
        copies.wait_for_text("is forwarded", LIMIT, || ());
        // `glass run`, and the process that waits for clients.
        let started = || descendants(copies.pid()).len();
        let mut generations = HashSet::new();
        let mut before = 0;
        for index in [2, 0, 2] {
            let copy = report(first + index);
            assert_ne!(copy.generation, 0);
            let is_new = generations.insert((index, copy.generation));
            assert_eq!(started() > before, is_new, "{}", copies.output());
            before = started();
        }
        assert_eq!(generations.len(), 2);
        // The end is that of those that have started, and of the one that has not.
        assert!(copies.interrupt(LIMIT), "{}", copies.output());
        assert!(!copies.output().contains("glass: copy "), "{}", copies.output());
    });
}
