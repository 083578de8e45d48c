//! Snapshots that are whole, cut off, changed and of other users.

use super::example::{bytes, origin, state};
use super::*;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

fn file(bytes: &[u8], length: u64) -> File {
    let file = File::from(memfd_create("snapshot", MemfdFlags::CLOEXEC).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    file.set_len(length).unwrap();
    file
}

const WHOLE: u64 = RAM_OFFSET + (1 << 20);

#[test]
fn a_snapshot_is_read_as_it_was_written() {
    let read = Snapshot::read(file(&bytes(), WHOLE)).unwrap();
    assert_eq!(read.origin, origin());
    assert_eq!((read.state.memory_bytes, read.state.devices.clone()), (1 << 20, state().devices));
    assert_eq!(read.state.encode().unwrap(), state().encode().unwrap());
}

#[test]
fn what_is_cut_off_is_refused() {
    let whole = bytes();
    for length in [0, 1, 4095, 4096, RAM_OFFSET - 1, RAM_OFFSET, WHOLE - 1, WHOLE + 1] {
        let cut = &whole[..whole.len().min(length as usize)];
        assert!(Snapshot::read(file(cut, length)).is_err(), "{length}");
    }
    // A snapshot that was not written to its end has no first page.
    let mut unfinished = whole;
    unfinished[..STATE_OFFSET as usize].fill(0);
    let error = Snapshot::read(file(&unfinished, WHOLE)).err().unwrap().to_string();
    assert!(error.contains("not written to its end"), "{error}");
}

/// Whatever is changed, nothing panics, and what is read is written back as it was.
#[test]
fn changed_snapshots_are_refused_or_harmless() {
    let whole = bytes();
    let mut refused = 0;
    for at in (0..64).chain(STATE_OFFSET as usize..whole.len()) {
        for value in [0, 0x7f, 0xff] {
            let mut changed = whole.clone();
            changed[at] = value;
            match VmState::decode(&changed[STATE_OFFSET as usize..]).and(Origin::decode(&changed)) {
                Err(error) => {
                    refused += 1;
                    assert!(!format!("{error:#}").contains('\n'));
                }
                Ok(_) => {
                    let state = VmState::decode(&changed[STATE_OFFSET as usize..]).unwrap();
                    let queues: usize = state.devices.iter().map(|device| device.state.queues.len()).sum();
                    assert!(queues <= DEVICES_MAX * QUEUES_MAX && state.memory_bytes <= MEMORY_BYTES_MAX);
                }
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn others_may_not_have_written_it() {
    let path = std::env::temp_dir().join(format!("glass-snapshot-{}", std::process::id()));
    fs::write(&path, bytes()).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(WHOLE).unwrap();
    let opened = |mode| {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        Snapshot::open(&path).map(|_| ()).map_err(|error| format!("{error:#}"))
    };
    let (own, groups) = (opened(0o600), opened(0o660));
    fs::remove_file(&path).unwrap();
    assert_eq!(own, Ok(()));
    assert!(groups.as_ref().is_err_and(|error| error.contains("chmod 600")), "{groups:?}");
}
