//! The choice of a VM's backend: one decision for listing and for attaching.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;

use glass_profiler_core::arch::Architecture;
use glass_profiler_core::guest::GuestKind;

use crate::backends::Backend;
use crate::backends::access::{KnownVm, VmAccess};
use crate::backends::gdbstub::QemuVm;
use crate::backends::hosted::{self, Host};
use crate::backends::kvm::{self, KvmVm};
use crate::backends::paced::Paced;
use crate::backends::remote::{self, Launcher, Subject};
use crate::backends::xen::XenDomain;
use crate::error::GuestError;
use crate::files::OpenedFiles;
use crate::find::domains::Domain;
use crate::find::{Vm, vcpus};
use crate::memory::{MemorySource, Ram};
use crate::stream::SocketAddress;
use crate::systems::linux::Following;
use crate::{Guest, Source, VmSettings};

/// The backends for a VM, as far as they can be determined without disturbing it.
#[derive(Debug, Default)]
pub struct Plan {
    /// Backends that should work, those that disturb the guest least first.
    pub backends: Vec<Backend>,
    /// Why better backends do not work, in the same order; each states what would help.
    pub obstacles: Vec<(Backend, GuestError)>,
    /// The VM can be sampled, but something makes it worse than it could be.
    pub drawback: Option<String>,
}

impl Plan {
    /// Why the VM cannot be sampled, if no backend works: the obstacle of the best one, which is worth removing.
    pub fn refusal(self) -> Option<GuestError> {
        if self.backends.is_empty() { self.obstacles.into_iter().map(|(_, error)| error).next() } else { None }
    }
}

/// The backends to consider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendChoice {
    /// The best one that works.
    Any,
    /// Only by KVM.
    Kvm,
    /// Only through a gdbstub.
    Gdbstub,
}

/// An attached VM.
pub struct Attached {
    /// The VM.
    pub source: Box<dyn Source>,
    /// The backend.
    pub backend: Backend,
    /// Samples per second and vCPU.
    pub rate_hz: u32,
    /// Why better backends were not used, one sentence each.
    pub passed_over: Vec<GuestError>,
    /// The symbol files, if this process may not be able to open them again.
    pub opened: OpenedFiles,
}

/// Determines the backends for a VM. Opens no connection and stops nothing.
pub fn plan(vm: &Vm, wanted: BackendChoice) -> Plan {
    let mut plan = Plan::default();
    if vm.architecture.is_none() {
        let why =
            format!("the guest of {} is neither of x86-64 nor of AArch64, whose stacks glass can unwind", vm.name);
        plan.obstacles.push((Backend::Gdbstub, GuestError::Unsupported(why)));
        return plan;
    }
    let mut consider = |backend, result| match result {
        Ok(()) => plan.backends.push(backend),
        // Obstacles of a backend that would not be used are ignored.
        Err(_) if !plan.backends.is_empty() => {}
        Err(error) => plan.obstacles.push((backend, error)),
    };
    if wanted == BackendChoice::Kvm || (wanted == BackendChoice::Any && vm.accel == "kvm") {
        consider(Backend::Kvm, look_for_kvm(vm));
    }
    if wanted != BackendChoice::Kvm {
        match (&vm.gdb, &vm.monitor) {
            (Some(gdb), _) => consider(Backend::Gdbstub, may_connect(gdb, "gdbstub")),
            (None, Some(monitor)) => consider(Backend::Monitor, may_connect(&monitor.socket, "monitor")),
            (None, None) if vm.vmm == "QEMU" => consider(Backend::Gdbstub, Err(GuestError::NoGdbstub(vm.pid))),
            (None, None) if vm.accel == "kvm" => {}
            (None, None) => consider(Backend::Gdbstub, Err(GuestError::UnknownVmm(vm.vmm.clone()))),
        }
    }
    let is_slow = plan.backends.first().is_some_and(|backend| *backend != Backend::Kvm);
    if is_slow && !has_ram_file(vm.pid, vm.architecture.unwrap_or_default()).unwrap_or(true) {
        let what = "RAM that is no shared memfd is read through the gdbstub, which makes pauses some times longer";
        plan.drawback = Some(format!("{what}: start QEMU with `-object memory-backend-memfd,share=on`"));
    }
    plan
}

/// Attaches by the first backend that works: in another process, if there is a `launcher` for that, and otherwise in this one. Without a
/// rate, the backend's default is used. `with_host`: what the host does for the VM is sampled, too, which takes the backend for KVM.
pub fn attach(
    vm: &Vm,
    wanted: BackendChoice,
    settings: &VmSettings,
    (rate_hz, with_host): (Option<u32>, bool),
    launcher: Option<&Launcher>,
) -> Result<Attached, GuestError> {
    if with_host {
        return attach_with_host(vm, settings, rate_hz.unwrap_or(hosted::DEFAULT_RATE_HZ), launcher);
    }
    let Plan { backends, obstacles, .. } = plan(vm, wanted);
    let mut passed_over: Vec<GuestError> = obstacles.into_iter().map(|(_, error)| error).collect();
    for backend in backends {
        let rate_hz = rate_hz.unwrap_or(backend.default_rate_hz());
        let attached = match launcher {
            Some(launcher) => {
                let (subject, kind) = (Subject::Vm { pid: vm.pid, backend }, GuestKind::Vm { vmm: vm.pid });
                remote::attach(launcher, subject, (kind, &vm.name), settings.clone(), (rate_hz, false)).map(
                    |(mut source, opened)| {
                        let linux = source.take_linux();
                        (Box::new(Following::new(source, linux)) as Box<dyn Source>, opened)
                    },
                )
            }
            None => attach_here(vm, backend, settings, rate_hz).map(|source| (source, OpenedFiles::default())),
        };
        match attached {
            Ok((source, opened)) => return Ok(Attached { source, backend, rate_hz, passed_over, opened }),
            Err(error) if error.is_of_the_backend() => passed_over.push(error),
            Err(error) => return Err(error),
        }
    }
    // The obstacle of the best backend is worth removing.
    Err(passed_over.into_iter().next().unwrap_or_else(|| GuestError::UnknownVmm(vm.vmm.clone())))
}

