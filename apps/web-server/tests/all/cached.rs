//! The cache of files, with `--cache`.

use crate::site::{Site, content};
use core::time::Duration;
use glass_platform_sim::{SimFiles, for_seeds};
use std::collections::BTreeMap;

fn files() -> SimFiles {
    let files = SimFiles::new(1);
    files.put("index.html", b"home");
    files.put("small.bin", &content(1, 60_000));
    files.put("pieces.bin", &content(3, 200_000));
    files.put("large.bin", &content(2, 300_000));
    files.put("app.js", b"plain");
    files.put("app.js.gz", b"compressed");
    files
}

/// How many operations on files a request takes.
fn operations(site: &mut Site, method: &str, target: &str, fields: &str) -> u64 {
    let before = site.files.operations();
    assert!([200, 206, 304].contains(&site.request(method, target, fields).status), "{target}");
    site.files.operations() - before
}

#[test]
fn a_file_is_read_once_and_compared_each_time() {
    let mut site = Site::with(1, files(), &["--cache", "1M"]);
    let gzip = "Accept-Encoding: gzip\r\n";
    // Opened, its version, read, its version again; then its version only.
    for (target, fields, first, again) in [
        ("/", "", 4, 1),
        ("/small.bin", "", 4, 1),
        ("/pieces.bin", "", 3 + 4, 1),
        ("/app.js", "", 4, 1),
        ("/app.js", gzip, 1 + 4, 2),
    ] {
        assert_eq!(operations(&mut site, "GET", target, fields), first, "{target} {fields}");
        for method in ["GET", "HEAD", "GET"] {
            assert_eq!(operations(&mut site, method, target, fields), again, "{target} {fields}");
        }
    }
    assert_eq!(site.request("GET", "/app.js", gzip).body, b"compressed");
    assert_eq!(site.get("/app.js").body, b"plain");
    let first = operations(&mut site, "GET", "/large.bin", "");
    assert_eq!(operations(&mut site, "GET", "/large.bin", ""), first, "it is too large");
    assert_eq!(site.get("/pieces.bin").body, content(3, 200_000));
    // Moments after a change it is read again each time, as any other.
    site.files.put("pieces.bin", &content(4, 200_000));
    assert_eq!([(); 2].map(|()| operations(&mut site, "GET", "/pieces.bin", "")), [1 + 7, 7]);
    // Moments after a change it may change again without a new time.
    site.files.put("index.html", b"news");
    assert_eq!([(); 2].map(|()| operations(&mut site, "GET", "/", "")), [1 + 4, 4]);
    // Without the option nothing is kept.
    let mut site = Site::new(1, files());
    assert_eq!([(); 3].map(|()| operations(&mut site, "GET", "/", "")), [4; 3]);
}

#[test]
fn parts_and_conditions_are_the_same_from_the_cache() {
    let (mut plain, mut cached) = (Site::new(1, files()), Site::with(1, files(), &["--cache", "1M"]));
    let etag = plain.get("/small.bin").field("ETag").unwrap().to_owned();
    cached.get("/small.bin");
    let fields = [
        "".to_owned(),
        "Range: bytes=100-20000\r\n".to_owned(),
        "Range: bytes=-1\r\n".to_owned(),
        "Range: bytes=60000-\r\n".to_owned(),
        format!("If-None-Match: {etag}\r\n"),
        "If-Match: \"x\"\r\n".to_owned(),
    ];
    for fields in &fields {
        let before = cached.files.operations();
        assert_eq!(cached.request("GET", "/small.bin", fields), plain.request("GET", "/small.bin", fields), "{fields}");
        assert_eq!(cached.files.operations() - before, 1, "it is from the cache");
        assert_eq!(cached.request("HEAD", "/small.bin", fields), plain.request("HEAD", "/small.bin", fields));
    }
    // Their boundaries are random.
    let [a, b] = [&mut plain, &mut cached].map(|site| {
        let answer = site.request("GET", "/small.bin", "Range: bytes=0-9,20-29\r\n");
        let boundary = answer.field("Content-Type").unwrap().rsplit_once('=').unwrap().1.to_owned();
        (answer.status, String::from_utf8_lossy(&answer.body).replace(&boundary, ""))
    });
    assert!(a == b && a.0 == 206);
}

/// Whatever the host does between two requests: each response is the file as it is, and a tag never has two contents.
#[test]
fn a_file_that_changes_is_never_served_as_it_was() {
    let (mut hits, mut requests) = (0, 0);
    for_seeds(0..20, |seed| {
        let files = SimFiles::new(seed);
        let names = ["a", "b", "c", "d", "e"];
        names.iter().for_each(|name| files.put(name, &content(0, 1000)));
        // Room for three of them.
        let mut site = Site::with(seed, files, &["--cache", "4K"]);
        let mut tags = BTreeMap::new();
        let mut state = seed + 1;
        for step in 0..150u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = state >> 33;
            let name = names[random as usize % names.len()];
            match random / 8 % 8 {
                // As long as before, so that only times and numbers show it.
                0 => site.files.overwrite(name, &content(step, 1000)),
                1 => site.files.put(name, &content(step, 1000)),
                2 => site.world.run_for(Duration::from_millis(random / 64 % 5000)).unwrap(),
                _ => {
                    let before = site.files.operations();
                    let answer = site.get(&format!("/{name}"));
                    (hits, requests) = (hits + u64::from(site.files.operations() == before + 1), requests + 1);
                    assert!(answer.status == 200 && Some(&answer.body) == site.files.get(name).as_ref(), "{step}");
                    if let Some(tag) = answer.field("ETag") {
                        let known = tags.entry((name, tag.to_owned())).or_insert(answer.body.clone());
                        assert!(*known == answer.body, "{step}: one tag, two contents");
                    }
                }
            }
        }
    });
    assert!(hits > requests / 5, "{hits} of {requests} from the cache");
}

#[test]
fn a_cache_larger_than_half_of_the_memory_is_refused() {
    let files = files();
    let mut world = glass_platform_sim::World::new(1);
    let args = ["--cache", "100000G"].map(str::to_owned).to_vec();
    let config = glass_platform_sim::NodeConfig { args, files: Some(files), ..Default::default() };
    let node = world.node("server", config);
    let own = node.clone();
    let served = world.complete(&node, Duration::from_secs(1), async move { web_server::serve(own).await });
    let error = served.unwrap().unwrap_err().to_string();
    assert!(error.starts_with("--cache is more than half of the memory: give at most "), "{error}");
}
