//! What every implementation of `Files` promises.

use crate::disk::{Machine, empty, findings, get, pattern, put};
use glass_api::{Buf, File, FileError, FileKind, Files, Open};
use glass_lib_fat::{Fat, MountError};
use glass_platform_sim::{DiskConfig, SimBlock};
use hadris_fat::FatKind;

#[test]
fn files_and_directories_are_made_renamed_and_removed() {
    for kind in [FatKind::Fat12, FatKind::Fat16, FatKind::Fat32] {
        let mut machine = Machine::new(1, kind);
        machine.run(|fat| async move {
            fat.create_dir("a").await.unwrap();
            fat.create_dir("a/A name that is longer than eight").await.unwrap();
            assert_eq!(fat.create_dir("a").await, Err(FileError::Exists));
            assert_eq!(fat.create_dir("b/c").await, Err(FileError::NotFound));
            let path = "a/A name that is longer than eight/höhe.txt";
            put(&fat, path, &pattern(1, 70_000)).await.unwrap();
            assert_eq!(get(&fat, path).await.unwrap(), pattern(1, 70_000));
            // Names are compared without case.
            assert_eq!(get(&fat, &path.to_uppercase()).await.unwrap().len(), 70_000);
            assert_eq!(fat.open(path, Open::CreateNew).await.err(), Some(FileError::Exists));
            assert_eq!(fat.open("missing", Open::Write).await.err(), Some(FileError::NotFound));
            assert_eq!(fat.open("a", Open::Read).await.err(), Some(FileError::IsADirectory));
            assert_eq!(fat.open("", Open::Create).await.err(), Some(FileError::IsADirectory));
            assert_eq!(fat.metadata("a/x/y").await.err(), Some(FileError::NotFound));
            assert_eq!(fat.metadata(&format!("{path}/y")).await.err(), Some(FileError::NotADirectory));
            for bad in ["..", "a/../b", "/a", "a//b", "a\0"] {
                assert_eq!(fat.metadata(bad).await, Err(FileError::BadPath), "{bad:?}");
            }
            for unfit in ["a:b", "what?", "dot.", "x\u{1}"] {
                assert_eq!(fat.open(unfit, Open::Create).await.err(), Some(FileError::BadPath), "{unfit:?}");
            }
            let names = fat.read_dir("a").await.unwrap();
            assert_eq!(names.len(), 1);
            assert_eq!(
                (names[0].name.as_str(), names[0].kind),
                ("A name that is longer than eight", FileKind::Directory)
            );
            assert_eq!(fat.read_dir(path).await, Err(FileError::NotADirectory));
            assert_eq!(fat.remove_dir("a").await, Err(FileError::NotEmpty));
            assert_eq!(fat.remove_file("a").await, Err(FileError::IsADirectory));
            put(&fat, "b", b"to be replaced").await.unwrap();
            fat.rename(path, "b").await.unwrap();
            assert_eq!(get(&fat, "b").await.unwrap(), pattern(1, 70_000));
            assert_eq!(fat.metadata(path).await.err(), Some(FileError::NotFound));
            fat.remove_dir("a/A name that is longer than eight").await.unwrap();
            fat.remove_dir("a").await.unwrap();
            fat.remove_file("b").await.unwrap();
            assert_eq!(fat.read_dir("").await.unwrap(), []);
            assert_eq!(fat.metadata("").await.unwrap().kind, FileKind::Directory);
            assert_eq!(fat.remove_dir("").await, Err(FileError::Denied));
            fat.sync().await.unwrap();
        });
        assert_eq!(findings(machine.disk.image()), [] as [String; 0]);
    }
}

#[test]
fn an_open_file_is_neither_removed_nor_replaced_until_it_is_closed() {
    let mut machine = Machine::new(2, FatKind::Fat16);
    machine.run(|fat| async move {
        put(&fat, "a", b"one").await.unwrap();
        put(&fat, "b", b"two").await.unwrap();
        let open = fat.open("a", Open::Read).await.unwrap();
        assert_eq!(fat.remove_file("a").await, Err(FileError::Busy));
        assert_eq!(fat.rename("b", "a").await, Err(FileError::Busy));
        // Another name is no obstacle.
        fat.rename("a", "c").await.unwrap();
        let (count, buf) = open.read(0, Buf::zeroed(3).unwrap()).await;
        assert_eq!((count, &buf[..]), (Ok(3), &b"one"[..]));
        drop(open);
        fat.rename("b", "c").await.unwrap();
        assert_eq!(get(&fat, "c").await.unwrap(), b"two");
        fat.remove_file("c").await.unwrap();
    });
}

