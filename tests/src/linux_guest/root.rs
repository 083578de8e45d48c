//! The disks of Linux guests: a root with a shell and programs that are compiled here, and a small file system to freeze.

use super::debian::{Kernel, Release};
use crate::archive::Archive;
use crate::cache;
use crate::emulated::packages;
use anyhow::{Context, Result, bail, ensure};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const INIT: &str = include_str!("init.sh");
/// Files of the folder `app` of the root that are not compiled.
const SCRIPTS: [(&str, &str); 3] = [
    ("console.sh", include_str!("console.sh")),
    ("start", include_str!("start.sh")),
    ("interpreted.py", include_str!("programs/interpreted.py")),
];
/// The programs of a shell in one file.
const SHELL_PACKAGE: &str = "busybox-static";
/// An interpreter, as an example of a large program, with a small library, and what it is linked with.
const INTERPRETER_PACKAGES: [&str; 4] = ["python3.11-minimal", "libpython3.11-minimal", "zlib1g", "libexpat1"];
const INTERPRETER: &str = "usr/bin/python3.11";
const FOLDERS: [&str; 10] = ["dev", "proc", "sys", "tmp", "etc", "root", "frozen", "tools", "app", "bin"];
/// Changes when a root is made in another way.
const MAKER: &str = "1";

/// A server and its load, in a namespace of its own, and what they are linked with.
const SERVER_PACKAGES: [&str; 13] = [
    "redis-server",
    "redis-tools",
    "libatomic1",
    "libjemalloc2",
    "liblzf1",
    "libssl3",
    "libsystemd0",
    "libcap2",
    "libgcrypt20",
    "libgpg-error0",
    "liblz4-1",
    "liblzma5",
    "libzstd1",
];
const SERVERS: [&str; 2] = ["usr/bin/redis-server", "usr/bin/redis-benchmark"];
/// Where packages have their libraries.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
/// The libraries of programs for AArch64, which are of Debian and not of this machine.
const AARCH64_PACKAGES: [&str; 3] = ["libc6", "libgcc-s1", "libstdc++6"];
/// Another library of C, with which static programs are linked.
const MUSL_PACKAGE: &str = "musl-dev";
const MUSL: &str = "M=../musl/usr/lib/x86_64-linux-musl; gcc -O2 -static -nostdinc -isystem ../musl/usr/include/x86_64-linux-musl \
    -nostdlib $M/crt1.o $M/crti.o SOURCE $M/libc.a -lgcc $M/crtn.o";

/// A program of the root: the name in its folder `app`, the name and text of the source, and the compiler with its options, in
/// which `SOURCE` and `OUTPUT` stand for the files; without these words they are put behind it.
struct Program {
    name: &'static str,
    source: (&'static str, &'static str),
    compiler: &'static str,
}

/// A machine without this compiler has guests without its programs.
const GO: &str = "go build";
const GO_VERSION: &str = "go version || true";

const COMPUTE: (&str, &str) = ("compute.c", include_str!("programs/compute.c"));

#[rustfmt::skip]
const PROGRAMS: [Program; 17] = [
    Program { name: "without-fp", source: COMPUTE, compiler: "gcc -O2 -g -fomit-frame-pointer" },
    Program { name: "with-fp", source: COMPUTE, compiler: "gcc -O2 -g -fno-omit-frame-pointer" },
    Program { name: "stripped", source: COMPUTE, compiler: "gcc -O2 -s" },
    Program { name: "static", source: COMPUTE, compiler: "gcc -O2 -static" },
    Program { name: "static-musl", source: COMPUTE, compiler: MUSL },
    Program { name: "in-namespace", source: COMPUTE, compiler: "gcc -O2 -static" },
    Program { name: "in-container", source: COMPUTE, compiler: "gcc -O2" },
    Program { name: "mappings", source: ("mappings.c", include_str!("programs/mappings.c")), compiler: "gcc -O2" },
    Program { name: "blocked", source: ("blocked.c", include_str!("programs/blocked.c")), compiler: "gcc -O2" },
    Program { name: "threads", source: ("threads.c", include_str!("programs/threads.c")), compiler: "gcc -O2 -pthread" },
    Program { name: "storm", source: ("storm.c", include_str!("programs/storm.c")), compiler: "gcc -O2 -pthread" },
    Program { name: "deep", source: ("deep.cpp", include_str!("programs/deep.cpp")), compiler: "g++ -O2 -pthread" },
    Program { name: "calls", source: ("calls.c", include_str!("programs/calls.c")), compiler: "gcc -O2 -pthread" },
    Program { name: "goroutines", source: ("goroutines.go", include_str!("programs/goroutines.go")), compiler: "CGO_ENABLED=0 go build -o OUTPUT SOURCE" },
    Program { name: "go-calls-c", source: ("calls-c.go", include_str!("programs/calls-c.go")), compiler: "CGO_ENABLED=1 go build -o OUTPUT SOURCE" },
    Program { name: "kernel-mix", source: ("kernel-mix.c", include_str!("programs/kernel-mix.c")), compiler: "gcc -O2" },
    Program { name: "collect", source: ("collect.c", include_str!("programs/collect.c")), compiler: "gcc -O2 -static" },
];

