//! Files against a device in memory.

use crate::fake::{BounceDma, Chain, Fake, GuardedDma, RecordingDma};
use crate::files::HostFiles;
use crate::fs::{Data, Fs, Refused};
use crate::fs_fake::*;
use crate::fuse::{Message, Opcode};
use crate::transport::{device, feature, status};
use alloc::vec::Vec;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use glass_api::{Buf, File, FileError, FileKind, Files, Instant, Open};
use glass_drivers_device::{Driver, SetupError, Violation};

#[test]
fn a_file_is_read_in_pieces_and_closed() {
    let mut site = site();
    let files = site.files.clone();
    let task = async move {
        let file = files.open("folder/file", Open::Read).await?;
        let metadata = file.metadata().await?;
        assert_eq!((metadata.kind, metadata.bytes), (FileKind::File, 20_000));
        let (count, buf) = file.read(0, Buf::zeroed(30_000).unwrap()).await;
        assert_eq!((count?, buf[..20_000] == content(20_000)[..]), (20_000, true));
        let (count, buf) = file.read(0, Buf::zeroed(10_000).unwrap()).await;
        assert_eq!((count?, buf[..] == content(10_000)[..]), (10_000, true), "a buffer that ends within a piece");
        let (count, _) = file.read(19_999, Buf::zeroed(10).unwrap()).await;
        assert_eq!(count?, 1);
        let shared = Buf::zeroed(10).unwrap();
        let (count, _) = file.read(0, shared.clone()).await;
        assert_eq!(count, Err(FileError::Shared));
        Ok::<_, FileError>(())
    };
    site.run(task).unwrap();
    site.assert_nothing_left();
}

#[test]
fn what_is_written_is_there_and_names_change_at_once() {
    let mut site = site();
    let files = site.files.clone();
    let task = async move {
        files.create_dir("new").await?;
        assert_eq!(files.create_dir("new").await, Err(FileError::Exists));
        assert_eq!(files.open("new/a", Open::Write).await.err(), Some(FileError::NotFound));
        let file = files.open("new/a", Open::Create).await?;
        let (written, _) = file.write(5, Buf::copy_of(&content(20_000)).unwrap()).await;
        written?;
        file.truncate(10_000).await?;
        file.sync().await?;
        assert_eq!(file.metadata().await?.bytes, 10_000);
        assert_eq!(files.open("new/a", Open::CreateNew).await.err(), Some(FileError::Exists));
        files.rename("new/a", "b").await?;
        assert_eq!(files.open("new/a", Open::Read).await.err(), Some(FileError::NotFound));
        let (count, buf) = files.open("b", Open::Create).await?.read(5, Buf::zeroed(100).unwrap()).await;
        assert_eq!((count?, &buf[..]), (100, &content(100)[..]));
        files.remove_file("b").await?;
        assert_eq!(files.metadata("b").await.err(), Some(FileError::NotFound));
        assert_eq!(files.remove_dir("folder").await, Err(FileError::NotEmpty));
        files.remove_dir("new").await?;
        let mut names: Vec<_> = files.read_dir("").await?.into_iter().map(|entry| (entry.name, entry.kind)).collect();
        names.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(names, [("folder".into(), FileKind::Directory), ("link".into(), FileKind::SymbolicLink)]);
        Ok::<_, FileError>(())
    };
    site.run(task).unwrap();
    assert_eq!(site.host.requests.iter().filter(|opcode| **opcode == Opcode::Sync as u32).count(), 1);
    site.assert_nothing_left();
}

#[test]
fn paths_do_not_lead_out_or_through_links() {
    let mut site = site();
    let files = site.files.clone();
    for (path, error) in [
        ("..", FileError::BadPath),
        ("folder/../folder/file", FileError::BadPath),
        ("/folder", FileError::BadPath),
        ("link/file", FileError::SymbolicLink),
        ("link", FileError::SymbolicLink),
        ("folder/file/x", FileError::NotADirectory),
        ("folder", FileError::IsADirectory),
        ("", FileError::IsADirectory),
        ("none/x", FileError::NotFound),
    ] {
        assert_eq!(site.run(files.open(path, Open::Read)).err(), Some(error), "{path}");
    }
    // The host was requested no name that leads out.
    site.assert_nothing_left();
}

