//! Measures the pause of a VM for a sample, one line for each: `pauses kvm|tasks|gdbstub|stops PID SAMPLES RATE`.
//!
//! Prints `sample MICROSECONDS`, and for kvm in turn with it `floor MICROSECONDS`: a stop in which
//! nothing is read. `tasks` is the same of a Linux under KVM with its tasks, and in turn with that `without MICROSECONDS`: samples without
//! them. With KVM `attach_stops COUNT` precedes them: how often a vCPU was stopped until then. `stops` makes only these, under KVM and at the moments at which `glass record` takes its samples. The last
//! line, `cpu MICROSECONDS`, is our own CPU time for one of them.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::io::{BufWriter, Write, stdout};
use std::path::PathBuf;
use std::time::Duration;

use glass_profiler_core::event::{Event, RawSample};
use glass_profiler_guests::backends::gdbstub::QemuVm;
use glass_profiler_guests::backends::kvm::KvmVm;
use glass_profiler_guests::backends::paced::Paced;
use glass_profiler_guests::find::{self, Found};
use glass_profiler_guests::{
    Attempt, Flow, Guest, GuestError, KnownVm, Source, Taken, VmSettings, cpu_time_ns, read_clocks,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Stacks of this size are copied, as `glass record` does.
const STACK_BYTES: u32 = 16 << 10;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [backend, pid, samples, rate] = &arguments[..] else {
        return Err("the arguments are: kvm|tasks|gdbstub|stops PID SAMPLES RATE".into());
    };
    let period = Duration::from_secs(1) / rate.parse::<u32>()?.max(1);
    let samples = samples.parse()?;
    let Found::Vm(vm) = find::by_pid(pid.parse()?)? else { return Err("that process is not a VM".into()) };
    // Without an image it is a Linux, which has its symbols in its RAM.
    let symbols = vm.elf.iter().map(|elf| elf.clone().into()).collect();
    let settings = VmSettings { symbols, ..VmSettings::new(STACK_BYTES, PathBuf::new()) };
    let floor = |guest: &mut KnownVm<KvmVm>| Ok(guest.hold_and_release()?.map(|(_, whole)| whole));
    let tasks = RefCell::new(None);
    let swap = |guest: &mut KnownVm<KvmVm>| guest.swap_tasks(&mut tasks.borrow_mut());
    let attach = || KvmVm::attach(&vm, settings.clone()).inspect(|guest| println!("attach_stops {}", guest.stops()));
    match backend.as_str() {
        "kvm" => measure(attach()?, period, samples, &[Look::Bare(&floor), Look::Sample]),
        "tasks" => measure(attach()?, period, samples, &[Look::Bare(&floor), Look::Sample, Look::WithoutTask(&swap)]),
        "stops" => stop_paced(Stopped(attach()?), rate.parse()?, samples),
        "gdbstub" => measure(QemuVm::attach(&vm, settings)?, period, samples, &[Look::Sample]),
        other => Err(format!("there is no backend {other}").into()),
    }
}

/// A VM that is stopped where others are sampled.
struct Stopped(KnownVm<KvmVm>);

impl Guest for Stopped {
    fn announce(&mut self, sink: &mut dyn FnMut(Event)) -> std::result::Result<(), GuestError> {
        self.0.announce(sink)
    }

    fn sample(&mut self, _all: usize) -> std::result::Result<Attempt, GuestError> {
        let sample = |pause: Duration| RawSample { frozen_ns: pause.as_nanos() as u64, ..Default::default() };
        let taken = |(_, pause)| Attempt::of(vec![sample(pause)]);
        Ok(self.0.hold_and_release()?.map_or(Attempt::Ended, taken))
    }

    fn rest(&mut self, until_ns: u64) -> std::result::Result<Option<(usize, Taken)>, GuestError> {
        self.0.rest(until_ns)
    }

    fn tracks(&self) -> u64 {
        self.0.tracks()
    }

    fn detach(&mut self) -> std::result::Result<(), GuestError> {
        self.0.detach()
    }
}

/// Stops the guest so many times, at the moments of a recording.
fn stop_paced(guest: Stopped, rate_hz: u32, stops: u64) -> Result<()> {
    let mut output = BufWriter::new(stdout().lock());
    let mut source = Paced::new(guest, rate_hz);
    source.announce(&mut drop)?;
    let (mut pauses, mut flow, cpu_start_ns) = (Vec::new(), Flow::More, cpu_time_ns());
    while flow != Flow::Ended && (pauses.len() as u64) < stops {
        flow = source.collect(Duration::from_millis(100), &mut |event| {
            if let Event::Sample(sample) = event {
                pauses.push(sample.frozen_ns);
            }
        })?;
    }
    let cpu_ns = cpu_time_ns() - cpu_start_ns;
    source.detach(&mut drop)?;
    for pause_ns in &pauses {
        writeln!(output, "floor {:.3}", *pause_ns as f64 / 1e3)?;
    }
    writeln!(output, "cpu {:.3}", cpu_ns as f64 / 1e3 / (pauses.len().max(1)) as f64)?;
    Ok(output.flush()?)
}

/// One way to disturb a guest.
enum Look<'a, G> {
    /// A stop without reading: its time, `None` if the guest has ended.
    Bare(&'a dyn Fn(&mut G) -> Result<Option<Duration>>),
    /// A sample.
    Sample,
    /// A sample without the task of a Linux: what it calls before, and again afterwards.
    WithoutTask(&'a dyn Fn(&mut G)),
}

fn measure<G: Guest>(mut guest: G, period: Duration, rounds: u64, looks: &[Look<G>]) -> Result<()> {
    let mut output = BufWriter::new(stdout().lock());
    let (mut count, cpu_start_ns) = (0, cpu_time_ns());
    'rounds: for _ in 0..rounds {
        for look in looks {
            // From now on, not from the start: a guest that was stopped for long gets its time to run.
            guest.rest(read_clocks().monotonic_ns + period.as_nanos() as u64)?;
            count += 1;
            match look {
                Look::Bare(stop) => {
                    let Some(pause) = stop(&mut guest)? else { break 'rounds };
                    writeln!(output, "floor {:.3}", pause.as_secs_f64() * 1e6)?;
                }
                Look::Sample => {
                    let Some(samples) = guest.sample_all()? else { break 'rounds };
                    let needs_task = looks.iter().any(|look| matches!(look, Look::WithoutTask(_)));
                    write_samples(&mut output, "sample", &samples, needs_task.then_some(true))?;
                }
                Look::WithoutTask(swap) => {
                    swap(&mut guest);
                    let samples = guest.sample_all();
                    swap(&mut guest);
                    let Some(samples) = samples? else { break 'rounds };
                    write_samples(&mut output, "without", &samples, Some(false))?;
                }
            }
        }
    }
    let cpu_ns = cpu_time_ns() - cpu_start_ns;
    guest.detach()?;
    writeln!(output, "cpu {:.3}", cpu_ns as f64 / 1e3 / f64::from(count.max(1)))?;
    Ok(output.flush()?)
}

/// `has_task`: whether each of them has the task of a Linux, if that matters.
fn write_samples(output: &mut impl Write, name: &str, samples: &[RawSample], has_task: Option<bool>) -> Result<()> {
    for sample in samples {
        if has_task.is_some_and(|has_task| has_task != sample.task.is_some()) {
            return Err("the guest is no Linux whose tasks can be read".into());
        }
        writeln!(output, "{name} {:.3}", sample.frozen_ns as f64 / 1e3)?;
    }
    Ok(())
}
