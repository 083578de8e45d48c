//! The only crate that a service depends on. It selects the platform.
//!
//! ```no_run
//! #![cfg_attr(glass_vm, no_std, no_main)]
//! use glasshouse::{Error, Platform};
//!
//! glasshouse::main!(serve);
//!
//! async fn serve(platform: impl Platform) -> Result<(), Error> {
//!     platform.print(format_args!("the arguments are {:?}", platform.args()));
//!     Ok(())
//! }
//! ```
//! `cargo build` makes a Linux process: `NAME [PLATFORM OPTIONS] [-- SERVICE ARGUMENTS]`. Built with `--cfg glass_vm`, as
//! `glass build` does, it is the image of a virtual machine. The service itself needs no `cfg` beyond the first line.
//!
//! In examples of re-exported items, `glass_api` is `glasshouse`, `glass_lib_executor::sync` is `glasshouse::sync` and `glass_lib_trace`
//! is `glasshouse::trace`.
#![cfg_attr(glass_vm, no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub use glass_api::*;
pub use glass_lib_executor::sync;
/// Files of a FAT file system on a disk. Needs the feature `fat`.
///
/// ```
/// use glasshouse::fat::Fat;
/// use glasshouse::{Error, Files, Platform};
///
/// /// Prints the names of the files on the first disk.
/// async fn list(platform: impl Platform) -> Result<(), Error> {
///     let disk = platform.block(0).ok_or("there is no disk")?;
///     let files = Fat::mount(disk, platform.clone()).await?;
///     for entry in files.read_dir("").await? {
///         platform.print(format_args!("{}", entry.name));
///     }
///     Ok(())
/// }
/// ```
#[cfg(feature = "fat")]
pub use glass_lib_fat as fat;
pub use glass_lib_http as http;
/// TLS 1.3. Needs the feature `tls`; `Roots::built_in` needs `tls-roots`.
///
/// ```
/// use glasshouse::tls::{Identity, Server, ServerOptions};
/// use glasshouse::{Error, Listener, Net, Platform};
///
/// /// HTTPS: what accepts from this listener is given to `http::Connection` as any other stream.
/// async fn listen<P: Platform>(platform: P) -> Result<impl Listener, Error> {
///     let files = platform.files().ok_or("there is no directory")?;
///     let identity = Identity::from_files(&files, "chain.pem", "key.pem").await?;
///     let server = Server::new(&platform, identity, ServerOptions::default())?;
///     Ok(server.listen(platform.net().listen(443).await?))
/// }
/// ```
#[cfg(feature = "tls")]
pub use glass_lib_tls as tls;

/// Durable ordered maps and logs on a disk: what was answered survives a power cut.
///
/// ```
/// use glasshouse::store::{Options, Store};
/// use glasshouse::{Error, Platform};
///
/// /// Counts how often the service was started on this disk.
/// async fn count_starts(platform: impl Platform) -> Result<(), Error> {
///     let disk = platform.block(0).ok_or("there is no disk")?;
///     let (store, recovery) = Store::open(disk, &platform, Options::default()).await?;
///     platform.print(format_args!("{recovery}"));
///     let starts = store.log("starts")?;
///     let number = starts.append("a start").await?;
///     platform.print(format_args!("start number {number}"));
///     Ok(())
/// }
/// ```
pub use glass_lib_store as store;
#[cfg(not(glass_vm))]
pub use glass_platform_linux as platform_linux;
#[cfg(glass_vm)]
pub use glass_platform_vm as platform_vm;
/// Values from one core to another, for tasks that [`Cores::spawn_on`] has started there.
///
/// ```
/// use glasshouse::cores::channel;
/// use glasshouse::{Cores, SpawnOnError};
///
/// /// Adds numbers up on the last core, while this one continues.
/// async fn sum(platform: impl Cores, numbers: Vec<u64>) -> Result<u64, SpawnOnError> {
///     let (mut sender, mut receiver) = channel(16);
///     let sum = platform.spawn_on(platform.cores() - 1, "sum", move |_core| async move {
///         let mut sum = 0;
///         while let Some(number) = receiver.recv().await {
///             sum += number;
///         }
///         sum
///     })?;
///     for number in numbers {
///         let _ = sender.send(number).await;
///     }
///     drop(sender);
///     Ok(sum.await.unwrap_or(0))
/// }
/// ```
pub mod cores {
    pub use glass_lib_cores::{Receiver, Sender, channel, channel_named};
}

/// Several futures at once, in one task: `select` completes with the first and drops the others, `join` with all of them.
/// A time limit is [`Clock::timeout`].
///
/// ```
/// use core::time::Duration;
/// use glasshouse::future::{Either, join, select};
/// use glasshouse::{Buf, Block, BlockError, Clock, Platform};
///
/// /// Writes the same to two disks at once.
/// async fn write_both(disks: [impl Block; 2], data: Buf) -> Result<(), BlockError> {
///     let (first, second) = join(disks[0].write(0, data.clone()), disks[1].write(0, data)).await;
///     first.0.and(second.0)
/// }
///
/// async fn work_until_the_end(platform: impl Platform, work: impl Future<Output = u64>) -> Option<u64> {
///     match select(work, platform.shutdown()).await {
///         Either::First(result) => Some(result),
///         Either::Second(()) => None,
///     }
/// }
/// ```
pub mod future {
    pub use embassy_futures::join::{join, join_array, join3, join4};
    pub use embassy_futures::select::{Either, Either3, Either4, select, select_array, select_slice, select3, select4};
}

/// Spans and messages of these macros are recorded in the service's trace, next to the platform's events. A macro costs a load
/// and a branch while the group `spans` is off and the console does not print its level. Texts are cut at 200 bytes.
/// `Span::current` is always disabled: pass a span as a value.
///
/// ```
/// use glasshouse::tracing::{Instrument, info, info_span};
///
/// async fn answer(bytes: u64) {
///     info!(bytes, "a request came");
/// }
///
/// async fn serve() {
///     // The span covers the whole request, across its waits.
///     answer(5).instrument(info_span!("request", bytes = 5)).await;
/// }
/// # let _ = serve();
/// ```
pub use tracing;

/// Counters, gauges and names of waits for the trace; counters and gauges also for Prometheus. `switch(Group::Tasks as u32 | Group::Spans as u32)` replaces the set of active
/// groups.
pub mod trace {
    pub use glass_lib_trace::{
        Change, Counter, Gauge, Group, Metric, Metrics, Name, counter, gauge, is_on, switch, ticks,
    };
}

/// The error that `serve` returns. It is printed with `Display`.
pub type Error = alloc::boxed::Box<dyn core::error::Error>;

/// Makes an async function of an `impl Platform` that returns `Result<(), Error>` the program:
/// `glasshouse::main!(serve);` in the root of a binary crate.
#[cfg(not(glass_vm))]
#[macro_export]
macro_rules! main {
    ($serve:path) => {
        fn main() -> ::std::process::ExitCode {
            $crate::platform_linux::main(::core::env!("CARGO_PKG_NAME"), $serve)
        }
    };
}

/// Makes an async function of an `impl Platform` that returns `Result<(), Error>` the program:
/// `glasshouse::main!(serve);` in the root of a binary crate.
#[cfg(glass_vm)]
#[macro_export]
macro_rules! main {
    ($serve:path) => {
        $crate::platform_vm::entry!($serve);
    };
}
