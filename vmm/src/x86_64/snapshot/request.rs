//! The client's side of `glass snapshot`: a new file, and a request to the VMM to write a VM into it.

use std::fs::File;
use std::io::{self, IoSlice, Read as _, Seek as _, SeekFrom, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

use super::pages::Pages;
use super::take::{DISK, DONE, SIGNAL};
use super::{Origin, RAM_OFFSET, STATE_OFFSET, Snapshot, disk};

/// How long a guest may be busy.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two signals: a guest that was busy at the first one may be halted at the next.
const PERIOD: Duration = Duration::from_millis(2);
/// The longest answer.
const ANSWER_BYTES_MAX: usize = 4096;

/// The path and the build id of the image of a snapshot's VM.
///
/// # Errors
/// The snapshot cannot be used.
pub fn origin(snapshot: &Path) -> Result<(PathBuf, Vec<u8>)> {
    let Origin { image, build_id, .. } = Snapshot::open(snapshot)?.origin;
    Ok((image, build_id))
}

/// The pages that a copy of a snapshot has used so far, which runs in process `pid` and records them ([`Copies::records_pages`](crate::Copies)): how many,
/// and what belongs into the file [`pages_of_snapshot`](crate::pages_of_snapshot).
///
/// # Errors
/// There is no such copy any more, or it has used too many.
pub fn used_pages(pid: u32, snapshot: &Path) -> Result<(usize, Vec<u8>)> {
    let pages = Pages::of_copy(pid, snapshot)?;
    Ok((pages.count(), pages.encode()))
}

/// Writes the VM of the VMM `pid`, which listens at `socket`, into `file`, which is new, empty, and its user's alone. `origin` is the path and the build
/// id of its image, `disk` the VM's disk, if it has one, and a new file for a copy of it. The VM continues.
///
/// # Errors
/// The VM cannot be copied, or not now, or the file cannot be written. What was written is no snapshot then.
pub fn write_snapshot(
    pid: u32,
    socket: &Path,
    (image, build_id): (PathBuf, Vec<u8>),
    file: &File,
    disk: Option<(&File, &File)>,
) -> Result<()> {
    // The metadata of a block device do not contain its size.
    let disk_bytes = disk.map_or(Ok(0), |(mut from, _)| from.seek(SeekFrom::End(0))).context("cannot read the disk")?;
    let origin = Origin { image, build_id, disk_bytes }.encode()?;
    let ended = "the VM has ended";
    let pid = Pid::from_raw(i32::try_from(pid)?).context(ended)?;
    let vmm = pidfd_open(pid, PidfdFlags::empty()).context(ended)?;
    let stream = UnixStream::connect(socket).context(ended)?;
    let descriptors = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    ensure!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is no room for a descriptor");
    sendmsg(&stream, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL).context(ended)?;
    stream.set_read_timeout(Some(PERIOD))?;
    let end = Instant::now() + PATIENCE;
    let mut answer = Vec::new();
    loop {
        pidfd_send_signal(&vmm, SIGNAL).context(ended)?;
        let mut bytes = [0; ANSWER_BYTES_MAX];
        match (&stream).read(&mut bytes) {
            Ok(0) if answer == DONE.as_bytes() => break,
            Ok(0) if answer.is_empty() => bail!(ended),
            Ok(count) if count > 0 && answer.len() + count <= ANSWER_BYTES_MAX => answer.extend(&bytes[..count]),
            Ok(_) => bail!("{}", String::from_utf8_lossy(&answer).into_owned()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error).context(ended),
        }
        if answer == DISK.as_bytes() {
            answer.clear();
            let (from, to) = disk.context("the VM has a disk that is not known")?;
            disk::copy(from, to, disk_bytes).context("cannot copy the disk")?;
            (&stream).write_all(&[0]).context(ended)?;
        } else if Instant::now() >= end {
            bail!(
                "the VM was never idle for {} s, and is copied only while it waits; or its image is from before `glass snapshot`: build it again",
                PATIENCE.as_secs()
            );
        }
    }
    let mut memory_bytes = [0; 8];
    file.read_exact_at(&mut memory_bytes, STATE_OFFSET).context("the VMM has written nothing")?;
    file.set_len(RAM_OFFSET.saturating_add(u64::from_le_bytes(memory_bytes)))?;
    // Last, so that a part of a snapshot is none.
    file.write_all_at(&origin, 0).context("cannot write the snapshot")?;
    Snapshot::read(file.try_clone()?).context("the VMM has written no snapshot")?;
    Ok(())
}
