//! A Linux guest by what is in its RAM: its kernel, symbols, types, tasks and files.
//!
//! All of it is read while the guest runs, by nothing but [`Physical`](crate::memory::Physical): no register and no file is needed. The guest
//! may write anything at any time, so every loop has a bound, every pointer is checked, and what was read of a list that changes meanwhile is
//! recognized and read again ([decision 43](../../../../docs/decisions/0043-linux-guests-from-their-ram.md)).

mod arch;
pub mod btf;
pub mod current;
pub mod files;
pub mod inferred;
pub mod kallsyms;
pub mod kept;
pub mod kernel;
mod maple;
pub mod mappings;
pub mod modules;
pub mod open_files;
pub mod page_cache;
pub mod sleeping;
pub mod space;
pub mod structures;
pub mod tasks;
#[cfg(test)]
mod testing;
pub mod vdso;
pub mod waits;
