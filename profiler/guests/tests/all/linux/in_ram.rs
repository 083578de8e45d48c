//! What is read out of the RAM of a stock Linux is what that Linux reports of itself. All kernels: `cargo xtask test --long`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::linux::btf::Btf;
use glass_profiler_core::linux::files::{self, File};
use glass_profiler_core::linux::inferred::{Inferred, Refusal};
use glass_profiler_core::linux::kernel::Kernel;
use glass_profiler_core::linux::mappings::{self, EXECUTE, READ, SHARED, Vma, WRITE};
use glass_profiler_core::linux::page_cache::{CachedFile, PageCache};
use glass_profiler_core::linux::space::Space;
use glass_profiler_core::linux::structures::Layout;
use glass_profiler_core::linux::tasks::{self, Activity, Task, TaskState};
use glass_profiler_core::linux::{current, modules, vdso};
use glass_profiler_guests::memory::Ram;
use glass_tests::limit::{say, within};
use glass_tests::linux_guest::truth::{MapsLine, Process, Truth};
use glass_tests::linux_guest::{Guest, Parts, Release, Settings};
use glass_tests::programs::{is_long, skip};

use super::changed;

/// How long a guest may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(720);
const PAGE_BYTES: u64 = 4096;
/// The vDSO of AArch64 has 3.3 KiB, and that of x86-64 two or three pages.
const VDSO_BYTES_LEAST: usize = 3000;
/// The longest name of a task.
const NAME_BYTES: usize = 15;
/// A tick of `/proc/PID/stat`.
const TICK_NS: u64 = 10_000_000;
/// Ticks that a vCPU may be without a CPU of the host between two reads of clocks.
const TICKS_BETWEEN_CLOCKS_MAX: u64 = 2;
/// The process that writes the truth: when the guest is stopped it has ended, and so has the shell that started it.
const COLLECTS: &str = "collect";
/// The least pages of programs that a guest has in memory after its programs have started.
const PAGES_LEAST: usize = 1000;
/// Mappings without a file that the kernel shows with a name: it derives this from their addresses, or has it beside them.
const NAMED: [&str; 6] = ["[heap]", "[stack]", "[vdso]", "[vvar]", "[vvar_vclock]", "[uprobes]"];
/// The page that the kernel shows in each process and has in none.
const GATE: &str = "[vsyscall]";

/// A guest that is stopped, and what is known of its kernel from its RAM.
struct InRam<'a> {
    ram: &'a Ram,
    kernel: &'a Kernel,
    types: &'a dyn Layout,
    tasks: &'a tasks::Offsets,
    truth: &'a Truth,
}

/// The guest's name in messages.
fn name_of(settings: &Settings) -> String {
    let isolated = if settings.isolation { ", isolated" } else { "" };
    format!("Linux {}{isolated}", settings.release)
}

/// Boots a guest with programs, stops it, and compares.
fn check(settings: &Settings) {
    let parts = match Parts::get(settings.release) {
        Ok(parts) => parts,
        Err(reason) => {
            let reason = format!("{reason:#}");
            return skip(&format!("no {}: {}", name_of(settings), reason.lines().next().unwrap_or_default()));
        }
    };
    // What is inferred without the kernel's types may be refused of a guest that shows too little of it, of two hardly.
    if let Err(refusal) = check_guest(settings, &parts) {
        say(&format!("{}: {refusal}; another one is booted", name_of(settings)));
        check_guest(settings, &parts).unwrap_or_else(|refusal| panic!("{}: {refusal}", name_of(settings)));
    }
}

