//! Puts the linker script `vm.ld` on the linker's search path, so that `-Tvm.ld` finds it from any crate.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo:rustc-link-search={folder}");
    println!("cargo:rerun-if-changed=vm.ld");
    println!("cargo:rerun-if-changed=src/boot.s");
    println!("cargo:rerun-if-changed=src/mem.s");
    println!("cargo:rerun-if-changed=src/program.s");
}
