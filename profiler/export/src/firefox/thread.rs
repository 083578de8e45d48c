//! One track, or one thread of a guest, as a thread of the Firefox Profiler: columns of samples, stacks, frames and functions.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use glass_profiler_core::images::KERNEL_NAME;
use glass_profiler_core::model::{Sample, State};
use glass_profiler_core::threads::SampledThread;
use glass_profiler_core::view::Layer;

use super::Strings;
use crate::States;
use crate::chains::{Chains, Series, title};
use crate::json::{self, Milliseconds, OrNull, column};

const RUNNING: u8 = 1;
const KERNEL: u8 = 2;
const SPINNING: u8 = 3;
const IDLE: u8 = 4;
const STOLEN: u8 = 5;
const IN_VMM: u8 = 6;
/// The first of [`Layer::ALL`].
const LAYERS: u8 = 7;
const WAITING: u8 = LAYERS + Layer::ALL.len() as u8;
/// Type of a resource: a library.
const LIBRARY: u8 = 1;

/// A frame: a step, its depth of inlining, and its category if that differs from its caller's.
type FrameKey = (u32, u32, Option<u8>);

/// The tables of a thread.
#[derive(Default)]
struct Tables {
    functions: HashMap<(usize, Option<usize>, Option<usize>), usize>,
    /// Name, resource, file.
    function_list: Vec<(usize, Option<usize>, Option<usize>)>,
    resources: HashMap<u32, usize>,
    /// Image and name.
    resource_list: Vec<(u32, usize)>,
    frames: HashMap<FrameKey, usize>,
    /// Function, line, depth, category.
    frame_list: Vec<(usize, Option<u32>, u32, Option<u8>)>,
    stacks: HashMap<(Option<usize>, usize), usize>,
    /// Caller and frame.
    stack_list: Vec<(Option<usize>, usize)>,
    /// By the profile's stack and state.
    known: HashMap<(u32, State), Option<usize>>,
}

impl Tables {
    /// The thread's stack of a sample.
    fn stack(&mut self, chains: &Chains<'_>, strings: &mut Strings, sample: &Sample) -> Option<usize> {
        if let Some(stack) = self.known.get(&(sample.stack, sample.state)) {
            return *stack;
        }
        let category = match sample.state {
            State::Running => RUNNING,
            State::Spinning => SPINNING,
            State::Stolen => STOLEN,
            State::InVmm => IN_VMM,
            State::Waiting => WAITING,
            _ => IDLE,
        };
        let mut stack = None;
        let mut depth = 0;
        let mut caller: Option<Layer> = None;
        // In a view without the VMM, what it did is the guest's function's, and a category of its own.
        let by_layer = sample.state != State::InVmm || chains.is_by_layer();
        for step in chains.chain(sample.stack, sample.state) {
            let what = &chains.steps[step as usize];
            depth = if what.inlined { depth + 1 } else { 0 };
            let own_category = match stack {
                _ if what.layer.is_some() && sample.state.is_active() && by_layer => {
                    let changes = stack.is_none() || what.layer != caller;
                    caller = what.layer;
                    what.layer.filter(|_| changes).map(|layer| LAYERS + layer.number() as u8)
                }
                _ if what.image == KERNEL_NAME && sample.state == State::Running => Some(KERNEL),
                None => Some(category),
                Some(_) => None,
            };
            let frame = self.frame(chains, strings, (step, depth, own_category));
            let next = self.stack_list.len();
            stack = Some(*self.stacks.entry((stack, frame)).or_insert_with(|| {
                self.stack_list.push((stack, frame));
                next
            }));
        }
        self.known.insert((sample.stack, sample.state), stack);
        stack
    }

    fn frame(&mut self, chains: &Chains<'_>, strings: &mut Strings, key: FrameKey) -> usize {
        if let Some(frame) = self.frames.get(&key) {
            return *frame;
        }
        let (step, depth, category) = key;
        let what = &chains.steps[step as usize];
        let resource = what.place.and_then(|place| place.image).map(|image| {
            let next = self.resource_list.len();
            *self.resources.entry(image).or_insert_with(|| {
                self.resource_list.push((image, strings.index(&what.image)));
                next
            })
        });
        let file = what.file.as_deref().map(|file| strings.index(file));
        let function = (strings.index(&what.name), resource, file);
        let next = self.function_list.len();
        let function = *self.functions.entry(function).or_insert_with(|| {
            self.function_list.push(function);
            next
        });
        self.frame_list.push((function, what.line, depth, category));
        self.frames.insert(key, self.frame_list.len() - 1);
        self.frame_list.len() - 1
    }
}

/// What the viewer shows of a thread.
struct Shown {
    name: String,
    process: String,
    pid: u32,
    tid: u64,
    /// The viewer shows a process by its main thread.
    is_main: bool,
}

impl Shown {
    /// Of a track: a thread of this machine, or a vCPU.
    fn of_track(chains: &Chains<'_>, track: u32) -> Shown {
        let process = chains.process(track);
        let id = |track: u32| chains.profile.tracks.get(track as usize).map_or(0, |track| track.id);
        let is_main = match process {
            None => (0..track).all(|before| chains.process(before).is_some()),
            Some(process) => {
                let main = process.tracks.iter().find(|track| id(**track as u32) == u64::from(process.pid));
                main.or(process.tracks.first()) == Some(&(track as usize))
            }
        };
        let (name, pid) =
            process.map_or_else(|| (title(chains.profile), 0), |process| (process.name.clone(), process.pid));
        Shown { name: chains.track_name(track), process: name, pid, tid: id(track), is_main }
    }

