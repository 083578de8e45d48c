//! Texts inside of options of QEMU.

use std::path::Path;

/// A file name inside a QEMU option: commas are doubled.
pub(super) fn escape(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