#[test]
fn each_change_shows_in_the_metadata() {
    let mut machine = Machine::new(3, FatKind::Fat32);
    machine.run(|fat| async move {
        let file = fat.open("a", Open::CreateNew).await.unwrap();
        put(&fat, "other", b"x").await.unwrap();
        let mut seen = vec![file.metadata().await.unwrap()];
        assert!(seen[0].modified.as_secs() > 1_000_000_000, "the date of the simulation");
        for number in 0..4 {
            match number {
                0 => file.write(0, Buf::copy_of(b"one").unwrap()).await.0.unwrap(),
                // The same length and, by FAT, the same time.
                1 => file.write(0, Buf::copy_of(b"two").unwrap()).await.0.unwrap(),
                2 => file.truncate(2).await.unwrap(),
                _ => file.truncate(100).await.unwrap(),
            }
            let metadata = file.metadata().await.unwrap();
            assert!(seen.iter().all(|earlier| earlier.changed < metadata.changed), "{metadata:?}");
            assert_eq!(fat.metadata("a").await.unwrap(), metadata);
            seen.push(metadata);
        }
        assert_eq!(seen.iter().map(|metadata| metadata.bytes).collect::<Vec<_>>(), [0, 3, 3, 2, 100]);
        assert_eq!(get(&fat, "a").await.unwrap(), [&b"tw"[..], &[0; 98]].concat());
        assert_ne!(fat.metadata("other").await.unwrap().number, seen[0].number);
        let reader = fat.open("a", Open::Read).await.unwrap();
        assert_eq!(reader.write(0, Buf::zeroed(1).unwrap()).await.0, Err(FileError::Denied));
        assert_eq!(reader.truncate(0).await, Err(FileError::Denied));
    });
}

#[test]
fn a_full_disk_is_an_error_and_nothing_is_lost() {
    let mut machine = Machine::new(4, FatKind::Fat12);
    machine.run(|fat| async move {
        put(&fat, "kept", &pattern(9, 100_000)).await.unwrap();
        let file = fat.open("big", Open::Create).await.unwrap();
        assert_eq!(file.write(0, Buf::zeroed(8 << 20).unwrap()).await.0, Err(FileError::NoSpace));
        assert_eq!(file.write(u64::from(u32::MAX), Buf::zeroed(2).unwrap()).await.0, Err(FileError::Host(27)));
        assert_eq!(get(&fat, "kept").await.unwrap(), pattern(9, 100_000));
        drop(file);
        fat.remove_file("big").await.unwrap();
        fat.sync().await.unwrap();
    });
    assert_eq!(findings(machine.disk.image()), [] as [String; 0]);
}

#[test]
fn disks_without_a_file_system_are_refused() {
    let mount = |image: Vec<u8>, sector_bytes| {
        let disk = SimBlock::with_image(1, DiskConfig { sector_bytes, ..DiskConfig::default() }, image);
        let mut world = glass_platform_sim::World::new(1);
        let node = world.node("machine", glass_platform_sim::NodeConfig::default());
        let clock = node.clone();
        world.complete(&node, crate::disk::LIMIT, async move { Fat::mount(disk, clock).await.err() }).unwrap()
    };
    assert_eq!(mount(vec![0; 1 << 20], 512), Some(MountError::NotFat));
    assert_eq!(mount(vec![0; 1 << 20], 8192), Some(MountError::SectorSize(8192)));
    let mut cut = empty(FatKind::Fat32);
    cut.truncate(1 << 20);
    assert_eq!(mount(cut, 512), Some(MountError::Damaged));
    assert_eq!(mount(empty(FatKind::Fat16), 4096), None);
}
