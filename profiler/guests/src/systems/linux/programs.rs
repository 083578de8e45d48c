//! The programs of a Linux guest's processes: what is in their files, from the surest source that has it.
//!
//! | source | it is that file if |
//! |---|---|
//! | the VM's own disk, by the number of the file | its build id is that in the guest's page cache, and so is each page that both have ([`OnDisk`]) |
//! | a folder with the guest's files, by path | its build id is |
//! | the page cache | it is what the guest runs, as far as it is there |

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use glass_profiler_core::arch::Paging;
use glass_profiler_core::budget::Account;
use glass_profiler_core::disk::Disks;
use glass_profiler_core::elf::{ReadAt, build_id_of};
use glass_profiler_core::image::Image;
use glass_profiler_core::linux::files::{File, Offsets, Stored, Version};
use glass_profiler_core::linux::kept::{Allowance, Kept};
use glass_profiler_core::linux::page_cache::{CachedFile, PageCache};
use glass_profiler_core::linux::space::Space;
use glass_profiler_core::map::SymbolMap;
use glass_profiler_core::program::{NameSource, NamesFrom, OpenedFile, Parts, Program};
use glass_profiler_core::symbols::Symbols;

use super::in_ram::Types;
use super::outside::{Memory, Outside};
use super::same::{InMemory, OnDisk};
use crate::files::HostFile;

/// File systems that are on no disk.
const ON_NO_DISK: [&str; 5] = ["tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs"];
/// The only kind that is read.
const READ: &str = "ext4";
/// Names of files in a sentence.
const SHOWN: usize = 3;

/// The most contents of one file that are read, one after the other. One that changes more often has no names.
const VERSIONS_MAX: u32 = 16;

/// By what a file is known: where its contents are, and its number as programs see it.
type FileKey = (Option<u64>, u64);

/// The program in a file.
struct Known {
    version: Version,
    bytes: u64,
    program: Option<Program>,
    /// How many there were before.
    before: u32,
}

/// The programs that processes have mapped until now.
pub(super) struct Programs {
    memory: Memory,
    pages: Option<PageCache>,
    /// Of the kernel.
    paging: Paging,
    files: Offsets,
    outside: Outside,
    known: HashMap<FileKey, Known>,
    /// What is on the disks, from when it is needed.
    disks: OnceCell<Disks>,
    allowance: Allowance,
    /// Names of files that are not on the disks as the guest runs them.
    changed: BTreeSet<String>,
    /// Kinds of file systems that are not read, and whether one of [`READ`] is on no disk.
    not_read: BTreeSet<String>,
    is_missing: bool,
}

impl Programs {
    pub(super) fn new(memory: Memory, types: &Types, paging: Paging, outside: Outside) -> Programs {
        Programs {
            memory,
            pages: types.pages.clone().ok(),
            paging,
            files: types.files,
            outside,
            known: HashMap::new(),
            disks: OnceCell::new(),
            allowance: Allowance::default(),
            changed: BTreeSet::new(),
            not_read: BTreeSet::new(),
            is_missing: false,
        }
    }

    /// The program in a file of the guest, as it is now.
    pub(super) fn of(&mut self, file: &File) -> Option<Program> {
        let key = (file.contents, file.inode);
        let (version, bytes) = (file.version, file.bytes);
        let before = match self.known.get(&key) {
            Some(known) if (known.version, known.bytes) == (version, bytes) => return known.program.clone(),
            Some(known) => known.before + 1,
            None => 0,
        };
        let program = if before < VERSIONS_MAX { self.read(file) } else { None };
        self.known.insert(key, Known { version, bytes, program: program.clone(), before });
        program
    }

    /// What stands for a file in which there is no program, where another one was.
    pub(super) fn nothing(&self, file: &File) -> Program {
        let name = self.outside.name(file.path.as_deref().unwrap_or_default(), file.inode);
        let map = Arc::new(SymbolMap::default());
        let image = Arc::new(Image::of_map(&map, 0..u64::MAX, None));
        let names = vec![NamesFrom::Map(map)];
        Program::new(Parts { name, image, names, is_whole: false, is_kernel: false })
    }

    fn read(&mut self, file: &File) -> Option<Program> {
        let cached = self.cached(file)?;
        let build_id = build_id_of(&cached);
        let path = file.path.as_deref().unwrap_or_default();
        let name = self.outside.name(path, file.inode);
        if let Some(found) = self.on_disk(&name, file, build_id.as_deref()) {
            return Some(found);
        }
        let of_root = build_id.and_then(|build_id| self.in_root(&name, path, &build_id));
        let in_memory = InMemory { cached, is_current: self.is_current(file) };
        of_root.or_else(|| program_from(&name, Arc::new(Kept::new(in_memory)), NameSource::Memory))
    }

