//! The symbols by which what a guest runs is known, and those of which the addresses are needed.

use glass_formats as formats;

/// The text that names the version of a Linux.
pub(super) const BANNER: &str = "linux_banner";
/// The first and last addresses of the two arrays of the unwind tables.
pub(super) const ORC: [&str; 4] =
    ["__start_orc_unwind_ip", "__stop_orc_unwind_ip", "__start_orc_unwind", "__stop_orc_unwind"];
/// What handles the exception of number 0, by its names from Linux 5.8 on and before.
pub(super) const DIVIDE: [&str; 2] = ["asm_exc_divide_error", "divide_error"];
/// Two functions that every Linux of x86-64 has; other kernels may have one of them.
const FUNCTIONS: [&str; 2] = ["start_kernel", "entry_SYSCALL_64"];
/// Two more that every Linux of AArch64 has.
const OF_AARCH64: [&str; 2] = ["cpu_switch_to", "__arm64_sys_getpid"];
/// Symbols by which a Linux kernel is known, and those that are needed here.
const OF_LINUX: [&str; 11] = [
    BANNER,
    ORC[0],
    ORC[1],
    ORC[2],
    ORC[3],
    DIVIDE[0],
    DIVIDE[1],
    FUNCTIONS[0],
    FUNCTIONS[1],
    OF_AARCH64[0],
    OF_AARCH64[1],
];

/// Whether symbols are those of a Linux. One name is not enough: Xen has a `divide_error` too, and other kernels may have one.
/// `/proc/kallsyms` may list functions alone, and a map may be cut down to what is needed here.
pub(crate) fn is_linux(has: impl Fn(&str) -> bool) -> bool {
    const ENOUGH: u32 = 3;
    let any = |names: &[&str]| u32::from(names.iter().any(|name| has(name)));
    let of_aarch64 = any(&OF_AARCH64[..1]) + any(&OF_AARCH64[1..]);
    2 * (any(&[BANNER]) + any(&ORC)) + any(&DIVIDE) + any(&FUNCTIONS[..1]) + any(&FUNCTIONS[1..]) + of_aarch64 >= ENOUGH
}

/// All of them, code or data.
pub(super) fn all() -> Vec<&'static str> {
    OF_LINUX.iter().copied().chain([formats::CORES_SYMBOL]).collect()
}
