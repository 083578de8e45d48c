//! The state of each task, from live events. Pure: events and times in, views out.

use std::collections::HashMap;

use glass_formats::trace::{BlockKind, Event, Kind, Outcome};
use glass_profiler_core::names::printable;
use glass_profiler_core::words::{Names, wait, wait_object};

use crate::tail::stream::Stream;

/// Tasks that are followed at a time; events of others are counted only.
const TASKS_MAX: usize = 1 << 16;
/// Maximum of reasons of one wait, and of those that are named.
const REASONS_MAX: usize = 8;
const REASONS_SHOWN: usize = 2;
/// Weight of the newest rate; the rest is the rate shown before.
const NEWEST: f64 = 0.5;

/// The text for a task that has not run since the start, or since events of it were lost.
const NOT_SEEN: &str = "(has not run since we look)";

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum State {
    Running,
    /// Woken, and not polled yet.
    Runnable,
    Waiting,
    /// No events of it yet, or only too old ones.
    #[default]
    Unknown,
}

#[derive(Debug, Default)]
struct Task {
    name: u32,
    state: State,
    since_ticks: u64,
    reasons: Vec<(BlockKind, u32, u64)>,
    woken_while_running: bool,
    polls: u64,
    run_ticks: u64,
    longest_ticks: u64,
    /// The counts at the last view, and its smoothed rates.
    before: (u64, u64),
    polls_per_sec: f64,
    run_share: f64,
}

/// All tasks of a guest.
#[derive(Debug, Default)]
pub(crate) struct Model {
    tasks: HashMap<u32, Task>,
    /// The task that each ring runs.
    running: HashMap<u32, u32>,
    ended: u64,
    left_out: u64,
    picture_ticks: Option<u64>,
}

/// A row of the table.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Row {
    /// "connection #4".
    pub name: String,
    pub state: State,
    pub since_ns: u64,
    /// Empty while it runs or is ready.
    pub waits_for: String,
    pub polls_per_sec: f64,
    pub run_share: f64,
    pub longest_ns: u64,
}

/// The view at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Picture {
    pub title: String,
    pub rows: Vec<Row>,
    pub ended: u64,
    pub left_out: u64,
    pub events_per_sec: f64,
    pub lost: u64,
    pub has_answered: bool,
    pub warning: Option<String>,
}

