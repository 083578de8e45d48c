//! `glass run --ranks N`: starts a program N times as the ranks of an MPI job (docs/formats/mpi-ranks.md).

use super::ranks_trace::RanksTrace;
use super::traced::Recording;
use super::{Args, CORES_MAX, MEMORY_DEFAULT, SocketFolder, ends_with_us, options, section_contains};
use crate::build::Platform;
use crate::console::say;
use anyhow::{Context, Result, bail, ensure};
use glass_formats::C_PROGRAM_MARK;
use glass_formats::trace::Group;
use glass_profiler_session::Wish;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The most ranks: the first page of their memory has room for so many.
const RANKS_MAX: u32 = 256;
/// How long ranks may take to report that another one died, before they are killed.
const GRACE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(5);
/// Names the library, where it does not lie beside us.
const LIBRARY_VARIABLE: &str = "GLASS_MPI_LIBRARY";
/// The names by which programs of the standard ABI load it: the second is that of ours of before, and of MPICH 5.0.1.
const LIBRARY_NAMES: [&str; 3] = ["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so"];
const HEADER_BYTES: u64 = 4096;
const STATES_OFFSET: u64 = 64;
/// States of a rank in the first page.
const NEVER_INSIDE: u32 = 0;
const INSIDE: u32 = 1;

/// Options of a job of ranks.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Start the program after `--` this many times: each is a process (rank) of one MPI job. With the image of a C program instead: the ranks
    /// of one VM, each on a core of its own.
    #[arg(long, help_heading = "MPI", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(RANKS_MAX)))]
    pub ranks: Option<u32>,
    /// Print the number of the rank before each line that it prints.
    #[arg(long, help_heading = "MPI", requires = "ranks")]
    prefix: bool,
}

/// Gives the VM of a C program's image a core for each rank and one for the devices, and more memory unless its size is given.
pub(super) fn prepare_vm(args: &mut Args, image: &Path) -> Result<()> {
    let is_c_program = args.platform == Platform::Vm && section_contains(image, ".rodata", C_PROGRAM_MARK)?;
    let ranks = args.ranks.ranks;
    if !is_c_program {
        ensure!(
            ranks.is_none(),
            "{} has no ranks: give an image made by `glass build --c`, or the program after `--`",
            image.display()
        );
        return Ok(());
    }
    ensure!(!args.ranks.prefix, "--prefix is for ranks that are processes: give the program after `--`");
    ensure!(args.cores == 1, "a C program has a core for each rank: give their number by --ranks");
    args.cores = ranks.unwrap_or(1) + 1;
    ensure!(
        i64::from(args.cores) <= CORES_MAX,
        "a VM has at most {} ranks, a core for each and one for the devices",
        CORES_MAX - 1
    );
    if args.memory == MEMORY_DEFAULT {
        args.memory *= u64::from(args.cores);
    }
    args.cpus = thread::available_parallelism().ok().map(usize::from);
    Ok(())
}

/// Runs the job; the exit code is that of the first rank that failed, as `mpirun` has it.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let options = &args.ranks;
    options::check_process(args)?;
    let refused = [
        (args.disk.is_some(), "--disk"),
        (args.share.is_some(), "--share"),
        (args.vsock.is_some(), "--vsock"),
        (args.restart, "--restart"),
        (args.cores > 1, "--cores"),
    ];
    if let Some((_, option)) = refused.into_iter().find(|(is_given, _)| *is_given) {
        bail!("{option} is for a service, and ranks are programs: leave it out");
    }
    let Some((program, arguments)) = args.args.split_first() else { bail!("give the program after `--`") };
    let program = find_program(program)?;
    let count = options.ranks.unwrap_or(1);
    let folder = SocketFolder::make()?;
    // Inherited by every rank: it is not closed when a program begins.
    let memory =
        File::from(memfd_create("glass-mpi", MemfdFlags::empty()).context("cannot make the memory of the ranks")?);
    memory.set_len(HEADER_BYTES)?;
    let libraries = library_path(&folder.0)?;
    let groups = args.trace.map_or(0, |groups| groups.0);
    ensure!(
        args.trace.is_none() || groups & Group::Mpi as u32 != 0,
        "ranks have the group of events `mpi` only: leave out the groups after `--trace`"
    );
    let recording = Recording::of_ranks(args)?;
    let mut job = Job { memory, trace: RanksTrace::make(count, groups)?, ranks: Vec::new(), failed: None };
    for rank in 0..count {
        let mut command = ends_with_us(&program);
        command.args(arguments).env("GLASS_MPI_RANK", rank.to_string()).env("GLASS_MPI_RANKS", count.to_string());
        command.env("GLASS_MPI_FD", job.memory.as_raw_fd().to_string()).env("LD_LIBRARY_PATH", &libraries);
        command.env("GLASS_MPI_TRACE_FD", job.trace.descriptor().to_string());
        if rank > 0 {
            command.stdin(Stdio::null());
        }
        job.ranks.push(Rank::start(&mut command, rank, options.prefix)?);
    }
    match recording {
        Some(recording) => {
            let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
            let title = format!("{name} ({count} ranks)");
            let watch = || Ok(if job.is_over()? { Wish::Stop } else { Wish::Continue });
            recording.record(std::process::id(), &title, false, watch)?;
        }
        None => {
            while !job.is_over()? {
                thread::sleep(POLL);
            }
        }
    }
    job.finish()
}

/// The program as a shell would find it: setpriv, which starts it, looks in the path too.
fn find_program(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    ensure!(!name.contains('/') || path.is_file(), "there is no file {name}");
    Ok(path.to_owned())
}