/// What every guest has, in the cache.
#[derive(Debug, Clone)]
pub struct Root {
    /// The image of the root's disk, ext4 without partitions. Guests write to copies of it.
    pub image: PathBuf,
    /// The image of the file system to freeze.
    pub frozen: PathBuf,
    /// The files of the root, by their paths in the guest.
    pub files: PathBuf,
}

impl Root {
    /// Made where the cache has it not; the error is the reason why it cannot be had.
    pub fn get(release: Release) -> Result<Root> {
        let is_aarch64 = release.is_aarch64();
        // That of all kernels for x86-64 is the same.
        let of = if is_aarch64 { release } else { Release::Bookworm61 };
        let shell = Release::Bookworm61.packages("shell", &[SHELL_PACKAGE])?;
        let musl = of.packages("musl", &[MUSL_PACKAGE])?;
        let interpreter = of.packages("interpreter", &INTERPRETER_PACKAGES)?;
        let server = of.packages("server", &SERVER_PACKAGES)?;
        // Programs are linked with the libraries of this machine.
        let gcc = compiler_of("gcc", is_aarch64);
        let script = format!("{gcc} -dumpfullversion && {gcc} -print-file-name=libc.so.6 | xargs cksum");
        let compiler = run(Path::new("/"), &script)?;
        let go = run(Path::new("/"), GO_VERSION)?;
        let mut sources = vec![shell, musl, interpreter, server];
        if is_aarch64 {
            sources.extend([of.packages("shell", &[SHELL_PACKAGE])?, of.packages("libraries", &AARCH64_PACKAGES)?]);
        }
        let packages: Vec<_> = sources.iter().map(|folder| folder.to_string_lossy().into_owned()).collect();
        let mut made_by = [MAKER, &packages.concat(), &compiler, &go].concat();
        for program in &PROGRAMS {
            made_by += &[program.name, program.source.1, program.compiler].concat();
        }
        SCRIPTS.iter().for_each(|(_, text)| made_by += text);
        let key = format!("linux-guest-root-{}", cache::digest(made_by.as_bytes()));
        let folder = cache::filled(&key, |folder| make(&sources, folder))?;
        let file = |name: &str| folder.join(name);
        Ok(Root { image: file("root.img"), frozen: file("frozen.img"), files: file("root") })
    }

    /// The first file system of a guest, in memory: it loads the kernel's modules and goes to the root.
    pub fn first_files(&self, kernel: &Kernel) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        ["dev", "proc", "sys", "root"].into_iter().for_each(|folder| archive.folder(folder));
        archive.file("bin/busybox", true, &std::fs::read(self.files.join("bin/busybox"))?);
        archive.file("init", true, INIT.as_bytes());
        let mut list = String::new();
        for module in &kernel.modules {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            archive.file(&format!("modules/{name}"), false, &std::fs::read(module)?);
            list += &format!("{name}\n");
        }
        archive.file("modules/list", false, list.as_bytes());
        Ok(archive.finish())
    }
}

