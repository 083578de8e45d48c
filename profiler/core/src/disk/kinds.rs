//! Contents of disks that are recognized and not read, by what they start with.

use super::bytes::read;
use crate::elf::ReadAt;

/// Where in the disk or partition it is, and what is there.
const KINDS: [(u64, &[u8], &str); 14] = [
    (0, b"LUKS\xba\xbe", "LUKS (encrypted)"),
    (512, b"LABELONE", "LVM"),
    (0, b"XFSB", "XFS"),
    (0x1_0040, b"_BHRfS_M", "Btrfs"),
    (1024, &[0xe2, 0xe1, 0xf5, 0xe0], "EROFS"),
    (1024, &[0x10, 0x20, 0xf5, 0xf2], "F2FS"),
    (0, b"hsqs", "SquashFS"),
    (0x1000, &[0xfc, 0x4e, 0x2b, 0xa9], "a RAID"),
    (0, b"KDMV", "an image of the format VMDK"),
    (0, b"COWD", "an image of the format VMDK"),
    (0, b"conectix", "an image of the format VHD"),
    (0, b"vhdxfile", "an image of the format VHDX"),
    (0x40, &[0x7f, 0x10, 0xda, 0xbe], "an image of the format VDI"),
    (0, b"QED\0", "an image of the format QED"),
];

/// What the contents are called, if they are of a known kind that is not read.
pub(super) fn of(disk: &dyn ReadAt, start: u64) -> Option<&'static str> {
    let is_there = |at: u64, expected: &[u8]| {
        let found: Option<[u8; 8]> = start.checked_add(at).and_then(|at| read(disk, at));
        found.is_some_and(|found| found.starts_with(expected))
    };
    KINDS.iter().find(|(at, expected, _)| is_there(*at, expected)).map(|(_, _, name)| *name)
}
