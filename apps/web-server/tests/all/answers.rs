//! What each request is answered.

use crate::site::{Site, answers, content};
use core::time::Duration;
use glass_platform_sim::SimFiles;
use glasshouse::{Clock, HttpDate};

/// A site with a bit of everything.
fn site() -> Site {
    let files = SimFiles::new(1);
    files.put("index.html", b"<h1>home</h1>");
    files.put("docs/index.html", b"docs");
    files.put("docs/large.bin", &content(1, 300_000));
    files.put("empty.txt", b"");
    files.put("\u{fc} x.css", b"body{}");
    files.put("app.js", b"plain");
    files.put("app.js.br", b"brotli");
    files.put("app.js.gz", b"gzip");
    files.put("image.png", b"png");
    files.put("image.png.gz", b"not used");
    files.put("no-index/file", b"x");
    files.put_link("link");
    files.put("secret", b"");
    files.put("sub dir/x", b"");
    files.put("\\host/x", b"");
    Site::new(1, files)
}

#[test]
fn files_are_found_by_their_urls() {
    let mut site = site();
    for (target, status, media_type, body) in [
        ("/", 200, "text/html; charset=utf-8", &b"<h1>home</h1>"[..]),
        ("/index.html?x=1", 200, "text/html; charset=utf-8", b"<h1>home</h1>"),
        ("/docs/", 200, "text/html; charset=utf-8", b"docs"),
        ("/docs/large.bin", 200, "application/octet-stream", &content(1, 300_000)),
        ("/empty.txt", 200, "text/plain; charset=utf-8", b""),
        ("/%c3%bc%20x.css", 200, "text/css; charset=utf-8", b"body{}"),
        ("http://host/image.png", 200, "image/png", b"png"),
    ] {
        let answer = site.get(target);
        assert_eq!((answer.status, answer.field("Content-Type")), (status, Some(media_type)), "{target}");
        assert!(answer.body == body, "{target}");
        let head = site.request("HEAD", target, "");
        assert_eq!((head.status, head.field("Content-Length")), (200, Some(&*body.len().to_string())), "{target}");
    }
    for (target, location) in [
        ("/docs", "/docs/"),
        ("/docs?page=2&x=/", "/docs/?page=2&x=/"),
        ("/docs?", "/docs/?"),
        ("http://host/docs?a=b", "/docs/?a=b"),
        ("/sub%20dir", "/sub%20dir/"),
        // Browsers read a backslash as a slash, and two slashes as the start of another server's name.
        ("/\\host", "/%5Chost/"),
    ] {
        let moved = site.get(target);
        assert_eq!((moved.status, moved.field("Location")), (301, Some(location)), "{target}");
    }
    for (target, status) in [
        ("/none", 404),
        ("/no-index/", 404),
        ("/index.html/", 404),
        ("/image.png/x", 404),
        ("/link", 403),
        ("/link/x", 403),
        ("/../secret", 400),
        ("/docs/../secret", 400),
        ("/%2e%2e/secret", 400),
        ("/docs%2f..%2fsecret", 400),
        ("/a%00", 400),
        ("/%ff", 400),
        ("//secret", 400),
    ] {
        assert_eq!(site.get(target).status, status, "{target}");
    }
    let refused = site.request("POST", "/", "Content-Length: 0\r\n");
    assert_eq!((refused.status, refused.field("Allow")), (405, Some("GET, HEAD")));
}

#[test]
fn compressed_files_beside_are_taken_where_they_help() {
    let mut site = site();
    for (fields, body, encoding) in [
        ("", &b"plain"[..], None),
        ("Accept-Encoding: gzip\r\n", b"gzip", Some("gzip")),
        ("Accept-Encoding: gzip, br\r\n", b"brotli", Some("br")),
        ("Accept-Encoding: br;q=0, gzip;q=0.5\r\n", b"gzip", Some("gzip")),
        ("Accept-Encoding: identity\r\n", b"plain", None),
        ("Accept-Encoding: identity\r\nAccept-Encoding: gzip\r\n", b"gzip", Some("gzip")),
        ("Accept-Encoding: x-gzip\r\n", b"gzip", Some("gzip")),
        ("Accept-Encoding: br;Q=0, GZIP ; q=0.001\r\n", b"gzip", Some("gzip")),
        ("Accept-Encoding: br;q=0.000,gzip ; Q=0.\r\n", b"plain", None),
    ] {
        let answer = site.request("GET", "/app.js", fields);
        assert_eq!((&answer.body[..], answer.field("Content-Encoding")), (body, encoding), "{fields}");
        assert_eq!(answer.field("Vary"), Some("Accept-Encoding"));
        assert!(answer.field("Content-Type").unwrap().contains("javascript"));
    }
    let image = site.request("GET", "/image.png", "Accept-Encoding: gzip\r\n");
    assert_eq!((&image.body[..], image.field("Vary")), (&b"png"[..], None));
}