impl Model {
    /// An event of a ring.
    pub fn event(&mut self, ticks: u64, ring: u32, event: &Event) {
        match Kind::from_number(event.kind) {
            Some(Kind::TaskSpawn) => {
                let state = if event.detail == 0 { State::Runnable } else { State::Unknown };
                if let Some(task) = self.task(event.a) {
                    task.name = event.b as u32;
                    // A task that existed before may be in the table already.
                    if task.since_ticks == 0 || state == State::Runnable {
                        (task.state, task.since_ticks) = (state, ticks);
                    }
                }
            }
            Some(Kind::PollBegin) => {
                self.running.insert(ring, event.a);
                if let Some(task) = self.task(event.a) {
                    task.name = event.b as u32;
                    (task.state, task.since_ticks) = (State::Running, ticks);
                    task.woken_while_running = false;
                    task.reasons.clear();
                }
            }
            Some(Kind::PollEnd) => self.poll_end(ticks, ring, event),
            Some(Kind::Block) => {
                let running = self.running.get(&ring).copied();
                if let Some(task) = running.and_then(|task| self.tasks.get_mut(&task))
                    && task.reasons.len() < REASONS_MAX
                {
                    task.reasons.push((BlockKind::from_number(event.detail), event.a, event.b));
                }
            }
            Some(Kind::Wake) => {
                if let Some(task) = self.task(event.a) {
                    match task.state {
                        State::Running => task.woken_while_running = true,
                        State::Waiting | State::Unknown => (task.state, task.since_ticks) = (State::Runnable, ticks),
                        State::Runnable => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn poll_end(&mut self, ticks: u64, ring: u32, event: &Event) {
        let began = self.running.remove(&ring) == Some(event.a);
        let Some(task) = self.tasks.get_mut(&event.a) else { return };
        if began && task.state == State::Running {
            let length = ticks.saturating_sub(task.since_ticks);
            task.polls += 1;
            task.run_ticks += length;
            task.longest_ticks = task.longest_ticks.max(length);
        }
        if event.detail == Outcome::Ready as u16 {
            self.tasks.remove(&event.a);
            self.ended += 1;
            return;
        }
        task.state = if task.woken_while_running { State::Runnable } else { State::Waiting };
        task.since_ticks = ticks;
    }

    /// Events of a ring are missing: the states of tasks are unknown.
    pub fn lost(&mut self, ticks: u64, ring: u32) {
        self.running.remove(&ring);
        for task in self.tasks.values_mut() {
            (task.state, task.since_ticks) = (State::Unknown, ticks);
            task.reasons.clear();
        }
    }

    /// Resets the longest polls.
    pub fn reset(&mut self) {
        self.ended = 0;
        self.tasks.values_mut().for_each(|task| task.longest_ticks = 0);
    }

    fn task(&mut self, number: u32) -> Option<&mut Task> {
        if self.tasks.len() >= TASKS_MAX && !self.tasks.contains_key(&number) {
            self.left_out += 1;
            return None;
        }
        Some(self.tasks.entry(number).or_default())
    }

    /// The tasks at a moment of the guest's clock; rates are since the previous view.
    pub fn picture(&mut self, now_ticks: u64, stream: &Stream) -> Picture {
        let period_ns = self.picture_ticks.map(|before| stream.nanoseconds(now_ticks.saturating_sub(before)));
        self.picture_ticks = Some(now_ticks);
        let mut rows = Vec::with_capacity(self.tasks.len());
        for (number, task) in &mut self.tasks {
            let since_ticks = now_ticks.saturating_sub(task.since_ticks);
            let unfinished = if task.state == State::Running { since_ticks } else { 0 };
            if let Some(period_ns) = period_ns.filter(|period| *period > 0) {
                let polls = task.polls - task.before.0.min(task.polls);
                let ran = stream.nanoseconds((task.run_ticks + unfinished).saturating_sub(task.before.1));
                let smooth = |old: f64, new: f64| old + (new - old) * NEWEST;
                task.polls_per_sec = smooth(task.polls_per_sec, polls as f64 * 1e9 / period_ns as f64);
                task.run_share = smooth(task.run_share, (ran as f64 / period_ns as f64).min(1.0));
            }
            task.before = (task.polls, task.run_ticks + unfinished);
            let name = stream.name(task.name).filter(|name| !name.is_empty());
            rows.push(Row {
                name: name.map_or_else(|| format!("#{number}"), |name| format!("{} #{number}", printable(name))),
                state: task.state,
                since_ns: stream.nanoseconds(since_ticks),
                waits_for: match task.state {
                    State::Waiting => waits_for(&task.reasons, stream),
                    State::Unknown => NOT_SEEN.to_owned(),
                    State::Running | State::Runnable => String::new(),
                },
                polls_per_sec: task.polls_per_sec,
                run_share: task.run_share,
                longest_ns: stream.nanoseconds(task.longest_ticks.max(unfinished)),
            });
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Picture { rows, ended: self.ended, left_out: self.left_out, ..Picture::default() }
    }
}

fn waits_for(reasons: &[(BlockKind, u32, u64)], stream: &Stream) -> String {
    let mut texts: Vec<String> = Vec::new();
    for (kind, name, object) in reasons.iter().take(REASONS_SHOWN) {
        let what = wait(*kind, stream.name(*name).unwrap_or_default());
        let object = wait_object(*kind, *object);
        texts.push(if object.is_empty() { what } else { format!("{what}, {object}") });
    }
    if reasons.len() > REASONS_SHOWN {
        texts.push(format!("{} others", reasons.len() - REASONS_SHOWN));
    }
    texts.join("; or ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::trace::raw::{ClockPoint, Piece};

    fn stream() -> Stream {
        let mut stream = Stream::default();
        stream.piece(Piece::Clock(ClockPoint { ticks: 0, time_ns: 0, ticks_per_second: 1_000_000_000, error_ns: 0 }));
        stream.piece(Piece::Names { first: 0, names: ["", "worker", "disk"].map(str::to_owned).into() });
        stream
    }

    fn events(model: &mut Model, events: &[(u64, Kind, u16, u32, u64)]) {
        for (ticks, kind, detail, a, b) in events {
            let event = Event { ticks: *ticks, kind: *kind as u16, detail: *detail, a: *a, b: *b, c: 0 };
            model.event(*ticks, 0, &event);
        }
    }

    #[test]
    fn a_task_goes_through_its_states() {
        let (mut model, stream) = (Model::default(), stream());
        let now = |model: &mut Model, ticks| model.picture(ticks, &stream).rows.remove(0);
        events(&mut model, &[(10, Kind::TaskSpawn, 0, 4, 1)]);
        let row = now(&mut model, 15);
        assert_eq!((row.name.as_str(), row.state, row.since_ns), ("worker #4", State::Runnable, 5));
        events(&mut model, &[(20, Kind::PollBegin, 0, 4, 1), (22, Kind::Block, 3, 2, 17)]);
        assert_eq!(now(&mut model, 40).longest_ns, 20, "a poll counts while it lasts");
        events(&mut model, &[(50, Kind::PollEnd, 0, 4, 0)]);
        let row = now(&mut model, 80);
        assert_eq!((row.state, row.since_ns, row.longest_ns), (State::Waiting, 30, 30));
        assert_eq!(row.waits_for, "a device (disk), request 17");
        events(&mut model, &[(90, Kind::Wake, 0, 4, 0)]);
        let row = now(&mut model, 95);
        assert_eq!((row.state, row.since_ns, row.waits_for.as_str()), (State::Runnable, 5, ""));
        // Woken while it runs, it is runnable immediately.
        events(
            &mut model,
            &[(100, Kind::PollBegin, 0, 4, 1), (101, Kind::Wake, 0, 4, 0), (102, Kind::PollEnd, 0, 4, 0)],
        );
        assert_eq!(now(&mut model, 103).state, State::Runnable);
        events(&mut model, &[(110, Kind::PollBegin, 0, 4, 1), (111, Kind::PollEnd, 1, 4, 0)]);
        let picture = model.picture(120, &stream);
        assert_eq!((picture.rows.len(), picture.ended), (0, 1));
    }

    #[test]
    fn rates_are_of_the_time_between_pictures() {
        let (mut model, stream) = (Model::default(), stream());
        model.picture(0, &stream);
        for second in 0..20u64 {
            for poll in 0..100u64 {
                let begin = second * 1_000_000_000 + poll * 10_000_000;
                events(&mut model, &[(begin, Kind::PollBegin, 0, 4, 1), (begin + 2_500_000, Kind::PollEnd, 0, 4, 0)]);
            }
            model.picture((second + 1) * 1_000_000_000, &stream);
        }
        let row = model.picture(21_000_000_000, &stream).rows.remove(0);
        // The last second had none.
        assert!((row.polls_per_sec - 50.0).abs() < 0.1 && (row.run_share - 0.125).abs() < 0.001, "{row:?}");
    }

    #[test]
    fn after_a_loss_nothing_is_known_until_it_is_seen_again() {
        let (mut model, stream) = (Model::default(), stream());
        events(&mut model, &[(10, Kind::PollBegin, 0, 4, 1)]);
        model.lost(20, 0);
        assert_eq!(model.picture(30, &stream).rows[0].state, State::Unknown);
        events(&mut model, &[(40, Kind::PollEnd, 0, 4, 0)]);
        let row = model.picture(50, &stream).rows.remove(0);
        assert_eq!((row.state, row.longest_ns), (State::Waiting, 0), "a poll with an unknown start");
    }

    #[test]
    fn there_is_a_bound_of_tasks() {
        let (mut model, stream) = (Model::default(), stream());
        for task in 0..TASKS_MAX as u32 + 10 {
            events(&mut model, &[(10, Kind::TaskSpawn, 0, task + 1, 1)]);
        }
        let picture = model.picture(20, &stream);
        assert_eq!((picture.rows.len(), picture.left_out), (TASKS_MAX, 10));
    }
}
