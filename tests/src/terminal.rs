//! A separate terminal for a command: its screen at any moment, keys to press, and whether its modes are restored.

use crate::folder::Folder;
use crate::process::{self, Process};
use std::io::Write;
use std::process::{ChildStdin, Command, ExitStatus};
use std::time::{Duration, Instant};

/// How long a text may take to appear on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
/// Interval between two checks.
const POLL_PERIOD: Duration = Duration::from_millis(50);

/// A command in a terminal of `script` from util-linux.
pub struct Terminal {
    process: Process,
    input: ChildStdin,
    columns: usize,
    rows: usize,
    folder: Folder,
}

impl Terminal {
    /// Runs a line of the shell; `None` if there is no `script`.
    ///
    /// # Panics
    /// Like all functions here, when anything fails that only a test could handle.
    pub fn start(line: &str, columns: usize, rows: usize) -> Option<Terminal> {
        Command::new("script").arg("--version").output().ok()?;
        let folder = Folder::new("terminal").unwrap();
        let (before, after) = (folder.file("before"), folder.file("after"));
        let line = format!(
            "stty cols {columns} rows {rows}; stty -g > {}; {line}; code=$?; stty -g > {}; exit $code",
            before.display(),
            after.display()
        );
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env("SHELL", "/bin/sh");
        let (process, input) = Process::spawn_with_input(&mut command, &folder.file("log")).unwrap();
        Some(Terminal { process, input, columns, rows, folder })
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.input.write_all(keys.as_bytes()).unwrap();
    }

    /// Everything that was written to the terminal.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// The current screen.
    pub fn shown(&self) -> String {
        let mut screen = Screen { cells: vec![vec![' '; self.columns]; self.rows], row: 0, column: 0 };
        screen.take(&self.output());
        screen.cells.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned() + "\n").collect()
    }

    /// Waits until the screen is as expected, and calls `meanwhile` between the checks.
    pub fn wait_for(&mut self, what: &str, mut meanwhile: impl FnMut(), is_right: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        while !is_right(&self.shown()) {
            let has_ended = self.process.ended();
            assert!(has_ended.is_none() && begun.elapsed() < PATIENCE, "{what} ({has_ended:?}):\n{}", self.shown());
            meanwhile();
            std::thread::sleep(POLL_PERIOD);
        }
    }

    /// The pid of `glass` in it.
    pub fn glass(&self) -> u32 {
        let pids = process::descendants(self.process.pid());
        pids.into_iter().find(|pid| process::name(*pid).as_deref() == Some("glass")).expect("glass runs")
    }

    /// Waits for the end of the line, which must have restored the terminal. Returns its status and its whole output.
    pub fn end(mut self) -> (ExitStatus, String) {
        let status = self.process.wait(PATIENCE).unwrap_or_else(|| panic!("it does not end:\n{}", self.shown()));
        let modes = |name: &str| std::fs::read_to_string(self.folder.file(name)).unwrap_or_default();
        assert!(!modes("before").is_empty() && modes("before") == modes("after"), "{}", self.output());
        let output = self.output();
        let (taken, given_back) = (output.find("\x1b[?1049h"), output.rfind("\x1b[?1049l"));
        assert!(taken.is_some() && taken < given_back, "{output:?}");
        (status, output)
    }
}

/// As much of a terminal as our screens use: text, cursor positions, and clearing.
struct Screen {
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
}

impl Screen {
    fn take(&mut self, output: &str) {
        let mut rest = output.chars();
        while let Some(c) = rest.next() {
            match c {
                '\x1b' => self.escape(&mut rest),
                '\r' => self.column = 0,
                '\n' => self.row += 1,
                c => {
                    if let Some(cell) = self.cells.get_mut(self.row).and_then(|row| row.get_mut(self.column)) {
                        *cell = c;
                    }
                    self.column += 1;
                }
            }
        }
    }

    fn escape(&mut self, rest: &mut std::str::Chars<'_>) {
        if rest.next() != Some('[') {
            return;
        }
        let mut numbers = String::new();
        let last = rest.find(|c| {
            let is_last = c.is_ascii_alphabetic();
            if !is_last {
                numbers.push(*c);
            }
            is_last
        });
        match last {
            Some('H') => {
                let mut places = numbers.split(';').map(|number| number.parse().unwrap_or(1_usize).saturating_sub(1));
                (self.row, self.column) = (places.next().unwrap_or(0), places.next().unwrap_or(0));
            }
            Some('J') => self.cells.iter_mut().flatten().for_each(|cell| *cell = ' '),
            _ => {}
        }
    }
}
