//! The image of a C program. `glass build --c` links the program, names its file in `GLASS_PROGRAM`, and builds this around it.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]

#[cfg(glass_vm)]
mod image;

#[cfg(not(glass_vm))]
fn main() {
    eprintln!("this is a part of images of C programs: make one by `glass build --c FILES`");
    std::process::exit(2);
}