    /// Of a thread of a guest. `processes` has those that have a main thread.
    fn of_thread(chains: &Chains<'_>, thread: usize, processes: &mut HashSet<usize>) -> Shown {
        let SampledThread { process, name, tid } = &chains.threads.threads[thread];
        let is_main = processes.insert(*process);
        let process = &chains.threads.processes[*process];
        Shown { name: name.clone(), process: process.name.clone(), pid: process.pid, tid: (*tid).into(), is_main }
    }
}

/// Writes a series as a thread.
pub(super) fn write(
    chains: &Chains<'_>,
    strings: &mut Strings,
    series: &Series,
    processes: &mut HashSet<usize>,
    states: States,
    output: &mut dyn Write,
) -> io::Result<()> {
    let shown = match series.thread {
        None => Shown::of_track(chains, series.track),
        Some(thread) => Shown::of_thread(chains, thread, processes),
    };
    output.write_all(b"{\"name\":")?;
    json::string(output, &shown.name)?;
    output.write_all(b",\"processName\":")?;
    json::string(output, &shown.process)?;
    let Shown { pid, tid, is_main, .. } = shown;
    write!(
        output,
        ",\"processType\":\"default\",\"processStartupTime\":0,\"processShutdownTime\":null,\"registerTime\":0,\
         \"unregisterTime\":null,\"pausedRanges\":[],\"isMainThread\":{is_main},\"pid\":\"{pid}\",\"tid\":{tid},"
    )?;
    let samples = &series.samples;
    let mut tables = Tables::default();
    let sample = |index: &u32| &chains.profile.samples[*index as usize];
    let mut stacks = Vec::with_capacity(samples.len());
    for sample in samples.iter().map(sample) {
        stacks.push(if chains.is_exported(sample, states) { tables.stack(chains, strings, sample) } else { None });
    }
    write!(output, "\"samples\":{{\"length\":{},\"weight\":null,\"weightType\":\"samples\",", samples.len())?;
    column(output, "stack", stacks.iter().map(|stack| OrNull(*stack)))?;
    output.write_all(b",")?;
    column(output, "time", samples.iter().map(|index| Milliseconds(sample(index).time_ns)))?;
    output.write_all(b"},")?;
    write_tables(&tables, output)?;
    output.write_all(
        b"\"nativeSymbols\":{\"length\":0,\"libIndex\":[],\"address\":[],\"name\":[],\"functionSize\":[]},\
          \"markers\":{\"length\":0,\"data\":[],\"name\":[],\"startTime\":[],\"endTime\":[],\"phase\":[],\"category\":[]}}",
    )
}

fn write_tables(tables: &Tables, output: &mut dyn Write) -> io::Result<()> {
    let Tables { stack_list, frame_list, function_list, resource_list, .. } = tables;
    write!(output, "\"stackTable\":{{\"length\":{},", stack_list.len())?;
    column(output, "frame", stack_list.iter().map(|stack| stack.1))?;
    output.write_all(b",")?;
    column(output, "prefix", stack_list.iter().map(|stack| OrNull(stack.0)))?;

    write!(output, "}},\"frameTable\":{{\"length\":{},", frame_list.len())?;
    column(output, "func", frame_list.iter().map(|frame| frame.0))?;
    output.write_all(b",")?;
    column(output, "line", frame_list.iter().map(|frame| OrNull(frame.1)))?;
    output.write_all(b",")?;
    column(output, "inlineDepth", frame_list.iter().map(|frame| frame.2))?;
    output.write_all(b",")?;
    column(output, "category", frame_list.iter().map(|frame| OrNull(frame.3)))?;
    for (name, value) in [
        ("subcategory", "0"),
        // An address is only valid with a native symbol, which contains the library.
        ("address", "-1"),
        ("nativeSymbol", "null"),
        ("innerWindowID", "0"),
        ("column", "null"),
    ] {
        output.write_all(b",")?;
        column(output, name, frame_list.iter().map(|_| value))?;
    }

    write!(output, "}},\"funcTable\":{{\"length\":{},", function_list.len())?;
    column(output, "name", function_list.iter().map(|function| function.0))?;
    output.write_all(b",")?;
    column(output, "resource", function_list.iter().map(|function| function.1.map_or(-1, |resource| resource as i64)))?;
    output.write_all(b",")?;
    column(output, "fileName", function_list.iter().map(|function| OrNull(function.2)))?;
    for (name, value) in
        [("isJS", "false"), ("relevantForJS", "false"), ("lineNumber", "null"), ("columnNumber", "null")]
    {
        output.write_all(b",")?;
        column(output, name, function_list.iter().map(|_| value))?;
    }

    write!(output, "}},\"resourceTable\":{{\"length\":{},", resource_list.len())?;
    column(output, "lib", resource_list.iter().map(|resource| resource.0))?;
    output.write_all(b",")?;
    column(output, "name", resource_list.iter().map(|resource| resource.1))?;
    output.write_all(b",")?;
    column(output, "host", resource_list.iter().map(|_| "null"))?;
    output.write_all(b",")?;
    column(output, "type", resource_list.iter().map(|_| LIBRARY))?;
    output.write_all(b"},")
}
