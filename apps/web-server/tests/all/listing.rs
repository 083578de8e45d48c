//! Directories without an index, with `--list`.

use crate::site::Site;
use glass_platform_sim::SimFiles;

fn files() -> SimFiles {
    let files = SimFiles::new(1);
    files.put("index.html", b"home");
    files.put("docs/b.txt", b"b");
    files.put("docs/<a> & b.txt", b"a");
    files.put("docs/deep/file", b"x");
    files.put("docs/.hidden", b"x");
    files.put_link("docs/link");
    files.put("odd/index.html/file", b"x");
    files
}

#[test]
fn a_directory_without_an_index_has_a_page_whose_links_lead_to_its_files() {
    let mut site = Site::with(1, files(), &["--list"]);
    let page = site.get("/docs/");
    assert_eq!((page.status, page.field("Content-Type")), (200, Some("text/html; charset=utf-8")));
    assert_eq!(page.field("ETag"), None);
    let text = String::from_utf8(page.body).unwrap();
    let links: Vec<&str> = text.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(links, ["../", "./deep/", "./%3Ca%3E%20%26%20b.txt", "./b.txt"]);
    assert!(text.contains(">&lt;a&gt; &amp; b.txt<"), "{text}");
    for (link, body) in [(links[2], b"a"), (links[3], b"b"), ("./deep/file", b"x")] {
        let answer = site.get(&format!("/docs/{}", link.strip_prefix("./").unwrap()));
        assert_eq!((answer.status, &answer.body[..]), (200, &body[..]), "{link}");
    }
    let head = site.request("HEAD", "/docs/", "");
    assert_eq!((head.status, head.field("Content-Length")), (200, Some(&*text.len().to_string())));
    let over_ranges = site.request("GET", "/docs/", "Range: bytes=0-1\r\n");
    assert_eq!((over_ranges.status, over_ranges.body.len()), (200, text.len()));
}

#[test]
fn an_index_wins_and_what_is_no_directory_has_no_page() {
    let mut site = Site::with(1, files(), &["--list"]);
    assert_eq!(site.get("/").body, b"home");
    assert!(site.get("/odd/").body.starts_with(b"<!DOCTYPE html>"), "its index.html is a directory");
    let moved = site.get("/docs");
    assert_eq!((moved.status, moved.field("Location")), (301, Some("/docs/")));
    for (target, status) in [("/none/", 404), ("/docs/b.txt/", 404), ("/docs/link/", 403), ("/docs/../", 400)] {
        assert_eq!(site.get(target).status, status, "{target}");
    }
    site.files.fail_every(Some(1));
    assert_eq!(site.get("/docs/").status, 503);
    // Without the option there is none.
    let mut site = Site::new(1, files());
    assert_eq!(site.get("/docs/").status, 404);
}
