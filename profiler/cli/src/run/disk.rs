//! Checks the disk of a service before the start: it exists, has the requested size, and has no other writer.
//!
//! QEMU locks bytes of the file (`platform/linux/src/lock.rs` has the rules), and refuses a locked disk with a message of two
//! lines. So `glass` checks for a lock first; where it cannot detect one, it replaces QEMU's message.

use anyhow::{Context, Error, Result, anyhow, bail};
use glass_guests::files::HostFile;
use glass_profile::elf;
use std::env;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::console::say;

/// The bytes on which QEMU and `platform/linux` lock "writes" and "denies writes to others".
const WRITER_BYTES: [u64; 2] = [101, 201];
/// Files of a VM are whole pages long, which every guest supports.
const SIZE_UNIT: u64 = 4096;

/// How QEMU reads and writes the disk: by io_uring, which at once completes what the page cache has, where the host and `qemu` have it; otherwise
/// by threads.
pub(super) fn aio(qemu: &str) -> &'static str {
    if glass_guests::has_io_uring() && links_io_uring(qemu) { "io_uring" } else { "threads" }
}

/// Whether the program `qemu` was built with io_uring: then it needs its library.
fn links_io_uring(qemu: &str) -> bool {
    const LIBRARY: &[u8] = b"liburing.so";
    let path = env::var_os("PATH").unwrap_or_default();
    let file = env::split_paths(&path).find_map(|folder| HostFile::open(&folder.join(qemu)).ok());
    let names = file.and_then(|file| elf::section(&file, ".dynstr"));
    names.is_some_and(|names| names.windows(LIBRARY.len()).any(|name| name == LIBRARY))
}

/// Creates the disk if requested, and checks it otherwise.
pub(super) fn prepare(path: &Path, size: Option<u64>) -> Result<()> {
    let wanted_bytes = size.map(|size| size.next_multiple_of(SIZE_UNIT));
    match (fs::metadata(path), wanted_bytes) {
        (Ok(metadata), _) => {
            if let Some(pid) = writer(&metadata) {
                return Err(in_use(path, Some(pid)));
            }
            check_size(path, wanted_bytes)
        }
        (Err(error), Some(bytes)) if error.kind() == ErrorKind::NotFound => create(path, bytes),
        (Err(error), None) if error.kind() == ErrorKind::NotFound => {
            bail!("there is no disk {}: add --disk-size 1G to make it", path.display())
        }
        (Err(error), _) => Err(error).with_context(|| format!("cannot open the disk {}", path.display())),
    }
}

/// Creates a disk whose name survives a power cut after the return.
fn create(path: &Path, bytes: u64) -> Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let file = file.with_context(|| format!("cannot make the disk {}", path.display()))?;
    file.set_len(bytes).with_context(|| format!("cannot size the disk {}", path.display()))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("cannot write the folder of the disk {}", path.display()))
}

fn check_size(path: &Path, wanted_bytes: Option<u64>) -> Result<()> {
    let Some(wanted_bytes) = wanted_bytes else { return Ok(()) };
    // The metadata of a block device do not contain its size.
    let end = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
    let is_bytes = end.with_context(|| format!("cannot open the disk {}", path.display()))?;
    if is_bytes != wanted_bytes {
        bail!(
            "disk {} has {is_bytes} bytes, not {wanted_bytes}: leave out --disk-size to use it, or delete it",
            path.display()
        );
    }
    Ok(())
}

/// The sentence that refuses a disk which another process writes.
pub(super) fn in_use(path: &Path, pid: Option<u32>) -> Error {
    let path = path.display();
    match pid {
        Some(pid) => anyhow!("disk {path} is in use by process {pid}: stop that or name another disk"),
        None => anyhow!("disk {path} is in use by another process: stop that or name another disk"),
    }
}

/// The process that has locked the file as its writer, among those whose files we may inspect.
fn writer(disk: &Metadata) -> Option<u32> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let infos = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
        let mut locked = infos.filter(|info| fs::read_to_string(info.path()).is_ok_and(|text| is_locked(&text)));
        locked.any(|info| {
            let found = fs::metadata(Path::new("/proc").join(pid.to_string()).join("fd").join(info.file_name()));
            found.is_ok_and(|found| (found.dev(), found.ino()) == (disk.dev(), disk.ino()))
        })
    })
}

/// Whether an open file has a lock that excludes other writers, from its `/proc/PID/fdinfo`.
fn is_locked(info: &str) -> bool {
    info.lines().filter_map(|line| line.strip_prefix("lock:")).any(|lock| {
        let mut words = lock.split_whitespace().rev();
        let end = words.next().map_or(0, |end| if end == "EOF" { u64::MAX } else { end.parse().unwrap_or(0) });
        let start = words.next().and_then(|start| start.parse().ok()).unwrap_or(u64::MAX);
        WRITER_BYTES.iter().any(|byte| (start..=end).contains(byte))
    })
}

/// Passes QEMU's messages on until it ends, except those about a lock; returns true if there was one.
pub(super) fn pass_messages(messages: impl Read) -> bool {
    let mut lines = BufReader::new(messages);
    let mut line = Vec::new();
    let mut is_in_use = false;
    loop {
        line.clear();
        // QEMU's lines are short; a longer one is passed on in pieces.
        match (&mut lines).take(64 << 10).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return is_in_use,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                let is_about_lock = text.contains("Failed to get ") && text.contains(" lock");
                is_in_use |= is_about_lock;
                if !is_about_lock && !text.starts_with("Is another process using the image") {
                    say!("{}", text.trim_end());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_writers_are_known_by_their_bytes() {
        let info = |lock: &str| format!("pos:\t0\nflags:\t02100002\nmnt_id:\t27\nino:\t99\n{lock}");
        assert!(is_locked(&info("lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:99 201 201\n")));
        assert!(is_locked(&info("lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:99 100 101\n")));
        assert!(is_locked(&info("lock:\t1: FLOCK  ADVISORY  WRITE 30954 fe:00:99 0 EOF\n")));
        assert!(!is_locked(&info("lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:99 100 100\n")));
        assert!(!is_locked(&info("")));
        assert!(!is_locked("lock:\nlock:\t1\nlock: x y\n"));
    }

    #[test]
    fn messages_about_a_lock_are_kept_back() {
        let words = "qemu: -device x: Failed to get \"write\" lock\nIs another process using the image [a.img]?\n";
        assert!(pass_messages(words.as_bytes()));
        assert!(!pass_messages("".as_bytes()));
    }

    #[test]
    fn a_disk_of_another_size_is_refused() {
        let path = std::env::temp_dir().join(format!("glass-run-size-{}", std::process::id()));
        prepare(&path, Some(5000)).unwrap();
        prepare(&path, Some(8192)).unwrap();
        prepare(&path, None).unwrap();
        let refusal = prepare(&path, Some(1 << 20)).unwrap_err().to_string();
        assert!(refusal.contains("has 8192 bytes, not 1048576: leave out --disk-size"), "{refusal}");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_writer_is_found_by_its_lock() {
        let path = std::env::temp_dir().join(format!("glass-run-writer-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        prepare(&path, None).unwrap();
        file.try_lock().unwrap();
        let refusal = prepare(&path, None).unwrap_err().to_string();
        assert!(refusal.contains(&format!("is in use by process {}", std::process::id())), "{refusal}");
        fs::remove_file(&path).unwrap();
    }
}
