//! Prints lines of 80 bytes to the console as fast as the host reads them, and loses none: each waits until the
//! console has room. A trace shows how many were written by when, and in the gaps what the printing waited for.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::format;
use glasshouse::trace::Counter;
use glasshouse::{Error, Platform};

/// Bytes of a line, its end included.
const LINE_BYTES: usize = 80;
const LINES_DEFAULT: u64 = 10_000;
/// A day's worth at the speed of a good console.
const LINES_MAX: u64 = 10_000_000_000;

static LINES_WRITTEN: Counter = Counter::new("lines written");

glasshouse::main!(serve);

async fn serve(platform: impl Platform) -> Result<(), Error> {
    let lines = match platform.args() {
        [] => LINES_DEFAULT,
        [option, number] if option == "--lines" => {
            let lines = number.parse().ok().filter(|lines| *lines <= LINES_MAX);
            lines.ok_or_else(|| format!("{number} is no number of lines up to {LINES_MAX}"))?
        }
        _ => return Err("the arguments are: [--lines NUMBER]".into()),
    };
    let start = platform.now();
    for number in 0..lines {
        platform.room(LINE_BYTES).await;
        // The end of the line is the 80th byte.
        platform.print(format_args!("{number:>width$}", width = LINE_BYTES - 1));
        LINES_WRITTEN.add(1);
    }
    let elapsed = platform.now() - start;
    let bytes = lines * LINE_BYTES as u64;
    platform.room(LINE_BYTES).await;
    platform.print(format_args!("{lines} lines, {bytes} bytes in {} us", elapsed.as_micros()));
    // The end of the VM does not wait for a reader that is slow.
    platform.room(usize::MAX).await;
    Ok(())
}
