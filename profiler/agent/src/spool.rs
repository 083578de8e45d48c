//! Profiles that wait for their engine: files in a folder of bounded size, so that an engine that is away for a while misses nothing, and one that
//! never returns costs no more than that.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The profiles for one engine, the oldest first.
#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    /// Numbers of files, and their sizes.
    waiting: VecDeque<(u64, u64)>,
    bytes: u64,
    bytes_max: u64,
    next: u64,
}

impl Spool {
    /// Opens or makes it, with what an earlier agent has left.
    pub fn open(folder: &Path, bytes_max: u64) -> io::Result<Spool> {
        fs::create_dir_all(folder)?;
        let mut waiting: Vec<(u64, u64)> = Vec::new();
        for file in fs::read_dir(folder)?.flatten() {
            let number = file.file_name().to_str().and_then(|name| name.parse().ok());
            match number {
                Some(number) => waiting.push((number, file.metadata()?.len())),
                // Half written when its agent was killed.
                None => fs::remove_file(file.path())?,
            }
        }
        waiting.sort_unstable();
        let bytes = waiting.iter().map(|(_, bytes)| bytes).sum();
        let next = waiting.last().map_or(0, |(number, _)| number + 1);
        Ok(Spool { folder: folder.to_owned(), waiting: waiting.into(), bytes, bytes_max, next })
    }

    /// Adds a profile, and removes the oldest ones for it where there is no space. Returns how many these were.
    pub fn add(&mut self, body: &[u8]) -> io::Result<u64> {
        let (path, part) = (self.path(self.next), self.folder.join("part"));
        fs::write(&part, body)?;
        fs::rename(part, path)?;
        self.waiting.push_back((self.next, body.len() as u64));
        self.bytes += body.len() as u64;
        self.next += 1;
        let mut removed = 0;
        while self.bytes > self.bytes_max && self.waiting.len() > 1 {
            self.remove_oldest()?;
            removed += 1;
        }
        Ok(removed)
    }

    /// The oldest profile and its number.
    pub fn oldest(&self) -> Option<(u64, io::Result<Vec<u8>>)> {
        let (number, _) = *self.waiting.front()?;
        Some((number, fs::read(self.path(number))))
    }

    /// Removes a profile if it is still the oldest: it may have gone for space meanwhile.
    pub fn remove(&mut self, number: u64) -> io::Result<()> {
        match self.waiting.front() {
            Some((oldest, _)) if *oldest == number => self.remove_oldest(),
            _ => Ok(()),
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    fn remove_oldest(&mut self) -> io::Result<()> {
        if let Some((number, bytes)) = self.waiting.pop_front() {
            self.bytes -= bytes;
            match fs::remove_file(self.path(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_and_in_order_and_outlives_its_agent() {
        let folder = std::env::temp_dir().join(format!("glass-agent-spool-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let mut spool = Spool::open(&folder, 25).unwrap();
        let removed: Vec<u64> = (0..4).map(|number| spool.add(&[number; 10]).unwrap()).collect();
        assert_eq!(removed, [0, 0, 1, 1]);
        fs::write(folder.join("part"), "half").unwrap();
        let mut spool = Spool::open(&folder, 25).unwrap();
        let (number, body) = spool.oldest().unwrap();
        assert_eq!((number, body.unwrap(), spool.len()), (2, vec![2; 10], 2));
        spool.remove(1).unwrap();
        spool.remove(2).unwrap();
        assert_eq!((spool.oldest().unwrap().0, spool.add(&[4; 10]).unwrap()), (3, 0));
        spool.remove(3).unwrap();
        spool.remove(4).unwrap();
        assert!(spool.oldest().is_none());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir_all(&folder).unwrap();
    }
}
