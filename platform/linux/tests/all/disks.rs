//! Disks: opening, refusals with their messages, and requests.

use glass_api::{Block, BlockError, Buf, Clock, Platform, Spawn};
use glass_platform_linux::{LinuxPlatform, Options};
use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

/// A folder of one test, gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("glass-disks-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path, size: Option<&str>) -> Result<LinuxPlatform, String> {
    let mut args: Vec<OsString> = vec!["--disk".into(), path.into()];
    args.extend(size.into_iter().flat_map(|size| ["--disk-size".into(), size.into()]));
    LinuxPlatform::new(&Options::parse(args).unwrap()).map_err(|error| error.to_string())
}

/// Runs `task`; panics when it hangs, without otherwise waking the thread.
fn run<T: 'static>(platform: &LinuxPlatform, task: impl Future<Output = T> + 'static) -> T {
    let deadline = platform.sleep(Duration::from_secs(30));
    let watchdog = async move {
        deadline.await;
        panic!("the test hangs");
    };
    platform.spawn("watchdog", watchdog).unwrap();
    platform.run(task).unwrap()
}

#[test]
fn a_disk_that_cannot_be_used_says_why_in_one_sentence() {
    let folder = Folder::new("refused");
    let refusal = |path: &Path, size| open(path, size).err().expect("it is refused");
    let missing = folder.file("missing");
    assert_eq!(
        refusal(&missing, None),
        format!("disk {} does not exist: give --disk-size, such as 1G, to create it", missing.display())
    );
    assert!(!missing.exists());
    assert!(
        refusal(&folder.file("no/folder"), Some("1M"))
            .ends_with("cannot be used: No such file or directory (os error 2)")
    );
    assert!(refusal(&folder.0, None).ends_with("is neither a file nor a block device"));
    assert!(refusal(Path::new("/dev/null"), None).ends_with("is neither a file nor a block device"));
    let small = folder.file("small");
    fs::write(&small, [0; 100]).unwrap();
    assert!(refusal(&small, None).contains("has 100 bytes, less than a sector of 512"));
    assert!(refusal(&small, Some("1M")).contains("has 100 bytes, not 1048576: leave out --disk-size"));
    let used = folder.file("used");
    let _holder = open(&used, Some("1M")).unwrap();
    assert!(refusal(&used, None).ends_with("is in use by another process: stop that or name another disk"));
    // root may write everything.
    if !is_root() {
        let denied = folder.file("denied");
        fs::write(&denied, [0; 512]).unwrap();
        let mut mode = fs::metadata(&denied).unwrap().permissions();
        mode.set_readonly(true);
        fs::set_permissions(&denied, mode).unwrap();
        assert!(refusal(&denied, None).starts_with("no permission to read and write disk"));
    }
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t")
}

/// A file system in memory that may become read-only, gone with its owner.
struct Mount<'f>(&'f Folder);

impl Mount<'_> {
    /// `None` after printing why there is none.
    fn new(folder: &Folder) -> Option<Mount<'_>> {
        let is_mounted = mount(&["-t", "tmpfs", "-o", "size=1M", "tmpfs"], folder);
        if !is_mounted {
            println!("skipped: only root can mount a file system, and not in every container");
        }
        is_mounted.then_some(Mount(folder))
    }
}

fn mount(arguments: &[&str], folder: &Folder) -> bool {
    let output = Command::new("mount").args(arguments).arg(&folder.0).output();
    output.is_ok_and(|output| output.status.success())
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0.0).output();
    }
}

#[test]
fn readers_share_an_image_that_cannot_be_written() {
    let folder = Folder::new("shared");
    let Some(_mount) = Mount::new(&folder) else { return };
    let path = folder.file("disk");
    fs::write(&path, [7; 4096]).unwrap();
    let writer = open(&path, None).unwrap();
    assert!(open(&path, None).err().expect("there is a writer").contains("is in use"));
    drop(writer);
    assert!(mount(&["-o", "remount,ro"], &folder));
    let readers = [open(&path, None).unwrap(), open(&path, None).unwrap()];
    for platform in &readers {
        let disk = platform.block(0).unwrap();
        assert!(disk.info().read_only);
        run(platform, async move {
            let (read, buf) = disk.read(0, Buf::zeroed(4096).unwrap()).await;
            assert_eq!((read, &*buf), (Ok(()), &[7; 4096][..]));
            assert_eq!(disk.write(0, Buf::zeroed(512).unwrap()).await.0, Err(BlockError::ReadOnly));
        });
    }
}

