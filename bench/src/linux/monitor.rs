//! When a guest is stopped, by the events of its QEMU.

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
    counter: JoinHandle<Vec<u64>>,
}

impl Stops {
    /// From the monitor at `socket`, which nothing else may use meanwhile.
    pub(super) fn count(socket: &Path) -> Result<Stops> {
        let mut stream = UnixStream::connect(socket).with_context(|| format!("no monitor at {}", socket.display()))?;
        stream.write_all(b"{\"execute\":\"qmp_capabilities\"}\n")?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let is_ready = |line: &str| line.contains("\"return\"");
        ensure!(lines.by_ref().map_while(Result::ok).any(|line| is_ready(&line)), "QEMU has closed the monitor");
        let times = move || lines.map_while(Result::ok).filter_map(|line| time_of_stop(&line)).collect();
        let counter = std::thread::spawn(times);
        Ok(Stops { stream, counter })
    }

    /// Their times in nanoseconds since 1970.
    pub(super) fn end(self) -> Result<Vec<u64>> {
        // What is on its way has arrived when this is answered, and then the connection ends.
        self.stream.shutdown(Shutdown::Both)?;
        self.counter.join().ok().context("counting failed")
    }
}

/// The time of a stop, if a message is one.
fn time_of_stop(line: &str) -> Option<u64> {
    let message: Value = serde_json::from_str(line).ok()?;
    let time = |unit: &str| message["timestamp"][unit].as_u64();
    let is_stop = message["event"] == "STOP";
    is_stop.then(|| Some(time("seconds")? * 1_000_000_000 + time("microseconds")? * 1000))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stops_are_counted() {
        let stop = "{\"timestamp\": {\"seconds\": 2, \"microseconds\": 5}, \"event\": \"STOP\"}\r";
        assert_eq!(time_of_stop(stop), Some(2_000_005_000));
        assert_eq!(time_of_stop(&stop.replace("STOP", "RESUME")), None);
        assert_eq!([time_of_stop("{\"return\": {\"x\": \"STOP\"}}"), time_of_stop("STOP")], [None; 2]);
    }
}
