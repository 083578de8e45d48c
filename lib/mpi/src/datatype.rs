//! Datatypes: how the elements of a buffer lie in memory.

use crate::basic::{Basic, Value};
use crate::error::Error;
use crate::sys::{Base, Memory};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;

/// The most blocks of memory in one element: a bound for what one type can allocate.
const BLOCKS_MAX: usize = 1 << 24;

/// Adjacent bytes of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    offset: isize,
    bytes: usize,
}

/// A datatype. Sizes and displacements are in bytes.
#[derive(Debug, Clone)]
pub struct Datatype {
    size: usize,
    lower: isize,
    extent: isize,
    alignment: usize,
    blocks: Vec<Block>,
    /// Its predefined parts in their order, and how many of each follow each other.
    basics: Vec<(Basic, usize)>,
}

/// A part of a type that is put together: `count` elements of `datatype` at `displacement`.
#[derive(Debug, Clone)]
pub struct Part {
    /// Bytes from the beginning of the new type.
    pub displacement: isize,
    /// How many follow each other.
    pub count: usize,
    /// Their type.
    pub datatype: Rc<Datatype>,
}

impl Datatype {
    /// A predefined type.
    pub fn of(basic: Basic) -> Datatype {
        let mut blocks = vec![Block { offset: 0, bytes: basic.size() }];
        if let Basic::Pair(Value::I16) = basic {
            // The int of `struct { short; int; }` lies at 4.
            blocks = vec![Block { offset: 0, bytes: 2 }, Block { offset: 4, bytes: 4 }];
        }
        let extent = match basic {
            Basic::Pair(Value::I16) => 8,
            other => other.extent(),
        };
        let extent = extent as isize;
        Datatype {
            size: basic.size(),
            lower: 0,
            extent,
            alignment: basic.alignment(),
            blocks,
            basics: vec![(basic, 1)],
        }
    }

    /// The type of all `parts`. With `is_struct` its extent is rounded up to the alignment that C gives the struct.
    pub fn of_parts(parts: &[Part], is_struct: bool) -> Result<Datatype, Error> {
        let mut made = Datatype { size: 0, lower: 0, extent: 0, alignment: 1, blocks: Vec::new(), basics: Vec::new() };
        let mut bounds: Option<(isize, isize)> = None;
        for part in parts.iter().filter(|part| part.count > 0) {
            let child = &*part.datatype;
            made.add_blocks(part)?;
            made.add_basics(child, part.count);
            made.alignment = made.alignment.max(child.alignment);
            let size = child.size.checked_mul(part.count).ok_or(Error::Count)?;
            made.size = made.size.checked_add(size).ok_or(Error::Count)?;
            let steps = isize::try_from(part.count - 1).map_err(|_| Error::Count)?;
            let last = steps.checked_mul(child.extent).ok_or(Error::Count)?;
            let first = part.displacement + child.lower;
            let (low, high) = (first + last.min(0), first + last.max(0) + child.extent);
            bounds = Some(bounds.map_or((low, high), |(l, h)| (l.min(low), h.max(high))));
        }
        let (low, high) = bounds.unwrap_or_default();
        made.lower = low;
        made.extent = high - low;
        if is_struct {
            made.extent = (made.extent.max(0) as usize).next_multiple_of(made.alignment) as isize;
        }
        Ok(made)
    }

    fn add_blocks(&mut self, part: &Part) -> Result<(), Error> {
        let child = &*part.datatype;
        if child.is_contiguous() {
            let bytes = child.size.checked_mul(part.count).ok_or(Error::Count)?;
            self.add_block(part.displacement + child.true_lower(), bytes);
            return Ok(());
        }
        if child.blocks.len().saturating_mul(part.count).saturating_add(self.blocks.len()) > BLOCKS_MAX {
            return Err(Error::NoMem);
        }
        for index in 0..part.count {
            let base = part.displacement + index as isize * child.extent;
            child.blocks.iter().for_each(|block| self.add_block(base + block.offset, block.bytes));
        }
        Ok(())
    }

    fn add_block(&mut self, offset: isize, bytes: usize) {
        match self.blocks.last_mut() {
            Some(last) if last.offset + last.bytes as isize == offset => last.bytes += bytes,
            _ if bytes == 0 => {}
            _ => self.blocks.push(Block { offset, bytes }),
        }
    }

    fn add_basics(&mut self, child: &Datatype, count: usize) {
        if let [(basic, each)] = child.basics[..] {
            return self.add_run(basic, each * count);
        }
        // Beyond a bound the exact order is not kept: it serves `MPI_Get_elements` only.
        for _ in 0..count.min(1 << 16) {
            child.basics.iter().for_each(|(basic, each)| self.add_run(*basic, *each));
        }
    }

