//! `--share`: a directory of the host as the VM's files, which a helper on the host serves.

use super::Args;
use super::escape::escape;
use super::helpers::{Helper, Role, find};
use anyhow::{Context, Result, bail};
use glass_profiler_guests::find::registry;
use std::path::{Path, PathBuf};

const PROGRAM: &str = "virtiofsd";
const ROLE: Role = Role { name: PROGRAM, serves: "files", is_vital: false };
/// Where systems put it, as it is no command for users: Debian 12 with QEMU, newer ones in a package of its own.
const FOLDERS: [&str; 3] = ["/usr/lib/qemu", "/usr/libexec", "/usr/lib/virtiofsd"];

/// A directory to share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) path: PathBuf,
    pub(super) is_read_only: bool,
}

/// `PATH` or `PATH:ro`.
pub(super) fn parse(text: &str) -> Result<Share, String> {
    let (path, is_read_only) = match text.strip_suffix(":ro") {
        Some(path) => (path, true),
        None => (text, false),
    };
    if path.is_empty() { Err("name a directory".into()) } else { Ok(Share { path: path.into(), is_read_only }) }
}

/// Refuses what is no directory.
pub(super) fn check(args: &Args) -> Result<()> {
    if let Some(share) = &args.share
        && !share.path.is_dir()
    {
        bail!("{} is no directory: make it, or share another one", share.path.display());
    }
    Ok(())
}

/// The socket between QEMU and the helper.
fn socket(folder: &Path) -> PathBuf {
    folder.join("files")
}

/// QEMU's options; `kind` names the device on its bus.
pub(super) fn arguments(folder: &Path, kind: &str) -> [String; 4] {
    let socket = escape(&socket(folder));
    [
        "-chardev".to_owned(),
        format!("socket,id=files,path={socket}"),
        "-device".to_owned(),
        format!("{kind},chardev=files,tag=glass"),
    ]
}

/// Starts what the VM's files need, if it has some.
pub(super) fn start(args: &Args, folder: &Path) -> Result<Option<Helper>> {
    let Some(share) = &args.share else { return Ok(None) };
    let program = find(PROGRAM, &FOLDERS.map(PathBuf::from)).with_context(|| {
        format!("there is no {PROGRAM}, which --share needs: `apt-get install qemu-system-common` or `{PROGRAM}`")
    })?;
    let path = share.path.canonicalize().with_context(|| format!("cannot open {}", share.path.display()))?;
    let socket = socket(folder);
    let is_first = is_first_version(&program);
    let mut arguments = vec![format!("--socket-path={}", socket.display())];
    if is_first {
        // The one in C: all that it may do is what the VM needs.
        arguments.extend([
            "-o".into(),
            format!("source={},cache=auto,no_writeback,no_xattr,no_flock", path.display()),
            "-f".into(),
        ]);
    } else {
        arguments.extend([format!("--shared-dir={}", path.display()), "--cache=auto".into()]);
    }
    let log = folder.join("files.log");
    if !share.is_read_only {
        return Helper::start(ROLE, &program, &arguments, &socket, log).map(Some);
    }
    if !is_first {
        arguments.push("--readonly".into());
        return Helper::start(ROLE, &program, &arguments, &socket, log).map(Some);
    }
    // It has no option for it: it gets a view of its own of the file systems, in which the directory cannot be written.
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
    let mut words: Vec<String> = ["--mount", "--propagation", "private", "sh", "-c", script].map(str::to_owned).into();
    words.extend([path.display().to_string(), program.display().to_string()]);
    words.extend(arguments);
    Helper::start(ROLE, Path::new("unshare"), &words, &socket, log).map(Some)
}

/// What `glass ps` shows of it.
pub(super) fn link(args: &Args) -> Option<registry::Share> {
    let Share { path, is_read_only } = args.share.as_ref()?;
    Some(registry::Share { path: path.canonicalize().unwrap_or(path.clone()), is_read_only: *is_read_only })
}

/// Whether it is QEMU's own virtiofsd, which ended with QEMU 7; the later one is another program of the same name.
fn is_first_version(program: &Path) -> bool {
    let version = std::process::Command::new(program).arg("--version").output();
    version.is_ok_and(|output| {
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).contains("FUSE")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_may_be_read_only() {
        let share = |path: &str, is_read_only| Ok(Share { path: path.into(), is_read_only });
        assert_eq!(parse("a/b"), share("a/b", false));
        assert_eq!(parse("a:b:ro"), share("a:b", true));
        assert!(parse("").is_err() && parse(":ro").is_err());
    }
}
