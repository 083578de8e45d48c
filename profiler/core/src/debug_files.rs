//! Debug information that was split off a program: where distributions keep it, and whether it belongs to the program.
//! And what a stripped program may still hold: a table of symbols, compressed.

use std::io::Read;

use lzma_rust2::XzReader;
use object::Object;

use crate::budget::{Account, Budget};
use crate::elf::ImageError;
use crate::elf::{Parts, ReadAt, parse_elf, section_bytes};
use crate::files::FileSource;
use crate::guest::ProcessKey;
use crate::symbols::Symbols;

/// Where distributions keep it, in the same folders as the programs, and by build id.
const ROOT: &str = "/usr/lib/debug";
/// How much of a file is read at once for its checksum.
const CHECKED_BYTES: usize = 1 << 20;
/// The shortest build id of which a path is made.
const BUILD_ID_BYTES_MIN: usize = 2;
/// The memory that decompressing a table of symbols may take, in KiB: `xz` takes a dictionary of 8 MiB by default, and of 64 MiB at
/// most.
const DECODER_KIB_MAX: u32 = 72 << 10;
/// Bytes of `.gnu_debugdata` that are decompressed as one unit of work.
const UNPACKED_PER_UNIT: u64 = 4;
/// Bytes of a file in its checksum as one unit of work.
const CHECKED_PER_UNIT: u64 = 8;

/// The symbols of the first debug file that belongs to a program: by its build id, or by the name and checksum that the
/// program itself gives (`.gnu_debuglink`). Of a process they are looked for in its own view of the file system first.
pub(crate) fn find(
    path: &str,
    program: &dyn ReadAt,
    build_id: &[u8],
    process: Option<ProcessKey>,
    files: &mut dyn FileSource,
) -> Option<Symbols> {
    let account = files.budget().account();
    let parts = Parts::of(program, &account);
    let file = parse_elf(&parts).ok()?;
    let link = file.gnu_debuglink().ok().flatten();
    let link = link.and_then(|(name, checksum)| Some((std::str::from_utf8(name).ok()?, checksum)));
    let belongs = |symbols: &Symbols, file: &dyn ReadAt| match &symbols.build_id {
        Some(found) if !build_id.is_empty() => found == build_id,
        _ => link.is_some_and(|(_, checksum)| crc32(file, &account) == Some(checksum)),
    };
    let own = by_build_id(build_id, files.debug_folders());
    for candidate in own.into_iter().chain(paths(path, link.map(|(name, _)| name))) {
        for inside in process.map(Some).into_iter().chain([None]) {
            let Some(file) = load(&candidate, inside, files) else { continue };
            let Ok(symbols) = read_for(&candidate, path, &*file, process, files) else { continue };
            if belongs(&symbols, &*file) {
                return Some(symbols);
            }
        }
    }
    let file = if build_id.len() < BUILD_ID_BYTES_MIN { None } else { files.fetch_debug_file(build_id) }?;
    read_for("", path, &*file, process, files).ok().filter(|symbols| belongs(symbols, &*file))
}

/// The file at a path as a process sees it, or as we do.
fn load(path: &str, inside: Option<ProcessKey>, files: &mut dyn FileSource) -> Option<Box<dyn ReadAt>> {
    match inside {
        Some(process) => files.load_inside(process, path),
        None => files.load(path),
    }
}

/// The symbols of a file at `path`, with the part of its debug information that it shares with other files.
pub(crate) fn read(
    path: &str,
    file: &dyn ReadAt,
    process: Option<ProcessKey>,
    files: &mut dyn FileSource,
) -> Result<Symbols, ImageError> {
    read_for(path, path, file, process, files)
}

/// The same of a file that may be the debug file of the program at another path.
fn read_for(
    path: &str,
    program: &str,
    file: &dyn ReadAt,
    process: Option<ProcessKey>,
    files: &mut dyn FileSource,
) -> Result<Symbols, ImageError> {
    let account = files.budget().account();
    let mut shared = |shared: &str, build_id: &[u8]| shared_part(path, shared, build_id, process, files);
    let symbols = Symbols::read_with(file, account, &mut shared)?;
    let Some(opener) = files.opener() else { return Ok(symbols) };
    let mut programs = vec![path.to_owned(), program.to_owned()];
    programs.dedup();
    programs.retain(|path| path.starts_with('/'));
    let open =
        move |path: &str| process.map(Some).into_iter().chain([None]).find_map(|inside| opener.open(inside, path));
    Ok(symbols.with_split(programs, Box::new(open)))
}

