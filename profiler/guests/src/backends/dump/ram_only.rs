//! A VM of which no backend can stop the vCPUs: only its RAM is copied, while it runs.

use glass_profiler_core::arch::Architecture;
use std::time::Duration;

use super::system;
use super::whole::{Held, Stopped, WholeVm};
use crate::error::GuestError;
use crate::memory::Ram;

/// The likeliest RAM of a VMM.
#[derive(Debug)]
pub(super) struct RamOnly {
    ram: Ram,
    warnings: Vec<String>,
}

impl RamOnly {
    pub(super) fn of(pid: u32) -> Result<RamOnly, GuestError> {
        let candidates =
            Ram::candidates(pid, Architecture::X86_64).map_err(|error| system("read the memory of the VMM", error))?;
        let mut warnings = vec!["no vCPU can be stopped, so the dump has no registers".to_owned()];
        if candidates.len() > 1 {
            warnings.push("several memories of the VMM may be the VM's RAM: the dump has the likeliest".to_owned());
        }
        let mut ram = candidates.into_iter().next().ok_or(GuestError::NoRamFile(pid))?;
        if ram.is_doubtful() {
            ram.settle(&[]);
        }
        if !ram.is_whole() {
            warnings.push("where the VM has some of its RAM is not known, so the dump lacks it".to_owned());
        }
        Ok(RamOnly { ram, warnings })
    }
}

impl WholeVm for RamOnly {
    fn prepare(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    fn ram(&self) -> Option<&Ram> {
        Some(&self.ram)
    }

    fn warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    fn stop(&mut self) -> Result<Stopped, GuestError> {
        Ok(Stopped::default())
    }

    fn resume(&mut self) -> Result<(), GuestError> {
        Ok(())
    }

    fn registers(&mut self, _held: &mut Held) -> Result<(Stopped, Duration), GuestError> {
        Ok((Stopped { is_complete: true, ..Stopped::default() }, Duration::ZERO))
    }

    fn pass(&mut self, time: Duration) -> Result<(), GuestError> {
        std::thread::sleep(time);
        Ok(())
    }

    fn leave(&mut self) -> Result<(), GuestError> {
        Ok(())
    }
}
