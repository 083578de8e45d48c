//! Functions are traced while a program runs: exactly the chosen ones, with entries and exits that match, and the code is
//! afterwards what it was.
#![forbid(unsafe_code)]

mod traced;

use glass_tests::limit::say;
use glass_tests::queue::World;
use std::collections::HashSet;
use std::time::Duration;
use traced::{Call, Traced};

glass_tests::in_every_world! {
    chosen_functions_are_traced_and_then_no_more within 120;
}

/// The functions of `busy --calls` that call each other in every way.
const SHAPES: [&str; 4] = ["busy::calls::shapes", "busy::calls::climb", "busy::calls::hand_over", "busy::calls::last"];
/// Rounds of them that are looked at.
const ROUNDS: usize = 3;

fn chosen_functions_are_traced_and_then_no_more(world: World) {
    let Some(guest) = Traced::start(world) else { return };
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
        // A thread may stand within a sled, so what is behind the byte that decides stays.
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
    let calls = &calls[begin.expect("a round begins")..];
    let mut stack: Vec<&str> = Vec::new();
    let (mut depth, mut tail_exits, mut rounds) = (0, 0, 0);
    let mut last_ticks = 0;
    let mut after_tail_exit = false;
    for (call, number, ticks) in calls {
        let name = guest.name(*number);
        assert!(*ticks >= last_ticks, "the clock of one core goes on");
        last_ticks = *ticks;
        assert!(!after_tail_exit || *call == Call::Begin, "after a jump comes the function that is jumped to");
        after_tail_exit = *call == Call::Jump;
        if *call == Call::Begin {
            stack.push(name);
            depth = depth.max(stack.iter().filter(|name| **name == SHAPES[1]).count());
            continue;
        }
        assert_eq!(stack.pop(), Some(name), "what ends is what began last");
        assert!(*call == Call::Jump || name != SHAPES[2], "hand_over ends with a jump");
        tail_exits += usize::from(*call == Call::Jump && name == SHAPES[2]);
        rounds += usize::from(stack.is_empty() && name == SHAPES[0]);
    }
    assert!(rounds >= ROUNDS - 1, "{rounds} whole rounds");
    assert!(depth >= 2, "climb calls itself {depth} deep");
    assert!(tail_exits >= rounds, "{tail_exits} jumps in {rounds} rounds");
}

/// How long anything may take to come.
const PATIENCE: Duration = Duration::from_secs(60);
