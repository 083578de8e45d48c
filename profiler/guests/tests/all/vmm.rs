//! Samples a bare guest in a small VMM of our own by ptrace: what QEMU does not do on request. Skipped
//! where `/dev/kvm` cannot be used.

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::vmm::{Order, Vmm};
use crate::common::{PATIENCE, assert_survives_kills, cores_of, take_of};
use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_core::images::Images;
use glass_profiler_core::model::State;
use glass_profiler_guests::backends::kvm::KvmVm;
use glass_profiler_guests::backends::paced::Paced;
use glass_profiler_guests::files::HostFiles;
use glass_profiler_guests::find::{self, Found};
use glass_profiler_guests::{Flow, Guest, GuestError, KnownVm, Source, VmSettings};
use glass_tests::folder::Folder;
use glass_tests::process::Process;

fn attach(vmm: &Vmm) -> Result<KnownVm<KvmVm>, GuestError> {
    KvmVm::attach(&vmm.vm(), vmm.settings())
}

fn samples(vmm: &Vmm, guest: KnownVm<KvmVm>, count: usize) -> Duration {
    let (judges, pauses) = take_of(&vmm.elf, vmm.rounds_are_long, guest, 997, count);
    assert_eq!(judges.keys().copied().collect::<Vec<_>>(), [0]);
    vmm.assert_runs("after detaching");
    let pauses = pauses.distribution();
    eprintln!("pause {pauses:?}");
    Duration::from_nanos(pauses.median_ns)
}

/// The filter ends the VMM at any call that is not `KVM_RUN`.
#[test]
fn a_vmm_with_a_filter_of_system_calls() {
    let Some(vmm) = Vmm::start("seccomp", &["seccomp", "signals=300"]) else { return };
    samples(&vmm, attach(&vmm).unwrap(), 500);
}

/// Each signal is sent after the one before has arrived, so all of them can be counted.
fn expect_all_signals(vmm: &mut Vmm) {
    vmm.wait_for("a signal has arrived", |vmm| vmm.seen().sent == vmm.seen().received && vmm.seen().sent > 100);
    assert_eq!(vmm.seen().swallowed, 0);
}

#[test]
fn no_signal_is_lost_or_doubled() {
    let Some(mut vmm) = Vmm::start("signals", &["signals=1000"]) else { return };
    let mut guest = Paced::new(attach(&vmm).unwrap(), 2000);
    guest.announce(&mut |_| ()).unwrap();
    let (before, mut count) = (vmm.seen(), 0u32);
    let wanted = if crate::common::is_long() { 20_000 } else { 3000 };
    while count < wanted {
        let flow = guest.collect(Duration::from_millis(50), &mut |event| {
            count += u32::from(matches!(event, Event::Sample(_)));
        });
        assert_eq!(flow.unwrap(), Flow::More);
    }
    let handed_on = guest.guest().signals_handed_on();
    guest.detach(&mut |_| ()).unwrap();
    expect_all_signals(&mut vmm);
    let seen = vmm.seen();
    assert!(handed_on > 100, "{handed_on} signals came while the thread was traced");
    // `KVM_RUN` fails for its VMM only where a signal has come, as without us; the last may be on its way.
    let (signals, interrupted) = (seen.received - before.received, seen.interrupted - before.interrupted);
    eprintln!("{count} samples, {signals} signals, {interrupted} interrupted calls");
    assert!(interrupted <= signals + 2, "{interrupted} of {signals}");
}

#[test]
fn every_choice_of_four_vcpus() {
    let Some(vmm) = Vmm::start("four", &["vcpus=4"]) else { return };
    for choice in 1..16_u32 {
        let chosen: Vec<u32> = (0..4).filter(|vcpu| choice >> vcpu & 1 == 1).collect();
        let guest = KvmVm::attach(&vmm.vm(), VmSettings { vcpus: chosen.clone(), ..vmm.settings() }).unwrap();
        let cores = cores_of(&vmm.elf, guest, 40 * chosen.len());
        let expected: Vec<(u32, u8)> = chosen.iter().map(|vcpu| (*vcpu, 1 << vcpu)).collect();
        assert_eq!(cores, expected, "marks show which core it was");
    }
    vmm.assert_runs("after detaching");
}

