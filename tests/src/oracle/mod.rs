//! Exact counts of a guest under TCG: a plugin of QEMU counts every translation block.

pub mod comparison;
pub mod held;

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSymbol};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The plugin's source; its first comment describes the file that it writes.
const PLUGIN: &str = include_str!("plugin.c");
const HEADER_BYTES: usize = 32;
const RECORD_BYTES: usize = 32;
/// Records of blocks that the file has room for, as the plugin defines it.
const BLOCKS_MAX: usize = 1 << 20;
/// Where the slices are.
const SLICES_AT: usize = HEADER_BYTES + BLOCKS_MAX * RECORD_BYTES;
const SLICES_HEADER_BYTES: usize = 16;
/// Slices that are read at once.
const SLICES_READ: usize = 4096;

/// Counts of one function, without its callees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Executed {
    /// Executions of its first instruction: calls, including tail calls.
    pub calls: u64,
    /// Instructions.
    pub instructions: u64,
    /// Time, in ticks of the time stamp counter.
    pub ticks: u64,
}

/// The plugin and the image that it counts.
#[derive(Debug)]
pub struct Oracle {
    plugin: PathBuf,
    counts: PathBuf,
    /// Functions by their start: end and name.
    functions: Vec<(u64, u64, String)>,
}

/// All counts at one moment, by function.
pub type Counts = HashMap<String, Executed>;

/// A piece of the time in which the guest's vCPU was not idle: one long block, or many short ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice<'a> {
    /// The function whose block it was; of short ones, that of the last.
    pub function: &'a str,
    /// Its length in ticks of the time stamp counter.
    pub ticks: u64,
    /// The counter at its end.
    pub end_ticks: u64,
    /// The same moment in nanoseconds of `CLOCK_BOOTTIME`.
    pub end_ns: u64,
}

impl Oracle {
    /// Compiles the plugin into `folder`. `image` is the ELF file that the guest runs.
    pub fn new(folder: &Path, image: &Path) -> Result<Oracle> {
        let mut oracle = Oracle::without_names(folder)?;
        let bytes = std::fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
        let file = object::File::parse(&*bytes).with_context(|| format!("{} is not an ELF file", image.display()))?;
        let symbols = file.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text && symbol.size() > 0);
        let functions = symbols.filter_map(|symbol| {
            let name = format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?));
            Some((symbol.address(), symbol.address() + symbol.size(), name))
        });
        oracle.set_functions(functions.collect());
        Ok(oracle)
    }

    /// The same for a guest whose functions are not known yet: all code is outside of functions.
    pub fn without_names(folder: &Path) -> Result<Oracle> {
        let (source, plugin, counts) = (folder.join("plugin.c"), folder.join("plugin.so"), folder.join("counts"));
        std::fs::write(&source, PLUGIN)?;
        let mut compiler = Command::new("gcc");
        compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&plugin).arg(&source);
        let status = compiler.status().context("cannot start gcc")?;
        if !status.success() {
            bail!("gcc cannot compile the plugin: {status}");
        }
        Ok(Oracle { plugin, counts, functions: Vec::new() })
    }

    /// The functions of the guest: the first address of each, the end, and the name.
    pub fn set_functions(&mut self, mut functions: Vec<(u64, u64, String)>) {
        // Of several names for one address the profiler takes the longest function, then the first name.
        functions.sort_by(|a, b| (a.0, b.1, &a.2).cmp(&(b.0, a.1, &b.2)));
        functions.dedup_by_key(|function| function.0);
        self.functions = functions;
    }

    /// The options to start QEMU with.
    pub fn options(&self) -> [String; 2] {
        ["-plugin".to_owned(), format!("{},counts={}", self.plugin.display(), self.counts.display())]
    }

    /// The same, and all code at addresses of at most so many bits counts as code outside of functions.
    pub fn merged_options(&self, bits: u32) -> [String; 2] {
        let [option, value] = self.options();
        [option, format!("{value},merge={bits}")]
    }

    /// The counts since the guest's start. Code outside of functions is under "".
    pub fn read(&self) -> Result<Counts> {
        let file = CountsFile::open(&self.counts)?;
        let [blocks, lost] = file.words(0)?;
        if lost > 0 {
            bail!("the plugin had no room for {lost} blocks");
        }
        let mut counts = Counts::new();
        for index in 0..blocks as usize {
            let [address, instructions, executions, ticks] = file.words(HEADER_BYTES + index * RECORD_BYTES)?;
            let function = self.function(address);
            let executed = counts.entry(function.map_or(String::new(), |(_, name)| name.to_owned())).or_default();
            executed.calls += if function.is_some_and(|(start, _)| start == address) { executions } else { 0 };
            executed.instructions += executions * instructions;
            executed.ticks += ticks;
        }
        Ok(counts)
    }

    /// All slices since the guest's start, in order of time.
    pub fn slices(&self) -> Result<Vec<Slice<'_>>> {
        let file = CountsFile::open(&self.counts)?;
        let [count, lost] = file.words(SLICES_AT)?;
        if lost > 0 {
            bail!("the plugin had no room for {lost} slices");
        }
        let [blocks] = file.words(0)?;
        let functions = (0..blocks as usize).map(|block| {
            let [address] = file.words(HEADER_BYTES + block * RECORD_BYTES)?;
            Ok(self.function(address).map_or("", |(_, name)| name))
        });
        let functions: Vec<&str> = functions.collect::<Result<_>>()?;
        let mut slices = Vec::with_capacity(count as usize);
        while slices.len() < count as usize {
            let mut records = vec![[[0; 8]; 4]; SLICES_READ.min(count as usize - slices.len())];
            let at = SLICES_AT + SLICES_HEADER_BYTES + slices.len() * RECORD_BYTES;
            file.read(at, records.as_flattened_mut().as_flattened_mut())?;
            for record in records {
                let [block, ticks, end_ticks, end_ns] = record.map(u64::from_le_bytes);
                let function = functions.get(block as usize).context("a slice is of no block")?;
                slices.push(Slice { function, ticks, end_ticks, end_ns });
            }
        }
        Ok(slices)
    }

    fn function(&self, address: u64) -> Option<(u64, &str)> {
        let after = self.functions.partition_point(|(start, ..)| *start <= address);
        let (start, _, name) = self.functions[..after].last().filter(|(_, end, _)| address < *end)?;
        Some((*start, name))
    }
}

/// The file that the plugin writes.
struct CountsFile(File);

impl CountsFile {
    fn open(path: &Path) -> Result<CountsFile> {
        File::open(path).map(CountsFile).context("the plugin has written nothing")
    }

    fn words<const N: usize>(&self, at: usize) -> Result<[u64; N]> {
        let mut bytes = [[0; 8]; N];
        self.read(at, bytes.as_flattened_mut())?;
        Ok(bytes.map(u64::from_le_bytes))
    }

    fn read(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        self.0.read_exact_at(bytes, at as u64).context("the plugin's file is too short")
    }
}

/// The counts from `before` to `after`.
pub fn between(before: &Counts, after: &Counts) -> Counts {
    let difference = |name: &String, after: &Executed| {
        let before = before.get(name).copied().unwrap_or_default();
        Executed {
            calls: after.calls - before.calls,
            instructions: after.instructions - before.instructions,
            ticks: after.ticks - before.ticks,
        }
    };
    after.iter().map(|(name, after)| (name.clone(), difference(name, after))).collect()
}