#[test]
fn ranges_are_parts_of_the_file() {
    let mut site = site();
    let whole = content(1, 300_000);
    for (range, part) in
        [("0-0", 0..1), ("100000-199999", 100_000..200_000), ("-5", 299_995..300_000), ("299999-", 299_999..300_000)]
    {
        let answer = site.request("GET", "/docs/large.bin", &format!("Range: bytes={range}\r\n"));
        let place = format!("bytes {}-{}/300000", part.start, part.end - 1);
        assert_eq!((answer.status, answer.field("Content-Range")), (206, Some(&*place)), "{range}");
        assert!(answer.body == whole[part]);
    }
    let several = site.request("GET", "/docs/large.bin", "Range: bytes=0-9, 70000-170000, -3\r\n");
    assert_eq!(several.status, 206);
    let boundary = several.field("Content-Type").unwrap().strip_prefix("multipart/byteranges; boundary=").unwrap();
    let mut expected = Vec::new();
    for part in [0..10, 70_000..170_001, 299_997..300_000] {
        let place = format!("{}-{}", part.start, part.end - 1);
        let head = format!(
            "\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes {place}/300000\r\n\r\n"
        );
        expected.extend_from_slice(head.as_bytes());
        expected.extend_from_slice(&whole[part]);
    }
    expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    assert!(several.body == expected);
    assert_eq!(site.request("GET", "/docs/large.bin", "Range: Bytes=0-1\r\n").status, 206);
    let twice = site.request("GET", "/docs/large.bin", "Range: bytes=0-1\r\nRange: bytes=4-5\r\n");
    assert_eq!(twice.status, 200, "two fields are no valid range");
    for range in ["bytes=300000-", "bytes=-0"] {
        let answer = site.request("GET", "/docs/large.bin", &format!("Range: {range}\r\n"));
        assert_eq!((answer.status, answer.field("Content-Range")), (416, Some("bytes */300000")), "{range}");
    }
    // Not valid, of another unit, too many, longer than the file, or of a HEAD: the whole file.
    let many = "0-1,".repeat(17);
    for range in ["bytes=5-4", "lines=0-1", "bytes=x", &format!("bytes={many}"), "bytes=0-,0-"] {
        let answer = site.request("GET", "/docs/large.bin", &format!("Range: {range}\r\n"));
        assert_eq!((answer.status, answer.body.len()), (200, 300_000), "{range}");
    }
    assert_eq!(site.request("HEAD", "/docs/large.bin", "Range: bytes=0-1\r\n").status, 200);
}

/// A date in the forms of RFC 850 and of `asctime`.
fn other_forms(date: &str) -> [String; 2] {
    let words: Vec<&str> = date.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let [name, day, month, year, time, _] = words[..] else { panic!("{date}") };
    let long = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
    let long = long.iter().find(|long| long.starts_with(name)).unwrap();
    let number: u8 = day.parse().unwrap();
    [format!("{long}, {day}-{month}-{} {time} GMT", &year[2..]), format!("{name} {month} {number:2} {time} {year}")]
}

#[test]
fn responses_have_the_date() {
    let mut site = site();
    let now = site.server.wall().unwrap().since_epoch;
    for (target, status) in [("/", 200), ("/none", 404), ("/docs", 301)] {
        let answer = site.get(target);
        let date = HttpDate::parse(answer.field("Date").expect("there is a date"), now).unwrap();
        assert!(answer.status == status && date.0 >= Duration::from_secs(now.as_secs()), "{target} {date}");
        assert!(date.0 < now + Duration::from_secs(10), "{target} {date}");
    }
}

