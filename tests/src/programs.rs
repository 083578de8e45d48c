//! The built programs, and the capabilities of this machine.

use crate::limit::say;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The variable for the folder of the built programs; by default `release` beside our own profile's folder.
const FOLDER_VARIABLE: &str = "GLASS_PROGRAMS";
/// Set when a program that is not built is a failure, not a reason to skip.
const REQUIRED_VARIABLE: &str = "GLASS_TESTS_REQUIRED";
/// The same for AArch64 images, which take the sources of the standard library.
const AARCH64_REQUIRED_VARIABLE: &str = "GLASS_AARCH64_REQUIRED";
/// Set for full sizes and counts.
const LONG_VARIABLE: &str = "GLASS_TESTS_LONG";

/// What a Chromium of a test gets: no window, and nothing from the network by itself.
pub const CHROMIUM: [&str; 8] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// Folder of the built programs.
pub fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return folder.into();
    }
    // A test is in TARGET/PROFILE/deps, a program in TARGET/PROFILE.
    let own = std::env::current_exe().unwrap_or_default();
    let profile = own.ancestors().skip(1).find(|folder| folder.file_name().is_some_and(|name| name != "deps"));
    profile.and_then(Path::parent).unwrap_or(Path::new("target")).join("release")
}

/// The VM image of the service `name`, for the processor of [`on_aarch64`] there, or `None` after printing that the test is skipped.
///
/// # Panics
/// When it is not built although `cargo xtask test` has built it.
pub fn image(name: &str) -> Option<PathBuf> {
    let target = folder().parent().map(Path::to_owned).unwrap_or_default();
    match IS_AARCH64.get() {
        false => found(target.join("glass/x86_64-unknown-linux-gnu/image").join(name)),
        true => found_if(target.join("glass/aarch64-unknown-none/image").join(name), AARCH64_REQUIRED_VARIABLE),
    }
}

thread_local! {
    /// The VMs that this thread starts have an AArch64 processor.
    static IS_AARCH64: Cell<bool> = const { Cell::new(false) };
}

/// Runs `test`, for which [`image`] on this thread is an AArch64 image, and QEMU the one for it.
pub fn on_aarch64<T>(test: impl FnOnce() -> T) -> T {
    struct End(bool);
    impl Drop for End {
        fn drop(&mut self) {
            IS_AARCH64.set(self.0);
        }
    }
    let _end = End(IS_AARCH64.replace(true));
    test()
}

/// The built program `name`, or `None` after printing that the test is skipped.
///
/// # Panics
/// When it is not built although `cargo xtask test` has built it.
pub fn built(name: &str) -> Option<PathBuf> {
    found(folder().join(name))
}

/// The program `name` of the workspace, built with the tests themselves; `None` after printing that the test is skipped.
///
/// # Panics
/// When it is not built although `cargo xtask test` has built it.
pub fn beside(name: &str) -> Option<PathBuf> {
    // A test is in TARGET/PROFILE/deps, a program in TARGET/PROFILE.
    let own = std::env::current_exe().unwrap_or_default();
    let profile = own.ancestors().skip(1).find(|folder| folder.file_name().is_some_and(|name| name != "deps"));
    found(profile.unwrap_or(Path::new("")).join(name))
}

/// The program `name` without shared libraries, for machines that have none: `glass`, or an example of `glass-profiler-guests`. `None` after
/// the test was reported as skipped.
///
/// # Panics
/// When it is not built although `cargo xtask test` has built it.
pub fn built_static(name: &str, is_optimized: bool) -> Option<PathBuf> {
    let target = folder().parent().map(Path::to_owned).unwrap_or_default();
    let profile = if is_optimized { "release" } else { "debug" };
    found(target.join(format!("static/x86_64-unknown-linux-gnu/{profile}")).join(name))
}

/// How a service was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// As users build it.
    Usual,
    /// Without any trace event in its code, for comparison.
    WithoutTrace,
    /// For the tracing of functions.
    Functions,
}

/// The service `name` of a variant, as a process or as an image; `None` after printing that it is not built.
///
/// # Panics
/// When it is not built although `cargo xtask test` has built it.
pub fn variant(name: &str, variant: Variant, is_image: bool) -> Option<PathBuf> {
    let target = folder().parent().map(Path::to_owned).unwrap_or_default();
    let suffix = match variant {
        Variant::Usual if is_image => return image(name),
        Variant::Usual => return built(name),
        Variant::WithoutTrace => "-without-trace",
        Variant::Functions => "-functions",
    };
    let profile = if is_image { "image" } else { "release" };
    found(target.join(format!("glass{suffix}/x86_64-unknown-linux-gnu/{profile}")).join(name))
}

fn found(path: PathBuf) -> Option<PathBuf> {
    found_if(path, REQUIRED_VARIABLE)
}

/// The file at `path`; `None` after printing that the test is skipped.
///
/// # Panics
/// If it is not there and the variable `required` is set.
fn found_if(path: PathBuf, required: &str) -> Option<PathBuf> {
    if path.is_file() {
        return Some(path);
    }
    let message = format!("{} is not built: run `cargo xtask test`", path.display());
    assert!(std::env::var_os(required).is_none(), "{message}");
    skip(&message);
    None
}

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this crate is in a folder of the repository")
}

/// Go, where it is installed.
pub fn go() -> Option<&'static str> {
    ["go", "/usr/local/go/bin/go"].into_iter().find(|go| Command::new(go).arg("version").output().is_ok())
}

/// Prints that the current test is skipped, and why.
pub fn skip(reason: &str) {
    let current = std::thread::current();
    say(&format!("skipped {}: {reason}", current.name().unwrap_or("test")));
}

/// Whether full sizes and counts are requested.
pub fn is_long() -> bool {
    std::env::var_os(LONG_VARIABLE).is_some()
}

/// A number from the environment, for repeating a test more often or with another seed.
pub fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, which is not a number")),
        Err(_) => default,
    }
}

fn starts(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether QEMU is installed.
pub fn has_qemu() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    match IS_AARCH64.get() {
        false => *FOUND.get_or_init(|| starts("qemu-system-x86_64", &["--version"])),
        true => has_qemu_for_aarch64(),
    }
}

/// Whether VMs with an AArch64 processor can be emulated here.
pub fn has_qemu_for_aarch64() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| starts("qemu-system-aarch64", &["--version"]))
}

/// Whether this machine lets us use KVM.
pub fn has_kvm() -> bool {
    has_qemu() && std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

/// Whether curl is installed.
pub fn has_curl() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| starts("curl", &["--version"]))
}
