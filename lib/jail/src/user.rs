//! A user that no other process has.

use crate::{JailError, Missing};
use rustix::process::{
    Gid, Uid, geteuid, getpid, getppid, parent_process_death_signal, set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// Users from here on are free: behind those of containers in systemd's documentation of their ranges, and below the sign bit. A process has the
/// one of its number, so two that live at the same time cannot send each other signals, or read each other's memory.
const FIRST: u32 = 0x7000_0000;
/// The user who owns nothing, where the host's list ends before the others, as in a container.
const NOBODY: u32 = 65534;

/// Leaves root's user and groups, and gives up all capabilities. What is missing, if something is.
pub(crate) fn leave() -> Result<Option<Missing>, JailError> {
    let failed = |error: rustix::io::Errno| JailError::System(error.into());
    let mut missing = None;
    if geteuid().is_root() {
        // The kernel forgets it when the user changes.
        let (parent, signal) = (getppid(), parent_process_death_signal().map_err(failed)?);
        let number = getpid().as_raw_nonzero().get().unsigned_abs();
        let become_user = |id: u32| become_user(Uid::from_raw(id), Gid::from_raw(id));
        if let Err(error) = become_user(FIRST + number).or_else(|_| become_user(NOBODY)) {
            missing = Some(Missing::User(error.to_string()));
        }
        if signal.is_some() {
            set_parent_process_death_signal(signal).map_err(failed)?;
            // It may have ended in between.
            if getppid() != parent {
                return Err(JailError::System(std::io::Error::other("the process that started this one has ended")));
            }
        }
    }
    let _ = clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).map_err(failed)?;
    Ok(missing)
}

fn become_user(user: Uid, group: Gid) -> rustix::io::Result<()> {
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)
}
