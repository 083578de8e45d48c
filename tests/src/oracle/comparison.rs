//! One run of the upload queue under TCG, sampled and counted at the same time.

use super::{Counts, Oracle, between, held};
use crate::content::Content;
use crate::folder::Folder;
use crate::http::Client;
use crate::port::free_port;
use crate::process::Process;
use crate::programs;
use crate::qemu::Qemu;
use crate::queue::answer;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const START_LIMIT: Duration = Duration::from_secs(240);
/// Samples per second.
const RATE_HZ: &str = "997";
/// Functions of an idle guest's stack, innermost first, that do nothing but halt.
const HALTING: usize = 2;
/// Bytes of an item that is uploaded and downloaded meanwhile.
const ITEM_BYTES: u64 = 400_000;

/// A function's share of the time in which the guest ran, in percent.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// By the samples.
    pub sampled_percent: f64,
    /// By the plugin's clock.
    pub time_percent: f64,
    /// Of the instructions, by the plugin.
    pub instructions_percent: f64,
    /// How often it was called.
    pub calls: u64,
}

/// The results of sampling and of counting.
#[derive(Debug)]
pub struct Comparison {
    /// All functions, the largest share of time first.
    pub functions: Vec<Function>,
    /// Samples in which the guest ran.
    pub samples: u64,
}

impl Function {
    /// Between its sampled and its counted share of time, in percentage points.
    pub fn difference_points(&self) -> f64 {
        (self.sampled_percent - self.time_percent).abs()
    }

    /// The standard deviation of its share in that many samples, in percentage points.
    pub fn deviation_points(&self, samples: u64) -> f64 {
        let share = self.time_percent / 100.0;
        100.0 * (share * (1.0 - share) / samples as f64).sqrt()
    }
}

impl Comparison {
    /// Runs together: each function's shares, by the samples of each run. `None` of no samples.
    pub fn together(runs: &[Comparison]) -> Option<Comparison> {
        let samples: u64 = runs.iter().map(|run| run.samples).sum();
        let mut functions: HashMap<&str, Function> = HashMap::new();
        for run in runs.iter().filter(|run| run.samples > 0) {
            let part = run.samples as f64 / samples as f64;
            for function in &run.functions {
                let all = functions.entry(&function.name).or_insert_with(|| Function {
                    name: function.name.clone(),
                    sampled_percent: 0.0,
                    time_percent: 0.0,
                    instructions_percent: 0.0,
                    calls: 0,
                });
                all.sampled_percent += function.sampled_percent * part;
                all.time_percent += function.time_percent * part;
                all.instructions_percent += function.instructions_percent * part;
                all.calls += function.calls;
            }
        }
        let mut functions: Vec<Function> = functions.into_values().collect();
        functions.sort_by(|a, b| b.time_percent.total_cmp(&a.time_percent));
        (samples > 0).then_some(Comparison { functions, samples })
    }

    /// The function whose shares differ most.
    pub fn worst(&self) -> Option<&Function> {
        self.functions.iter().max_by(|a, b| a.difference_points().total_cmp(&b.difference_points()))
    }
}

/// Runs the queue under load for `seconds`. `None` after printing why it cannot run here.
pub fn run(seconds: u32) -> Result<Option<Comparison>> {
    if !programs::has_qemu() {
        programs::skip("qemu-system-x86_64 is not installed");
        return Ok(None);
    }
    let (Some(glass), Some(image)) = (programs::built("glass"), programs::image("upload-queue")) else {
        return Ok(None);
    };
    let folder = Folder::new("oracle")?;
    let oracle = Oracle::new(folder.path(), &image)?;
    let port = free_port()?;
    let mut glass_run = Command::new(&glass);
    glass_run.arg("run").arg(&image).args(["--accel", "tcg", "--memory", "64", "--port", &format!("{port}:8080")]);
    glass_run.arg("--disk").arg(folder.file("disk")).args(["--disk-size", "128M"]);
    let mut qemu = Qemu::start(&mut glass_run, &["--port", "8080"], &oracle.options(), &folder)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let deadline = Instant::now() + START_LIMIT;
    while answer(address, Duration::from_millis(500)).is_none() {
        if qemu.process.ended().is_some() || Instant::now() > deadline {
            bail!("the queue does not answer:\n{}", qemu.process.output());
        }
    }
    // Code that runs for the first time is translated first, and that time is QEMU's, not the guest's.
    load(address, Instant::now() + Duration::from_secs(1))?;
    let recording = folder.file("recording");
    let mut record = Command::new(&glass);
    record.args(["record", "--pid", &qemu.process.pid().to_string(), "--rate", RATE_HZ]);
    record.args(["--duration", &seconds.to_string(), "--output"]).arg(&recording);
    let mut recorder = Process::spawn(&mut record, &folder.file("record.log"))?;
    let before = oracle.read()?;
    load(address, Instant::now() + Duration::from_secs(seconds.into()))?;
    let after = oracle.read()?;
    let status = recorder.wait(Duration::from_secs(240)).context("glass record does not end")?;
    if !status.success() {
        bail!("glass record: {}", recorder.output());
    }
    let sampled = self_samples(&glass, &recording, &folder.file("profile.json"))?;
    let mut counted = between(&before, &after);
    for (function, ticks) in held::ticks(&oracle.slices()?, &held::intervals(&recording)?) {
        let executed = counted.entry(function.to_owned()).or_default();
        executed.ticks = executed.ticks.saturating_sub(ticks);
    }
    sampled.leave_out_idle(&mut counted);
    compare(&sampled.awake, &counted).map(Some)
}

