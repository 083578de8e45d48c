//! Colours of boxes: one hue for each crate, namespace, package, script or image, or for each mode of host and guest; a shade of it for each function, greys for boxes
//! without code.

use glass_profiler_core::model::State;
use glass_profiler_core::names;
use glass_profiler_core::tree::{Function, Kind};
use glass_profiler_core::view::Layer;

/// Hues that are easy to distinguish.
const HUES: [u32; 12] = [28, 42, 200, 98, 355, 258, 12, 162, 52, 222, 332, 78];
/// Lightness in percent: all light enough for dark letters.
const SHADES: [u32; 4] = [70, 74, 78, 82];

/// Hue and saturation of each of [`Layer::ALL`], as in the page.
const LAYERS: [(u32, u32); 4] = [(205, 70), (235, 58), (38, 80), (8, 62)];

/// The fill of a layer; a kernel is darker than the processes above it. `shade` moves the lightness a little.
pub(super) fn of_layer(layer: Layer, shade: u32) -> String {
    let (hue, saturation) = LAYERS[layer.number()];
    let is_kernel = matches!(layer, Layer::GuestKernel | Layer::HostKernel);
    format!("hsl({hue},{saturation}%,{}%)", shade + if is_kernel { 74 } else { 80 })
}

/// The fill of a function's boxes.
pub(super) fn of(function: &Function, by_layer: bool) -> String {
    match function.kind {
        Kind::Root | Kind::Merged => "#d6d3d1".to_owned(),
        Kind::Broken(_) => "#e7bcbc".to_owned(),
        Kind::In(State::Spinning) => "#cfc8b8".to_owned(),
        Kind::In(State::Stolen) => "#e3c3b8".to_owned(),
        Kind::In(_) | Kind::Guest => "#c9d3d8".to_owned(),
        Kind::Function if by_layer => match function.layer {
            Some(layer) => of_layer(layer, hash(&function.name) as u32 % 5),
            // The process that a thread belongs to.
            None => "#d6d3d1".to_owned(),
        },
        Kind::Function => {
            let shade = SHADES[hash(&function.name) as usize % SHADES.len()];
            of_group(&names::group(&function.name, &function.image), shade)
        }
    }
}

/// The fill of a group with a lightness in percent.
fn of_group(group: &str, lightness: u32) -> String {
    let hue = HUES[hash(group) as usize % HUES.len()];
    format!("hsl({hue},62%,{lightness}%)")
}

/// The fill that stands for a group.
pub(super) fn of_group_in_legend(group: &str) -> String {
    of_group(group, SHADES[1])
}

/// FNV-1a: the same in every run and version.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
