//! Members of a kernel's structures, by their names: those that belong together are read at once.

use super::btf::Btf;
use super::space::{Space, number};

/// The most bytes that are read at once for the members of a structure. Members that are further apart are read one by one.
const SPAN_BYTES_MAX: u32 = 256;

/// The offset of a member by its path, such as `mm_struct.context.vdso`. The error is the path, of a structure or member that is missing.
pub(super) fn offset(btf: &Btf<'_>, path: &'static str) -> Result<u32, &'static str> {
    let member = path.split_once('.').and_then(|(structure, member)| btf.member(structure, member));
    member.map(|member| member.offset).ok_or(path)
}

/// An address of the kernel's half that is a multiple of `alignment`, a power of two.
pub(super) fn pointer(value: u64, alignment: u64) -> Option<u64> {
    // With five levels, the half starts at 0xff00_0000_0000_0000.
    (value >> 56 == 0xff && value & (alignment - 1) == 0).then_some(value)
}

/// Members of one structure, as unsigned numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<const COUNT: usize> {
    /// From the first member to the end of the last.
    start: u32,
    bytes: u32,
    /// Offset in the structure, and size.
    members: [(u32, u32); COUNT],
}

impl<const COUNT: usize> Fields<COUNT> {
    /// Those of these paths. Each is an integer or a pointer; the error is the path of one that is missing.
    pub(super) fn of(btf: &Btf<'_>, paths: [&'static str; COUNT]) -> Result<Fields<COUNT>, &'static str> {
        let mut members = [(0, 0); COUNT];
        for (path, found) in paths.into_iter().zip(&mut members) {
            let member = path.split_once('.').and_then(|(structure, member)| btf.member(structure, member));
            let size = member.and_then(|member| btf.bytes_of_member(member)).filter(|size| matches!(size, 1..=8));
            let member = member.filter(|member| member.offset <= u32::MAX - 8).ok_or(path)?;
            *found = (member.offset, size.ok_or(path)?);
        }
        let start = members.iter().map(|(offset, _)| *offset).min().unwrap_or(0);
        let end = members.iter().map(|(offset, size)| offset + size).max().unwrap_or(0);
        Ok(Fields { start, bytes: end - start, members })
    }

    /// Their values in the structure at an address; `None` if it is not there.
    pub(super) fn read(&self, space: &Space<'_>, address: u64) -> Option<[u64; COUNT]> {
        let mut values = [0; COUNT];
        if self.bytes > SPAN_BYTES_MAX {
            for (value, (offset, size)) in values.iter_mut().zip(self.members) {
                let mut bytes = [0; 8];
                space.read(address.checked_add(offset.into())?, &mut bytes[..size as usize])?;
                *value = u64::from_le_bytes(bytes);
            }
            return Some(values);
        }
        let mut bytes = [0; SPAN_BYTES_MAX as usize];
        let bytes = &mut bytes[..self.bytes as usize];
        space.read(address.checked_add(self.start.into())?, bytes)?;
        for (value, (offset, size)) in values.iter_mut().zip(self.members) {
            *value = number(bytes, offset - self.start, size)?;
        }
        Some(values)
    }
}
