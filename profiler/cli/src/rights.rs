//! The rights of a group: the Debian package has a second copy of `glass` that only members of the group `glass` may run, with the capabilities
//! that profiling takes (`xtask/src/package/debian`). The first has none, and becomes the second for the commands that need it.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Access, access};

/// Where the package puts the one that each user may run. One from another place is of another version.
const PROGRAM: &str = "/usr/bin/glass";
/// The other. Its name is the same, for the messages.
const WITH_RIGHTS: &str = "/usr/lib/glasshouse/glass";

/// Becomes the copy with rights if this is the installed program of a user who may run it. Otherwise this process stays as it is.
pub fn take() {
    let is_installed = std::env::current_exe().is_ok_and(|own| own == Path::new(PROGRAM));
    if is_installed && !rustix::process::geteuid().is_root() && access(WITH_RIGHTS, Access::EXEC_OK).is_ok() {
        // Fails in a container that may not have the capabilities: what then fails explains itself.
        let _ = Command::new(WITH_RIGHTS).args(std::env::args_os().skip(1)).exec();
    }
}
