//! Translates events of Lwt threads to events of tasks.
//!
//! A thread is a task. A thread that is switched to is polled; a thread that reads the result of a promise was waiting for it, and was woken
//! when it was fulfilled. Since the file records a wait only at its end, its reason is inserted afterwards.

use std::collections::HashMap;

use glass_formats::trace::{BlockKind, Event, Kind, Outcome};
use glass_profiler_core::trace::raw::Words;

use super::events::{FileEvent, What};

/// The number that stands for no running thread.
const NONE: u64 = u64::MAX;
/// Maximum of distinct names; a recording has no room for more.
const NAMES_MAX: usize = 1 << 20;
/// Types of threads, by number.
const SORTS: [&str; 18] = [
    "wait",
    "task",
    "bind",
    "try",
    "choose",
    "pick",
    "join",
    "map",
    "condition",
    "on success",
    "on failure",
    "on termination",
    "on any",
    "ignore result",
    "async",
    "promise",
    "semaphore",
    "switch",
];
/// Bytes of text in one event.
const TEXT_BYTES: usize = 20;
/// Bytes of a label that are kept.
const LABEL_BYTES_MAX: usize = 4096;

/// Name, and runs of events with the number of the first of each.
pub(super) type Ring = (String, Vec<(u64, Vec<Words>)>);

#[derive(Debug, Default)]
struct Thread {
    /// Number of the task, from 1 on.
    task: u32,
    name: u32,
    is_spawned: bool,
    /// Its result is available: the place of that event, and its time.
    resolved: Option<(usize, u64)>,
    /// The place reserved for the wait that ended its last poll.
    wait: Option<usize>,
    /// The place of its spawn, and the places reserved for its first waits.
    birth: Option<(usize, usize)>,
    /// It has not read a result yet in this poll.
    is_fresh: bool,
}

pub(super) struct Translator {
    threads: HashMap<u64, Thread>,
    /// First labels, which are the names.
    labels: HashMap<u64, String>,
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    counters: HashMap<u32, i64>,
    /// Events of the threads; `None` is a place that was not needed.
    main: Vec<Option<Event>>,
    /// Events to insert right after one of `main`, in any order.
    late: Vec<(usize, Event)>,
    /// The places of missing events in `main`, and their number.
    gaps: Vec<(usize, u64)>,
    /// Ends of promises, which no core polls, and waits of threads before their first run.
    promises: Vec<Option<Event>>,
    running: u64,
    is_idle: bool,
    now: u64,
    spans: u64,
    earlier: u64,
    names_lost: u64,
}

fn event(time: u64, kind: Kind, detail: u16, a: u32, b: u64) -> Event {
    Event { ticks: time, kind: kind as u16, detail, a, b, c: 0 }
}

