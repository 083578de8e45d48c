//! The Debian package, made by Debian's own `dpkg-deb`.

use super::of_commit;
use super::tree::{DOCUMENTS, compress, write};
use crate::run;
use anyhow::{Context, Result};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What runs when the package is installed and removed.
const SCRIPTS: [(&str, &str); 3] = [
    ("postinst", include_str!("debian/postinst")),
    ("prerm", include_str!("debian/prerm")),
    ("postrm", include_str!("debian/postrm")),
];

/// Packs `tree` as `/usr`. `is_release`: not for a trial only, and of a program that needs no library.
pub fn pack(tree: &Path, folder: &Path, is_release: bool, date: &str) -> Result<PathBuf> {
    let root = folder.join("deb");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    fs::create_dir(&root)?;
    run::quiet(Command::new("cp").arg("--archive").arg(tree).arg(root.join("usr")))?;
    let version = env!("CARGO_PKG_VERSION");
    let maintainer = of_commit("%an <%ae>")?;
    let changes = format!(
        "glass ({version}) unstable; urgency=medium\n\n  * Release {version}: docs/releases/{version}.md in the repository.\n\n -- {maintainer}  {}\n",
        of_commit("%cD")?
    );
    let changelog = root.join("usr").join(DOCUMENTS).join("changelog");
    write(&changelog, &changes)?;
    compress(&changelog)?;
    write(&root.join("usr/share/lintian/overrides/glass"), include_str!("debian/overrides"))?;
    write(&root.join("lib/systemd/system/glass-agent.service"), include_str!("debian/glass-agent.service"))?;
    write(&root.join("etc/glass/agent.toml"), include_str!("debian/agent.toml"))?;
    let control = root.join("DEBIAN");
    write(&control.join("conffiles"), "/etc/glass/agent.toml\n")?;
    let libraries = if is_release { "" } else { ", libc6, libgcc-s1" };
    let text = include_str!("debian/control").replace("VERSION", version).replace("LIBRARIES", libraries);
    write(&control.join("control"), &text.replace("MAINTAINER", &maintainer).replace("SIZE", &kibibytes(&root)?))?;
    write(&control.join("md5sums"), &sums(&root)?)?;
    for (name, text) in SCRIPTS {
        write(&control.join(name), text)?;
        fs::set_permissions(control.join(name), Permissions::from_mode(0o755))?;
    }
    let deb = folder.join(format!("glass_{version}_amd64.deb"));
    // What is only tried is packed sooner.
    let level = if is_release { "-z6" } else { "-z1" };
    let mut command = Command::new("dpkg-deb");
    command.env("SOURCE_DATE_EPOCH", date).args(["--root-owner-group", "-Zxz", level, "--build"]).arg(&root).arg(&deb);
    run::quiet(&mut command)?;
    Ok(deb)
}

/// What the files need when they are installed.
fn kibibytes(root: &Path) -> Result<String> {
    let printed = run::quiet(Command::new("du").args(["--apparent-size", "--block-size=1024", "-s"]).arg(root))?;
    Ok(printed.split_whitespace().next().context("du printed nothing")?.to_owned())
}

/// The sums by which `dpkg --verify` detects files that were changed.
fn sums(root: &Path) -> Result<String> {
    let script = "find usr lib -type f -print0 | sort -z | xargs -0 md5sum";
    run::quiet(Command::new("sh").args(["-c", script]).env("LC_ALL", "C").current_dir(root))
}
