//! `perf kvm --guest` as a judge: addresses that it saw, and the functions to which they belong.

use glass_tests::limit::say;
use glass_tests::linux::Stack;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How many functions are compared, those with the largest shares.
const COMPARED: usize = 20;
/// How far a share may be off, in points, beside three standard errors.
const POINTS: f64 = 2.0;
/// The time for which a sample of a vCPU stands, see `RATE`.
const PERIOD_NS: u64 = 40_000_000;
/// Functions whose instructions make the processor leave the guest. `perf` attributes the time until it is back to KVM, which is the host's; for
/// `glass` the vCPU runs at that instruction.
const EXITING: [&str; 2] = ["native_write_msr", "io_serial_out"];
/// Time in the processes of the guest.
const USER: &str = "[guest user space]";
/// Addresses of processes are below it.
const USER_END: u64 = 1 << 47;

/// The addresses of the samples of guests. The kernel of the machine does not know yet whether they are a kernel's when it takes them.
fn samples_of_guests(script: &str) -> impl Iterator<Item = u64> {
    script.lines().filter_map(|line| {
        let (misc, address) = line.trim().split_once(' ')?;
        misc.contains('G').then(|| u64::from_str_radix(address.trim(), 16).unwrap())
    })
}

/// What perf has seen.
pub struct Judge {
    /// Names of functions, and what is compared instead: one name for all functions of one address.
    names: HashMap<String, String>,
    /// Samples of each function.
    samples: BTreeMap<String, u64>,
}

impl Judge {
    /// `script`: what `perf script -F misc,ip` prints. `map`: the symbols of a kernel like the guest's; `text` is where the guest's `_text` is.
    pub fn new(script: &str, map: &str, text: u64) -> Judge {
        let mut functions: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
        for line in map.lines() {
            let mut words = line.split_whitespace();
            let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else { continue };
            if "tTwW".contains(kind) {
                functions.entry(u64::from_str_radix(address, 16).unwrap()).or_default().push(name);
            }
        }
        let mut names: HashMap<String, String> = HashMap::new();
        for aliases in functions.values() {
            for alias in aliases {
                names.entry((*alias).to_owned()).or_insert_with(|| aliases[0].to_owned());
            }
        }
        let is_text = |aliases: &&Vec<&str>| aliases.contains(&"_text");
        let own_text = functions.iter().find(|(_, aliases)| is_text(aliases)).map(|(address, _)| *address).unwrap();
        let mut samples = BTreeMap::new();
        for address in samples_of_guests(script) {
            let name = if address < USER_END {
                USER.to_owned()
            } else {
                let address = address.wrapping_sub(text).wrapping_add(own_text);
                let found = functions.range(..=address).next_back();
                found.map_or_else(|| format!("{address:#x}"), |(_, aliases)| names[aliases[0]].clone())
            };
            *samples.entry(name).or_insert(0) += 1;
        }
        Judge { names, samples }
    }

    /// Compares the innermost functions, except those that exit.
    ///
    /// # Panics
    /// If one of the largest shares is off.
    pub fn compare(&self, stacks: &[Stack]) {
        let mut glass: BTreeMap<&str, f64> = BTreeMap::new();
        for stack in stacks {
            let name = stack.functions.first().map_or("?", String::as_str);
            *glass.entry(self.names.get(name).map_or(name, String::as_str)).or_default() +=
                (stack.weight / PERIOD_NS) as f64;
        }
        let mut perf: BTreeMap<&str, f64> =
            self.samples.iter().map(|(name, count)| (name.as_str(), *count as f64)).collect();
        for name in EXITING {
            let share = |side: &mut BTreeMap<&str, f64>| {
                let total: f64 = side.values().sum();
                side.remove(name).unwrap_or_default() * 100.0 / total
            };
            say(&format!("{name:<40} perf {:5.1} %, glass {:5.1} %, exits", share(&mut perf), share(&mut glass)));
        }
        let total = |side: &BTreeMap<&str, f64>| side.values().sum::<f64>();
        let (all_of_perf, all_of_glass) = (total(&perf), total(&glass));
        say(&format!(
            "without them: {all_of_perf} samples of the guest by perf, {all_of_glass} of running vCPUs by glass"
        ));
        let names: BTreeSet<&str> = perf.keys().chain(glass.keys()).copied().collect();
        let share = |side: &BTreeMap<&str, f64>, all: f64, name: &str| side.get(name).copied().unwrap_or(0.0) / all;
        let mut shares: Vec<(&str, f64, f64)> = names
            .into_iter()
            .map(|name| (name, share(&perf, all_of_perf, name), share(&glass, all_of_glass, name)))
            .collect();
        shares.sort_by(|a, b| b.1.max(b.2).total_cmp(&a.1.max(a.2)));
        let mut wrong = Vec::new();
        for (name, perf, glass) in shares.into_iter().take(COMPARED) {
            let variance = |share: f64, count: f64| share * (1.0 - share) / count;
            let limit = POINTS + 300.0 * (variance(perf, all_of_perf) + variance(glass, all_of_glass)).sqrt();
            let off = (perf - glass) * 100.0;
            say(&format!(
                "{name:<40} perf {:5.1} %, glass {:5.1} %, off by {off:+5.1} of {limit:.1}",
                perf * 100.0,
                glass * 100.0
            ));
            if off.abs() > limit {
                wrong.push(name);
            }
        }
        assert!(wrong.is_empty(), "other shares than perf's: {wrong:?}");
    }
}
