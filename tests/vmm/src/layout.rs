//! How VMMs lay out the memory of their guests.

use clap::ValueEnum;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const FOUR_GIB: u64 = 4 * GIB;
/// A first zone so small that stacks of a guest are in the next one.
const SMALL: u64 = 16 * MIB;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// One memfd that cannot shrink, without a hole, as QEMU has it
    Plain,
    /// One mapping that only the VMM has, with a hole from 3 GiB on
    Firecracker,
    /// A memfd for each zone and for what of it is above the hole from 3 GiB on; 128 MiB can be added above all other memory
    CloudHypervisor,
    /// A mapping for each range, which only the VMM has, between pages that cannot be touched; a hole from 3.25 GiB on
    Libkrun,
}

/// From where memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A file that could be shared.
    Memfd,
    /// The same, sealed: it keeps its size.
    Sealed,
    /// Memory of this process.
    Anonymous,
    /// The same, between pages that cannot be touched.
    Guarded,
}

/// A mapping, which is a slot for each of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    pub source: Source,
    /// One after the other in the mapping.
    pub parts: Vec<Part>,
}

/// A range of physical addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub address: u64,
    pub bytes: u64,
}

/// What lies below a hole, and behind it.
fn split(start: u64, bytes: u64, hole: u64) -> Vec<Part> {
    let low = bytes.min(hole.saturating_sub(start));
    let parts = [Part { address: start, bytes: low }, Part { address: start.max(FOUR_GIB), bytes: bytes - low }];
    parts.into_iter().filter(|part| part.bytes > 0).collect()
}

impl Layout {
    /// The memory, and what is added later.
    pub fn zones(self, bytes: u64) -> (Vec<Zone>, Vec<Zone>) {
        let each = |source: Source, parts: Vec<Part>| {
            parts.into_iter().map(|part| Zone { source, parts: vec![part] }).collect::<Vec<_>>()
        };
        let (small, rest) = (SMALL.min(bytes), bytes.saturating_sub(SMALL));
        let in_two = |hole: u64| [split(0, small, hole), split(small, rest, hole)].concat();
        match self {
            Layout::Plain => (each(Source::Sealed, vec![Part { address: 0, bytes }]), Vec::new()),
            Layout::Firecracker => {
                (vec![Zone { source: Source::Anonymous, parts: split(0, bytes, 3 * GIB) }], Vec::new())
            }
            Layout::CloudHypervisor => {
                let parts = in_two(3 * GIB);
                let end = parts.last().map_or(0, |part| part.address + part.bytes);
                let address = end.max(FOUR_GIB).next_multiple_of(128 * MIB);
                (each(Source::Memfd, parts), each(Source::Memfd, vec![Part { address, bytes: 128 * MIB }]))
            }
            Layout::Libkrun => (each(Source::Guarded, in_two(3328 * MIB)), Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(layout: Layout, bytes: u64) -> Vec<Vec<(u64, u64)>> {
        let (zones, added) = layout.zones(bytes);
        let of = |zone: &Zone| zone.parts.iter().map(|part| (part.address, part.bytes)).collect();
        zones.iter().chain(&added).map(of).collect()
    }

    #[test]
    fn each_layout_has_its_hole() {
        assert_eq!(ranges(Layout::Plain, 64 * MIB), [[(0, 64 * MIB)]]);
        assert_eq!(ranges(Layout::Firecracker, 4 * GIB), [[(0, 3 * GIB), (4 * GIB, GIB)]]);
        assert_eq!(
            ranges(Layout::CloudHypervisor, 64 * MIB),
            [[(0, SMALL)], [(SMALL, 48 * MIB)], [(4 * GIB, 128 * MIB)]]
        );
        let large = ranges(Layout::CloudHypervisor, 3 * GIB + 64 * MIB);
        assert_eq!(large[2..], [[(4 * GIB, 64 * MIB)], [(4 * GIB + 128 * MIB, 128 * MIB)]]);
        assert_eq!(
            ranges(Layout::Libkrun, 4 * GIB),
            [[(0, SMALL)], [(SMALL, 3328 * MIB - SMALL)], [(4 * GIB, 768 * MIB)]]
        );
    }
}