    /// What the guest has of a file in memory.
    fn cached(&self, file: &File) -> Option<CachedFile<Memory>> {
        Some(CachedFile::new(self.memory.clone(), self.pages?, file.contents?, file.bytes))
    }

    /// Whether a file is still as it was found.
    fn is_current(&self, file: &File) -> impl Fn() -> bool + Send + Sync + use<> {
        let (memory, paging, offsets, version) = (self.memory.clone(), self.paging, self.files, file.version);
        move || version.is_current(&Space::new(&memory, paging), &offsets)
    }

    /// The program on a disk of the VM, if it is what the guest has in memory.
    fn on_disk(&mut self, name: &str, file: &File, build_id: Option<&[u8]>) -> Option<Program> {
        let Stored { kind, uuid, inode } = &file.stored;
        if ON_NO_DISK.contains(&kind.as_str()) {
            return None;
        }
        let disks = self.disks.get_or_init(|| Disks::open(self.outside.opened.disks()));
        if kind != READ {
            self.not_read.insert(kind.chars().filter(char::is_ascii_alphanumeric).collect());
            return None;
        }
        let mut is_there = false;
        for on_disk in disks.files(*uuid, *inode) {
            is_there = true;
            let same = OnDisk::new(on_disk, self.cached(file)?, self.is_current(file), build_id).map(Arc::new);
            let Some(same) = same else { continue };
            let kept = Arc::new(Kept::once(OpenedFile(same.clone()), self.allowance.clone()));
            // It may have become another one while it was read.
            if let Some(found) = program_from(name, kept, NameSource::Disk).filter(|_| !same.is_lost()) {
                return Some(found);
            }
        }
        match is_there || uuid.is_some_and(|uuid| disks.has(uuid)) {
            true => _ = self.changed.insert(name.to_owned()),
            false => self.is_missing = true,
        }
        None
    }

    /// A program in the folder with the guest's files, if it is the build that the guest runs.
    fn in_root(&self, name: &str, path: &str, build_id: &[u8]) -> Option<Program> {
        let root = self.outside.settings.root.as_ref()?;
        // The guest chose the path.
        if path.split('/').any(|part| matches!(part, ".." | ".")) {
            return None;
        }
        let path_here = root.join(Path::new(path.trim_start_matches('/')));
        let file = HostFile::of_file(self.outside.opened.open_path(&path_here)?).ok()?;
        let program = program_from(name, Arc::new(file), NameSource::Folder)?;
        (program.image.build_id.as_deref() == Some(build_id)).then_some(program)
    }

    /// What the disks have not, a sentence each; none if the guest's files are elsewhere, too.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.outside.settings.root.is_some() {
            return remarks;
        }
        let rest = "names of its programs are those that the guest has in memory";
        let kinds: Vec<&str> = self.not_read.iter().map(String::as_str).take(SHOWN).collect();
        if !kinds.is_empty() {
            let kinds = kinds.join(" and ");
            remarks.push(format!("of the VM's disks only ext4 is read, and the guest uses {kinds}: {rest}; give its files with --guest-root"));
        }
        if self.is_missing {
            let others = self.disks.get().map(Disks::others).unwrap_or_default();
            let seen = match others {
                [] => String::new(),
                others => format!(" (they have {})", others[..others.len().min(SHOWN)].join(", ")),
            };
            remarks.push(format!(
                "a file system of the guest is on none of the disks that the VMM has open{seen}: {rest}; give the disk with --guest-disk, or its files with --guest-root"
            ));
        }
        if !self.changed.is_empty() {
            let names: Vec<&str> = self.changed.iter().map(String::as_str).take(SHOWN).collect();
            let more = match self.changed.len().saturating_sub(SHOWN) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            remarks.push(format!(
                "{}{more}: what the guest runs is not on the VM's disk, or not yet, so names are those that the guest has in memory",
                names.join(", ")
            ));
        }
        remarks
    }
}

/// The program that the kernel maps into each process.
pub(super) fn vdso(name: &str, bytes: &[u8]) -> Option<Program> {
    program_from(name, Arc::new(bytes.to_vec()), NameSource::Memory)
}

/// A program by its file, and where that is from.
fn program_from(name: &str, file: Arc<dyn ReadAt>, source: NameSource) -> Option<Program> {
    let file = OpenedFile(file);
    let image = Arc::new(Image::of_file(Box::new(file.clone()), true, Account::alone()).ok()?);
    // The names are read when the guest may be gone: what is needed for them is kept by this.
    let _ = Symbols::read(&file);
    let names = vec![NamesFrom::OfGuest(file, source)];
    Some(Program::new(Parts { name: name.to_owned(), image, names, is_whole: false, is_kernel: false }))
}