/// The names of threads are their VMM's: what they run is checked.
#[test]
fn threads_with_the_names_of_each_other() {
    let Some(vmm) = Vmm::start("misnamed", &["vcpus=4", "misnamed"]) else { return };
    let guest = KvmVm::attach(&vmm.vm(), vmm.settings()).unwrap();
    let cores = cores_of(&vmm.elf, guest, 200);
    assert_eq!(cores, (0..4).map(|vcpu| (vcpu, 1 << vcpu)).collect::<Vec<(u32, u8)>>());
    vmm.assert_runs("after detaching");
    // Of one alone the other is not known.
    match KvmVm::attach(&vmm.vm(), VmSettings { vcpus: vec![1], ..vmm.settings() }) {
        Ok(guest) => assert_eq!(cores_of(&vmm.elf, guest, 40), [(1, 2)]),
        Err(error) => assert!(error.to_string().contains("does not run"), "{error}"),
    }
    vmm.assert_runs("after a failed attach");
}

#[test]
fn an_attach_stops_a_vcpu_once_for_its_registers_and_not_to_find_it() {
    let Some(vmm) = Vmm::start("stops", &["vcpus=2"]) else { return };
    let guest = attach(&vmm).unwrap();
    assert!(guest.stops() <= 2, "{} stops", guest.stops());
}

/// Samples for some time; what is seen of the first vCPU.
fn watch(guest: &mut KnownVm<KvmVm>, time: Duration) -> Vec<RawSample> {
    let (start, mut seen) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        guest.rest(glass_profiler_guests::read_clocks().monotonic_ns + 2_000_000).unwrap();
        for sample in guest.sample_all().unwrap().unwrap() {
            seen.extend(Some(sample).filter(|sample| sample.track == 0));
        }
    }
    seen
}

fn count(samples: &[RawSample], state: State) -> usize {
    samples.iter().filter(|sample| sample.state == state).count()
}

/// Samples of a vCPU that runs, or would if the host or the VMM let it.
fn active(samples: &[RawSample]) -> usize {
    [State::Running, State::Stolen, State::InVmm].into_iter().map(|state| count(samples, state)).sum()
}

/// How soon a VM that is paused is seen to be, and how long it is watched after that.
const SEEN: Duration = Duration::from_millis(200);
const WATCHED: Duration = Duration::from_millis(300);

/// A VM that was paused while it was sampled was shown as running, at one address (2026-11-25).
#[test]
fn a_vm_that_is_paused_while_it_is_sampled_is_shown_so() {
    let Some(mut vmm) = Vmm::start("paused", &["vcpus=2"]) else { return };
    let mut guest = attach(&vmm).unwrap();
    assert!(guest.remark().is_none());
    for round in 0..3 {
        let running = watch(&mut guest, WATCHED);
        assert_eq!(active(&running), running.len(), "{round}");
        pause_while_sampled(&mut vmm, &mut guest);
        let before = (vmm.rounds(0), vmm.rounds(1));
        watch(&mut guest, SEEN);
        let paused = watch(&mut guest, WATCHED);
        assert!(paused.len() > 10, "{} samples, {round}", paused.len());
        assert_eq!(count(&paused, State::Paused), paused.len(), "{round}");
        assert!(paused.iter().all(|sample| sample.frozen_ns == 0), "it is not stopped in addition");
        let stack = |sample: &RawSample| sample.segments[0].clone();
        assert!(paused.iter().all(|sample| stack(sample) == stack(&paused[0])), "where it stands");
        assert!(!paused[0].segments[0].stack[0].1.is_empty(), "with its stack");
        assert_eq!((vmm.rounds(0), vmm.rounds(1)), before, "it ran meanwhile");
        vmm.order(Order::Continue);
        vmm.assert_runs("when its owner lets it");
    }
    watch(&mut guest, SEEN);
    let remark = guest.remark().unwrap();
    assert!(remark.contains("was paused by its owner"), "{remark}");
    guest.detach().unwrap();
    vmm.assert_runs("after detaching");
}

/// Signals of the VMM go through the hands of the profiler, so it has to sample while the VMM pauses.
fn pause_while_sampled(vmm: &mut Vmm, guest: &mut KnownVm<KvmVm>) {
    vmm.order(Order::Pause);
    let start = Instant::now();
    while !vmm.has_done(Order::Pause) {
        assert!(start.elapsed() < PATIENCE, "it is not paused");
        watch(guest, Duration::from_millis(5));
    }
}

/// For how long each thread of a process has waited for a CPU, in nanoseconds.
fn waited_ns(pid: u32) -> Vec<(u32, u64)> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |thread: std::fs::DirEntry| {
        let id = thread.file_name().to_str().unwrap().parse().unwrap();
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap();
        (id, text.split_whitespace().nth(1).unwrap().parse().unwrap())
    };
    threads.map(|thread| of(thread.unwrap())).collect()
}

