//! How often a guest is stopped, by the events of its QEMU.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;

/// Counts stops until [`end`](Stops::end).
pub(super) struct Stops {
    stream: UnixStream,
    counter: JoinHandle<usize>,
}

impl Stops {
    /// From the monitor at `socket`, which nothing else may use meanwhile.
    pub(super) fn count(socket: &Path) -> Result<Stops> {
        let mut stream = UnixStream::connect(socket).with_context(|| format!("no monitor at {}", socket.display()))?;
        stream.write_all(b"{\"execute\":\"qmp_capabilities\"}\n")?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let is_ready = |line: &str| line.contains("\"return\"");
        ensure!(lines.by_ref().map_while(Result::ok).any(|line| is_ready(&line)), "QEMU has closed the monitor");
        let counter = std::thread::spawn(move || lines.map_while(Result::ok).filter(|line| is_stop(line)).count());
        Ok(Stops { stream, counter })
    }

    /// How many there were.
    pub(super) fn end(self) -> Result<usize> {
        // What is on its way has arrived when this is answered, and then the connection ends.
        self.stream.shutdown(Shutdown::Both)?;
        self.counter.join().ok().context("counting failed")
    }
}

fn is_stop(line: &str) -> bool {
    serde_json::from_str::<Value>(line).is_ok_and(|message| message["event"] == "STOP")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stops_are_counted() {
        assert!(is_stop("{\"timestamp\": {\"seconds\": 1}, \"event\": \"STOP\"}\r"));
        assert!(!is_stop("{\"event\": \"RESUME\"}") && !is_stop("{\"return\": {\"x\": \"STOP\"}}") && !is_stop("STOP"));
    }
}
