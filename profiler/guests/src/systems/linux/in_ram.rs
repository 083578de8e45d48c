//! A Linux guest by what is in its RAM: no file is needed, and no vCPU is stopped.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;

use glass_profiler_core::arch::x86_64::orc::OrcTable;
use glass_profiler_core::linux::btf::Btf;
use glass_profiler_core::linux::kernel::Kernel;
use glass_profiler_core::linux::modules::{self, Module};
use glass_profiler_core::linux::page_cache::PageCache;
use glass_profiler_core::linux::{current, files, mappings, sleeping, tasks, vdso};
use glass_profiler_core::map::SymbolMap;

use super::Linux;
use super::processes::{Numbered, Outside, Processes};
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
    types: Option<Types>,
}

/// Where the kernel's structures have what is read of them.
#[derive(Clone)]
pub(super) struct Types {
    pub(super) tasks: tasks::Offsets,
    pub(super) sleeping: sleeping::Offsets,
    pub(super) mappings: mappings::Offsets,
    pub(super) files: files::Offsets,
    pub(super) pages: PageCache,
    /// Where the pointers to the tasks of CPUs are.
    slots: Vec<u64>,
    /// The program that the kernel maps into each process.
    pub(super) vdso: Option<Arc<[u8]>>,
}

impl Types {
    /// The error is a member that the kernel's types lack.
    fn of(kernel: &Kernel, memory: &dyn Physical, btf: &Btf<'_>) -> Result<Types, String> {
        let (space, symbols) = (kernel.space(memory), &kernel.symbols);
        let vdso = vdso::vdso(&space, btf, |name| symbols.address(name));
        Ok(Types {
            tasks: tasks::Offsets::of(btf)?,
            sleeping: sleeping::Offsets::of(btf),
            mappings: mappings::Offsets::of(btf)?,
            files: files::Offsets::of(btf)?,
            pages: PageCache::of(&space, btf, kernel.paging, symbols.address("vmemmap_base"))?,
            slots: current::slots(kernel, memory, btf),
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

    fn of(memory: &Arc<dyn Machine>, kernel: Kernel) -> InRam {
        let types = kernel.types(&**memory);
        let types = types.as_deref().and_then(|types| Btf::parse(types, None));
        let offsets = types.as_ref().and_then(|types| modules::Offsets::of(types).ok());
        let modules = offsets.and_then(|offsets| modules::list(&kernel, &**memory, &offsets)).unwrap_or_default();
        let types = types.and_then(|types| Types::of(&kernel, &**memory, &types).ok());
        InRam { memory: Arc::clone(memory), kernel, modules, types }
    }

    /// The kernel with its modules, as a program that is where it runs, and its unwind tables; with what could not be done, one sentence each.
    pub(crate) fn program(&self) -> Result<(GuestProgram, Linux, Vec<String>), GuestError> {
        let own = self.kernel.symbols.symbols().filter(|symbol| symbol.address >= self.kernel.text);
        let own = own.map(|symbol| (symbol.address, symbol.kind, symbol.name, ""));
        let of_modules = self.modules.iter().flat_map(|module| {
            module.symbols.iter().map(|(address, name)| (*address, b't', name.as_str(), module.name.as_str()))
        });
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
        };
        let mut linux = Linux::find(&program, &mut LiveSpace::new(&&*self.memory, self.kernel.paging))?;
        let warnings = [linux.warning.take(), linux.parse()].into_iter().flatten().collect();
        if let Some(orc) = &linux.orc {
            program.module_tables = self.module_tables(orc);
        }
        Ok((program, linux, warnings))
    }

    /// How the task of a core is found. `None` if the kernel does not describe its types.
    pub(crate) fn task_plan(&self) -> Option<TaskPlan> {
        let types = self.types.as_ref().filter(|types| !types.slots.is_empty())?;
        let part = types.tasks.part();
        let tid = types.tasks.pid - part.start;
        let direct_map = current::direct_map(&self.kernel, &*self.memory);
        Some(TaskPlan { slots: types.slots.clone(), direct_map, part, tid })
    }

    /// Its processes, to be found as samples name them; the kernel alone if it does not describe its types.
    pub(super) fn processes(self, numbered: Numbered, outside: Outside) -> Result<Processes, Box<Kernel>> {
        match self.types {
            Some(types) => Ok(Processes::new(self.memory, self.kernel, types, (numbered, outside))),
            None => Err(Box::new(self.kernel)),
        }
    }

    /// Its processes, to be found in its list of tasks. `None` if it does not describe its types.
    pub(crate) fn listed(self, outside: Outside) -> Option<Processes> {
        self.processes(Numbered::KERNEL, outside).ok()
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
