//! The upload queue and a browser: pages of another origin upload by tus-js-client and by Uppy, in a headless Chromium.

use crate::tls::is_installed;
use glass_tests::folder::Folder;
use glass_tests::npm;
use glass_tests::port::free_port;
use glass_tests::process::Process;
use glass_tests::programs::{self, CHROMIUM};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

mod process {
    use super::*;

    #[test]
    fn a_page_of_an_allowed_origin_uploads_and_others_do_not() {
        glass_tests::limit::within(Duration::from_secs(300), super::pages_upload);
    }

    #[test]
    fn uppy_uploads_pauses_and_resumes() {
        glass_tests::limit::within(Duration::from_secs(300), super::uppy_uploads);
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
        "/client.js" => ("text/javascript", script),
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

/// A page that runs the client's script, then this one.
fn page(script: &str) -> String {
    format!(
        r#"<!doctype html><meta charset="utf-8"><script src="/client.js"></script><script>
const bytes = new Uint8Array({BYTES}).map((_, place) => place * 7 % 251);
const report = (text) => fetch('/report', {{ method: 'POST', body: text }});
const headers = {{ Authorization: 'Bearer {TOKEN}' }};
let interrupted = false;
{script}
</script>"#
    )
}

/// Uploads, interrupts itself once and resumes; then reports, with an answer to a request that it may not read.
fn page_of_tus(endpoint: &str) -> String {
    page(&format!(
        r#"
function begin(uploadUrl) {{
  const upload = new tus.Upload(new Blob([bytes]), {{
    endpoint: '{endpoint}', uploadUrl, chunkSize: 1000000, retryDelays: null, headers, metadata: {{ filename: 'page' }},
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
begin(null);"#
    ))
}

/// Uploads with Uppy, which is paused once and continues. What is reported has the items that Uppy takes for uploaded.
fn page_of_uppy(endpoint: &str) -> String {
    page(&format!(
        r#"
const uppy = new Uppy.Uppy().use(Uppy.Tus, {{ endpoint: '{endpoint}', chunkSize: 1000000, headers }});
uppy.on('upload-progress', (file, progress) => {{
  if (!interrupted && progress.bytesUploaded >= 1000000) {{
    interrupted = true;
    uppy.pauseResume(file.id);
    setTimeout(() => uppy.pauseResume(file.id), 100);
  }}
}});
uppy.on('error', (error) => report('error: ' + error));
uppy.on('complete', (result) =>
  report((interrupted ? 'resumed ' : 'at once ') + result.successful.length + ' ' + result.failed.length));
uppy.addFile({{ name: 'page', type: 'application/octet-stream', data: new Blob([bytes]) }});
uppy.upload();"#
    ))
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

/// A script of the packages; `None` after printing why the browser has none.
fn script(path: &str) -> Option<PathBuf> {
    match npm::modules(&programs::root().join("tests/tests/all/queue_uploads")) {
        Ok(modules) if is_installed("chromium", "--version") && is_installed("curl", "--version") => {
            Some(modules.join(path))
        }
        Ok(_) => None,
        Err(reason) => {
            programs::skip(&format!("{path}: {reason:#}"));
            None
        }
    }
}

/// A queue that pages of one origin may use.
struct Open {
    folder: Folder,
    process: Process,
    port: u16,
}

impl Open {
    fn start(folder: Folder, port: u16, origin: &str) -> Option<Open> {
        fs::write(folder.file("tokens"), format!("admin page {TOKEN_HASH}\n")).unwrap();
        let settings =
            format!("port = {port}\ntokens = \"tokens\"\ncors-origin = [\"https://a.example\", \"{origin}\"]\n");
        fs::write(folder.file("queue.toml"), settings).unwrap();
        let mut command = Command::new(programs::built("upload-queue")?);
        command.arg("--disk").arg(folder.file("queue.img")).args(["--disk-size", "64M", "--share"]).arg(folder.path());
        command.args(["--", "--config", "queue.toml"]);
        let mut process = Process::spawn(&mut command, &folder.file("log")).unwrap();
        process.wait_for_text("upload-queue: listening", START_LIMIT, || {});
        Some(Open { folder, process, port })
    }

    /// What the page of a site reports.
    fn result(&self, site: &Site) -> String {
        let _browser = browser(&self.folder, &site.origin);
        site.reports.recv_timeout(BROWSER_LIMIT).unwrap_or_else(|_| {
            let said = fs::read_to_string(self.folder.file("browser.log")).unwrap();
            panic!("no report: {}{said}", self.process.output())
        })
    }

    /// Removes the oldest item, which is what pages upload; whether there was one.
    fn take(&self) -> bool {
        let curl = |arguments: &[&str]| {
            let mut command = Command::new("curl");
            command.args(["--silent", "--fail", "--max-time", "60", "--oauth2-bearer", TOKEN]).args(arguments);
            let output = command.arg(format!("http://127.0.0.1:{}/downloader?wait=0", self.port)).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            output.stdout
        };
        let item = curl(&[]);
        if item.is_empty() {
            return false;
        }
        let expected: Vec<u8> = (0..BYTES).map(|place| (place * 7 % 251) as u8).collect();
        assert!(item == expected, "{} bytes", item.len());
        curl(&["--request", "DELETE", "--header", "If-Match: *"]);
        true
    }
}

fn pages_upload() {
    let Some(script) = script("tus-js-client/dist/tus.min.js") else { return };
    let (folder, port) = (Folder::new("queue-browser").unwrap(), free_port().unwrap());
    let page = page_of_tus(&format!("http://127.0.0.1:{port}/uploader"));
    let (allowed, other) = (Site::start(&page, &script), Site::start(&page, &script));
    let Some(queue) = Open::start(folder, port, &allowed.origin) else { return };
    let refused = queue.result(&other);
    assert!(refused.starts_with("error: "), "a page of another origin: {refused}");
    assert_eq!(queue.result(&allowed), "resumed");
    assert!(queue.take() && !queue.take());
}

fn uppy_uploads() {
    let Some(script) = script("uppy/dist/uppy.min.js") else { return };
    let (folder, port) = (Folder::new("queue-uppy").unwrap(), free_port().unwrap());
    let site = Site::start(&page_of_uppy(&format!("http://127.0.0.1:{port}/uploader")), &script);
    let Some(queue) = Open::start(folder, port, &site.origin) else { return };
    assert_eq!(queue.result(&site), "resumed 1 0");
    assert!(queue.take() && !queue.take());
}