/// Samples by the innermost function that was not inlined.
#[derive(Debug, Default)]
struct Sampled {
    /// How many there are of each in which the guest was awake.
    awake: HashMap<String, u64>,
    /// The functions in which it was idle: the one that halts, and the one that has called it.
    idle: HashSet<String>,
}

/// Uploads, downloads and removes items until `end`.
fn load(address: SocketAddr, end: Instant) -> Result<()> {
    let mut seed = 0;
    while Instant::now() < end {
        seed += 1;
        let item = Content { seed, length_bytes: ITEM_BYTES };
        let status = Client::connect(address)?.put("/uploader", ITEM_BYTES, &mut item.reader())?.status();
        let mut checker = item.checker();
        let got = Client::connect(address)?.get_into("/downloader", &mut checker)?;
        let deleted = Client::connect(address)?.request_if_match("DELETE", "/downloader", got.etag())?.status();
        if status >= 300 || deleted >= 300 || checker.verdict().is_err() {
            bail!("the queue answers {status} and {deleted} and may have given back something else");
        }
    }
    Ok(())
}

fn self_samples(glass: &Path, recording: &Path, profile: &Path) -> Result<Sampled> {
    let mut export = Command::new(glass);
    export.args(["export", "--format", "firefox", "--states", "all", "--output"]).arg(profile).arg(recording);
    let output = export.output().context("cannot start glass")?;
    if !output.status.success() {
        bail!("glass export: {}", String::from_utf8_lossy(&output.stderr));
    }
    let profile: Value = serde_json::from_slice(&std::fs::read(profile)?).context("the export is not JSON")?;
    samples_of(&profile)
}

/// The samples of a profile of the Firefox Profiler.
fn samples_of(profile: &Value) -> Result<Sampled> {
    let idle =
        profile["meta"]["categories"].as_array().and_then(|all| all.iter().position(|one| one["name"] == "Idle"));
    let mut sampled = Sampled::default();
    for thread in profile["threads"].as_array().context("the export has no threads")? {
        let cell = |table: &str, column: &str, row: u64| thread[table][column][row as usize].as_u64();
        let name = |function: u64| {
            let name = profile["shared"]["stringArray"][cell("funcTable", "name", function)? as usize].as_str()?;
            Some(name.to_owned())
        };
        for leaf in thread["samples"]["stack"].as_array().context("a thread has no samples")? {
            // From the leaf outwards: frames that are not inlined, then the root, which has the category.
            let Some(mut stack) = leaf.as_u64() else { continue };
            let mut functions = Vec::new();
            let root = loop {
                let frame = cell("stackTable", "frame", stack).context("a stack has no frame")?;
                if cell("frameTable", "inlineDepth", frame) == Some(0) {
                    functions.extend(cell("frameTable", "func", frame));
                }
                match cell("stackTable", "prefix", stack) {
                    // A caller comes before its callees; any other order could be a cycle.
                    Some(prefix) if prefix < stack => stack = prefix,
                    Some(_) => bail!("a stack of the export comes before its caller"),
                    None => break frame,
                }
            };
            if cell("frameTable", "category", root) == idle.map(|index| index as u64) {
                sampled.idle.extend(functions.into_iter().take(HALTING).filter_map(name));
            } else {
                let innermost = functions.first().and_then(|function| name(*function));
                *sampled.awake.entry(innermost.context("a function has no name")?).or_default() += 1;
            }
        }
    }
    Ok(sampled)
}

