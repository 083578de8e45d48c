//! A VM with the command line of `glass run` and more options for QEMU, run without `glass`.

use crate::folder::Folder;
use crate::process::Process;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// QEMU's sockets by which `glass` and tests reach it.
const SOCKETS: [&str; 2] = ["gdb", "monitor"];
/// The devices that processes of `glass` serve: the names of their sockets without the ending.
const DEVICES: [&str; 2] = ["card", "disk"];

/// A QEMU process. Dropping it ends it, and the processes that serve its devices.
#[derive(Debug)]
pub struct Qemu {
    /// The process.
    pub process: Process,
    /// The image that it runs, with symbols.
    pub image: PathBuf,
    _devices: Vec<Process>,
}

impl Qemu {
    /// Starts what `glass_run` (a `glass run` with its options, without the service's own arguments)
    /// would start with the arguments `service`, with the additional `options` of QEMU. Its sockets
    /// and its log are in `folder`.
    pub fn start(glass_run: &mut Command, service: &[&str], options: &[String], folder: &Folder) -> Result<Qemu> {
        let line = command_line(glass_run, service, folder)?;
        let kernel = line.words.iter().position(|word| word == "-kernel").and_then(|at| line.words.get(at + 1));
        let image = kernel.map(PathBuf::from).context("the command names no image")?;
        let devices = line.start_devices(folder)?;
        let mut command = Command::new(&line.words[0]);
        command.args(&line.words[1..]).args(options);
        Ok(Qemu { process: Process::spawn(&mut command, &folder.file("qemu.log"))?, image, _devices: devices })
    }
}

/// What `glass run` would start.
#[derive(Debug)]
pub struct CommandLine {
    /// The words of QEMU's command.
    pub words: Vec<String>,
    /// The program `glass`, and its arguments in front of `run`: another program may start it.
    glass: (OsString, Vec<OsString>),
    /// For each process that serves a device the words behind `glass`.
    devices: Vec<Vec<String>>,
}

/// The commands that `glass_run` would start, with their sockets in `folder`.
pub fn command_line(glass_run: &mut Command, service: &[&str], folder: &Folder) -> Result<CommandLine> {
    let arguments = glass_run.get_args().take_while(|word| *word != "run").map(OsString::from).collect();
    let glass = (glass_run.get_program().to_owned(), arguments);
    let output = glass_run.arg("--print-command").arg("--").args(service).output();
    let output = output.context("cannot start glass")?;
    let (text, messages) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let Some(line) = text.lines().find(|line| line.starts_with("qemu-system")) else {
        bail!("glass run printed no command: {messages}");
    };
    let mut words = words(line)?;
    for word in &mut words {
        for name in SOCKETS {
            if word.starts_with("socket,") && word.ends_with(&format!("id={name}")) {
                *word = format!("socket,path={},server=on,wait=off,id={name}", folder.file(name).display());
            }
        }
        for name in DEVICES {
            if word.starts_with(&chardev(name)) {
                *word = format!("{}path={}", chardev(name), folder.file(&format!("{name}.socket")).display());
            }
        }
    }
    let commands = messages.lines().filter_map(|line| line.split_once("start `glass ")?.1.strip_suffix("` first"));
    let devices = commands.map(self::words).collect::<Result<_>>()?;
    Ok(CommandLine { words, glass, devices })
}

/// What QEMU's option for the socket of a device starts with.
fn chardev(name: &str) -> String {
    format!("socket,id={name},")
}

impl CommandLine {
    /// Starts the processes that serve devices, with their sockets and logs in `folder`. They have to live as long as the VM.
    pub fn start_devices(&self, folder: &Folder) -> Result<Vec<Process>> {
        let start = |words: &Vec<String>| {
            let (name, words) = words.split_last().context("an empty command")?;
            let name = name.trim_start_matches("./");
            let socket = folder.file(name);
            let mut command = Command::new(&self.glass.0);
            command.args(&self.glass.1).args(words).arg(&socket);
            Process::spawn_with_socket(&mut command, &socket, &folder.file(&format!("{name}.log")))
        };
        self.devices.iter().map(start).collect()
    }

