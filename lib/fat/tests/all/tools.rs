//! The tools of Linux read what we write, and we what they write.

use crate::disk::{Machine, get, pattern, put};
use glass_api::Files;
use glass_platform_sim::{DiskConfig, SimBlock};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder of this test.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("glass-fat-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn run(program: &str, arguments: &[&str], image: &Path) -> String {
    let arguments = arguments.iter().map(|argument| argument.replace("IMAGE", image.to_str().unwrap()));
    let output = Command::new(program).args(arguments).env("MTOOLS_SKIP_CHECK", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {text}");
    text
}

#[test]
fn mkfs_mtools_and_fsck_agree_with_us() {
    if Command::new("mkfs.fat").arg("--help").output().is_err()
        || Command::new("mcopy").arg("--version").output().is_err()
    {
        println!("skipped mkfs_mtools_and_fsck_agree_with_us: dosfstools or mtools are not installed");
        return;
    }
    let folder = folder("tools");
    for (bits, kib) in [("12", "4096"), ("16", "32768"), ("32", "66000")] {
        let image = folder.join(bits);
        run("mkfs.fat", &["-F", bits, "-C", "IMAGE", kib], &image);
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::write(&from, pattern(1, 123_456)).unwrap();
        run("mmd", &["-i", "IMAGE", "::/Eine Mappe"], &image);
        run("mcopy", &["-i", "IMAGE", from.to_str().unwrap(), "::/Eine Mappe/größere Datei.bin"], &image);
        let disk = SimBlock::with_image(1, DiskConfig::default(), std::fs::read(&image).unwrap());
        let mut machine = Machine::with(1, disk);
        machine.run(|fat| async move {
            let read = get(&fat, "Eine Mappe/größere Datei.bin").await.unwrap();
            assert_eq!(read, pattern(1, 123_456));
            fat.create_dir("ours").await.unwrap();
            put(&fat, "ours/a file with a long name.txt", &pattern(2, 77_777)).await.unwrap();
            fat.remove_file("Eine Mappe/größere Datei.bin").await.unwrap();
            fat.sync().await.unwrap();
        });
        std::fs::write(&image, machine.disk.image()).unwrap();
        run("fsck.fat", &["-n", "IMAGE"], &image);
        run("mcopy", &["-n", "-i", "IMAGE", "::/ours/a file with a long name.txt", to.to_str().unwrap()], &image);
        assert_eq!(std::fs::read(&to).unwrap(), pattern(2, 77_777));
        std::fs::remove_file(&to).unwrap();
    }
    std::fs::remove_dir_all(folder).unwrap();
}