fn attach_with_host(
    vm: &Vm,
    settings: &VmSettings,
    rate_hz: u32,
    launcher: Option<&Launcher>,
) -> Result<Attached, GuestError> {
    look_for_kvm(vm)?;
    // Before the attach, after which this process may have given up the rights for it.
    let host = Host::open(vm.pid, rate_hz, launcher)?;
    let zip = |vm: &dyn VmAccess| vm.vcpus().into_iter().zip(vm.threads()).collect::<Vec<_>>().into_iter();
    let (hosted, opened) = match launcher {
        Some(launcher) => {
            let subject = Subject::Vm { pid: vm.pid, backend: Backend::Kvm };
            let kind = (GuestKind::Vm { vmm: vm.pid }, vm.name.as_str());
            let (mut known, opened) = remote::attach(launcher, subject, kind, settings.clone(), (rate_hz, true))?;
            let (vcpus, linux) = (zip(&*known), known.take_linux());
            host.join(Box::new(Following::new(known, linux)), vcpus, opened)
        }
        None => {
            let mut known = KvmVm::attach_with_vmm(vm, settings.clone())?;
            let (vcpus, linux) = (zip(&*known), known.take_linux());
            let source = Following::new(Paced::new(known, rate_hz), linux);
            host.join(Box::new(source), vcpus, OpenedFiles::default())
        }
    };
    let (source, backend): (Box<dyn Source>, _) = (Box::new(hosted), Backend::Kvm);
    Ok(Attached { source, backend, rate_hz, passed_over: Vec::new(), opened })
}

/// Attaches to a domain of Xen: in another process, if there is a `launcher` for that, and otherwise in this one. `force`: an unknown
/// version of Xen is taken for the newest known one. Returns the symbol files, open, too.
pub fn attach_domain(
    domain: &Domain,
    force: bool,
    settings: VmSettings,
    rate_hz: u32,
    launcher: Option<&Launcher>,
) -> Result<(Box<dyn Source>, OpenedFiles), GuestError> {
    let Some(launcher) = launcher else {
        let source = Paced::new(XenDomain::attach(domain, settings, force)?, rate_hz);
        return Ok((Box::new(source), OpenedFiles::default()));
    };
    let (subject, kind) = (Subject::Domain { id: domain.id, force }, GuestKind::XenDomain { id: domain.id });
    let (source, opened) = remote::attach(launcher, subject, (kind, &domain.name), settings, (rate_hz, false))?;
    Ok((Box::new(source), opened))
}

fn attach_here(vm: &Vm, backend: Backend, settings: &VmSettings, rate_hz: u32) -> Result<Box<dyn Source>, GuestError> {
    Ok(match backend {
        Backend::Kvm => paced(KvmVm::attach(vm, settings.clone())?, rate_hz),
        Backend::Gdbstub | Backend::Monitor => paced(QemuVm::attach(vm, settings.clone())?, rate_hz),
    })
}

fn paced<V: VmAccess + Guest + 'static>(mut known: KnownVm<V>, rate_hz: u32) -> Box<dyn Source> {
    let linux = known.take_linux();
    Box::new(Following::new(Paced::new(known, rate_hz), linux))
}

fn look_for_kvm(vm: &Vm) -> Result<(), GuestError> {
    let pid = vm.pid;
    if !fs::exists(format!("/proc/{pid}")).unwrap_or(false) {
        return Err(GuestError::NoProcess(pid));
    }
    // The kernel requires the same permission to open this file as to trace.
    if let Err(error) = File::open(format!("/proc/{pid}/mem"))
        && error.kind() == ErrorKind::PermissionDenied
    {
        return Err(kvm::permission::explain(pid));
    }
    if is_traced(pid) {
        return Err(kvm::permission::explain(pid));
    }
    match vcpus::count(pid) {
        Ok(1..) => Ok(()),
        Ok(0) => Err(GuestError::NoVcpu(pid)),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(kvm::permission::explain(pid)),
        Err(_) => Err(GuestError::NoProcess(pid)),
    }
}

/// Whether another process traces one of its threads, so that we cannot.
fn is_traced(pid: u32) -> bool {
    let own = std::process::id().to_string();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().take(65_536);
    threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok()).any(|status| {
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).unwrap_or("0").trim();
        tracer != "0" && tracer != own
    })
}

fn has_ram_file(pid: u32, architecture: Architecture) -> std::io::Result<bool> {
    Ok(Ram::candidates_of(pid, architecture, MemorySource::Mappings)?.iter().any(Ram::is_file))
}

/// Whether a socket could be connected to. Opening one as a file fails in any case, but with another
/// error if it is the permission that is missing.
fn may_connect(socket: &SocketAddress, what: &str) -> Result<(), GuestError> {
    let SocketAddress::Unix(path) = socket else { return Ok(()) };
    let error = OpenOptions::new().read(true).write(true).open(path).err().map(|error| error.kind());
    match error {
        Some(ErrorKind::PermissionDenied) => Err(GuestError::NotPermitted {
            action: format!("connect to QEMU's {what} at {socket}"),
            remedy: "run glass as the user who started the VM, or as root".to_owned(),
        }),
        Some(ErrorKind::NotFound) => Err(GuestError::NotFound(format!(
            "the socket of QEMU's {what}, {socket}, is not there: it was removed, or QEMU runs in a container"
        ))),
        _ => Ok(()),
    }
}
