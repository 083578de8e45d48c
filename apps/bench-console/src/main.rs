//! Prints lines to the console as fast as the host reads them, and loses none: each waits until the console has room. A
//! trace shows how many were written over time, and what the printing waited for in the gaps.
//!
//! Without options it repeats the measurement of the article on MirageOS's console: 1,000 lines to warm up, then 10,000 of 6 bytes, including the
//! line end, which are measured. The last line is the result as JSON.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use glasshouse::trace::Counter;
use glasshouse::{Error, Platform};

const USAGE: &str = "the arguments are: [--lines NUMBER] [--line-bytes NUMBER]";
const LINES_DEFAULT: u64 = 10_000;
/// A day's worth at the speed of a good console.
const LINES_MAX: u64 = 10_000_000_000;
/// Bytes of a line, including its end.
const LINE_BYTES_DEFAULT: u64 = 6;
const LINE_BYTES_MAX: u64 = 512;
const WARM_UP_LINES: u64 = 1_000;

static LINES_WRITTEN: Counter = Counter::new("lines written");

glasshouse::main!(serve);

async fn serve(platform: impl Platform) -> Result<(), Error> {
    let (mut lines, mut line_bytes) = (LINES_DEFAULT, LINE_BYTES_DEFAULT);
    let mut arguments = platform.args().iter();
    while let Some(option) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match option.as_str() {
            "--lines" => lines = number(value, LINES_MAX)?,
            "--line-bytes" => line_bytes = number(value, LINE_BYTES_MAX)?,
            _ => return Err(USAGE.into()),
        }
    }
    let line_bytes = line_bytes as usize;
    print(&platform, WARM_UP_LINES, line_bytes).await;
    let start = platform.now();
    print(&platform, lines, line_bytes).await;
    let us = (platform.now() - start).as_micros().max(1);
    let bytes = lines * line_bytes as u64;
    platform.writable(LINE_BYTES_MAX as usize).await;
    platform.print(format_args!(
        "{{\"lines\": {lines}, \"line_bytes\": {line_bytes}, \"us\": {us}, \"kb_s\": {:.1}}}",
        bytes as f64 * 1e3 / us as f64
    ));
    // The end of the VM does not wait for a slow reader.
    platform.writable(usize::MAX).await;
    Ok(())
}

fn number(text: &str, max: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| format!("{text} is not a number from 1 to {max}"))
}

/// Prints so many lines, of the last digits of their numbers.
async fn print(platform: &impl Platform, lines: u64, line_bytes: usize) {
    let digits = line_bytes - 1;
    let modulus = 10u64.checked_pow(digits as u32).unwrap_or(u64::MAX);
    for number in 0..lines {
        platform.writable(line_bytes).await;
        match digits {
            0 => platform.print(format_args!("")),
            _ => platform.print(format_args!("{:>digits$}", number % modulus)),
        }
        LINES_WRITTEN.add(1);
    }
}
