//! Checks the disk of a service before the start: it exists, has the requested size, and has no other writer.
//!
//! QEMU locks bytes of the file (`lib/lock` has the rules), and refuses a locked disk with a message of two
//! lines. So `glass` checks for a lock first; if another process locks it after that, it replaces QEMU's message.

use anyhow::{Context, Result, bail};
use glass_lib_lock::{Access, Refused};
use glass_profiler_core::elf;
use glass_profiler_guests::files::HostFile;
use std::env;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use crate::console::say;

/// Files of a VM are whole pages long, which every guest supports.
const SIZE_UNIT: u64 = 4096;

/// How QEMU reads and writes the disk: by io_uring, which at once completes what the page cache has, where the host and `qemu` have it; otherwise
/// by threads.
pub(super) fn aio(qemu: &str) -> &'static str {
    if glass_devices::has_io_uring() && links_io_uring(qemu) { "io_uring" } else { "threads" }
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
    match (File::open(path), wanted_bytes) {
        (Ok(file), _) => {
            if let Err(Refused::InUse(pid)) = glass_lib_lock::check(&file, Access::Write) {
                bail!(glass_lib_lock::in_use(path, pid));
            }
            check_size(path, file, wanted_bytes)
        }
        (Err(error), Some(bytes)) if error.kind() == ErrorKind::NotFound => create(path, bytes),
        (Err(error), None) if error.kind() == ErrorKind::NotFound => {
            bail!("there is no disk {}: add --disk-size 1G to make it", path.display())
        }
        (Err(error), _) => Err(error).with_context(|| format!("cannot open the disk {}", path.display())),
    }
}

/// Checks the disk with the service's files, which other VMs may read as well.
pub(super) fn check_files(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot open the disk {}", path.display()))?;
    match glass_lib_lock::check(&file, Access::Read) {
        Err(Refused::InUse(pid)) => bail!(glass_lib_lock::in_use(path, pid)),
        _ => Ok(()),
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

fn check_size(path: &Path, mut file: File, wanted_bytes: Option<u64>) -> Result<()> {
    let Some(wanted_bytes) = wanted_bytes else { return Ok(()) };
    // The metadata of a block device do not contain its size.
    let is_bytes = file.seek(SeekFrom::End(0)).with_context(|| format!("cannot open the disk {}", path.display()))?;
    if is_bytes != wanted_bytes {
        bail!(
            "disk {} has {is_bytes} bytes, not {wanted_bytes}: leave out --disk-size to use it, or delete it",
            path.display()
        );
    }
    Ok(())
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
    use std::fs;

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
        fs::write(&path, [0; 512]).unwrap();
        let file = File::open(&path).unwrap();
        prepare(&path, None).unwrap();
        glass_lib_lock::lock(&file, Access::Write).unwrap();
        let refusal = prepare(&path, None).unwrap_err().to_string();
        // It is this process, and not another one that could be named.
        assert!(refusal.contains("is in use by another process"), "{refusal}");
        fs::remove_file(&path).unwrap();
    }
}
