//! tusd as a peer: the server of uploads by the authors of tus, from Go's proxy of modules.

use anyhow::{Result, bail};
use glass_tests::folder::Folder;
use glass_tests::go;
use glass_tests::netns::Namespace;
use glass_tests::process::Process;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a start may take on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The program, built once; `None` after printing why it cannot be had.
pub fn program() -> Option<PathBuf> {
    const FILES: [(&str, &str); 2] = [("go.mod", include_str!("tusd/go.mod")), ("go.sum", include_str!("tusd/go.sum"))];
    go::built("tusd", &FILES, "github.com/tus/tusd/v2/cmd/tusd")
}

/// A running tusd, whose uploads are at `/files/`. Dropping it ends it.
#[derive(Debug)]
pub struct Tusd {
    // Ended before its folder goes.
    _process: Process,
    _folder: Folder,
}

impl Tusd {
    /// Starts it in `far` at `address`, with the folder `files` for its uploads, for clients in `near`.
    pub fn serve(program: &Path, far: &Namespace, near: &Namespace, address: SocketAddr, files: &Path) -> Result<Tusd> {
        let folder = Folder::new("tusd")?;
        let mut command = far.command(program);
        command.args(["-host", &address.ip().to_string(), "-port", &address.port().to_string()]);
        command.arg("-upload-dir").arg(files).args(["-base-path", "/files/"]);
        command.args(["-show-greeting=false", "-expose-metrics=false", "-verbose=false"]);
        let mut process = Process::spawn(&mut command, &folder.file("output"))?;
        let end = Instant::now() + START_LIMIT;
        while near.inside(|| Ok(TcpStream::connect(address).is_err()))? {
            if process.ended().is_some() || Instant::now() > end {
                bail!("tusd does not answer: {}", process.output());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Tusd { _process: process, _folder: folder })
    }
}
