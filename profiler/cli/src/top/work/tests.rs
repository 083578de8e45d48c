//! The counts, the pictures and the names, each on a thread of its own.

use super::*;
use glass_profiler_core::arch::{Architecture, Registers, x86_64};
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::event::{Mapping, Placement, RawSample, Segment};
use glass_profiler_core::guest::{Guest, GuestId, GuestKind, SpaceId};
use std::sync::mpsc::{Sender, SyncSender, channel};

/// A large file: reading it takes until the test lets it.
struct Slow {
    begun: SyncSender<()>,
    go_on: Receiver<()>,
}

impl Slow {
    fn new() -> (Box<Slow>, Receiver<()>, Sender<()>) {
        let ((begun, has_begun), (let_go, go_on)) = (std::sync::mpsc::sync_channel(8), channel());
        (Box::new(Slow { begun, go_on }), has_begun, let_go)
    }
}

impl FileSource for Slow {
    fn load(&mut self, _path: &str) -> Option<Box<dyn ReadAt>> {
        let _ = self.begun.send(());
        let _ = self.go_on.recv();
        Some(Box::new(std::fs::read(std::env::current_exe().ok()?).ok()?))
    }
}

fn events() -> Vec<Event> {
    let (guest, space) = (GuestId(0), SpaceId(0));
    let path = "/a/large/file".to_owned();
    let mapping = Mapping { start: 0, end: 1 << 40, path, placement: Placement::AsLinked, file: None };
    let segment = Segment {
        space,
        registers: Registers::X86_64(x86_64::Registers { rip: 0x1000, ..Default::default() }),
        ..Default::default()
    };
    let kind = GuestKind::Process { pid: 1 << 22 | 1 };
    vec![
        Event::Guest(Guest { id: guest, kind, name: "a".to_owned(), architecture: Architecture::X86_64 }),
        Event::Space { space, guest, process: None, copy_of: None },
        Event::Track { track: 0, guest, id: 1, name: "a".to_owned() },
        Event::Map { space, mapping },
        Event::Sample(RawSample { time_ns: read_clocks().monotonic_ns, segments: vec![segment], ..Default::default() }),
    ]
}

const PATIENCE: Duration = Duration::from_secs(60);

/// The parse of a large file was done with the lock held that a key, a new picture and each sample need (2026-11-22).
#[test]
fn a_large_file_holds_up_neither_the_counts_nor_a_picture() {
    let shared = Arc::new(Shared::of(Kind::Core, None));
    let (slow, is_parsing, go_on) = Slow::new();
    let mut counting = Counting { files: slow, ..Counting::new(shared.clone()) };
    let counter = std::thread::spawn(move || events().into_iter().for_each(|event| counting.event(event).unwrap()));
    is_parsing.recv_timeout(PATIENCE).unwrap();
    let (done, is_done) = channel();
    let other = shared.clone();
    std::thread::spawn(move || {
        other.reset();
        done.send(other.snapshot().0.tracks.len())
    });
    assert_eq!(is_done.recv_timeout(PATIENCE), Ok(1), "while the file is parsed for its unwind tables");
    go_on.send(()).unwrap();
    counter.join().unwrap();

    let (slow, is_reading, go_on) = Slow::new();
    let (queries, receiver) = channel();
    let (reader, stop, other) = (NameReader::start(slow).unwrap(), AtomicBool::new(false), shared.clone());
    let painter = std::thread::spawn(move || paint(&other, reader, &receiver, &stop));
    is_reading.recv_timeout(PATIENCE).unwrap();
    let function = || shared.picture().view.functions.first().map(|row| row.function.name.clone());
    let wait_for = |is_it: &dyn Fn(&str) -> bool| {
        let begun = Instant::now();
        while !function().is_some_and(|name| is_it(&name)) {
            assert!(begun.elapsed() < PATIENCE, "{:?}", function());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for(&|name| name == glass_profiler_core::live::names::NOT_READ_YET);
    go_on.send(()).unwrap();
    wait_for(&|name| name != glass_profiler_core::live::names::NOT_READ_YET);
    drop(queries);
    painter.join().unwrap();
}

#[test]
fn the_rate_is_that_of_the_last_seconds() {
    let mut past = VecDeque::new();
    assert_eq!(rate(&mut past, 0, 0), 0.0);
    for tenth in 1..=50u64 {
        let got = rate(&mut past, tenth * 100_000_000, tenth * 10);
        assert!((got - 100.0).abs() < 0.01, "{got}");
    }
    assert!(past.len() <= 22);
    let mut last = 100.0;
    for tenth in 51..=80u64 {
        last = rate(&mut past, tenth * 100_000_000, 500);
    }
    assert_eq!(last, 0.0);
    assert_eq!(rate(&mut past, 9_000_000_000, 3), 0.0, "after a reset");
}