impl Translator {
    /// Collects the labels of all events first.
    pub fn new<'a>(events: impl Iterator<Item = &'a FileEvent>) -> Translator {
        let mut labels = HashMap::new();
        for event in events {
            if let What::Label { thread, label } = &event.what {
                labels.entry(*thread).or_insert_with(|| label.clone());
            }
        }
        Translator {
            threads: HashMap::new(),
            labels,
            names: vec![String::new()],
            numbers: HashMap::new(),
            counters: HashMap::new(),
            main: Vec::new(),
            late: Vec::new(),
            gaps: Vec::new(),
            promises: Vec::new(),
            running: NONE,
            is_idle: false,
            now: 0,
            spans: 0,
            earlier: 0,
            names_lost: 0,
        }
    }

    /// So many events are missing here.
    pub fn missing(&mut self, count: u64) {
        if count > 0 {
            self.gaps.push((self.main.len(), count));
            (self.running, self.is_idle) = (NONE, false);
        }
    }

    pub fn event(&mut self, file: &FileEvent) {
        self.earlier += u64::from(file.time_ns < self.now);
        self.now = self.now.max(file.time_ns);
        match &file.what {
            What::Creates { thread, child, sort } => self.creates(*thread, *child, *sort),
            What::Read { thread, input } | What::Signal { thread, source: input } => {
                self.switch(*thread);
                self.read(*thread, *input);
            }
            What::SignalLater { thread, source } => self.read(*thread, *source),
            What::TryRead { thread, input } | What::ReadLater { thread, input } => self.waits(*thread, *input),
            What::Fulfills { thread, promise } => {
                self.switch(*thread);
                self.resolve(*promise);
            }
            What::Fails { thread, promise, reason } => {
                self.switch(*thread);
                let task = self.thread(*promise).task;
                self.message(1, "fails", &format!("#{task} fails: {reason}"));
                self.resolve(*promise);
            }
            What::Becomes { input, main } => {
                let (input_task, main_task) = (self.thread(*input).task, self.thread(*main).task);
                self.message(5, "becomes", &format!("#{input_task} becomes #{main_task}"));
                self.resolve(*input);
            }
            What::Label { thread, label } => {
                let task = self.thread(*thread).task;
                self.message(4, "label", &format!("#{task}: {label}"));
            }
            What::Increase { amount, counter } => {
                let name = self.name(counter);
                let value = self.counters.entry(name).or_default();
                *value = value.wrapping_add(*amount);
                let value = *value;
                self.push(event(self.now, Kind::Counter, 1, name, value as u64));
            }
            What::Value { value, counter } => {
                let name = self.name(counter);
                self.counters.insert(name, *value);
                self.push(event(self.now, Kind::Counter, 1, name, *value as u64));
            }
            What::Switch { thread } => self.switch(*thread),
            What::Collect { duration_ns } => self.collect(*duration_ns),
        }
    }

    /// Warnings in addition to losses.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.earlier > 0 {
            warnings.push(format!(
                "{} events were earlier than the event before them; they got that event's time",
                self.earlier
            ));
        }
        if self.names_lost > 0 {
            warnings.push(format!("{} names were left out: there are more than {NAMES_MAX}", self.names_lost));
        }
        warnings
    }

    /// The names by number, and the rings.
    pub fn finish(mut self) -> (Vec<String>, Vec<Ring>) {
        self.late.sort_by_key(|(place, _)| *place);
        let mut late = self.late.into_iter().peekable();
        let mut gaps = self.gaps.into_iter().peekable();
        let mut chunks: Vec<(u64, Vec<Words>)> = vec![(0, Vec::new())];
        let mut next = 0;
        for (place, slot) in self.main.into_iter().enumerate() {
            while let Some((_, count)) = gaps.next_if(|(at, _)| *at <= place) {
                next += count;
                chunks.push((next, Vec::new()));
            }
            let late = std::iter::from_fn(|| late.next_if(|(at, _)| *at <= place)).map(|(_, event)| event);
            let events: Vec<Words> = slot.into_iter().chain(late).map(Event::to_words).collect();
            next += events.len() as u64;
            if let Some((_, chunk)) = chunks.last_mut() {
                chunk.extend(events);
            }
        }
        chunks.retain(|(_, events)| !events.is_empty());
        let mut rings = vec![("threads".to_owned(), chunks)];
        let promises: Vec<Words> = self.promises.into_iter().flatten().map(Event::to_words).collect();
        if !promises.is_empty() {
            rings.push(("promises".to_owned(), vec![(0, promises)]));
        }
        (self.names, rings)
    }

    fn push(&mut self, event: Event) -> usize {
        self.main.push(Some(event));
        self.main.len() - 1
    }

    fn name(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        if self.names.len() >= NAMES_MAX {
            self.names_lost += 1;
            return 0;
        }
        let number = self.names.len() as u32;
        self.names.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// The thread with this number, which is new at its first event.
    fn thread(&mut self, id: u64) -> &mut Thread {
        if !self.threads.contains_key(&id) {
            let label = self.labels.get(&id).cloned();
            let name = label.map_or(0, |label| self.name(&label));
            let task = self.threads.len() as u32 + 1;
            self.threads.insert(id, Thread { task, name, ..Thread::default() });
        }
        self.threads.entry(id).or_default()
    }

    fn creates(&mut self, thread: u64, child: u64, sort: u8) {
        let parent = if thread == NONE { 0 } else { self.thread(thread).task };
        let sort = SORTS.get(usize::from(sort)).copied().unwrap_or("thread");
        let (task, mut name, is_again) = {
            let child = self.thread(child);
            (child.task, child.name, std::mem::replace(&mut child.is_spawned, true))
        };
        if name == 0 {
            name = self.name(sort);
            self.thread(child).name = name;
        }
        // A thread that is created twice counts once.
        if !is_again {
            let place = self.push(event(self.now, Kind::TaskSpawn, 0, task, u64::from(name) | u64::from(parent) << 32));
            let kept = self.promises.len();
            self.promises.extend([None, None, None]);
            self.thread(child).birth = Some((place, kept));
        }
    }

    fn switch(&mut self, to: u64) {
        if to == self.running {
            return;
        }
        if self.running != NONE {
            let id = self.running;
            let (task, is_over) = (self.thread(id).task, self.thread(id).resolved.is_some());
            // Reserves places for its waits.
            self.main.push(None);
            let wait = self.main.len() - 1;
            self.thread(id).wait = (!is_over).then_some(wait);
            let outcome = if is_over { Outcome::Ready } else { Outcome::Pending };
            self.push(event(self.now, Kind::PollEnd, outcome as u16, task, 0));
        }
        if self.is_idle {
            self.push(event(self.now, Kind::IdleEnd, 0, 0, 0));
        }
        self.running = to;
        self.is_idle = to == NONE;
        if self.is_idle {
            self.push(event(self.now, Kind::IdleBegin, 0, 0, u64::MAX));
            return;
        }
        let thread = self.thread(to);
        thread.is_fresh = true;
        let (task, name) = (thread.task, thread.name);
        self.push(event(self.now, Kind::PollBegin, 0, task, name.into()));
    }

    /// The event that a thread was waiting for: the cause of its run, now or later.
    fn read(&mut self, thread: u64, input: u64) {
        let (input_task, input_name, resolved) = {
            let input = self.thread(input);
            (input.task, input.name, input.resolved)
        };
        let thread = self.thread(thread);
        let (task, name, is_first) = (thread.task, thread.name, std::mem::replace(&mut thread.is_fresh, false));
        let (wait, birth) = (thread.wait.take(), thread.birth.take());
        let since = wait.or(birth.map(|(place, _)| place));
        let Some(since) = since.filter(|_| is_first) else { return };
        let reason = |time| event(time, Kind::Block, BlockKind::Notify as u16, input_name, input_task.into());
        let time_at = |place: usize| self.main.get(place).copied().flatten().map_or(self.now, |event| event.ticks);
        match (wait, birth) {
            (Some(place), _) => self.main[place] = Some(reason(time_at(place + 1))),
            (None, Some((place, kept))) => {
                let time = time_at(place);
                let end = event(time, Kind::PollEnd, Outcome::Pending as u16, task, 0);
                let begin = event(time, Kind::PollBegin, 0, task, name.into());
                for (slot, event) in self.promises[kept..].iter_mut().zip([begin, reason(time), end]) {
                    *slot = Some(event);
                }
            }
            (None, None) => {}
        }
        // It was woken when the result was available, unless that was before.
        if let Some((at, time)) = resolved.filter(|(at, _)| *at > since) {
            self.late.push((at, event(time, Kind::Wake, 0, task, 0)));
        }
    }

    /// A running thread announces its next wait.
    fn waits(&mut self, thread: u64, input: u64) {
        let (task, name) = {
            let input = self.thread(input);
            (input.task, input.name)
        };
        if thread == self.running {
            self.push(event(self.now, Kind::Block, BlockKind::Notify as u16, name, task.into()));
        }
    }

    /// The result of a promise is available.
    fn resolve(&mut self, promise: u64) {
        let (now, running) = (self.now, self.running);
        let (task, name, was) = {
            let thread = self.thread(promise);
            (thread.task, thread.name, thread.resolved)
        };
        if was.is_some() {
            return;
        }
        let place = self.push(event(now, Kind::Wake, 0, task, 0));
        self.thread(promise).resolved = Some((place, now));
        // A running thread ends with its poll.
        if promise != running {
            self.promises.push(Some(event(now, Kind::PollBegin, 0, task, name.into())));
            self.promises.push(Some(event(now, Kind::PollEnd, Outcome::Ready as u16, task, 0)));
        }
    }

    /// A garbage collection ended at this moment.
    fn collect(&mut self, duration_ns: u64) {
        self.spans += 1;
        let (span, name) = (self.spans, self.name("garbage collection"));
        let last = self.main.iter().rev().flatten().next().map_or(0, |event| event.ticks);
        let start = self.now.saturating_sub(duration_ns).max(last);
        self.push(event(start, Kind::SpanBegin, 3, name, span));
        self.push(event(start, Kind::SpanEnter, 0, 0, span));
        self.push(event(self.now, Kind::SpanExit, 0, 0, span));
        self.push(event(self.now, Kind::SpanEnd, 0, 0, span));
    }

    fn message(&mut self, level: u16, place: &str, text: &str) {
        let name = self.name(place);
        let bytes = &text.as_bytes()[..text.len().min(LABEL_BYTES_MAX)];
        self.push(Event { c: bytes.len() as u64, ..event(self.now, Kind::Message, level, name, 0) });
        for part in bytes.chunks(TEXT_BYTES) {
            let mut words = [0u8; TEXT_BYTES];
            words[..part.len()].copy_from_slice(part);
            let word = |range: std::ops::Range<usize>| {
                words[range].iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte))
            };
            let (a, b, c) = (word(0..4) as u32, word(4..12), word(12..20));
            self.push(Event { c, ..event(self.now, Kind::Text, part.len() as u16, a, b) });
        }
    }
}
