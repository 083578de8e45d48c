//! `bench-disk` measures a disk on each platform, or prints why it cannot.

use glass_tests::folder::Folder;
use glass_tests::programs;
use glass_tests::queue::World;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

glass_tests::in_every_world! {
    a_disk_is_measured within 120;
}

fn run(world: World, disk: &Path, arguments: &[&str]) -> Option<Output> {
    let mut command = match world {
        World::Process => Command::new(programs::built("bench-disk")?),
        World::Kvm | World::Tcg => {
            let mut command = Command::new(programs::built("glass")?);
            command.arg("run").arg(programs::image("bench-disk")?);
            command.args(["--accel", &world.to_string(), "--net", "none"]);
            command
        }
    };
    command.arg("--disk").arg(disk).args(["--disk-size", "1M", "--"]).args(arguments);
    Some(command.output().unwrap())
}

fn a_disk_is_measured(world: World) {
    if let Some(reason) = world.obstacle() {
        return programs::skip(reason);
    }
    let folder = Folder::new("disk").unwrap();
    let disk = folder.file("disk.img");
    let arguments = ["--bytes", "512,64K", "--in-flight", "1,3", "--milliseconds", "20"];
    let Some(output) = run(world, &disk, &arguments) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let measured = |line: &str| line.find("{\"direction\"").map(|at| serde_json::from_str(line[at..].trim()).unwrap());
    let cells: Vec<Value> = text.lines().filter_map(measured).collect();
    let described: Vec<String> = cells
        .iter()
        .map(|cell| format!("{} {} {}", cell["direction"].as_str().unwrap(), cell["request_bytes"], cell["in_flight"]))
        .collect();
    let expected = ["read 512 1", "read 512 3", "read 65536 1", "read 65536 3", "write 512 1", "write 512 3"];
    assert_eq!(cells.len(), 8, "{text}");
    assert_eq!(described[..6], expected, "{text}");
    assert!(cells.iter().all(|cell| cell["requests"].as_u64() > Some(0)), "{text}");
    // The last writes cover the whole disk, or as much of it as there was time for.
    let written = std::fs::read(&disk).unwrap();
    assert!(written[..65536].iter().any(|byte| *byte != 0));
    let refused = run(world, &disk, &["--bytes", "100"]).unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&refused.stdout), String::from_utf8_lossy(&refused.stderr));
    assert!(!refused.status.success() && text.contains("not whole sectors of 512 bytes"), "{text}");
}