impl Sampled {
    /// Leaves out what the guest only executes while it reports that it is idle: the plugin counts it until the vCPU halts.
    fn leave_out_idle(&self, counted: &mut Counts) {
        counted.retain(|function, _| self.awake.contains_key(function) || !self.idle.contains(function));
    }
}

/// Of samples and of counts by function.
pub fn compare(sampled: &HashMap<String, u64>, counted: &Counts) -> Result<Comparison> {
    let samples: u64 = sampled.values().sum();
    let ticks: u64 = counted.values().map(|executed| executed.ticks).sum();
    let instructions: u64 = counted.values().map(|executed| executed.instructions).sum();
    if samples == 0 || ticks == 0 || instructions == 0 {
        bail!("nothing ran: {samples} samples, {instructions} instructions");
    }
    let mut names: Vec<&String> = sampled.keys().chain(counted.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let percent = |part: u64, of: u64| part as f64 / of as f64 * 100.0;
    let mut functions: Vec<Function> = names
        .into_iter()
        .map(|name| {
            let executed = counted.get(name).copied().unwrap_or_default();
            Function {
                name: name.clone(),
                sampled_percent: percent(sampled.get(name).copied().unwrap_or_default(), samples),
                time_percent: percent(executed.ticks, ticks),
                instructions_percent: percent(executed.instructions, instructions),
                calls: executed.calls,
            }
        })
        .collect();
    functions.sort_by(|a, b| b.time_percent.total_cmp(&a.time_percent));
    Ok(Comparison { functions, samples })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Executed;
    use serde_json::json;

    /// Stacks: `run`; `run`, `work`; `run`, `halt`, `service`, which is idle, with a root of its own.
    fn profile(prefixes: Value) -> Value {
        json!({
            "meta": { "categories": [{ "name": "Running" }, { "name": "Idle" }] },
            "shared": { "stringArray": ["run", "work", "halt", "service"] },
            "threads": [{
                "samples": { "stack": [0, 1, 1, null, 4] },
                "stackTable": { "frame": [0, 1, 2, 3, 4], "prefix": prefixes },
                "frameTable": { "func": [0, 1, 0, 2, 3], "category": [0, 0, 1, 1, 1], "inlineDepth": [0, 0, 0, 0, 0] },
                "funcTable": { "name": [0, 1, 2, 3] },
            }],
        })
    }

    #[test]
    fn runs_together_weigh_as_much_as_their_samples() {
        let run = |samples: u64, sampled: [u64; 2], ticks: [u64; 2]| {
            let names = ["a", "b"].map(str::to_owned);
            let counted = names.clone().into_iter().zip(ticks);
            let counted = counted.map(|(name, ticks)| (name, Executed { ticks, instructions: 1, calls: 1 })).collect();
            let run = compare(&names.into_iter().zip(sampled).collect(), &counted).unwrap();
            assert_eq!(run.samples, samples);
            run
        };
        let together = Comparison::together(&[run(300, [150, 150], [60, 40]), run(100, [100, 0], [60, 40])]).unwrap();
        let of = |name: &str| together.functions.iter().find(|function| function.name == name).unwrap().clone();
        assert_eq!((together.samples, of("a").sampled_percent, of("a").calls), (400, 62.5, 2));
        assert_eq!((of("a").time_percent, of("b").sampled_percent), (60.0, 37.5));
        assert!(Comparison::together(&[]).is_none());
    }

    #[test]
    fn what_is_executed_only_to_halt_is_left_out() {
        let sampled = samples_of(&profile(json!([null, 0, null, 2, 3]))).unwrap();
        assert_eq!(sampled.awake, HashMap::from([("run".to_owned(), 1), ("work".to_owned(), 2)]));
        assert_eq!(sampled.idle, HashSet::from(["halt".to_owned(), "service".to_owned()]));
        let mut counted: Counts =
            ["run", "work", "halt", "never"].map(|name| (name.to_owned(), Executed::default())).into();
        sampled.leave_out_idle(&mut counted);
        let mut left: Vec<&String> = counted.keys().collect();
        left.sort();
        assert_eq!(left, ["never", "run", "work"]);
        assert!(samples_of(&profile(json!([null, 0, null, 2, 4]))).is_err(), "a circle");
    }
}
