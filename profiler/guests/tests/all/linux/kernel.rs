//! A kernel of Debian's and a shell for it, and a VM that runs them.

use anyhow::{Context as _, Result};
use glass_tests::archive::Archive;
use glass_tests::folder::Folder;
use glass_tests::linux_guest::{Parts, Release};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use glass_profiler_guests::find::{self, Found, Vm};

/// A boot takes 5 s on an idle machine.
const BOOT_PATIENCE: Duration = Duration::from_secs(360);
const MODULE: &str = "dummy.ko";

pub struct Kernel {
    pub image: PathBuf,
    pub shell: PathBuf,
    /// A module.
    pub module: PathBuf,
}

/// The files, or the reason why there are none.
pub fn fetch() -> Result<Kernel, String> {
    let parts = || -> Result<Kernel> {
        let Parts { kernel, root } = Parts::get(Release::Bookworm61)?;
        let module = kernel.modules.into_iter().find(|module| module.ends_with(MODULE)).context("no such module")?;
        Ok(Kernel { image: kernel.image, shell: root.files.join("bin/busybox"), module })
    };
    parts().map_err(|error| format!("{error:#}"))
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
        qemu.args(["-append", &format!("console=ttyS0 quiet panic=-1 tsc=reliable {options}")]);
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
