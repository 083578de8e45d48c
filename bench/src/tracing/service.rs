//! The services that are measured, started from a chosen build.

use crate::run::Run;
use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs::{self, Variant};
use glass_tests::queue::{Options, Queue, World, service_pid};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a start may take.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A running service. Dropping it ends it.
pub struct Running {
    /// How it was built.
    pub variant: Variant,
    /// Where it listens.
    pub address: SocketAddr,
    pid: u32,
    _process: Kept,
}

enum Kept {
    Queue(#[expect(dead_code, reason = "dropping it ends it")] Queue),
    Sender(#[expect(dead_code, reason = "dropping it ends it")] Process),
}

impl Running {
    /// Starts the service ("queue" or "tcp") and waits until it answers.
    pub fn start(world: World, service: &str, variant: Variant, run: &Run, folder: &Folder) -> Result<Running> {
        let app = if service == "queue" { "upload-queue" } else { "bench-tcp" };
        let program = programs::variant(app, built(app, variant, run), world != World::Process);
        let program = program.with_context(|| format!("{app} ({variant:?}) is not built"))?;
        if service == "queue" {
            let options =
                Options { disk_size: "256M".into(), memory_mib: 64, program: Some(program), ..Options::default() };
            let disk = folder.file(&format!("{world}-{variant:?}.img"));
            let queue = Queue::start(world, &disk, &options)?.context("the queue cannot be started")?;
            return Ok(Running {
                variant,
                address: queue.address,
                pid: queue.service_pid()?,
                _process: Kept::Queue(queue),
            });
        }
        let port = free_port()?;
        let mut command;
        if world == World::Process {
            command = Command::new(program);
            command.args(["--bind", "127.0.0.1", "--", "--port", &port.to_string()]);
        } else {
            command = Command::new(programs::built("glass").context("glass is not built")?);
            command.arg("run").arg(program).args(["--accel", &world.to_string(), "--memory", "64"]);
            command.args(["--port", &format!("{port}:8080"), "--", "--port", "8080"]);
        }
        let mut process = Process::spawn(&mut command, &folder.file(&format!("{world}-{variant:?}.log")))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let deadline = Instant::now() + START_LIMIT;
        while !sends(address) {
            if process.ended().is_some() || Instant::now() > deadline {
                bail!("{app} ({world}) does not answer:\n{}", process.output());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let pid = service_pid(world, &process)?;
        Ok(Running { variant, address, pid, _process: Kept::Sender(process) })
    }

    /// The process that runs the service: QEMU's, or its own.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// The build that is run: in a short run one that the tests have too, which does the same.
pub fn built(app: &str, variant: Variant, run: &Run) -> Variant {
    match variant {
        Variant::Functions if app == "upload-queue" => variant,
        _ => run.size(variant, Variant::Usual),
    }
}

/// Whether a request for a byte is answered. QEMU accepts a connection before its guest can.
fn sends(address: SocketAddr) -> bool {
    use std::io::{Read, Write};
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let limited = stream.set_read_timeout(Some(Duration::from_millis(500)));
    limited.is_ok() && stream.write_all(b"send 1\n").is_ok() && stream.read(&mut [0]).is_ok_and(|count| count == 1)
}