#[test]
fn a_version_that_the_client_has_is_not_sent_again() {
    let mut site = site();
    // Now, so that there are earlier dates.
    site.files.put("docs/index.html", b"docs");
    site.world.run_for(Duration::from_secs(5)).unwrap();
    let first = site.get("/docs/");
    let (etag, date) = (first.field("ETag").unwrap().to_owned(), first.field("Last-Modified").unwrap().to_owned());
    assert!(etag.starts_with('"') && date.ends_with(" GMT") && date.len() == 29, "{etag} {date}");
    let modified = HttpDate::parse(&date, Duration::ZERO).unwrap();
    let day = Duration::from_secs(86_400);
    let (earlier, later) = (HttpDate(modified.0 - day), HttpDate(modified.0 + day));
    let forms = other_forms(&date);
    for (fields, status) in [
        (format!("If-None-Match: {etag}\r\n"), 304),
        (format!("If-None-Match: \"x\", W/{etag}\r\n"), 304),
        ("If-None-Match: *\r\n".to_owned(), 304),
        ("If-None-Match: \"x\"\r\n".to_owned(), 200),
        (format!("If-Modified-Since: {date}\r\n"), 304),
        (format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {date}\r\n"), 200),
        (format!("If-None-Match: \"x\"\r\nIf-None-Match: {etag}\r\n"), 304),
        (format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {later}\r\n"), 200),
        (format!("If-Modified-Since: {later}\r\n"), 304),
        (format!("If-Modified-Since: {earlier}\r\n"), 200),
        (format!("If-Modified-Since: {}\r\n", forms[0]), 304),
        (format!("If-Modified-Since: {}\r\n", forms[1]), 304),
        (format!("If-Modified-Since: {later}\r\nIf-Modified-Since: {later}\r\n"), 200),
        ("If-Modified-Since: yesterday\r\n".to_owned(), 200),
        (format!("If-Unmodified-Since: {date}\r\n"), 200),
        (format!("If-Unmodified-Since: {later}\r\n"), 200),
        (format!("If-Unmodified-Since: {earlier}\r\n"), 412),
        (format!("If-Unmodified-Since: {}\r\n", forms[0]), 200),
        ("If-Unmodified-Since: yesterday\r\n".to_owned(), 200),
        (format!("If-Match: {etag}\r\nIf-Unmodified-Since: {earlier}\r\n"), 200),
        (format!("If-Match: \"x\"\r\nIf-Match: {etag}\r\n"), 200),
        (format!("If-Match: \"x\"\r\nIf-None-Match: {etag}\r\n"), 412),
        (format!("If-Match: {etag}\r\n"), 200),
        ("If-Match: \"x\"\r\n".to_owned(), 412),
        (format!("If-Match: W/{etag}\r\n"), 412),
        (format!("If-Range: {etag}\r\nRange: bytes=0-0\r\n"), 206),
        ("If-Range: \"x\"\r\nRange: bytes=0-0\r\n".to_owned(), 200),
        (format!("If-Range: W/{etag}\r\nRange: bytes=0-0\r\n"), 200),
        (format!("If-Range: {date}\r\nRange: bytes=0-0\r\n"), 206),
        (format!("If-Range: {}\r\nRange: bytes=0-0\r\n", forms[1]), 206),
        (format!("If-Range: {later}\r\nRange: bytes=0-0\r\n"), 200),
    ] {
        let answer = site.request("GET", "/docs/", &fields);
        assert_eq!(answer.status, status, "{fields}");
        if status == 304 {
            assert_eq!((answer.field("ETag"), answer.body.len()), (Some(&*etag), 0));
        }
    }
    // Another version has another tag; moments after a change there is none.
    site.files.put("docs/index.html", b"news");
    let fresh = site.request("GET", "/docs/", &format!("If-None-Match: {etag}\r\n"));
    assert_eq!((fresh.status, &fresh.body[..], fresh.field("ETag")), (200, &b"news"[..], None));
    // So it is no version that a client means, and the part of an older one is not continued with it.
    for (fields, status) in [
        (format!("If-Match: {etag}\r\nRange: bytes=1-\r\n"), 412),
        (format!("If-Unmodified-Since: {date}\r\nRange: bytes=1-\r\n"), 412),
        (format!("If-Range: {etag}\r\nRange: bytes=1-\r\n"), 200),
        (format!("If-Modified-Since: {later}\r\n"), 200),
        ("If-None-Match: *\r\n".to_owned(), 304),
        ("If-Match: *\r\n".to_owned(), 200),
    ] {
        assert_eq!(site.request("GET", "/docs/", &fields).status, status, "{fields}");
    }
    site.world.run_for(Duration::from_secs(5)).unwrap();
    let settled = site.get("/docs/");
    assert!(settled.field("ETag").is_some_and(|tag| tag != etag));
    // An empty file may be one that the host is replacing.
    site.files.put("docs/index.html", b"");
    site.world.run_for(Duration::from_secs(5)).unwrap();
    let empty = site.get("/docs/");
    assert_eq!((empty.status, empty.body.len(), empty.field("ETag")), (200, 0, None));
}

#[test]
fn requests_on_one_connection_are_answered_in_order_over_tcp_and_vsock() {
    let mut site = site();
    for to in [site.tcp(), site.vsock()] {
        let mut text = String::new();
        let mut methods = Vec::new();
        for round in 0..20 {
            let (method, target) = match round % 4 {
                0 => ("GET", "/"),
                1 => ("HEAD", "/docs/large.bin"),
                2 => ("GET", "/none"),
                _ => ("GET", "/docs/large.bin"),
            };
            let close = if round == 19 { "Connection: close\r\n" } else { "" };
            text += &format!("{method} {target} HTTP/1.1\r\nHost: x\r\n{close}\r\n");
            methods.push(method);
        }
        let bytes = site.exchange(to, &text).unwrap().unwrap();
        let answers = answers(&bytes, &methods);
        let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, [200, 200, 404, 200].repeat(5));
        assert!(answers[3].body == content(1, 300_000) && answers[19].body == answers[3].body);
    }
}
