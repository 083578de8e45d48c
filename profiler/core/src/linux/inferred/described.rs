//! Where data is of a kernel that describes its types and has symbols of functions alone, as Debian's for AArch64: what the structures of data must hold
//! shows which they are.

use super::addresses::Cpus;
use super::guest::Guest;
use super::{Inferred, Refusal, only};
use crate::linux::arch::aarch64;
use crate::linux::structures::{Layout, pointer};
use crate::linux::vdso;
use crate::memory::Physical;

/// The names of the first task, with several CPUs and with one.
const FIRST_NAMES: [&[u8]; 2] = [b"swapper/0\0", b"swapper\0"];
/// The most places of that text that are looked at.
const NAMES_MAX: usize = 4096;
/// The longest name of a module (`MODULE_NAME_LEN`).
const MODULE_NAME_BYTES: usize = 56;
const PAGE_BYTES: u64 = 4096;

pub(super) fn infer(guest: &Guest<'_>, memory: &dyn Physical, types: &dyn Layout) -> Result<Inferred, Refusal> {
    let mut found = Inferred::default();
    let of_task = ["comm", "group_leader", "pid", "tasks"];
    let paths = ["task_struct.comm", "task_struct.group_leader", "task_struct.pid", "task_struct.tasks"];
    for (member, path) in of_task.into_iter().zip(paths) {
        let field = types.field("task_struct", member).ok_or(Refusal { what: path, candidates: 0 })?;
        found.add(path, field.at, field.bytes);
    }
    let first = first_task(guest, &found)?;
    found.addresses.insert("init_task", first);
    let missing = |what| Refusal { what, candidates: 0 };
    let known = guest.kernel.symbols.address(aarch64::CURRENT);
    let slot = known.or_else(|| aarch64::current(guest.kernel, memory)).ok_or(missing(aarch64::CURRENT))?;
    found.addresses.insert(aarch64::CURRENT, slot);
    let offsets = Cpus { guest, slot, found: &found }.offsets()?;
    found.addresses.insert("__per_cpu_offset", offsets);
    let direct = aarch64::direct_map_of(guest.kernel, memory).ok_or(missing("page_offset_base"))?;
    found.values.insert("page_offset_base", direct);
    let of_pages = types.bytes_of("page").and_then(|bytes| {
        aarch64::descriptions(guest.kernel, memory, bytes.into(), guest.kernel.text_physical & !(PAGE_BYTES - 1))
    });
    match of_pages {
        Some(of_pages) => _ = found.values.insert("vmemmap_base", of_pages),
        None => found.without_pages = Some(missing("vmemmap_base")),
    }
    found.addresses.extend(modules(guest, types).map(|at| ("modules", at)));
    found.addresses.extend(vdso_of(guest).map(|at| (vdso::FILE, at)));
    Ok(found)
}

/// The task that the kernel starts with: its own leader, with the ID 0, and in the list of tasks.
fn first_task(guest: &Guest<'_>, found: &Inferred) -> Result<u64, Refusal> {
    let at = |member: &str| found.at(&format!("task_struct.{member}"));
    let is_first = |task: &u64| {
        let node = task.wrapping_add(at("tasks"));
        let next = guest.pointer(node).and_then(|next| guest.word(next.wrapping_add(8)));
        guest.word(task.wrapping_add(at("group_leader"))) == Some(*task)
            && guest.half(task.wrapping_add(at("pid"))) == Some(0)
            && next == Some(node)
    };
    let names = FIRST_NAMES.iter().find_map(|text| guest.places_of(text, NAMES_MAX)).unwrap_or_default();
    only("init_task", names.into_iter().map(|name| name.wrapping_sub(at("comm"))).filter(is_first))
}

/// The head of the list of modules: in the image, between two nodes of modules, which are not. `None` if no module is loaded.
fn modules(guest: &Guest<'_>, types: &dyn Layout) -> Option<u64> {
    let [list, name] = ["list", "name"].map(|member| types.field("module", member).map(|field| u64::from(field.at)));
    let (list, name) = (list?, name?);
    let is_outside = |at: u64| pointer(at, 8).is_some() && !guest.image.contains(&at);
    let is_module = |node: u64| {
        let start = node.wrapping_sub(list).wrapping_add(name);
        let text = guest.bytes(start, MODULE_NAME_BYTES).unwrap_or_default();
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(0);
        end > 0 && text[..end].iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
    };
    let (mut found, mut before) = (Vec::new(), 0);
    guest.each_word(|at, word| {
        let (next, previous) = (std::mem::replace(&mut before, word), word);
        let head = at.wrapping_sub(8);
        // Words come in their order.
        if is_outside(next)
            && is_outside(previous)
            && guest.word(next.wrapping_add(8)) == Some(head)
            && guest.word(previous) == Some(head)
            && is_module(next)
            && is_module(previous)
        {
            found.push(head);
        }
    });
    only("modules", found).ok()
}

/// Where the image has the program that is mapped into each process: an ELF file of its own, at the start of a page.
fn vdso_of(guest: &Guest<'_>) -> Option<u64> {
    const NAME: &[u8] = b"linux-vdso.so.1\0";
    let magic = guest.places_of(b"\x7fELF\x02\x01\x01", NAMES_MAX).unwrap_or_default();
    let names = guest.places_of(NAME, NAMES_MAX).unwrap_or_default();
    let is_vdso = |at: &u64| {
        let bytes = vdso::bytes_of(&guest.bytes(*at, vdso::HEADER_BYTES).unwrap_or_default());
        let end = bytes.map_or(0, |bytes| at.wrapping_add(bytes));
        at.is_multiple_of(PAGE_BYTES) && names.iter().any(|name| (*at..end).contains(name))
    };
    only(vdso::FILE, magic.into_iter().filter(is_vdso)).ok()
}
