//! A million keys in a map, in a VM of 64 MiB: `bench-store` fills, changes and reads a disk, and checks each entry.

use glass_tests::folder::Folder;
use glass_tests::limit::say;
use glass_tests::programs;
use glass_tests::queue::World;
use serde_json::Value;
use std::process::Command;

glass_tests::in_every_world! {
    a_map_is_larger_than_memory within 900;
}

fn a_map_is_larger_than_memory(world: World) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    // 1,000,000 keys take 150 MB.
    let keys = match world {
        World::Process | World::Kvm => 1_000_000,
        World::Tcg => 100_000,
    };
    let command = match world {
        World::Process => programs::built("bench-store").map(Command::new),
        World::Kvm | World::Tcg => {
            programs::built("glass").zip(programs::image("bench-store")).map(|(glass, image)| {
                let mut command = Command::new(glass);
                command.arg("run").arg(image).args(["--accel", &world.to_string(), "--net", "none", "--memory", "64M"]);
                command
            })
        }
    };
    let Some(mut command) = command else { return };
    let folder = Folder::new("store").unwrap();
    command.arg("--disk").arg(folder.file("store.img")).args(["--disk-size", "1G", "--"]);
    let output = command.args(["--keys", &keys.to_string(), "--milliseconds", "100"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let results = text.lines().filter_map(|line| line.find('{').map(|at| &line[at..]));
    let results: Vec<Value> = results.filter_map(|line| serde_json::from_str(line).ok()).collect();
    let scan = results.last().expect("a result");
    assert_eq!((scan["measurement"].as_str(), scan["count"].as_u64()), (Some("scan"), Some(keys)), "{text}");
    let (rate, peak) = (&scan["per_s"], scan["peak_memory_bytes"].as_u64().unwrap());
    say(&format!("store {world}: {keys} keys, {rate} entries scanned each second, at most {} MiB in use", peak >> 20));
    if world != World::Process {
        assert!(peak < 48 << 20, "{peak} bytes of memory");
    }
}
