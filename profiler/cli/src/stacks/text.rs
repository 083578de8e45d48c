//! Stacks as text: those of the kernel as it prints them itself.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use glass_profiler_core::event::Event;
use glass_profiler_core::files::FileSource;
use glass_profiler_core::guest::Mode;
use glass_profiler_core::images::{Images, JoinedStack, Names, Part};
use glass_profiler_core::linux::tasks::Task;
use glass_profiler_core::names::printable;
use glass_profiler_core::tree::{Broken, Kind};
use glass_profiler_core::unwind::CallAddress;

/// What the lines above stacks have.
pub const HEADING: &str = "PID TID NAME STATE";
const INDENT: &str = "    ";
/// What stands for code of which nothing is known starts with it.
const STAND_IN: char = '[';

/// Makes the text.
#[derive(Default)]
pub struct Writer {
    text: String,
    /// The names in images; `None` if there are none.
    names: BTreeMap<u32, Option<Names>>,
    /// Kernels, whose functions are printed without a file.
    kernels: HashSet<String>,
}

impl Writer {
    /// Takes note of what the kernel is.
    pub fn learn(&mut self, event: &Event) {
        if let Event::Place { program, .. } = event
            && program.is_kernel
            && program.is_whole
        {
            self.kernels.insert(program.name.clone());
        }
    }

    /// The text since the last time.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// The line above the stack of a task.
    pub fn head(&mut self, task: &Task) {
        let Task { pid, tid, state, .. } = task;
        let name = printable(&task.name);
        let name = if task.is_kernel_thread { format!("[{name}]") } else { name };
        self.line(&format!("{pid} {tid} {name} {}", state.letter()));
    }

    /// A task without one.
    pub fn without_stack(&mut self, task: &Task, why: &str) {
        self.head(task);
        self.line(&format!("{INDENT}({why})"));
    }

    /// A stack: first the kernel's part, then the process's.
    pub fn stack(&mut self, stack: &JoinedStack, images: &Images, files: &mut dyn FileSource) {
        if stack.parts.is_empty() {
            return self.line(&format!("{INDENT}(no stack)"));
        }
        let mut first = 0;
        for part in &stack.parts {
            if part.mode == Mode::User {
                self.line("  in the process:");
            }
            let end = first + part.calls as usize;
            for (index, call) in (first..end).zip(stack.calls.get(first..end).unwrap_or_default()) {
                let is_exact = index == first || stack.interrupted.contains(&(index as u32));
                self.frame(*call, is_exact, part.mode, images, files);
            }
            self.end(part);
            first = end;
        }
    }

    /// Why there are no more callers.
    fn end(&mut self, part: &Part) {
        if let Some(broken) = Broken::of(part.end) {
            self.line(&format!("{INDENT}{}", Kind::Broken(broken).label()));
        }
    }

    fn frame(&mut self, call: CallAddress, is_exact: bool, mode: Mode, images: &Images, files: &mut dyn FileSource) {
        let Some(image) = call.image else {
            return self.line(&format!("{INDENT}{:#x}", call.address));
        };
        let path = images.file(image).map(|file| file.path.clone()).unwrap_or_default();
        let names = self.names.entry(image).or_insert_with(|| images.names(image, files).ok());
        let names = names.as_ref().filter(|names| !matches!(names, Names::Fixed(_)));
        let locations = names.map(|names| names.locate(call.address)).unwrap_or_default();
        let span = names.and_then(|names| names.span(call.address));
        // A return address is behind its call.
        let address = if is_exact { call.address } else { call.address.wrapping_add(1) };
        let file = match mode {
            Mode::Kernel if self.kernels.contains(&path) => String::new(),
            _ if path.starts_with(STAND_IN) => format!(" {}", printable(&path)),
            _ => format!(" [{}]", printable(&path)),
        };
        let (inlined, function) = match locations.split_last() {
            Some((function, inlined)) => (inlined, printable(&function.function)),
            None => (&[][..], format!("{address:#x}")),
        };
        for location in inlined {
            self.line(&format!("{INDENT}{} (inlined)", printable(&location.function)));
        }
        let mut line = format!("{INDENT}{function}");
        if let Some(span) = span.filter(|_| !locations.is_empty()) {
            let _ = write!(line, "+{:#x}/{:#x}", address.wrapping_sub(span.start), span.end.wrapping_sub(span.start));
        }
        self.line(&(line + &file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glass_profiler_core::arch::Architecture;
    use glass_profiler_core::arch::x86_64::Registers;
    use glass_profiler_core::event::{RawSample, Segment};
    use glass_profiler_core::files::NoFiles;
    use glass_profiler_core::guest::{Guest, GuestId, GuestKind, SpaceId};
    use glass_profiler_core::image::Image;
    use glass_profiler_core::map::SymbolMap;
    use glass_profiler_core::program::{NamesFrom, Parts, Program};
    use std::sync::Arc;

    #[test]
    fn a_stack_is_printed_as_by_the_kernel() {
        let map = Arc::new(SymbolMap::parse(b"0000000000001000 T work\n0000000000001010 T a\x1bstart\n", &[]).unwrap());
        let image = Arc::new(Image::of_map(&map, 0x1000..0x1020, None));
        let names = vec![NamesFrom::Map(map)];
        let parts = Parts { name: "linux-6".to_owned(), image, names, is_whole: true, is_kernel: true };
        let kind = GuestKind::Vm { vmm: 1 };
        let guest = Guest { id: GuestId(0), kind, name: String::new(), architecture: Architecture::X86_64 };
        let events = [
            Event::Guest(guest),
            Event::Space { space: SpaceId(0), guest: GuestId(0), process: None, copy_of: None },
            Event::Place { space: SpaceId(0), range: 0x1000..0x1020, bias: 0, program: Program::new(parts) },
        ];
        let (mut images, mut writer) = (Images::default(), Writer::default());
        for event in &events {
            writer.learn(event);
            images.learn(event, &mut NoFiles);
        }
        // A frame that returns into the second function, and a process of which nothing is known.
        let words: [u64; 4] = [0, 0, 0, 0x1018];
        let stack = vec![(0x7000, words.iter().flat_map(|word| word.to_le_bytes()).collect())];
        let registers = Registers::new(0x1008, 0x7000, 0x7010).into();
        let kernel = Segment { mode: Mode::Kernel, registers, stack, ..Segment::default() };
        let registers = Registers::new(0x40_1000, 0x7fff_0000, 0).into();
        let user = Segment { mode: Mode::User, registers, ..Segment::default() };
        let mut task = Task::default();
        (task.pid, task.tid, task.name) = (7, 8, "a b".to_owned());
        let joined = images.unwind(&RawSample { segments: vec![kernel, user], ..RawSample::default() });
        writer.head(&task);
        writer.stack(&joined, &images, &mut NoFiles);
        task.is_kernel_thread = true;
        writer.without_stack(&task, "on a CPU");
        let expected = "7 8 a b ?\n    work+0x8/0x10\n    a\u{fffd}start+0x8/0xff0\n  in the process:\n    0x401000 [guest user space]\n\
             7 8 [a b] ?\n    (on a CPU)\n";
        assert_eq!(writer.take(), expected);
    }
}
