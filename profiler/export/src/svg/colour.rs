//! Colours of boxes: one hue for each crate or library, quiet greys for what is no code.

use glass_report::names;
use glass_report::tree::{Function, Kind};

/// Hues that are told apart easily, all light enough for dark letters.
const PALETTE: [&str; 12] = [
    "#f4a261", "#e9c46a", "#8ecae6", "#a3c98a", "#e5989b", "#b8a9d9", "#f2c6a0", "#7fc8b2", "#d4c27a", "#9fb7e8",
    "#e8a0c0", "#bcd39c",
];

/// The fill of a function's boxes.
pub(super) fn of(function: &Function) -> &'static str {
    match function.kind {
        Kind::Root | Kind::Merged => "#d6d3d1",
        Kind::Broken(_) => "#e7bcbc",
        Kind::Spinning => "#cfc8b8",
        Kind::Idle => "#c9d3d8",
        Kind::Function => {
            let group = names::group(&function.name, &function.image);
            PALETTE[hash(&group) as usize % PALETTE.len()]
        }
    }
}

/// FNV-1a: the same in every run and version.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
