//! `glass new`: makes the crate of a new service.

use crate::console;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Creates the crate of a service, with a test and a README.
#[derive(clap::Args)]
pub struct Args {
    /// Name of the service and of its folder: lower-case letters, digits and hyphens.
    name: String,
    /// What it starts from.
    #[arg(long, value_enum, default_value_t = Template::Http)]
    template: Template,
    /// Depend on this git repository of Glasshouse, so that the crate builds on any machine.
    #[arg(long, value_name = "URL", conflicts_with = "path")]
    git: Option<String>,
    /// Tag in the repository [default: that of the version of this `glass`].
    #[arg(long, requires = "git")]
    tag: Option<String>,
    /// Depend on Glasshouse's sources in this folder [default: those installed with `glass`, or those that it was built from].
    #[arg(long, value_name = "FOLDER")]
    path: Option<PathBuf>,
}

/// What a new service does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Template {
    /// Answers HTTP requests
    Http,
    /// Takes jobs over HTTP, stores them, and works on them one after the other
    Queue,
    /// Does something at intervals, and stores what it did
    Worker,
}

/// Where a crate gets Glasshouse from.
enum Source {
    Folder(PathBuf),
    Git { url: String, tag: String },
}

/// The repository that this command was built in; empty in a package (build.rs).
const OWN_REPOSITORY: &str = env!("GLASS_SOURCES");
/// Where a package has the sources, from the folder of the program (`cargo xtask package`).
const INSTALLED: &str = "../share/glasshouse";

/// The files of each new crate. `my-service` and `my_service` stand for its name, `GLASSHOUSE:FOLDER` for the dependency on a crate of the
/// sources, `GLASSHOUSE` for where they are.
const FILES: [(&str, &str); 5] = [
    ("Cargo.toml", include_str!("../template/Cargo.toml.in")),
    (".cargo/config.toml", include_str!("../template/config.toml")),
    ("src/main.rs", include_str!("../template/main.rs")),
    ("README.md", include_str!("../template/README.md")),
    (".gitignore", include_str!("../template/gitignore")),
];

impl Template {
    /// Its own files.
    fn files(self) -> [(&'static str, &'static str); 2] {
        let (service, test) = match self {
            Template::Http => (include_str!("../template/http/lib.rs"), include_str!("../template/http/service.rs")),
            Template::Queue => (include_str!("../template/queue/lib.rs"), include_str!("../template/queue/service.rs")),
            Template::Worker => {
                (include_str!("../template/worker/lib.rs"), include_str!("../template/worker/service.rs"))
            }
        };
        [("src/lib.rs", service), ("tests/service.rs", test)]
    }

    /// What `cargo run` and `glass run` need.
    fn arguments(self) -> [&'static str; 2] {
        match self {
            Template::Http => ["", " --port 8080"],
            Template::Queue => {
                [" -- --disk my-service.img --disk-size 1M", " --port 8080 --disk my-service.img --disk-size 1M"]
            }
            Template::Worker => [" -- --disk my-service.img --disk-size 1M", " --disk my-service.img --disk-size 1M"],
        }
    }
}

impl Source {
    /// What a Cargo.toml has of the crate in `folder`.
    fn dependency(&self, folder: &str) -> String {
        match self {
            Source::Folder(path) => format!("path = \"{}/{folder}\"", path.display()),
            Source::Git { url, tag } => format!("git = \"{url}\", tag = \"{tag}\""),
        }
    }

    /// For readers.
    fn place(&self) -> String {
        match self {
            Source::Folder(path) => path.display().to_string(),
            Source::Git { url, tag } => format!("{url}, tag {tag}:"),
        }
    }
}

/// Names that a crate cannot have, because the language or a build has them.
const RESERVED: [&str; 13] = [
    "test",
    "core",
    "std",
    "alloc",
    "self",
    "super",
    "crate",
    "build",
    "deps",
    "examples",
    "incremental",
    "glasshouse",
    "proc-macro",
];

/// Runs the command.
pub fn run(args: Args) -> Result<()> {
    check_name(&args.name)?;
    let source = source(&args)?;
    let folder = Path::new(&args.name);
    if let Err(error) = fs::create_dir(folder) {
        bail!("cannot make the folder {}: {error}; choose another name or another place", folder.display());
    }
    for (path, text) in FILES.into_iter().chain(args.template.files()) {
        write(&folder.join(path), &fill(text, &args.name, args.template, &source))?;
    }
    if let Source::Folder(sources) = &source {
        // The versions that Glasshouse is tested with. Cargo drops what a service does not use.
        let lock = sources.join("Cargo.lock");
        if lock.is_file() {
            fs::copy(&lock, folder.join("Cargo.lock")).with_context(|| format!("cannot copy {}", lock.display()))?;
        }
    }
    let run = format!("cargo run{}", args.template.arguments()[0].replace("my-service", &args.name));
    console::print(&format!("made {0}/: next, `cd {0}` and `{run}`\n", args.name))
}

