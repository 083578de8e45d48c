//! The listings of a guide, which tests compile as a reader would.

/// The listings that a page names by a file: ```` ```LANGUAGE PATH ````, each as path and text.
pub fn listings(page: &str) -> Vec<(&str, String)> {
    let mut listings = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some((_, path)) = line.strip_prefix("```").and_then(|first| first.split_once(' ')) {
            let text = lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
            listings.push((path, text));
        }
    }
    listings
}