#[test]
fn what_is_written_is_read_back_and_stays() {
    let folder = Folder::new("kept");
    let path = folder.file("disk");
    fs::write(&path, vec![7; 4096 + 100]).unwrap();
    let platform = open(&path, None).unwrap();
    let disk = platform.block(0).unwrap();
    assert!(platform.block(1).is_none());
    // Whole sectors only.
    assert_eq!((disk.info().size_bytes, disk.info().sector_bytes, disk.info().read_only), (4096, 512, false));
    run(&platform, async move {
        let written = disk.write(512, Buf::copy_of(&[1; 1024]).unwrap()).await;
        assert_eq!((written.0, written.1.len()), (Ok(()), 1024));
        assert_eq!(disk.flush().await, Ok(()));
        let (read, buf) = disk.read(0, Buf::zeroed(4096).unwrap()).await;
        assert_eq!(read, Ok(()));
        assert_eq!(*buf, *[vec![7; 512], vec![1; 1024], vec![7; 2560]].concat());
        let (refused, buf) = disk.read(0, buf.slice(0..512)).await;
        assert_eq!((refused, buf.len()), (Err(BlockError::Shared), 512));
        let (refused, _) = disk.write(4096, Buf::zeroed(512).unwrap()).await;
        assert_eq!(refused, Err(BlockError::OutOfRange { offset: 4096, len: 512, size: 4096 }));
        let (refused, _) = disk.read(100, Buf::zeroed(512).unwrap()).await;
        assert!(matches!(refused, Err(BlockError::Misaligned { .. })));
    });
    assert_eq!(fs::read(&path).unwrap()[..2048], [vec![7; 512], vec![1; 1024], vec![7; 512]].concat());
}

#[test]
fn ranges_are_discarded_and_set_to_zero() {
    let folder = Folder::new("ranges");
    let path = folder.file("disk");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    let platform = open(&path, None).unwrap();
    let disk = platform.block(0).unwrap();
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&path).unwrap());
    fs::File::open(&path).unwrap().sync_all().unwrap();
    let before = blocks();
    run(&platform, async move {
        assert_eq!(disk.write_zeroes(512, 1024).await, Ok(()));
        assert_eq!(disk.write_zeroes(512, 0).await, Ok(()));
        assert_eq!(disk.discard(512 << 10, 256 << 10).await, Ok(()));
        let refused = disk.discard(1 << 20, 512).await;
        assert!(matches!(refused, Err(BlockError::OutOfRange { .. })));
        let refused = disk.write_zeroes(1, 512).await;
        assert!(matches!(refused, Err(BlockError::Misaligned { .. })));
    });
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes[..2048], [vec![7; 512], vec![0; 1024], vec![7; 512]].concat());
    assert_eq!((bytes.len(), bytes[(512 << 10) - 1], bytes[768 << 10]), (1 << 20, 7, 7));
    // A file system without holes keeps the blocks.
    let after = blocks();
    assert!(bytes[512 << 10] == 7 || after + 400 < before, "{before} blocks before, {after} after");
}

#[test]
fn a_file_that_shrinks_is_an_error_and_no_panic() {
    let folder = Folder::new("shrunk");
    let path = folder.file("disk");
    let platform = open(&path, Some("64K")).unwrap();
    let disk = platform.block(0).unwrap();
    fs::write(&path, []).unwrap();
    let (read, buf) = run(&platform, async move { disk.read(0, Buf::zeroed(512).unwrap()).await });
    assert_eq!((read, buf.len()), (Err(BlockError::Device(5)), 512));
}

#[test]
fn many_requests_at_once_all_complete_and_dropped_ones_do_no_harm() {
    let folder = Folder::new("many");
    let platform = open(&folder.file("disk"), Some("2M")).unwrap();
    let disk = platform.block(0).unwrap();
    let spawner = platform.clone();
    let all = run(&platform, async move {
        let done = Rc::new(Cell::new(0));
        for number in 0..1000u64 {
            let (disk, done) = (disk.clone(), done.clone());
            let task = async move {
                let pattern = [number as u8; 1024];
                disk.write(number * 1024, Buf::copy_of(&pattern).unwrap()).await.0.unwrap();
                if number % 10 == 0 {
                    // Started or not, then dropped.
                    let mut read = Box::pin(disk.read(0, Buf::zeroed(1 << 20).unwrap()));
                    std::future::poll_fn(|context| {
                        let _ = read.as_mut().poll(context);
                        std::task::Poll::Ready(())
                    })
                    .await;
                }
                let (read, buf) = disk.read(number * 1024, Buf::zeroed(1024).unwrap()).await;
                assert_eq!((read, &*buf), (Ok(()), &pattern[..]));
                done.set(done.get() + 1);
            };
            spawner.spawn("request", task).unwrap();
        }
        for _ in 0..2000 {
            if done.get() == 1000 {
                break;
            }
            spawner.sleep(Duration::from_millis(10)).await;
        }
        done.get()
    });
    assert_eq!(all, 1000);
}

#[test]
fn a_task_that_reads_all_the_time_leaves_others_their_turn() {
    let folder = Folder::new("turns");
    let platform = open(&folder.file("disk"), Some("1M")).unwrap();
    let disk = platform.block(0).unwrap();
    let (spawner, over) = (platform.clone(), Rc::new(Cell::new(false)));
    let is_over = over.clone();
    let reads = run(&platform, async move {
        let pause = spawner.sleep(Duration::from_millis(10));
        let end = async move {
            pause.await;
            over.set(true);
        };
        spawner.spawn("end", end).unwrap();
        // More than fit into the pause, and few enough to end soon if no other task has a turn.
        let reads = (0..10_000_000).take_while(|_| !is_over.get());
        let mut count = 0;
        for _ in reads {
            assert_eq!(disk.read(0, Buf::zeroed(512).unwrap()).await.0, Ok(()));
            count += 1;
        }
        count
    });
    assert!(reads < 10_000_000);
}
