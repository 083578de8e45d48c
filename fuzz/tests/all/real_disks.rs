//! Changed disks that other programs have made, through the parser of a guest's disks: ext4 by mke2fs, images by qemu-img, where they are installed.
//! Each case has a bound of reads and of CPU time, and its worker one of memory. More: `GLASS_DISK_CASES=100000`.

use std::path::Path;
use std::process::Command;

use glass_tests::folder::Folder;
use glass_tests::programs::{number, skip};

/// The target is twice as slow as others, so half of them are run.
const CASES: u64 = 2000;
const CASES_VARIABLE: &str = "GLASS_DISK_CASES";
/// A file in pieces, so that its extents take more than the inode; one that is whole; and a small one.
const FILES: &str = "mkdir files && head -c 90000 /dev/urandom >files/whole && echo text >files/small && \
    for n in $(seq 0 2 150); do printf \"$n\" | dd of=files/apart bs=1024 seek=$n conv=notrunc 2>/dev/null; done";
/// File systems of some features each, of less than the longest input.
const FILE_SYSTEMS: [(&str, &str); 4] = [
    ("plain", "-b 1024 -O ^has_journal"),
    ("narrow", "-b 1024 -O ^has_journal,^64bit,^metadata_csum"),
    ("large-blocks", "-b 4096 -O ^has_journal"),
    ("groups", "-b 1024 -g 512 -O ^has_journal,^flex_bg,^resize_inode"),
];
const IMAGES: [(&str, &str); 5] = [
    ("clusters", "-o cluster_size=4k"),
    ("old", "-o compat=0.10"),
    ("deflated", "-c -o cluster_size=4k"),
    ("zstd", "-c -o compression_type=zstd"),
    ("subclusters", "-o extended_l2=on,cluster_size=16k"),
];

/// Whether a script ran; not if a program is not installed.
fn run(folder: &Path, script: &str) -> bool {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("sh").args(["-ec", script]).env("PATH", path).current_dir(folder).output().unwrap();
    let has_all = output.status.code() != Some(127);
    assert!(output.status.success() || !has_all, "{script}: {}", String::from_utf8_lossy(&output.stderr));
    has_all
}

#[test]
fn changed_disks_of_other_programs() {
    let folder = Folder::new("real-disks").unwrap();
    assert!(run(folder.path(), &format!("mkdir valid && {FILES}")));
    let make = |(name, options): &(&str, &str)| {
        let script = format!("mke2fs -q -t ext4 {options} -d files valid/{name} 1536k");
        run(folder.path(), &script)
    };
    if !FILE_SYSTEMS.iter().all(make) {
        return skip("mke2fs is not installed");
    }
    let convert = |(name, options): &(&str, &str)| {
        run(folder.path(), &format!("qemu-img convert -O qcow2 {options} valid/plain valid/{name}"))
    };
    if !IMAGES.iter().all(convert) {
        skip("qemu-img is not installed: images are only our own");
    }
    let cases = number(CASES_VARIABLE, CASES);
    let output = Command::new(env!("CARGO_BIN_EXE_glass-fuzz"))
        .args(["guest-disks", "--cases", &cases.to_string(), "--seconds", "600", "--case-seconds", "10", "--valid"])
        .arg(folder.file("valid"))
        .arg("--folder")
        .arg(folder.file("failures"))
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let ran = |line: &str| line.split_whitespace().take(2).eq(["guest-disks", &cases.div_ceil(2).to_string()]);
    assert!(output.status.success() && said.lines().any(ran), "{said}");
}