    fn add_run(&mut self, basic: Basic, count: usize) {
        match self.basics.last_mut() {
            Some((last, each)) if *last == basic => *each += count,
            _ => self.basics.push((basic, count)),
        }
    }

    /// The same type with other bounds.
    pub fn resized(&self, lower: isize, extent: isize) -> Datatype {
        Datatype { lower, extent, ..self.clone() }
    }

    /// Bytes of data in an element.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Lower bound.
    pub fn lower(&self) -> isize {
        self.lower
    }

    /// From one element to the next.
    pub fn extent(&self) -> isize {
        self.extent
    }

    /// Where the data begins.
    pub fn true_lower(&self) -> isize {
        self.blocks.iter().map(|block| block.offset).min().unwrap_or(0)
    }

    /// From the first byte of data to behind the last.
    pub fn true_extent(&self) -> isize {
        let end = self.blocks.iter().map(|block| block.offset + block.bytes as isize).max().unwrap_or(0);
        end - self.true_lower()
    }

    /// Whether the elements of a buffer follow each other without gaps, in their order.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        match &self.blocks[..] {
            [block] => block.bytes as isize == self.extent,
            [] => true,
            _ => false,
        }
    }

    /// The predefined type of which it consists, if it is only one.
    pub fn basic(&self) -> Option<(Basic, usize)> {
        match self.basics[..] {
            [(basic, count)] => Some((basic, count)),
            _ => None,
        }
    }

    /// Bytes from the first to behind the last of `count` elements, and where they begin.
    pub fn span(&self, count: usize) -> (isize, usize) {
        if count == 0 || self.size == 0 {
            return (0, 0);
        }
        let last = (count as isize - 1) * self.extent;
        let start = self.true_lower() + last.min(0);
        (start, (last.abs() + self.true_extent()) as usize)
    }

    /// The memory of `count` elements at `base`, where they are contiguous.
    #[inline]
    pub fn region(&self, base: Base, count: usize) -> Option<Memory> {
        self.is_contiguous()
            .then(|| base.memory(self.blocks.first().map_or(0, |block| block.offset), self.size * count))
    }

    fn for_each_block(&self, base: Base, count: usize, mut visit: impl FnMut(Memory)) {
        for index in 0..count {
            let element = base.at(index as isize * self.extent);
            self.blocks.iter().for_each(|block| visit(element.memory(block.offset, block.bytes)));
        }
    }

    /// Appends the data of `count` elements at `base` to `packed`.
    pub fn pack(&self, base: Base, count: usize, packed: &mut Vec<u8>) {
        match self.region(base, count) {
            Some(region) => packed.extend_from_slice(region.as_slice()),
            None => self.for_each_block(base, count, |block| packed.extend_from_slice(block.as_slice())),
        }
    }

    /// Writes packed data into `count` elements at `base`, as far as it goes.
    pub fn unpack(&self, packed: &[u8], base: Base, count: usize) {
        if let Some(region) = self.region(base, count) {
            region.write(0, packed);
            return;
        }
        let mut rest = packed;
        self.for_each_block(base, count, |block| {
            let (now, later) = rest.split_at(rest.len().min(block.bytes()));
            block.write(0, now);
            rest = later;
        });
    }

    /// Reverses the bytes of each number of packed elements.
    pub fn reverse_numbers(&self, packed: &mut [u8]) {
        let mut rest = packed;
        let parts = self.basics.iter().cycle().take_while(|_| self.size > 0);
        for (basic, count) in parts {
            if rest.is_empty() {
                return;
            }
            for _ in 0..*count {
                for bytes in basic.numbers() {
                    let (number, later) = core::mem::take(&mut rest).split_at_mut(bytes);
                    number.reverse();
                    rest = later;
                }
            }
        }
    }

    /// How many predefined elements `bytes` bytes of data are; `None` if they end inside of one.
    pub fn elements(&self, bytes: usize) -> Option<usize> {
        if self.size == 0 {
            return (bytes == 0).then_some(0);
        }
        let per_element: usize = self.basics.iter().map(|(_, count)| count).sum();
        let mut found = bytes / self.size * per_element;
        let mut rest = bytes % self.size;
        for (basic, count) in &self.basics {
            let whole = (rest / basic.size()).min(*count);
            found += whole;
            rest -= whole * basic.size();
            if whole < *count {
                break;
            }
        }
        (rest == 0).then_some(found)
    }
}
