//! Which folder may depend on which: a service depends on no platform, the profiler never links the
//! kernel, and tests and benchmarks only run the products.

use super::Violation;
use anyhow::{Context, Result};
use serde_json::Value;

/// A crate of the workspace and its path dependencies.
#[derive(Debug, Clone)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its folder, relative to the root.
    pub folder: String,
    /// Folders of the crates it depends on, and whether only its tests do.
    pub dependencies: Vec<(String, bool)>,
    /// Names of the crates of other projects that it depends on, its tests included.
    pub foreign: Vec<String>,
}

/// Crates of other projects that a part must not depend on, and why.
const FORBIDDEN: [(&str, &str, &str); 1] =
    [("drivers", "smoltcp", "a driver moves frames for any TCP/IP stack: the frame device is in lib/net")];

/// A part of the repository, the parts that its crates may depend on, and the parts that also their tests may.
struct Part {
    prefix: &'static str,
    may_use: &'static [&'static str],
    tests_may_use: &'static [&'static str],
}

/// First match wins. A prefix stands for the folder itself and everything under it.
const PARTS: [Part; 29] = [
    Part { prefix: "api", may_use: &[], tests_may_use: &[] },
    Part { prefix: "formats", may_use: &[], tests_may_use: &[] },
    Part { prefix: "lib/trace", may_use: &["formats"], tests_may_use: &[] },
    // It has no part in a service: processes load it, and C programs link it.
    Part { prefix: "platform/mpi", may_use: &["formats", "lib/mpi", "lib/mpi-abi"], tests_may_use: &["tests"] },
    // Its events go to the ring of another program's trace: it cannot use lib/trace, which is part of a program.
    Part { prefix: "lib/mpi", may_use: &["formats"], tests_may_use: &[] },
    // Of the host: a process and the process of a VM's disk lock the same files.
    Part { prefix: "lib/lock", may_use: &[], tests_may_use: &[] },
    // Of the host, too: each process with a jail has to trust all of it.
    Part { prefix: "lib/jail", may_use: &[], tests_may_use: &[] },
    // Of a process: a client of NATS, on a thread of its own.
    Part { prefix: "lib/jetstream", may_use: &[], tests_may_use: &[] },
    // Of the host, for any VMM.
    Part {
        prefix: "devices",
        may_use: &["api", "formats", "lib/lock", "lib/jail", "lib/tcp"],
        tests_may_use: &["tests"],
    },
    // A program of the host: of a guest it has the interface between both alone.
    Part { prefix: "vmm", may_use: &["devices", "formats", "lib/jail"], tests_may_use: &["tests"] },
    // A state machine with the types of time and errors, and nothing of a network: any stack and any test can drive it.
    Part { prefix: "lib/tcp", may_use: &["api"], tests_may_use: &[] },
    Part { prefix: "platform/c-image", may_use: &["platform/vm", "formats"], tests_may_use: &[] },
    Part { prefix: "lib", may_use: &["api", "lib"], tests_may_use: &["formats", "platform/sim"] },
    // What every device shares; the drivers of one bus use it, and not each other.
    Part { prefix: "drivers", may_use: &["api", "drivers/device", "lib/trace"], tests_may_use: &[] },
    Part { prefix: "platform/vm", may_use: &["api", "lib", "formats", "drivers"], tests_may_use: &[] },
    Part { prefix: "platform", may_use: &["api", "lib", "formats"], tests_may_use: &[] },
    Part { prefix: "glasshouse", may_use: &["api", "lib", "platform"], tests_may_use: &[] },
    // The bytes on its disk are read from outside, too; its process may have its items in an engine instead.
    Part {
        prefix: "apps/upload-queue",
        may_use: &["glasshouse", "formats/queue", "lib/jetstream"],
        tests_may_use: &["formats", "lib", "platform/sim"],
    },
    Part { prefix: "apps", may_use: &["glasshouse"], tests_may_use: &["formats", "lib", "platform/sim"] },
    Part { prefix: "profiler/core", may_use: &["formats"], tests_may_use: &["tests"] },
    Part { prefix: "profiler/guests", may_use: &["formats", "profiler/core"], tests_may_use: &["tests"] },
    // It runs the commands of `glass`, and links nothing that parses what a guest has.
    Part { prefix: "profiler/agent", may_use: &["profiler/core", "profiler/guests"], tests_may_use: &[] },
    Part { prefix: "profiler/session", may_use: &["profiler/core", "profiler/guests"], tests_may_use: &["tests"] },
    // It starts VMs with their disks and cards.
    Part {
        prefix: "profiler/cli",
        may_use: &["formats", "profiler", "devices", "vmm", "lib/lock", "lib/jail"],
        tests_may_use: &["tests"],
    },
    Part { prefix: "profiler", may_use: &["formats", "profiler"], tests_may_use: &["tests"] },
    Part { prefix: "tests", may_use: &[], tests_may_use: &[] },
    Part { prefix: "bench", may_use: &["tests", "profiler/core"], tests_may_use: &[] },
    Part {
        prefix: "fuzz",
        may_use: &["api", "formats", "lib", "devices", "drivers", "platform", "apps", "profiler", "vmm"],
        tests_may_use: &["tests"],
    },
    Part { prefix: "xtask", may_use: &["tests", "bench"], tests_may_use: &[] },
];

