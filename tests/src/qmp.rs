//! QEMU's machine protocol, and what tests do with it: change a VM's devices and its memory while it runs.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long QEMU may take for an answer.
const LIMIT: Duration = Duration::from_secs(240);

/// A connection to the monitor of a QEMU.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects to the monitor at `socket`, and waits until it is there.
    pub fn connect(socket: &Path) -> Result<Qmp> {
        let end = Instant::now() + LIMIT;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > end => {
                    return Err(error).with_context(|| format!("no monitor at {}", socket.display()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        stream.set_read_timeout(Some(LIMIT))?;
        let mut qmp = Qmp { stream: BufReader::new(stream) };
        qmp.line()?;
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Connects to the monitor that `glass run` has given to the QEMU with this pid.
    pub fn of_glass_run(pid: u32) -> Result<Qmp> {
        Qmp::connect(&monitor_of_glass_run(pid)?)
    }

    /// Executes a command; its answer.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes())?;
        self.answer(&request)
    }

    fn answer(&mut self, request: &Value) -> Result<Value> {
        loop {
            let mut answer = self.line()?;
            // Events come in between.
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {request}: {error}");
            }
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("QEMU has closed the monitor");
        }
        serde_json::from_str(&line).with_context(|| format!("no JSON: {line}"))
    }

    /// The path of a virtio device by QEMU's name for its kind (`virtio-blk`, `virtio-net`).
    fn path(&mut self, device: &str) -> Result<Value> {
        let devices = self.execute("x-query-virtio", json!({}))?;
        let devices = devices.as_array().context("no list of devices")?;
        let path = devices.iter().find(|other| other["name"] == device).map(|device| device["path"].clone());
        path.with_context(|| format!("there is no {device}"))
    }

    /// Whether the device has interrupted by its line, and was not acknowledged yet.
    pub fn is_line_up(&mut self, device: &str) -> Result<bool> {
        let path = self.path(device)?;
        let status = self.execute("x-query-virtio-status", json!({ "path": path }))?;
        Ok(status["isr"].as_u64().context("no isr")? != 0)
    }

    /// Where the rings of a queue of a device are.
    pub fn queue(&mut self, device: &str, number: u16) -> Result<Rings> {
        let path = self.path(device)?;
        let status = self.execute("x-query-virtio-queue-status", json!({ "path": path, "queue": number }))?;
        let word = |name: &str| status[name].as_u64().with_context(|| format!("no {name} in {status}"));
        Ok(Rings { size: word("vring-num")?, descriptors: word("vring-desc")?, used: word("vring-used")? })
    }
}

/// The socket of the monitor that `glass run` has given to the QEMU with this pid.
pub fn monitor_of_glass_run(pid: u32) -> Result<PathBuf> {
    let words = fs::read(format!("/proc/{pid}/cmdline"))?;
    let words = words.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let mut path = words.filter_map(|word| {
        let (path, _) = word.strip_prefix("socket,path=")?.split_once(",server=on,wait=off,id=monitor")?;
        Some(PathBuf::from(path))
    });
    path.next().context("this QEMU has no monitor")
}

/// When a VM was stopped and when it was let run, by the events of its QEMU.
#[derive(Debug)]
pub struct Events {
    stream: UnixStream,
    reader: JoinHandle<Vec<Moment>>,
}

/// A stop of a VM, or its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// In nanoseconds since 1970; QEMU has it in microseconds.
    pub unix_ns: u64,
    /// The VM runs from then on.
    pub resumes: bool,
}

impl Events {
    /// From the monitor at `socket`, which nothing else may use meanwhile.
    pub fn collect(socket: &Path) -> Result<Events> {
        let Qmp { stream } = Qmp::connect(socket)?;
        stream.get_ref().set_read_timeout(None)?;
        let writer = stream.get_ref().try_clone()?;
        let is_event = |line: &String| !line.contains("\"return\"");
        let lines = stream.lines().map_while(Result::ok).take_while(is_event);
        let moments = move || lines.filter_map(|line| Moment::parse(&line)).collect();
        Ok(Events { stream: writer, reader: std::thread::spawn(moments) })
    }

    /// All of them until now.
    pub fn end(mut self) -> Result<Vec<Moment>> {
        // QEMU executes this in the thread that stops the VM, and answers behind what it has sent before.
        self.stream.write_all(b"{\"execute\":\"query-status\"}\n")?;
        self.reader.join().ok().context("the thread that collects events has failed")
    }
}

impl Moment {
    fn parse(line: &str) -> Option<Moment> {
        let message: Value = serde_json::from_str(line).ok()?;
        let time = |unit: &str| message["timestamp"][unit].as_u64();
        let resumes = match message["event"].as_str()? {
            "STOP" => false,
            "RESUME" => true,
            _ => return None,
        };
        Some(Moment { unix_ns: time("seconds")? * 1_000_000_000 + time("microseconds")? * 1000, resumes })
    }
}

/// A queue's rings, by addresses in the VM's memory.
#[derive(Debug, Clone, Copy)]
pub struct Rings {
    /// Number of descriptors.
    pub size: u64,
    /// The descriptor table.
    pub descriptors: u64,
    /// The used ring.
    pub used: u64,
}

/// The memory of a VM that `glass run` has started, which is a memory file of its QEMU.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    /// Opens the memory below 2 GiB of the VM that the QEMU with this pid runs.
    pub fn of(pid: u32) -> Result<Memory> {
        for file in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let path = file?.path();
            if fs::read_link(&path)
                .is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:memory-backend-memfd"))
            {
                return Ok(Memory(File::options().read(true).write(true).open(path)?));
            }
        }
        bail!("QEMU has no memory file")
    }

    /// A 16-bit word.
    pub fn read_u16(&self, address: u64) -> Result<u16> {
        let mut bytes = [0; 2];
        self.0.read_exact_at(&mut bytes, address)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// Writes bytes.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.0.write_all_at(bytes, address)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stops_and_their_ends_are_moments() {
        let stop = "{\"timestamp\": {\"seconds\": 2, \"microseconds\": 5}, \"event\": \"STOP\"}\r";
        assert_eq!(Moment::parse(stop), Some(Moment { unix_ns: 2_000_005_000, resumes: false }));
        let resume = Moment { unix_ns: 2_000_005_000, resumes: true };
        assert_eq!(Moment::parse(&stop.replace("STOP", "RESUME")), Some(resume));
        assert_eq!(Moment::parse(&stop.replace("STOP", "RESET")), None);
        assert_eq!([Moment::parse("{\"return\": {\"x\": \"STOP\"}}"), Moment::parse("STOP")], [None; 2]);
    }
}
