//! Folded stacks: one line for each, `outer;inner count`. Of several processes each is a root, with its process ID.
//!
//! Of host and guest, names end in the letters with which perf marks modes, as in `stackcollapse-perf.pl --kernel`: `_[k]` the host's kernel,
//! `_[g]` the guest's kernel, `_[u]` processes of the guest; the VMM's have none. In the guest's view none has one.
//! The format cannot represent a semicolon in a name, so it becomes a colon, as in inferno's collapsers.

use std::collections::HashMap;
use std::io::{self, Write};

use glass_profiler_core::recording::Recording;
use glass_profiler_core::view::Layer;

use crate::Options;
use crate::chains::{Chains, Step};

pub(crate) fn write(recording: &Recording, options: Options<'_>, output: &mut dyn Write) -> io::Result<()> {
    let chains = Chains::new(recording);
    let by_layer = chains.is_by_layer();
    let names = chains.steps.iter().map(|step| name(step, options.lines) + if by_layer { mark(step) } else { "" });
    let names: Vec<String> = names.collect();
    let mut lines: HashMap<String, u64> = HashMap::new();
    let mut line = String::new();
    for (group, count) in chains.groups(options.states) {
        line.clear();
        if let Some(process) = chains.root_process(group.track) {
            line.push_str(&format!("{} {}", process.name, process.pid).replace(';', ":"));
        }
        for step in chains.chain(group.stack, group.state()) {
            if !line.is_empty() {
                line.push(';');
            }
            line.push_str(&names[step as usize]);
        }
        match lines.get_mut(&line) {
            Some(known) => *known += count,
            None => _ = lines.insert(line.clone(), count),
        }
    }
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_unstable();
    for (line, count) in lines {
        writeln!(output, "{line} {count}")?;
    }
    Ok(())
}

/// The mode of a function, as its name ends.
fn mark(step: &Step) -> &'static str {
    match step.layer.filter(|_| step.place.is_some()) {
        Some(Layer::HostKernel) => "_[k]",
        Some(Layer::GuestKernel) => "_[g]",
        Some(Layer::GuestUser) => "_[u]",
        Some(Layer::Vmm) | None => "",
    }
}

fn name(step: &Step, with_line: bool) -> String {
    let name = match (&step.file, step.line) {
        (Some(file), Some(line)) if with_line => format!("{} ({file}:{line})", step.name),
        (Some(file), None) if with_line => format!("{} ({file})", step.name),
        _ => step.name.clone(),
    };
    name.replace(';', ":")
}
