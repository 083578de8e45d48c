//! The domains of this machine, as a dom0 sees them.

pub(crate) mod layout;
mod store;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::GuestError;
use crate::sys::xen::{Call, Hypercalls};
use layout::DomainInfo;
use store::Store;

const PRIVCMD: &str = "/dev/xen/privcmd";
const HYPERCALL: &str = "/dev/xen/hypercall";
/// Names from this one on stand for no domain of their own (`DOMID_FIRST_RESERVED`).
const IDS_END: u32 = 0x7ff0;
const PAGE_BYTES: u64 = 4096;

/// How a domain is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DomainKind {
    /// By hypercalls for all that a kernel does.
    Pv,
    /// By the processor's virtualization, without an emulated machine.
    Pvh,
    /// By the processor's virtualization.
    Hvm,
}

impl std::fmt::Display for DomainKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DomainKind::Pv => "PV",
            DomainKind::Pvh => "PVH",
            DomainKind::Hvm => "HVM",
        })
    }
}

/// A domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// Its number.
    pub id: u32,
    /// Its name in xenstore; its number if it has none.
    pub name: String,
    /// How it is run.
    pub kind: DomainKind,
    /// How many vCPUs are online.
    pub vcpus: u32,
    /// How much RAM it has now.
    pub ram_bytes: u64,
    /// The kernel that it was started with, if xenstore has its path and the file is there.
    pub kernel: Option<PathBuf>,
}

/// Whether Linux runs over Xen here, in whichever domain.
#[must_use]
pub fn is_xen() -> bool {
    Path::new(PRIVCMD).exists()
}

/// The way to hypercalls about domain 0, with the version that this Xen has.
pub(crate) fn open(force: bool) -> Result<Hypercalls, GuestError> {
    let refused = |path: &str, error: io::Error| match error.kind() {
        ErrorKind::NotFound if path == PRIVCMD => GuestError::NotFound(format!(
            "this is no dom0 of Xen ({PRIVCMD} is not there): run glass in dom0, where the module xen-privcmd is loaded"
        )),
        ErrorKind::NotFound => GuestError::Unsupported(format!(
            "{path} is not there: sampling domains needs Linux 4.18 or newer in dom0, with the module xen-privcmd"
        )),
        ErrorKind::PermissionDenied => {
            GuestError::NotPermitted { action: format!("open {path}"), remedy: "run glass as root in dom0".to_owned() }
        }
        _ => GuestError::System { action: format!("open {path}"), error },
    };
    let device =
        |path: &str| OpenOptions::new().read(true).write(true).open(path).map_err(|error| refused(path, error));
    let (privcmd, hypercall) = (device(PRIVCMD)?, device(HYPERCALL)?);
    let mut calls = Hypercalls::open(privcmd, &hypercall, 0)
        .map_err(|error| GuestError::System { action: format!("map {HYPERCALL}"), error })?;
    choose_version(&mut calls, force)?;
    Ok(calls)
}

/// The device once more, for mappings.
pub(crate) fn privcmd() -> Result<File, GuestError> {
    let opened = OpenOptions::new().read(true).write(true).open(PRIVCMD);
    opened.map_err(|error| GuestError::System { action: format!("open {PRIVCMD}"), error })
}

/// Finds the version that Xen does not refuse.
fn choose_version(calls: &mut Hypercalls, force: bool) -> Result<(), GuestError> {
    let mut takes = |version: u32| {
        calls.set_version(version);
        match calls.make_one(Call::DomainInfo) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err(GuestError::Unsupported(
                "Xen does not permit this domain to read others: run glass in dom0".to_owned(),
            )),
            Err(error) => Err(GuestError::System { action: "make a hypercall".to_owned(), error }),
        }
    };
    for known in layout::KNOWN {
        if takes(known.version)? {
            return Ok(());
        }
    }
    for version in layout::UNKNOWN {
        if takes(version)? {
            return if force { Ok(()) } else { Err(GuestError::Unsupported(layout::refusal(version))) };
        }
    }
    Err(GuestError::Unsupported("this Xen takes no version of the interface for tools that glass tries".to_owned()))
}

