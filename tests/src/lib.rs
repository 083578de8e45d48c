//! Helpers of the end-to-end tests and the benchmarks: an HTTP client, child processes that never
//! outlive their owner, and a running upload queue on any platform.
//!
//! Nothing here links a product: `cargo xtask test` builds the products and sets their folder.
#![forbid(unsafe_code)]

mod accounts;
pub mod archive;
pub mod btf;
pub mod cache;
pub mod content;
pub mod crates;
pub mod elf_bomb;
pub mod emulated;
pub mod fat;
pub mod folder;
pub mod go;
pub mod guide;
pub mod http;
pub mod limit;
pub mod linux;
pub mod linux_guest;
pub mod nats;
pub mod netns;
pub mod npm;
pub mod oha;
pub mod oracle;
pub mod port;
pub mod process;
pub mod programs;
pub mod python;
pub mod qemu;
pub mod qmp;
pub mod queue;
pub mod router;
pub mod stacks;
pub mod svm;
pub mod terminal;
pub mod vmm;
pub mod vsock;
pub mod xen;

/// Defines a module for each platform with a test for each of the functions, which take a
/// [`World`](queue::World); a test that takes longer than its limit in seconds fails.
#[macro_export]
macro_rules! in_every_world {
    ($($test:ident within $seconds:literal;)*) => {
        $crate::in_worlds!(process Process: $($test within $seconds;)*);
        $crate::in_worlds!(kvm Kvm: $($test within $seconds;)*);
        $crate::in_worlds!(tcg Tcg: $($test within $seconds;)*);
    };
}

/// The tests of [`in_every_world`] for one platform.
#[macro_export]
macro_rules! in_worlds {
    ($module:ident $world:ident: $($test:ident within $seconds:literal;)*) => {
        mod $module {
            $(
                #[test]
                fn $test() {
                    let limit = std::time::Duration::from_secs($seconds);
                    $crate::limit::within(limit, || super::$test($crate::queue::World::$world));
                }
            )*
        }
    };
}
