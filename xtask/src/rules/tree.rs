//! The repository's files, read once.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Folders without our own files.
const SKIPPED: [&str; 4] = ["target", ".git", "node_modules", "__pycache__"];
/// Extensions of the files whose text is read.
const TEXTS: [&str; 5] = ["rs", "md", "html", "css", "js"];
/// The largest text that is read; bigger files are data.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Paths relative to the root, with `/` between parts, and the text of the files that have any.
#[derive(Debug, Default)]
pub struct Tree {
    texts: BTreeMap<String, String>,
    paths: BTreeSet<String>,
}

impl Tree {
    /// Reads the repository at `root`.
    pub fn read(root: &Path) -> Result<Tree> {
        let mut tree = Tree::default();
        tree.add_folder(root, "")?;
        Ok(tree)
    }

    /// A tree of the given files, for tests.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            let parents = path.match_indices('/').map(|(end, _)| path[..end].to_owned());
            tree.paths.extend(parents);
            tree.paths.insert((*path).to_owned());
            tree.texts.insert((*path).to_owned(), (*text).to_owned());
        }
        tree
    }

    fn add_folder(&mut self, folder: &Path, prefix: &str) -> Result<()> {
        for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type()?;
            let path = format!("{prefix}{name}");
            if kind.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    self.add_folder(&entry.path(), &format!("{path}/"))?;
                    self.paths.insert(path);
                }
                continue;
            }
            let has_text = name.rsplit_once('.').is_some_and(|(_, extension)| TEXTS.contains(&extension));
            if has_text && entry.metadata()?.len() <= TEXT_BYTES_MAX {
                let text = std::fs::read_to_string(entry.path()).with_context(|| format!("cannot read {path}"))?;
                self.texts.insert(path.clone(), text);
            }
            self.paths.insert(path);
        }
        Ok(())
    }

    /// Path and text of every file whose name ends in `.extension`.
    pub fn texts(&self, extension: &str) -> impl Iterator<Item = (&str, &str)> {
        let ending = format!(".{extension}");
        self.texts.iter().filter(move |(path, _)| path.ends_with(&ending)).map(|(path, text)| (&**path, &**text))
    }

    /// Whether a file or folder of this path exists.
    pub fn contains(&self, path: &str) -> bool {
        self.paths.contains(path.trim_end_matches('/'))
    }
}
