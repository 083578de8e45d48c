//! Data of the kernel that is found without its symbols: where each CPU has the pointer to its task, and where all memory is.

use super::guest::{Copied, Guest};
use super::tasks::Tasks;
use super::{Inferred, Refusal, only};
use crate::linux::structures::pointer;

/// Functions that load the pointer to the task of their CPU first.
const OF_CURRENT: [&str; 4] = ["__do_sys_getpid", "__x64_sys_getpid", "__do_sys_gettid", "__x64_sys_gettid"];
/// The most bytes of such a function that are read.
const CODE_BYTES: usize = 64;
/// The most CPUs (`CONFIG_NR_CPUS` of distributions).
const CPUS_MAX: u64 = 8192;
const PAGE_BYTES: u64 = 4096;

pub(super) fn infer(guest: &Guest<'_>, tasks: &Tasks, found: &mut Inferred) -> Result<(), Refusal> {
    let slot = current_task(guest)?;
    found.addresses.insert("current_task", slot);
    let offsets = Cpus { guest, slot, found }.offsets()?;
    found.addresses.insert("__per_cpu_offset", offsets);
    // Tasks are in pages that are mapped with all others, but the first, which is in the image.
    let of_task = |task: &Copied| Some(task.start.wrapping_sub(guest.space().physical(task.start)?));
    let mut direct: Vec<u64> = tasks.all[1..].iter().filter_map(of_task).collect();
    direct.dedup();
    found.values.insert("page_offset_base", only("page_offset_base", direct)?);
    Ok(())
}

/// The address, of each CPU relative to that of its data, of the pointer to the task: what a function that returns a part of it reads by the register `gs`.
fn current_task(guest: &Guest<'_>) -> Result<u64, Refusal> {
    /// `mov %gs:..., register` of 64 bits.
    const LOAD: [u8; 3] = [0x65, 0x48, 0x8b];
    let refusal = Refusal { what: "current_task", candidates: 0 };
    let range = OF_CURRENT.iter().find_map(|name| guest.function(name)).ok_or(refusal)?;
    let code = guest.bytes(range.start, CODE_BYTES).ok_or(refusal)?;
    let load = code.windows(9).zip(range.start..).find(|(code, _)| code.starts_with(&LOAD));
    let (load, at) = load.ok_or(refusal)?;
    let number = |from: usize| i64::from(i32::from_le_bytes(std::array::from_fn(|index| load[from + index])));
    match (load[3] & 0xc7, load[4]) {
        (4, 0x25) => Ok(number(5) as u64),
        (5, _) => Ok(at.wrapping_add(8).wrapping_add_signed(number(4))),
        _ => Err(refusal),
    }
}

/// The search for the array with the distances of the CPUs' data.
pub(super) struct Cpus<'a, 'g> {
    pub(super) guest: &'a Guest<'g>,
    pub(super) slot: u64,
    pub(super) found: &'a Inferred,
}

impl Cpus<'_, '_> {
    /// By each distance, all of which differ, there is the pointer to a task; to the one of a CPU without work, which has the CPU's number in its name. Of places with the same
    /// number of CPUs, which all have the same distances, the first is the one.
    pub(super) fn offsets(&self) -> Result<u64, Refusal> {
        let mut runs: Vec<(u64, Vec<u64>)> = Vec::new();
        self.guest.each_word(|at, word| {
            // Areas are of whole pages, and distances may be from another such address: from 0, or from the image.
            let is_far = word >> 56 == 0xff || self.guest.kernel.paging.aarch64().is_some();
            let may_be = is_far && word != 0 && word.is_multiple_of(PAGE_BYTES);
            match runs.last_mut() {
                Some((start, run))
                    if may_be
                        && *start + 8 * run.len() as u64 == at
                        && run.len() < CPUS_MAX as usize
                        && !run.contains(&word)
                        && self.is_of_cpu(word, run.len()) =>
                {
                    run.push(word);
                    return;
                }
                _ => {}
            }
            if may_be && self.is_of_cpu(word, 0) {
                runs.push((at, vec![word]));
            }
        });
        let most = runs.iter().map(|(_, run)| run.len()).max().unwrap_or(0);
        runs.retain(|(_, run)| run.len() == most);
        let first = runs.first().map_or(0, |(at, _)| *at);
        runs.dedup_by(|one, other| one.1 == other.1);
        only("__per_cpu_offset", runs).map(|_| first)
    }

    fn is_of_cpu(&self, distance: u64, number: usize) -> bool {
        self.task(distance, number).is_some()
    }

    /// The task of a CPU with this distance and this number.
    fn task(&self, distance: u64, number: usize) -> Option<u64> {
        let [pid, leader, comm] =
            ["pid", "group_leader", "comm"].map(|member| self.found.at(&format!("task_struct.{member}")));
        let slot = distance.wrapping_add(self.slot);
        // In the image there is only what the areas were made of.
        if self.guest.image.contains(&slot) {
            return None;
        }
        let task = pointer(self.guest.word(slot)?, 64)?;
        let first = self.guest.pointer(task.wrapping_add(leader))?;
        let is_task = self.guest.word(first.wrapping_add(leader)) == Some(first)
            && self.guest.half(first.wrapping_add(pid))? == self.guest.half(task.wrapping_add(pid + 4))?
            && self.guest.has_name(task.wrapping_add(comm));
        let is_idle = self.guest.half(task.wrapping_add(pid))? == 0;
        let name = self.guest.bytes(task.wrapping_add(comm), 16)?;
        let expected = [format!("swapper/{number}\0"), "swapper\0".to_owned()];
        (is_task && (!is_idle || expected.iter().any(|expected| name.starts_with(expected.as_bytes())))).then_some(task)
    }
}