fn under(folder: &str, prefix: &str) -> bool {
    folder.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The workspace's crates, from the output of `cargo metadata --no-deps`.
pub fn crates(metadata: &str) -> Result<Vec<Package>> {
    let metadata: Value = serde_json::from_str(metadata).context("cargo metadata did not print JSON")?;
    let root = metadata["workspace_root"].as_str().context("cargo metadata names no workspace root")?;
    let inside = |path: &str| path.strip_prefix(root).map(|rest| rest.trim_start_matches('/').to_owned());
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().context("cargo metadata lists no packages")? {
        let manifest = package["manifest_path"].as_str().context("a package has no manifest path")?;
        let folder = inside(manifest.trim_end_matches("/Cargo.toml")).context("a member lies outside the workspace")?;
        let dependencies = package["dependencies"].as_array().into_iter().flatten().filter_map(|dependency| {
            let path = inside(dependency["path"].as_str()?)?;
            Some((path, dependency["kind"].as_str() == Some("dev")))
        });
        let dependencies = dependencies.collect();
        let all = package["dependencies"].as_array().into_iter().flatten();
        let foreign = all.filter(|dependency| dependency["path"].is_null());
        let foreign = foreign.filter_map(|dependency| Some(dependency["name"].as_str()?.to_owned())).collect();
        let name = package["name"].as_str().unwrap_or_default().to_owned();
        found.push(Package { name, folder, dependencies, foreign });
    }
    Ok(found)
}

/// The name of the crate in a folder: the folder's path. A service has the name of its image.
fn name_of(folder: &str) -> String {
    match folder.strip_prefix("apps/") {
        Some(service) => service.to_owned(),
        None if ["glasshouse", "xtask"].contains(&folder) => folder.to_owned(),
        None => format!("glass-{}", folder.replace('/', "-")),
    }
}

/// Every dependency that points the wrong way, and every name that is not that of its folder.
pub fn check(packages: &[Package]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in packages {
        let manifest = format!("{}/Cargo.toml", package.folder);
        let Some(part) = PARTS.iter().find(|part| under(&package.folder, part.prefix)) else {
            violations.push(Violation::new(manifest, "is in no part of xtask/src/rules/direction.rs: add it"));
            continue;
        };
        let expected = name_of(&package.folder);
        if package.name != expected {
            violations.push(Violation::new(
                &manifest,
                format!("has the name {}: of its folder it is {expected}", package.name),
            ));
        }
        for (prefix, name, reason) in FORBIDDEN {
            if under(&package.folder, prefix) && package.foreign.iter().any(|foreign| foreign == name) {
                violations.push(Violation::new(&manifest, format!("depends on {name}, but {reason}")));
            }
        }
        for (target, only_tests) in &package.dependencies {
            let mut allowed = part.may_use.iter().chain(part.tests_may_use.iter().filter(|_| *only_tests));
            if !allowed.any(|prefix| under(target, prefix)) {
                let may = if part.may_use.is_empty() { "nothing here".to_owned() } else { part.may_use.join(", ") };
                let reason = format!("depends on {target}, but {} may use {may}", part.prefix);
                violations.push(Violation::new(&manifest, reason));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(folder: &str, target: &str, only_tests: bool) -> usize {
        let dependencies = vec![(target.into(), only_tests)];
        check(&[Package { name: name_of(folder), folder: folder.into(), dependencies, foreign: Vec::new() }]).len()
    }

    #[test]
    fn drivers_know_no_tcp_ip_stack() {
        let count = |folder: &str, foreign: &str| {
            check(&[Package {
                name: name_of(folder),
                folder: folder.into(),
                dependencies: Vec::new(),
                foreign: vec![foreign.into()],
            }])
            .len()
        };
        assert_eq!(count("drivers/virtio", "smoltcp") + count("drivers/xen", "smoltcp"), 2);
        assert_eq!(count("drivers/virtio", "proptest") + count("lib/net", "smoltcp"), 0);
    }

    #[test]
    fn edges_that_follow_the_design_pass() {
        for (folder, target) in [
            ("apps/upload-queue", "glasshouse"),
            ("apps/upload-queue", "formats/queue"),
            ("profiler/queue", "formats/queue"),
            ("glasshouse", "platform/vm"),
            ("platform/vm", "drivers/virtio"),
            ("lib/net", "api"),
            ("profiler/cli", "profiler/session"),
            ("profiler/session", "profiler/guests"),
            ("bench", "tests"),
        ] {
            assert_eq!(violations(folder, target, false), 0, "{folder} -> {target}");
        }
        assert_eq!(violations("apps/upload-queue", "platform/sim", true), 0);
    }

    #[test]
    fn edges_against_the_design_fail() {
        for (folder, target) in [
            ("apps/upload-queue", "platform/vm"),
            ("apps/upload-queue", "formats"),
            ("apps/web-server", "formats/queue"),
            ("profiler/queue", "apps/upload-queue"),
            ("apps/upload-queue", "platform/sim"),
            ("drivers/xen", "drivers/virtio"),
            ("drivers/virtio", "drivers/xen"),
            ("platform/linux", "drivers/virtio"),
            ("profiler/guests", "platform/linux"),
            ("profiler/cli", "lib/net"),
            ("profiler/guests", "profiler/session"),
            ("profiler/session", "profiler/report"),
            ("lib/jail", "lib/lock"),
            ("api", "lib/executor"),
            ("bench", "apps/upload-queue"),
            ("xtask", "profiler/core"),
            ("apiary", "api"),
        ] {
            assert_eq!(violations(folder, target, false), 1, "{folder} -> {target}");
        }
        assert_eq!(violations("apps/upload-queue", "platform/vm", true), 1);
    }

    #[test]
    fn a_crate_has_the_name_of_its_folder() {
        let names = ["lib/net", "api", "apps/hello", "xtask"].map(name_of);
        assert_eq!(names, ["glass-lib-net", "glass-api", "hello", "xtask"]);
        let (folder, dependencies, foreign) = ("lib/net".to_owned(), Vec::new(), Vec::new());
        let found = check(&[Package { name: "glass-net".to_owned(), folder, dependencies, foreign }]);
        assert_eq!(found[0].reason, "has the name glass-net: of its folder it is glass-lib-net");
    }

    #[test]
    fn metadata_is_read() {
        let metadata = r#"{"workspace_root": "/w", "packages": [{"name": "glass-lib-net", "manifest_path": "/w/lib/net/Cargo.toml",
            "dependencies": [{"path": "/w/api", "kind": null}, {"name": "smoltcp", "kind": null}, {"path": "/w/platform/sim", "kind": "dev"}]}]}"#;
        let packages = crates(metadata).unwrap();
        assert_eq!((packages[0].folder.as_str(), packages[0].name.as_str()), ("lib/net", "glass-lib-net"));
        assert_eq!(packages[0].dependencies, [("api".to_owned(), false), ("platform/sim".to_owned(), true)]);
        assert_eq!(packages[0].foreign, ["smoltcp"]);
        assert!(crates("no json").is_err());
    }
}
