//! Code that processes generate while they run (just-in-time compilers): where it lies, and what its functions
//! are called. The process itself writes the names down, in a perf map or in a jitdump.

mod code;
mod dump;
mod perf_map;
mod sources;

use std::collections::BTreeSet;

use crate::budget::Account;
use crate::guest::ProcessKey;
use crate::symbols::Location;
pub(crate) use code::Change;
use code::JitCode;
pub(crate) use sources::{Found, NamedCode, Sources};

/// The name of generated code that its process did not name.
const WITHOUT_NAME: &str = "[generated code]";

/// What maps of address spaces call memory that has no file.
const ANONYMOUS: [&str; 6] = ["//anon", "[anon", "[heap]", "/dev/zero", "/SYSV", "/anon_hugepage"];

/// Whether a mapping with this name (`/proc/PID/maps`, records of perf) has no file: code in it was generated.
pub fn is_anonymous(path: &str) -> bool {
    path.is_empty() || ANONYMOUS.iter().any(|start| path.starts_with(start))
}

/// Whether code in a mapping with this name was generated if it turns out to be of no program.
pub(crate) fn may_be_generated(path: &str) -> bool {
    path.starts_with("/memfd:")
}

/// Whether a process maps a file to announce that it writes a jitdump into it.
pub(crate) fn is_dump(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let number = name.strip_prefix("jit-").and_then(|rest| rest.strip_suffix(".dump"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Reads either kind of file to its end, for tests with synthetic files; returns the names at an address.
#[doc(hidden)]
pub fn read_any(bytes: &[u8], address: u64) -> Vec<Location> {
    let (of_dump, _) = dump::read(&mut &bytes[..], Account::alone());
    let (of_map, _) = perf_map::read(&mut &bytes[..], Account::alone());
    let changes = of_dump.history(address).into_iter().chain(of_map.history(address));
    changes.flat_map(|(_, locations)| locations).chain(of_dump.last(address)).chain(of_map.last(address)).collect()
}

/// The names of the code that a process generated.
pub struct JitNames {
    /// The files' names in sentences, and their functions.
    dump: Option<(String, JitCode)>,
    map: Option<(String, JitCode)>,
    problems: Vec<String>,
    /// Too little of it was seen for a word about missing names.
    is_rare: bool,
    process: ProcessKey,
}

impl JitNames {
    /// The functions at an address: by the dump, or else by the map.
    fn named(&self, address: u64) -> Vec<Location> {
        let codes = [&self.dump, &self.map].into_iter().flatten();
        codes.map(|(_, code)| code.last(address)).find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// Whether a function at an address has a name.
    pub(crate) fn has_name(&self, address: u64) -> bool {
        !self.named(address).is_empty()
    }

    /// The function that was the last one at an address, or a word that there is no name.
    pub(crate) fn locate(&self, address: u64) -> Vec<Location> {
        let found = self.named(address);
        if !found.is_empty() {
            return found;
        }
        vec![Location::of_name(WITHOUT_NAME)]
    }

    /// What was at an address, one after the other, if it was not always the same.
    pub(crate) fn changes(&self, address: u64) -> Vec<Change> {
        let Some((_, dump)) = &self.dump else { return Vec::new() };
        let mut changes = dump.history(address);
        for (_, locations) in changes.iter_mut().filter(|(_, locations)| locations.is_empty()) {
            locations.push(Location::of_name(WITHOUT_NAME));
        }
        if changes.len() > 1 { changes } else { Vec::new() }
    }

    /// What a reader of the profile should know of the names at these addresses, one sentence each.
    pub(crate) fn warnings(&self, addresses: &BTreeSet<u64>) -> Vec<String> {
        let mut warnings = self.problems.clone();
        let process = self.process.pid;
        if let (None, Some((path, map))) = (&self.dump, &self.map) {
            let doubtful = addresses.iter().filter(|address| map.history(**address).len() > 1).count();
            if doubtful > 0 {
                warnings.push(format!(
                    "{path} names several functions for {doubtful} of {} addresses that were seen, and does not say when: the last one is shown; a jitdump has the times (node --perf-prof)",
                    addresses.len()
                ));
            }
        }
        if self.dump.is_none() && self.map.is_none() && self.problems.is_empty() && !self.is_rare {
            warnings.push(format!(
                "process {process} runs code that it generated, whose functions have no names: have it write a perf map (node --perf-basic-prof, DOTNET_PerfMapEnabled=1, PYTHONPERFSUPPORT=1) or a jitdump"
            ));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mapping_is() {
        assert!(["", "//anon", "[anon:v8]", "/dev/zero (deleted)"].into_iter().all(is_anonymous));
        assert!(may_be_generated("/memfd:doublemapper") && !is_anonymous("/memfd:doublemapper"));
        assert!(!["/usr/bin/node", "[vdso]", "[vsyscall]", "[stack]"].into_iter().any(is_anonymous));
        assert!(is_dump("/tmp/x/jit-4711.dump") && is_dump("jit-1.dump"));
        assert!(!["/tmp/jit-.dump", "/tmp/jit-x.dump", "/tmp/git-1.dump", "/jit-1.dump/x"].into_iter().any(is_dump));
    }
}
