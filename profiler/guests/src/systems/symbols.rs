//! The symbol files that a user names for a VM: what each is, which belong together, and where the
//! programs that they describe run.

use std::cell::Cell;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use glass_formats as formats;
use glass_profiler_core::arch::x86_64::orc::OrcTable;
use glass_profiler_core::elf::ImageError;
use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::image::Image;
use glass_profiler_core::map::SymbolMap;
use glass_profiler_core::program::{NamesFrom, Parts, Program};
use glass_profiler_core::symbols;
use object::{Object, ObjectSegment};

use crate::error::GuestError;
use crate::files::{FILE_BYTES_MAX, HostFile, OpenedFiles};
use crate::systems::boot_image;
use crate::systems::landmarks;

const PAGE_BYTES: u64 = 4096;
/// The largest map of symbols, in bytes; that of a kernel has some 10 MB.
const MAP_BYTES_MAX: u64 = 256 << 20;

/// A file with symbols, or with unwind tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymbolFile {
    /// Its path.
    pub path: PathBuf,
    /// Where the first byte of the program really is, if not where it was linked for.
    pub address: Option<u64>,
    /// It is what the guest runs, as was found out already.
    pub is_right: bool,
}

impl From<PathBuf> for SymbolFile {
    fn from(path: PathBuf) -> SymbolFile {
        SymbolFile { path, address: None, is_right: false }
    }
}

impl SymbolFile {
    /// Reads `FILE` or `FILE@0xADDRESS`. Fails with one sentence if what follows `@0x` is no address.
    pub fn parse(text: &str) -> Result<SymbolFile, String> {
        match text.rsplit_once("@0x") {
            Some((path, digits)) => {
                let address = parse_address(digits).map_err(|error| format!("{error} after the @ of {text}"))?;
                Ok(SymbolFile { path: path.into(), address: Some(address), is_right: false })
            }
            None => Ok(PathBuf::from(text).into()),
        }
    }
}

/// Reads an address in hexadecimal, with or without 0x, at which something can be loaded.
pub fn parse_address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let address = u64::from_str_radix(digits, 16).map_err(|_| format!("{text} is no hexadecimal address"))?;
    if !address.is_multiple_of(PAGE_BYTES) {
        return Err(format!("the load address {address:#x} is not at the start of a page (a multiple of 0x1000)"));
    }
    Ok(address)
}

/// What a file turned out to be.
enum Content {
    Elf { image: Box<Image>, has_names: bool },
    Map(Arc<SymbolMap>),
}

/// A program that the guest runs, from the files.
pub(crate) struct GuestProgram {
    pub(crate) path: PathBuf,
    /// The ELF file, with the roots of the map that belongs to it.
    pub(crate) elf: Option<Arc<Image>>,
    pub(crate) map: Option<Arc<SymbolMap>>,
    pub(crate) has_names: bool,
    /// The addresses that it was linked for.
    pub(crate) linked: Range<u64>,
    /// Its load address, if the user gives it.
    pub(crate) address: Option<u64>,
    /// See [`SymbolFile::is_right`].
    pub(crate) is_right: bool,
    /// What is added to linked addresses.
    pub(crate) bias: Cell<u64>,
    /// The unwind tables of modules of its map, by the modules' names.
    pub(crate) module_tables: Vec<(String, Arc<OrcTable>)>,
    /// The code of a kernel whose functions keep the frame pointer: where it starts, and its bytes.
    pub(crate) with_frame_pointers: Option<(u64, Arc<[u8]>)>,
}

impl GuestProgram {
    /// The linked address of one of the symbols that are looked for.
    pub(crate) fn landmark(&self, name: &str) -> Option<u64> {
        let of_elf = self.elf.as_ref().and_then(|image| image.symbol(name));
        of_elf.or_else(|| self.map.as_ref()?.symbol(name))
    }

    pub(crate) fn is_linux(&self) -> bool {
        landmarks::is_linux(|name| self.landmark(name).is_some())
    }

