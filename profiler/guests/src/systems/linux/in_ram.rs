//! A Linux guest by what is in its RAM: no file is needed, and no vCPU is stopped.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;

use glass_profiler_core::arch::x86_64::orc::OrcTable;
use glass_profiler_core::arch::{Architecture, Paging};
use glass_profiler_core::linux::btf::Btf;
use glass_profiler_core::linux::inferred::Inferred;
use glass_profiler_core::linux::kernel::Kernel;
use glass_profiler_core::linux::modules::{self, Module};
use glass_profiler_core::linux::page_cache::PageCache;
use glass_profiler_core::linux::structures::Layout;
use glass_profiler_core::linux::tasks::Task;
use glass_profiler_core::linux::{current, files, mappings, open_files, sleeping, tasks, vdso};
use glass_profiler_core::map::SymbolMap;

use super::Linux;
use super::outside::Outside;
use super::processes::{Numbered, Processes};
use crate::error::GuestError;
use crate::memory::{LiveSpace, Machine, Physical};
use crate::systems::landmarks;
use crate::systems::plan::TaskPlan;
use crate::systems::symbols::{GuestProgram, map_range};

/// A kernel in the RAM of its VM.
pub(crate) struct InRam {
    memory: Arc<dyn Machine>,
    kernel: Kernel,
    modules: Vec<Module>,
    /// The error is why they are not known, in a sentence.
    types: Result<Types, String>,
}

/// Where the kernel's structures have what is read of them.
#[derive(Clone)]
pub(super) struct Types {
    pub(super) tasks: tasks::Offsets,
    pub(super) sleeping: sleeping::Offsets,
    pub(super) mappings: mappings::Offsets,
    pub(super) files: files::Offsets,
    /// Where processes have their descriptors, if that is described.
    pub(super) open_files: Option<open_files::Offsets>,
    /// Where the pages of files are; the error is why that is not known.
    pub(super) pages: Result<PageCache, String>,
    /// Where the pointers to the tasks of CPUs are.
    slots: Vec<u64>,
    /// The program that the kernel maps into each process.
    pub(super) vdso: Option<Arc<[u8]>>,
}

impl Types {
    /// The error is a member that the kernel's types lack.
    fn of(kernel: &Kernel, memory: &dyn Physical, layout: &dyn Layout) -> Result<Types, String> {
        let space = kernel.space(memory);
        let vdso = vdso::vdso(&space, layout, |name| kernel.address(name));
        Ok(Types {
            tasks: tasks::Offsets::of(layout)?,
            sleeping: sleeping::Offsets::of(layout),
            mappings: mappings::Offsets::of(layout)?,
            files: files::Offsets::of(layout)?,
            open_files: open_files::Offsets::of(layout).ok(),
            pages: PageCache::of(layout, kernel.paging, kernel.value(memory, "vmemmap_base"))
                .map_err(|what| format!("it lacks {what}")),
            slots: current::slots(kernel, memory, layout),
            vdso: vdso.map(Arc::from),
        })
    }
}

impl InRam {
    /// Searches memories, any of which may be the guest's. Returns which of them has a kernel, and that.
    pub(crate) fn find(memories: &[Arc<dyn Machine>]) -> Option<(usize, InRam)> {
        memories.iter().enumerate().find_map(|(index, memory)| {
            let kernel = Kernel::find(&**memory, &memory.ranges())?;
            Some((index, InRam::of(memory, kernel)))
        })
    }

    /// The kernel of a guest that has started again.
    pub(super) fn find_after(memory: &Arc<dyn Machine>, lives: impl Fn(&Kernel) -> bool) -> Option<InRam> {
        let kernel = Kernel::find_after(&**memory, &memory.ranges(), lives)?;
        Some(InRam::of(memory, kernel))
    }

    fn of(memory: &Arc<dyn Machine>, mut kernel: Kernel) -> InRam {
        let types = kernel.types(&**memory);
        let types = types.as_deref().and_then(|types| Btf::parse(types, None));
        // Its own types say nothing of where its data is.
        let inferred = match (&types, kernel.architecture()) {
            (Some(types), Architecture::Aarch64) => Some(Inferred::of_described(&kernel, &**memory, types)),
            (Some(_), _) if !kernel.has_functions_alone() => None,
            _ => Some(Inferred::of(&kernel, &**memory)),
        };
        if let Some(Ok(inferred)) = &inferred {
            kernel.learn(inferred);
        }
        let offsets = types.as_ref().and_then(|types| modules::Offsets::of(types).ok());
        let modules = offsets.and_then(|offsets| modules::list(&kernel, &**memory, &offsets)).unwrap_or_default();
        let without_pages = inferred.as_ref().and_then(|inferred| inferred.as_ref().ok()?.without_pages());
        let types = match (&types, &inferred) {
            (_, Some(Err(refusal))) => Err(refusal.to_string()),
            (Some(types), _) => Types::of(&kernel, &**memory, types),
            (None, Some(Ok(inferred))) => Types::of(&kernel, &**memory, inferred),
            (None, None) => Err("it has no types".to_owned()),
        };
        let types = types.map(|types| match without_pages {
            Some(refusal) => Types { pages: Err(refusal.to_string()), ..types },
            None => types,
        });
        InRam { memory: Arc::clone(memory), kernel, modules, types }
    }

