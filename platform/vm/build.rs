//! Puts the processor's linker script `vm.ld` on the linker's search path, so that `-Tvm.ld` finds it from any crate, and in an image empty libraries
//! of C.

use std::path::Path;

/// What the crate libc, on which crates such as ring depend, has linked. With the host's libraries an image would be linked dynamically, and
/// a function of theirs would be missing only when it runs; with empty ones a crate that uses such a function does not link.
const LIBRARIES: [&str; 6] = ["c", "dl", "m", "pthread", "rt", "util"];
/// An archive without members.
const EMPTY_ARCHIVE: &[u8] = b"!<arch>\n";

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let (package, arch) = (variable("CARGO_MANIFEST_DIR"), variable("CARGO_CFG_TARGET_ARCH"));
    println!("cargo:rustc-link-search={package}/src/arch/{arch}");
    // Not in processes and tests, which need them.
    if std::env::var_os("CARGO_CFG_GLASS_VM").is_some() {
        let folder = variable("OUT_DIR");
        for library in LIBRARIES {
            let file = Path::new(&folder).join(format!("lib{library}.a"));
            std::fs::write(&file, EMPTY_ARCHIVE).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
        println!("cargo:rustc-link-search={folder}");
    }
    println!("cargo:rerun-if-changed=src/arch/{arch}");
}