    /// Where it runs.
    pub(crate) fn range(&self) -> Range<u64> {
        self.linked.start.wrapping_add(self.bias.get())..self.linked.end.wrapping_add(self.bias.get())
    }

    fn place(&self, address: u64) {
        self.bias.set(address.wrapping_sub(self.linked.start & !(PAGE_BYTES - 1)));
    }

    fn names(&self) -> Vec<NamesFrom> {
        let Some(map) = &self.map else { return Vec::new() };
        let file = (self.has_names && self.elf.is_some()).then(|| NamesFrom::File(self.path.display().to_string()));
        file.into_iter().chain([NamesFrom::Map(map.clone())]).collect()
    }

    /// All that is to be placed in the guest: the program, and the modules of a kernel's map.
    pub(crate) fn programs(&self, bias: u64, orc: Option<&Arc<OrcTable>>) -> Vec<(Range<u64>, u64, Program)> {
        let is_kernel = self.is_linux();
        let image = match (&self.elf, &self.map, orc) {
            (Some(elf), _, None) => elf.clone(),
            (Some(elf), _, Some(orc)) => Arc::new(Image::clone(elf).with_orc(orc.clone())),
            (None, Some(map), orc) => {
                let image = Image::of_map(map, self.linked.clone(), orc.cloned());
                Arc::new(match &self.with_frame_pointers {
                    Some(code) => image.with_frame_pointers(code.clone()),
                    None => image,
                })
            }
            (None, None, _) => return Vec::new(),
        };
        let name = self.path.display().to_string();
        let program = Program::new(Parts { name, image, names: self.names(), is_whole: true, is_kernel });
        let main = self.linked.start.wrapping_add(bias)..self.linked.end.wrapping_add(bias);
        let mut placed = vec![(main.clone(), bias, program)];
        // Modules are where the running kernel put them: a map of another boot does not contain them.
        if let Some(map) = self.map.as_ref().filter(|_| self.elf.is_none() && bias == 0) {
            let mut end = 0;
            for (module, range) in map.modules().into_iter().filter(|(module, _)| !module.is_empty()) {
                let range = range.start.max(end)..range.end;
                if range.is_empty() || overlap(&range, &main).is_some() {
                    continue;
                }
                end = range.end;
                let table = self.module_tables.iter().find(|(name, _)| name == module).map(|(_, table)| table.clone());
                let image = Arc::new(Image::of_map(map, range.clone(), table));
                let names = vec![NamesFrom::Map(map.clone())];
                let program = Program::new(Parts { name: module.to_owned(), image, names, is_whole: false, is_kernel });
                placed.push((range, 0, program));
            }
        }
        placed
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> Option<Range<u64>> {
    let common = a.start.max(b.start)..a.end.min(b.end);
    (!common.is_empty()).then_some(common)
}

/// Whether a file begins as ELF files do. Nothing else of it is read.
pub(crate) fn is_elf(path: &Path, opened: &OpenedFiles) -> bool {
    let file = opened.get(path).map_or_else(|| HostFile::open(path), HostFile::of_file);
    file.is_ok_and(|file| has_elf_magic(&file))
}

fn has_elf_magic(file: &HostFile) -> bool {
    let mut magic = [0; 4];
    file.read_at(0, &mut magic) && magic == *b"\x7fELF"
}

fn read(path: &Path, opened: &OpenedFiles) -> Result<Content, GuestError> {
    let file = |error| GuestError::File { path: path.to_owned(), error };
    let known = opened.get(path);
    let metadata = known.as_ref().map_or_else(|| fs::metadata(path), File::metadata).map_err(file)?;
    if metadata.len() > FILE_BYTES_MAX || metadata.is_dir() {
        return Err(file(std::io::Error::other("not a file of a usual size")));
    }
    // A copy of it, since names are read again at the end: files in /proc have no size.
    if !metadata.is_file() || path.starts_with("/proc") {
        return Err(GuestError::Symbols(format!(
            "{} is not an ordinary file: copy what is in it to one, and give that with --symbols",
            path.display()
        )));
    }
    let opened = known.map_or_else(|| HostFile::open(path), HostFile::of_file).map_err(file)?;
    let landmarks = landmarks::all();
    if !has_elf_magic(&opened) {
        if metadata.len() > MAP_BYTES_MAX {
            return Err(file(std::io::Error::other("too large for a map of symbols")));
        }
        let mut bytes = vec![0; opened.bytes() as usize];
        if !opened.read_at(0, &mut bytes) {
            return Err(file(std::io::Error::other("it became shorter")));
        }
        if boot_image::starts_like_one(&bytes) {
            return Err(GuestError::Symbols(format!("{} {}", path.display(), ImageError::BootImage)));
        }
        let map = SymbolMap::parse(&bytes, &landmarks)
            .map_err(|error| GuestError::Symbols(format!("{} {error}", path.display())))?;
        return Ok(Content::Map(Arc::new(map)));
    }
    let wrong = |error| GuestError::Image { path: path.to_owned(), error };
    let has_names = match symbols::check_names(&opened) {
        Ok(()) => true,
        Err(ImageError::Stripped) => false,
        Err(error) => return Err(wrong(error)),
    };
    let image = Box::new(Image::read(&opened, &landmarks).map_err(wrong)?);
    Ok(Content::Elf { image, has_names })
}

pub(super) fn map_range(map: &SymbolMap) -> Range<u64> {
    // A list of modules alone has no part without a name.
    map.modules().into_iter().min_by_key(|(module, _)| !module.is_empty()).map_or(0..0, |(_, range)| range)
}

/// Reads all files and finds out which belong together: an image and a map of the same addresses are
/// one program.
pub(crate) fn load(files: &[SymbolFile], opened: &OpenedFiles) -> Result<Vec<GuestProgram>, GuestError> {
    let mut programs: Vec<GuestProgram> = Vec::new();
    let mut maps = Vec::new();
    for file in files {
        let (path, address, is_right) = (file.path.clone(), file.address, file.is_right);
        match read(&file.path, opened)? {
            Content::Elf { image, has_names } => {
                let linked = image.linked_range();
                let elf = Some(Arc::from(image));
                let (map, bias) = (None, Cell::default());
                let module_tables = Vec::new();
                programs.push(GuestProgram {
                    path,
                    elf,
                    map,
                    has_names,
                    linked,
                    address,
                    is_right,
                    bias,
                    module_tables,
                    with_frame_pointers: None,
                });
            }
            Content::Map(map) => maps.push((path, map, address)),
        }
    }
    for (path, map, address) in maps {
        let linked = map_range(&map);
        let same = |program: &&mut GuestProgram| {
            let agrees = address.is_none() || address == program.address;
            program.map.is_none() && program.elf.is_some() && agrees && overlap(&program.linked, &linked).is_some()
        };
        match programs.iter_mut().find(same) {
            Some(program) => {
                program.elf = program.elf.take().map(|image| Arc::new(Image::clone(&image).with_map(&map)));
                program.map = Some(map);
            }
            None => programs.push(GuestProgram {
                path,
                elf: None,
                map: Some(map),
                has_names: true,
                linked,
                address,
                is_right: false,
                bias: Cell::default(),
                module_tables: Vec::new(),
                with_frame_pointers: None,
            }),
        }
    }
    for program in &programs {
        if !program.has_names && program.map.is_none() {
            return Err(GuestError::Image { path: program.path.clone(), error: ImageError::Stripped });
        }
        if let Some(address) = program.address {
            program.place(address);
        }
    }
    check_apart(&programs)?;
    Ok(programs)
}

/// The symbols of the C program in an image that `glass build --c` made, which it leaves beside it; with where a VM's ranks have the
/// program. `None` if they are not there, or belong to another program than the image contains.
pub fn of_c_program(image: &Path) -> Option<SymbolFile> {
    let mut path = image.as_os_str().to_owned();
    path.push(formats::C_PROGRAM_SYMBOLS);
    let path = PathBuf::from(path);
    let file = fs::read(&path).ok()?;
    let elf = object::File::parse(&*file).ok()?;
    let build_id = elf.build_id().ok()??;
    let contains = |image: &[u8]| image.windows(build_id.len()).any(|window| window == build_id);
    if build_id.is_empty() || !contains(&fs::read(image).ok()?) {
        return None;
    }
    let is_written = |segment: &object::Segment| segment.permissions().writable();
    let writable = elf.segments().filter(is_written).map(|segment| segment.address() & !(PAGE_BYTES - 1)).min()?;
    Some(SymbolFile { path, address: Some(formats::c_program_start(writable)), is_right: true })
}

/// Fails with one sentence if two programs are at the same addresses.
pub(crate) fn check_apart(programs: &[GuestProgram]) -> Result<(), GuestError> {
    for (index, a) in programs.iter().enumerate() {
        for b in &programs[index + 1..] {
            if let Some(common) = overlap(&a.range(), &b.range()) {
                return Err(GuestError::Symbols(format!(
                    "{} and {} are both at {:#x} to {:#x}: say where each is loaded (--symbols FILE@0xADDRESS)",
                    a.path.display(),
                    b.path.display(),
                    common.start,
                    common.end
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program whose map has these functions is taken for.
    fn is_linux(functions: &[&str]) -> bool {
        let lines = (0x1000..).zip(functions).map(|(address, name)| format!("ffffffff8100{address:04x} T {name}\n"));
        let map = SymbolMap::parse(lines.collect::<String>().as_bytes(), &landmarks::all()).unwrap();
        let linked = map_range(&map);
        let (path, map) = ("a map".into(), Some(Arc::new(map)));
        GuestProgram {
            path,
            elf: None,
            map,
            has_names: true,
            linked,
            address: None,
            is_right: false,
            bias: Cell::default(),
            module_tables: Vec::new(),
            with_frame_pointers: None,
        }
        .is_linux()
    }

    #[test]
    fn a_compressed_kernel_says_what_to_give() {
        let path = std::env::temp_dir().join(format!("glass-vmlinuz-{}", std::process::id()));
        let mut bytes = vec![0; 0x202];
        bytes.extend(b"HdrS and so on");
        fs::write(&path, bytes).unwrap();
        let error = load(&[path.clone().into()], &OpenedFiles::default()).err().unwrap().to_string();
        fs::remove_file(path).unwrap();
        assert!(error.contains("is a compressed kernel") && error.contains("System.map"), "{error}");
    }

    /// Xen has a `divide_error` and was taken for a Linux (2026-11-22).
    #[test]
    fn one_landmark_makes_no_linux() {
        assert!(!is_linux(&["divide_error", "__start_xen", "idle_loop", "do_softirq"]));
        assert!(!is_linux(&["divide_error", "asm_exc_divide_error"]));
        assert!(!is_linux(&["start_kernel", "main"]));
        // What /proc/kallsyms shows where it lists functions only, new and old.
        assert!(is_linux(&["start_kernel", "entry_SYSCALL_64", "asm_exc_divide_error"]));
        assert!(is_linux(&["start_kernel", "entry_SYSCALL_64", "divide_error"]));
        // A cut one.
        assert!(is_linux(&["linux_banner", "__start_orc_unwind_ip", "__stop_orc_unwind_ip"]));
        assert!(is_linux(&["linux_banner", "asm_exc_divide_error"]));
    }

    #[test]
    fn a_file_with_or_without_address() {
        let parse = SymbolFile::parse;
        assert_eq!(parse("app.elf"), Ok(SymbolFile { path: "app.elf".into(), address: None, is_right: false }));
        assert_eq!(
            parse("a@b/c@0x200000"),
            Ok(SymbolFile { path: "a@b/c".into(), address: Some(0x20_0000), is_right: false })
        );
        assert!(parse("app@0x2000zz").unwrap_err().contains("2000zz is no hexadecimal address"));
        assert!(parse("app@0x2010").unwrap_err().contains("0x2010 is not at the start of a page"));
        assert_eq!(parse_address("0xffffffff81000000"), Ok(0xffff_ffff_8100_0000));
    }
}
