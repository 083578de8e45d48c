//! Where a kernel's structures have their members: the kernel's own description of its types (BTF, Documentation/bpf/btf.rst of
//! Linux).

/// The most types that are read: Linux 6.18 has some 150,000.
const TYPES_MAX: usize = 4 << 20;
/// How deep structures without a name are followed that are members of others.
const DEPTH_MAX: u32 = 8;

const KIND_INTEGER: u32 = 1;
const KIND_POINTER: u32 = 2;
const KIND_ENUMERATION: u32 = 6;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_FUNCTION: u32 = 12;

/// A member of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Bytes from the structure's start.
    pub offset: u32,
    /// Its type.
    kind: u32,
}

/// The types of a kernel, or of a module of it.
#[derive(Debug)]
pub struct Btf<'a> {
    /// Those of the kernel, which a module's refer to.
    base: Option<&'a Btf<'a>>,
    bytes: &'a [u8],
    strings: &'a [u8],
    /// The places of its own types in `bytes`.
    places: Vec<u32>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

impl<'a> Btf<'a> {
    /// Of the bytes of a file of `/sys/kernel/btf`. `None` if they are not understood.
    pub fn parse(bytes: &'a [u8], base: Option<&'a Btf<'a>>) -> Option<Btf<'a>> {
        const MAGIC_AND_VERSION: [u8; 3] = [0x9f, 0xeb, 1];
        if !bytes.starts_with(&MAGIC_AND_VERSION) {
            return None;
        }
        let body = bytes.get(word(bytes, 4)? as usize..)?;
        let section = |at: usize| {
            let (start, length) = (word(bytes, at)? as usize, word(bytes, at + 4)? as usize);
            body.get(start..start.checked_add(length)?)
        };
        let (types, strings) = (section(8)?, section(16)?);
        let (mut places, mut at) = (Vec::new(), 0);
        while at < types.len() && places.len() < TYPES_MAX {
            places.push(at as u32);
            at = at.checked_add(12 + trailing_bytes(word(types, at + 4)?)?)?;
        }
        (at == types.len()).then_some(Btf { base, bytes: types, strings, places })
    }

    /// The number of its first own type: 0 is `void`.
    fn first(&self) -> u32 {
        self.base.map_or(1, |base| base.first() + base.places.len() as u32)
    }

    /// The types and the place of the type of a number.
    fn find(&self, number: u32) -> Option<(&Btf<'a>, usize)> {
        match number.checked_sub(self.first()) {
            Some(index) => Some((self, *self.places.get(index as usize)? as usize)),
            None => self.base?.find(number),
        }
    }

    /// Whether the text at an offset is this one. A module's texts follow those of the kernel.
    fn is_text(&self, offset: u32, text: &str) -> bool {
        let kernels = self.base.map_or(0, |base| base.strings.len());
        match (offset as usize).checked_sub(kernels) {
            Some(at) => self
                .strings
                .get(at..)
                .and_then(|rest| rest.strip_prefix(text.as_bytes()))
                .is_some_and(|rest| rest.first() == Some(&0)),
            None => self.base.is_some_and(|base| base.is_text(offset, text)),
        }
    }

    /// The numbers of its own types of a kind that have this name.
    fn named(&self, kind: u32, name: &str) -> impl Iterator<Item = u32> {
        let is_it = move |at: usize| {
            let (text, info) = (word(self.bytes, at), word(self.bytes, at + 4));
            info.is_some_and(|info| kind_of(info) == kind) && text.is_some_and(|text| self.is_text(text, name))
        };
        let first = self.first();
        (0..).zip(&self.places).filter(move |(_, at)| is_it(**at as usize)).map(move |(index, _)| first + index)
    }

    /// The number of a function.
    pub fn function(&self, name: &str) -> Option<u32> {
        self.named(KIND_FUNCTION, name).next()
    }

    /// A member of a structure, by the structure's name: of the module's, else the kernel's. A path such as `thread.sp` names a
    /// member of a member.
    pub fn member(&self, structure: &str, path: &str) -> Option<Member> {
        let own = self.named(KIND_STRUCT, structure).find_map(|number| self.member_at(number, path));
        own.or_else(|| self.base?.member(structure, path))
    }

    fn member_at(&self, number: u32, path: &str) -> Option<Member> {
        let mut names = path.split('.');
        let first = self.member_of(number, names.next()?, DEPTH_MAX)?;
        names.try_fold(first, |outer, name| {
            let inner = self.member_of(self.plain(outer.kind)?, name, DEPTH_MAX)?;
            Some(Member { offset: outer.offset.checked_add(inner.offset)?, ..inner })
        })
    }

    /// The type behind other names and qualifiers of it.
    fn plain(&self, mut number: u32) -> Option<u32> {
        for _ in 0..DEPTH_MAX {
            let (of, at) = self.find(number)?;
            match kind_of(word(of.bytes, at + 4)?) {
                8..=11 | 18 => number = word(of.bytes, at + 8)?,
                _ => return Some(number),
            }
        }
        None
    }

    /// The size of a member in bytes, if it is an integer, an enumeration, a pointer or a structure.
    pub fn bytes_of_member(&self, member: Member) -> Option<u32> {
        let (of, at) = self.find(self.plain(member.kind)?)?;
        match kind_of(word(of.bytes, at + 4)?) {
            KIND_POINTER => Some(8),
            KIND_INTEGER | KIND_ENUMERATION | KIND_STRUCT | KIND_UNION => word(of.bytes, at + 8),
            _ => None,
        }
    }

    /// The size of a structure or a union in bytes.
    pub fn bytes_of(&self, structure: &str) -> Option<u32> {
        let mut all = self.named(KIND_STRUCT, structure).chain(self.named(KIND_UNION, structure));
        let own = all.find_map(|number| {
            let (of, at) = self.find(number)?;
            word(of.bytes, at + 8)
        });
        own.or_else(|| self.base?.bytes_of(structure))
    }

    /// The value of a name of an enumeration; a module's are not searched in the kernel.
    pub fn enumerator(&self, enumeration: &str, name: &str) -> Option<u32> {
        self.named(KIND_ENUMERATION, enumeration).find_map(|number| {
            let (of, at) = self.find(number)?;
            (0..word(of.bytes, at + 4)? & 0xffff).find_map(|index| {
                let at = at + 12 + index as usize * 8;
                of.is_text(word(of.bytes, at)?, name).then(|| word(of.bytes, at + 4)).flatten()
            })
        })
    }

    fn member_of(&self, number: u32, name: &str, depth: u32) -> Option<Member> {
        let (of, at) = self.find(number)?;
        let info = word(of.bytes, at + 4)?;
        if depth == 0 || !matches!(kind_of(info), KIND_STRUCT | KIND_UNION) {
            return None;
        }
        (0..info & 0xffff).find_map(|index| {
            let at = at + 12 + index as usize * 12;
            let (text, kind, bits) = (word(of.bytes, at)?, word(of.bytes, at + 4)?, word(of.bytes, at + 8)?);
            // With the flag, the upper 8 bits are the size of a bit field.
            let is_field = info >> 31 != 0 && bits >> 24 != 0;
            if is_field || bits % 8 != 0 {
                return None;
            }
            let offset = bits / 8;
            if of.is_text(text, name) {
                return Some(Member { offset, kind });
            }
            let inner = of.is_text(text, "").then(|| self.member_of(kind, name, depth - 1)).flatten()?;
            Some(Member { offset: offset.checked_add(inner.offset)?, ..inner })
        })
    }
}

fn kind_of(info: u32) -> u32 {
    info >> 24 & 0x1f
}

/// The bytes that follow the 12 that each type has. `None` of a kind that is newer than this code.
fn trailing_bytes(info: u32) -> Option<usize> {
    let count = (info & 0xffff) as usize;
    Some(match kind_of(info) {
        // Forward declarations, other names, `volatile`, `const`, `restrict`, functions, floats, tags of types.
        KIND_POINTER | 7..=11 | KIND_FUNCTION | 16 | 18 => 0,
        // Integers, variables, tags of declarations.
        KIND_INTEGER | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structures, sections, enumerations of 64 bits.
        KIND_STRUCT | KIND_UNION | 15 | 19 => count * 12,
        // Enumerations, prototypes.
        KIND_ENUMERATION | 13 => count * 8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_tests::btf::Builder;

    fn example() -> Builder {
        let mut kernel = Builder::new(0);
        kernel.other("int", 1 << 24, &[4, 32]);
        kernel.structure("", 8, 0, &[("inner", 1, 0), ("deep", 1, 32)]);
        kernel.structure("kvm", 24, 1, &[("bits", 1, 3 << 24), ("mm", 1, 64), ("", 2, 128)]);
        kernel.other("bpf_iter_task_file", KIND_FUNCTION << 24, &[1]);
        kernel.other("e", 6 << 24 | 2, &[4, 0, 0, 0, 1]);
        kernel.structure("last", 7, 0, &[]);
        // Another name of a structure, a pointer, and a structure with both.
        kernel.other("other", 8 << 24, &[3]);
        kernel.other("", 2 << 24, &[3]);
        kernel.structure("outer", 48, 0, &[("kvm", 7, 64), ("pointer", 8, 256)]);
        kernel
    }

    #[test]
    fn members_by_their_names() {
        let file = example().file();
        let btf = Btf::parse(&file, None).unwrap();
        let offset = |structure, member| btf.member(structure, member).map(|member| member.offset);
        assert_eq!([offset("kvm", "mm"), offset("kvm", "inner"), offset("kvm", "deep")], [Some(8), Some(16), Some(20)]);
        assert_eq!([offset("kvm", "bits"), offset("kvm", "m"), offset("kv", "mm"), offset("int", "mm")], [None; 4]);
        let bytes = |member| btf.bytes_of_member(btf.member("kvm", member).unwrap());
        assert_eq!((bytes("mm"), bytes("inner")), (Some(4), Some(4)));
        assert_eq!((btf.bytes_of("kvm"), btf.bytes_of("last"), btf.bytes_of("e")), (Some(24), Some(7), None));
        assert_eq!(
            [offset("outer", "kvm.inner"), offset("outer", "kvm.x"), offset("outer", "pointer.mm")],
            [Some(24), None, None]
        );
        assert_eq!(btf.bytes_of_member(btf.member("outer", "kvm").unwrap()), Some(24));
        assert_eq!(btf.bytes_of_member(btf.member("outer", "pointer").unwrap()), Some(8));
        assert_eq!((btf.function("bpf_iter_task_file"), btf.function("kvm")), (Some(4), None));
    }

    #[test]
    fn a_module_refers_to_the_kernel() {
        let kernel = example();
        let file = kernel.file();
        let base = Btf::parse(&file, None).unwrap();
        let mut module = Builder::new(kernel.strings_bytes());
        module.structure("kvm_memslots", 16, 0, &[("generation", 1, 0), ("", 2, 64)]);
        let module = module.file();
        let btf = Btf::parse(&module, Some(&base)).unwrap();
        let offset = |structure, member| btf.member(structure, member).map(|member| member.offset);
        assert_eq!(
            [offset("kvm_memslots", "generation"), offset("kvm_memslots", "deep"), offset("kvm", "mm")],
            [Some(0), Some(12), Some(8)]
        );
    }

    #[test]
    fn any_bytes_are_survived() {
        let file = example().file();
        for end in 0..file.len() {
            assert!(Btf::parse(&file[..end], None).is_none(), "{end}");
        }
        for at in 0..file.len() {
            for value in [0, 1, 4, 0x7f, 0xff] {
                let mut changed = file.clone();
                changed[at] = value;
                let Some(btf) = Btf::parse(&changed, None) else { continue };
                for name in ["mm", "inner", "deep", ""] {
                    let _ = (btf.member("kvm", name), btf.bytes_of("kvm"), btf.function(name));
                }
            }
        }
        // A structure that contains itself.
        let mut endless = Builder::new(0);
        endless.structure("kvm", 8, 0, &[("", 1, 0)]);
        assert_eq!(Btf::parse(&endless.file(), None).unwrap().member("kvm", "mm"), None);
    }

    /// The kernel of this machine, if it has one.
    #[test]
    fn the_kernel_of_this_machine() {
        let Ok(file) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            return glass_tests::programs::skip("the kernel describes no types (CONFIG_DEBUG_INFO_BTF)");
        };
        let btf = Btf::parse(&file, None).unwrap();
        // The layout of this one is part of the interface to programs.
        let offset = |member| btf.member("pt_regs", member).map(|member| member.offset);
        #[cfg(target_arch = "x86_64")]
        assert_eq!((offset("r15"), offset("ip"), btf.bytes_of("pt_regs")), (Some(0), Some(128), Some(168)));
        // A process that is emulated finds the kernel of its host, of another architecture.
        #[cfg(not(target_arch = "x86_64"))]
        assert_ne!(offset("pc").or(offset("ip")), None);
        assert!(btf.function("bpf_iter_task_file").is_some());
    }
}
