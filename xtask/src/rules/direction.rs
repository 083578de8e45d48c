//! Which folder may depend on which: the service never sees a platform, the profiler never links the
//! kernel, and what tests and measures the products only runs them.

use super::Violation;
use anyhow::{Context, Result};
use serde_json::Value;

/// A crate of the workspace and its path dependencies.
#[derive(Debug, Clone)]
pub struct Package {
    /// Its folder, relative to the root.
    pub folder: String,
    /// Folders of the crates it depends on, and whether only its tests do.
    pub dependencies: Vec<(String, bool)>,
}

/// A part of the repository, what its crates may depend on, and what their tests may besides.
struct Part {
    prefix: &'static str,
    may_use: &'static [&'static str],
    tests_may_use: &'static [&'static str],
}

/// First match wins. A prefix stands for the folder itself and everything under it.
const PARTS: [Part; 14] = [
    Part { prefix: "api", may_use: &[], tests_may_use: &[] },
    Part { prefix: "formats", may_use: &[], tests_may_use: &[] },
    Part { prefix: "lib/trace", may_use: &["formats"], tests_may_use: &[] },
    Part { prefix: "lib", may_use: &["api", "lib"], tests_may_use: &["formats", "platform/sim"] },
    Part { prefix: "drivers", may_use: &["api", "drivers", "lib/trace"], tests_may_use: &[] },
    Part { prefix: "platform/vm", may_use: &["api", "lib", "formats", "drivers"], tests_may_use: &[] },
    Part { prefix: "platform", may_use: &["api", "lib", "formats"], tests_may_use: &[] },
    Part { prefix: "glasshouse", may_use: &["api", "lib", "platform"], tests_may_use: &[] },
    Part { prefix: "apps", may_use: &["glasshouse"], tests_may_use: &["formats", "lib", "platform/sim"] },
    Part { prefix: "profiler", may_use: &["formats", "profiler"], tests_may_use: &["tests"] },
    Part { prefix: "tests", may_use: &[], tests_may_use: &[] },
    Part { prefix: "bench", may_use: &["tests"], tests_may_use: &[] },
    Part {
        prefix: "fuzz",
        may_use: &["api", "formats", "lib", "drivers", "platform", "apps", "profiler"],
        tests_may_use: &[],
    },
    Part { prefix: "xtask", may_use: &["tests", "bench"], tests_may_use: &[] },
];

fn under(folder: &str, prefix: &str) -> bool {
    folder.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The workspace's crates, from the output of `cargo metadata --no-deps`.
pub fn crates(metadata: &str) -> Result<Vec<Package>> {
    let metadata: Value = serde_json::from_str(metadata).context("cargo metadata printed no JSON")?;
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
        found.push(Package { folder, dependencies: dependencies.collect() });
    }
    Ok(found)
}

/// Every dependency that points the wrong way.
pub fn check(packages: &[Package]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in packages {
        let manifest = format!("{}/Cargo.toml", package.folder);
        let Some(part) = PARTS.iter().find(|part| under(&package.folder, part.prefix)) else {
            violations.push(Violation::new(manifest, "is in no part that xtask/src/rules/direction.rs knows: add it"));
            continue;
        };
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
        check(&[Package { folder: folder.into(), dependencies: vec![(target.into(), only_tests)] }]).len()
    }

    #[test]
    fn edges_that_follow_the_design_pass() {
        for (folder, target) in [
            ("apps/upload-queue", "glasshouse"),
            ("glasshouse", "platform/vm"),
            ("platform/vm", "drivers/virtio"),
            ("lib/net", "api"),
            ("profiler/cli", "profiler/core"),
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
            ("apps/upload-queue", "platform/sim"),
            ("platform/linux", "drivers/virtio"),
            ("profiler/guests", "platform/linux"),
            ("profiler/cli", "lib/net"),
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
    fn metadata_is_read() {
        let metadata = r#"{"workspace_root": "/w", "packages": [{"manifest_path": "/w/lib/net/Cargo.toml",
            "dependencies": [{"path": "/w/api", "kind": null}, {"kind": null}, {"path": "/w/platform/sim", "kind": "dev"}]}]}"#;
        let packages = crates(metadata).unwrap();
        assert_eq!(packages[0].folder, "lib/net");
        assert_eq!(packages[0].dependencies, [("api".to_owned(), false), ("platform/sim".to_owned(), true)]);
        assert!(crates("no json").is_err());
    }
}