fn check_guest(settings: &Settings, parts: &Parts) -> Result<(), Refusal> {
    let mut guest = Guest::boot(parts, settings).unwrap();
    guest.start_programs().unwrap();
    let truth = guest.collect().unwrap();
    let is_aarch64 = settings.release.is_aarch64();
    let architecture = if is_aarch64 { Architecture::Aarch64 } else { Architecture::X86_64 };
    let candidates = Ram::candidates(guest.pid(), architecture).unwrap();
    let found = candidates.iter().find_map(|ram| Some((ram, Kernel::find(ram, &ram.ranges())?)));
    let (ram, mut kernel) = found.unwrap_or_else(|| panic!("{}: no kernel in its RAM", name_of(settings)));
    assert_eq!(kernel.banner, truth.banner);
    assert_eq!(kernel.release(), parts.kernel.version);
    assert!(kernel.is_there(ram) && kernel.architecture() == architecture);
    let types = kernel.types(ram);
    let described = types.as_deref().map(|types| Btf::parse(types, None).expect("the description can be parsed"));
    let inferred = match &described {
        Some(types) if is_aarch64 => Inferred::of_described(&kernel, ram, types),
        _ => Inferred::of(&kernel, ram),
    };
    let inferred = inferred?;
    let mut counts = Vec::new();
    match &described {
        Some(types) if !is_aarch64 => counts.push(compare(ram, &kernel, types, &inferred)),
        _ => kernel.learn(&inferred),
    }
    let types: &dyn Layout = described.as_ref().map_or(&inferred, |types| types);
    let tasks = tasks::Offsets::of(types).unwrap();
    let in_ram = InRam { ram, kernel: &kernel, types, tasks: &tasks, truth: &truth };
    counts.push(in_ram.symbols());
    counts.extend(described.is_some().then(|| in_ram.modules()));
    counts.extend([in_ram.tasks(), in_ram.current(settings.vcpus as usize), in_ram.mappings(&parts.root.files)]);
    say(&format!("{}: {}", name_of(settings), counts.join("; ")));
    // One that describes its types, and one that does not.
    let is_long_case = is_aarch64 && is_long();
    if described.is_none() || settings.release == Release::Bookworm61 || is_long_case {
        say(&format!("{}: {}", name_of(settings), changed::check(ram, &kernel, types)));
    }
    Ok(())
}

/// What is inferred without the kernel's types and symbols of data is what these have.
fn compare(ram: &Ram, kernel: &Kernel, types: &Btf<'_>, inferred: &Inferred) -> String {
    let offset = |structure: &str, path: &str| types.member(structure, path).map(|member| member.offset);
    let mut count = 0;
    for (path, found) in inferred.fields() {
        let (structure, member) = path.split_once('.').unwrap();
        // Their names in older kernels.
        let older = match path {
            "task_struct.__state" => offset(structure, "state"),
            _ => offset(structure, member),
        };
        let expected =
            offset(structure, member).or(older).or_else(|| offset(&structure.replace("folio", "page"), member));
        assert_eq!(Some(found.at), expected, "{path}");
        count += 1;
    }
    for (structure, bytes) in inferred.sizes() {
        assert_eq!(Some(bytes), types.bytes_of(structure).or((structure == "thread_union").then_some(16 << 10)));
    }
    for (path, value) in inferred.enumerators() {
        let (enumeration, name) = path.split_once('.').unwrap();
        assert_eq!(Some(value), types.enumerator(enumeration, name), "{path}");
    }
    let hot = kernel.symbols.address("pcpu_hot").zip(types.member("pcpu_hot", "current_task"));
    for (name, at) in inferred.addresses() {
        let expected = match (name, hot) {
            ("current_task", Some((start, member))) => Some(start + u64::from(member.offset)),
            ("vdso_image_64", _) => kernel.symbols.address(name).or_else(|| kernel.symbols.address("vdso64_image")),
            _ => kernel.symbols.address(name),
        };
        assert_eq!(Some(at), expected, "{name}");
    }
    for (name, value) in inferred.values() {
        assert_eq!(Some(value), kernel.value(ram, name), "{name}");
    }
    assert!(count > 50, "{count} members");
    // The kernel itself is found by its functions alone.
    let by_functions = Kernel::find_by_functions(ram, &ram.ranges()).expect("a kernel by its functions");
    let all =
        |kernel: &Kernel| (kernel.paging, kernel.text, kernel.text_physical, kernel.banner.clone(), kernel.ticks(ram));
    assert_eq!(all(&by_functions), all(kernel));
    assert_eq!(by_functions.types(ram), kernel.types(ram));
    format!("{count} members inferred as they are described")
}

