//! How long a VM stands still for a sample, one line for each: `pauses kvm|gdbstub PID SAMPLES RATE`.
//!
//! Prints `sample MICROSECONDS`, and for kvm in turn with it `floor MICROSECONDS`: a stop in which
//! nothing is read. The last line, `cpu MICROSECONDS`, is our own CPU time for one of them.
#![forbid(unsafe_code)]

use std::io::{BufWriter, Write, stdout};
use std::time::Duration;

use glass_guests::find::{self, Found};
use glass_guests::gdbstub::QemuVm;
use glass_guests::kvm::KvmVm;
use glass_guests::{Guest, VmSettings, cpu_time_ns, read_clocks};
use glass_profile::event::Event;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Stacks of this size are copied, as `glass record` does.
const STACK_BYTES: u32 = 16 << 10;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [backend, pid, samples, rate] = &arguments[..] else {
        return Err("the arguments are: kvm|gdbstub PID SAMPLES RATE".into());
    };
    let period = Duration::from_secs(1) / rate.parse::<u32>()?.max(1);
    let samples = samples.parse()?;
    let Found::Vm(vm) = find::by_pid(pid.parse()?)? else { return Err("that process is no VM".into()) };
    let symbols = vm.elf.clone().ok_or("the VM's image is unknown")?;
    let settings = VmSettings::new(STACK_BYTES, symbols);
    match backend.as_str() {
        "kvm" => {
            let floor = |guest: &mut KvmVm| Ok(guest.hold_and_release()?.map(|(_, whole)| whole));
            measure(KvmVm::attach(&vm, settings)?, period, samples, Some(&floor))
        }
        "gdbstub" => measure(QemuVm::attach(&vm, settings)?, period, samples, None),
        other => Err(format!("there is no backend {other}").into()),
    }
}

/// Time that a guest stood still for a stop without reading; `None` if it has ended.
type Floor<'a, G> = &'a dyn Fn(&mut G) -> Result<Option<Duration>>;

fn measure<G: Guest>(mut guest: G, period: Duration, samples: u64, floor: Option<Floor<G>>) -> Result<()> {
    let mut output = BufWriter::new(stdout().lock());
    let (mut stops, cpu_start_ns) = (0, cpu_time_ns());
    for _ in 0..samples {
        // From now on, not from the start: a guest that was held for long gets its time to run.
        if let Some(floor) = floor {
            guest.rest(read_clocks().monotonic_ns + period.as_nanos() as u64)?;
            let Some(pause) = floor(&mut guest)? else { break };
            writeln!(output, "floor {:.3}", pause.as_secs_f64() * 1e6)?;
            stops += 1;
        }
        guest.rest(read_clocks().monotonic_ns + period.as_nanos() as u64)?;
        let Some(events) = guest.sample()? else { break };
        stops += 1;
        for event in &events {
            if let Event::Sample(sample) = event {
                writeln!(output, "sample {:.3}", sample.pause_ns as f64 / 1e3)?;
            }
        }
    }
    let cpu_ns = cpu_time_ns() - cpu_start_ns;
    guest.detach()?;
    writeln!(output, "cpu {:.3}", cpu_ns as f64 / 1e3 / f64::from(stops.max(1)))?;
    Ok(output.flush()?)
}
