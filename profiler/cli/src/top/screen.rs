//! The terminal: taken over, drawn on, given back whatever happens.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use crossterm::event;
use glass_profiler_core::model::Origin;
use ratatui::DefaultTerminal;

use super::app::{Action, App};
use super::draw::{self, Theme};
use super::work::{Shared, start_painting};

/// How long a key or a new picture may wait for the screen.
const POLL_PERIOD: Duration = Duration::from_millis(50);

/// Takes over the terminal and starts the thread that serves it. It ends at the key to quit, when the
/// terminal is gone or when `stop` is set, and gives the terminal back. So does a panic.
pub(super) fn start(shared: Arc<Shared>, origin: &Origin, stop: Arc<AtomicBool>) -> Result<JoinHandle<Result<()>>> {
    let terminal = ratatui::try_init().context("cannot draw on this terminal; --once prints a table instead")?;
    let origin = origin.clone();
    let thread = std::thread::Builder::new().name("screen".to_owned()).spawn(move || {
        let result = serve(terminal, &shared, origin, &stop);
        ratatui::restore();
        result
    });
    thread.inspect_err(|_| ratatui::restore()).context("cannot start a thread")
}

fn serve(mut terminal: DefaultTerminal, shared: &Arc<Shared>, origin: Origin, stop: &Arc<AtomicBool>) -> Result<()> {
    let (queries, receiver) = channel();
    let painter = start_painting(shared.clone(), receiver, stop.clone())?;
    let mut app = App::new(origin, shared.picture().view.query.by);
    let theme = Theme::from_environment();
    let mut is_old = true;
    while !stop.load(Ordering::Relaxed) {
        is_old |= app.show(shared.picture());
        if is_old {
            terminal.draw(|frame| draw::draw(frame, &app, &theme)).context("the terminal is gone")?;
        }
        is_old = false;
        let Some(action) = next_action(&mut app).context("the terminal is gone")? else { continue };
        is_old = true;
        match action {
            Action::Draw => {}
            // The painter ends only if it panicked, which has been reported then.
            Action::Query(query) => drop(queries.send(query)),
            Action::Reset => shared.reset(),
            Action::Quit => break,
        }
    }
    drop(queries);
    // If it is reading names it may take a while, and its view is not needed.
    drop(painter);
    Ok(())
}

/// The action of the next key, if there is one soon.
fn next_action(app: &mut App) -> io::Result<Option<Action>> {
    if !event::poll(POLL_PERIOD)? {
        return Ok(None);
    }
    Ok(match event::read()? {
        event::Event::Key(key) if key.kind != event::KeyEventKind::Release => Some(app.key(key)),
        event::Event::Resize(..) => Some(Action::Draw),
        _ => None,
    })
}
