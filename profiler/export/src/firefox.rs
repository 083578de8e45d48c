//! A processed profile of the Firefox Profiler, version 57 of the format.
//!
//! The viewer upgrades older versions to its own, so every version stays readable; this is the last one
//! in which functions have file names instead of references to a table of sources. Samples of unselected states
//! are written without a stack: the graphs of activity would otherwise draw their neighbours in their place.

mod thread;

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use glass_profiler_core::model::{Profile, Sample, State};
use glass_profiler_core::recording::Recording;

use crate::Options;
use crate::chains::{Chains, cost_line, title};
use crate::json::{self, Milliseconds};

const PROCESSED_VERSION: u32 = 57;
/// Version of the format that Firefox itself writes, at the time of [`PROCESSED_VERSION`].
const GECKO_VERSION: u32 = 31;

/// Categories that every profile has: name, colour of the viewer's palette. Grey is the default one, transparent is idle.
const CATEGORIES: [(&str, &str); 5] =
    [("Other", "grey"), ("Running", "yellow"), ("Kernel", "orange"), ("Spinning", "brown"), ("Idle", "transparent")];

/// Categories of recordings that have something of them: the other states in which nothing of the guest runs, and whose code it is, in
/// the order of [`Layer::ALL`].
const MORE_CATEGORIES: [(&str, &str); 7] = [
    ("Stolen", "red"),
    ("In the VMM", "green"),
    ("Guest user", "lightblue"),
    ("Guest kernel", "blue"),
    ("VMM", "yellow"),
    ("Host kernel", "orange"),
    ("Waiting", "purple"),
];

/// Whether a profile needs [`MORE_CATEGORIES`].
fn has_more(profile: &Profile) -> bool {
    let is_more = |sample: &Sample| matches!(sample.state, State::Stolen | State::InVmm | State::Waiting);
    profile.view().is_some() || profile.samples.iter().any(is_more)
}

/// Strings of all threads.
#[derive(Default)]
struct Strings {
    known: HashMap<String, usize>,
    list: Vec<String>,
}

impl Strings {
    fn index(&mut self, text: &str) -> usize {
        if let Some(index) = self.known.get(text) {
            return *index;
        }
        self.known.insert(text.to_owned(), self.list.len());
        self.list.push(text.to_owned());
        self.list.len() - 1
    }
}

pub(crate) fn write(recording: &Recording, options: Options<'_>, output: &mut dyn Write) -> io::Result<()> {
    let chains = Chains::new(recording).by_vcpu(options.by_vcpu);
    let mut strings = Strings::default();
    output.write_all(b"{\"meta\":")?;
    meta(&chains, output)?;
    output.write_all(b",\"libs\":")?;
    let architecture = recording.profile.guests.first().map(|guest| guest.architecture).unwrap_or_default();
    json::list(output, &recording.images, |output, image| {
        let name = image.path.rsplit('/').next().unwrap_or_default();
        let hex: String = image.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let code_id = if hex.is_empty() { serde_json::Value::Null } else { hex.as_str().into() };
        let lib = serde_json::json!({
            "arch": architecture.name(), "name": name, "path": image.path, "debugName": name, "debugPath": image.path,
            "breakpadId": breakpad_id(&image.build_id), "codeId": code_id,
        });
        write!(output, "{lib}")
    })?;
    output.write_all(b",\"threads\":")?;
    let mut processes = HashSet::new();
    json::list(output, chains.series(), |output, series| {
        thread::write(&chains, &mut strings, &series, &mut processes, options.states, output)
    })?;
    output.write_all(b",\"shared\":{\"stringArray\":")?;
    json::list(output, &strings.list, |output, text| json::string(output, text))?;
    output.write_all(b"}}\n")
}

/// A build id in the form of symbol servers: the first 16 bytes as a GUID whose parts are little-endian, and an age of 0.
fn breakpad_id(build_id: &[u8]) -> String {
    let mut guid = [0u8; 16];
    let length = build_id.len().min(16);
    guid[..length].copy_from_slice(&build_id[..length]);
    guid[0..4].reverse();
    guid[4..6].reverse();
    guid[6..8].reverse();
    let hex: String = guid.iter().map(|byte| format!("{byte:02X}")).collect();
    hex + "0"
}

fn meta(chains: &Chains<'_>, output: &mut dyn Write) -> io::Result<()> {
    let profile = chains.profile;
    let origin = &profile.origin;
    let more = if has_more(profile) { &MORE_CATEGORIES[..] } else { &[] };
    let categories: Vec<_> = CATEGORIES
        .iter()
        .chain(more)
        .map(|(name, color)| serde_json::json!({"name": name, "color": color, "subcategories": ["Other"]}))
        .collect();
    let entry = |label: &str, value: &str| serde_json::json!({"label": label, "format": "string", "value": value});
    let mut entries = vec![
        entry("Backend", &origin.backend),
        entry("Host", &origin.host),
        entry("Recorder", &origin.recorder),
        entry("Profiler overhead", &cost_line(profile)),
    ];
    entries.extend(profile.only.iter().map(|only| entry("Samples", &only.sentence())));
    entries.extend(profile.warnings.iter().map(|warning| entry("Warning", warning)));
    let mut meta = serde_json::json!({
        "version": GECKO_VERSION,
        "preprocessedProfileVersion": PROCESSED_VERSION,
        "product": title(profile),
        "importedFrom": origin.recorder,
        "processType": 0,
        "stackwalk": 1,
        "symbolicated": true,
        "usesOnlyOneStackType": true,
        "sourceCodeIsNotOnSearchfox": true,
        "keepProfileThreadOrder": true,
        "markerSchema": [],
        "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
        "extra": [{"label": "Recording", "entries": entries}],
    });
    meta["categories"] = categories.into();
    let text = meta.to_string();
    // Times are formatted here: a float would lose nanoseconds.
    write!(
        output,
        "{},\"interval\":{},\"startTime\":{},\"profilingStartTime\":0,\"profilingEndTime\":{}}}",
        &text[..text.len() - 1],
        Milliseconds(chains.period_ns()),
        Milliseconds(origin.start_unix_ns),
        Milliseconds(origin.duration_ns)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_becomes_a_guid() {
        let id: Vec<u8> = (1..=20).collect();
        assert_eq!(breakpad_id(&id), "0403020106050807090A0B0C0D0E0F100");
        assert_eq!(breakpad_id(&[]), "000000000000000000000000000000000");
    }
}