#[test]
fn names_are_kept_as_long_as_the_host_permits() {
    let mut site = site();
    let files = site.files.clone();
    let lookups = |site: &Site| site.host.requests.iter().filter(|opcode| **opcode == 1).count();
    for _ in 0..10 {
        drop(site.run(files.open("folder/file", Open::Read)).unwrap());
    }
    assert_eq!(lookups(&site), 2);
    site.now.set(Instant(site.now.get().0 + 2_000_000_000));
    drop(site.run(files.open("folder/file", Open::Read)).unwrap());
    assert_eq!(lookups(&site), 4);
    // Not at all, of the metadata or of the name.
    for (valid_secs, metadata_valid_secs) in [(1000, 0), (0, 1000)] {
        (site.host.valid_secs, site.host.metadata_valid_secs) = (valid_secs, metadata_valid_secs);
        site.run(files.metadata("link")).unwrap();
        let before = lookups(&site);
        site.run(files.metadata("link")).unwrap();
        assert_eq!(lookups(&site), before + 1, "{valid_secs} {metadata_valid_secs}");
        site.now.set(Instant(site.now.get().0 + 2_000_000_000_000));
    }
    (site.host.valid_secs, site.host.metadata_valid_secs) = (1, 1);
    // A file that the host has replaced is another node, and the old one is forgotten.
    let folder = site.host.find(ROOT, "folder").unwrap();
    let old = site.host.find(folder, "file").unwrap();
    site.host.nodes.remove(&old);
    site.host.add(folder, "file", FILE_MODE, b"new");
    site.now.set(Instant(site.now.get().0 + 2_000_000_000));
    assert_eq!(site.run(files.metadata("folder/file")).unwrap().bytes, 3);
    site.assert_nothing_left();
    assert!(!site.host.lookups.contains_key(&old));
}

#[test]
fn what_a_dropped_future_has_opened_is_closed() {
    let mut site = site();
    let files = site.files.clone();
    for rounds in 0..8 {
        let mut task = alloc::boxed::Box::pin(files.open("folder/file", Open::Read));
        for _ in 0..rounds {
            if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                break;
            }
            site.files.kick();
            site.host.serve_all();
            site.files.poll();
        }
        drop(task);
        site.assert_nothing_left();
        site.host.valid_secs = 0;
    }
}

/// A host counts how often it has named a node, and keeps the node until all of that is given back.
#[test]
fn what_a_dropped_future_has_been_told_is_forgotten() {
    type Task<'a> = core::pin::Pin<alloc::boxed::Box<dyn Future<Output = bool> + 'a>>;
    type Make = for<'a> fn(&'a HostFiles<Fake, GuardedDma>) -> Task<'a>;
    let makes: [(Make, &str); 3] = [
        (|files| alloc::boxed::Box::pin(async { files.metadata("link").await.is_ok() }), "link"),
        (|files| alloc::boxed::Box::pin(async { files.create_dir("new").await.is_ok() }), "new"),
        (|files| alloc::boxed::Box::pin(async { files.open("new", Open::CreateNew).await.is_ok() }), "new"),
    ];
    for (make, name) in makes {
        for rounds in 0..4 {
            let mut site = site();
            let files = site.files.clone();
            let mut task = make(&files);
            let mut has_ended = false;
            for _ in 0..rounds {
                has_ended = task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
                if has_ended {
                    break;
                }
                site.round();
            }
            drop(task);
            site.assert_nothing_left();
            // A name that was learned is kept, with one reference to its node.
            let node = site.host.find(ROOT, name).unwrap_or(0);
            let kept = site.host.lookups.get(&node).copied();
            assert_eq!(kept, has_ended.then_some(1), "{name} after {rounds} rounds");
        }
    }
}

