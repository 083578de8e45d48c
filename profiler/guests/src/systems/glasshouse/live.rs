//! The trace of a running guest as a source of events.

use std::time::{Duration, Instant};

use glass_formats::trace::Group;
use glass_profiler_core::event::Event;
use glass_profiler_core::trace::raw::{Function, Piece};

use super::clock::{HostClock, Offset, at_rate};
use super::exits::{Exits, RingNumbers};
use super::find::Guest;
use super::memory::TraceMemory;
use super::pages::Page;
use super::reader::{Drained, ReadCounts, Start, TraceReader};
use super::switch::Switch;
use crate::error::GuestError;
use crate::sys::{ClockPair, read_pair};
use crate::{Counts, Flow, Source};

/// Interval of rounds: the minimum, and the maximum while few events are written.
const INTERVAL_MIN: Duration = Duration::from_millis(1);
const INTERVAL_MAX: Duration = Duration::from_millis(20);
/// Shares of a ring above which rounds become more frequent, and below which less frequent.
const FILL_HIGH: f64 = 1.0 / 8.0;
const FILL_LOW: f64 = 1.0 / 64.0;
/// Interval of clock points.
const POINT_PERIOD: Duration = Duration::from_millis(100);
/// Interval of requests for a VM's time, and the interval while its clock jumps.
const ASK_PERIOD: Duration = Duration::from_secs(1);
const ASK_PERIOD_RESTLESS: Duration = Duration::from_millis(20);
/// How long a guest may take to answer before a warning: it may just sleep.
const ANSWER_PATIENCE: Duration = Duration::from_millis(1500);
/// How long we wait at the end for the guest to restore its groups. Our guests poll within 250 ms while they sleep.
const FAREWELL: Duration = Duration::from_millis(400);
/// Rounds at the end.
const LAST_ROUNDS_MAX: u32 = 256;
/// Time between the two reads that give the first rate of the clock.
const RATE_LOOK: Duration = Duration::from_millis(5);

/// The request to a guest.
#[derive(Debug, Clone)]
pub struct LiveSettings {
    /// Groups (`glass_formats::trace::Group`) that are on while we record; `None` leaves them unchanged.
    pub groups: Option<u32>,
    /// The functions that are traced: words of `Control::functions_wanted`, and the names of these functions.
    pub functions: Option<(Vec<u64>, Vec<Function>)>,
    /// Where reading starts.
    pub start: Start,
    /// Groups that are on afterwards; `None` restores those that were on before.
    pub groups_after: Option<u32>,
}

impl LiveSettings {
    /// The same for a guest that was started for this recording with the groups on, if it was: from its first event, and
    /// no group is on afterwards.
    pub fn of_command(self, is_command: bool) -> LiveSettings {
        if is_command { LiveSettings { start: Start::First, groups_after: Some(0), ..self } } else { self }
    }
}

/// The counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LiveCounts {
    /// Of the rings.
    pub read: ReadCounts,
    /// The error of the last point of the clock.
    pub clock_error_ns: Option<u64>,
    /// The guest has handled the request.
    pub has_answered: bool,
    /// Groups that are on in the guest.
    pub groups: u32,
}

/// A running guest whose trace is read.
pub struct Live {
    guest: Guest,
    reader: TraceReader<Box<dyn TraceMemory>>,
    /// Of its VMM.
    exits: Option<Exits>,
    rings: RingNumbers,
    settings: LiveSettings,
    switch: Option<Switch>,
    host: HostClock,
    /// At which the guest counts the host's time, if it does.
    rate: Option<u64>,
    offset: Offset,
    interval: Duration,
    last_point: Option<Instant>,
    last_asked: Instant,
    is_sleep_reported: bool,
    /// How many functions were requested, until the guest answers.
    functions_requested: Option<usize>,
    counts: LiveCounts,
}

impl Live {
    /// Prepares to read the trace of `guest`; nothing is switched before [`announce`](Source::announce).
    pub fn new(mut guest: Guest, settings: LiveSettings) -> Result<Live, GuestError> {
        let memory = guest.take_memory()?;
        let title = guest.title.clone();
        let reader = TraceReader::new(memory, settings.start).map_err(|no| no.about(&title))?;
        let rate = reader.page().ok().map(|page| page.ticks_per_second).filter(|rate| guest.counts_time && *rate > 0);
        let wants_exits = settings.groups.is_none_or(|groups| groups & Group::Devices as u32 != 0);
        let of_vmm = guest.take_exits();
        let mut offset = Offset::default();
        if let Some(clock) = of_vmm.as_ref().and_then(|memory| Page::read(memory).ok()?.guest_clock) {
            offset.state(clock);
        }
        let exits = of_vmm.filter(|_| wants_exits).and_then(|memory| Exits::new(memory, settings.start));
        let first = read_pair();
        std::thread::sleep(RATE_LOOK);
        Ok(Live {
            guest,
            reader,
            exits,
            rings: RingNumbers::default(),
            settings,
            switch: None,
            host: HostClock::new(paced(first, rate), paced(read_pair(), rate)),
            rate,
            offset,
            interval: INTERVAL_MIN,
            last_point: None,
            last_asked: Instant::now(),
            is_sleep_reported: false,
            functions_requested: None,
            counts: LiveCounts::default(),
        })
    }