    /// The words with QEMU's own network card in front of the TAP device `tap`, which has `options`.
    pub fn with_card_of_qemu(mut self, tap: &str, options: &str) -> Vec<String> {
        let netdev = format!("tap,id=net,ifname={tap},script=no,downscript=no,vnet_hdr=on{options}");
        self.without_chardev("card");
        for word in &mut self.words {
            if word == "vhost-user,id=net,chardev=card" || word.starts_with("tap,id=net,") {
                word.clone_from(&netdev);
            }
        }
        self.words
    }

    /// The words with QEMU's own disk, in a thread of its own, in front of the `drive` of QEMU with the name `disk`.
    pub fn with_disk_of_qemu(mut self, drive: &str) -> Vec<String> {
        self.without_chardev("disk");
        let mut words = Vec::new();
        for word in self.words {
            match word.split_once(",chardev=disk") {
                Some((device, _)) => {
                    let device = device.replacen("vhost-user-blk-pci", "virtio-blk-pci", 1);
                    let device = device.replacen("vhost-user-blk", "virtio-blk-device", 1);
                    words.push(format!("{device},drive=disk,iothread=disk-thread"));
                    words.extend(["-object", "iothread,id=disk-thread", "-drive", drive].map(str::to_owned));
                }
                None if word.starts_with("if=none,id=disk,") => words.push(drive.to_owned()),
                None => words.push(word),
            }
        }
        words
    }

    fn without_chardev(&mut self, name: &str) {
        if let Some(at) = self.words.iter().position(|word| word.starts_with(&chardev(name))) {
            self.words.drain(at - 1..=at);
        }
    }
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

    fn line(words: &str) -> CommandLine {
        CommandLine { words: self::words(words).unwrap(), glass: Default::default(), devices: Vec::new() }
    }

    #[test]
    fn a_card_can_be_that_of_qemu() {
        let ours = line("q -chardev socket,id=card,path=a -netdev vhost-user,id=net,chardev=card -device d,netdev=net");
        let qemus = "q -netdev tap,id=net,ifname=t,script=no,downscript=no,vnet_hdr=on,sndbuf=1 -device d,netdev=net";
        assert_eq!(ours.with_card_of_qemu("t", ",sndbuf=1"), words(qemus).unwrap());
    }

    #[test]
    fn a_disk_can_be_that_of_qemu() {
        for (ours, qemus) in [
            (
                "q -chardev socket,id=disk,path=a -device vhost-user-blk-pci,disable-legacy=on,chardev=disk,num-queues=1",
                "q -device virtio-blk-pci,disable-legacy=on,drive=disk,iothread=disk-thread -object iothread,id=disk-thread -drive d",
            ),
            (
                "q -chardev socket,id=disk,path=a -device vhost-user-blk,chardev=disk,num-queues=1",
                "q -device virtio-blk-device,drive=disk,iothread=disk-thread -object iothread,id=disk-thread -drive d",
            ),
            ("q -drive if=none,id=disk,file=f -device b,drive=disk", "q -drive d -device b,drive=disk"),
        ] {
            assert_eq!(line(ours).with_disk_of_qemu("d"), words(qemus).unwrap());
        }
    }

    #[test]
    fn quoted_words_stay_together() {
        assert_eq!(words(r"a 'b c' d'e'f 'it'\''s' ''").unwrap(), ["a", "b c", "def", "it's", ""]);
        assert!(words("a 'b").is_err());
        assert_eq!(words("a -b 'c d'  '' e\\ f 'it'\\''s'").unwrap(), ["a", "-b", "c d", "", "e f", "it's"]);
        assert!(words("").unwrap().is_empty());
    }
}
