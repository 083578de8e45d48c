//! The upload queue and a browser: a page of another origin uploads by tus-js-client, in a headless Chromium.

use crate::tls::is_installed;
use glass_tests::folder::Folder;
use glass_tests::npm;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs::{self, CHROMIUM};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

mod process {
    use super::*;

    #[test]
    fn a_page_of_an_allowed_origin_uploads_and_others_do_not() {
        glass_tests::limit::within(Duration::from_secs(300), super::pages_upload);
    }
}

const START_LIMIT: Duration = Duration::from_secs(240);
const BROWSER_LIMIT: Duration = Duration::from_secs(480);
const TOKEN: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const TOKEN_HASH: &str = "3ba3f5f43b92602683c19aee62a20342b084dd5971ddd33808d81a328879a547";
/// More than two parts of the client.
const BYTES: usize = 2_500_000;

/// A site of a page and a script; what the page reports arrives at the receiver.
struct Site {
    origin: String,
    reports: Receiver<String>,
}

impl Site {
    fn start(page: &str, script: &Path) -> Site {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // Another name than that of the queue, and another port.
        let origin = format!("http://localhost:{}", listener.local_addr().unwrap().port());
        let (page, script) = (page.to_owned(), fs::read(script).unwrap());
        let (reported, reports) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A browser may open connections that it does not use.
                let (page, script, reported) = (page.clone(), script.clone(), reported.clone());
                std::thread::spawn(move || answer(stream, &page, &script, &reported));
            }
        });
        Site { origin, reports }
    }
}

fn answer(stream: TcpStream, page: &str, script: &[u8], reported: &Sender<String>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let (mut start, mut length) = (String::new(), 0);
    reader.read_line(&mut start).ok()?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok()?,
            Some(_) => {}
            None => break,
        }
    }
    let (kind, body) = match start.split(' ').nth(1)? {
        "/" => ("text/html", page.as_bytes()),
        "/tus.js" => ("text/javascript", script),
        "/report" => {
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            reported.send(String::from_utf8_lossy(&body).into_owned()).ok()?;
            ("text/plain", &b""[..])
        }
        _ => ("text/plain", &b""[..]),
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (&stream).write_all(&[head.as_bytes(), body].concat()).ok()
}

/// Uploads, interrupts itself once and resumes; then reports, with an answer to a request that it may not read.
fn page(endpoint: &str) -> String {
    format!(
        r#"<!doctype html><meta charset="utf-8"><script src="/tus.js"></script><script>
const bytes = new Uint8Array({BYTES}).map((_, place) => place * 7 % 251);
const report = (text) => fetch('/report', {{ method: 'POST', body: text }});
let interrupted = false;
function begin(uploadUrl) {{
  const upload = new tus.Upload(new Blob([bytes]), {{
    endpoint: '{endpoint}', uploadUrl, chunkSize: 1000000, retryDelays: null,
    headers: {{ Authorization: 'Bearer {TOKEN}' }}, metadata: {{ filename: 'page' }},
    onError: (error) => report('error: ' + error),
    onChunkComplete: (size, sent) => {{
      if (!interrupted && sent < bytes.length) {{
        interrupted = true;
        const url = upload.url;
        upload.abort().then(() => begin(url));
      }}
    }},
    onSuccess: () => report(interrupted ? 'resumed' : 'at once'),
  }});
  upload.start();
}}
begin(null);
</script>"#
    )
}

fn browser(folder: &Folder, address: &str) -> Process {
    let mut chromium = Command::new("chromium");
    chromium.args(CHROMIUM);
    chromium.args([
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
        "--remote-debugging-port=0",
    ]);
    chromium.arg(format!("--user-data-dir={}", folder.file("browser").display())).arg(address);
    Process::spawn(&mut chromium, &folder.file("browser.log")).unwrap()
}

fn pages_upload() {
    let list = programs::root().join("tests/tests/all/queue_uploads");
    let script = match npm::modules(&list) {
        Ok(modules) => modules.join("tus-js-client/dist/tus.min.js"),
        Err(reason) => return programs::skip(&format!("tus-js-client: {reason:#}")),
    };
    if !is_installed("chromium", "--version") || !is_installed("curl", "--version") {
        return;
    }
    let Some(program) = programs::built("upload-queue") else { return };
    let (folder, port) = (Folder::new("queue-browser").unwrap(), free_port().unwrap());
    let endpoint = format!("http://127.0.0.1:{port}/uploader");
    let allowed = Site::start(&page(&endpoint), &script);
    let other = Site::start(&page(&endpoint), &script);
    fs::write(folder.file("tokens"), format!("admin page {TOKEN_HASH}\n")).unwrap();
    let settings =
        format!("port = {port}\ntokens = \"tokens\"\ncors-origin = [\"https://a.example\", \"{}\"]\n", allowed.origin);
    fs::write(folder.file("queue.toml"), settings).unwrap();
    let mut command = Command::new(program);
    command.arg("--disk").arg(folder.file("queue.img")).args(["--disk-size", "64M", "--share"]).arg(folder.path());
    command.args(["--", "--config", "queue.toml"]);
    let mut queue = Process::spawn(&mut command, &folder.file("log")).unwrap();
    queue.wait_for_text("upload-queue: listening", START_LIMIT, || {});

    let result = |site: &Site| {
        let _browser = browser(&folder, &site.origin);
        let end = Instant::now() + BROWSER_LIMIT;
        let said = site.reports.recv_timeout(end - Instant::now());
        said.unwrap_or_else(|_| {
            panic!("no report: {}{}", queue.output(), fs::read_to_string(folder.file("browser.log")).unwrap())
        })
    };
    let refused = result(&other);
    assert!(refused.starts_with("error: "), "a page of another origin: {refused}");
    assert_eq!(result(&allowed), "resumed");
    let curl = Command::new("curl")
        .args(["--silent", "--fail", "--max-time", "60", "--oauth2-bearer", TOKEN])
        .arg(format!("http://127.0.0.1:{port}/downloader?wait=0"))
        .output()
        .unwrap();
    let expected: Vec<u8> = (0..BYTES).map(|place| (place * 7 % 251) as u8).collect();
    assert!(curl.status.success() && curl.stdout == expected, "{} bytes", curl.stdout.len());
}
