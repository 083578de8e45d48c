//! Which files can be opened (Landlock; Linux, Documentation/userspace-api/landlock.rst).

use crate::{JailError, Missing};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{FileType, fstat};
use std::os::fd::AsFd;
use std::path::PathBuf;

/// What this was tested with, of Linux 6.12: files, ioctls of devices that are opened, TCP, and signals and abstract sockets beyond the jail.
const TESTED: ABI = ABI::V6;

/// What may be done with a file or a folder.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Access {
    Read,
    Write,
    /// Reading, and the control of a device; `SystemCalls` limits which.
    Terminal,
}

impl Access {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        match self {
            Access::Read => read,
            Access::Terminal => AccessFs::ReadFile | AccessFs::IoctlDev,
            Access::Write => {
                let make = AccessFs::MakeReg | AccessFs::MakeDir | AccessFs::RemoveFile | AccessFs::RemoveDir;
                read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::Refer | make
            }
        }
    }
}

/// Finds the files.
pub(crate) fn open(files: &[(PathBuf, Access)]) -> Result<Vec<PathBeneath<PathFd>>, JailError> {
    let open = |(path, access): &(PathBuf, Access)| {
        let failed = |error: String| JailError::Path(path.clone(), error);
        let file = PathFd::new(path).map_err(|error| failed(error.to_string()))?;
        let stat = fstat(file.as_fd()).map_err(|error| failed(error.to_string()))?;
        let mut rights = access.rights();
        // Landlock refuses rights that only folders have.
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            rights &= AccessFs::from_file(TESTED);
        }
        Ok(PathBeneath::new(file, rights))
    };
    files.iter().map(open).collect()
}

/// From here on no others can be opened. What is missing, if something is.
/// `connects`: TCP ports can be connected to, all the same.
pub(crate) fn restrict(files: Vec<PathBeneath<PathFd>>, connects: bool) -> Result<Option<Missing>, JailError> {
    let mut ports = AccessNet::from_all(TESTED);
    ports.set(AccessNet::ConnectTcp, !connects);
    let restrict = || {
        let rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(TESTED))?
            .handle_access(ports)?
            .scope(Scope::from_all(TESTED))?
            .create()?;
        rules.add_rules(files.into_iter().map(Ok::<_, landlock::RulesetError>))?.restrict_self()
    };
    let status = restrict().map_err(|error: landlock::RulesetError| JailError::Landlock(error.to_string()))?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => None,
        RulesetStatus::PartiallyEnforced => Some(Missing::SomeOfFiles),
        RulesetStatus::NotEnforced => Some(Missing::Files),
    })
}
