//! A directory of the host as files: every operation, and paths that lead out of it.

use glass_api::{Buf, File, FileError, FileKind, Files, Open, Platform};
use glass_platform_linux::{LinuxPlatform, Options};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// A directory that is removed at the end, with `share` in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("glass-files-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("share/inner")).unwrap();
        Folder(path)
    }

    fn run(&self, suffix: &str, test: impl AsyncFnOnce(<LinuxPlatform as Platform>::Files) + 'static) {
        let share = format!("{}{suffix}", self.0.join("share").display());
        let options = Options::parse(["--share".into(), share.into()]).unwrap();
        let platform = LinuxPlatform::new(&options).unwrap();
        let files = platform.files().unwrap();
        platform.run(async move { test(files).await }).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 % 251) as u8).collect()
}

#[test]
fn files_are_made_read_changed_and_removed() {
    let folder = Folder::new("all");
    folder.run("", async |files| {
        let file = files.open("inner/a", Open::CreateNew).await.unwrap();
        assert_eq!(files.open("inner/a", Open::CreateNew).await.err(), Some(FileError::Exists));
        let (written, _) = file.write(100, Buf::copy_of(&content(300_000)).unwrap()).await;
        written.unwrap();
        file.sync().await.unwrap();
        let (count, buf) = file.read(100, Buf::zeroed(400_000).unwrap()).await;
        assert_eq!(count, Ok(300_000));
        assert!(buf[..300_000] == content(300_000));
        file.truncate(50).await.unwrap();
        let metadata = file.metadata().await.unwrap();
        assert_eq!((metadata.bytes, metadata.kind), (50, FileKind::File));
        assert_eq!(files.metadata("inner/a").await, Ok(metadata));
        files.rename("inner/a", "b").await.unwrap();
        assert_eq!(files.metadata("inner/a").await.err(), Some(FileError::NotFound));
        files.create_dir("dir").await.unwrap();
        let mut names: Vec<_> = files.read_dir("").await.unwrap().into_iter().map(|e| (e.name, e.kind)).collect();
        names.sort_by(|one, other| one.0.cmp(&other.0));
        let expected = [("b", FileKind::File), ("dir", FileKind::Directory), ("inner", FileKind::Directory)];
        assert_eq!(names, expected.map(|(name, kind)| (name.to_owned(), kind)));
        assert_eq!(files.remove_file("dir").await, Err(FileError::IsADirectory));
        assert_eq!(files.remove_dir("b").await, Err(FileError::NotADirectory));
        files.remove_file("b").await.unwrap();
        files.remove_dir("dir").await.unwrap();
        assert_eq!(files.remove_dir("").await, Err(FileError::Denied));
        let read_only = files.open("x", Open::Read).await.err();
        assert_eq!(read_only, Some(FileError::NotFound));
    });
}

#[test]
fn no_path_leads_out() {
    let folder = Folder::new("out");
    let (root, share) = (folder.0.clone(), folder.0.join("share"));
    fs::write(root.join("secret"), "secret").unwrap();
    fs::write(share.join("inner/file"), "file").unwrap();
    symlink("../secret", share.join("relative")).unwrap();
    symlink(root.join("secret"), share.join("absolute")).unwrap();
    symlink("..", share.join("up")).unwrap();
    symlink("inner", share.join("inside")).unwrap();
    symlink("/proc/self/root", share.join("magic")).unwrap();
    let pipe = share.join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
    folder.run("", async |files| {
        for (path, error) in [
            ("../secret", FileError::BadPath),
            ("inner/../../secret", FileError::BadPath),
            ("/etc/passwd", FileError::BadPath),
            ("inner/\0", FileError::BadPath),
            ("relative", FileError::SymbolicLink),
            ("absolute", FileError::SymbolicLink),
            ("up/secret", FileError::SymbolicLink),
            ("inside/file", FileError::SymbolicLink),
            ("magic/etc/passwd", FileError::SymbolicLink),
            // Opening it does not wait for another end.
            ("pipe", FileError::Denied),
            ("inner", FileError::IsADirectory),
            ("inner/file/x", FileError::NotADirectory),
        ] {
            for how in [Open::Read, Open::Write, Open::Create] {
                assert_eq!(files.open(path, how).await.err(), Some(error), "{path:?} {how:?}");
            }
        }
        assert_eq!(files.metadata("relative").await.unwrap().kind, FileKind::SymbolicLink);
        assert_eq!(files.metadata("up/secret").await.err(), Some(FileError::SymbolicLink));
        assert_eq!(files.read_dir("up").await.err(), Some(FileError::SymbolicLink));
        assert_eq!(files.create_dir("up/x").await, Err(FileError::SymbolicLink));
        assert_eq!(files.remove_file("up/secret").await, Err(FileError::SymbolicLink));
        assert_eq!(files.rename("inner/file", "up/x").await, Err(FileError::SymbolicLink));
        assert_eq!(files.rename("up/secret", "x").await, Err(FileError::SymbolicLink));
    });
    assert_eq!(fs::read_to_string(root.join("secret")).unwrap(), "secret");
    assert_eq!(fs::read_dir(&root).unwrap().count(), 2);
}

#[test]
fn a_read_only_share_cannot_be_changed() {
    let folder = Folder::new("ro");
    fs::write(folder.0.join("share/file"), "file").unwrap();
    folder.run(":ro", async |files| {
        assert!(files.open("file", Open::Read).await.is_ok());
        for how in [Open::Write, Open::Create, Open::CreateNew] {
            assert_eq!(files.open("file", how).await.err(), Some(FileError::ReadOnly));
        }
        assert_eq!(files.create_dir("x").await, Err(FileError::ReadOnly));
        assert_eq!(files.remove_file("file").await, Err(FileError::ReadOnly));
        assert_eq!(files.rename("file", "x").await, Err(FileError::ReadOnly));
    });
}
