//! A clean Debian in a folder, in which commands run as in a container: with its own processes, and mounts that end with the command.

use crate::{packages, run};
use anyhow::{Context, Result, bail, ensure};
use glass_tests::cache;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The release, and the version of the way in which it is made.
const RELEASE: &str = "bookworm";
const KEY: &str = "debian-bookworm-minimal-1";
/// The user of the trial. It has no rights of its own.
pub const VISITOR: &str = "visitor";

/// A folder that another is seen in.
#[derive(Debug)]
pub struct Bind {
    /// Of this machine.
    pub from: PathBuf,
    /// In the root, without the first slash.
    pub to: &'static str,
}

/// The root.
#[derive(Debug)]
pub struct Root {
    folder: PathBuf,
    binds: Vec<Bind>,
}

impl Root {
    /// Makes it in `folder`: from the network, or from the copy of an earlier time. Needs root, and mmdebstrap.
    pub fn new(folder: &Path) -> Result<Root> {
        ensure!(packages::is_root(), "only root can make another root: run `cargo xtask package --try` as root");
        let archive = cache::filled(KEY, |folder| {
            let mut make = Command::new("mmdebstrap");
            // Its lists stay in it, so that packages can be installed.
            make.args(["--variant=minbase", RELEASE]).arg(folder.join("root.tar"));
            run::quiet(&mut make).map(drop)
        })?;
        if folder.exists() {
            // Nothing is mounted in it here: mounts are those of ended commands.
            fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        fs::create_dir_all(folder)?;
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--xattrs", "--numeric-owner", "--file"]).arg(archive.join("root.tar"));
        // Its devices are those of this machine.
        run::quiet(unpack.arg("--directory").arg(folder).arg("--exclude=./dev/*"))?;
        fs::copy("/etc/resolv.conf", folder.join("etc/resolv.conf")).context("cannot copy /etc/resolv.conf")?;
        let root = Root { folder: folder.to_owned(), binds: Vec::new() };
        root.run("root", &format!("useradd --create-home --shell /bin/sh {VISITOR}"), 60)?;
        root.run("root", "apt-get -qq update", 300)?;
        Ok(root)
    }

    /// Shows a folder of this machine in it, read-only.
    pub fn bind(&mut self, from: PathBuf, to: &'static str) -> Result<()> {
        fs::create_dir_all(self.folder.join(to))?;
        self.binds.push(Bind { from, to });
        Ok(())
    }

    /// The path of this machine for one in it, without the first slash.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// Runs a script in it as `user`, for at most so many seconds; returns what it prints, on both streams. All that it has started ends with it.
    pub fn run(&self, user: &str, script: &str, seconds: u32) -> Result<String> {
        let (status, printed) = self.attempt(user, script, seconds)?;
        if !status {
            bail!("as {user}, `{script}` failed: {printed}");
        }
        Ok(printed)
    }

    /// The same; whether it succeeded, and what it printed.
    pub fn attempt(&self, user: &str, script: &str, seconds: u32) -> Result<(bool, String)> {
        let mut outer = String::from(
            "set -e; cd \"$1\"; mount -t proc proc proc; mount --rbind /sys sys; mount --rbind /dev dev\n",
        );
        for Bind { from, to } in &self.binds {
            let from = from.to_str().context("a folder's path is not UTF-8")?;
            outer += &format!("mount --bind -o ro '{from}' {to}\n");
        }
        outer += "exec chroot . env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive ";
        outer += "su \"$2\" -c \"exec 2>&1; set -e; cd; $3\"";
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &seconds.to_string()]);
        command.args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
        command.args(["sh", "-c", &outer, "sh"]).arg(&self.folder).args([user, script]);
        let output = command.stdin(Stdio::null()).output().context("cannot run `timeout unshare`")?;
        let printed = [output.stdout, output.stderr].concat();
        let late =
            if output.status.code() == Some(124) { format!("not done after {seconds} s\n") } else { String::new() };
        Ok((output.status.success(), late + &String::from_utf8_lossy(&printed)))
    }
}
