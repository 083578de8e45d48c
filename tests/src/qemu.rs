//! A VM with the command line of `glass run` and more options for QEMU, run without `glass`.

use crate::folder::Folder;
use crate::process::Process;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;

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
    }
    Ok(words)
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
    fn quoted_words_stay_together() {
        assert_eq!(words(r"a 'b c' d'e'f 'it'\''s' ''").unwrap(), ["a", "b c", "def", "it's", ""]);
        assert!(words("a 'b").is_err());
        assert_eq!(words("a -b 'c d'  '' e\\ f 'it'\\''s'").unwrap(), ["a", "-b", "c d", "", "e f", "it's"]);
        assert!(words("").unwrap().is_empty());
    }
}
