//! Texts of `/proc` about processes of this machine.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::str::SplitAsciiWhitespace;

use crate::error::GuestError;

/// A line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MapsLine {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) executable: bool,
    pub(crate) is_writable: bool,
    pub(crate) is_shared: bool,
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    pub(crate) offset: u64,
    pub(crate) path: String,
    /// The file has no name any more, or never had one.
    pub(crate) is_deleted: bool,
}

/// What the kernel appends to the path of a file that was deleted.
const DELETED: &str = " (deleted)";

/// The path of a file, whether it still has it or not.
pub(crate) fn without_deleted(path: &str) -> &str {
    path.strip_suffix(DELETED).unwrap_or(path)
}

/// Reads `/proc/PID/maps`; lines that are not understood are left out.
pub(crate) fn parse_maps(maps: &str) -> Vec<MapsLine> {
    let parse = |line: &str| {
        let mut fields = line.splitn(6, ' ').filter(|field| !field.is_empty());
        let (start, end) = fields.next()?.split_once('-')?;
        let permissions = fields.next()?;
        let offset = fields.next()?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let inode = fields.next()?;
        let path = fields.next().unwrap_or("").trim_start();
        Some(MapsLine {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            executable: permissions.contains('x'),
            is_writable: permissions.contains('w'),
            is_shared: permissions.contains('s'),
            device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
            inode: inode.parse().ok()?,
            offset: u64::from_str_radix(offset, 16).ok()?,
            path: without_deleted(path).to_owned(),
            is_deleted: path.ends_with(DELETED),
        })
    };
    maps.lines().filter_map(parse).collect()
}

/// The user that a process runs as.
pub fn owner(pid: u32) -> Option<u32> {
    Some(fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

/// Whether we run as this user.
pub fn is_us(user: u32) -> bool {
    rustix::process::geteuid().as_raw() == user
}

/// The threads of a process.
pub(crate) fn threads(pid: u32) -> Result<Vec<u32>, GuestError> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| GuestError::NoProcess(pid))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// A process, or one that it has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descendant {
    pub(crate) pid: u32,
    /// `None` for the process itself.
    pub(crate) parent: Option<u32>,
}

/// Processes and those that they have started, directly or not, each once and after its parent, unless that is started by a later one of
/// `pids`. A process whose parent has ended belongs to another.
pub(crate) fn descendants(pids: &[u32]) -> Vec<Descendant> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for child in all.filter(|child| !pids.contains(child)) {
        if let Some(parent) = parent_of(&fs::read(format!("/proc/{child}/stat")).unwrap_or_default()) {
            children.entry(parent).or_default().push(child);
        }
    }
    let mut found: Vec<_> = pids.iter().map(|pid| Descendant { pid: *pid, parent: None }).collect();
    let mut next = 0;
    while let Some(Descendant { pid, .. }) = found.get(next).copied() {
        let of = children.remove(&pid).unwrap_or_default();
        found.extend(of.into_iter().map(|child| Descendant { pid: child, parent: Some(pid) }));
        next += 1;
    }
    found
}

/// The parent of a process.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    parent_of(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The words behind the name in `/proc/PID/stat` (proc(5)), the state first; the name, in brackets, may have any characters.
pub(crate) fn words_of_stat(stat: &str) -> Option<SplitAsciiWhitespace<'_>> {
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace())
}

/// The parent in `/proc/PID/stat`, of which the name may be no text.
fn parent_of(stat: &[u8]) -> Option<u32> {
    words_of_stat(&String::from_utf8_lossy(stat))?.nth(1)?.parse().ok()
}

/// Whether there is no such thread, or only what is left of it until its parent looks.
pub fn has_ended(thread: u32) -> bool {
    // The name in it may be no text.
    let stat = fs::read(format!("/proc/{thread}/stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X', 'x']))
}

/// A thread of a process that still runs: its first one, if that has not ended before the others (`pthread_exit` in
/// main). `/proc` has the same under its id. The process's own id if none runs.
pub(crate) fn living(pid: u32) -> u32 {
    if !has_ended(pid) {
        return pid;
    }
    threads(pid).unwrap_or_default().into_iter().find(|thread| !has_ended(*thread)).unwrap_or(pid)
}
