//! The profiler overhead, as a line at the top of every report, and as four headlines behind it.

use glass_profiler_core::model::{FAULT_BYTES, Losses, Profile, Sample, StackEnd, Track};

use glass_profiler_core::format::{count, duration, percent, percent_lost};
use glass_profiler_core::names::printable;
use glass_profiler_core::program::NameSource;
use glass_profiler_core::view::Hosts;

/// Above this share of lost samples or broken stacks, or of the profiler's use of a core, the
/// page marks the figure. In thousandths.
const HIGH_PER_MILLE: u64 = 10;
const HIGH_CPU_PER_MILLE: u64 = 100;

/// One aspect of the cost.
pub(crate) struct Card {
    pub name: &'static str,
    /// The one number to remember.
    pub headline: String,
    /// The others.
    pub detail: String,
    /// So much that the profile deserves doubt.
    pub high: bool,
}

/// Samples, stacks, pauses and the profiler itself.
pub(crate) fn cards(profile: &Profile) -> Vec<Card> {
    let (cost, duration_ns) = (&profile.cost, profile.origin.duration_ns);
    // Each track has pauses of its own, and as much time as the others.
    let tracks = paused(profile);
    let tracks_ns = duration_ns.saturating_mul(tracks.len().max(1) as u64);
    let taken = cost.samples_taken;
    let faults = Card {
        name: "Faults",
        headline: page_faults(taken),
        detail: format!(
            "one for the first read of each page of {FAULT_BYTES} bytes, and one for the first write to it if that came later; {} lost",
            count(cost.samples_lost)
        ),
        high: cost.samples_lost > 0,
    };
    let samples = Card {
        name: "Samples",
        headline: format!("{} collected", count(taken)),
        detail: format!(
            "{} in time, {} late ({}); {} lost ({}{}); {} expected",
            count(taken.saturating_sub(cost.samples_late)),
            count(cost.samples_late),
            percent(cost.samples_late, taken),
            count(cost.samples_lost),
            percent(cost.samples_lost, cost.samples_wanted),
            why_lost(&cost.losses),
            count(cost.samples_wanted)
        ),
        high: exceeds(cost.samples_lost, cost.samples_wanted, HIGH_PER_MILLE),
    };
    let stacks = Card {
        name: "Stacks",
        headline: format!("{} broken", percent(cost.stacks_broken, taken)),
        detail: format!(
            "{} of {} do not reach their thread's start{}",
            count(cost.stacks_broken),
            count(taken),
            why_broken(profile)
        ),
        high: exceeds(cost.stacks_broken, taken, HIGH_PER_MILLE),
    };
    let pause = &cost.pause;
    let pauses = if pause.count == 0 {
        Card {
            name: "Pauses",
            headline: "none".to_string(),
            detail: "nothing is stopped for a sample".to_string(),
            high: false,
        }
    } else {
        Card {
            name: "Pauses",
            headline: format!("{} median", duration(pause.median_ns)),
            detail: format!(
                "p99 {}, max {}, {} in total ({} of {}){}",
                duration(pause.p99_ns),
                duration(pause.max_ns),
                duration(pause.sum_ns),
                percent_lost(pause.sum_ns, tracks_ns),
                if tracks.len() > 1 { "the tracks' time" } else { "the time" },
                loss(profile)
            ),
            high: exceeds(pause.sum_ns, tracks_ns, HIGH_CPU_PER_MILLE),
        }
    };
    let profiler = Card {
        name: "Profiler",
        headline: format!("{} of one core", percent(cost.profiler_cpu_ns, duration_ns)),
        detail: format!(
            "{} of CPU time while recording {}{}",
            duration(cost.profiler_cpu_ns),
            duration(duration_ns),
            match cost.sampling_cpu_ns {
                0 => String::new(),
                sampling_ns => format!(
                    ", {} of it to attach and for names at the end",
                    duration(cost.profiler_cpu_ns.saturating_sub(sampling_ns))
                ),
            }
        ),
        high: exceeds(cost.profiler_cpu_ns, duration_ns, HIGH_CPU_PER_MILLE),
    };
    let samples = if profile.origin.has_page_faults() { faults } else { samples };
    [samples, stacks].into_iter().chain(names(profile)).chain([pauses, profiler]).collect()
}

/// Where names of a guest's processes are from, if it has such.
fn names(profile: &Profile) -> Option<Card> {
    let all = profile.named.iter().fold(0u64, |all, (_, frames)| all.saturating_add(*frames));
    let sources = profile.named.iter().filter(|(_, frames)| *frames > 0);
    let sources: Vec<String> =
        sources.map(|(text, frames)| format!("{} {}", count(*frames), printable(text))).collect();
    let detail = format!("of {} frames of the guest's programs, {}", count(all), sources.join(", "));
    let without = profile.named.iter().filter(|(text, _)| text == NameSource::Nothing.text()).map(|(_, frames)| frames);
    let without: u64 = without.fold(0, |sum, frames| sum.saturating_add(*frames));
    let headline = format!("{} of user frames", percent(all.saturating_sub(without), all));
    (all > 0).then_some(Card { name: "Names", headline, detail, high: false })
}