/// A vCPU that shares its CPU with another process has half of it, and stands for the other half.
#[test]
fn stolen_time_is_what_the_host_counts() {
    const POINTS: f64 = 5.0;
    let Some(vmm) = Vmm::start("stolen", &[]) else { return };
    let folder = Folder::new("busy").unwrap();
    let mut busy = Command::new("taskset");
    busy.args(["-c", "0", "sh", "-c", "while :; do :; done"]);
    let _busy = Process::spawn(&mut busy, &folder.file("log")).unwrap();
    let pinned = Command::new("taskset").args(["-a", "-c", "-p", "0", &vmm.child.id().to_string()]).output().unwrap();
    assert!(pinned.status.success(), "{}", String::from_utf8_lossy(&pinned.stderr));
    let mut source = Paced::new(attach(&vmm).unwrap(), 997);
    source.announce(&mut |_| ()).unwrap();
    let (start, before) = (Instant::now(), waited_ns(vmm.child.id()));
    let mut seen: Vec<RawSample> = Vec::new();
    while start.elapsed() < Duration::from_secs(4) {
        let flow = source.collect(Duration::from_millis(50), &mut |event| {
            if let Event::Sample(sample) = event {
                seen.push(sample);
            }
        });
        assert_eq!(flow.unwrap(), Flow::More);
    }
    // It waits for nothing while it is stopped for samples.
    let stopped_ns: u64 = seen.iter().map(|sample| sample.frozen_ns).sum();
    let elapsed_ns = start.elapsed().as_nanos() as f64 - stopped_ns as f64;
    let waited = waited_ns(vmm.child.id()).into_iter().zip(before).map(|((_, now), (_, before))| now - before);
    // Only the vCPU's thread runs, and waits to.
    let expected = waited.max().unwrap() as f64 * 100.0 / elapsed_ns;
    let stolen = count(&seen, State::Stolen) as f64 * 100.0 / seen.len() as f64;
    println!("{stolen:.1} % of {} samples stolen, {expected:.1} % by the host", seen.len());
    assert!(
        (stolen - expected).abs() <= POINTS,
        "{stolen} % of {} samples are stolen, the host counts {expected} %",
        seen.len()
    );
    assert!(expected > 25.0, "{expected} %: nothing was stolen");
    let counts = source.counts();
    assert!(counts.losses.samples() * 10 < counts.delivered, "{counts:?}");
    source.detach(&mut |_| ()).unwrap();
    vmm.assert_runs("after detaching");
}

/// The ticks of this machine's clock, which the guest reads, too: it is one of x86-64.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// The ticks of this machine's clock, which the guest reads, too.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, and Linux permits it; it touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// vCPUs that were sampled one just after the other showed how they waited for the lock of one that had just stood (2026-11-25).
#[test]
fn waiting_for_a_lock_is_not_overcounted() {
    const POINTS: f64 = 2.0;
    const VCPUS: u64 = 4;
    let Some(vmm) = Vmm::start_with("contends", &["-DCONTENDS"], &["vcpus=4"]) else { return };
    let mut source = Paced::new(attach(&vmm).unwrap(), 997);
    let (mut images, mut files) = (Images::default(), HostFiles::default());
    source.announce(&mut |event| images.learn(&event, &mut files)).unwrap();
    let (start, before, start_ticks) = (Instant::now(), vmm.words("waited", VCPUS), ticks());
    let (mut all, mut waiting) = (0u32, 0u32);
    let mut waits: HashMap<u64, bool> = HashMap::new();
    while start.elapsed() < Duration::from_secs(8) {
        let flow = source.collect(Duration::from_millis(50), &mut |event| {
            let Event::Sample(sample) = event else { return };
            let stack = images.unwind(&sample);
            // Each is looked up once: what that may cost in all is bounded.
            let mut is_waiting = stack.calls.iter().map(|call| {
                *waits.entry(call.address).or_insert_with(|| {
                    let names = images.names(call.image.unwrap(), &mut files).unwrap();
                    names.locate(call.address).pop().unwrap().function == "acquire"
                })
            });
            all += 1;
            waiting += u32::from(is_waiting.any(|waits| waits));
        });
        assert_eq!(flow.unwrap(), Flow::More);
    }
    let elapsed = (ticks() - start_ticks) * VCPUS;
    let waited: u64 = vmm.words("waited", VCPUS).iter().zip(before).map(|(now, before)| now - before).sum();
    let (expected, sampled) = (waited as f64 * 100.0 / elapsed as f64, f64::from(waiting) * 100.0 / f64::from(all));
    println!("{sampled:.2} % of {all} samples wait for the lock, {expected:.2} % by the guest");
    assert!((sampled - expected).abs() <= POINTS, "{sampled} % of {all} samples wait, {expected} % of the time");
    source.detach(&mut |_| ()).unwrap();
    vmm.assert_runs("after detaching");
}