/// Programs in Go: they run while they are compared.
const GO: [&str; 2] = ["goroutines", "go-calls-c"];

impl InRam<'_> {
    fn is_aarch64(&self) -> bool {
        self.kernel.architecture() == Architecture::Aarch64
    }

    fn space(&self) -> Space<'_> {
        self.kernel.space(self.ram)
    }

    /// Each symbol of the kernel has its address, its kind and its name, in the kernel's order.
    fn symbols(&self) -> String {
        let own: Vec<_> = self.truth.kallsyms.iter().filter(|symbol| symbol.module.is_none()).collect();
        for (found, expected) in self.kernel.symbols.symbols().zip(&own) {
            let expected = (expected.address, expected.kind, expected.name.as_str());
            assert_eq!((found.address, char::from(found.kind), found.name), expected);
        }
        assert_eq!(self.kernel.symbols.symbols().count(), own.len());
        let first = if self.is_aarch64() { "_stext" } else { "_text" };
        assert_eq!(self.truth.address(first), Some(self.kernel.text));
        format!("{} symbols", own.len())
    }

    /// Each module has the functions that the kernel lists, in its order, and unwind tables.
    fn modules(&self) -> String {
        let offsets = modules::Offsets::of(self.types).unwrap();
        let found = modules::list(self.kernel, self.ram, &offsets).expect("the kernel has a list of modules");
        let names: BTreeSet<&str> = found.iter().map(|module| module.name.as_str()).collect();
        let expected: BTreeSet<&str> = self.truth.modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, expected);
        let mut count = 0;
        for module in &found {
            let of_module = |symbol: &&_| is_function_of(symbol, &module.name);
            let functions = self.truth.kallsyms.iter().filter(of_module);
            let functions: Vec<(u64, &str)> = functions.map(|symbol| (symbol.address, symbol.name.as_str())).collect();
            assert_eq!(module.symbols().collect::<Vec<_>>(), functions, "{}", module.name);
            assert_eq!(module.unwind.is_some(), !self.is_aarch64(), "{}: unwind tables", module.name);
            count += functions.len();
        }
        assert!(count > 0);
        format!("{} modules with {count} functions", found.len())
    }

    /// Each thread has what `/proc` has of it. Allowed: the process that wrote `/proc` down and its shell, which are gone, and workers of the
    /// kernel and threads of Go that were started or ended since; the longer names of those. A state is compared if the thread did not run since.
    fn tasks(&self) -> String {
        let found = self.list();
        let by_tid: BTreeMap<u32, &Task> = found.iter().map(|task| (task.tid, task)).collect();
        assert_eq!(by_tid.len(), found.len(), "two tasks have one ID");
        let truth = &self.truth.tasks;
        let collects = truth.values().find(|task| task.name == COLLECTS).expect("what collects the truth is in it");
        let is_gone = |tid: u32| tid == collects.tid || tid == collects.parent;
        let missing = truth.values().filter(|task| !by_tid.contains_key(&task.tid) && !is_gone(task.tid));
        let missing: Vec<_> = missing.filter(|task| !task.name.starts_with("kworker/")).collect();
        assert!(missing.is_empty(), "{missing:?}");
        let added = found.iter().filter(|task| !truth.contains_key(&task.tid));
        let may_start = |name: &str| name.starts_with("kworker/") || GO.contains(&name);
        let added: Vec<_> = added.filter(|task| !may_start(&task.name)).collect();
        assert!(added.is_empty(), "{added:?}");
        let (space, mut still, mut equal, mut renamed) = (self.space(), 0, 0, Vec::new());
        for task in &found {
            let Some(expected) = truth.get(&task.tid) else { continue };
            assert_eq!((task.tid, task.pid), (expected.tid, expected.pid));
            assert_eq!(Activity::read(&space, task.address, self.tasks), Some(task.activity()));
            let is_busy = task.is_on_cpu || matches!(task.state, TaskState::Runnable | TaskState::Blocked);
            assert_eq!(Activity::is_busy(&space, task.address, self.tasks), Some(is_busy), "{task:?}");
            // Of a thread of the kernel, `/proc` has names that do not fit into a `comm`, and adds what a worker works at.
            let is_part = task.is_kernel_thread && expected.name.starts_with(&task.name);
            let is_long = task.name.starts_with("kworker/") || task.name.len() == NAME_BYTES;
            if task.name != expected.name && !(is_part && is_long) {
                renamed.push((task.name.clone(), expected.name.clone()));
            }
            // The kernel reads two clocks one after the other, and /proc has the second one.
            let started = task.start_ns / TICK_NS;
            assert!((started..=started + TICKS_BETWEEN_CLOCKS_MAX).contains(&expected.start_ticks), "{task:?}");
            let leader =
                Task::read(&space, task.leader, self.tasks).expect("the first thread of a process can be read");
            assert_eq!(leader.tid, expected.pid);
            let parent = Task::read(&space, task.parent, self.tasks).expect("a parent can be read");
            assert!(parent.pid == expected.parent || is_gone(expected.parent), "{task:?} {expected:?}");
            let tids = task.namespace_tids(&space, self.tasks).expect("the IDs of a task can be read");
            assert_eq!(tids, expected.namespace_ids);
            // Where control groups are is not inferred.
            let cgroup = task.cgroup(&space, self.tasks);
            let has_cgroup = self.types.field("css_set", "dfl_cgrp").is_some();
            assert_eq!(cgroup.is_some(), has_cgroup, "{task:?}");
            assert!(cgroup.is_none_or(|path| path == self.truth.processes[&task.pid].control_group), "{task:?}");
            assert_eq!(task.mm == 0, self.truth.processes[&task.pid].maps.is_empty(), "{task:?}");
            equal += 1;
            // One that was woken is counted as switched only when it waits again, and `/proc` has its state before it has the count.
            let is_woken = task.is_on_cpu || task.state == TaskState::Runnable || expected.state == 'R';
            if !is_woken && <[u64; 2]>::from(expected.switches) == task.switches {
                assert_eq!(task.state.letter(), expected.state, "{task:?} {expected:?}");
                still += 1;
            }
        }
        // A thread may name itself between the guest's list and this one.
        assert!(renamed.len() <= 1, "{renamed:?}");
        assert!(still > 50 && equal > 60, "{still} of {equal} did not run");
        format!("{equal} threads, {still} of which did not run")
    }

    fn list(&self) -> Vec<Task> {
        let found = tasks::list(self.kernel, self.ram, self.tasks).expect("the kernel has a list of tasks");
        assert_eq!((found.torn, found.left_out), (0, 0), "a guest that is stopped changes nothing");
        found.tasks
    }

    /// Each CPU has a task, which is on it.
    fn current(&self, cpus: usize) -> String {
        let slots = current::slots(self.kernel, self.ram, self.types);
        assert_eq!(slots.len(), cpus);
        for slot in &slots {
            let mut address = [0; 8];
            assert!(glass_profiler_core::memory::Physical::read(self.ram, *slot, &mut address));
            let task = Task::read(&self.space(), u64::from_le_bytes(address), self.tasks);
            let task = task.expect("a CPU has a task");
            assert!(task.is_on_cpu && (task.tid == 0 || self.truth.tasks.contains_key(&task.tid)), "{task:?}");
        }
        format!("{} CPUs", slots.len())
    }

    /// The mappings of each process, and what the guest has in memory of the programs among them.
    fn mappings(&self, root: &Path) -> String {
        let (space, mut lines, mut processes) = (self.space(), 0, 0);
        let offsets = mappings::Offsets::of(self.types).unwrap();
        let of_files = files::Offsets::of(self.types).unwrap();
        let mut programs: BTreeMap<String, File> = BTreeMap::new();
        for task in self.list().iter().filter(|task| task.tid == task.pid && task.mm != 0) {
            let Some(expected) = self.truth.processes.get(&task.pid) else { continue };
            let found = mappings::list(&space, task.mm, &offsets).expect("mappings can be read");
            let of = mappings::address_space(&space, task.mm, &offsets, self.kernel.paging);
            let of = of.expect("an address space can be read");
            let program = of.program.and_then(|at| files::file(&space, at, &of_files));
            assert_eq!(program.and_then(|file| file.path), expected.program);
            let vdso = expected.maps.iter().find(|line| line.path == "[vdso]").map_or(0, |line| line.start);
            assert_eq!(of.vdso, vdso);
            lines += self.lines(&space, (&found, expected), &of_files, &mut programs, task);
            processes += 1;
        }
        assert!(processes > 20, "{processes} processes");
        let vdso = vdso::vdso(&space, self.types, |name| self.kernel.address(name));
        assert!(vdso.is_some_and(|bytes| bytes.len() >= VDSO_BYTES_LEAST));
        format!("{lines} lines of {processes} processes; {}", self.pages(root, &programs))
    }

    /// Compares the mappings of a process with the lines of its `maps`; returns how many there are. Allowed: the kernel shows [`GATE`] in each
    /// process; what it calls a mapping without a file is not read; of the shell on the console the heap may have grown; of Go's heap, the border to what is
    /// only reserved may have moved; and a process that ran since the guest listed them may have others without a file.
    fn lines(
        &self,
        space: &Space<'_>,
        (found, expected): (&[Vma], &Process),
        of_files: &files::Offsets,
        programs: &mut BTreeMap<String, File>,
        task: &Task,
    ) -> usize {
        let expected: Vec<&MapsLine> = expected.maps.iter().filter(|line| line.path != GATE).collect();
        let ranges = |lines: Vec<(u64, u64)>| lines.iter().map(|(start, end)| format!("{start:x}-{end:x}")).collect();
        let found_ranges: Vec<String> = ranges(found.iter().map(|vma| (vma.start, vma.end)).collect());
        let expected_ranges: Vec<String> = ranges(expected.iter().map(|line| (line.start, line.end)).collect());
        let listed = self.truth.tasks.get(&task.tid).map(|listed| <[u64; 2]>::from(listed.switches));
        let may_move = GO.contains(&task.name.as_str()) || task.is_on_cpu || listed != Some(task.switches);
        if may_move && found_ranges != expected_ranges {
            let found_files: Vec<_> =
                found.iter().filter(|vma| vma.file.is_some()).map(|vma| (vma.start, vma.end)).collect();
            let expected_files: Vec<_> =
                expected.iter().filter(|line| line.inode != 0).map(|line| (line.start, line.end)).collect();
            assert_eq!(found_files, expected_files, "{task:?}");
            return found.len();
        }
        assert_eq!(found_ranges, expected_ranges, "{task:?}");
        for (vma, line) in found.iter().zip(&expected) {
            assert_eq!(rights(vma), line.rights, "{line:?}");
            let Some(at) = vma.file else {
                let is_named = NAMED.contains(&line.path.as_str()) || line.path.starts_with("[anon:");
                assert!(line.path.is_empty() || is_named, "{line:?}");
                assert_eq!((line.offset, line.device, line.inode), (0, (0, 0), 0), "{line:?}");
                continue;
            };
            let file = files::file(space, at, of_files).unwrap_or_else(|| panic!("no file of {line:?}"));
            let path = file.path.clone().unwrap_or_else(|| panic!("no path of {line:?}"));
            let shown = if file.is_deleted { format!("{path} (deleted)") } else { path.clone() };
            assert_eq!(
                (vma.page_offset * PAGE_BYTES, (file.device.major, file.device.minor), file.inode, &shown),
                (line.offset, line.device, line.inode, &line.path),
                "{task:?}"
            );
            assert!(file.contents.is_some(), "no contents of {line:?}");
            programs.insert(path, file);
        }
        expected.len()
    }

    /// The pages that the guest has of each mapped file of its root are what is in the file on this machine. Those of programs are counted.
    fn pages(&self, root: &Path, programs: &BTreeMap<String, File>) -> String {
        let base = self.kernel.value(self.ram, "vmemmap_base");
        let cache = PageCache::of(self.types, self.kernel.paging, base).unwrap();
        let (mut files, mut there, mut all) = (0, 0, 0);
        for (path, file) in programs {
            let Ok(expected) = std::fs::read(root.join(path.trim_start_matches('/'))) else { continue };
            assert_eq!(file.bytes, expected.len() as u64, "{path}");
            let contents = file.contents.expect("the files of disks have contents");
            let cached = CachedFile::new(self.ram, cache, contents, file.bytes);
            let mut of_file = 0;
            for (index, page) in expected.chunks(PAGE_BYTES as usize).enumerate() {
                let mut bytes = vec![0; page.len()];
                all += 1;
                if cached.read_at(index as u64 * PAGE_BYTES, &mut bytes) {
                    assert!(bytes == page, "page {index} of {path} differs");
                    of_file += 1;
                }
            }
            assert!(of_file > 0, "no page of {path} is in memory");
            (files, there) = (files + 1, there + of_file);
        }
        for program in ["/app/without-fp", "/app/static-musl", "/app/deep", "/usr/bin/python3.11", "/bin/busybox"] {
            let is_there = programs.contains_key(program) || (self.is_aarch64() && program == "/app/deep");
            assert!(is_there, "{program} is not mapped");
        }
        assert!(there > PAGES_LEAST, "{there} pages");
        format!("{there} of {all} pages of {files} files are in memory and equal")
    }
}

