//! Accessibility, as axe-core judges it.

use std::path::Path;

use serde_json::json;

use super::browser::Browser;

/// What axe-core finds of levels A and AA in the view that is shown, dark and light.
pub fn barriers(browser: &mut Browser, name: &str) {
    static AXE: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let read = || {
        let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
        let modules = glass_tests::npm::modules(&list).map_err(|reason| eprintln!("axe-core: {reason:#}")).ok()?;
        std::fs::read_to_string(modules.join("axe-core/axe.min.js")).ok()
    };
    let Some(axe) = AXE.get_or_init(read) else {
        glass_tests::programs::skip("axe-core cannot be installed");
        return;
    };
    if browser.eval("typeof axe") == json!("undefined") {
        browser.eval(&format!("{axe}; undefined"));
    }
    let found = browser.eval_async(
        "axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] }).then(({ violations }) => \
         violations.map(({ id, nodes }) => [id, nodes.slice(0, 3).map(({ html, failureSummary }) => [html.slice(0, 200), failureSummary])]))",
    );
    assert_eq!(found, json!([]), "{name}: {}", serde_json::to_string_pretty(&found).unwrap_or_default());
}
