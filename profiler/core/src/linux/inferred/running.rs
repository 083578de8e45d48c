//! Whether a task is on a CPU.

use super::guest::{Copied, Guest};
use super::tasks::Tasks;
use super::{Inferred, Refusal};

/// The most CPUs whose tasks are looked at, and how often.
const CPUS: u64 = 64;
const ROUNDS: usize = 8;

/// The tasks that the CPUs run have a byte that is 1, and no task that waits has. So it is with one behind it (`on_rq`), which those have that wait for a CPU,
/// too: each CPU that has work shows the difference, by its own task without work, which waits. If none has, there are two places, and the first is the one.
pub(super) fn infer(guest: &Guest<'_>, tasks: &Tasks, found: &mut Inferred) -> Result<(), Refusal> {
    const WHAT: &str = "task_struct.on_cpu";
    let [slot, offsets] =
        ["current_task", "__per_cpu_offset"].map(|name| found.addresses.get(name).copied().unwrap_or(0));
    let distances = guest.words(offsets, CPUS as usize);
    // Behind those of the CPUs that there are, kernels have the distance of what the areas were made of, which is in the image.
    let slots: Vec<u64> = distances.iter().map(|distance| distance.wrapping_add(slot)).collect();
    let slots: Vec<u64> = slots.into_iter().take_while(|slot| !guest.image.contains(slot)).collect();
    let current = || slots.iter().map_while(|slot| guest.pointer(*slot)).collect::<Vec<u64>>();
    let mut candidates: Vec<u32> = tasks.bytes().collect();
    let stack = found.at("task_struct.stack") as u32;
    let mut seen = 0;
    for _ in 0..ROUNDS {
        let before = current();
        let copies: Vec<Option<Copied>> = before.iter().map(|task| Copied::read(guest, *task)).collect();
        let waiting: Vec<Option<Copied>> = tasks.all.iter().map(|task| Copied::read(guest, task.start)).collect();
        let after = current();
        let stood = copies.iter().zip(before.iter().zip(&after)).filter(|(_, (before, after))| before == after);
        let running: Vec<&Copied> = stood.filter_map(|(copy, _)| copy.as_ref()).collect();
        let is_still = |task: &&Copied| !before.contains(&task.start) && !after.contains(&task.start);
        let waiting: Vec<&Copied> = waiting.iter().flatten().filter(is_still).collect();
        seen += running.len();
        candidates.retain(|at| {
            *at >= stack
                && running.iter().all(|task| task.byte(*at) == 1)
                && waiting.iter().filter(|task| task.byte(*at) != 0).count() * 50 <= waiting.len()
        });
    }
    match candidates[..] {
        [at] | [at, _] if seen > 0 => found.add(WHAT, at, 1),
        _ => return Err(Refusal { what: WHAT, candidates: candidates.len() }),
    }
    Ok(())
}