    /// The guest.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// The counters.
    pub fn live_counts(&self) -> LiveCounts {
        let (own, vmm) = (self.reader.counts(), self.exits.as_ref().map(Exits::counts).unwrap_or_default());
        let read =
            ReadCounts { events: own.events + vmm.events, lost: own.lost + vmm.lost, rings: own.rings + vmm.rings };
        LiveCounts { read, ..self.counts }
    }

    fn is_vm(&self) -> bool {
        !self.reader.memory().has_host_ticks()
    }

    /// Copies what is new in the guest's rings and the VMM's.
    fn drain(&mut self, sink: &mut dyn FnMut(Event)) -> Drained {
        let rings = &mut self.rings;
        let drained = self.reader.drain(&mut |event| sink(rings.apply(false, event)));
        if let Some(exits) = &mut self.exits {
            let guest_hz = self.reader.page().map_or(0, |page| page.ticks_per_second);
            if self.host.is_other(guest_hz) {
                self.exits = None;
                sink(Event::Warning(
                    "the exits that the VMM records are left out: the clock of this VM has another rate than its host's".to_owned(),
                ));
                return drained;
            }
            let offset = self.offset.estimate().map(|(offset, _)| offset);
            exits.drain(offset, &mut |event| sink(rings.apply(true, event)));
        }
        drained
    }

    /// One round of reading.
    fn round(&mut self, sink: &mut dyn FnMut(Event)) -> Drained {
        self.follow_switch(sink);
        let drained = self.drain(sink);
        let seen = paced(read_pair(), self.rate);
        if let Some(newest) = drained.newest_ticks.filter(|_| self.is_vm()) {
            self.offset.seen(newest, seen);
        }
        if self.last_point.is_none_or(|last| last.elapsed() >= POINT_PERIOD) {
            self.point(sink);
        }
        drained
    }

    fn follow_switch(&mut self, sink: &mut dyn FnMut(Event)) {
        let Ok(page) = self.reader.page() else { return };
        self.counts.groups = page.groups;
        let is_vm = self.is_vm();
        let Some(switch) = &mut self.switch else { return };
        if let Some(answer) = switch.answer(&page, read_pair()) {
            self.counts.has_answered = true;
            let requested = self.functions_requested.take();
            sink_warning(requested.and_then(|requested| untraced(requested, page.functions_on)), sink);
            if is_vm {
                let [asked, seen] = [answer.asked, answer.seen].map(|pair| paced(pair, self.rate));
                self.offset.answered(answer.ticks, asked, seen);
            }
        }
        if switch.was_taken_over(&page) {
            sink(Event::Warning(
                "another recorder has switched the service's groups of events meanwhile: from then on it has its own in this recording, and they are left as they are"
                    .to_owned(),
            ));
        }
        if !self.is_sleep_reported && switch.waited().is_some_and(|waited| waited > ANSWER_PATIENCE) {
            self.is_sleep_reported = true;
            sink(Event::Warning(
                "the service takes long to switch its events on or off: it sleeps or is very busy, and does so in its next round".to_owned(),
            ));
        }
        let restless = self.offset.is_restless(read_pair().time_ns);
        let period = if restless { ASK_PERIOD_RESTLESS } else { ASK_PERIOD };
        let is_due = self.last_asked.elapsed() >= period;
        if is_vm && (is_due || switch.waited().is_some()) {
            self.last_asked = Instant::now();
            switch.ask_again(self.reader.memory());
        }
    }

    fn point(&mut self, sink: &mut dyn FnMut(Event)) {
        let now = paced(read_pair(), self.rate);
        self.host.refine(now);
        let guest_hz = self.reader.page().map_or(0, |page| page.ticks_per_second);
        let point = match self.is_vm() {
            false => Some(self.host.own_point(now)),
            true => self.offset.point(now, &self.host, guest_hz),
        };
        if let Some(point) = point {
            self.last_point = Some(Instant::now());
            self.counts.clock_error_ns = Some(point.error_ns);
            sink(Event::Trace(Piece::Clock(point)));
        }
    }

    /// The last events, and the clock at the end.
    fn finish(&mut self, sink: &mut dyn FnMut(Event)) {
        for _ in 0..LAST_ROUNDS_MAX {
            if !self.round(sink).is_more {
                break;
            }
        }
        self.point(sink);
        if self.last_point.is_none()
            && let Some(guess) = self.offset.guess(paced(read_pair(), self.rate), &self.host)
        {
            sink(Event::Trace(Piece::Clock(guess)));
        }
        if self.offset.estimate().is_none()
            && let Some(exits) = &mut self.exits
        {
            // The same guess as the clock's.
            exits.drain(self.offset.at_least(), &mut |event| sink(self.rings.apply(true, event)));
        }
    }

