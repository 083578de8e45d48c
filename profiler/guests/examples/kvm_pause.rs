//! Measures what a sample of a VM under KVM costs, beside a stop that reads nothing, in turn:
//! `kvm_pause PID SECONDS [RATE] [POLL_US,POLL_US...] [--symbols FILE]`.
//!
//! With several times of polling (how long a stop is polled for before sleeping until it is told; 0 is
//! never) they take turns, 100 samples each, so that all meet the same load.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::{Duration, Instant};

use glass_guests::find::{self, Found};
use glass_guests::kvm::KvmVm;
use glass_guests::{Guest, VmSettings};
use glass_profile::event::Event;
use glass_profile::model::State;

const TURN_SAMPLES: usize = 100;
const DEFAULT_POLL_US: u64 = 200;

fn show(what: &str, mut values: Vec<f64>) {
    values.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| values.get(((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1)));
    let [p10, median, p90, p99, most] = [0.1, 0.5, 0.9, 0.99, 1.0].map(|share| at(share).copied().unwrap_or(0.0));
    let n = values.len();
    println!("{what:<36} n {n:6}  p10 {p10:7.1}  median {median:7.1}  p90 {p90:7.1}  p99 {p99:8.1}  max {most:8.1} us");
}

#[derive(Default)]
struct Times {
    stop: Vec<f64>,
    floor: Vec<f64>,
    running: Vec<f64>,
    idle: Vec<f64>,
}

/// One stop or sample; false if the guest has ended.
fn measure(guest: &mut KvmVm, times: &mut Times, reads: bool) -> Result<bool, Box<dyn Error>> {
    let microseconds = |duration: Duration| duration.as_secs_f64() * 1e6;
    if !reads {
        let Some((stop, whole)) = guest.hold_and_release()? else { return Ok(false) };
        times.stop.push(microseconds(stop));
        times.floor.push(microseconds(whole));
        return Ok(true);
    }
    let Some(events) = guest.sample()? else { return Ok(false) };
    for event in &events {
        if let Event::Sample(sample) = event {
            let pause = microseconds(Duration::from_nanos(sample.pause_ns));
            if sample.state == State::Idle { times.idle.push(pause) } else { times.running.push(pause) }
        }
    }
    Ok(true)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let symbols = words.iter().position(|word| word == "--symbols").map(|at| words.drain(at..).nth(1));
    let [pid, seconds, rest @ ..] = &words[..] else {
        return Err("usage: kvm_pause PID SECONDS [RATE] [POLL_US,...] [--symbols FILE]".into());
    };
    let rate: u32 = rest.first().map_or(Ok(997), |word| word.parse())?;
    let polls: Vec<u64> = match rest.get(1) {
        Some(list) => list.split(',').map(str::parse).collect::<Result<_, _>>()?,
        None => vec![DEFAULT_POLL_US],
    };
    let period = Duration::from_secs(1) / rate.max(1);
    let limit = Duration::from_secs(seconds.parse()?);
    let Found::Vm(vm) = find::by_pid(pid.parse()?)? else { return Err("no VM".into()) };
    let symbols = symbols.flatten().map(Into::into).or(vm.elf.clone()).ok_or("no image known: give --symbols FILE")?;
    let mut guest = KvmVm::attach(&vm, VmSettings::new(16 << 10, symbols))?;
    let mut times: Vec<Times> = polls.iter().map(|_| Times::default()).collect();
    let start = Instant::now();
    for index in 0usize.. {
        if start.elapsed() > limit {
            break;
        }
        let turn = index / TURN_SAMPLES % polls.len();
        if index.is_multiple_of(TURN_SAMPLES) {
            guest.poll_for(Duration::from_micros(polls[turn]));
        }
        let due = period * index as u32;
        guest.rest(glass_guests::read_clocks().monotonic_ns + due.saturating_sub(start.elapsed()).as_nanos() as u64)?;
        if !measure(&mut guest, &mut times[turn], index.is_multiple_of(2))? {
            break;
        }
    }
    println!("{} signals handed on", guest.signals_handed_on());
    guest.detach()?;
    for (poll, times) in polls.iter().zip(times) {
        let line = |what: &str, values| show(&format!("poll {poll} us: {what}"), values);
        line("stop only", times.stop);
        line("stop and let go (floor)", times.floor);
        line("sample, not idle", times.running);
        line("sample, idle", times.idle);
    }
    Ok(())
}
