//! The scripts of the pages: modules that are joined.

/// Modules by their path in `assets`, with their text.
macro_rules! modules {
    ($($path:literal),* $(,)?) => { &[$(($path, include_str!(concat!("../../assets/", $path)))),*] };
}

type Module = (&'static str, &'static str);

/// In the order of their imports: each uses only those before it.
pub const MODULES: &[Module] = modules![
    "shared/format.js",
    "shared/elements.js",
    "shared/frames.js",
    "shared/zoom.js",
    "samples/profile.js",
    "samples/shape.js",
    "samples/sums.js",
    "samples/views.js",
    "samples/search.js",
    "samples/colours.js",
    "samples/compare.js",
    "samples/graph.js",
    "samples/table.js",
    "samples/processes.js",
    "samples/calltree.js",
    "samples/timeline.js",
    "samples/within.js",
    "samples/chart.js",
    "shared/tooltip.js",
    "samples/describe.js",
    "samples/crumbs.js",
    "samples/hide.js",
    "shared/page.js",
    "shared/address.js"
];

/// The modules of a trace, which is a script of its own, in the order of their imports.
pub const TRACE_MODULES: &[Module] = modules![
    "shared/format.js",
    "shared/elements.js",
    "shared/frames.js",
    "shared/zoom.js",
    "shared/tooltip.js",
    "shared/page.js",
    "shared/address.js",
    "trace/columns.js",
    "trace/data.js",
    "trace/colours.js",
    "trace/layout.js",
    "trace/raster.js",
    "trace/minimap.js",
    "trace/overlay.js",
    "trace/pick.js",
    "trace/path.js",
    "trace/path_view.js",
    "trace/inside.js",
    "trace/walk.js",
    "trace/timeline.js",
    "trace/details.js",
    "trace/query.js",
    "trace/search.js",
    "trace/series.js",
    "trace/tables.js",
    "trace/sums.js",
    "trace/overview.js",
    "trace/spans.js",
    "trace/samples.js",
    "trace/panels.js",
    "trace/address.js"
];

/// The module that wires a page; it comes after all others.
pub const REPORT: &[Module] = modules!["samples/main.js"];
pub const DIFFERENCE: &[Module] = modules!["samples/difference.js"];
pub const TRACE: &[Module] = modules!["trace/main.js"];

/// All modules as one script: imports between them are left out, and what they export is simply
/// there.
pub fn script(modules: &[Module], main: &[Module]) -> String {
    let mut script = String::new();
    for (name, source) in modules.iter().chain(main) {
        script.push_str(&format!("\n// {name}\n"));
        for line in source.lines().filter(|line| !line.starts_with("import ")) {
            script.push_str(line.strip_prefix("export ").unwrap_or(line));
            script.push('\n');
        }
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPTS: [(&[Module], &[Module]); 3] = [(MODULES, REPORT), (MODULES, DIFFERENCE), (TRACE_MODULES, TRACE)];

    /// Names that stand at the beginning of a line in some module.
    fn top_level_names(modules: &[Module], main: &[Module]) -> Vec<&'static str> {
        let modules = modules.iter().chain(main);
        let lines = modules.flat_map(|(_, source)| source.lines());
        lines
            .map(|line| line.strip_prefix("export ").unwrap_or(line))
            .filter_map(|line| {
                let rest = ["function ", "async function ", "class ", "const ", "let "]
                    .iter()
                    .find_map(|word| line.strip_prefix(word))?;
                rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
            })
            .collect()
    }

    #[test]
    fn modules_can_be_joined() {
        for (modules, main) in SCRIPTS {
            let mut names = top_level_names(modules, main);
            let count = names.len();
            assert!(count > 30, "{names:?}");
            names.sort_unstable();
            let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
            assert!(twice.is_empty(), "two modules use one name at their top level: {twice:?}");
            assert!(!script(modules, main).contains("</script"));
            for (index, (module, source)) in modules.iter().chain(main).enumerate() {
                imports_come_before(module, source, &modules[..index.min(modules.len())]);
            }
        }
    }

    fn imports_come_before(module: &str, source: &str, before: &[Module]) {
        for line in source.lines().filter(|line| line.starts_with("import ")) {
            let (imported, from) = line.split_once("} from \"").expect("an import is one line of names");
            let from = from.strip_suffix("\";").expect("an import ends its line");
            let folder = module.split('/').next().expect("a module is in a folder");
            let from = match from.strip_prefix("./") {
                Some(beside) => format!("{folder}/{beside}"),
                None => from.strip_prefix("../").expect("an import is of a module in assets").to_owned(),
            };
            let (_, exporter) =
                before.iter().find(|(name, _)| **name == *from).expect("an import is of a module before");
            for name in imported.strip_prefix("import {").expect("names in braces").split(',') {
                let exported = ["function", "async function", "class", "const"]
                    .map(|word| format!("export {word} {}", name.trim()));
                assert!(exported.iter().any(|line| exporter.contains(line.as_str())), "{module}: {name} of {from}");
            }
        }
        assert!(!source.contains("export default") && !source.contains("export {"), "{module}");
    }
}