    /// The kernel with its modules, as a program that is where it runs, and its unwind tables; with what could not be done, one sentence each.
    pub(crate) fn program(&self) -> Result<(GuestProgram, Linux, Vec<String>), GuestError> {
        let own = self.kernel.symbols.symbols().filter(|symbol| symbol.address >= self.kernel.text);
        let own = own.map(|symbol| (symbol.address, symbol.kind, symbol.name, ""));
        let of_modules = self
            .modules
            .iter()
            .flat_map(|module| module.symbols().map(|(address, name)| (address, b't', name, module.name.as_str())));
        let map = SymbolMap::of_kernel(own.chain(of_modules), &landmarks::all());
        let linked = map_range(&map);
        let mut program = GuestProgram {
            path: PathBuf::from(format!("linux-{}", self.kernel.release())),
            elf: None,
            map: Some(Arc::new(map)),
            has_names: true,
            linked,
            address: None,
            is_right: true,
            bias: Cell::default(),
            module_tables: Vec::new(),
            with_frame_pointers: None,
        };
        if landmarks::ORC.iter().any(|name| program.landmark(name).is_none()) {
            let code = self.kernel.code_with_frame_pointers(&*self.memory);
            program.with_frame_pointers = code.map(|(start, code)| (start, Arc::from(code)));
        }
        let memory = &*self.memory;
        let mut space = LiveSpace::new(&memory, self.kernel.paging);
        let mut linux = Linux::at(&program, 0, None, &mut space)?;
        let warnings = [linux.warning.take(), linux.parse(), self.unknown()].into_iter().flatten().collect();
        if let Some(orc) = &linux.orc {
            program.module_tables = self.module_tables(orc);
        }
        Ok((program, linux, warnings))
    }

    /// Why processes, or names of their programs, are not known, in a sentence with what to do.
    pub(crate) fn unknown(&self) -> Option<String> {
        let reason = match &self.types {
            Ok(types) => {
                let reason = types.pages.as_ref().err()?;
                return Some(format!(
                    "functions of the guest's programs have no names: where its kernel has the pages of files is not known, {reason}; repeat when its services have started"
                ));
            }
            Err(reason) => reason,
        };
        Some(format!(
            "the guest's processes are not known: its kernel does not describe its structures (CONFIG_DEBUG_INFO_BTF), and {reason}; repeat when its services have started, or boot a kernel that describes them"
        ))
    }

    /// How the task of a core is found. `None` if the kernel does not describe its types.
    pub(crate) fn task_plan(&self) -> Option<TaskPlan> {
        let types = self.types.as_ref().ok().filter(|types| !types.slots.is_empty())?;
        let part = types.tasks.part();
        let tid = types.tasks.pid - part.start;
        let direct_map = current::direct_map(&self.kernel, &*self.memory);
        let entry_bytes = types.sleeping.entry_bytes();
        Some(TaskPlan { slots: types.slots.clone(), direct_map, part, tid, entry_bytes })
    }

    /// What selects the address space of a CPU: of the process whose task it runs, if it has one, and of the kernel.
    pub(crate) fn paging_of(&self, cpu: usize) -> Paging {
        let own = self.kernel.paging;
        let of_process = || {
            let (types, mut task) = (self.types.as_ref().ok()?, [0; 8]);
            self.memory.read(*types.slots.get(cpu)?, &mut task).then_some(())?;
            let space = self.kernel.space(&*self.memory);
            let task = Task::read(&space, u64::from_le_bytes(task), &types.tasks)?;
            Some(mappings::address_space(&space, task.mm, &types.mappings, own)?.paging)
        };
        of_process().unwrap_or(own)
    }

    /// Its processes, to be found as samples name them; the kernel alone if it does not describe its types.
    pub(super) fn processes(self, numbered: Numbered, outside: Outside) -> Result<Processes, Box<Kernel>> {
        let InRam { memory, mut kernel, types, .. } = self;
        match types {
            Ok(types) => Ok(Processes::new(memory, kernel, types, (numbered, outside))),
            Err(_) => {
                kernel.forget_symbols();
                Err(Box::new(kernel))
            }
        }
    }

    /// Its processes, to be found in its list of tasks. `None` if it does not describe its types.
    pub(crate) fn listed(self, outside: Outside) -> Option<Processes> {
        self.processes(Numbered::KERNEL, outside).ok()
    }

    /// Its processor.
    pub(crate) fn architecture(&self) -> Architecture {
        self.kernel.architecture()
    }

    /// The memory that it was found in.
    pub(super) fn memory(&self) -> Arc<dyn Machine> {
        Arc::clone(&self.memory)
    }

    /// The unwind tables of the modules, by their names; the kernel's own shows how they are written.
    fn module_tables(&self, kernel: &OrcTable) -> Vec<(String, Arc<OrcTable>)> {
        let table = |module: &Module| {
            let (address, addresses, entries) = module.unwind.as_ref()?;
            let table = kernel.parse_of_module(*address, addresses, entries).ok()?;
            Some((module.name.clone(), Arc::new(table)))
        };
        self.modules.iter().filter_map(table).collect()
    }
}