/// Xen's information about a domain; `None` if there is none of this number.
pub(crate) fn info(calls: &mut Hypercalls, id: u16) -> Result<Option<DomainInfo>, GuestError> {
    calls.set_domain(id);
    match calls.make_one(Call::DomainInfo) {
        Ok(()) => Ok(Some(DomainInfo::parse(&calls.answer(0))).filter(|info| info.id == id)),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(GuestError::System { action: format!("look at domain {id}"), error }),
    }
}

fn store_failed(error: io::Error) -> GuestError {
    GuestError::System { action: "read the domains' names from xenstore".to_owned(), error }
}

/// All domains but the one that glass runs in, if that is 0.
pub fn list(force: bool) -> Result<Vec<Domain>, GuestError> {
    let mut calls = open(force)?;
    let mut store = Store::open().map_err(store_failed)?;
    let names = store.list("/local/domain").map_err(store_failed)?;
    let mut ids: Vec<u16> = names.iter().filter_map(|id| id.parse().ok()).filter(|id| *id != 0).collect();
    ids.sort_unstable();
    let mut domains = Vec::new();
    for id in ids {
        let Some(info) = info(&mut calls, id)?.filter(|info| !info.has_ended) else { continue };
        domains.push(describe(&mut store, &info));
    }
    Ok(domains)
}

/// Finds a domain by its name or its number.
pub fn find(name_or_id: &str, force: bool) -> Result<Domain, GuestError> {
    let domains = list(force)?;
    let id: Option<u32> = name_or_id.parse().ok().filter(|id| *id < IDS_END);
    if id == Some(0) {
        return Err(GuestError::Unsupported(
            "domain 0 runs glass itself, which cannot pause it: sample its processes with --pid".to_owned(),
        ));
    }
    let mut named = domains.iter().filter(|domain| domain.name == name_or_id);
    let found = match (named.next(), named.next()) {
        (Some(_), Some(_)) => {
            return Err(GuestError::NotFound(format!(
                "several domains have the name {name_or_id}: give the number of one with --domain"
            )));
        }
        (Some(domain), None) => Some(domain),
        (None, _) => domains.iter().find(|domain| Some(domain.id) == id),
    };
    found.cloned().ok_or_else(|| {
        let there: Vec<String> = domains.iter().map(|domain| format!("{} ({})", domain.name, domain.id)).collect();
        let hint = if there.is_empty() {
            "none runs beside dom0".to_owned()
        } else {
            format!("running: {}", there.join(", "))
        };
        GuestError::NotFound(format!("there is no domain {name_or_id} ({hint})"))
    })
}

/// A domain with what xenstore has about it. A domain can be sampled without any of that.
fn describe(store: &mut Store, info: &DomainInfo) -> Domain {
    let id = info.id;
    let mut value = |path: &str| store.read(path).ok().flatten();
    let name = value(&format!("/local/domain/{id}/name")).unwrap_or_else(|| id.to_string());
    let kind = match value(&format!("/libxl/{id}/type")).as_deref() {
        _ if !info.is_hvm => DomainKind::Pv,
        Some("pvh") => DomainKind::Pvh,
        _ => DomainKind::Hvm,
    };
    let vm = value(&format!("/local/domain/{id}/vm"));
    let kernel = vm.and_then(|vm| value(&format!("{vm}/image/kernel"))).map(PathBuf::from);
    let kernel = kernel.filter(|path| fs::metadata(path).is_ok_and(|metadata| metadata.is_file()));
    let ram_bytes = info.pages.saturating_mul(PAGE_BYTES);
    Domain { id: u32::from(id), name, kind, vcpus: info.vcpus_online, ram_bytes, kernel }
}
