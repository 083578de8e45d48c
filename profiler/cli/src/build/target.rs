//! The processors that there are images for: their targets of the compiler, their flags, and where their core library comes from.

use super::{ALLOW_UNSTABLE, Platform};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Processor of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// x86-64
    #[value(name = "x86_64")]
    X86_64,
    /// AArch64, for QEMU's machine `virt`
    Aarch64,
}

/// The target of x86-64 is the host's triple; naming it keeps our flags away from build scripts and macros.
const X86_64: &str = "x86_64-unknown-linux-gnu";
const AARCH64: &str = "aarch64-unknown-none";

/// Rust flags of an x86-64 image: code that runs where it is linked, can be unwound, and has no red zone.
const IMAGE_FLAGS: [&str; 6] = [
    "-Cforce-frame-pointers=yes",
    "-Cforce-unwind-tables=yes",
    "-Cno-redzone=yes",
    "-Crelocation-model=static",
    "--cfg=glass_vm",
    // Not chosen by CPUID at run time: wide registers are never switched on in an image.
    "--cfg=chacha20_backend=\"soft\"",
];

/// Linker flags of an x86-64 image: nothing of the host, our linker script (found through platform/vm's
/// build script), a build id by which the profiler recognizes the symbol file.
const IMAGE_LINK_FLAGS: [&str; 9] = [
    "-nostartfiles",
    "-nostdlib",
    "-static",
    "-no-pie",
    "-Wl,-Tvm.ld",
    "-Wl,-z,max-page-size=4096",
    "-Wl,-z,noexecstack",
    "-Wl,--build-id=sha1",
    "-Wl,--no-eh-frame-hdr",
];

/// The same for the C and assembler files of crates such as ring, which their build scripts compile: Ubuntu's gcc calls functions of libc
/// to check stacks and lengths unless it is not to.
const IMAGE_C_FLAGS: (&str, &str) = (
    "CFLAGS_x86_64_unknown_linux_gnu",
    "-fno-omit-frame-pointer -mno-red-zone -fno-stack-protector -U_FORTIFY_SOURCE -fcf-protection=none",
);

/// Rust flags of an AArch64 image: the target's own code model is static, and it has no red zone.
const AARCH64_FLAGS: [&str; 4] = [
    "-Cforce-frame-pointers=yes",
    "-Cforce-unwind-tables=yes",
    "--cfg=glass_vm",
    // As for x86-64.
    "--cfg=chacha20_backend=\"soft\"",
];

/// The same as [`IMAGE_LINK_FLAGS`] in the words of the linker, which the target calls without a compiler around it.
const AARCH64_LINK_FLAGS: [&str; 5] =
    ["-Tvm.ld", "-zmax-page-size=4096", "-znoexecstack", "--build-id=sha1", "--no-eh-frame-hdr"];

/// Names the folder `library` of the standard library's sources, for a compiler that has neither the target nor the sources itself.
const SOURCES_VARIABLE: &str = "GLASS_RUST_LIBRARY";

/// Refuses a processor for what is no image.
pub fn check(platform: Platform, target: Target) -> Result<()> {
    if platform == Platform::Linux && target != Target::X86_64 {
        bail!("--target is for images: a process runs on this machine's processor; leave it out");
    }
    Ok(())
}

impl Target {
    /// The compiler's name of it.
    pub fn triple(self) -> &'static str {
        match self {
            Target::X86_64 => X86_64,
            Target::Aarch64 => AARCH64,
        }
    }

    pub(super) fn flags(self) -> &'static [&'static str] {
        match self {
            Target::X86_64 => &IMAGE_FLAGS,
            Target::Aarch64 => &AARCH64_FLAGS,
        }
    }

    pub(super) fn link_flags(self) -> &'static [&'static str] {
        match self {
            Target::X86_64 => &IMAGE_LINK_FLAGS,
            Target::Aarch64 => &AARCH64_LINK_FLAGS,
        }
    }

    /// The variable with the flags of C files, and its value. An AArch64 image has none: its target has no C compiler here.
    pub(super) fn c_flags(self) -> Option<(&'static str, &'static str)> {
        match self {
            Target::X86_64 => Some(IMAGE_C_FLAGS),
            Target::Aarch64 => None,
        }
    }

    /// The program that removes symbols, and Debian's package with it.
    pub(super) fn strip(self) -> (&'static str, &'static str) {
        match self {
            Target::X86_64 => ("strip", "binutils"),
            Target::Aarch64 => ("aarch64-linux-gnu-strip", "binutils-aarch64-linux-gnu"),
        }
    }
}

/// Where the core library of a target comes from.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Library {
    /// It is installed with the compiler.
    Installed,
    /// It is built from the compiler's own sources, or from those in a folder.
    Built(Option<PathBuf>),
}

impl Library {
    /// Finds it, or an error with what to install.
    pub(super) fn find(target: Target) -> Result<Library> {
        // The host's own is always there.
        if target == Target::X86_64 {
            return Ok(Library::Installed);
        }
        let libraries = rustc(&["--print", "target-libdir", "--target", target.triple()])?;
        let sources = rustc(&["--print", "sysroot"])?.join("lib/rustlib/src/rust/library");
        let given = std::env::var_os(SOURCES_VARIABLE).map(PathBuf::from);
        choose(&libraries, &sources, given).with_context(|| {
            format!("the compiler has no library for this processor: run `rustup target add {}`", target.triple())
        })
    }

    /// Has cargo use it.
    pub(super) fn add(self, cargo: &mut Command) {
        let Library::Built(folder) = self else { return };
        // Nothing unstable enters the program.
        cargo.env(ALLOW_UNSTABLE.0, ALLOW_UNSTABLE.1).arg("-Zbuild-std=core,alloc");
        if let Some(folder) = folder {
            cargo.env("__CARGO_TESTS_ONLY_SRC_ROOT", folder);
        }
    }
}

fn choose(libraries: &Path, sources: &Path, given: Option<PathBuf>) -> Option<Library> {
    match given {
        _ if libraries.is_dir() => Some(Library::Installed),
        Some(folder) => Some(Library::Built(Some(folder))),
        None => sources.is_dir().then_some(Library::Built(None)),
    }
}

/// The folder that the compiler prints.
fn rustc(arguments: &[&str]) -> Result<PathBuf> {
    let output = Command::new("rustc").args(arguments).output();
    let output = output.context("cannot run `rustc`: install Rust 1.95 or newer")?;
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installed_library_is_preferred_to_sources() {
        let (here, nowhere) = (Path::new("/"), Path::new("/does/not/exist"));
        let given = || Some(PathBuf::from("/sources"));
        assert_eq!(choose(here, here, given()), Some(Library::Installed));
        assert_eq!(choose(nowhere, here, given()), Some(Library::Built(given())));
        assert_eq!(choose(nowhere, here, None), Some(Library::Built(None)));
        assert_eq!(choose(nowhere, nowhere, None), None);
    }
}
