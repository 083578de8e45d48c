//! virtio-mmio: windows that the command line lists, or that are looked at one by one.

use crate::command_line::MmioDevice;
use alloc::vec::Vec;
use glass_drivers_virtio::TransportError;

/// What `open` makes of each window in which there is something. `is_probing`: the windows are only possible ones, so what is no
/// virtio device is no error, and the first empty window after a device ends the search.
pub fn search<T>(
    windows: &[MmioDevice],
    is_probing: bool,
    mut open: impl FnMut(&MmioDevice) -> Result<T, TransportError>,
) -> Vec<(MmioDevice, Result<T, TransportError>)> {
    let mut found = Vec::new();
    for window in windows {
        match open(window) {
            Err(TransportError::NoDevice | TransportError::NotVirtio { .. }) if is_probing => {
                if !found.is_empty() {
                    break;
                }
            }
            Err(TransportError::NoDevice) => {}
            opened => found.push((*window, opened)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probing_ends_behind_the_last_device() {
        let windows: Vec<MmioDevice> =
            (0..9).map(|index| MmioDevice { address: index * 512, interrupt: index as u32 }).collect();
        let mut reads = 0;
        // Nothing, nothing, two devices, an empty window, and one that must not be read.
        let mut open = |window: &MmioDevice| {
            reads += 1;
            match window.interrupt {
                0 => Err(TransportError::NotVirtio { magic: u32::MAX }),
                2 => Ok(()),
                3 => Err(TransportError::Legacy),
                _ => Err(TransportError::NoDevice),
            }
        };
        let found = search(&windows, true, &mut open);
        assert_eq!(found, [(windows[2], Ok(())), (windows[3], Err(TransportError::Legacy))]);
        // All that are listed are looked at, and what is no device is an error.
        let found = search(&windows, false, &mut open);
        assert_eq!(found.len(), 3);
        assert_eq!(reads, 5 + 9);
    }
}
