//! Groups are switched on and restored, also with another recorder.

use glass_formats::trace::{FUNCTIONS_OFFSET, HOST_LINE_OFFSET};

use super::super::memory::TraceMemory;
use super::super::pages::{Page, RECORDER_OFFSET};
use super::super::switch::Switch;
use super::Fake;
use crate::sys::read_pair;

fn page(fake: &Fake) -> Page {
    Page::read(fake).unwrap()
}

/// Does what `follow_host` of a guest does.
fn follow(fake: &Fake, ticks: u64) {
    let wanted = fake.get(HOST_LINE_OFFSET);
    let (groups, request) = (wanted & 0xffff_ffff, wanted >> 32);
    fake.set(136, ticks);
    fake.set(128, groups | request << 32);
}

#[test]
fn groups_are_on_while_we_look_and_then_as_they_were() {
    let fake = Fake::new();
    fake.set(128, 2);
    let (mut switch, warning) = Switch::take(&fake, &page(&fake), (5, page(&fake).groups), Some(&[7, 9])).unwrap();
    assert_eq!(warning, None);
    assert!(switch.answer(&page(&fake), read_pair()).is_none() && switch.waited().is_some());
    assert_eq!(fake.get(FUNCTIONS_OFFSET + 8), 9);
    follow(&fake, 1234);
    let answer = switch.answer(&page(&fake), read_pair()).unwrap();
    assert_eq!((answer.ticks, page(&fake).groups), (1234, 5));
    assert!(answer.asked.time_ns <= answer.seen.time_ns && switch.waited().is_none());
    assert!(!switch.was_taken_over(&page(&fake)));
    switch.ask_again(&fake);
    follow(&fake, 1300);
    assert_eq!(switch.answer(&page(&fake), read_pair()).unwrap().ticks, 1300);
    assert!(switch.give_back(&fake));
    follow(&fake, 1400);
    assert!(switch.answer(&page(&fake), read_pair()).is_some());
    let after = page(&fake);
    assert_eq!((after.groups, after.recorder, fake.get(FUNCTIONS_OFFSET + 8)), (2, 0, 0));
}

#[test]
fn a_guest_that_sleeps_answers_the_newest_question() {
    let fake = Fake::new();
    let (mut switch, _) = Switch::take(&fake, &page(&fake), (5, page(&fake).groups), None).unwrap();
    let first = fake.get(HOST_LINE_OFFSET) >> 32;
    let begun = read_pair();
    for _ in 0..2000 {
        switch.ask_again(&fake);
        assert!(switch.answer(&page(&fake), read_pair()).is_none());
    }
    follow(&fake, 77);
    let answer = switch.answer(&page(&fake), read_pair()).unwrap();
    assert_eq!(fake.get(HOST_LINE_OFFSET) >> 32, first + 2000);
    let (asked, seen) = (answer.asked.time_ns - begun.time_ns, answer.seen.time_ns - begun.time_ns);
    assert!(asked * 10 > seen * 9, "{asked} of {seen} ns: the last question was long before");
    // An answer to a request that was never made is ignored.
    switch.ask_again(&fake);
    fake.set(128, 5 | 12_345 << 32);
    assert!(switch.answer(&page(&fake), read_pair()).is_none());
}

#[test]
fn what_a_killed_recorder_left_on_is_switched_off() {
    let fake = Fake::new();
    // A process that cannot be: the numbers of processes end at 2^22.
    fake.set(RECORDER_OFFSET, u64::from((1u32 << 22) + 1) | 1 << 32);
    fake.set(128, 0x7f);
    fake.set(FUNCTIONS_OFFSET, u64::MAX);
    let (mut switch, warning) = Switch::take(&fake, &page(&fake), (4, page(&fake).groups), Some(&[1])).unwrap();
    assert!(warning.unwrap().contains("killed"));
    follow(&fake, 1);
    switch.give_back(&fake);
    follow(&fake, 2);
    assert_eq!((page(&fake).groups, fake.get(FUNCTIONS_OFFSET)), (1, 0), "as it was before the killed one");
}

#[test]
fn a_guest_that_was_started_with_groups_has_none_afterwards() {
    let fake = Fake::new();
    fake.set(128, 5);
    let (mut switch, warning) = Switch::take(&fake, &page(&fake), (5, 0), None).unwrap();
    assert_eq!((warning, page(&fake).groups_before), (None, 0), "a recorder that is killed leaves none either");
    follow(&fake, 1);
    assert!(switch.give_back(&fake));
    follow(&fake, 2);
    assert_eq!(page(&fake).groups, 0);
}

#[test]
fn of_two_recorders_the_last_wins_and_both_say_so() {
    let fake = Fake::new();
    fake.set(128, 1);
    // Process 1 always lives.
    let (mut first, _) = Switch::take(&fake, &page(&fake), (4, page(&fake).groups), None).unwrap();
    follow(&fake, 1);
    fake.set(RECORDER_OFFSET, 1 | 1 << 32);
    let (mut second, warning) = Switch::take(&fake, &page(&fake), (8, page(&fake).groups), None).unwrap();
    assert!(warning.unwrap().contains("process 1"));
    follow(&fake, 2);
    assert!(first.was_taken_over(&page(&fake)) && !first.was_taken_over(&page(&fake)), "reported once");
    assert!(!first.give_back(&fake), "it is not ours any more");
    first.ask_again(&fake);
    assert_eq!(page(&fake).groups, 8);
    assert!(!second.was_taken_over(&page(&fake)));
    second.give_back(&fake);
    follow(&fake, 3);
    assert_eq!(page(&fake).groups, 1, "what was on before both");
}

#[test]
fn a_guest_that_may_not_be_written_to_is_an_error() {
    struct ReadOnly(Fake);
    impl TraceMemory for ReadOnly {
        fn read_control(&self, offset: usize, into: &mut [u8]) -> bool {
            self.0.read_control(offset, into)
        }
        fn write_control(&self, _offset: usize, _value: u64) -> std::io::Result<()> {
            Err(std::io::ErrorKind::PermissionDenied.into())
        }
        fn read_area(&self, area: u64, address: u64, into: &mut [u8]) -> bool {
            self.0.read_area(area, address, into)
        }
    }
    let fake = Fake::new();
    let error =
        Switch::take(&ReadOnly(fake.clone()), &page(&fake), (1, page(&fake).groups), None).unwrap_err().to_string();
    assert!(error.contains("not permitted") && error.contains("root"), "{error}");
}