fn source(args: &Args) -> Result<Source> {
    let Some(url) = &args.git else { return Ok(Source::Folder(sources(args.path.as_deref())?)) };
    let tag = args.tag.clone().unwrap_or_else(|| format!("v{}", env!("CARGO_PKG_VERSION")));
    if url.is_empty() || [url, &tag].iter().any(|text| text.contains(['"', '\\', '\n'])) {
        bail!(
            "`{url}` and `{tag}` cannot be written into Cargo.toml: give the address of a git repository, and one of its tags"
        );
    }
    Ok(Source::Git { url: url.clone(), tag })
}

fn check_name(name: &str) -> Result<()> {
    let is_word = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !name.ends_with('-');
    if !is_word || name.len() > 60 {
        bail!("`{name}` is no name for a service: use lower-case letters, digits and hyphens, such as my-service");
    }
    if RESERVED.contains(&name) {
        bail!("`{name}` has a meaning for Rust: choose another name");
    }
    Ok(())
}

/// The folder of Glasshouse's sources: `given`, or those installed with this command, or those that it was built from.
pub(crate) fn sources(given: Option<&Path>) -> Result<PathBuf> {
    let has_library = |path: &Path| path.join("glasshouse/Cargo.toml").is_file();
    let path = match given {
        Some(path) if !has_library(path) => {
            bail!("{} has no sources of Glasshouse: name their folder by --path", path.display())
        }
        Some(path) => path.to_owned(),
        None => default_folders().into_iter().find(|path| has_library(path)).with_context(|| {
            let folders: Vec<String> = default_folders().iter().map(|path| path.display().to_string()).collect();
            format!(
                "the sources of Glasshouse are not in {}: name their folder by `glass new --path`, or a repository by `--git`",
                folders.join(" or ")
            )
        })?,
    };
    let path = path.canonicalize().with_context(|| format!("cannot open {}", path.display()))?;
    if path.to_str().is_none_or(|path| path.contains(['"', '\\', '\n'])) {
        bail!("the path {} cannot be written into Cargo.toml: move the sources", path.display());
    }
    Ok(path)
}

/// Where the sources can be, the preferred folder first.
fn default_folders() -> Vec<PathBuf> {
    let installed = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join(INSTALLED)));
    let own = (!OWN_REPOSITORY.is_empty()).then(|| PathBuf::from(OWN_REPOSITORY));
    installed.into_iter().chain(own).collect()
}

fn fill(text: &str, name: &str, template: Template, source: &Source) -> String {
    let [process, machine] = template.arguments();
    let text = text.replace("cargo runPROCESS", &format!("cargo run{process}"));
    let text = text.replace("glass runMACHINE", &format!("glass run{machine}"));
    let text = text.replace("my-service", name).replace("my_service", &name.replace('-', "_"));
    let text = ["glasshouse", "platform/sim"]
        .iter()
        .fold(text, |text, folder| text.replace(&format!("GLASSHOUSE:{folder}"), &source.dependency(folder)));
    text.replace("GLASSHOUSE", &source.place())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_cargo_takes_are_taken() {
        for good in ["tally", "my-service", "s3-proxy"] {
            check_name(good).unwrap();
        }
        for bad in ["", "My", "a_b", "-a", "a-", "1a", "a/b", "ä", "test", "../x", &"a".repeat(61)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_of_the_template_is_left() {
        let folder = Source::Folder(PathBuf::from("/sources"));
        let git = Source::Git { url: "https://example.org/glass".to_owned(), tag: "v1".to_owned() };
        for template in [Template::Http, Template::Queue, Template::Worker] {
            for (path, text) in FILES.into_iter().chain(template.files()) {
                for source in [&folder, &git] {
                    let filled = fill(text, "s3-proxy", template, source);
                    assert!(!filled.contains("my-service") && !filled.contains("my_service"), "{path}: {filled}");
                    assert!(
                        !filled.contains("GLASSHOUSE") && !filled.contains("PROCESS") && !filled.contains("MACHINE"),
                        "{path}: {filled}"
                    );
                }
            }
        }
        let fill = |text, source| fill(text, "s3-proxy", Template::Queue, source);
        let manifest = fill(FILES[0].1, &git);
        assert!(manifest.contains(r#"glasshouse = { git = "https://example.org/glass", tag = "v1" }"#), "{manifest}");
        assert!(fill(FILES[0].1, &folder).contains(r#"glass-platform-sim = { path = "/sources/platform/sim" }"#));
        assert!(fill(FILES[2].1, &folder).contains("s3_proxy::serve"));
        assert_eq!(fill(FILES[3].1, &folder).lines().count(), 3, "the README has three lines");
    }

    #[test]
    fn another_folder_is_not_taken_for_the_sources() {
        assert!(sources(None).unwrap().join("Cargo.toml").is_file());
        let refusal = sources(Some(Path::new("/"))).unwrap_err().to_string();
        assert!(refusal.contains("--path"), "{refusal}");
    }
}
