//! A VM with the command line of `glass run` and more options for QEMU, run without `glass`.

use crate::folder::Folder;
use crate::process::Process;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

/// What QEMU's option for that process starts with.
const CARD: &str = "socket,id=card,";

/// A QEMU process. Dropping it ends it.
#[derive(Debug)]
pub struct Qemu {
    /// The process.
    pub process: Process,
    /// The image that it runs, with symbols.
    pub image: PathBuf,
}

impl Qemu {
    /// Starts what `glass_run` (a `glass run` with its options, without the service's own arguments)
    /// would start with the arguments `service`, with the additional `options` of QEMU. Its sockets
    /// and its log are in `folder`.
    pub fn start(glass_run: &mut Command, service: &[&str], options: &[String], folder: &Folder) -> Result<Qemu> {
        let words = command_words(glass_run, service, folder)?;
        let kernel = words.iter().position(|word| word == "-kernel").and_then(|at| words.get(at + 1));
        let image = kernel.map(PathBuf::from).context("the command names no image")?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(options);
        Ok(Qemu { process: Process::spawn(&mut command, &folder.file("qemu.log"))?, image })
    }
}

/// The words of the command that `glass_run` would start, with QEMU's sockets in `folder`.
pub fn command_words(glass_run: &mut Command, service: &[&str], folder: &Folder) -> Result<Vec<String>> {
    let output = glass_run.arg("--print-command").arg("--").args(service).output();
    let output = output.context("cannot start glass")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("qemu-system"));
    let Some(line) = line else {
        bail!("glass run printed no command: {}", String::from_utf8_lossy(&output.stderr));
    };
    let mut words = words(line)?;
    for word in &mut words {
        for socket in ["gdb", "monitor"] {
            if word.starts_with("socket,") && word.ends_with(&format!("id={socket}")) {
                *word = format!("socket,path={},server=on,wait=off,id={socket}", folder.file(socket).display());
            }
        }
        if word.starts_with(CARD) {
            *word = format!("{CARD}path={}", folder.file("card").display());
        }
    }
    Ok(words)
}

/// Starts the process that serves the network card of the VM with the command line `words` of [`command_words`], if it needs one. It has
/// to live as long as the VM.
pub fn card(glass_run: &Command, words: &[String], folder: &Folder) -> Result<Option<Process>> {
    if !words.iter().any(|word| word.starts_with(CARD)) {
        return Ok(None);
    }
    let arguments: Vec<&OsStr> = glass_run.get_args().collect();
    let tap = arguments.iter().find_map(|word| word.to_str()?.strip_prefix("tap="));
    let run = arguments.iter().position(|word| *word == "run");
    let (Some(tap), Some(run)) = (tap, run) else { bail!("this is no `glass run` with a TAP device: {glass_run:?}") };
    let socket = folder.file("card");
    let mut command = Command::new(glass_run.get_program());
    command.args(&arguments[..run]).args(["tap", tap, "--socket"]).arg(&socket);
    Process::spawn_with_socket(&mut command, &socket, &folder.file("card.log")).map(Some)
}

/// The same command line with QEMU's own network card in front of the TAP device `tap`, which has `options`.
pub fn with_card_of_qemu(words: Vec<String>, tap: &str, options: &str) -> Vec<String> {
    let mut changed: Vec<String> = Vec::with_capacity(words.len());
    for word in words {
        if word.starts_with(CARD) {
            // With its `-chardev`.
            changed.pop();
        } else if word == "vhost-user,id=net,chardev=card" || word.starts_with("tap,id=net,") {
            changed.push(format!("tap,id=net,ifname={tap},script=no,downscript=no,vnet_hdr=on{options}"));
        } else {
            changed.push(word);
        }
    }
    changed
}

/// The words of a shell command line in which only single quotes and backslashes quote. Fails if a quote is not closed.
pub fn words(line: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '\'' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '\\' if !is_quoted => word.get_or_insert_default().extend(characters.next()),
            ' ' if !is_quoted => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    if is_quoted { bail!("a quote is not closed in {line:?}") } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_can_be_that_of_qemu() {
        let words = |line| words(line).unwrap();
        let ours = "q -chardev socket,id=card,path=a -netdev vhost-user,id=net,chardev=card -device d,netdev=net";
        let qemus = "q -netdev tap,id=net,ifname=t,script=no,downscript=no,vnet_hdr=on,sndbuf=1 -device d,netdev=net";
        assert_eq!(with_card_of_qemu(words(ours), "t", ",sndbuf=1"), words(qemus));
    }

    #[test]
    fn quoted_words_stay_together() {
        assert_eq!(words(r"a 'b c' d'e'f 'it'\''s' ''").unwrap(), ["a", "b c", "def", "it's", ""]);
        assert!(words("a 'b").is_err());
        assert_eq!(words("a -b 'c d'  '' e\\ f 'it'\\''s'").unwrap(), ["a", "-b", "c d", "", "e f", "it's"]);
        assert!(words("").unwrap().is_empty());
    }
}
