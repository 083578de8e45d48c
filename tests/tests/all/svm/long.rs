//! What takes longer: a kernel with page tables of its own for user space (KPTI), other kinds of machines, `perf kvm` as a judge, and the profiler's own
//! tests of KVM, unchanged.

use super::guests::{Guests, RATE, SCRIPT};
use super::{Plan, assert_is_idle_as_counted, perf, stack};
use glass_tests::limit::say;
use glass_tests::linux;
use glass_tests::stacks::State;
use glass_tests::svm::Processor;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The machines.
pub const PLANS: &[Plan] = &[
    Plan {
        name: "kpti",
        processor: Processor::FourLevels,
        start: "linux linux 2 'pti=on load=nap'",
        cases: &[
            ("functions_as_perf_counts_them", functions_as_perf_counts_them),
            ("idle_as_linux_counts", idle_as_linux_counts),
        ],
    },
    Plan {
        name: "user",
        processor: Processor::FourLevels,
        start: "linux linux 2 'pti=on nohz_full=1 isolcpus=1 irqaffinity=0 load=user'",
        cases: &[("a_vcpu_that_is_always_in_user_space", a_vcpu_that_is_always_in_user_space)],
    },
    Plan {
        name: "five_levels",
        processor: Processor::FiveLevels,
        start: "linux linux 2",
        cases: &[("a_linux_of_two_vcpus", five_levels)],
    },
    Plan {
        name: "q35",
        processor: Processor::FourLevels,
        start: "linux linux 2 '' q35",
        cases: &[("a_linux_of_two_vcpus", super::a_linux_of_two_vcpus)],
    },
    Plan {
        name: "nodes",
        processor: Processor::FourLevels,
        start: "",
        cases: &[("a_linux_of_three_nodes", a_linux_of_three_nodes)],
    },
    Plan {
        name: "own",
        processor: Processor::FourLevels,
        start: "",
        cases: &[
            ("tests_of_vmms", |guests| own_tests(guests, "vmm::")),
            ("tests_of_kvm", |guests| own_tests(guests, "kvm::")),
            ("tests_of_layouts", |guests| own_tests(guests, "layouts::")),
        ],
    },
];

/// How far an idle share may be from what Linux counts.
const IDLE_ERROR_PERCENT_MAX: f64 = 5.0;
/// Most broken stacks, in percent.
const BROKEN_PERCENT_MAX: f64 = 1.0;
/// How long Linux may take to boot in a machine of three nodes.
const NODES_PATIENCE: Duration = Duration::from_secs(540);
/// One group of that program.
const OWN_TESTS: Duration = Duration::from_secs(1200);

/// The share of each function of the guest, as `glass` and as `perf kvm` on the same machine see it at the same time.
fn functions_as_perf_counts_them(guests: &mut Guests) {
    guests.wait_for_linux();
    let flags = guests.linux_flags();
    assert!(flags.contains(&"pti".to_owned()), "{flags:?}");
    guests.run(
        "setsid perf kvm --guest --guestkallsyms=kallsyms --guestmodules=/dev/null record -a -e cpu-clock -F 100 -o perf.data \\
            >perf.log 2>&1 </dev/null & echo $! >perf.pid",
    );
    let (tracks, counted) = guests.record_beside_linux("judged", "--symbols kallsyms --duration 80");
    guests.run(
        "kill -INT $(cat perf.pid)
        gone() { ! kill -0 $(cat perf.pid); }
        wait_for 60 'perf has ended' gone
        perf script --guestkallsyms=kallsyms --guestmodules=/dev/null -i perf.data -F misc,ip >$shared/perf.script 2>perf.error
        cp kallsyms $shared/kallsyms",
    );
    let info: serde_json::Value = serde_json::from_str(&guests.glass(&["info", "judged.pftrace", "--json"])).unwrap();
    say(&format!("judged: {}", info["cost"]));
    let judge = perf::Judge::new(&guests.lab.text("perf.script"), &guests.lab.text("kallsyms"), guests.linux_text());
    let stacks: Vec<linux::Stack> = tracks
        .iter()
        .flat_map(|track| track.known().filter(|piece| piece.state == State::Running))
        .map(stack)
        .collect();
    judge.compare(&stacks);
    let weight = |stacks: &mut dyn Iterator<Item = &linux::Stack>| stacks.map(|stack| stack.weight).sum::<u64>() as f64;
    let broken = weight(&mut stacks.iter().filter(|stack| stack.broken.is_some())) * 100.0 / weight(&mut stacks.iter());
    say(&format!("judged: {broken:.2} % of the running time has broken stacks"));
    assert!(broken <= BROKEN_PERCENT_MAX);
    assert_is_idle_as_counted(&tracks[1], &counted, IDLE_ERROR_PERCENT_MAX);
}

/// The idle share of a vCPU that naps, with symbols and without.
fn idle_as_linux_counts(guests: &mut Guests) {
    guests.wait_for_linux();
    for (name, symbols) in [("with", "--symbols kallsyms"), ("without", "")] {
        let (tracks, counted) = guests.record_beside_linux(name, &format!("{symbols} --duration 40"));
        assert_is_idle_as_counted(&tracks[1], &counted, IDLE_ERROR_PERCENT_MAX);
    }
}

