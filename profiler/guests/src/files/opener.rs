//! Files for a process in its jail: another one, which keeps the rights over what is sampled, opens them and sends the descriptors.
//!
//! The reader may have been taken over by what it reads. So it gets nothing but what begins like a program or a jitdump, and perf maps;
//! a file that a path leads to otherwise, `/etc/shadow` for example, it does not get.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use glass_profiler_core::event::{FileIdentity, Mapping, Placement};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::bytes::{MESSAGE_BYTES_MAX, Reader, Writer};
use crate::error::GuestError;
use crate::files::debuginfod::Debuginfod;
use crate::files::mapped::{cannot_be_read, open_mapped, open_path, read_vdso};
use crate::files::perf_map::open_perf_map;
use crate::sys::{Packets, leave_session};

/// The word of a command line for a holder that opens files.
pub const FILES: &str = "files";
/// How long an answer may take, and the end of the other process.
const PATIENCE: Duration = Duration::from_secs(30);
const END_PATIENCE: Duration = Duration::from_secs(2);
/// How programs begin, and jitdumps (Linux, tools/perf/Documentation/jitdump-specification.txt) in both byte orders.
const BEGINNINGS: [&[u8; 4]; 3] = [b"\x7fELF", b"JiTD", b"DTiJ"];

/// What the reader wants to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FileRequest {
    /// A path, as a process sees it or as this one does.
    Path(Option<u32>, String),
    /// What a process has mapped.
    Mapped(u32, Mapping),
    /// The perf map of a process.
    PerfMap(u32),
    /// Debug information by its build id, from a server.
    DebugFile(Vec<u8>),
}

impl FileRequest {
    fn to_bytes(&self) -> Vec<u8> {
        let writer = match self {
            FileRequest::Path(process, path) => {
                Writer::of_kind(0).perhaps(process.map(u64::from)).bytes(path.as_bytes())
            }
            FileRequest::Mapped(process, Mapping { start, end, path, placement, file }) => {
                let offset = if let Placement::FileOffset(offset) = placement { Some(*offset) } else { None };
                let writer = Writer::of_kind(1).number(*process).words(&[*start, *end]).bytes(path.as_bytes());
                let FileIdentity { device, inode } = file.unwrap_or(FileIdentity { device: (0, 0), inode: 0 });
                let writer = writer.perhaps(offset).flag(file.is_some());
                writer.number(device.0).number(device.1).word(inode)
            }
            FileRequest::PerfMap(process) => Writer::of_kind(2).number(*process),
            FileRequest::DebugFile(build_id) => Writer::of_kind(3).bytes(build_id),
        };
        writer.0
    }

    fn parse(bytes: &[u8]) -> Option<FileRequest> {
        let mut reader = Reader(bytes);
        let request = match reader.byte()? {
            0 => {
                let process = reader.perhaps()?.map(u32::try_from).transpose().ok()?;
                FileRequest::Path(process, reader.text()?)
            }
            1 => {
                let (process, [start, end], path) = (reader.number()?, reader.words()?, reader.text()?);
                let placement = reader.perhaps()?.map_or(Placement::AsLinked, Placement::FileOffset);
                let is_known = reader.flag()?;
                let device = (reader.number()?, reader.number()?);
                let file = Some(FileIdentity { device, inode: reader.word()? }).filter(|_| is_known);
                FileRequest::Mapped(process, Mapping { start, end, path, placement, file })
            }
            2 => FileRequest::PerfMap(reader.number()?),
            3 => FileRequest::DebugFile(reader.bytes()?.to_vec()),
            _ => return None,
        };
        reader.end(request)
    }

    /// Opens it. `None`: there is none. Fails with a phrase.
    fn open(self, debuginfod: &mut Option<Debuginfod>) -> Result<Option<File>, String> {
        let file = match self {
            FileRequest::PerfMap(process) => return open_perf_map(process),
            FileRequest::Path(process, path) => open_path(process, &path).ok(),
            FileRequest::DebugFile(build_id) => debuginfod.as_mut().and_then(|servers| servers.open(&build_id)),
            FileRequest::Mapped(process, mapping) => Some(open_mapped(process, &mapping)?),
        };
        let Some(file) = file else { return Ok(None) };
        let mut beginning = [0; 4];
        let is_read = file.read_exact_at(&mut beginning, 0).is_ok();
        match is_read && BEGINNINGS.contains(&&beginning) {
            true => Ok(Some(file)),
            false => Err("is no program".to_owned()),
        }
    }
}

