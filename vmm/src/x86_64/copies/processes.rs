//! Several copies: each one a process, which this one starts at once or when its first client comes, and waits for.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::mem;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process;

use anyhow::{Context, Result, ensure};
use glass_devices::Listeners;
use glass_formats::Exit;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getppid, pidfd_open, set_parent_process_death_signal, waitpid,
};

use super::{Template, user_network};
use crate::CopyNetwork;
use crate::x86_64::sys;

/// The byte on the console that requests the end of a service: a terminal's Ctrl-C.
const INTERRUPT: u8 = 3;

/// A copy.
enum Copy {
    /// It starts when a client connects to one of these.
    Waiting(Listeners),
    Running(Running),
    Ended,
}

/// All copies of a template.
pub struct Processes<'a> {
    template: &'a Template<'a>,
    copies: Vec<Copy>,
    /// That of the first copy that has failed, or of success.
    status: i32,
}

impl<'a> Processes<'a> {
    /// Starts them, or waits for their clients.
    ///
    /// # Errors
    /// There are no processes or descriptors, or a port cannot be had.
    pub fn start(template: &'a Template<'a>) -> Result<Processes<'a>> {
        let mut processes = Processes { template, copies: Vec::new(), status: SUCCESS };
        for index in 0..template.copies.count {
            let copy = match &template.copies.network {
                CopyNetwork::User(first) if template.copies.on_demand => {
                    Copy::Waiting(user_network(first, index)?.listen()?)
                }
                CopyNetwork::User(_) | CopyNetwork::Tap(_) => Copy::Running(processes.fork(index, None)?),
            };
            processes.copies.push(copy);
        }
        Ok(processes)
    }

    /// Makes a process for copy number `index`.
    fn fork(&mut self, index: u16, listeners: Option<Listeners>) -> Result<Running> {
        let (reader, writer) = io::pipe().context("there are no descriptors")?;
        let own = process::id();
        let Some(pid) = sys::fork().context("there are no processes")? else {
            drop((mem::take(&mut self.copies), writer));
            let Err(error) =
                end_with(own).and_then(|()| read_from(reader)).and_then(|()| self.template.run(index, listeners));
            eprintln!("glass: copy {index}: {error:#}");
            process::exit(1);
        };
        Running::new(pid, writer)
    }

    /// Waits until all have ended, and passes on what is written to this process; returns a status.
    pub fn watch(mut self) -> Result<i32> {
        let mut input = Some(File::from(io::stdin().as_fd().try_clone_to_owned()?));
        while self.copies.iter().any(|copy| !matches!(copy, Copy::Ended)) {
            let mut polled = Vec::new();
            let mut polled_of = Vec::new();
            for (index, copy) in self.copies.iter().enumerate() {
                match copy {
                    Copy::Waiting(listeners) => {
                        polled.extend(listeners.files().map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN)))
                    }
                    Copy::Running(copy) => polled.push(PollFd::new(&copy.process, PollFlags::IN)),
                    Copy::Ended => {}
                }
                polled_of.resize(polled.len(), index);
            }
            polled.extend(input.as_ref().map(|input| PollFd::new(input, PollFlags::IN)));
            match poll(&mut polled, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for the copies"),
            }
            let is_ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
            let has_input = input.is_some() && is_ready.last() == Some(&true);
            let mut ready: Vec<usize> =
                polled_of.iter().zip(&is_ready).filter(|(_, is_ready)| **is_ready).map(|(index, _)| *index).collect();
            ready.dedup();
            for index in ready {
                self.follow(index)?;
            }
            if has_input {
                self.pass_on(&mut input);
            }
        }
        Ok(self.status)
    }

    /// Starts a copy whose client has come, or notes that one has ended.
    fn follow(&mut self, index: usize) -> Result<()> {
        match mem::replace(&mut self.copies[index], Copy::Ended) {
            Copy::Waiting(listeners) => self.copies[index] = Copy::Running(self.fork(index as u16, Some(listeners))?),
            Copy::Running(copy) => {
                let ended = waitpid(Some(copy.pid), WaitOptions::empty()).ok().flatten();
                // One that a signal has ended has failed.
                let ended = ended.map_or(1, |(_, ended)| ended.exit_status().unwrap_or(1));
                if self.status == SUCCESS {
                    self.status = ended;
                }
            }
            Copy::Ended => {}
        }
        Ok(())
    }

    /// Passes on what is there to read, to all.
    fn pass_on(&mut self, input: &mut Option<File>) {
        let mut bytes = [0; 256];
        let count = input.as_mut().map_or(0, |input| input.read(&mut bytes).unwrap_or(0));
        let is_end = bytes[..count].contains(&INTERRUPT);
        for copy in &mut self.copies {
            match copy {
                // What does not fit is lost.
                Copy::Running(Running { input: Some(writer), .. }) if count > 0 => _ = writer.write(&bytes[..count]),
                Copy::Running(copy) => copy.input = None,
                // It was not needed.
                Copy::Waiting(_) if is_end => *copy = Copy::Ended,
                Copy::Waiting(_) | Copy::Ended => {}
            }
        }
        if count == 0 {
            *input = None;
        }
    }
}

/// The status of a VMM whose service has succeeded.
const SUCCESS: i32 = 2 * Exit::Success as i32 + 1;

/// Makes this process end with the one that has made it.
fn end_with(parent: u32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot end with the other copies")?;
    let is_there = getppid().is_some_and(|pid| pid.as_raw_nonzero().get().cast_unsigned() == parent);
    ensure!(is_there, "the process that starts copies has ended");
    Ok(())
}

/// Makes it standard input.
fn read_from(reader: PipeReader) -> Result<()> {
    rustix::stdio::dup2_stdin(&reader).context("there is no standard input")
}

/// A copy that runs.
struct Running {
    pid: Pid,
    /// Readable when it has ended.
    process: OwnedFd,
    /// Its console.
    input: Option<PipeWriter>,
}

impl Running {
    fn new(pid: Pid, input: PipeWriter) -> Result<Running> {
        // One that does not read its console is not waited for.
        rustix::io::ioctl_fionbio(&input, true).context("there are no descriptors")?;
        let process = pidfd_open(pid, PidfdFlags::empty()).context("there are no descriptors")?;
        Ok(Running { pid, process, input: Some(input) })
    }
}