/// The file with the part of debug information that `dwz` has moved out of several, so that it is there once (GDB manual,
/// "Debugging Information in Separate Files"): `shared` is its path, which may be relative to the folder of `path`.
fn shared_part(
    path: &str,
    shared: &str,
    build_id: &[u8],
    process: Option<ProcessKey>,
    files: &mut dyn FileSource,
) -> Option<Box<dyn ReadAt>> {
    let is_no_id = build_id.len() < BUILD_ID_BYTES_MIN || build_id.iter().all(|byte| *byte == 0);
    if shared.is_empty() || is_no_id {
        return None;
    }
    let by_path: Vec<String> = match (shared.starts_with('/'), path.rsplit_once('/')) {
        (true, _) => {
            let folders = files.debug_folders().iter().map(|folder| format!("{folder}{shared}"));
            folders.chain([shared.to_owned()]).collect()
        }
        (false, Some((folder, _))) => vec![format!("{folder}/{shared}")],
        (false, None) => Vec::new(),
    };
    let account = files.budget().account();
    let is_it = |file: &dyn ReadAt| {
        let parts = Parts::of(file, &account);
        parse_elf(&parts).is_ok_and(|file| file.build_id() == Ok(Some(build_id)))
    };
    for candidate in by_path.into_iter().chain(by_build_id(build_id, files.debug_folders())) {
        let found = process.map(Some).into_iter().chain([None]).find_map(|inside| load(&candidate, inside, files));
        if let Some(file) = found.filter(|file| is_it(&**file)) {
            return Some(file);
        }
    }
    files.fetch_debug_file(build_id).filter(|file| is_it(&**file))
}

/// Where the debug information of a build id may be: in folders of the user, which are like [`ROOT`], have a package with that unpacked in them, or
/// are like its `.build-id`; then where distributions keep it.
fn by_build_id(build_id: &[u8], folders: &[String]) -> Vec<String> {
    if build_id.len() < BUILD_ID_BYTES_MIN {
        return Vec::new();
    }
    let digits: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{}/{}.debug", &digits[..2], &digits[2..]);
    let of_folder = |folder: &String| {
        ["/.build-id", &format!("{ROOT}/.build-id"), ""].map(|inside| format!("{folder}{inside}/{name}"))
    };
    folders.iter().flat_map(of_folder).chain([format!("{ROOT}/.build-id/{name}")]).collect()
}

/// The functions that a stripped program names in a table of its own (`.gnu_debugdata`, "MiniDebugInfo"): those that are
/// not dynamic symbols.
pub(crate) fn embedded(program: &dyn ReadAt, budget: &Budget) -> Option<Symbols> {
    let account = budget.account();
    let parts = Parts::of(program, &account);
    let compressed = section_bytes(&parts, &parse_elf(&parts).ok()?, ".gnu_debugdata")?;
    let mut bytes = Vec::new();
    let mut reader = XzReader::new_mem_limit(&compressed[..], true, DECODER_KIB_MAX);
    let mut chunk = vec![0; CHECKED_BYTES];
    loop {
        let count = reader.read(&mut chunk).ok()?;
        if count == 0 {
            break;
        }
        account.hold(count as u64).ok()?;
        account.work(count as u64 / UNPACKED_PER_UNIT).ok()?;
        bytes.extend_from_slice(&chunk[..count]);
    }
    Symbols::read_with(&bytes, budget.account(), &mut |_, _| None).ok()
}

/// Where the debug file of a program may be by its name, the surest first (GDB manual, "Debugging Information in Separate Files").
fn paths(path: &str, link: Option<&str>) -> Vec<String> {
    let mut paths = Vec::new();
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    // A name, not a way to somewhere else.
    if let Some(name) = link.filter(|name| !name.is_empty() && !name.contains('/') && path.starts_with('/')) {
        for place in [format!("{folder}/{name}"), format!("{folder}/.debug/{name}"), format!("{ROOT}{folder}/{name}")] {
            if place != path {
                paths.push(place);
            }
        }
    }
    paths
}

/// The checksum of `.gnu_debuglink`: that of zlib and Ethernet. `None` if the file cannot be read.
fn crc32(file: &dyn ReadAt, account: &Account) -> Option<u32> {
    let mut chunk = vec![0; CHECKED_BYTES];
    let (mut sum, mut offset) = (crc32fast::Hasher::new(), 0);
    account.work(file.bytes() / CHECKED_PER_UNIT).ok()?;
    while offset < file.bytes() {
        let count = CHECKED_BYTES.min(usize::try_from(file.bytes() - offset).unwrap_or(CHECKED_BYTES));
        if !file.read_at(offset, &mut chunk[..count]) {
            return None;
        }
        sum.update(&chunk[..count]);
        offset += count as u64;
    }
    Some(sum.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_the_digits() {
        assert_eq!(crc32(&b"123456789".to_vec(), &Account::alone()), Some(0xcbf4_3926));
        assert_eq!(crc32(&Vec::new(), &Account::alone()), Some(0));
    }

    #[test]
    fn where_a_debug_file_may_be() {
        let expected = ["/usr/bin/app.debug", "/usr/bin/.debug/app.debug", "/usr/lib/debug/usr/bin/app.debug"];
        assert_eq!(paths("/usr/bin/app", Some("app.debug")), expected);
        assert_eq!(paths("/usr/bin/app", Some("../../etc/shadow")), [""; 0]);
        assert_eq!(paths("/usr/bin/app", Some("app"))[0], "/usr/bin/.debug/app", "not itself");
        assert_eq!(paths("[vdso]", Some("linux")), [""; 0]);
        let expected = [
            "/a/.build-id/ab/cdef.debug",
            "/a/usr/lib/debug/.build-id/ab/cdef.debug",
            "/a/ab/cdef.debug",
            "/usr/lib/debug/.build-id/ab/cdef.debug",
        ];
        assert_eq!(by_build_id(&[0xab, 0xcd, 0xef], &["/a".to_owned()]), expected);
        assert_eq!(by_build_id(&[7], &["/a".to_owned()]), [""; 0]);
    }
}