/// The thread of a halted vCPU waits on a condition too, if the VMM has the APIC: such a guest is idle.
#[test]
fn a_vcpu_whose_vmm_waits_for_its_interrupts_is_idle() {
    let Some(mut vmm) = Vmm::start_with("halts", &["-DHALTS"], &[]) else { return };
    let mut guest = attach(&vmm).unwrap();
    let seen = watch(&mut guest, Duration::from_secs(1));
    let (idle, running) = (count(&seen, State::Idle), active(&seen));
    assert_eq!(idle + running, seen.len(), "it is not paused");
    // It halts for 50 ms in turn with some 10 of computing, or with more where rdtsc is emulated.
    assert!(idle * 4 > seen.len() && running * 50 > seen.len(), "{idle} idle and {running} running");
    assert!(guest.remark().is_none());
    guest.detach().unwrap();
    vmm.wait_for("it halts and runs", |vmm| vmm.rounds(0) > 20);
}

/// KVM polls before a halted vCPU's thread sleeps: that was running (2026-11-25).
#[test]
fn a_halted_vcpu_whose_thread_does_not_sleep_is_idle() {
    let Some(vmm) = Vmm::start_with("polls", &["-DHALTS"], &["apic"]) else { return };
    let mut guest = attach(&vmm).unwrap();
    let mut seen = Vec::new();
    for _ in 0..100 {
        seen.extend(watch(&mut guest, Duration::from_millis(2)));
        // KVM polls only where the thread has a CPU for itself. On a busy host the thread does not sleep either at a second sample
        // without a rest: it is on its way back.
        for sample in guest.sample_all().unwrap().unwrap() {
            seen.push(sample);
        }
    }
    let stolen = count(&seen, State::Stolen);
    assert_eq!(
        count(&seen, State::Idle) + stolen,
        seen.len(),
        "{} of {} running",
        count(&seen, State::Running),
        seen.len()
    );
    assert!(stolen * 2 < seen.len(), "{stolen} of {} stolen", seen.len());
    guest.detach().unwrap();
}

fn tracer(vmm: &Vmm, vcpu: u32) -> String {
    let status = std::fs::read_to_string(vmm.thread(vcpu).join("status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("TracerPid:")).unwrap().trim().to_owned()
}

#[test]
fn only_the_vcpus_that_are_wanted_are_touched() {
    let Some(vmm) = Vmm::start("wanted", &["vcpus=2"]) else { return };
    let guest = KvmVm::attach(&vmm.vm(), VmSettings { vcpus: vec![1], ..vmm.settings() }).unwrap();
    assert_eq!(tracer(&vmm, 0), "0");
    assert_ne!(tracer(&vmm, 1), "0");
    let (judges, _) = take_of(&vmm.elf, vmm.rounds_are_long, guest, 997, 300);
    assert_eq!(judges.iter().map(|(track, judge)| (*track, judge.cores)).collect::<Vec<_>>(), [(1, 2)]);
    let error = KvmVm::attach(&vmm.vm(), VmSettings { vcpus: vec![0, 7], ..vmm.settings() }).err().unwrap();
    assert!(error.to_string().contains("has no vCPU 7: choose of 0, 1 with"), "{error}");
    assert!(!error.is_of_the_backend());
}

#[test]
fn ram_that_only_the_vmm_has() {
    let Some(vmm) = Vmm::start("anonymous", &["anonymous"]) else { return };
    let mut guest = attach(&vmm).unwrap();
    let mut warnings = Vec::new();
    guest
        .announce(&mut |event| warnings.extend(Some(event).filter(|event| matches!(event, Event::Warning(_)))))
        .unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    samples(&vmm, guest, 500);
}

/// Two NUMA nodes of one size: nothing but their content shows which is the first.
#[test]
fn two_nodes_of_the_same_size() {
    let Some(vmm) = Vmm::start("nodes", &["nodes"]) else { return };
    samples(&vmm, attach(&vmm).unwrap(), 300);
}

#[test]
fn ram_that_may_shrink_is_read_as_a_file() {
    let Some(vmm) = Vmm::start("plain", &["plain"]) else { return };
    samples(&vmm, attach(&vmm).unwrap(), 500);
}

/// Samples until `until`, each within bounded time.
fn sample_until(guest: &mut KnownVm<KvmVm>, mut until: impl FnMut(Option<&[RawSample]>) -> bool) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "it is not noticed");
        let one = Instant::now();
        let samples = guest.sample_all().unwrap();
        assert!(one.elapsed() < Duration::from_secs(15), "a sample took {:?}", one.elapsed());
        if until(samples.as_deref()) {
            return;
        }
        guest.rest(glass_profiler_guests::read_clocks().monotonic_ns + 1_000_000).unwrap();
    }
}

