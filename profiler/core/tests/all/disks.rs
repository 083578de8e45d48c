//! Disks that other programs have made: mke2fs, qemu-img and sfdisk, where they are installed. Every byte that there is of a file is as it was written.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use glass_profiler_core::disk::{DiskFile, Disks};
use glass_profiler_core::elf::ReadAt;
use glass_tests::folder::Folder;
use glass_tests::programs::skip;

const PAGE: usize = 4096;

/// Runs a script of the shell in a folder; what it prints, `None` if a program is not installed.
fn run(folder: &Path, script: &str) -> Option<String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("sh").args(["-ec", script]).env("PATH", path).current_dir(folder).output().unwrap();
    match output.status.code() {
        Some(0) => Some(String::from_utf8(output.stdout).unwrap()),
        Some(127) => None,
        _ => panic!("{script}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// A file of so many pages: which of them there are, each with its number in it.
fn pages(count: usize, is_there: impl Fn(usize) -> bool) -> Vec<u8> {
    let page = |index: usize| match is_there(index) {
        true => index.to_le_bytes().repeat(PAGE / 8),
        false => vec![0; PAGE],
    };
    (0..count).flat_map(page).collect()
}

/// Makes a file system of these files, most of whose extents are apart; the numbers of their inodes.
fn make(folder: &Folder, options: &str) -> Option<Vec<(u64, Vec<u8>)>> {
    let files = [
        ("whole", pages(300, |_| true)[..299 * PAGE + 77].to_vec()),
        // Each second page, so that there are more extents than a node has.
        ("apart", pages(1500, |index| index % 2 == 0)),
        ("small", b"a few bytes".to_vec()),
    ];
    run(folder.path(), "rm -rf root disk && mkdir root")?;
    for (name, bytes) in &files {
        std::fs::write(folder.file("root").join(name), bytes).unwrap();
    }
    run(folder.path(), "for f in root/*; do cp --sparse=always $f $f-s && mv $f-s $f; done")?;
    run(folder.path(), &format!("mke2fs -q -t ext4 {options} -d root disk 32M"))?;
    let inode = |(name, bytes): (&str, Vec<u8>)| {
        let text = run(folder.path(), &format!("debugfs -R 'stat /{name}' disk 2>/dev/null"))?;
        let inode = text.split_whitespace().nth(1)?.parse().ok()?;
        Some((inode, bytes))
    };
    files.into_iter().map(inode).collect()
}

fn open(folder: &Folder, names: &[&str]) -> Disks {
    let files = names.iter().map(|name| {
        let path = folder.file(name);
        let bytes = std::fs::read(&path).unwrap();
        DiskFile { path: path.display().to_string(), file: Arc::new(bytes) }
    });
    Disks::open(&files.collect::<Vec<_>>())
}

fn check(disks: &Disks, files: &[(u64, Vec<u8>)], what: &str) {
    for (inode, expected) in files {
        let mut found = disks.files(None, *inode);
        let file = found.next().unwrap_or_else(|| panic!("{what}: no file {inode}: {:?}", disks.others()));
        assert!(found.next().is_none(), "{what}");
        assert_eq!(file.bytes(), expected.len() as u64, "{what}");
        for (index, expected) in expected.chunks(PAGE).enumerate() {
            let mut page = vec![7; expected.len()];
            assert!(file.read_at((index * PAGE) as u64, &mut page), "{what}: page {index} of {inode}");
            assert!(page == expected, "{what}: page {index} of {inode}");
        }
    }
}

#[test]
fn file_systems_of_mke2fs() {
    let folder = Folder::new("disks").unwrap();
    for options in
        ["-b 4096", "-b 1024", "-b 4096 -O ^64bit", "-b 2048 -I 128 -O ^metadata_csum", "-b 1024 -O ^flex_bg -g 1024"]
    {
        match make(&folder, options) {
            Some(files) => check(&open(&folder, &["disk"]), &files, options),
            None => return skip("mke2fs and debugfs are not installed"),
        }
    }
    let disks = |options: &str| make(&folder, options).map(|_| open(&folder, &["disk"]));
    assert!(disks("-O ^resize_inode,meta_bg").unwrap().others()[0].starts_with("ext4 with meta block groups"));
    // Of a file without extents there is nothing.
    assert!(make(&folder, "-O ^extents,^64bit").is_some_and(|files| {
        let disks = open(&folder, &["disk"]);
        files.iter().all(|(inode, _)| disks.files(None, *inode).count() == 0)
    }));
}

#[test]
fn images_of_qemu_img_and_partitions_of_sfdisk() {
    let folder = Folder::new("images").unwrap();
    let Some(files) = make(&folder, "-b 4096") else { return skip("mke2fs and debugfs are not installed") };
    for label in ["gpt", "dos"] {
        let script = format!(
            "truncate -s 48M whole && printf 'label: {label}\\nstart=2048,size=2048\\nstart=8192\\n' | sfdisk -q whole && \
             dd if=disk of=whole bs=1M seek=4 conv=notrunc 2>/dev/null"
        );
        match run(folder.path(), &script) {
            Some(_) => check(&open(&folder, &["whole"]), &files, label),
            None => return skip("sfdisk is not installed"),
        }
    }
    let images = [
        "convert -O qcow2 whole image",
        "convert -O qcow2 -o compat=0.10 whole image",
        "convert -O qcow2 -c whole image",
        "convert -O qcow2 -c -o compression_type=zstd whole image",
        "convert -O qcow2 -o cluster_size=4k whole image",
        "convert -O qcow2 -o extended_l2=on,cluster_size=128k whole image",
        "convert -O qcow2 -c -o cluster_size=2M whole image",
    ];
    for options in images {
        match run(folder.path(), &format!("qemu-img {options}")) {
            Some(_) => check(&open(&folder, &["image"]), &files, options),
            None => return skip("qemu-img is not installed"),
        }
    }
    // A layer with a part of the disk above it.
    run(folder.path(), "qemu-img create -q -f qcow2 -b image -F qcow2 layer").unwrap();
    run(folder.path(), "qemu-img create -q -f qcow2 -b layer -F qcow2 top").unwrap();
    check(&open(&folder, &["image", "top", "layer"]), &files, "three layers");
    for (kind, what) in [("vmdk", "VMDK"), ("vpc", "VHD"), ("vhdx", "VHDX"), ("vdi", "VDI"), ("qed", "QED")] {
        run(folder.path(), &format!("qemu-img convert -O {kind} whole other")).unwrap();
        let others = open(&folder, &["other"]).others().join(" ");
        assert!(others.contains(&format!("of the format {what}")), "{kind}: {others}");
    }
}
