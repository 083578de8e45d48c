//! `cargo xtask figures`: writes the page of all figures, `bench/results/README.md`, from the results in `bench/results/today`.

use anyhow::{Context, Result, bail};
use glass_bench::BENCHMARKS;
use glass_bench::figure::{Figure, Results};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The page, relative to the root of the repository.
pub const PAGE: &str = "bench/results/README.md";
/// The results: copies of `target/bench/NAME.json` and `NAME-PART.json`.
const TODAY: &str = "bench/results/today";
/// Results as they were written down on one day.
const OLDER: &str = "bench/results/older";
/// A table with more rows is closed until the reader opens it.
const OPEN_ROWS_MAX: usize = 40;

const INTRODUCTION: &str = "\
# The figures today

The newest results of each benchmark, each with its machine and its date. A figure is the median of *n* measurements, beside it are their 10th and 90th percentiles. *Beside* is another
program, or a lower bound, that was measured in turn in the same run; the *ratio* is our figure divided by that of the other.

Absolute figures of two machines, or of two days, cannot be compared; ratios can. QEMU's TCG emulates each instruction: compare its figures only with one another. What a figure's name
means is in the benchmark's file in `bench/src`.

`cargo xtask bench NAME` measures and writes `target/bench/NAME.json`. To publish it here: copy this file into the folder `today`, and run `cargo xtask figures`, which makes this page. Do
not edit the page.
";

/// The results of one benchmark or of one of its parts.
struct File {
    /// The name of the file without its ending: the benchmark, and after a hyphen its part.
    name: String,
    results: Results,
}

impl File {
    /// The place of its benchmark in the list of all.
    fn benchmark(&self) -> Result<usize> {
        let name = self.name.split('-').next().unwrap_or_default();
        let place = BENCHMARKS.iter().position(|benchmark| benchmark.name == name);
        place.with_context(|| format!("{TODAY}/{}.json: no benchmark has this name", self.name))
    }
}

/// Writes the page.
pub fn run(root: &Path) -> Result<()> {
    let path = root.join(PAGE);
    std::fs::write(&path, generated(root)?).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{PAGE} written");
    Ok(())
}

/// Whether the page is what [`run`] would write.
pub fn is_current(root: &Path) -> Result<bool> {
    Ok(std::fs::read_to_string(root.join(PAGE)).ok() == Some(generated(root)?))
}

fn generated(root: &Path) -> Result<String> {
    let mut files = Vec::new();
    for path in listed(&root.join(TODAY), "json")? {
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let results =
            serde_json::from_str(&text).with_context(|| format!("{} is no file of results", path.display()))?;
        files.push(File { name: stem(&path), results });
    }
    let mut older = Vec::new();
    for path in listed(&root.join(OLDER), "md")? {
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let title = text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
        if title.is_empty() {
            bail!("{} does not start with a title", path.display());
        }
        older.push((stem(&path), title.to_owned()));
    }
    page(files, &older)
}

