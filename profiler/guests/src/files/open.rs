//! Opens the files that processes and recordings name. A process can make any path lead anywhere, and it may be root that
//! follows it.
//!
//! A file is found first (`O_PATH`), which has no effect on what it is, then looked at, and opened only if it is an ordinary
//! file: a pipe would wait for a writer, and opening a device can act on it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// Opens the ordinary file at a path as we see it.
pub(crate) fn ordinary(path: &Path) -> io::Result<File> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    opened(&found, false)
}

/// The same, or a block device.
pub(crate) fn disk(path: &Path) -> io::Result<File> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    opened(&found, true)
}

/// Opens the ordinary file at a path as a process sees it: links lead to where they lead for the process, never out of its
/// root. The last part of the path may be a link only if `follows_last`.
///
/// Fails without privilege over the process, and on Linux before 5.6, which has no `openat2`.
pub(crate) fn in_root(process: u32, path: &str, follows_last: bool) -> io::Result<File> {
    let root = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(format!("/proc/{process}/root"), root, Mode::empty())?;
    let last = if follows_last { OFlags::empty() } else { OFlags::NOFOLLOW };
    let found = loop {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        match openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC | last, Mode::empty(), resolve) {
            // The kernel could not prove that the path stays inside, as a directory was moved meanwhile.
            Err(Errno::AGAIN | Errno::INTR) => {}
            found => break found?,
        }
    };
    opened(&found, false)
}

/// The file, to be read, of a descriptor that only stands for it.
fn opened(found: &OwnedFd, may_be_device: bool) -> io::Result<File> {
    let data = rustix::fs::fstat(found.as_fd())?;
    let kind = rustix::fs::FileType::from_raw_mode(data.st_mode);
    let is_device = may_be_device && kind.is_block_device();
    if !(kind.is_file() || is_device) {
        return Err(io::Error::other("not an ordinary file"));
    }
    // By the descriptor, so it is the same file whatever has its path by now.
    fs::File::options().read(true).open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::process::{Child, Command, Stdio};

    /// A process whose root is a folder of ours; `None` where that is not permitted.
    fn process_in(root: &Path) -> Option<Child> {
        // A program without libraries: this test's own would need its interpreter in there.
        fs::create_dir_all(root.join("bin")).ok()?;
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
        let mut command = match busybox {
            Some(path) => {
                fs::copy(path, root.join("bin/cat")).ok()?;
                let mut command = Command::new("unshare");
                command.args(["--user", "--map-root-user", "--root"]).arg(root).args(["/bin/cat"]);
                command
            }
            None => return None,
        };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        // It answers once it runs in there.
        use std::io::Write;
        child.stdin.as_mut()?.write_all(b"x").ok()?;
        let mut answer = [0];
        match child.stdout.as_mut()?.read_exact(&mut answer) {
            Ok(()) => Some(child),
            Err(_) => {
                let _ = child.wait();
                None
            }
        }
    }

    fn text(file: io::Result<File>) -> io::Result<String> {
        let mut text = String::new();
        file?.read_to_string(&mut text)?;
        Ok(text)
    }

    /// An absolute link in a process's root was followed in ours (2026-11-25).
    #[test]
    fn links_lead_nowhere_out_of_a_process_s_root() {
        let folder = glass_tests::folder::Folder::new("in-root").unwrap();
        let (outside, root) = (folder.file("outside"), folder.file("root"));
        fs::write(&outside, "outside").unwrap();
        fs::create_dir_all(root.join("tmp")).unwrap();
        fs::write(root.join("tmp/inside"), "inside").unwrap();
        symlink("/tmp/inside", root.join("absolute")).unwrap();
        symlink(&outside, root.join("out")).unwrap();
        symlink("../../../../../../../../..".to_owned() + &outside.display().to_string(), root.join("up")).unwrap();
        let Some(mut child) = process_in(&root) else {
            return glass_tests::programs::skip("no process with a root of its own (unshare, busybox)");
        };
        let process = child.id();
        let open = |path: &str, follows_last| text(in_root(process, path, follows_last));
        assert_eq!(open("/tmp/inside", true).unwrap(), "inside");
        assert_eq!(open("/absolute", true).unwrap(), "inside");
        assert_eq!(open("/../tmp/inside", true).unwrap(), "inside");
        for path in ["/out", "/up"] {
            assert_eq!(open(path, true).unwrap_err().kind(), io::ErrorKind::NotFound, "{path}");
            // So it is a test: the same path as the kernel resolves it for us.
            assert_eq!(text(ordinary(Path::new(&format!("{}{path}", root.display())))).unwrap(), "outside");
        }
        assert!(open("/absolute", false).is_err(), "a link");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn only_ordinary_files_are_opened_and_no_magic_links() {
        let folder = glass_tests::folder::Folder::new("ordinary").unwrap();
        let pipe = folder.file("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status();
        assert!(made.is_ok_and(|status| status.success()));
        let own = std::process::id();
        for path in [pipe.display().to_string(), "/dev/null".to_owned(), "/".to_owned()] {
            let error = ordinary(Path::new(&path)).unwrap_err();
            assert_eq!(error.to_string(), "not an ordinary file", "{path}");
            assert_eq!(in_root(own, &path, true).unwrap_err().to_string(), "not an ordinary file", "{path}");
        }
        assert!(text(in_root(own, "/proc/self/status", true)).is_ok());
        assert!(in_root(own, &format!("/proc/{own}/exe"), true).is_err());
    }
}