/// `packages` are folders with those of the shell, of musl, of the interpreter and of the server; for AArch64 also with those of its shell and of its
/// libraries.
fn make(packages: &[PathBuf], folder: &Path) -> Result<()> {
    let (of_all, of_aarch64) = packages.split_at(4);
    let is_aarch64 = !of_aarch64.is_empty();
    let [shell, musl, interpreter, server] = of_all else { bail!("there are four folders of packages") };
    let [root, sources, unpacked, library] = ["root", "sources", "shell", "musl"].map(|name| folder.join(name));
    for path in [&sources, &unpacked, &library] {
        std::fs::create_dir(path)?;
    }
    for name in FOLDERS {
        std::fs::create_dir_all(root.join(name))?;
    }
    packages::unpack(shell, &unpacked, &[])?;
    packages::unpack(musl, &library, &[])?;
    add_shell(&unpacked, &root)?;
    if let [shell, libraries] = of_aarch64 {
        packages::unpack(libraries, &root, &[])?;
        std::fs::remove_dir_all(&unpacked)?;
        std::fs::create_dir(&unpacked)?;
        packages::unpack(shell, &unpacked, &[])?;
        std::fs::copy(packages::shell(&unpacked)?, root.join("bin/busybox"))?;
    }
    packages::unpack(interpreter, &root, &[])?;
    packages::unpack(server, &root, &[])?;
    std::fs::remove_dir_all(root.join("usr/share"))?;
    for program in SERVERS.into_iter().chain([INTERPRETER]).filter(|_| !is_aarch64) {
        add_libraries(&root.join(program), &root)?;
    }
    std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    for (name, text) in SCRIPTS {
        add_program(&root.join("app").join(name), &format!("#!/bin/sh\n{text}"))?;
    }
    let has_go = !run(&sources, GO_VERSION)?.is_empty();
    for Program { name, source: (file, text), compiler } in PROGRAMS {
        // There is no compiler of C++ for AArch64, and none of C that Go would find.
        let is_left_out = is_aarch64 && (compiler.starts_with("g++") || compiler.contains("CGO_ENABLED=1"));
        if compiler.contains(GO) && !has_go || is_left_out {
            continue;
        }
        let compiler = compiler_of(compiler, is_aarch64);
        std::fs::write(sources.join(file), text)?;
        let program = root.join("app").join(name);
        let command = match compiler.contains("SOURCE") {
            true => compiler,
            false => format!("{compiler} SOURCE"),
        };
        let command = match command.contains("OUTPUT") {
            true => command,
            false => format!("{command} -o OUTPUT"),
        };
        run(&sources, &command.replace("SOURCE", file).replace("OUTPUT", &format!("'{}'", program.display())))?;
        if !is_aarch64 {
            add_libraries(&program, &root)?;
        }
    }
    for path in [unpacked, library] {
        std::fs::remove_dir_all(path)?;
    }
    disk(folder, "root.img", "160M", "-d root")?;
    disk(folder, "frozen.img", "16M", "")
}

/// The command of a compiler for a processor.
fn compiler_of(command: &str, is_aarch64: bool) -> String {
    let of_word = |word: &str| match word {
        "gcc" => "aarch64-linux-gnu-gcc".to_owned(),
        "go" => "GOARCH=arm64 go".to_owned(),
        word => word.replace("x86_64", "aarch64"),
    };
    match is_aarch64 {
        true => command.split(' ').map(of_word).collect::<Vec<_>>().join(" "),
        false => command.to_owned(),
    }
}

/// Makes an image of ext4 in a folder.
pub(super) fn disk(folder: &Path, name: &str, size: &str, options: &str) -> Result<()> {
    // The program is not on the path of every user.
    run(folder, &format!("PATH=$PATH:/usr/sbin:/sbin mke2fs -q -t ext4 -F {options} {name} {size}")).map(drop)
}

/// The shell, and the names of its programs.
fn add_shell(unpacked: &Path, root: &Path) -> Result<()> {
    let busybox = root.join("bin/busybox");
    std::fs::copy(packages::shell(unpacked)?, &busybox)?;
    let names = run(root, "bin/busybox --list")?;
    for name in names.lines().filter(|name| *name != "busybox") {
        symlink("busybox", root.join("bin").join(name))?;
    }
    Ok(())
}

fn add_program(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text)?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

/// Puts the libraries that a program is linked with, and that the root has not, into it, at their paths on this machine.
pub(super) fn add_libraries(program: &Path, root: &Path) -> Result<()> {
    // A static program has none, and ldd fails.
    let own = LIBRARIES.map(|folder| root.join(folder).display().to_string()).join(":");
    let list = run(root, &format!("LD_LIBRARY_PATH='{own}' ldd '{}' || true", program.display()))?;
    ensure!(!list.contains("not found"), "{} lacks libraries:\n{list}", program.display());
    for word in list.split_whitespace().filter(|word| word.starts_with("/lib")) {
        let library = root.join(word.trim_start_matches('/'));
        if !library.exists() {
            std::fs::create_dir_all(library.parent().context("a library without a folder")?)?;
            std::fs::copy(word, &library).with_context(|| format!("cannot copy {word}"))?;
        }
    }
    Ok(())
}

/// Runs a script of the shell in a folder; returns what it prints.
fn run(folder: &Path, script: &str) -> Result<String> {
    let output = packages::run(folder, "sh", &["-c", script])?;

    Ok(output)
}
