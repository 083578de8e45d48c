//! nginx as a peer: files by PUT (its DAV module) and GET.

use anyhow::{Context, Result, bail};
use glass_tests::folder::Folder;
use glass_tests::netns::Namespace;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::queue::answer;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The folder of uploads in progress, in that of nginx.
const BODIES: &str = "body";

/// A running nginx. Dropping it ends it and removes its folder.
#[derive(Debug)]
pub struct Nginx {
    // Ended before its folder goes.
    _process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    folder: Folder,
}

/// One process, no log of accesses, bodies straight to the file that becomes the item, and connections that are kept. `listen` is as in nginx's directive.
pub fn configuration(folder: &str, listen: &str, root: &str) -> String {
    format!(
        "daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n\
         events {{ worker_connections 256; }}\n\
         http {{\n    access_log off;\n    sendfile on;\n    tcp_nopush on;\n    client_max_body_size 0;\n\
         \x20   keepalive_requests 1000000000;\n\
         \x20   client_body_temp_path {folder}/{BODIES};\n    proxy_temp_path {folder}/proxy;\n\
         \x20   fastcgi_temp_path {folder}/fastcgi;\n    uwsgi_temp_path {folder}/uwsgi;\n\
         \x20   scgi_temp_path {folder}/scgi;\n\
         \x20   server {{\n        listen {listen};\n        root {root};\n\
         \x20       location / {{ dav_methods PUT DELETE; }}\n    }}\n}}\n"
    )
}

/// The path of nginx, also for a user whose path lacks the folders of daemons.
fn program() -> Option<&'static str> {
    let found = |program: &&str| Command::new(program).arg("-v").output().is_ok_and(|output| output.status.success());
    ["nginx", "/usr/sbin/nginx"].into_iter().find(found)
}

impl Nginx {
    /// Starts it on loopback, with files in a folder of its own; `None` when it is not installed.
    pub fn start() -> Result<Option<Nginx>> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let answers = || answer(address, Duration::from_millis(500)).is_some();
        Nginx::start_as(|program| Command::new(program), address, None, answers)
    }

    /// Starts it in `far` at `address`, with the files of `root`, for clients in `near`; `None` when it is not installed.
    pub fn serve(far: &Namespace, near: &Namespace, address: SocketAddr, root: &Path) -> Result<Option<Nginx>> {
        let answers =
            || near.inside(|| Ok(answer(address, Duration::from_millis(500)))).is_ok_and(|found| found.is_some());
        Nginx::start_as(|program| far.command(program), address, Some(root), answers)
    }

    /// The same over TLS 1.3 with a certificate and its key.
    pub fn serve_tls(
        far: &Namespace,
        near: &Namespace,
        address: SocketAddr,
        root: &Path,
        chain: &Path,
        key: &Path,
    ) -> Result<Option<Nginx>> {
        // A request without TLS is answered with 400.
        let answers =
            || near.inside(|| Ok(answer(address, Duration::from_millis(500)))).is_ok_and(|found| found.is_some());
        let (chain, key) = (chain.display(), key.display());
        let listen = format!(
            "{address} ssl;\n        ssl_certificate {chain};\n        ssl_certificate_key {key};\n        ssl_protocols TLSv1.3;\n        \
             ssl_ecdh_curve X25519"
        );
        Nginx::start_listening(|program| far.command(program), address, &listen, Some(root), answers)
    }

    /// The folder of the files that uploads in progress are written to.
    pub fn bodies(&self) -> PathBuf {
        self.folder.file(BODIES)
    }

    fn start_as(
        command: impl FnOnce(&str) -> Command,
        address: SocketAddr,
        root: Option<&Path>,
        answers: impl Fn() -> bool,
    ) -> Result<Option<Nginx>> {
        Nginx::start_listening(command, address, &address.to_string(), root, answers)
    }

    fn start_listening(
        command: impl FnOnce(&str) -> Command,
        address: SocketAddr,
        listen: &str,
        root: Option<&Path>,
        answers: impl Fn() -> bool,
    ) -> Result<Option<Nginx>> {
        let Some(program) = program() else { return Ok(None) };
        let folder = Folder::new("nginx")?;
        let files = folder.file("files");
        std::fs::create_dir(&files).context("cannot make nginx's folder")?;
        let path = folder.path().to_string_lossy().into_owned();
        let file = folder.file("nginx.conf");
        // A root's nginx gives its worker to another user, who could not read our folder.
        let user = "user root;\n";
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
        let root = root.unwrap_or(&files).to_string_lossy();
        let text = format!("{}{}", if is_root { user } else { "" }, configuration(&path, listen, &root));
        std::fs::write(&file, text).context("cannot write nginx's configuration")?;
        let mut command = command(program);
        command.arg("-c").arg(&file).arg("-p").arg(folder.path());
        let mut process = Process::spawn(&mut command, &folder.file("output"))?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !answers() {
            if process.ended().is_some() || Instant::now() > deadline {
                bail!("nginx does not answer: {}", process.output());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(Nginx { _process: process, address, folder }))
    }
}
