//! Memory of a guest that is searched for Linux's `VMCOREINFO`.

use fastrand::Rng;
use glass_profiler_guests::systems::vmcoreinfo::{TEXT_BYTES_MAX, find_in_memory};

use super::Target;
use crate::mutate;

/// The search for the note.
pub struct Vmcoreinfo;

const TEXT: &str =
    "OSRELEASE=6.1.0-28-cloud-amd64\nPAGESIZE=4096\nSYMBOL(init_uts_ns)=ffffffff82414a80\nKERNELOFFSET=1a000000\n";

/// Memory with a note at an offset.
fn memory(at: usize, text: &str, bytes: u32) -> Vec<u8> {
    let mut memory = vec![0; at];
    [11, bytes, 0].iter().for_each(|number: &u32| memory.extend(number.to_le_bytes()));
    memory.extend(b"VMCOREINFO\0\0");
    memory.extend(text.as_bytes());
    memory
}

impl Target for Vmcoreinfo {
    fn name(&self) -> &'static str {
        "vmcoreinfo"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let bytes = TEXT.len() as u32;
        let twice = [memory(0, "OSRELEASE=0\n", 12), memory(40, TEXT, bytes)].concat();
        vec![memory(0, TEXT, bytes), memory(4, TEXT, bytes), memory(64, TEXT, bytes + 1), twice]
    }

    fn change(&self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
        match rng.u32(..2) {
            0 => mutate::fields(bytes, &[(0, 4), (4, 4), (8, 4)], rng),
            _ => mutate::plain(bytes, corpus, rng),
        }
    }

    fn bytes_max(&self) -> usize {
        64 << 10
    }

    fn run(&self, input: &[u8]) {
        let Some(range) = find_in_memory(input) else { return };
        let text = &input[range.clone()];
        assert!(range.start.is_multiple_of(4) && text.len() <= TEXT_BYTES_MAX);
        assert!(text.starts_with(b"OSRELEASE=") && text.is_ascii());
    }
}
