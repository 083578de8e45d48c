//! A machine with a FAT file system on its disk.

use core::time::Duration;
use glass_api::{Buf, File, FileError, Files, Open, Platform};
use glass_lib_fat::Fat;
use glass_platform_sim::{DiskConfig, Node, NodeConfig, SimBlock, World};
use hadris_fat::sync::{check, format};
use hadris_fat::{FatKind, FatOptions};
use hadris_storage::{BlockSize, MemDevice};

pub const LIMIT: Duration = Duration::from_secs(600);

/// An empty file system of the size that is usual for its kind, with clusters of the usual size.
pub fn empty(kind: FatKind) -> Vec<u8> {
    let mib = match kind {
        FatKind::Fat12 => 2,
        FatKind::Fat16 => 8,
        _ => 40,
    };
    let mut device = MemDevice::new(vec![0; mib << 20], BlockSize::new(512).unwrap());
    let geometry = format(&mut device, &FatOptions::new().with_kind(kind)).unwrap();
    assert_eq!(geometry.kind(), kind);
    device.into_inner()
}

/// What is wrong with the file system of an image.
pub fn findings(image: Vec<u8>) -> Vec<String> {
    let mut device = MemDevice::new(image, BlockSize::new(512).unwrap());
    let mut found = Vec::new();
    check(&mut device, &mut [0; 4096], |finding| found.push(finding.to_string())).unwrap();
    found
}

pub struct Machine {
    pub world: World,
    pub node: Node,
    pub disk: SimBlock,
    pub fat: Fat<SimBlock>,
}

impl Machine {
    pub fn new(seed: u64, kind: FatKind) -> Machine {
        Machine::with(seed, SimBlock::with_image(seed, DiskConfig::default(), empty(kind)))
    }

    pub fn with(seed: u64, disk: SimBlock) -> Machine {
        let mut world = World::new(seed);
        let node = world.node("machine", NodeConfig { disks: vec![disk.clone()], ..NodeConfig::default() });
        let own = node.clone();
        let mounted = world.complete(&node, LIMIT, async move { Fat::mount(own.block(0).unwrap(), own.clone()).await });
        Machine { world, node, disk, fat: mounted.unwrap().unwrap() }
    }

    /// Runs `task` to its end.
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(&mut self, task: impl FnOnce(Fat<SimBlock>) -> F) -> T {
        let task = task(self.fat.clone());
        self.world.complete(&self.node, LIMIT, task).unwrap()
    }
}

/// Bytes that show the file and the place that they belong to.
pub fn pattern(file: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| file.wrapping_mul(31) ^ (at as u8) ^ ((at >> 8) as u8).wrapping_mul(7)).collect()
}

pub async fn put(fat: &impl Files, path: &str, bytes: &[u8]) -> Result<(), FileError> {
    let file = fat.open(path, Open::Create).await?;
    file.truncate(0).await?;
    file.write(0, Buf::copy_of(bytes).unwrap()).await.0?;
    file.sync().await
}

pub async fn get(fat: &impl Files, path: &str) -> Result<Vec<u8>, FileError> {
    let file = fat.open(path, Open::Read).await?;
    let bytes = file.metadata().await?.bytes;
    let (count, buf) = file.read(0, Buf::zeroed(bytes as usize).unwrap()).await;
    Ok(buf[..count?].to_vec())
}
