//! What the parts of a process share.

use crate::cores::{Duties, LinuxCore};
use crate::disk::Disk;
use crate::files::HostFiles;
use crate::functions;
use crate::names::Names;
use crate::trace::Rate;
use crate::vsock::Hybrid;
use glass_lib_executor::sync::Latch;
use glass_lib_trace::Group;
use std::cell::Cell;
use std::net::IpAddr;

/// What everything here shares.
pub(crate) struct Host {
    pub(crate) core: LinuxCore,
    pub(crate) bind: IpAddr,
    /// The unix socket that stands for vsock.
    pub(crate) hybrid: Option<Hybrid>,
    pub(crate) rate: Rate,
    pub(crate) args: Vec<String>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) files: Option<HostFiles>,
    pub(crate) names: Names,
    /// Opened by a signal, once signals are watched.
    pub(crate) shutdown: Latch,
    pub(crate) watches_signals: Cell<bool>,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.core.end();
    }
}

/// The first core follows the host of a trace. A service that has nothing to do measures too: otherwise its trace has no clock until its first
/// client.
impl Duties for Host {
    fn awake(&self) {
        follow_host(&self.core);
    }

    fn poll_host(&self) {
        self.rate.refine();
    }

    const POLLS_HOST: bool = true;
}

/// Carries out the requests of the host.
fn follow_host(core: &LinuxCore) {
    let change = glass_lib_trace::follow_host(functions::switch);
    if change.is_some_and(|change| change.switched_on & Group::Tasks as u32 != 0) {
        core.announce_all();
    }
}