/// The files of a folder with this ending, by name.
fn listed(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let paths: std::io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths?;
    paths.retain(|path| path.extension().is_some_and(|found| found == ending));
    paths.sort();
    Ok(paths)
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The page of these results, in the order of the benchmarks, and of older ones by name and title.
fn page(files: Vec<File>, older: &[(String, String)]) -> Result<String> {
    let mut placed = Vec::new();
    for file in files {
        placed.push((file.benchmark()?, file));
    }
    placed.sort_by(|(one, a), (other, b)| (one, &a.name).cmp(&(other, &b.name)));
    let mut text = INTRODUCTION.to_owned();
    text += "\n| results | date | machine |\n|---|---|---|\n";
    for (_, File { name, results }) in &placed {
        let _ = writeln!(text, "| [{name}](#{name}) | {} | {} |", results.date, results.machine);
    }
    let missing: Vec<&str> = (0..BENCHMARKS.len())
        .filter(|place| !placed.iter().any(|(found, _)| found == place))
        .map(|place| BENCHMARKS[place].name)
        .collect();
    if !missing.is_empty() {
        let _ = writeln!(
            text,
            "\nNot among them: {}. If they were measured, the figures are under [older results](#older-results).",
            missing.join(", ")
        );
    }
    for (_, file) in &placed {
        text += &section(file);
    }
    text += "\n## Older results\n\nAs they were written down on the day; later ones replace them.\n\n";
    for (name, title) in older {
        let _ = writeln!(text, "* [{title}](older/{name}.md)");
    }
    Ok(text)
}

fn section(File { name, results }: &File) -> String {
    let mut text = format!(
        "\n## {name}\n\n`{}` at {}, {}. {}.\n\n",
        results.command, results.commit, results.date, results.machine
    );
    let is_closed = results.figures.len() > OPEN_ROWS_MAX;
    if is_closed {
        let _ = writeln!(text, "<details><summary>{} figures</summary>\n", results.figures.len());
    }
    text += "| figure | median | 10 % to 90 % | unit | n | beside | ratio |\n|---|---|---|---|---|---|---|\n";
    text.extend(results.figures.iter().map(row));
    if is_closed {
        text += "\n</details>\n";
    }
    text
}

fn row(figure: &Figure) -> String {
    let Figure { figure: name, value, unit, n, low, high, against, ratio } = figure;
    let spread = if *n == 1 { String::new() } else { format!("{low} to {high}") };
    let ratio = ratio.map_or(String::new(), |ratio| ratio.to_string());
    let against = against.as_deref().unwrap_or_default();
    format!("| `{name}` | {value} | {spread} | {unit} | {n} | {against} | {ratio} |\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, count: usize) -> File {
        let mut figures =
            vec![Figure::of("disk.kvm.read_mb_s", "MB/s", &[50.0, 40.0, 60.0]).unwrap().against("fio", 25.0)];
        figures.resize(count, Figure::of("disk.geomean", "of the peer", &[1.5]).unwrap());
        let [machine, date, commit, command] =
            ["a machine", "2026-11-25", "abc", "cargo xtask bench disk"].map(str::to_owned);
        File { name: name.to_owned(), results: Results { machine, date, commit, command, figures } }
    }

    #[test]
    fn a_figure_is_a_row_with_its_spread_and_its_peer() {
        let text = page(vec![file("disk", 2)], &[]).unwrap();
        assert!(text.contains("\n## disk\n\n`cargo xtask bench disk` at abc, 2026-11-25. a machine.\n"), "{text}");
        assert!(text.contains("\n| `disk.kvm.read_mb_s` | 50 | 42 to 58 | MB/s | 3 | fio | 2 |\n"), "{text}");
        assert!(text.contains("\n| `disk.geomean` | 1.5 |  | of the peer | 1 |  |  |\n"), "{text}");
        assert!(!text.contains("<details>"));
    }

    #[test]
    fn results_are_in_the_order_of_the_benchmarks_and_missing_ones_are_named() {
        let text = page(vec![file("disk", 1), file("queue-tap", 1)], &[]).unwrap();
        assert!(text.find("## queue-tap").unwrap() < text.find("## disk").unwrap(), "{text}");
        let missing = text.lines().find(|line| line.starts_with("Not among them")).unwrap();
        assert!(missing.contains("boot") && !missing.contains("disk") && !missing.contains("queue"), "{missing}");
    }

    #[test]
    fn long_tables_are_closed_and_older_results_have_a_line() {
        let text = page(vec![file("disk", 41)], &[("2026-11-21-x".to_owned(), "2026-11-21: x".to_owned())]).unwrap();
        assert!(text.contains("<details><summary>41 figures</summary>\n\n| figure"), "{text}");
        assert!(text.ends_with("* [2026-11-21: x](older/2026-11-21-x.md)\n"), "{text}");
    }

    #[test]
    fn a_file_of_no_benchmark_is_refused() {
        let error = page(vec![file("disks", 1)], &[]).unwrap_err();
        assert_eq!(error.to_string(), "bench/results/today/disks.json: no benchmark has this name");
    }
}
