//! The files that a process of a guest has open, from its table of descriptors.

use super::space::{Space, word};
use super::structures::{Fields, Layout, offset, pointer};

/// The most descriptors that are looked at. A process that generates code opens its map when it starts.
const DESCRIPTORS_MAX: u64 = 1024;

/// Where the structures have what is read of them.
#[derive(Debug, Clone, Copy)]
pub struct Offsets {
    /// The table of a task, and its current size.
    files: u32,
    table: u32,
    /// Number of descriptors, their files.
    descriptors: Fields<2>,
}

impl Offsets {
    /// Those of a kernel; the error is a member that its types lack.
    pub fn of(types: &dyn Layout) -> Result<Offsets, &'static str> {
        Ok(Offsets {
            files: offset(types, "task_struct.files")?,
            table: offset(types, "files_struct.fdt")?,
            descriptors: Fields::of(types, ["fdtable.max_fds", "fdtable.fd"])?,
        })
    }
}

/// The addresses of the `struct file`s that the task at an address has open, by their descriptors. Any of them may be closed by now.
#[must_use]
pub fn list(space: &Space<'_>, task: u64, offsets: &Offsets) -> Vec<u64> {
    let listed = || {
        let files = pointer(space.word(task.checked_add(offsets.files.into())?)?, 8)?;
        let table = pointer(space.word(files.checked_add(offsets.table.into())?)?, 8)?;
        let [count, descriptors] = offsets.descriptors.read(space, table)?;
        let bytes = space.bytes(pointer(descriptors, 8)?, count.min(DESCRIPTORS_MAX) as usize * 8)?;
        let files = (0..bytes.len() as u32).step_by(8).filter_map(|at| pointer(word(&bytes, at)?, 8));
        Some(files.collect())
    };
    listed().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{DIRECT, Memory, offsets};
    use super::*;
    use proptest::prelude::*;

    const TASK: u64 = DIRECT + 0x1000;
    const FILES: u64 = DIRECT + 0x2000;
    const TABLE: u64 = DIRECT + 0x3000;
    const DESCRIPTORS: u64 = DIRECT + 0x4000;

    fn example(count: u64) -> Memory {
        let memory = Memory::new();
        memory.set(TASK + 16, FILES);
        memory.set(FILES + 8, TABLE);
        memory.words(TABLE, &[count, DESCRIPTORS]);
        memory.words(DESCRIPTORS, &[DIRECT, 0, DIRECT + 0x100, 7, DIRECT + 0x200]);
        memory
    }

    #[test]
    fn descriptors_that_are_open() {
        let offsets = offsets(false, Offsets::of);
        let found = |count| list(&example(count).space(), TASK, &offsets);
        assert_eq!(found(5), [DIRECT, DIRECT + 0x100, DIRECT + 0x200]);
        assert_eq!(found(2), [DIRECT]);
        assert!(found(0).is_empty());
        assert_eq!(found(u64::from(u32::MAX)).len(), 3);
        for (at, value) in [(TASK + 16, 0), (FILES + 8, 1), (TABLE + 8, DIRECT << 1)] {
            let memory = example(5);
            memory.set(at, value);
            assert!(list(&memory.space(), TASK, &offsets).is_empty(), "{at:#x}");
        }
    }

    proptest! {
        #[test]
        fn any_memory_is_survived(random in proptest::collection::vec(any::<u64>(), 1..20)) {
            let memory = example(64);
            memory.fill(DIRECT + 0x2000..DIRECT + 0x5000, &random);
            prop_assert!(list(&memory.space(), TASK, &offsets(false, Offsets::of)).len() as u64 <= DESCRIPTORS_MAX);
        }
    }
}
