//! `glass top --tasks`: a live table of tasks, what each waits on and how much it runs.

pub(super) mod app;
pub(super) mod model;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use crossterm::event;
use glass_formats::trace::Group;
use glass_profiler_core::event::Event;
use glass_profiler_guests::systems::glasshouse::Live;
use glass_profiler_guests::{Flow, Source, read_clocks};

use self::app::{Action, App};
use self::model::{Model, Picture};
use super::draw::{self, Theme};
use super::{Args, ONCE, busy};
use crate::console::{self, say};
use crate::jail;
use crate::record::print_command;
use crate::tail::stream::{Item, Stream, What};
use crate::tail::watch_signals;
use crate::trace::groups::Groups;
use crate::trace::open_any;

/// How long events are collected before keys are handled.
const ROUND: Duration = Duration::from_millis(40);
/// How long a key is waited for then. With zero crossterm never reads one.
const POLL_TIME: Duration = Duration::from_millis(1);
/// Interval of new views.
const PICTURE_PERIOD: Duration = Duration::from_millis(500);
/// The rate of events is averaged over about this time.
const RATE_SECONDS: f64 = 2.0;

/// A traced guest, and its tasks.
struct Followed {
    live: Live,
    stream: Stream,
    model: Model,
    title: String,
    warnings: Vec<String>,
    /// Times and counts of events, for the rate.
    counts: VecDeque<(Instant, u64)>,
}

/// Shows tables until the user quits, the time limit or the end of the guest.
pub(super) fn run(arguments: &Args) -> Result<()> {
    let stop = watch_signals()?;
    let is_live = !arguments.once && console::has_screen();
    let target = &arguments.target;
    let program = target.symbols.first().map(|file| file.path.as_path());
    let groups = Groups(Group::Tasks as u32);
    let (guest, child) = open_any(&target.guest, program, &target.command, groups, &stop)?;
    let (title, pid) = (guest.title.clone(), guest.pid);
    let live = Live::new(guest, groups.live().of_command(child.is_some()))?;
    let gap = if is_live { jail::enter_with_screen() } else { jail::enter() };
    let mut followed = Followed {
        live,
        stream: Stream::default(),
        model: Model::default(),
        title: title.clone(),
        warnings: gap.into_iter().collect(),
        counts: VecDeque::new(),
    };
    let duration = if is_live { arguments.duration } else { Some(arguments.duration.unwrap_or(ONCE)) };
    let mut app = App::default();
    let busy = busy(is_live, duration, "following the tasks of", &title);
    let result = followed.announce().and_then(|()| match is_live {
        true => {
            let terminal =
                ratatui::try_init().context("cannot draw on this terminal; --once prints a table instead")?;
            let result = screen(&mut followed, &mut app, terminal, duration, &stop);
            ratatui::restore();
            result
        }
        false => wait(&mut followed, duration, &stop),
    });
    drop(busy);
    let has_ended = matches!(result, Ok(Flow::Ended));
    // Detach from the guest first; the remaining events are shown after that.
    let picture = followed.picture();
    let detached = followed.live.detach(&mut |_| {});
    if !is_live || has_ended {
        app.show(picture);
        console::print(&draw::tasks::text(&app, arguments.rows, console::output_columns()))?;
    }
    if has_ended {
        say!("glass: {title} has ended");
    } else if is_live && !target.command.is_empty() {
        print_command(pid, &title);
    }
    result?;
    Ok(detached?)
}

impl Followed {
    fn announce(&mut self) -> Result<()> {
        let Followed { live, stream, warnings, .. } = self;
        Ok(live.announce(&mut |event| take(stream, warnings, event))?)
    }

    fn collect(&mut self, wait: Duration) -> Result<Flow> {
        let Followed { live, stream, warnings, .. } = self;
        let flow = live.collect(wait, &mut |event| take(stream, warnings, event))?;
        for Item { ticks, ring, what } in self.stream.take(flow == Flow::Ended) {
            match what {
                What::Event(event) => self.model.event(ticks, ring, &event),
                What::Lost(_) => self.model.lost(ticks, ring),
            }
        }
        Ok(flow)
    }

    fn picture(&mut self) -> Picture {
        let now = Instant::now();
        self.counts.push_back((now, self.stream.events));
        while self.counts.len() > 2
            && self.counts.front().is_some_and(|(at, _)| now.duration_since(*at).as_secs_f64() > RATE_SECONDS)
        {
            self.counts.pop_front();
        }
        let (since, before) = self.counts.front().copied().unwrap_or((now, 0));
        let seconds = now.duration_since(since).as_secs_f64();
        let rate = if seconds > 0.0 { (self.stream.events - before) as f64 / seconds } else { 0.0 };
        let ticks = self.stream.ticks_at(read_clocks().monotonic_ns);
        Picture {
            title: self.title.clone(),
            events_per_sec: rate,
            lost: self.stream.lost,
            has_answered: self.live.live_counts().has_answered,
            warning: self.warnings.last().cloned(),
            ..self.model.picture(ticks, &self.stream)
        }
    }
}

fn take(stream: &mut Stream, warnings: &mut Vec<String>, event: Event) {
    match event {
        Event::Trace(piece) => stream.piece(piece),
        // The newest warning is shown; there are few.
        Event::Warning(text) => *warnings = vec![glass_profiler_core::names::printable(&text)],
        _ => {}
    }
}

fn is_over(start: Instant, duration: Option<Duration>, stop: &std::sync::atomic::AtomicBool) -> bool {
    stop.load(std::sync::atomic::Ordering::Relaxed) || duration.is_some_and(|duration| start.elapsed() >= duration)
}

fn wait(followed: &mut Followed, duration: Option<Duration>, stop: &std::sync::atomic::AtomicBool) -> Result<Flow> {
    let start = Instant::now();
    let mut last = start;
    while !is_over(start, duration, stop) {
        if followed.collect(ROUND)? == Flow::Ended {
            return Ok(Flow::Ended);
        }
        if last.elapsed() >= PICTURE_PERIOD {
            last = Instant::now();
            followed.picture();
        }
    }
    Ok(Flow::More)
}

fn screen(
    followed: &mut Followed,
    app: &mut App,
    mut terminal: ratatui::DefaultTerminal,
    duration: Option<Duration>,
    stop: &std::sync::atomic::AtomicBool,
) -> Result<Flow> {
    let start = Instant::now();
    let theme = Theme::from_environment();
    let mut last: Option<Instant> = None;
    while !is_over(start, duration, stop) {
        let mut is_old = false;
        if last.is_none_or(|last| last.elapsed() >= PICTURE_PERIOD) {
            last = Some(Instant::now());
            is_old = app.show(followed.picture());
        }
        while event::poll(POLL_TIME).context("the terminal is gone")? {
            let action = match event::read().context("the terminal is gone")? {
                event::Event::Key(key) if key.kind != event::KeyEventKind::Release => app.key(key),
                _ => Action::Draw,
            };
            is_old = true;
            match action {
                Action::Draw => {}
                Action::Reset => followed.model.reset(),
                Action::Quit => return Ok(Flow::More),
            }
        }
        if is_old {
            terminal.draw(|frame| draw::tasks::draw(frame, app, &theme)).context("the terminal is gone")?;
        }
        if followed.collect(ROUND)? == Flow::Ended {
            return Ok(Flow::Ended);
        }
    }
    Ok(Flow::More)
}
