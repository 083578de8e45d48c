//! Rules for Rust files: the start of a file, its length, and the places of `unsafe`.

use super::{Violation, tree::Tree};

/// A file longer than this contains more than one idea.
const LINES_MAX: usize = 800;
/// Crates whose business is unsafe code: hardware, a guest's memory, a C interface, faults on purpose, and registers that are measured.
const UNSAFE_CRATES: [&str; 8] = [
    "drivers/device",
    "drivers/virtio",
    "drivers/xen",
    "platform/vm",
    "lib/mpi-abi",
    "devices",
    "apps/faults",
    "apps/bench-cores",
];
/// Parts whose crates may keep a `sys` module of unsafe code, the only one in the crate.
const SYS_PARTS: [&str; 12] = [
    "bench",
    "fuzz",
    "lib/trace",
    "lib/cores",
    "lib/lock",
    "lib/mpi",
    "platform/linux",
    "platform/mpi",
    "profiler/guests",
    "profiler/cli",
    "tests/vmm",
    "vmm",
];

/// The violations of one file.
pub fn check_file(path: &str, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    if !text.starts_with("//!") {
        violations.push(Violation::new(path, "does not start with a `//!` sentence that states its purpose"));
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        violations.push(Violation::new(path, format!("has {lines} lines, more than {LINES_MAX}: split it")));
    }
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let line = line.strip_prefix("pub ").unwrap_or(line);
        if line.starts_with("static mut ") {
            violations.push(Violation::new(path, format!("line {}: a `static` that is `mut`", number + 1)));
        }
    }
    violations
}

fn allows_unsafe(line: &str) -> bool {
    let is_attribute = line.starts_with("#[") || line.starts_with("#![");
    is_attribute && (line.contains("allow(unsafe_code") || line.contains("expect(unsafe_code"))
}

/// The violations in unsafe code of the crate in `folder`.
pub fn check_unsafe(folder: &str, tree: &Tree) -> Vec<Violation> {
    if UNSAFE_CRATES.contains(&folder) {
        return Vec::new();
    }
    let prefix = format!("{folder}/src/");
    let mut violations = Vec::new();
    for (path, text) in tree.texts("rs").filter(|(path, _)| path.starts_with(&prefix)) {
        let inside = &path[prefix.len()..];
        let is_root = inside == "lib.rs" || inside == "main.rs" || inside.starts_with("bin/");
        let may_have_sys = SYS_PARTS.contains(&folder);
        if is_root && !text.contains("#![forbid(unsafe_code)]") {
            let has_deny = text.contains("#![deny(unsafe_code)]");
            if !has_deny || !may_have_sys {
                violations.push(Violation::new(path, "lacks `#![forbid(unsafe_code)]`"));
            }
        }
        // Unsafe code is in one module: the attribute may be at its declaration or at its top.
        let in_sys = inside == "sys.rs" || inside.starts_with("sys/");
        if in_sys && may_have_sys {
            continue;
        }
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for (index, _) in lines.iter().enumerate().filter(|(_, line)| allows_unsafe(line)) {
            let declares_sys = lines[index..].iter().take(4).any(|line| line.contains("mod sys;"));
            if !declares_sys || !may_have_sys {
                violations.push(Violation::new(path, "allows unsafe code outside a `sys` module"));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_opens_with_its_purpose() {
        assert_eq!(check_file("a.rs", "//! Says why.\n"), []);
        assert_eq!(check_file("a.rs", "use std::fmt;\n").len(), 1);
        assert_eq!(check_file("a.rs", "").len(), 1);
    }

    #[test]
    fn a_long_file_is_split() {
        let text = format!("//! Long.\n{}", "//\n".repeat(LINES_MAX));
        assert_eq!(check_file("a.rs", &text[..text.len() - 3]), []);
        assert_eq!(check_file("a.rs", &text).len(), 1);
    }

    #[test]
    fn no_static_is_mutable() {
        assert_eq!(check_file("a.rs", "//! A.\nstatic X: u8 = 0; // no static mut here\n"), []);
        assert_eq!(check_file("a.rs", "//! A.\n    pub static mut X: u8 = 0;\n").len(), 1);
    }

    fn unsafe_violations(folder: &str, files: &[(&str, &str)]) -> usize {
        check_unsafe(folder, &Tree::of(files)).len()
    }

    #[test]
    fn every_root_forbids_unsafe_code() {
        assert_eq!(unsafe_violations("lib/net", &[("lib/net/src/lib.rs", "#![forbid(unsafe_code)]")]), 0);
        assert_eq!(unsafe_violations("lib/net", &[("lib/net/src/lib.rs", "#![no_std]")]), 1);
        assert_eq!(unsafe_violations("lib/net", &[("lib/net/src/lib.rs", "#![deny(unsafe_code)]")]), 1);
        assert_eq!(unsafe_violations("xtask", &[("xtask/src/main.rs", "fn main() {}")]), 1);
        assert_eq!(unsafe_violations("platform/vm", &[("platform/vm/src/lib.rs", "")]), 0);
    }

    #[test]
    fn unsafe_code_has_one_address_in_a_host_crate() {
        let root = "#![deny(unsafe_code)]\n#[allow(unsafe_code)] // system calls\nmod sys;\n";
        assert_eq!(unsafe_violations("platform/linux", &[("platform/linux/src/lib.rs", root)]), 0);
        let elsewhere = "#![deny(unsafe_code)]\n#[allow(unsafe_code)]\nmod other;\n";
        assert_eq!(unsafe_violations("platform/linux", &[("platform/linux/src/lib.rs", elsewhere)]), 1);
        let leaf = [("platform/linux/src/lib.rs", root), ("platform/linux/src/net.rs", "#![allow(unsafe_code)]")];
        assert_eq!(unsafe_violations("platform/linux", &leaf), 1);
        assert_eq!(unsafe_violations("lib/net", &[("lib/net/src/lib.rs", root)]), 2);
    }
}
