//! The real readers of our exports: their installation, and how to run them.

use anyhow::ensure;
use glass_tests::cache;
use glass_tests::folder::Folder;
use glass_tests::programs::CHROMIUM;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// For one run of a reader; `timeout` ends it.
const RUN_SECONDS: &str = "300";

/// Reports why a test is skipped.
pub fn skipped<T>(reason: &str) -> Option<T> {
    glass_tests::programs::skip(reason);
    None
}

/// A command with a limit of time.
pub fn limited(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.arg(RUN_SECONDS).arg(program).stdin(Stdio::null());
    command
}

/// Its output; it must succeed.
pub fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn readers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/readers")
}

/// Whether a program is installed.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// `go tool pprof` without symbols of its own, with `folder` for its files.
pub fn go_pprof(folder: &Folder) -> Option<Command> {
    if !has("go") {
        return skipped("there is no go (apt-get install golang-go)");
    }
    // Newer Go compiles its tools at their first use, which takes longer than a profile: once for all tests.
    static PROGRAM: OnceLock<String> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| output(limited("go").args(["tool", "-n", "pprof"])));
    let mut pprof = limited(program.trim());
    pprof.arg("-symbolize=none").current_dir(folder.path()).env("PPROF_TMPDIR", folder.path());
    Some(pprof)
}

/// The folder of the packages in `list`, installed once for each state of the list.
fn installed(list: &str, install: impl FnOnce(&Path) -> Command) -> Result<PathBuf, String> {
    let key = format!("readers-{}", cache::digest(&std::fs::read(readers().join(list)).unwrap()));
    let fill = |folder: &Path| {
        let output = install(folder).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}", errors.lines().last().unwrap_or("the installer prints no reason"));
        Ok(())
    };
    cache::filled(&key, fill).map_err(|error| format!("{list} cannot be installed: {error:#}"))
}

/// Folder of the packages from npm.
pub fn node_modules() -> Option<PathBuf> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let install = || glass_tests::npm::modules(&readers()).map_err(|error| format!("{error:#}"));
    FOLDER.get_or_init(install).as_ref().map_or_else(|reason| skipped(reason), |folder| Some(folder.clone()))
}

/// Folder of the packages from PyPI.
pub fn python_packages() -> Option<PathBuf> {
    if !has("python3") {
        return skipped("there is no python3 (apt-get install python3-pip)");
    }
    let folder = installed("requirements.txt", |folder| {
        let mut pip = limited("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]);
        pip.args(["--only-binary=:all:", "--target"]).arg(folder);
        pip.arg("--requirement").arg(readers().join("requirements.txt"));
        pip
    });
    folder.map_or_else(|reason| skipped(&reason), Some)
}

/// Runs one of our scripts that print counts.
pub fn by_python(script: &str, packages: Option<&Path>, file: &Path) -> Value {
    let mut python = limited("python3");
    // No files are written beside the sources.
    python.arg("-B").arg(readers().join(script)).arg(file);
    if let Some(packages) = packages {
        python.env("PYTHONPATH", packages);
    }
    serde_json::from_str(&output(&mut python)).unwrap()
}

/// Opens a file in speedscope's released page; what `tests/readers/speedscope.js` found in its first `count` profiles.
pub fn in_speedscope(folder: &Folder, name: &str, bytes: &[u8], count: usize) -> Option<Vec<u8>> {
    let modules = node_modules()?;
    let script = format!(
        "const NAME=\"{name}\", PROFILE=\"{}\", COUNT={count};\n{}",
        base64(bytes),
        std::fs::read_to_string(readers().join("speedscope.js")).unwrap()
    );
    let load = folder.write("load.js", script.as_bytes()).unwrap();
    let page = modules.join("speedscope/dist/release/index.html");
    in_chromium(folder, &format!("file://{}#localProfilePath={}", page.display(), load.display()))
}

/// Opens a page; what its script left in Base64 in the element `glass-result`.
pub fn in_chromium(folder: &Folder, address: &str) -> Option<Vec<u8>> {
    let Some(browser) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| has(name)) else {
        return skipped("there is no chromium (apt-get install chromium)");
    };
    let mut chromium = limited(browser);
    chromium.args(CHROMIUM);
    chromium.args(["--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1280,2000"]);
    chromium.arg(format!("--user-data-dir={}", folder.path().join("browser").display()));
    chromium.args(["--virtual-time-budget=30000", "--dump-dom"]);
    chromium.arg(address);
    let dom = output(&mut chromium);
    let encoded = dom.split("<pre id=\"glass-result\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    Some(encoded.map(unbase64).unwrap_or_else(|| panic!("no result: {} bytes of page", dom.len())))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let sextet = (word >> (18 - 6 * place)) & 63;
            text.push(if place <= chunk.len() { char::from(ALPHABET[sextet as usize]) } else { '=' });
        }
    }
    text
}

fn unbase64(text: &str) -> Vec<u8> {
    let sextets: Vec<u32> = text
        .bytes()
        .filter_map(|byte| ALPHABET.iter().position(|letter| *letter == byte).map(|at| at as u32))
        .collect();
    let mut bytes = Vec::new();
    for chunk in sextets.chunks(4) {
        let word = chunk.iter().fold(0u32, |word, sextet| word << 6 | sextet) << (6 * (4 - chunk.len()));
        bytes.extend((0..chunk.len().saturating_sub(1)).map(|place| (word >> (16 - 8 * place)) as u8));
    }
    bytes
}