/// A search path with a folder in which our library has all its names, before what the user has.
fn library_path(folder: &Path) -> Result<String> {
    let before = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let Some(library) = find_library() else {
        // A program may have the library inside.
        return Ok(before);
    };
    for name in LIBRARY_NAMES {
        symlink(&library, folder.join(name)).with_context(|| format!("cannot link to {}", library.display()))?;
    }
    let folder = folder.display();
    Ok(if before.is_empty() { folder.to_string() } else { format!("{folder}:{before}") })
}

fn find_library() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE) {
        return std::fs::canonicalize(named).ok();
    }
    let own = std::env::current_exe().ok()?;
    let beside = own.parent()?;
    let places = [beside.join("libmpi_abi.so"), beside.join("../lib/libmpi_abi.so.1")];
    places.into_iter().find_map(|place| std::fs::canonicalize(place).ok())
}

/// A rank's process, and what copies its output.
struct Rank {
    child: Child,
    copiers: Vec<thread::JoinHandle<()>>,
    status: Option<ExitStatus>,
}

impl Rank {
    fn start(command: &mut Command, rank: u32, has_prefix: bool) -> Result<Rank> {
        if has_prefix {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = command.spawn().context("cannot run setpriv: install util-linux")?;
        let mut copiers = Vec::new();
        if let Some(output) = child.stdout.take() {
            copiers.push(thread::spawn(move || copy_lines(rank, output, std::io::stdout())));
        }
        if let Some(errors) = child.stderr.take() {
            copiers.push(thread::spawn(move || copy_lines(rank, errors, std::io::stderr())));
        }
        Ok(Rank { child, copiers, status: None })
    }
}

/// Copies lines with the rank's number before each; a line that is too long is cut.
fn copy_lines(rank: u32, from: impl Read, mut to: impl Write) {
    const LINE_BYTES_MAX: u64 = 64 << 10;
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut from).take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                // When our output is closed, the line is lost.
                let _ = to.write_all(format!("[{rank}] {}\n", text.trim_end_matches('\n')).as_bytes());
            }
        }
    }
}

struct Job {
    memory: File,
    trace: RanksTrace,
    ranks: Vec<Rank>,
    /// The exit code of the first rank that failed, and since when.
    failed: Option<(u8, Instant)>,
}

impl Job {
    fn word(&self, offset: u64) -> u32 {
        let mut word = [0; 4];
        // The page is there from the beginning; what cannot be read is as if it were never written.
        let _ = self.memory.read_exact_at(&mut word, offset);
        u32::from_ne_bytes(word)
    }

    fn state(&self, rank: usize) -> u32 {
        self.word(STATES_OFFSET + rank as u64 * 4)
    }

    /// Lets all waits of the other ranks fail. The code before the word that announces it.
    fn announce(&self, rank: usize, code: u8) {
        let _ = self.memory.write_all_at(&u32::from(code).to_ne_bytes(), 4);
        let _ = self.memory.write_all_at(&(rank as u32 + 1).to_ne_bytes(), 0);
    }

    /// Whether all ranks have ended, which is to be called often: after a failure the others have a moment to end by themselves.
    fn is_over(&mut self) -> Result<bool> {
        self.trace.follow_host();
        for rank in 0..self.ranks.len() {
            let Some(status) = self.ended(rank)? else { continue };
            let Some((code, reason)) = self.failure(rank, status) else { continue };
            if self.failed.is_none() {
                // A rank that aborts gives its code; others may have ended because of it before it did.
                let is_announced = self.word(0) != 0;
                let code = if is_announced { (self.word(4) as u8).max(1) } else { code };
                if !is_announced {
                    say!("glass: rank {rank} {reason}; ending the others");
                    self.announce(rank, code);
                }
                self.failed = Some((code, Instant::now()));
            }
        }
        if self.failed.is_some_and(|(_, since)| since.elapsed() > GRACE) {
            self.kill();
        }
        Ok(self.ranks.iter().all(|rank| rank.status.is_some()))
    }

    /// Waits until all output of the ranks, which have ended, is copied.
    fn finish(&mut self) -> Result<ExitCode> {
        self.ranks.iter_mut().flat_map(|rank| rank.copiers.drain(..)).for_each(|copier| {
            let _ = copier.join();
        });
        Ok(self.failed.map_or(ExitCode::SUCCESS, |(code, _)| ExitCode::from(code)))
    }

    /// How a rank ended, once: `None` before and after.
    fn ended(&mut self, rank: usize) -> Result<Option<ExitStatus>> {
        let rank = &mut self.ranks[rank];
        if rank.status.is_some() {
            return Ok(None);
        }
        rank.status = rank.child.try_wait().context("cannot wait for a rank")?;
        Ok(rank.status)
    }

    /// Why the way in which a rank ended is a failure of the job, and its exit code.
    fn failure(&self, rank: usize, status: ExitStatus) -> Option<(u8, String)> {
        match (status.code(), status.signal()) {
            (Some(0), _) if self.state(rank) == INSIDE => Some((1, "ended without MPI_Finalize".to_owned())),
            (Some(0), _) if self.state(rank) == NEVER_INSIDE && self.is_any_inside() => {
                Some((1, "ended without MPI_Init".to_owned()))
            }
            (Some(0), _) => None,
            (Some(code), _) => Some((code as u8, format!("ended with exit code {code}"))),
            (None, Some(signal)) => Some((128 + signal as u8, format!("was ended by signal {signal}"))),
            (None, None) => Some((1, "ended".to_owned())),
        }
    }

    fn is_any_inside(&self) -> bool {
        (0..self.ranks.len()).any(|rank| self.state(rank) == INSIDE)
    }

    fn kill(&mut self) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.status.is_none()) {
            // An error means that it has ended already.
            let _ = rank.child.kill();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}
