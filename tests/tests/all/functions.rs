//! Functions are traced while a program runs: exactly the chosen ones, with entries and exits that match, and the code is
//! restored afterwards.

use crate::traced::{Call, PATIENCE, Traced};
use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::limit::{SetOnDrop, say};
use glass_tests::process::{Process, descendants, name};
use glass_tests::programs::{self, Variant};
use glass_tests::queue::{Options, Queue, World};
use std::collections::HashSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

glass_tests::in_every_world! {
    chosen_functions_are_traced_and_then_no_more within 120;
    the_queue_does_not_notice_how_its_functions_are_switched within 240;
    a_trace_says_if_functions_are_not_traced within 60;
}

/// The functions of `busy --calls` that call each other in every way.
const SHAPES: [&str; 4] = ["busy::calls::shapes", "busy::calls::climb", "busy::calls::hand_over", "busy::calls::last"];
/// Rounds of them that are checked.
const ROUNDS: usize = 3;

fn chosen_functions_are_traced_and_then_no_more(world: World) {
    let folder = Folder::new("functions").unwrap();
    let Some(guest) = Traced::start(world, &folder) else { return };
    let before = guest.text();
    assert!(guest.writable_code().is_empty(), "{:x?}", guest.writable_code());

    let chosen = guest.choose(&SHAPES);
    assert_eq!(guest.functions_on(), SHAPES.len());
    let calls = guest.wait_for_calls(ROUNDS * 30);
    let names: HashSet<&str> = calls.iter().map(|(_, number, _)| guest.name(*number)).collect();
    assert_eq!(names, HashSet::from(SHAPES));
    check_shapes(&guest, &calls);
    assert!(guest.writable_code().is_empty(), "{:x?}", guest.writable_code());
    let outside = |text: &[u8]| guest.without_sleds(text, &chosen);
    assert_eq!(outside(&guest.text()), outside(&before), "only the chosen functions' sleds change");
    assert_ne!(guest.text(), before);

    guest.choose(&["busy::calls::climb"]);
    assert_eq!(guest.functions_on(), 1);
    let calls = guest.wait_for_calls(20);
    let names: HashSet<&str> = calls.iter().map(|(_, number, _)| guest.name(*number)).collect();
    assert_eq!(names, HashSet::from(["busy::calls::climb"]));

    guest.choose(&[]);
    assert_eq!(guest.functions_on(), 0);
    let count = guest.event_count();
    let lines = guest.lines();
    guest.wait_for_lines(lines + 3);
    assert_eq!(guest.event_count(), count, "nothing is traced any more");
    let after = guest.text();
    if world == World::Process {
        // A thread may be within a sled, so the bytes after the lead byte stay.
        assert_eq!(guest.leads(&after), guest.leads(&before));
        assert_eq!(outside(&after), outside(&before));
    } else {
        assert_eq!(after, before);
    }
    say(&format!("functions {world}: {count} events, then none"));
}

/// Follows the calls of the shapes as a reader of a trace does: recursion, and an end by a jump.
fn check_shapes(guest: &Traced, calls: &[(Call, u32, u64)]) {
    let begin = calls.iter().position(|(call, number, _)| *call == Call::Begin && guest.name(*number) == SHAPES[0]);
    let calls = &calls[begin.expect("a round starts")..];
    let mut stack: Vec<&str> = Vec::new();
    let (mut depth, mut tail_exits, mut rounds) = (0, 0, 0);
    let mut last_ticks = 0;
    let mut after_tail_exit = false;
    for (call, number, ticks) in calls {
        let name = guest.name(*number);
        assert!(*ticks >= last_ticks, "the clock of one core advances");
        last_ticks = *ticks;
        assert!(!after_tail_exit || *call == Call::Begin, "after a jump comes the function that is jumped to");
        after_tail_exit = *call == Call::Jump;
        if *call == Call::Begin {
            stack.push(name);
            depth = depth.max(stack.iter().filter(|name| **name == SHAPES[1]).count());
            continue;
        }
        assert_eq!(stack.pop(), Some(name), "the function that ends is the one entered last");
        assert!(*call == Call::Jump || name != SHAPES[2], "hand_over ends with a jump");
        tail_exits += usize::from(*call == Call::Jump && name == SHAPES[2]);
        rounds += usize::from(stack.is_empty() && name == SHAPES[0]);
    }
    assert!(rounds >= ROUNDS - 1, "{rounds} whole rounds");
    assert!(depth >= 2, "climb calls itself {depth} deep");
    assert!(tail_exits >= rounds, "{tail_exits} jumps in {rounds} rounds");
}

