//! Colours of boxes: one hue for each crate or library, a shade of it for each function, greys for boxes without code.

use glass_profiler_core::model::State;
use glass_profiler_core::names;
use glass_profiler_core::tree::{Function, Kind};

/// Hues that are easy to distinguish.
const HUES: [u32; 12] = [28, 42, 200, 98, 355, 258, 12, 162, 52, 222, 332, 78];
/// Lightness in percent: all light enough for dark letters.
const SHADES: [u32; 4] = [70, 74, 78, 82];

/// The fill of a function's boxes.
pub(super) fn of(function: &Function) -> String {
    match function.kind {
        Kind::Root | Kind::Merged => "#d6d3d1".to_owned(),
        Kind::Broken(_) => "#e7bcbc".to_owned(),
        Kind::In(State::Spinning) => "#cfc8b8".to_owned(),
        Kind::In(_) => "#c9d3d8".to_owned(),
        Kind::Function => {
            let hue = HUES[hash(&names::group(&function.name, &function.image)) as usize % HUES.len()];
            let shade = SHADES[hash(&function.name) as usize % SHADES.len()];
            format!("hsl({hue},62%,{shade}%)")
        }
    }
}

/// FNV-1a: the same in every run and version.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