/// What was recorded and what it cost, in one line.
pub(crate) fn account_line(profile: &Profile) -> String {
    let (cost, origin) = (&profile.cost, &profile.origin);
    let samples = match cost.samples_lost {
        _ if origin.has_page_faults() => page_faults(cost.samples_taken),
        0 => format!("{} samples", count(cost.samples_taken)),
        lost => format!("{} samples, {} lost", count(cost.samples_taken), count(lost)),
    };
    let length = match origin.rate_hz {
        0 => duration(origin.duration_ns),
        rate => format!("{} at {rate} Hz", duration(origin.duration_ns)),
    };
    let pauses = match cost.pause.count {
        0 => "no pauses".to_string(),
        _ => format!("pauses of {}", duration(cost.pause.median_ns)),
    };
    let (broken, cpu) =
        (percent(cost.stacks_broken, cost.samples_taken), percent(cost.profiler_cpu_ns, origin.duration_ns));
    format!("{samples} in {length} \u{b7} {broken} of stacks broken \u{b7} {pauses} \u{b7} profiler: {cpu} of one core")
}

/// How many page faults, and their memory.
fn page_faults(faults: u64) -> String {
    format!("{} page faults, {} kB", count(faults), count(faults * FAULT_BYTES / 1024))
}

/// Of lost samples, why, where that was counted.
fn why_lost(losses: &Losses) -> String {
    let Losses { ring_full, throttled, overdue, not_stopped, queue_full, .. } = *losses;
    let kinds = [
        (ring_full, "found the kernel's buffer full"),
        (throttled, "were throttled by the kernel"),
        (overdue, "were due and not taken"),
        (not_stopped, "of vCPUs that could not be stopped or read in time"),
        (queue_full, "were dropped, since writing was slower"),
    ];
    let kinds = kinds.into_iter().filter(|(samples, _)| *samples > 0);
    kinds.map(|(samples, why)| format!(", {} {why}", count(samples))).collect()
}

/// Of stacks whose callers cannot be known, why.
fn why_broken(profile: &Profile) -> String {
    // Of stacks that were left out it is not known.
    if profile.only.is_some() {
        return String::new();
    }
    let known = [
        (StackEnd::NoUnwindInfo, "there is no unwind data: callers are missing"),
        (StackEnd::RuleFailed, "the unwind data leads nowhere: it needs a register that is not known, or is damaged"),
        (StackEnd::OtherStack, "the callers are on another stack, which was not copied"),
        (StackEnd::NotLongMode, "code was not in 64-bit mode, and is not unwound"),
    ];
    let mut text = String::new();
    for (end, why) in known {
        let of_end = |sample: &&Sample| profile.stacks.get(sample.stack as usize).is_some_and(|stack| stack.end == end);
        let samples = match profile.host {
            // Its stacks are those of the view.
            Some(host) => host.ends[end as usize],
            None => profile.samples.iter().filter(of_end).count() as u64,
        };
        if samples > 0 {
            text.push_str(&format!("; of {} {why}", count(samples)));
        }
    }
    text
}

/// The tracks that are stopped for samples: the host's are not.
fn paused(profile: &Profile) -> Vec<&Track> {
    let hosts = Hosts::of(profile);
    profile.tracks.iter().filter(|track| !hosts.has(track.guest)).collect()
}

/// What the guest has lost, pauses and what follows them, in all and of the track that lost most.
fn loss(profile: &Profile) -> String {
    let duration_ns = profile.origin.duration_ns;
    let tracks = paused(profile);
    let sum_ns = tracks.iter().fold(0, |sum: u64, track| sum.saturating_add(track.frozen.estimated_loss_ns()));
    let Some(most) = tracks.iter().max_by_key(|track| track.frozen.sum_ns).filter(|_| sum_ns > 0) else {
        return String::new();
    };
    let all = percent_lost(sum_ns, duration_ns.saturating_mul(tracks.len() as u64));
    let mut text = format!("; with what follows each pause the guest lost about {all}");
    if tracks.len() > 1 {
        let share = percent_lost(most.frozen.estimated_loss_ns(), duration_ns);
        text.push_str(&format!(", {} most: {share}", printable(&most.name)));
    }
    text
}

fn exceeds(part: u64, whole: u64, per_mille: u64) -> bool {
    u128::from(part) * 1_000 > u128::from(whole) * u128::from(per_mille)
}
