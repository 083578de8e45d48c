//! Gates of the interrupt table (Intel SDM volume 3, 6.14.1).

/// The size of a gate.
pub(crate) const GATE_BYTES: usize = 16;

/// A gate has the address of its handler in three pieces.
pub(crate) fn target_of_gate(gate: &[u8; GATE_BYTES]) -> u64 {
    u64::from_le_bytes([gate[0], gate[1], gate[6], gate[7], gate[8], gate[9], gate[10], gate[11]])
}