#[test]
fn a_name_that_is_not_there_is_kept_as_such() {
    let mut site = site();
    site.host.absence_valid_secs = 1;
    let files = site.files.clone();
    let lookups = |site: &Site| site.host.requests.iter().filter(|opcode| **opcode == 1).count();
    for _ in 0..3 {
        assert_eq!(site.run(files.metadata("none")).err(), Some(FileError::NotFound));
    }
    assert_eq!(lookups(&site), 1);
    // There is no node to forget, neither here nor where no future waits for the answer.
    drop(files.metadata("other"));
    let mut other = alloc::boxed::Box::pin(files.metadata("other"));
    assert!(other.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    site.round();
    drop(other);
    site.assert_nothing_left();
    site.now.set(Instant(site.now.get().0 + 1_000_000_001));
    site.host.add(ROOT, "none", FILE_MODE, b"now");
    assert_eq!(site.run(files.metadata("none")).unwrap().bytes, 3);
}

/// A host that replaces its files all the time does not make us remember all of them.
#[test]
fn a_node_that_was_forgotten_takes_no_memory() {
    let mut site = site();
    site.host.valid_secs = 0;
    let files = site.files.clone();
    for number in 0..50 {
        let link = site.host.find(ROOT, "link").unwrap();
        let node = site.host.nodes.remove(&link).unwrap();
        site.host.nodes.insert(1000 + number, node);
        site.run(files.metadata("link")).unwrap();
        site.round();
    }
    // The root, and the node that the name leads to.
    assert_eq!(files.nodes_count(), 2);
}

#[test]
fn a_directory_that_a_dropped_future_has_opened_is_closed() {
    let mut site = site();
    let files = site.files.clone();
    for rounds in 0..8 {
        let mut task = alloc::boxed::Box::pin(files.read_dir("folder"));
        for _ in 0..rounds {
            if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                break;
            }
            site.round();
        }
        drop(task);
        site.assert_nothing_left();
    }
}

#[test]
fn names_beyond_the_limit_are_forgotten() {
    let mut site = site();
    let files = site.files.clone();
    let find = |site: &mut Site, numbers: core::ops::Range<u32>| {
        for number in numbers {
            let name = alloc::format!("{number}");
            site.host.add(ROOT, &name, FILE_MODE, &[]);
            site.run(files.metadata(&name)).unwrap();
        }
        // Each takes as many as the queue holds.
        (0..100).for_each(|_| site.round());
        site.host.lookups.len()
    };
    // Those first that are not valid any more.
    site.host.valid_secs = 0;
    assert_eq!(find(&mut site, 0..96), 96);
    site.host.valid_secs = 1000;
    assert_eq!(find(&mut site, 96..2000), 2000);
    site.host.valid_secs = 0;
    assert_eq!(find(&mut site, 2000..4096), 4096);
    site.host.valid_secs = 1000;
    assert_eq!(find(&mut site, 4096..4097), 1905);
    // Then others, until half of the limit is left.
    assert_eq!(find(&mut site, 5000..5000 + 4096 - 1905), 4096);
    assert_eq!(find(&mut site, 9000..9001), 2048);
}

#[test]
fn a_device_has_the_features_and_queues_that_requests_need() {
    let start = |queue_size_max| {
        let fake = Fake::new(device::FS, u64::MAX, &[0; 40]);
        fake.state().queue_size_max = queue_size_max;
        let result = Fs::new(fake.clone(), GuardedDma).err();
        (result, fake.state().accepted)
    };
    let known = feature::EVENT_IDX | feature::INDIRECT | feature::VERSION_1;
    assert_eq!((start(4), start(128)), ((None, known), (None, known)));
    assert_eq!(start(2).0, Some(SetupError::QueueTooShort { queue: 1, wanted: 4, allowed: 2 }));
}

