//! The pause of a domain of Xen for a sample, one line for each: `xen_looks DOMAIN IMAGE SAMPLES RATE ROW`, in dom0.
//!
//! Prints in turn `sample MICROSECONDS`, `uniprof MICROSECONDS` (a pause, the registers and the end of the pause as three hypercalls,
//! which read nothing of the stack) and `null MICROSECONDS` (a hypercall that does nothing). Each comes after a rest, at RATE a second,
//! and is repeated without a rest ROW times, which are printed; with a ROW of 0 the one after the rest is. The last line,
//! `cpu MICROSECONDS`, is our own CPU time for one sample. `xen_looks DOMAIN IMAGE die` is killed while it holds the domain.
#![forbid(unsafe_code)]

use std::io::{BufWriter, Write, stdout};
use std::process::Command;
use std::time::Duration;

use glass_profiler_guests::backends::xen::XenDomain;
use glass_profiler_guests::find::domains;
use glass_profiler_guests::{Guest, KnownVm, VmSettings, cpu_time_ns, read_clocks};

/// One trace: what it took for each vCPU, in microseconds.
type Look = fn(&mut KnownVm<XenDomain>) -> Result<Vec<f64>>;
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Stacks of this size are copied, as `glass record` does.
const STACK_BYTES: u32 = 24 << 10;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let attach = |name: &str, image: &str| {
        XenDomain::attach(&domains::find(name, false)?, VmSettings::new(STACK_BYTES, image.into()), false)
    };
    match arguments[..] {
        [name, image, "die"] => {
            attach(name, image)?.hold()?;
            Command::new("kill").args(["-9", &std::process::id().to_string()]).status()?;
            Err("still alive".into())
        }
        [name, image, samples, rate, row] => {
            measure(attach(name, image)?, samples.parse()?, rate.parse()?, row.parse()?)
        }
        _ => Err("the arguments are: DOMAIN IMAGE SAMPLES RATE ROW, or DOMAIN IMAGE die".into()),
    }
}

fn measure(mut domain: KnownVm<XenDomain>, samples: usize, rate_hz: u32, row: usize) -> Result<()> {
    let period = Duration::from_secs(1) / rate_hz.max(1);
    let mut output = BufWriter::new(stdout().lock());
    let (mut cpu_ns, mut taken) = (0, 0);
    for _ in 0..samples / row.max(1) {
        let ways: [(&str, Look); 3] = [("sample", pauses), ("uniprof", uniprof_sequence), ("null", null_hypercall)];
        for (name, look) in ways {
            domain.rest(read_clocks().monotonic_ns + period.as_nanos() as u64)?;
            let cpu_start_ns = cpu_time_ns();
            // Printed after the row: writing is no part of it.
            let mut times = vec![look(&mut domain)?];
            for _ in 0..row {
                times.push(look(&mut domain)?);
            }
            if name == "sample" {
                cpu_ns += cpu_time_ns() - cpu_start_ns;
                taken += times.len();
            }
            for time_us in times[usize::from(row > 0)..].iter().flatten() {
                writeln!(output, "{name} {time_us:.3}")?;
            }
        }
    }
    domain.detach()?;
    writeln!(output, "cpu {:.3}", cpu_ns as f64 / 1e3 / taken.max(1) as f64)?;
    Ok(output.flush()?)
}

/// The pause of a sample, for each vCPU, in microseconds.
fn pauses(domain: &mut KnownVm<XenDomain>) -> Result<Vec<f64>> {
    let samples = domain.sample_all()?.ok_or("the domain has ended")?;
    Ok(samples.iter().map(|sample| sample.frozen_ns as f64 / 1e3).collect())
}

fn uniprof_sequence(domain: &mut KnownVm<XenDomain>) -> Result<Vec<f64>> {
    Ok(vec![domain.uniprof_sequence()?.as_secs_f64() * 1e6])
}

fn null_hypercall(domain: &mut KnownVm<XenDomain>) -> Result<Vec<f64>> {
    Ok(vec![domain.null_hypercall()?.as_secs_f64() * 1e6])
}
