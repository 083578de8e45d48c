//! The accounts of recordings that tests have made: in each, collected and lost samples are the expected ones, whatever the test was about.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::programs;

/// The losses that are expected samples, as `glass info --json` names them.
const LOSSES: [&str; 5] = ["ring_full", "throttled", "overdue", "not_stopped", "queue_full"];

/// What is wrong in the account of a recording, as `glass info --json` prints it. A recording whose end is missing has none.
fn problem(info: &Value) -> Option<String> {
    let cost = &info["cost"];
    let count = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no count: {value} in {cost}"));
    if info["is_complete"] != true {
        return None;
    }
    let [expected, collected, lost, late] =
        ["samples_expected", "samples_collected", "samples_lost", "samples_late"].map(|name| count(&cost[name]));
    let by_kind: u64 = LOSSES.iter().map(|kind| count(&cost["losses"][kind])).sum();
    // The reader brings an account in order, and warns that it had to.
    let was_wrong = info["warnings"].to_string().contains("does not add up");
    let is_right = collected + lost == expected && by_kind == lost && late <= collected && !was_wrong;
    (!is_right).then(|| format!("the account of {} does not add up: {cost}", info["file"]))
}

/// A recording begins with a packet (docs/formats/recording.md), whatever its name is.
fn may_be_recording(path: &Path) -> bool {
    const PACKET: u8 = 0x0a;
    let mut first = [0];
    let is_file = std::fs::metadata(path).is_ok_and(|about| about.is_file());
    is_file && std::fs::File::open(path).is_ok_and(|mut file| file.read(&mut first).is_ok()) && first == [PACKET]
}

/// What is wrong in the accounts of the recordings in a folder. Those that cannot be read are left out, as all are without a built `glass`.
pub(crate) fn problems(folder: &Path) -> Vec<String> {
    let glass = programs::folder().join("glass");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let recordings = entries.map(|entry| entry.path()).filter(|path| may_be_recording(path));
    let check = |path| {
        let info = Command::new(&glass).args(["info", "--json"]).arg(path).stdin(Stdio::null()).output().ok()?;
        problem(&serde_json::from_slice(&info.stdout).ok()?)
    };
    if glass.is_file() { recordings.filter_map(check).collect() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_adds_up() {
        let info = |complete: bool, [expected, collected, lost, late]: [u64; 4], full: u64, warnings: &[&str]| {
            json!({ "file": "a.pftrace", "is_complete": complete, "warnings": warnings, "cost": {
                "samples_expected": expected, "samples_collected": collected, "samples_lost": lost, "samples_late": late,
                "losses": { "ring_full": full, "throttled": 0, "overdue": 2, "not_stopped": 0, "queue_full": 0, "maps": 9 },
            }})
        };
        assert_eq!(problem(&info(true, [10, 7, 3, 7], 1, &[])), None);
        assert_eq!(problem(&info(false, [10, 0, 0, 7], 1, &[])), None);
        assert!(problem(&info(true, [11, 7, 3, 7], 1, &[])).is_some());
        assert!(problem(&info(true, [10, 7, 3, 8], 1, &[])).is_some());
        assert!(problem(&info(true, [10, 7, 3, 7], 2, &[])).is_some());
        assert!(problem(&info(true, [10, 7, 3, 7], 1, &["10 expected, which does not add up"])).is_some());
    }
}
