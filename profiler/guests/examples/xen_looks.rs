//! The pause of a domain of Xen for a sample, one line for each: `xen_looks DOMAIN IMAGE SAMPLES RATE`, in dom0.
//!
//! Prints in turn `sample MICROSECONDS`, `uniprof MICROSECONDS` (a pause, the registers and the end of the pause as three hypercalls,
//! which read nothing of the stack) and `null MICROSECONDS` (a hypercall that does nothing). The last line, `cpu MICROSECONDS`, is our own
//! CPU time for one sample. `xen_looks DOMAIN IMAGE die` is killed while it holds the domain.
#![forbid(unsafe_code)]

use std::io::{BufWriter, Write, stdout};
use std::process::Command;
use std::time::Duration;

use glass_guests::xen::{self, XenDomain};
use glass_guests::{Guest, VmSettings, cpu_time_ns, read_clocks};
use glass_profile::event::Event;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Stacks of this size are copied, as `glass record` does.
const STACK_BYTES: u32 = 16 << 10;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let attach = |name: &str, image: &str| {
        XenDomain::attach(&xen::find(name, false)?, VmSettings::new(STACK_BYTES, image.into()), false)
    };
    match arguments[..] {
        [name, image, "die"] => {
            attach(name, image)?.hold()?;
            Command::new("kill").args(["-9", &std::process::id().to_string()]).status()?;
            Err("still alive".into())
        }
        [name, image, samples, rate] => measure(attach(name, image)?, samples.parse()?, rate.parse()?),
        _ => Err("the arguments are: DOMAIN IMAGE SAMPLES RATE, or DOMAIN IMAGE die".into()),
    }
}

fn measure(mut domain: XenDomain, rounds: u64, rate_hz: u32) -> Result<()> {
    let period = Duration::from_secs(1) / rate_hz.max(1);
    let mut output = BufWriter::new(stdout().lock());
    let mut cpu_ns = 0;
    for _ in 0..rounds {
        let rest = |domain: &mut XenDomain| domain.rest(read_clocks().monotonic_ns + period.as_nanos() as u64);
        rest(&mut domain)?;
        let cpu_start_ns = cpu_time_ns();
        let Some(events) = domain.sample()? else { break };
        cpu_ns += cpu_time_ns() - cpu_start_ns;
        for event in &events {
            if let Event::Sample(sample) = event {
                writeln!(output, "sample {:.3}", sample.frozen_ns as f64 / 1e3)?;
            }
        }
        rest(&mut domain)?;
        writeln!(output, "uniprof {:.3}", domain.uniprof_sequence()?.as_secs_f64() * 1e6)?;
        rest(&mut domain)?;
        writeln!(output, "null {:.3}", domain.null_hypercall()?.as_secs_f64() * 1e6)?;
    }
    domain.detach()?;
    writeln!(output, "cpu {:.3}", cpu_ns as f64 / 1e3 / rounds.max(1) as f64)?;
    Ok(output.flush()?)
}
