//! Members of a kernel's structures, by their names: those that belong together are read at once.

use super::btf::Btf;
use super::space::{Space, number};

/// A member of a structure: bytes from its start, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the start of the structure.
    pub at: u32,
    /// Its size in bytes.
    pub bytes: u32,
}

/// Where the structures of a kernel have their members: as its own types describe it ([`Btf`]), or as it was
/// [inferred](super::inferred::Inferred) from what the structures hold.
pub trait Layout {
    /// A member of a structure. A path such as `thread.sp` names a member of a member. Its size is 0 if that is not known.
    fn field(&self, structure: &str, path: &str) -> Option<Field>;

    /// The size of a structure or a union in bytes.
    fn bytes_of(&self, structure: &str) -> Option<u32>;

    /// The value of a name of an enumeration.
    fn enumerator(&self, enumeration: &str, name: &str) -> Option<u32>;
}

impl Layout for Btf<'_> {
    fn field(&self, structure: &str, path: &str) -> Option<Field> {
        let member = self.member(structure, path)?;
        Some(Field { at: member.offset, bytes: self.bytes_of_member(member).unwrap_or(0) })
    }

    fn bytes_of(&self, structure: &str) -> Option<u32> {
        Btf::bytes_of(self, structure)
    }

    fn enumerator(&self, enumeration: &str, name: &str) -> Option<u32> {
        Btf::enumerator(self, enumeration, name)
    }
}

impl Field {
    /// The first of these members that a structure has; its path and the structure if it has none of them.
    pub(super) fn of(types: &dyn Layout, structure: &str, paths: &[&str]) -> Result<Field, String> {
        let found = paths.iter().find_map(|path| types.field(structure, path));
        let field = found.ok_or_else(|| format!("{structure}.{}", paths.join(" or ")))?;
        Ok(Field { bytes: if field.bytes == 0 { 8 } else { field.bytes }, ..field })
    }

    /// Its number in a copied structure.
    pub(super) fn get(self, structure: &[u8]) -> Option<u64> {
        number(structure, self.at, self.bytes)
    }
}

/// The most bytes that are read at once for the members of a structure. Members that are further apart are read one by one.
const SPAN_BYTES_MAX: u32 = 256;

/// The offset of a member by its path, such as `mm_struct.context.vdso`. The error is the path, of a structure or member that is missing.
pub(super) fn offset(types: &dyn Layout, path: &'static str) -> Result<u32, &'static str> {
    let field = path.split_once('.').and_then(|(structure, member)| types.field(structure, member));
    field.map(|field| field.at).ok_or(path)
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
    pub(super) fn of(types: &dyn Layout, paths: [&'static str; COUNT]) -> Result<Fields<COUNT>, &'static str> {
        let mut members = [(0, 0); COUNT];
        for (path, found) in paths.into_iter().zip(&mut members) {
            let field = path.split_once('.').and_then(|(structure, member)| types.field(structure, member));
            let field = field.filter(|field| matches!(field.bytes, 1..=8) && field.at <= u32::MAX - 8).ok_or(path)?;
            *found = (field.at, field.bytes);
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
