//! What a guest's kernel reports of itself and of its tasks, parsed.
//!
//! All of it was read in one moment of the guest, but not at once: a task that ran meanwhile has another stack in each file, and in RAM.

mod kernel;
mod tasks;

pub use kernel::{Module, Symbol};
pub use tasks::{BlockedTask, Frame, MapsLine, Process, Syscall, Task};

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// What a guest's kernel reports.
#[derive(Debug, Clone)]
pub struct Truth {
    /// `/proc/kallsyms`, in its order.
    pub kallsyms: Vec<Symbol>,
    /// `/proc/modules`.
    pub modules: Vec<Module>,
    /// All threads, by their ids in the first namespace.
    pub tasks: BTreeMap<u32, Task>,
    /// All processes, by the same ids.
    pub processes: BTreeMap<u32, Process>,
    /// The tasks that wait without being interruptible, as the key w of sysrq prints them.
    pub blocked: Vec<BlockedTask>,
    /// What `uname -a` prints.
    pub uname: String,
    /// `/proc/version`: the kernel's banner.
    pub banner: String,
    /// The kernel's command line.
    pub command_line: String,
    /// `/proc/meminfo`: KiB, or a number, by name.
    pub memory: BTreeMap<String, u64>,
    /// `/proc/iomem`: first and last physical address and name of each range, those within another one too.
    pub physical: Vec<(u64, u64, String)>,
}

impl Truth {
    /// Reads the files that a guest has written, unpacked in a folder.
    pub fn read(folder: &Path) -> Result<Truth> {
        let text = |name: &str| read(&folder.join(name));
        let processes = tasks::processes(&folder.join("proc"))?;
        let mut tasks = BTreeMap::new();
        for pid in processes.keys() {
            tasks.extend(tasks::tasks(&folder.join(format!("proc/{pid}/task")), *pid)?);
        }
        Ok(Truth {
            kallsyms: kernel::kallsyms(&text("proc/kallsyms")?)?,
            // A kernel that was built without modules has no list of them.
            modules: kernel::modules(&text("proc/modules").unwrap_or_default())?,
            tasks,
            processes,
            blocked: tasks::blocked(&text("sysrq-w")?),
            uname: text("uname")?.trim_end().to_owned(),
            banner: text("proc/version")?.trim_end().to_owned(),
            command_line: text("proc/cmdline")?.trim_end().to_owned(),
            memory: kernel::memory(&text("proc/meminfo")?),
            physical: kernel::physical(&text("proc/iomem")?),
        })
    }

    /// The tasks with a name.
    pub fn tasks_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Task> {
        self.tasks.values().filter(move |task| task.name == name)
    }

    /// The address of the first symbol with a name that is no module's.
    pub fn address(&self, name: &str) -> Option<u64> {
        self.kallsyms.iter().find(|symbol| symbol.module.is_none() && symbol.name == name).map(|symbol| symbol.address)
    }
}

/// A file as text; what is no UTF-8 in it is replaced.
fn read(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("the truth has no {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A number in hexadecimal digits, with or without `0x`.
fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}
