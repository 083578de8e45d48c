//! Measures what a sample of a VM under KVM costs, beside a stop that reads nothing, in turn:
//! `kvm_pause PID SECONDS [RATE]`.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use glass_guests::find::{self, Found};
use glass_guests::kvm::KvmVm;
use glass_guests::{Guest, VmSettings};
use glass_profile::event::Event;

fn show(what: &str, mut values: Vec<f64>) {
    values.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| values.get(((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1)));
    let [p10, median, p90, p99, most] = [0.1, 0.5, 0.9, 0.99, 1.0].map(|share| at(share).copied().unwrap_or(0.0));
    let n = values.len();
    println!("{what:<28} n {n:6}  p10 {p10:7.1}  median {median:7.1}  p90 {p90:7.1}  p99 {p99:8.1}  max {most:8.1} us");
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers: Vec<u32> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let [pid, seconds, rest @ ..] = &numbers[..] else { return Err("usage: kvm_pause PID SECONDS [RATE]".into()) };
    let period = Duration::from_secs(1) / rest.first().copied().unwrap_or(997).max(1);
    let Found::Vm(vm) = find::by_pid(*pid)? else { return Err("no VM".into()) };
    let symbols = vm.elf.clone().ok_or("no image known")?;
    let mut guest = KvmVm::attach(&vm, VmSettings::new(16 << 10, symbols))?;
    let mut columns: [Vec<f64>; 4] = Default::default();
    let start = Instant::now();
    let microseconds = |duration: Duration| duration.as_secs_f64() * 1e6;
    for index in 0u32.. {
        if start.elapsed() > Duration::from_secs(u64::from(*seconds)) {
            break;
        }
        let due = period * index;
        guest.rest(glass_guests::read_clocks().monotonic_ns + due.saturating_sub(start.elapsed()).as_nanos() as u64)?;
        if index.is_multiple_of(2) {
            let Some((stop, whole)) = guest.hold_and_release()? else { break };
            columns[0].push(microseconds(stop));
            columns[1].push(microseconds(whole));
        } else {
            let Some(events) = guest.sample()? else { break };
            for event in &events {
                if let Event::Sample(sample) = event {
                    let pause = Duration::from_nanos(sample.pause_ns);
                    columns[if sample.state == glass_profile::model::State::Idle { 3 } else { 2 }]
                        .push(microseconds(pause));
                }
            }
        }
    }
    println!("{} signals handed on", guest.signals_handed_on());
    guest.detach()?;
    let names = ["stop only", "stop and let go (floor)", "sample, not idle", "sample, idle"];
    for (name, values) in names.into_iter().zip(columns) {
        show(name, values);
    }
    Ok(())
}
