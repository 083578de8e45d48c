//! Cores, tasks and devices over time, as tracks of characters.

use glass_profiler_core::trace::model::Trace;

use crate::trace::figures::split;
use crate::trace::label::duration;
use glass_profiler_core::format::{count, cut_end, pad};
use glass_profiler_core::names::printable;

/// Characters of a track, and of its name.
const SLICES: usize = 72;
const NAME_COLUMNS: usize = 24;
/// Tracks of tasks: the ones that ran longest.
const TASKS_MAX: usize = 20;

/// Time of one slice by what it was spent on; the first of those with most time names it.
#[derive(Debug, Clone, Copy, Default)]
struct Slice([u64; 3]);

struct Tracks<'a> {
    trace: &'a Trace,
    slice_ns: u64,
}

impl Tracks<'_> {
    /// Adds an interval to the slices that it touches.
    fn add(&self, slices: &mut [Slice], start_ns: u64, end_ns: u64, state: usize) {
        let since = |ns: u64| ns.saturating_sub(self.trace.start_ns);
        let (start, end) = (since(start_ns), since(end_ns));
        for index in (start / self.slice_ns)..=(end / self.slice_ns) {
            let Some(slice) = slices.get_mut(index as usize) else { return };
            let (from, to) = (index * self.slice_ns, (index + 1) * self.slice_ns);
            slice.0[state] = slice.0[state].saturating_add(end.min(to).saturating_sub(start.max(from)));
        }
    }

    fn line(&self, name: &str, slices: &[Slice], marks: [char; 3]) -> String {
        let mark = |slice: &Slice| {
            let most = (0..3).rev().max_by_key(|state| slice.0[*state]).filter(|state| slice.0[*state] > 0);
            most.map_or(' ', |state| marks[state])
        };
        let track: String = slices.iter().map(mark).collect();
        format!("{} {}\n", pad(&cut_end(&printable(name), NAME_COLUMNS), NAME_COLUMNS), track.trim_end())
    }
}

pub(super) fn text(trace: &Trace) -> String {
    let all_ns = (trace.end_ns - trace.start_ns).max(1);
    let tracks = Tracks { trace, slice_ns: all_ns.div_ceil(SLICES as u64) };
    let mut out = format!("A character is {}; what most of it was spent on\n", duration(tracks.slice_ns));
    out.push_str("\nCores: # running, ~ spinning, . idle\n");
    let empty = vec![Slice::default(); SLICES];
    let mut cores = vec![empty.clone(); trace.cores.len()];
    for poll in &trace.polls {
        tracks.add(&mut cores[poll.core as usize], poll.start_ns, poll.end_ns, 0);
    }
    for spin in &trace.spins {
        tracks.add(&mut cores[spin.core as usize], spin.start_ns, spin.end_ns, 1);
    }
    for idle in &trace.idles {
        tracks.add(&mut cores[idle.interval.core as usize], idle.interval.start_ns, idle.interval.end_ns, 2);
    }
    for (core, slices) in trace.cores.iter().zip(&cores) {
        out.push_str(&tracks.line(&core.name, slices, ['#', '~', '.']));
    }
    tasks(&tracks, &mut out);
    out.push_str("\nDevices: requests in flight, # at all times, + more than half of the time, - less\n");
    let mut busy = vec![vec![Slice::default(); SLICES]; trace.devices.len()];
    let mut until = vec![0; trace.devices.len()];
    for request in &trace.requests {
        let end_ns = trace.request_end_ns(request);
        let until: &mut u64 = &mut until[request.device as usize];
        if end_ns > *until {
            tracks.add(&mut busy[request.device as usize], request.submit_ns.max(*until), end_ns, 0);
            *until = end_ns;
        }
    }
    for (device, slices) in trace.devices.iter().zip(&busy) {
        let track: String = slices
            .iter()
            .map(|slice| match slice.0[0].saturating_mul(100) / tracks.slice_ns {
                0 if slice.0[0] == 0 => ' ',
                0..=50 => '-',
                51..=99 => '+',
                _ => '#',
            })
            .collect();
        let name = pad(&cut_end(&printable(trace.name(device.name)), NAME_COLUMNS), NAME_COLUMNS);
        out.push_str(&format!("{name} {}\n", track.trim_end()));
    }
    out
}

fn tasks(tracks: &Tracks, out: &mut String) {
    let trace = tracks.trace;
    let mut run_ns = vec![0u64; trace.tasks.len()];
    for poll in &trace.polls {
        let sum_ns = &mut run_ns[poll.task as usize];
        *sum_ns = sum_ns.saturating_add(poll.end_ns - poll.start_ns);
    }
    let mut chosen: Vec<u32> = (0..trace.tasks.len() as u32).collect();
    chosen.sort_by_key(|task| std::cmp::Reverse(run_ns[*task as usize]));
    chosen.truncate(TASKS_MAX);
    chosen.sort_unstable();
    out.push_str(&format!(
        "\nTasks: # running, = runnable, . waiting ({} of {}, those that ran longest)\n",
        count(chosen.len() as u64),
        count(trace.tasks.len() as u64)
    ));
    let mut places = vec![None; trace.tasks.len()];
    for (place, task) in chosen.iter().enumerate() {
        places[*task as usize] = Some(place);
    }
    let mut slices = vec![vec![Slice::default(); SLICES]; chosen.len()];
    for poll in &trace.polls {
        if let Some(place) = places[poll.task as usize] {
            tracks.add(&mut slices[place], poll.start_ns, poll.end_ns, 0);
        }
    }
    for wait in &trace.waits {
        if let Some(place) = places[wait.task as usize] {
            let woken_ns = wait.start_ns + split(wait).0;
            tracks.add(&mut slices[place], woken_ns, wait.end_ns, 1);
            tracks.add(&mut slices[place], wait.start_ns, woken_ns, 2);
        }
    }
    for (task, slices) in chosen.iter().zip(&slices) {
        out.push_str(&tracks.line(&crate::trace::label::task(trace, *task), slices, ['#', '=', '.']));
    }
}