    fn adapt(&mut self, drained: Drained) {
        self.interval = if drained.is_more || drained.fill > FILL_HIGH {
            INTERVAL_MIN
        } else if drained.fill < FILL_LOW {
            (self.interval * 5 / 4).min(INTERVAL_MAX)
        } else {
            self.interval
        };
    }
}

impl Source for Live {
    /// Switches groups on. Existing names and rings come with the first events.
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        let page = self.reader.page().map_err(|no| no.about(&self.guest.title))?;
        if self.settings.functions.is_some() && page.functions == 0 {
            return Err(GuestError::Trace(format!(
                "{} cannot trace functions: build it with `glass build --trace-functions`",
                self.guest.title
            )));
        }
        if let Some((words, _)) = &self.settings.functions
            && words.len().saturating_sub(1) * 64 > page.functions as usize
        {
            return Err(GuestError::Trace(format!(
                "{} runs another build than {}: its functions have other numbers",
                self.guest.title,
                self.guest.program.display()
            )));
        }
        // Existing events are older than the switch.
        self.drain(sink);
        let functions = self.settings.functions.take();
        let words = functions.as_ref().map(|(words, _)| &words[..]);
        // Without a switch, request the groups that are on already: the answer contains the VM's time.
        let may_ask = self.is_vm() && page.recorder == 0;
        if let Some(groups) = self.settings.groups.or(may_ask.then_some(page.groups)) {
            let after = self.settings.groups_after.unwrap_or(page.groups);
            let (switch, warning) = Switch::take(self.reader.memory(), &page, (groups, after), words)?;
            self.switch = Some(switch);
            sink_warning(warning, sink);
        }
        if let Some((_, names)) = functions {
            self.functions_requested = self.switch.is_some().then_some(names.len());
            sink(Event::Trace(Piece::Functions(names)));
        }
        self.last_asked = Instant::now();
        if !self.is_vm() {
            self.point(sink);
        }
        Ok(())
    }

    fn collect(&mut self, wait: Duration, sink: &mut dyn FnMut(Event)) -> Result<Flow, GuestError> {
        let end = Instant::now() + wait;
        loop {
            let is_alive = self.guest.is_alive();
            let drained = self.round(sink);
            if !is_alive {
                return Ok(Flow::Ended);
            }
            self.adapt(drained);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Flow::More);
            }
            if !drained.is_more {
                // The sooner after its answer we read, the more precise is the guest's clock.
                let is_asked = self.is_vm() && self.switch.as_ref().is_some_and(|switch| switch.waited().is_some());
                let interval = if is_asked { INTERVAL_MIN } else { self.interval };
                std::thread::sleep(interval.min(left));
            }
        }
    }

    /// There are no samples; see [`Live::live_counts`].
    fn counts(&self) -> Counts {
        Counts::default()
    }

    fn detach(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), GuestError> {
        if let Some(mut switch) = self.switch.take()
            && self.guest.is_alive()
            && switch.give_back(self.reader.memory())
        {
            let begun = Instant::now();
            while begun.elapsed() < FAREWELL && self.guest.is_alive() {
                self.drain(sink);
                let answer = self.reader.page().ok().and_then(|page| switch.answer(&page, read_pair()));
                if let Some(answer) = answer {
                    if self.is_vm() {
                        let [asked, seen] = [answer.asked, answer.seen].map(|pair| paced(pair, self.rate));
                        self.offset.answered(answer.ticks, asked, seen);
                    }
                    break;
                }
                std::thread::sleep(INTERVAL_MIN);
            }
        }
        self.finish(sink);
        Ok(())
    }
}

/// The host's clocks in what the guest counts: the host's time at a rate, or else the ticks of its processor.
fn paced(pair: ClockPair, rate: Option<u64>) -> ClockPair {
    rate.map_or(pair, |rate| at_rate(pair, rate))
}

/// Leaves a guest with these groups on. Returns true if it has switched within `patience`; otherwise it
/// sleeps, and switches when it wakes.
pub fn switch(mut guest: Guest, groups: u32, patience: Duration) -> Result<bool, GuestError> {
    let memory = guest.take_memory()?;
    let read = || Page::read(&memory).map_err(|no| no.about(&guest.title));
    Switch::leave(&memory, &read()?, groups)?;
    let begun = Instant::now();
    while begun.elapsed() < patience && guest.is_alive() {
        let page = read()?;
        if page.groups == groups && page.answered == page.request {
            return Ok(true);
        }
        std::thread::sleep(INTERVAL_MIN);
    }
    Ok(false)
}

/// A sentence if fewer functions are traced than were requested.
fn untraced(requested: usize, on: u32) -> Option<String> {
    match on as usize {
        0 if requested > 0 => Some(format!(
            "none of the {requested} chosen functions is traced: a VM with several cores cannot switch them; start it with one core"
        )),
        on if on < requested => Some(format!(
            "{on} of the {requested} chosen functions are traced: the service could not switch the others"
        )),
        _ => None,
    }
}

fn sink_warning(warning: Option<String>, sink: &mut dyn FnMut(Event)) {
    if let Some(text) = warning {
        sink(Event::Warning(text));
    }
}