/// Sends a message, with a file if there is one.
fn send(socket: &OwnedFd, message: &[u8], file: Option<&File>) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut room);
    let files = file.map(|file| [file.as_fd()]);
    if let Some(files) = &files {
        with.push(SendAncillaryMessage::ScmRights(files));
    }
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(message)], &mut with, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives one. Nothing at the end.
fn receive(socket: &OwnedFd, into: &mut [u8]) -> io::Result<(usize, Option<File>)> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = RecvAncillaryBuffer::new(&mut room);
    let received = retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(into)], &mut with, RecvFlags::CMSG_CLOEXEC))?;
    let mut files = with.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok((received.bytes, files.next().and_then(|mut files| files.next()).map(File::from)))
}

/// Opens files for the process at the other end of `socket`, one at a time, until that is gone. For a process of its own, whose standard
/// input the socket is.
///
/// # Errors
/// `socket` is none that a reader has made.
pub fn serve_files(socket: OwnedFd, mut debuginfod: Option<Debuginfod>) -> io::Result<()> {
    if !Packets::is_one(&socket) {
        return Err(io::Error::other("standard input is no socket of glass, which starts this by itself"));
    }
    leave_session(c"glass-holder");
    serve(&socket, &mut debuginfod);
    Ok(())
}

fn serve(socket: &OwnedFd, debuginfod: &mut Option<Debuginfod>) {
    let mut room = vec![0; MESSAGE_BYTES_MAX];
    while let Ok((bytes @ 1.., _)) = receive(socket, &mut room) {
        let Some(request) = FileRequest::parse(&room[..bytes]) else { return };
        let sent = match request.open(debuginfod) {
            Ok(Some(file)) => send(socket, &[1], Some(&file)),
            Ok(None) => send(socket, &[0], None),
            Err(phrase) => send(socket, &Writer::of_kind(2).bytes(phrase.as_bytes()).0, None),
        };
        if sent.is_err() {
            return;
        }
    }
}

/// The way to a process that opens files for this one.
#[derive(Debug)]
pub struct Opener {
    /// None any more if that process is gone, or has not answered in time.
    socket: Mutex<Option<OwnedFd>>,
    process: Option<Child>,
    /// The kernel's shared object, which a process in its jail cannot read.
    pub(crate) vdso: Option<Vec<u8>>,
}

impl Opener {
    /// Starts the process: `program` with `arguments` and [`FILES`].
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(program: &Path, arguments: &[std::ffi::OsString]) -> Result<Opener, GuestError> {
        let action = || "start the process that opens files".to_owned();
        let failed = |error| GuestError::System { action: action(), error };
        let (packets, its_end) = Packets::pair().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(arguments).arg(FILES);
        // What it writes is for the user: about downloads.
        command.stdin(its_end.into_socket()).stdout(Stdio::null());
        let process = command.spawn().map_err(failed)?;
        Ok(Opener::of(packets.into_socket(), Some(process)))
    }

    fn of(socket: OwnedFd, process: Option<Child>) -> Opener {
        Opener { socket: Mutex::new(Some(socket)), process, vdso: read_vdso() }
    }

