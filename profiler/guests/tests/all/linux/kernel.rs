//! A kernel of Debian's and a shell for it, from the machine's package mirror, and a VM that runs them.

use anyhow::{Context as _, Result, bail};
use glass_tests::archive::Archive;
use glass_tests::cache;
use glass_tests::folder::Folder;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use glass_profiler_guests::find::{self, Found, Vm};

/// A boot takes 5 s on an idle machine.
const BOOT_PATIENCE: Duration = Duration::from_secs(90);
/// Depends on the package of the newest kernel.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";
const SHELL_PACKAGE: &str = "busybox-static";

pub struct Kernel {
    pub image: PathBuf,
    pub shell: PathBuf,
    /// A module, and its name.
    pub module: PathBuf,
}

/// The packages' files, downloaded where the cache has none of this version; or the reason why there are none.
pub fn fetch() -> Result<Kernel, String> {
    let fetch = || {
        let package = newest_kernel()?;
        cache::filled(&package, |folder| download(folder, &package))
    };
    let here = Path::new(".");
    let folder = fetch().or_else(|_| run(here, "apt-get", &["-q", "update"]).and_then(|_| fetch()));
    let folder = folder.map_err(|error| format!("{error:#}"))?;
    find_files(&folder).ok_or_else(|| format!("{KERNEL_PACKAGE} is packed in another way than it was"))
}

/// Name of the package that has the newest kernel; its version is part of it.
fn newest_kernel() -> Result<String> {
    let depends = run(Path::new("."), "apt-cache", &["depends", KERNEL_PACKAGE])?;
    let mut names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.rfind(|name| name.starts_with("linux-image")).map(str::to_owned).context("no kernel is offered")
}

fn download(folder: &Path, kernel: &str) -> Result<()> {
    run(folder, "apt-get", &["-q", "download", kernel, SHELL_PACKAGE])?;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            run(folder, "dpkg-deb", &["-x", path.to_str().unwrap(), "."])?;
            fs::remove_file(path).unwrap();
        }
    }
    Ok(())
}

fn run(folder: &Path, program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).current_dir(folder).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    bail!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim_end())
}

fn find_files(folder: &Path) -> Option<Kernel> {
    let boot = fs::read_dir(folder.join("boot")).ok()?;
    let mut images = boot.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let name = images.find(|name| name.starts_with("vmlinuz-"))?;
    let version = name.strip_prefix("vmlinuz-")?;
    let module = folder.join(format!("lib/modules/{version}/kernel/drivers/net/dummy.ko"));
    let kernel = Kernel { image: folder.join("boot").join(&name), shell: folder.join("bin/busybox"), module };
    [&kernel.image, &kernel.shell, &kernel.module].iter().all(|file| file.exists()).then_some(kernel)
}

/// A running Linux.
pub struct Linux {
    pub folder: Folder,
    qemu: Child,
}

impl Linux {
    /// Boots, and waits until the script has printed `DONE`.
    pub fn boot(kernel: &Kernel, name: &str, options: &str, vcpus: u32, script: &str) -> Option<Linux> {
        let folder = Folder::new(name).unwrap();
        let mut archive = Archive::default();
        ["proc", "dev"].into_iter().for_each(|folder| archive.folder(folder));
        archive.file("busybox", true, &fs::read(&kernel.shell).unwrap());
        archive.file("module.ko", false, &fs::read(&kernel.module).unwrap());
        let head = "#!/busybox sh\n/busybox mount -t proc proc /proc\n/busybox mount -t devtmpfs dev /dev\n";
        archive.file("init", true, format!("{head}{script}").as_bytes());
        fs::write(folder.file("files"), archive.finish()).unwrap();
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.current_dir(folder.path()).args([
            "-M",
            "q35,memory-backend=ram",
            "-accel",
            "tcg",
            "-cpu",
            "max",
            "-m",
            "256",
        ]);
        qemu.args(["-smp", &vcpus.to_string(), "-object", "memory-backend-memfd,id=ram,size=256M,share=on"]);
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "file:serial"]);
        qemu.args(["-gdb", "unix:gdb,server=on,wait=off", "-initrd", "files", "-kernel"]).arg(&kernel.image);
        qemu.args(["-append", &format!("console=ttyS0 quiet panic=-1 {options}")]);
        let errors = File::create(folder.file("errors")).unwrap();
        let Ok(qemu) = qemu.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn() else {
            return None;
        };
        let mut linux = Linux { folder, qemu };
        let start = Instant::now();
        while !linux.serial().lines().any(|line| line == "DONE") {
            let errors = || fs::read_to_string(linux.folder.file("errors")).unwrap_or_default();
            assert!(start.elapsed() < BOOT_PATIENCE, "the kernel does not boot: {}", linux.serial());
            assert!(linux.qemu.try_wait().unwrap().is_none(), "QEMU ended: {}", errors());
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("{name}: booted in {:.1} s", start.elapsed().as_secs_f64());
        Some(linux)
    }

    /// What the guest has written.
    pub fn serial(&self) -> String {
        let bytes = fs::read(self.folder.file("serial")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    pub fn vm(&self) -> Vm {
        match find::by_pid(self.qemu.id()).unwrap() {
            Found::Vm(vm) => vm,
            Found::Process => panic!("QEMU is not recognised"),
        }
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