/// Only requests take tables: what is to be forgotten has one segment.
#[test]
fn a_directory_takes_the_memory_of_its_messages() {
    let dma = RecordingDma::default();
    let _fs = Fs::new(Fake::new(device::FS, feature::INDIRECT, &[0; 40]), dma.clone()).unwrap();
    let bytes: Vec<usize> = dma.allocated().iter().map(|(bytes, _)| *bytes).collect();
    // The rings of both queues, tables of four descriptors, requests, FORGETs and answers.
    assert_eq!(bytes, [3398, 3398, 128 * 4 * 16, 128 * 576, 128 * 64, 128 * 192]);
}

#[test]
fn a_message_has_an_area_for_its_length() {
    let fake = Fake::new(device::FS, 0, &[0; 40]);
    let mut fs = Fs::new(fake.clone(), GuardedDma).unwrap();
    let mut submit =
        |name_bytes: usize| fs.submit(Message::lookup(ROOT, &"x".repeat(name_bytes)), Data::None, Instant(0));
    // The header, the name and a zero.
    let longest = 576 - 40 - 1;
    assert!(submit(longest).is_ok());
    assert!(matches!(submit(longest + 1), Err(Refused::Error(FileError::BadPath, Data::None))));
    assert!(matches!(submit(longest + 2), Err(Refused::Error(FileError::BadPath, Data::None))));
    assert_eq!(fake.with(1, |queue| queue.take()).unwrap().read().len(), 576);
}

/// A device gets at memory of the service only while a request is in flight.
#[test]
fn buffers_are_lent_for_their_request_only() {
    let fake = Fake::new(device::FS, 0, &[0; 40]);
    let dma = BounceDma::default();
    let mut fs = Fs::new(fake.clone(), dma.clone()).unwrap();
    let submit = |fs: &mut Fs<Fake, BounceDma>| {
        let buf = || Buf::zeroed(100).unwrap();
        fs.submit(Message::read(ROOT, 1, 0, 100), Data::Fill(buf(), 0..100), Instant(0)).unwrap();
        fs.submit(Message::write(ROOT, 1, 0, 100), Data::Send(buf(), 0..100), Instant(0)).unwrap();
    };
    submit(&mut fs);
    assert_eq!(dma.count(), 2);
    fake.with(1, |queue| {
        let chain = queue.take().unwrap();
        let request = chain.read();
        let header = [&(16 + 100u32).to_le_bytes()[..], &[0; 4], &request[8..16]].concat();
        let written = chain.write(&[&header[..], &[7; 100]].concat());
        queue.complete(chain.head, written);
    });
    let read = fs.poll_one().unwrap();
    assert_eq!((read.filled_bytes, dma.count()), (100, 1));
    assert_eq!(read.buf.unwrap()[..], [7; 100]);
    // All that is in flight fails when the device lies, and only that is work then.
    fake.with(1, |queue| queue.put(9999, 0));
    assert!(fs.arm());
    let failed = fs.poll_one().unwrap();
    assert!(matches!(failed.result, Err(FileError::Broken(_))) && failed.buf.is_some());
    assert_eq!(dma.count(), 0);
    assert!(fs.poll_one().is_none() && !fs.arm());
    fs.restart().unwrap();
    submit(&mut fs);
    // It has given up by itself, which is noticed before sleeping.
    fake.state().status |= status::NEEDS_RESET;
    fs.acknowledge();
    assert!(fs.arm() && fs.violation() == Some(Violation::NeedsReset));
    fs.restart().unwrap();
    assert_eq!(dma.count(), 0);
    submit(&mut fs);
    drop(fs);
    assert_eq!(dma.count(), 0);
}

#[test]
fn a_device_that_does_not_reset_keeps_what_it_has() {
    let fake = Fake::new(device::FS, 0, &[0; 40]);
    let mut fs = Fs::new(fake.clone(), GuardedDma).unwrap();
    let mut buf = Buf::zeroed(100).unwrap();
    fs.submit(Message::write(ROOT, 1, 0, 100), Data::Send(buf.clone(), 0..100), Instant(0)).unwrap();
    fake.state().stuck = true;
    drop(fs);
    assert!(buf.as_mut().is_none(), "the device may still read it");
}

