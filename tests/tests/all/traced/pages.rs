//! The mappings of a VM's page tables, read from its memory.

/// A mapped page of any size.
pub struct Page {
    pub address: u64,
    pub is_writable: bool,
    pub is_no_execute: bool,
}

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// All mappings of the tables with the root at `root`, by address.
pub fn mapped(root: u64, read: impl Fn(u64) -> u64) -> Vec<Page> {
    let mut pages = Vec::new();
    let mut tables = vec![(root, 4, 0)];
    while let Some((table, level, start)) = tables.pop() {
        for index in 0..512 {
            let entry = read(table + index * 8);
            let address = start + (index << (12 + 9 * (level - 1)));
            if entry & PRESENT == 0 {
                continue;
            }
            if level > 1 && entry & LARGE == 0 {
                tables.push((entry & ADDRESS, level - 1, address));
                continue;
            }
            let (is_writable, is_no_execute) = (entry & WRITABLE != 0, entry & NO_EXECUTE != 0);
            pages.push(Page { address, is_writable, is_no_execute });
        }
    }
    pages.sort_by_key(|page| page.address);
    pages
}