fn is_function_of(symbol: &glass_tests::linux_guest::truth::Symbol, module: &str) -> bool {
    symbol.module.as_deref() == Some(module) && matches!(symbol.kind, 't' | 'T' | 'w' | 'W')
}

/// As `/proc/PID/maps` shows them.
fn rights(vma: &Vma) -> String {
    let letter = |flag: u64, letter: char| if vma.flags & flag != 0 { letter } else { '-' };
    let shared = if vma.flags & SHARED != 0 { 's' } else { 'p' };
    [letter(READ, 'r'), letter(WRITE, 'w'), letter(EXECUTE, 'x'), shared].iter().collect()
}

#[test]
fn what_is_in_ram_is_what_the_guest_lists_6_1() {
    within(LIMIT, || check(&Settings::new(Release::Bookworm61)));
}

#[test]
fn what_is_in_ram_is_what_the_guest_lists_aarch64() {
    within(LIMIT, || check(&Settings::new(Release::BookwormArm61)));
}

#[test]
fn what_is_in_ram_is_what_the_guest_lists_newest() {
    within(LIMIT, || check(&Settings::new(Release::Newest)));
}

/// A kernel like Firecracker's, which is built where the cache has it not.
#[test]
fn what_is_in_ram_is_what_the_guest_lists_without_types() {
    if !is_long() {
        return skip("a kernel is built by --long");
    }
    match Parts::without_types() {
        Ok(parts) => within(LIMIT * 10, move || check_guest(&Settings::without_types(), &parts).unwrap()),
        Err(reason) => skip(&format!("no kernel without types: {reason:#}")),
    }
}

#[test]
fn what_is_in_ram_is_what_the_guest_lists_others() {
    if !is_long() {
        return skip("other kernels than 6.1 and the newest are booted by --long");
    }
    for settings in Settings::others().into_iter().filter(|settings| settings.release != Release::Newest) {
        within(LIMIT, move || check(&settings));
    }
}
