//! Snapshots of VMs, as `glass run --from` reads them.

use glass_vmm::script;

use super::Target;

/// Where the state starts (docs/formats/snapshot.md).
const STATE: usize = 4096;
/// The longest state.
const STATE_BYTES_MAX: usize = 60 << 10;

/// What is in front of the RAM of a snapshot, and the list of pages beside it.
pub struct Snapshots;

impl Target for Snapshots {
    fn name(&self) -> &'static str {
        "snapshots"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        vec![script::snapshot(), script::pages()]
    }

    /// What is read is written as it was.
    fn run(&self, input: &[u8]) {
        if let Some(again) = script::read_pages(input) {
            assert_eq!(again, input);
        }
        let Some(state) = script::read_snapshot(input) else { return };
        assert!(state.len() <= STATE_BYTES_MAX, "{} bytes", state.len());
        let again = [&input[..STATE], &state].concat();
        assert_eq!(script::read_snapshot(&again), Some(state));
    }
}
