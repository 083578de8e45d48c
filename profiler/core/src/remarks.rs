//! Sentences of a recording about its guest, which programs look for by how they begin.

/// The VM was paused.
pub const PAUSED: &str = "the VM was paused by its owner";
/// The guest has another kernel since.
pub const STARTED_AGAIN: &str = "the guest started again";

/// The sentence on a VM that was paused at so many samples.
pub fn paused(samples: u64) -> String {
    format!("{PAUSED} at {samples} samples of each vCPU: they are shown as paused, where it stood")
}
