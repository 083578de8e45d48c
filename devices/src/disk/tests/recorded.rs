//! The log of writes has what the guest wrote, in the order in which it happened, and ends where it has no room.

use super::{DISCARD, DiskOptions, FLUSH, Host, WRITE_DATA, WRITE_ZEROES, range};
use crate::device::Device;
use crate::disk::{SECTOR_BYTES, WriteLog};
use glass_formats::write_log::{HEADER_BYTES, Header, Kind, RECORD_BYTES, Record, SECTOR_BYTES as LOG_SECTOR_BYTES};
use std::fs;
use std::path::PathBuf;

const _: () = assert!(SECTOR_BYTES == LOG_SECTOR_BYTES);

fn recorded(test: &str, bytes_max: u64) -> Option<(Host, PathBuf)> {
    let path = std::env::temp_dir().join(format!("glass-devices-log-{test}-{}", std::process::id()));
    let write_log = Some(WriteLog { path: path.clone(), bytes_max });
    let host = Host::new(test, DiskOptions { write_log, ..DiskOptions::default() })?;
    Some((host, path))
}

/// The records of a log, each with its data, of a disk that is closed.
fn records(host: Host, path: PathBuf) -> Vec<(Record, Vec<u8>)> {
    drop(host);
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let header = Header::from_bytes(bytes[..HEADER_BYTES].try_into().unwrap()).unwrap();
    let mut rest = &bytes[HEADER_BYTES..];
    let (mut found, mut time_ns) = (Vec::new(), header.start_ns);
    while let Some((record, after)) = rest.split_first_chunk::<RECORD_BYTES>() {
        let record = Record::from_bytes(record, header.disk_bytes).unwrap();
        assert!(record.time_ns >= time_ns);
        time_ns = record.time_ns;
        let data = if let Kind::Write { .. } = record.kind { record.bytes as usize } else { 0 };
        found.push((record, after[..data].to_vec()));
        rest = &after[data..];
    }
    assert!(rest.is_empty());
    found
}

#[test]
fn the_log_has_what_the_guest_wrote() {
    for has_flush in [true, false] {
        let Some((mut host, path)) = recorded(&format!("written-{has_flush}"), 1 << 20) else { return };
        host.disk.agree(if has_flush { 1 << 9 } else { 0 }).unwrap();
        host.queue(0, WRITE_DATA, 40, &[0xab; 4096], 0);
        host.queue(4, WRITE_ZEROES, 0, &range(64, 8, 0), 0);
        host.queue(8, DISCARD, 0, &range(80, 8, 0), 0);
        host.work_until(3);
        host.queue(12, FLUSH, 0, &[], 0);
        host.work_until(4);
        assert_eq!(host.on_disk(40 * 512, 4096), [0xab; 4096]);
        let found = records(host, path);
        let is_durable = !has_flush;
        let arrived: Vec<_> =
            found.iter().take(3).map(|(record, _)| (record.kind, record.offset, record.bytes)).collect();
        assert_eq!(
            arrived,
            [
                (Kind::Write { is_durable }, 40 * 512, 4096),
                (Kind::Zero { is_durable }, 64 * 512, 4096),
                (Kind::Discard, 80 * 512, 4096)
            ]
        );
        assert_eq!(found[0].1, [0xab; 4096]);
        let after: Vec<Kind> = found.iter().skip(3).map(|(record, _)| record.kind).collect();
        let completes = Kind::Complete { is_failed: false };
        // The guest had learned of all three before it queued the flush.
        assert_eq!(after, [completes, completes, completes, Kind::Flush, completes, Kind::End { is_cut: false }]);
    }
}

#[test]
fn a_full_log_ends_and_the_disk_is_served_on() {
    let Some((mut host, path)) = recorded("full", 6000) else { return };
    for head in [0, 4] {
        host.queue(head, WRITE_DATA, 40 + u64::from(head) * 8, &[head as u8 + 1; 4096], 0);
    }
    host.work_until(2);
    assert_eq!([0, 4].map(|head| host.status(head)), [0; 2]);
    assert_eq!(host.on_disk(72 * 512, 4096), [5; 4096]);
    let kinds: Vec<Kind> = records(host, path).iter().map(|(record, _)| record.kind).collect();
    assert_eq!(kinds, [Kind::Write { is_durable: false }, Kind::End { is_cut: true }]);
}