#[test]
fn ram_that_goes_away_gives_empty_stacks() {
    let Some(vmm) = Vmm::start("shrinks", &["plain"]) else { return };
    let mut guest = attach(&vmm).unwrap();
    vmm.order(Order::ShrinkRam);
    sample_until(
        &mut guest,
        |samples| matches!(samples.unwrap(), [sample] if sample.segments[0].stack[0].1.is_empty()),
    );
    guest.detach().unwrap();
}

#[test]
fn a_vcpu_that_ends_leaves_the_other() {
    let Some(vmm) = Vmm::start("one-ends", &["vcpus=2"]) else { return };
    let mut guest = attach(&vmm).unwrap();
    vmm.order(Order::EndSecondVcpu);
    let mut alone = 0;
    sample_until(&mut guest, |samples| {
        alone += usize::from(matches!(samples.unwrap(), [sample] if sample.track == 0));
        alone == 10
    });
    guest.detach().unwrap();
    vmm.assert_runs("after detaching");
}

#[test]
fn a_vmm_that_becomes_another_program_has_ended() {
    let Some(vmm) = Vmm::start("exec", &["vcpus=2"]) else { return };
    let mut guest = attach(&vmm).unwrap();
    vmm.order(Order::Exec);
    sample_until(&mut guest, |samples| samples.is_none());
    guest.detach().unwrap();
}

/// Not a test of its own: what `a_killed_profiler_leaves_the_guest_running` kills.
#[test]
#[ignore = "runs in a process of its own, started by another test"]
fn sample_until_killed() {
    let (Ok(pid), Ok(elf)) = (std::env::var("GLASS_TEST_QEMU"), std::env::var("GLASS_TEST_ELF")) else { return };
    let Ok(Found::Vm(vm)) = find::by_pid(pid.parse().unwrap()) else { return };
    let mut guest = KvmVm::attach(&vm, VmSettings::new(2048, elf.into())).unwrap();
    let start = Instant::now();
    while start.elapsed() < PATIENCE && guest.sample_all().unwrap().is_some() {}
}

/// Two cores, signals and a filter: everything that could go wrong at once.
#[test]
fn a_killed_profiler_leaves_the_guest_running() {
    let Some(mut vmm) = Vmm::start("killed", &["vcpus=2", "signals=1000", "seccomp"]) else { return };
    assert_survives_kills(vmm.child.id(), &vmm.elf, "vmm::sample_until_killed", |moment| vmm.assert_runs(moment));
    expect_all_signals(&mut vmm);
    let (judges, _) = take_of(&vmm.elf, vmm.rounds_are_long, attach(&vmm).unwrap(), 997, 200);
    assert_eq!(judges.len(), 2);
}

/// How solo5-hvt, MirageOS's own VMM, has it.
#[test]
fn ram_that_is_shared_and_nameless_with_a_protected_part() {
    let Some(vmm) = Vmm::start("shared", &["shared"]) else { return };
    samples(&vmm, attach(&vmm).unwrap(), 200);
}

/// Its number is its APIC id, and those may have gaps: tracks were announced that did not exist (2026-11-22).
#[test]
fn only_vcpus_that_are_there_have_tracks() {
    let Some(vmm) = Vmm::start("gaps", &["vcpus=2", "gaps"]) else { return };
    for (chosen, expected) in [(vec![], vec![0, 2]), (vec![2], vec![2]), (vec![0], vec![0])] {
        let mut guest = KvmVm::attach(&vmm.vm(), VmSettings { vcpus: chosen, ..vmm.settings() }).unwrap();
        let mut tracks = Vec::new();
        let mut sink = |event| {
            if let Event::Track { track, id, .. } = event {
                assert_eq!(u64::from(track), id);
                tracks.push(track);
            }
        };
        guest.announce(&mut sink).unwrap();
        assert_eq!(tracks, expected);
        guest.detach().unwrap();
    }
}
