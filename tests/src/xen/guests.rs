//! Small guests with known call chains, built by the compiler of this machine.

use crate::programs;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How Xen runs a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Paravirtualized.
    Pv,
    /// By the processor's virtualization.
    Pvh,
}

impl Kind {
    /// As a domain's configuration has it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Pv => "pv",
            Kind::Pvh => "pvh",
        }
    }
}

/// What a guest is.
#[derive(Debug, Clone, Copy)]
pub struct Guest {
    /// The name of its domain, and of its file.
    pub name: &'static str,
    /// How Xen runs it.
    pub kind: Kind,
    /// How many vCPUs it has.
    pub vcpus: u32,
    /// Whether its functions keep frame pointers; if not, it has `.eh_frame`.
    pub has_frame_pointers: bool,
    /// What is defined for it.
    pub defines: &'static [&'static str],
}

const fn guest(name: &'static str, kind: Kind, defines: &'static [&'static str]) -> Guest {
    Guest { name, kind, vcpus: 1, has_frame_pointers: true, defines }
}

/// Paravirtualized.
pub const PV: Guest = guest("pv", Kind::Pv, &["-DPV"]);
/// PVH with pages of 4 KiB.
pub const PVH_4K: Guest = guest("pvh4k", Kind::Pvh, &["-DSMALL_PAGES"]);
/// PVH with pages of 2 MiB.
pub const PVH_2M: Guest = guest("pvh2m", Kind::Pvh, &[]);
/// Two vCPUs.
pub const TWO_VCPUS: Guest = Guest { vcpus: 2, ..guest("cores", Kind::Pvh, &["-DSMALL_PAGES", "-DCORES"]) };
/// Without frame pointers.
pub const WITHOUT_POINTERS: Guest = Guest { has_frame_pointers: false, ..guest("tables", Kind::Pv, &["-DPV"]) };
/// Waits without end, paravirtualized.
pub const WAITS_PV: Guest = guest("waitspv", Kind::Pv, &["-DPV", "-DWAITS"]);
/// Waits without end, PVH.
pub const WAITS_PVH: Guest = guest("waitspvh", Kind::Pvh, &["-DWAITS"]);

/// Of 32 bits.
pub const NARROW: Guest = guest("narrow", Kind::Pvh, &["-DNARROW"]);

/// The colours of the chains.
pub const COLOURS: [&str; 6] = ["red", "blue", "gold", "gray", "pink", "teal"];
/// Functions of a chain.
pub const DEPTH: usize = 5;

impl Guest {
    /// Builds it into a folder; returns the file.
    pub fn build(&self, folder: &Path) -> Result<PathBuf> {
        let sources = programs::root().join("tests/src/xen/guest");
        let elf = folder.join(format!("{}.elf", self.name));
        let mut gcc = Command::new("gcc");
        gcc.args([
            "-O2",
            "-ffreestanding",
            "-fno-pic",
            "-mno-red-zone",
            "-fno-stack-protector",
            "-fcf-protection=none",
        ]);
        gcc.args(["-fno-optimize-sibling-calls", "-mgeneral-regs-only", "-nostdlib", "-static", "-no-pie"]);
        gcc.args(["-Wl,--build-id=sha1", "-Wl,-z,max-page-size=4096", "-Wl,--no-eh-frame-hdr", "-Wl,-z,noexecstack"]);
        // With other instructions in the lines that set up a frame pointer, only tables would have the caller there.
        gcc.args(match self.has_frame_pointers {
            true => ["-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-schedule-insns2"],
            false => ["-fomit-frame-pointer", "-fasynchronous-unwind-tables", "-fschedule-insns2"],
        });
        let entry = if self.kind == Kind::Pv { "pv.S" } else { "pvh.S" };
        gcc.args(self.defines).arg("-T").arg(sources.join("guest.ld"));
        gcc.arg(sources.join(entry)).arg(sources.join("guest.c")).arg("-o").arg(&elf);
        let output = gcc.output().context("there is no C compiler (gcc)")?;
        if !output.status.success() {
            bail!("{} cannot be built: {}", self.name, String::from_utf8_lossy(&output.stderr));
        }
        Ok(elf)
    }

    /// The configuration of its domain, for `xl create`; `folder` is where dom0 has the file.
    pub fn configuration(&self, folder: &str) -> String {
        let Guest { name, kind, vcpus, .. } = self;
        // RDTSCP in a PVH guest fails where QEMU emulates the processor, unless the TSC is the machine's own.
        format!(
            "name = \"{name}\"\ntype = \"{}\"\nkernel = \"{folder}/{name}.elf\"\nmemory = 16\nvcpus = {vcpus}\ntsc_mode = \"native\"\non_poweroff = \"destroy\"\non_crash = \"preserve\"\n",
            kind.word()
        )
    }
}

/// Stacks as `glass export --format folded` has them, judged.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Judged {
    /// Samples in all.
    pub samples: u64,
    /// Functions of several chains, or not one after the other: copied while it changed.
    pub torn: u64,
    /// Without an end that is known.
    pub broken: u64,
    /// Samples of each colour.
    pub colours: [u64; COLOURS.len()],
    /// Samples by their outermost function.
    pub roots: std::collections::BTreeMap<String, u64>,
    /// What is neither: the first of them.
    pub strange: Option<String>,
}

/// Judges the stacks of a guest that computes.
pub fn judge(folded: &str) -> Judged {
    let mut judged = Judged::default();
    for line in folded.lines() {
        let Some((stack, count)) = line.rsplit_once(' ') else { continue };
        let count: u64 = count.parse().unwrap_or(0);
        let frames: Vec<&str> = stack.split(';').collect();
        judged.samples += count;
        let (root, chain) = frames.split_first().map_or(("", &[][..]), |(root, chain)| (*root, chain));
        if root.starts_with('[') {
            judged.broken += count;
            judged.strange.get_or_insert_with(|| line.to_owned());
            continue;
        }
        *judged.roots.entry(root.to_owned()).or_default() += count;
        let colour = |name: &str| {
            COLOURS.iter().position(|colour| name.strip_prefix(colour).is_some_and(|rest| rest.starts_with('_')))
        };
        let first = chain.first().map(|name| colour(name));
        let is_whole = chain.len() <= DEPTH
            && (1..).zip(chain).all(|(step, name)| Some(colour(name)) == first && name.ends_with(&format!("_{step}")));
        match first.flatten() {
            Some(colour) if is_whole => judged.colours[colour] += count,
            None if chain.is_empty() => {}
            Some(_) => {
                judged.torn += count;
                judged.strange.get_or_insert_with(|| line.to_owned());
            }
            None => {
                judged.broken += count;
                judged.strange.get_or_insert_with(|| line.to_owned());
            }
        }
    }
    judged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_judged() {
        let judged = judge("run 2\nrun;red_1;red_2;red_3 5\nrun_other;blue_1 1\n");
        assert_eq!((judged.samples, judged.torn, judged.broken), (8, 0, 0));
        assert_eq!((judged.colours[0], judged.colours[1], judged.roots["run"]), (5, 1, 7));
        assert_eq!(judge("run;red_1;blue_2 3\n").torn, 3);
        assert_eq!(judge("run;red_1;red_3 3\n").torn, 3);
        assert_eq!(judge("run;red_1;red_2;red_3;red_4;red_5;red_5 3\n").torn, 3);
        assert_eq!(judge("[broken stack];red_3 4\n").broken, 4);
        assert_eq!(judge("run;0x200000 4\n").broken, 4);
    }
}
