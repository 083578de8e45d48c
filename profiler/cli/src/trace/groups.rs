//! The requested groups of events and functions, from the command line to the guest.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use glass_formats::trace::{GROUPS, Group};
use glass_profiler_core::symbols::Symbols;
use glass_profiler_core::trace::filter::Filter;
use glass_profiler_core::trace::sleds;
use glass_profiler_guests::files::HostFile;
use glass_profiler_guests::systems::glasshouse::{Guest, LiveSettings, Start};

/// A set of groups of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups(pub u32);

impl Groups {
    /// The request to a live guest: these groups from now on.
    pub fn live(self) -> LiveSettings {
        LiveSettings { groups: Some(self.0), functions: None, start: Start::Now, groups_after: None }
    }

    /// Their names, separated by commas.
    pub fn names(self) -> String {
        let names: Vec<&str> =
            GROUPS.iter().filter(|(group, _)| self.0 & *group as u32 != 0).map(|(_, name)| *name).collect();
        if names.is_empty() { "no events".to_owned() } else { names.join(",") }
    }
}

/// Reads a comma-separated list of groups. Fails with one sentence.
pub fn parse_groups(text: &str) -> Result<Groups, String> {
    Group::parse_list(text).map(Groups).map_err(|word| {
        let names: Vec<&str> = GROUPS.iter().map(|(_, name)| *name).collect();
        format!("there is no group of events `{word}`: take all, or some of {}", names.join(","))
    })
}

/// The subjects of tracing.
#[derive(clap::Args)]
pub struct GroupArgs {
    /// Groups of events, separated by commas: tasks, cores, devices, net, counters, spans, functions, mpi; `all`: every group except
    /// functions; `functions` without --functions: every function. An empty list: `glass trace` switches all groups off and ends.
    #[arg(long, value_name = "GROUPS", default_value = "all", value_parser = parse_groups)]
    pub groups: Groups,
    /// Trace calls of these functions too, in a program built with --trace-functions: a crate, a part of a path
    /// (`store`, `Store::push`), or a pattern with stars; may be given several times.
    #[arg(long, alias = "include", value_name = "PATTERN")]
    pub functions: Vec<String>,
    /// Functions to exclude.
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
}

impl GroupArgs {
    /// The groups, including functions if any are named.
    pub fn groups(&self) -> Groups {
        let has_patterns = !(self.functions.is_empty() && self.exclude.is_empty());
        Groups(self.groups.0 | if has_patterns { Group::Functions as u32 } else { 0 })
    }

    /// The request to a guest.
    pub fn settings(&self, guest: &Guest) -> Result<LiveSettings> {
        // The file at the path of a process may be another by now; its link still has the running one.
        let path = if guest.is_vm { guest.program.clone() } else { format!("/proc/{}/exe", guest.pid).into() };
        self.settings_of(&path, &guest.title)
    }

    /// The request to a guest that runs this program.
    pub fn settings_of(&self, program: &Path, title: &str) -> Result<LiveSettings> {
        let groups = self.groups();
        let mut settings = groups.live();
        if groups.0 & Group::Functions as u32 == 0 {
            return Ok(settings);
        }
        let file = HostFile::open(program).with_context(|| format!("cannot read {}", program.display()))?;
        let about = |error: String| anyhow!("functions of {title} cannot be traced: {error}");
        let table = sleds::functions(&file).map_err(|error| about(error.to_string()))?;
        let symbols = Symbols::read(&file).map_err(|error| about(format!("its program {error}")))?;
        let named = sleds::named(&table, &symbols);
        let choice = sleds::choose(&named, &Filter::new(&self.functions, &self.exclude)).map_err(|pattern| {
            anyhow!("no function that could be traced matches `{pattern}`: there are {} of them", named.len())
        })?;
        let is_chosen = |number: u32| {
            let word = choice.wanted.get(number as usize / 64).copied().unwrap_or(0);
            word >> (number % 64) & 1 != 0
        };
        let chosen = named.into_iter().filter(|function| is_chosen(function.number)).collect();
        settings.functions = Some((choice.wanted.clone(), chosen));
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_groups_and_what_is_none() {
        assert_eq!(parse_groups("tasks,devices"), Ok(Groups(5)));
        assert_eq!(parse_groups(""), Ok(Groups(0)));
        assert_eq!(Groups(5).names(), "tasks,devices");
        assert_eq!(Groups(0).names(), "no events");
        let error = parse_groups("tasks,disks").unwrap_err();
        assert!(error.contains("`disks`") && error.contains("devices"), "{error}");
    }
}
