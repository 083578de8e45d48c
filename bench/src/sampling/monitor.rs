//! QEMU's monitors, as its own tools use them: HMP for commands, QMP for events.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// QEMU answers within milliseconds; a loaded machine gets more.
const LIMIT: Duration = Duration::from_secs(10);
const PROMPT: &[u8] = b"(qemu) ";

fn connect(path: &Path) -> Result<UnixStream> {
    let stream = UnixStream::connect(path).with_context(|| format!("cannot connect to {}", path.display()))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// The monitor for humans (HMP).
pub struct Hmp {
    stream: UnixStream,
}

impl Hmp {
    /// Connects.
    pub fn connect(path: &Path) -> Result<Hmp> {
        let mut hmp = Hmp { stream: connect(path)? };
        hmp.answer()?;
        Ok(hmp)
    }

    fn answer(&mut self) -> Result<Vec<u8>> {
        let mut answer = Vec::new();
        let mut buffer = [0; 16 << 10];
        while !answer.ends_with(PROMPT) {
            let count = self.stream.read(&mut buffer).context("the monitor does not answer")?;
            if count == 0 {
                bail!("the monitor has gone");
            }
            answer.extend_from_slice(&buffer[..count]);
        }
        Ok(answer)
    }

    /// Sends a command; returns the answer and the time it took.
    pub fn command(&mut self, command: &str) -> Result<(String, Duration)> {
        let begin = Instant::now();
        self.stream.write_all(format!("{command}\n").as_bytes())?;
        let answer = self.answer()?;
        Ok((String::from_utf8_lossy(&answer).into_owned(), begin.elapsed()))
    }
}

/// The monitor for programs (QMP).
pub struct Qmp {
    reader: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects.
    pub fn connect(path: &Path) -> Result<Qmp> {
        let mut qmp = Qmp { reader: BufReader::new(connect(path)?) };
        qmp.message()?;
        qmp.reader.get_mut().write_all(b"{\"execute\": \"qmp_capabilities\"}\n")?;
        qmp.message()?;
        Ok(qmp)
    }

    fn message(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.reader.read_line(&mut line).context("the monitor does not answer")?;
        serde_json::from_str(&line).context("the monitor answers with text that is not JSON")
    }

    /// Waits for an event; returns its time by QEMU's clock, in microseconds.
    fn event(&mut self, name: &str) -> Result<u64> {
        loop {
            let message = self.message()?;
            if message["event"] == name {
                let part = |key: &str| message["timestamp"][key].as_u64().context("an event has no time");
                return Ok(part("seconds")? * 1_000_000 + part("microseconds")?);
            }
        }
    }

    /// How long the VM was stopped the next time, by QEMU's own clock, in microseconds.
    pub fn stopped_us(&mut self) -> Result<f64> {
        let stop = self.event("STOP")?;
        Ok(self.event("RESUME")?.saturating_sub(stop) as f64)
    }
}
