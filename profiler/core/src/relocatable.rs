//! Relocatable ELF files: modules of a Linux kernel (`.ko`). Nothing in them has an address; the kernel lays their code
//! out in the order of its sections, from the module's address on (`layout_sections` in `kernel/module/main.c`).

use object::{Object, ObjectSection, ObjectSymbol, SectionIndex};

use crate::elf::Elf;

/// Where the code sections of a file lie, from the first byte of its code on.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Section, first address, size.
    sections: Vec<(SectionIndex, u64, u64)>,
}

impl Layout {
    /// The layout of a relocatable file; `None` of a file whose sections have addresses.
    pub(crate) fn of(file: &Elf<'_>) -> Option<Layout> {
        if file.kind() != object::ObjectKind::Relocatable {
            return None;
        }
        let mut layout = Layout::default();
        let mut end = 0u64;
        for section in file.sections() {
            // What is needed once, at the start, is in memory that is freed after it.
            let is_kept = !section.name().unwrap_or("").starts_with(".init");
            let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else { continue };
            let is_code = sh_flags.contains(object::elf::SHF_ALLOC) && sh_flags.contains(object::elf::SHF_EXECINSTR);
            if is_kept && is_code {
                let start = end.checked_next_multiple_of(section.align().max(1))?;
                end = start.checked_add(section.size())?;
                layout.sections.push((section.index(), start, section.size()));
            }
        }
        Some(layout)
    }

    /// All of the code, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.sections.last().map_or(0, |(_, start, bytes)| start + bytes)
    }

    /// The address of a symbol of code; `None` of another.
    pub(crate) fn address<'a>(&self, symbol: &impl ObjectSymbol<'a>) -> Option<u64> {
        let section = symbol.section_index()?;
        let (_, start, bytes) = self.sections.iter().find(|(index, ..)| *index == section)?;
        (symbol.address() < *bytes).then(|| start + symbol.address())
    }

    /// The code sections.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        self.sections.iter().map(|(_, start, bytes)| *start..start + bytes)
    }
}
