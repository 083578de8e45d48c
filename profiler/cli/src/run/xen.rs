//! `glass run --xen`: a domain's configuration for `xl`, which starts the service in a dom0.

use super::options::Network;
use super::{Args, LOG_DEFAULT, qemu};
use crate::console;
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Refuses what a domain does not have.
pub(super) fn check(args: &Args) -> Result<()> {
    let refused = [
        (!args.port.is_empty(), "--port", "connect to the domain's own address"),
        (args.vsock.is_some(), "--vsock", "Xen has no vsock"),
        (args.share.is_some(), "--share", "no file device of Xen is supported"),
        (args.files_disk.is_some(), "--files-disk", "a domain has one disk here"),
        (args.trace.is_some(), "--trace", "in dom0, `glass record --domain` samples the service"),
        (args.restart, "--restart", "`on_crash` in the configuration decides what follows a crash"),
        (matches!(args.net, Network::Tap(_)), "--net tap=", "the domain's card is on a bridge of dom0"),
    ];
    match refused.into_iter().find(|(is_given, ..)| *is_given) {
        Some((_, option, reason)) => bail!("{option} cannot be used with --xen: {reason}; leave it out"),
        None => Ok(()),
    }
}

/// Writes the configuration `NAME.cfg` into the current folder, and prints how to use it.
pub(super) fn write(args: &Args, image: &Path, name: &str) -> Result<()> {
    let absolute = |path: &Path| path.canonicalize().with_context(|| format!("cannot find {}", path.display()));
    let image = absolute(image)?;
    let disk = args.disk.as_deref().map(absolute).transpose()?;
    let path = PathBuf::from(format!("{name}.cfg"));
    std::fs::write(&path, configuration(args, &image, disk.as_deref(), name)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let file = path.display();
    console::print(&format!(
        "written: {file}. In dom0, with the files at the same paths:
    xl create {file}        # with -c also its console
    xl shutdown {name}          # ends the service as Ctrl-C does\n"
    ))
}

fn configuration(args: &Args, image: &Path, disk: Option<&Path>, name: &str) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "# Made by `glass run --xen`. `xl create {name}.cfg` starts the service as a domain.")?;
    writeln!(text, "name = {}", quoted(name)?)?;
    writeln!(text, "type = \"pvh\"")?;
    writeln!(text, "kernel = {}", quoted(&image.display().to_string())?)?;
    writeln!(text, "memory = {}", args.memory.div_ceil(1 << 20))?;
    writeln!(text, "vcpus = {}", args.cores)?;
    writeln!(text, "on_poweroff = \"destroy\"\non_reboot = \"restart\"\non_crash = \"destroy\"")?;
    if let Some(disk) = disk {
        let disk = disk.display().to_string();
        if disk.contains([',', ' ']) {
            bail!("the path of the disk has a comma or a space, which `xl` takes as its end: rename {disk}");
        }
        writeln!(text, "disk = [{}]", quoted(&format!("format=raw,vdev=xvda,access=rw,target={disk}"))?)?;
    }
    if args.net != Network::None {
        writeln!(text, "# The default bridge of dom0; another one: [\"bridge=NAME\"].\nvif = [\"\"]")?;
    }
    let ip = args.ip.as_ref().map_or(String::new(), |ip| format!("ip={ip} "));
    let ip6 = args.ip6.as_ref().map_or(String::new(), |ip6| format!("ip6={ip6} "));
    let servers = args.dns.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
    let dns = if servers.is_empty() { String::new() } else { format!("dns={servers} ") };
    let log = if args.log == LOG_DEFAULT { String::new() } else { format!("log={} ", args.log) };
    let (disk, congestion) = (qemu::disk_words(args), qemu::congestion_words(args));
    let words = format!("{log}{disk}{ip}{ip6}{dns}{congestion}{}", qemu::service_words(args));
    writeln!(text, "extra = {}", quoted(&words)?)?;
    Ok(text)
}

/// A string of the configuration, which has no way to write a quotation mark or a line end that is safe in all of its versions.
fn quoted(text: &str) -> Result<String> {
    if text.contains(|c: char| c == '"' || c == '\\' || c.is_control()) {
        bail!(
            "a configuration of `xl` cannot contain the quotation mark, backslash or control character in {text:?}: use another name"
        );
    }
    Ok(format!("\"{text}\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Line::parse_from(["run"].into_iter().chain(line.split(' '))).args
    }

    #[test]
    fn a_domain_has_what_the_options_request() {
        let args = args(
            "queue --xen --memory 100M --cores 2 --disk d --disk-timeout 7 --ip 10.0.0.2/24 --dns 10.0.0.1 --congestion bbr --log info -- --name a%b",
        );
        let text = configuration(&args, Path::new("/images/queue"), Some(Path::new("/dev/vg/queue")), "queue").unwrap();
        for line in [
            "type = \"pvh\"",
            "kernel = \"/images/queue\"",
            "memory = 100",
            "vcpus = 2",
            "disk = [\"format=raw,vdev=xvda,access=rw,target=/dev/vg/queue\"]",
            "vif = [\"\"]",
            "extra = \"log=info disk-timeout=7 ip=10.0.0.2/24 dns=10.0.0.1 congestion=bbr -- --name a%25b\"",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
        let without = configuration(&self::args("queue --xen --net none"), Path::new("/i"), None, "queue").unwrap();
        assert!(!without.contains("vif") && !without.contains("disk"));
    }

    #[test]
    fn what_a_domain_does_not_have_is_refused() {
        for line in ["q --xen --port 8080", "q --xen --vsock", "q --xen --share /tmp", "q --xen --net tap=t"] {
            let error = check(&args(line)).unwrap_err().to_string();
            assert!(error.contains("cannot be used with --xen"), "{error}");
        }
        assert!(check(&args("q --xen --net none")).is_ok());
        assert!(quoted("a\"b").is_err() && quoted("a\nb").is_err());
        let path = Path::new("/a,b");
        assert!(configuration(&args("q --xen"), Path::new("/i"), Some(path), "q").is_err());
    }
}