/// What the device has forgotten lies in its queue until the next node is forgotten, and explains no interrupt: the status was never read.
#[test]
fn a_device_that_has_given_up_is_noticed_whatever_it_has_forgotten() {
    let mut site = site();
    let files = site.files.clone();
    site.run(files.metadata("folder")).unwrap();
    let link = site.host.find(ROOT, "link").unwrap();
    site.run(files.metadata("link")).unwrap();
    let node = site.host.nodes.remove(&link).unwrap();
    site.host.nodes.insert(1000, node);
    site.now.set(Instant(site.now.get().0 + 2_000_000_000));
    site.run(files.metadata("link")).unwrap();
    site.round();
    assert!(!site.host.lookups.contains_key(&link), "it was forgotten");
    assert!(!site.files.arm());
    site.host.fake.state().status |= status::NEEDS_RESET;
    site.files.acknowledge();
    assert!(site.files.arm() && site.files.violation() == Some(Violation::NeedsReset));
    assert!(!site.files.poll() && !site.files.arm());
}

/// QEMU refuses a device whose driver sends an empty segment.
#[test]
fn a_request_without_data_has_no_segment_for_it() {
    let fake = Fake::new(device::FS, 0, &[0; 40]);
    let mut fs = Fs::new(fake.clone(), GuardedDma).unwrap();
    for bytes in [0, 1] {
        let buf = || Buf::zeroed(1).unwrap();
        fs.submit(Message::write(ROOT, 1, 0, 0), Data::Send(buf(), 0..bytes), Instant(0)).unwrap();
        fs.submit(Message::read(ROOT, 1, 0, 0), Data::Fill(buf(), 0..bytes), Instant(0)).unwrap();
        for _ in 0..2 {
            let chain = fake.with(1, |queue| queue.take()).unwrap();
            assert_eq!(chain.segments.len(), 2 + bytes);
        }
    }
}

/// The host serves files whatever its device can do, and interrupts only a driver that waits.
#[test]
fn a_device_without_optional_features_serves_files() {
    for features in [0, feature::EVENT_IDX, feature::INDIRECT] {
        let mut site = site_with(features);
        let files = site.files.clone();
        site.run(files.metadata("folder")).unwrap();
        for is_armed in [true, false, true] {
            site.now.set(Instant(site.now.get().0 + 2_000_000_000));
            let mut task = pin!(files.metadata("link"));
            let context = &mut Context::from_waker(Waker::noop());
            assert!(task.as_mut().poll(context).is_pending());
            site.files.kick();
            assert!(!site.files.arm());
            if !is_armed {
                site.files.disarm();
            }
            let chain = site.host.fake.with(1, |queue| queue.take()).expect("a request was sent");
            let written = site.host.answer(&chain);
            let interrupts = site.host.fake.with(1, |queue| queue.complete(chain.head, written));
            assert_eq!(interrupts, is_armed, "{features:#x}");
            site.files.poll();
            assert!(matches!(task.as_mut().poll(context), Poll::Ready(Ok(_))));
        }
    }
}

#[test]
fn an_answer_that_is_not_valid_breaks_the_device_and_it_starts_again() {
    let damages: [fn(&mut Vec<u8>); 5] = [
        // Another length, another number, no errno, cut, empty.
        |answer| answer[0] ^= 1,
        |answer| answer[8] ^= 1,
        |answer| answer[4] = 1,
        |answer| {
            answer.truncate(30);
            answer[0..4].copy_from_slice(&30u32.to_le_bytes());
        },
        |answer| answer.clear(),
    ];
    for damage in damages {
        let mut site = site();
        let files = site.files.clone();
        let open = site.run(files.open("folder/file", Open::Read)).unwrap();
        site.now.set(Instant(site.now.get().0 + 2_000_000_000));
        site.host.damage = Some(damage);
        let failed = site.run(files.metadata("folder/file")).err();
        assert_eq!(failed, Some(FileError::Broken(Violation::BadAnswer.as_str())));
        assert_eq!(site.files.violation(), Some(Violation::BadAnswer));
        site.files.restart().unwrap();
        site.host.lookups.clear();
        site.host.open.clear();
        // What was open is not any more, and the rest works.
        assert!(matches!(site.run(open.metadata()), Err(FileError::Broken(_))));
        drop(open);
        assert_eq!(site.run(files.metadata("folder/file")).unwrap().bytes, 20_000);
        site.assert_nothing_left();
    }
}