/// A VM with several cores cannot switch functions; a process with several threads can.
fn a_trace_says_if_functions_are_not_traced(world: World) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let folder = Folder::new("cores").unwrap();
    let is_process = world == World::Process;
    let (Some(glass), Some(busy)) =
        (programs::built("glass"), programs::variant("busy", Variant::Functions, !is_process))
    else {
        return;
    };
    let mut command = Command::new(&glass);
    command.arg("run").arg(&busy).args(["--cores", "2"]);
    match is_process {
        true => command.args(["--platform", "linux"]),
        false => command.args(["--accel", &world.to_string(), "--vmm", "qemu"]),
    };
    let mut busy = Process::spawn(command.args(["--", "--calls"]), &folder.file("log")).unwrap();
    busy.wait_for_text("function ", PATIENCE, || ());
    let of_service = |pid: &u32| name(*pid).is_some_and(|name| name == "busy" || name.starts_with("qemu"));
    let service = descendants(busy.pid()).into_iter().find(of_service).unwrap().to_string();
    let mut trace = Command::new(&glass);
    trace.args(["trace", "--duration", "1", "--functions", "busy::calls", "--pid", &service, "--output"]);
    let traced = trace.arg(folder.file("a.pftrace")).output().unwrap();
    let said = String::from_utf8(traced.stderr).unwrap();
    let is_refused = said.contains("chosen functions is traced: a VM with several cores");
    assert!(traced.status.success() && is_refused != is_process, "{said}");
}

/// How long the functions of a busy queue are switched, and how many items have to pass it meanwhile. An emulator translates
/// all code again after each switch, so there this may take longer.
const SWITCHING: Duration = Duration::from_secs(3);
const ITEMS_MIN: u64 = 3;

/// The queue's threads run the code whose bytes change.
fn the_queue_does_not_notice_how_its_functions_are_switched(world: World) {
    let Some(program) = programs::variant("upload-queue", Variant::Functions, world != World::Process) else { return };
    let folder = Folder::new("switching").unwrap();
    // The program's code is found in the mapping that QEMU has of the RAM.
    let vm = if world == World::Process { Vec::new() } else { vec!["--vmm", "qemu"] };
    let options = Options { program: Some(program.clone()), vm, ..Options::default() };
    let Some(mut queue) = Queue::start(world, &folder.file("queue.img"), &options).unwrap() else { return };
    let guest = Traced::attach(world, queue.service_pid().unwrap(), &program);
    let before = guest.text();
    let all = guest.all();
    let every_second: Vec<u32> = all.iter().copied().step_by(2).collect();
    let is_over = AtomicBool::new(false);
    let items = AtomicU64::new(0);
    let switches = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let item = Content { seed: items.load(Ordering::Relaxed), length_bytes: 50_000 };
                assert_eq!(queue.put(item).unwrap().status(), 200);
                queue.take(item).unwrap();
                items.fetch_add(1, Ordering::Relaxed);
            }
        });
        let end = SetOnDrop(&is_over);
        let begin = Instant::now();
        let mut switches = 0;
        let is_enough = || begin.elapsed() > SWITCHING && items.load(Ordering::Relaxed) >= ITEMS_MIN;
        while !is_enough() && begin.elapsed() < PATIENCE && !client.is_finished() {
            for numbers in [&all, &every_second, &Vec::new()] {
                guest.choose_numbers(numbers);
                assert_eq!(guest.functions_on(), numbers.len());
                switches += 1;
            }
        }
        drop(end);
        client.join().unwrap();
        switches
    });
    assert!(queue.is_running());
    let items = items.into_inner();
    assert!(items >= ITEMS_MIN && guest.event_count() > 1000, "{items} items, {} events", guest.event_count());
    assert_eq!(guest.leads(&guest.text()), guest.leads(&before));
    say(&format!("switching {world}: {switches} times {} functions, {items} items moved meanwhile", all.len()));
}
