//! The scripts of the pages: modules that are joined.

/// In the order of their imports: each uses only those before it.
pub const MODULES: &[(&str, &str)] = &[
    ("format.js", include_str!("../../assets/format.js")),
    ("elements.js", include_str!("../../assets/elements.js")),
    ("frames.js", include_str!("../../assets/frames.js")),
    ("zoom.js", include_str!("../../assets/zoom.js")),
    ("profile.js", include_str!("../../assets/profile.js")),
    ("shape.js", include_str!("../../assets/shape.js")),
    ("sums.js", include_str!("../../assets/sums.js")),
    ("views.js", include_str!("../../assets/views.js")),
    ("search.js", include_str!("../../assets/search.js")),
    ("colours.js", include_str!("../../assets/colours.js")),
    ("compare.js", include_str!("../../assets/compare.js")),
    ("graph.js", include_str!("../../assets/graph.js")),
    ("table.js", include_str!("../../assets/table.js")),
    ("calltree.js", include_str!("../../assets/calltree.js")),
    ("timeline.js", include_str!("../../assets/timeline.js")),
    ("within.js", include_str!("../../assets/within.js")),
    ("chart.js", include_str!("../../assets/chart.js")),
    ("tooltip.js", include_str!("../../assets/tooltip.js")),
    ("describe.js", include_str!("../../assets/describe.js")),
    ("crumbs.js", include_str!("../../assets/crumbs.js")),
    ("hide.js", include_str!("../../assets/hide.js")),
    ("page.js", include_str!("../../assets/page.js")),
    ("address.js", include_str!("../../assets/address.js")),
];

/// The modules of a trace, which is a script of its own, in the order of their imports.
pub const TRACE_MODULES: &[(&str, &str)] = &[
    ("format.js", include_str!("../../assets/format.js")),
    ("elements.js", include_str!("../../assets/elements.js")),
    ("frames.js", include_str!("../../assets/frames.js")),
    ("zoom.js", include_str!("../../assets/zoom.js")),
    ("tooltip.js", include_str!("../../assets/tooltip.js")),
    ("page.js", include_str!("../../assets/page.js")),
    ("address.js", include_str!("../../assets/address.js")),
    ("trace_columns.js", include_str!("../../assets/trace_columns.js")),
    ("trace_data.js", include_str!("../../assets/trace_data.js")),
    ("trace_colours.js", include_str!("../../assets/trace_colours.js")),
    ("trace_layout.js", include_str!("../../assets/trace_layout.js")),
    ("trace_raster.js", include_str!("../../assets/trace_raster.js")),
    ("trace_minimap.js", include_str!("../../assets/trace_minimap.js")),
    ("trace_overlay.js", include_str!("../../assets/trace_overlay.js")),
    ("trace_pick.js", include_str!("../../assets/trace_pick.js")),
    ("trace_path.js", include_str!("../../assets/trace_path.js")),
    ("trace_path_view.js", include_str!("../../assets/trace_path_view.js")),
    ("trace_inside.js", include_str!("../../assets/trace_inside.js")),
    ("trace_walk.js", include_str!("../../assets/trace_walk.js")),
    ("trace_timeline.js", include_str!("../../assets/trace_timeline.js")),
    ("trace_details.js", include_str!("../../assets/trace_details.js")),
    ("trace_query.js", include_str!("../../assets/trace_query.js")),
    ("trace_search.js", include_str!("../../assets/trace_search.js")),
    ("trace_series.js", include_str!("../../assets/trace_series.js")),
    ("trace_tables.js", include_str!("../../assets/trace_tables.js")),
    ("trace_sums.js", include_str!("../../assets/trace_sums.js")),
    ("trace_overview.js", include_str!("../../assets/trace_overview.js")),
    ("trace_spans.js", include_str!("../../assets/trace_spans.js")),
    ("trace_samples.js", include_str!("../../assets/trace_samples.js")),
    ("trace_panels.js", include_str!("../../assets/trace_panels.js")),
    ("trace_address.js", include_str!("../../assets/trace_address.js")),
];

/// The module that wires a page; it comes after all others.
pub const REPORT: (&str, &str) = ("main.js", include_str!("../../assets/main.js"));
pub const DIFFERENCE: (&str, &str) = ("difference.js", include_str!("../../assets/difference.js"));
pub const TRACE: (&str, &str) = ("trace_main.js", include_str!("../../assets/trace_main.js"));

/// All modules as one script: imports between them are left out, and what they export is simply
/// there.
pub fn script(modules: &[(&str, &str)], main: (&str, &str)) -> String {
    let mut script = String::new();
    for (name, source) in modules.iter().chain([&main]) {
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

    type Modules = &'static [(&'static str, &'static str)];

    const SCRIPTS: [(Modules, (&str, &str)); 3] = [(MODULES, REPORT), (MODULES, DIFFERENCE), (TRACE_MODULES, TRACE)];

    /// Names that stand at the beginning of a line in some module.
    fn top_level_names(modules: Modules, main: (&'static str, &'static str)) -> Vec<&'static str> {
        let modules = modules.iter().copied().chain([main]);
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
            for (index, (module, source)) in modules.iter().chain([&main]).enumerate() {
                imports_come_before(module, source, &modules[..index.min(modules.len())]);
            }
        }
    }

    fn imports_come_before(module: &str, source: &str, before: &[(&str, &str)]) {
        for line in source.lines().filter(|line| line.starts_with("import ")) {
            let (imported, from) = line.split_once("} from \"./").expect("an import is one line of names");
            let from = from.strip_suffix("\";").expect("an import ends its line");
            let (_, exporter) = before.iter().find(|(name, _)| *name == from).expect("an import is of a module before");
            for name in imported.strip_prefix("import {").expect("names in braces").split(',') {
                let exported = ["function", "async function", "class", "const"]
                    .map(|word| format!("export {word} {}", name.trim()));
                assert!(exported.iter().any(|line| exporter.contains(line.as_str())), "{module}: {name} of {from}");
            }
        }
        assert!(!source.contains("export default") && !source.contains("export {"), "{module}");
    }
}