#[test]
fn a_host_that_speaks_an_older_fuse_is_given_up() {
    let mut site = site();
    site.host.damage = Some(|answer| answer[16 + 4] = 30);
    let files = site.files.clone();
    let refused = site.run(files.metadata("folder")).err();
    assert_eq!(refused, Some(FileError::Broken(Violation::BadAnswer.as_str())));
    assert_eq!(site.files.violation(), Some(Violation::BadAnswer));
    site.files.restart().unwrap();
    assert!(site.run(files.metadata("folder")).is_ok());
}

#[test]
fn a_lie_about_what_is_forgotten_ends_every_request() {
    let mut site = site();
    let files = site.files.clone();
    site.run(files.metadata("folder")).unwrap();
    site.now.set(Instant(site.now.get().0 + 2_000_000_000));
    let mut task = pin!(files.metadata("folder/file"));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(task.as_mut().poll(context).is_pending());
    site.files.kick();
    // More was forgotten than the guest has ever named, which it sees when it forgets the next node.
    site.host.fake.with(0, |queue| queue.publish(4));
    let mut other = alloc::boxed::Box::pin(files.metadata("link"));
    assert!(other.as_mut().poll(context).is_pending());
    site.files.kick();
    let chains: Vec<Chain> = core::iter::from_fn(|| site.host.fake.with(1, |queue| queue.take())).collect();
    let written = site.host.answer(&chains[1]);
    site.host.fake.with(1, |queue| queue.complete(chains[1].head, written));
    site.files.poll();
    // Its future is dropped with the answer, and the node in it is forgotten.
    drop(other);
    site.files.kick();
    assert!(site.files.violation().is_some());
    site.files.restart().unwrap();
    let answer = task.as_mut().poll(context);
    assert!(matches!(answer, Poll::Ready(Err(FileError::Broken(_)))), "{answer:?}");
}

/// A host whose directory never ends, though it names nothing that counts.
#[test]
fn a_directory_without_an_end_is_refused() {
    let mut site = site();
    let files = site.files.clone();
    let mut task = pin!(files.read_dir(""));
    for _ in 0..2 * glass_api::ENTRIES_MAX {
        if let Poll::Ready(entries) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            assert_eq!(entries.err(), Some(FileError::TooMany));
            return;
        }
        site.host.is_endless = true;
        site.round();
    }
    panic!("the directory is read forever");
}

#[test]
fn a_directory_has_as_many_entries_as_are_permitted() {
    for (count, is_permitted) in [(glass_api::ENTRIES_MAX, true), (glass_api::ENTRIES_MAX + 1, false)] {
        let mut site = site();
        site.host.more_entries = count as u64;
        let files = site.files.clone();
        let entries = site.run(files.read_dir(""));
        assert_eq!(
            entries.map(|entries| entries.len()),
            if is_permitted { Ok(count) } else { Err(FileError::TooMany) }
        );
        site.assert_nothing_left();
    }
}

/// What becomes of a task whose answer after so many others is changed.
fn damaged<T>(site: &mut Site, task: impl Future<Output = T>, rounds: usize, damage: fn(&mut Vec<u8>)) -> T {
    let mut task = pin!(task);
    for _ in 0..rounds {
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        site.round();
    }
    site.host.damage = Some(damage);
    site.run(task)
}