/// A vCPU whose page tables, whenever it is stopped, are those of a process without the kernel.
fn a_vcpu_that_is_always_in_user_space(guests: &mut Guests) {
    const ATTACHES: u32 = 20;
    guests.wait_for_linux();
    let flags = guests.linux_flags();
    assert!(flags.contains(&"pti".to_owned()), "{flags:?}");
    let mut failed = Vec::new();
    for attach in 0..ATTACHES {
        let name = format!("user-{attach}");
        let script = format!(
            "glass record --pid $(cat linux.pid) --vcpu 1 --symbols kallsyms {RATE} --duration 1 --output $shared/{name}.pftrace"
        );
        match guests.lab.run(&script, SCRIPT) {
            Err(error) if guests.lab.machine.failure().is_some() => panic!("{error:#}"),
            Err(error) => failed.push(format!("{error:#}")),
            Ok(_) => {
                let tracks = guests.tracks(&name);
                let [track] = &tracks[..] else { panic!("{tracks:?}") };
                let known: u64 = track.known().map(|piece| piece.ns).sum();
                let user: u64 =
                    track.known().filter(|piece| piece.functions == ["[guest user space]"]).map(|piece| piece.ns).sum();
                assert!(known > 0 && user * 100 >= known * 95, "{track:?}");
            }
        }
    }
    assert!(failed.is_empty(), "{} of {ATTACHES} attaches failed: {failed:#?}", failed.len());
    guests.assert_linux_is_released();
}

/// Page tables of five levels.
fn five_levels(guests: &mut Guests) {
    guests.wait_for_linux();
    let flags = guests.linux_flags();
    assert!(flags.contains(&"la57".to_owned()), "{flags:?}");
    super::a_linux_of_two_vcpus(guests);
}

/// A Linux whose RAM is three files, in an order that nothing but its memory shows to a process that may run no BPF program: its page tables lie in all of
/// them.
fn a_linux_of_three_nodes(guests: &mut Guests) {
    const WITHOUT_BPF: &str =
        "setpriv --bounding-set -bpf,-perfmon,-sys_admin --inh-caps -bpf,-perfmon,-sys_admin glass record";
    let node = |(id, mib): (&str, u32)| {
        format!("-object memory-backend-memfd,id={id},size={mib}M,share=on -numa node,memdev={id}")
    };
    let nodes = [("a", 64), ("b", 192), ("c", 128)].map(node).join(" ");
    guests.run(&format!(
        "grep -v ']$' /proc/kallsyms >kallsyms
        setsid qemu-system-x86_64 -name nodes -M q35 -accel kvm -cpu host -smp 2 -m 384 {nodes} -nodefaults -no-user-config -display none \
            -no-reboot -serial file:$shared/nodes.log -pidfile nodes.pid -kernel $image/kernel -initrd $image/guest-files \
            -append 'console=ttyS0 earlyprintk=ttyS0 panic=-1 quiet cryptomgr.notests' >$shared/nodes.end 2>&1 </dev/null &"
    ));
    guests.lab.wait_for_text("nodes.log", "LINUX READY", NODES_PATIENCE).unwrap();
    for (name, record) in [("slots", "glass record"), ("mappings", WITHOUT_BPF)] {
        let said = guests.run(&format!(
            "{record} --pid $(cat nodes.pid) --backend kvm --symbols kallsyms {RATE} --duration 8 --output $shared/{name}.pftrace 2>&1"
        ));
        assert!(!said.contains("some of its RAM is not known"), "{name}: {said}");
        let tracks = guests.tracks(name);
        let known: Vec<_> = tracks.iter().flat_map(|track| track.known()).collect();
        let broken = known.iter().filter(|piece| piece.broken.is_some()).count();
        assert!(
            broken as f64 <= known.len() as f64 * BROKEN_PERCENT_MAX / 100.0,
            "{name}: {broken} of {}",
            known.len()
        );
        assert!(known.len() > 20, "{name}: {known:?}");
    }
}

/// The profiler's tests with this name, built for this machine.
fn own_tests(guests: &mut Guests, name: &str) {
    let program = own_test_program(guests.glass.parent().unwrap());
    let script = format!("GLASS_TESTS_REQUIRED=1 {} {name} --test-threads 1 2>&1 | cat", program.display());
    let output = guests.lab.run(&script, OWN_TESTS).unwrap();
    // Not as results of this program.
    output.lines().for_each(|line| say(&format!("  | {line}")));
    assert!(output.contains("test result: ok") && !output.contains("skipped "), "{name}");
}

/// The newest test program that has them, among those that cargo has built.
fn own_test_program(programs: &Path) -> PathBuf {
    const TEST: &str = "vmm::every_choice_of_four_vcpus: test";
    let files = std::fs::read_dir(programs.join("deps")).unwrap().map(|entry| entry.unwrap().path());
    let is_program =
        |file: &PathBuf| file.extension().is_none() && file.file_name().unwrap().to_string_lossy().starts_with("all-");
    let mut files: Vec<PathBuf> = files.filter(is_program).collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.metadata().unwrap().modified().unwrap()));
    let has_test = |file: &PathBuf| {
        let output = Command::new(file).arg("--list").output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains(TEST)
    };
    files.into_iter().find(has_test).expect("no test program of the crate of guests is built")
}