    fn request(&self, request: &FileRequest, patience: Duration) -> Result<Option<File>, String> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = socket.as_ref().and_then(|socket| ask(socket, request, patience).ok());
        // An answer that comes too late would be taken for the next one.
        answer.unwrap_or_else(|| {
            *socket = None;
            Err("cannot be opened: the process of glass that opens files does not answer".to_owned())
        })
    }

    pub(crate) fn path(&self, process: Option<u32>, path: &str) -> Option<File> {
        self.request(&FileRequest::Path(process, path.to_owned()), PATIENCE).ok()?
    }

    pub(crate) fn mapped(&self, process: u32, mapping: &Mapping) -> Result<File, String> {
        self.request(&FileRequest::Mapped(process, mapping.clone()), PATIENCE)?.ok_or_else(cannot_be_read)
    }

    pub(crate) fn perf_map(&self, process: u32) -> Result<Option<File>, String> {
        self.request(&FileRequest::PerfMap(process), PATIENCE)
    }

    /// `patience` is that of the servers.
    pub(crate) fn debug_file(&self, build_id: &[u8], patience: Duration) -> Option<File> {
        self.request(&FileRequest::DebugFile(build_id.to_vec()), PATIENCE + patience).ok()?
    }
}

/// One request and its answer.
fn ask(socket: &OwnedFd, request: &FileRequest, patience: Duration) -> io::Result<Result<Option<File>, String>> {
    send(socket, &request.to_bytes(), None)?;
    let start = Instant::now();
    loop {
        let left = patience.saturating_sub(start.elapsed());
        let limit = Timespec { tv_sec: left.as_secs().try_into().unwrap_or(0), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    let mut room = [0; 4096];
    let (bytes, file) = receive(socket, &mut room)?;
    let unknown = || io::Error::other("an unknown answer");
    match (room[..bytes].split_first(), file) {
        (Some((1, _)), Some(file)) => Ok(Ok(Some(file))),
        (Some((0, _)), None) => Ok(Ok(None)),
        (Some((2, phrase)), None) => Ok(Err(Reader(phrase).text().ok_or_else(unknown)?)),
        _ => Err(unknown()),
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        *self.socket.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        let Some(process) = &mut self.process else { return };
        let start = Instant::now();
        while matches!(process.try_wait(), Ok(None)) && start.elapsed() < END_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_tests::folder::Folder;
    use std::fs;

    #[test]
    fn what_is_wanted_arrives_as_it_was_sent() {
        let file = Some(FileIdentity { device: (1, 2), inode: 3 });
        let placement = Placement::FileOffset(4);
        let mapping = Mapping { start: 5, end: 6, path: "/a b".to_owned(), placement, file };
        let all = [
            FileRequest::Path(None, "/x".to_owned()),
            FileRequest::Path(Some(7), "/y".to_owned()),
            FileRequest::Mapped(8, mapping.clone()),
            FileRequest::Mapped(8, Mapping { file: None, placement: Placement::AsLinked, ..mapping }),
            FileRequest::PerfMap(9),
            FileRequest::DebugFile(vec![1, 2]),
        ];
        for request in all {
            let bytes = request.to_bytes();
            for cut in 0..bytes.len() {
                assert_eq!(FileRequest::parse(&bytes[..cut]), None, "cut at {cut}");
            }
            assert_eq!(FileRequest::parse(&bytes), Some(request));
        }
    }

    #[test]
    fn programs_are_handed_out_and_nothing_else() {
        let (one, other) = Packets::pair().unwrap();
        let server = std::thread::spawn(move || serve(&other.into_socket(), &mut None));
        let opener = Opener::of(one.into_socket(), None);
        let own = std::env::current_exe().unwrap().display().to_string();
        let folder = Folder::new("opener").unwrap();
        let secret = folder.file("secret");
        fs::write(&secret, "a password").unwrap();
        for process in [None, Some(std::process::id())] {
            let mut beginning = [0; 4];
            opener.path(process, &own).unwrap().read_exact_at(&mut beginning, 0).unwrap();
            assert_eq!(&beginning, BEGINNINGS[0]);
            for path in [&secret.display().to_string(), "/dev/null", "/", "/nowhere"] {
                assert!(opener.path(process, path).is_none(), "{path}");
            }
        }
        let path = secret.display().to_string();
        let mapping = Mapping { start: 0, end: 4096, path, placement: Placement::FileOffset(0), file: None };
        assert_eq!(opener.mapped(std::process::id(), &mapping).unwrap_err(), "is no program");
        drop(opener);
        server.join().unwrap();
    }
}