#[test]
fn a_directory_that_stands_still_is_refused() {
    let mut site = site();
    let files = site.files.clone();
    site.run(files.metadata("folder")).unwrap();
    // OPENDIR is answered; the entries in the answer to READDIR have the offset that was requested.
    let entries = damaged(&mut site, files.read_dir("folder"), 1, |answer| answer[24..32].fill(0));
    assert_eq!(entries.err(), Some(FileError::Broken("a directory does not end")));
    site.assert_nothing_left();
}

#[test]
fn a_host_that_writes_nothing_or_too_much_is_an_error() {
    let mut site = site();
    let files = site.files.clone();
    let file = site.run(files.open("folder/file", Open::Write)).unwrap();
    let write = || file.write(0, Buf::zeroed(10).unwrap());
    let (written, _) = damaged(&mut site, write(), 0, |answer| answer[16] = 0);
    assert_eq!(written, Err(FileError::NoSpace));
    let (written, _) = damaged(&mut site, write(), 0, |answer| answer[16] = 11);
    assert_eq!(written, Err(FileError::Broken("more was written than was sent")));
    // The rest of what was written in part is part of the next request.
    let (written, _) = damaged(&mut site, write(), 0, |answer| answer[16] = 4);
    assert_eq!(written, Ok(()));
    drop(file);
    site.assert_nothing_left();
}

/// Answers that came before the device was started again, to a task that runs after it.
#[test]
fn what_an_earlier_device_has_answered_is_not_used() {
    let mut site = site();
    let files = site.files.clone();
    site.run(files.metadata("folder")).unwrap();
    let mut task = pin!(files.metadata("folder/file"));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(task.as_mut().poll(context).is_pending());
    site.round();
    site.host.fake.with(1, |queue| queue.publish(9));
    site.files.poll();
    site.files.restart().unwrap();
    let answer = task.as_mut().poll(context);
    assert!(matches!(answer, Poll::Ready(Err(FileError::Broken(_)))), "{answer:?}");
}

#[test]
fn a_host_that_forgets_nothing_is_given_up() {
    let mut site = site();
    site.host.valid_secs = 0;
    site.host.keeps_all = true;
    let files = site.files.clone();
    // Each is another node, and the one before it is forgotten.
    let find_another = |site: &mut Site, number: u64| {
        let link = site.host.find(ROOT, "link").unwrap();
        let node = site.host.nodes.remove(&link).unwrap();
        site.host.nodes.insert(1_000_000 + number, node);
        site.run(files.metadata("link")).unwrap();
        site.round();
    };
    // The device has 128 messages, and four times as many wait as names are kept.
    let forgotten_max = 128 + 4 * 4096;
    (0..=forgotten_max).for_each(|number| find_another(&mut site, number));
    assert_eq!(site.host.fake.with(0, |queue| queue.available_index()), 128);
    assert_eq!(site.files.violation(), None);
    find_another(&mut site, forgotten_max + 1);
    assert_eq!(site.files.violation(), Some(Violation::NoAnswer));
}

#[test]
fn a_host_that_does_not_answer_is_given_up() {
    let mut site = site();
    let files = site.files.clone();
    site.run(files.metadata("folder")).unwrap();
    site.now.set(Instant(site.now.get().0 + 2_000_000_000));
    let mut task = pin!(files.metadata("folder/file"));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(task.as_mut().poll(context).is_pending());
    site.files.kick();
    let deadline = site.files.deadline().unwrap();
    site.now.set(Instant(deadline.0 - 1));
    site.files.poll();
    assert_eq!(site.files.violation(), None);
    site.now.set(Instant(deadline.0 + 1));
    site.files.poll();
    site.files.poll();
    let answer = task.as_mut().poll(context);
    assert!(matches!(answer, Poll::Ready(Err(FileError::Broken(_)))), "{answer:?}");
    assert_eq!(site.files.violation(), Some(Violation::NoAnswer));
}
