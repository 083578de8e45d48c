//! Debug information from a server, which this test is.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use glass_profiler_core::elf::ReadAt;
use glass_profiler_core::files::FileSource;
use glass_profiler_core::image::Image;
use glass_profiler_core::symbols::Symbols;
use glass_profiler_guests::files::HostFiles;
use glass_profiler_guests::files::debuginfod::Debuginfod;
use glass_tests::folder::Folder;
use glass_tests::programs::skip;

use crate::process::compile_program;

/// Serves one file to each request for it, and 404 to others, as long as the test runs. Returns its address.
fn serve(path: String, body: Vec<u8>, requests: &'static AtomicU32) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n")
                && request.len() < 8192
                && stream.read(&mut byte).is_ok_and(|n| n == 1)
            {
                request.push(byte[0]);
            }
            requests.fetch_add(1, Ordering::SeqCst);
            let is_it = request.starts_with(format!("GET {path} ").as_bytes());
            let (status, body) = if is_it { ("200 OK", &body[..]) } else { ("404 Not Found", &b""[..]) };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    format!("http://{address}/")
}

fn has_curl() -> bool {
    let found = Command::new("curl").arg("--version").output().is_ok();
    if !found {
        skip("there is no curl");
    }
    found
}

fn tool(program: &str, arguments: &[&dyn AsRef<std::ffi::OsStr>]) {
    assert!(Command::new(program).args(arguments).status().unwrap().success());
}

/// A program's build id and the file with its debug information.
fn split(program: &Path, debug: &Path) -> (Vec<u8>, Vec<u8>) {
    let build_id = Image::parse(&std::fs::read(program).unwrap(), &[]).unwrap().build_id.unwrap();
    tool("objcopy", &[&"--only-keep-debug", &program, &debug]);
    tool("strip", &[&"--strip-all", &program]);
    (build_id, std::fs::read(debug).unwrap())
}

#[test]
fn what_a_server_has_is_fetched_once() {
    static REQUESTS: AtomicU32 = AtomicU32::new(0);
    static PRINTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let notice: fn(&str) = |text| PRINTED.lock().unwrap().push(text.to_owned());
    let folder = Folder::new("debuginfod").unwrap();
    let program = folder.file("weights");
    if !has_curl() || !compile_program("weights.c", &program, &["-g"]) {
        return;
    }
    let (build_id, debug) = split(&program, &folder.file("debug"));
    let digits: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let url = serve(format!("/buildid/{digits}/debuginfo"), debug, &REQUESTS);
    let cache = folder.file("cache");
    let start = || {
        let servers = format!("ftp://example.org {url}");
        HostFiles::with_debuginfod(Debuginfod::new(&servers, cache.clone(), 20, notice))
    };
    let mut files = start();
    assert!(files.fetch_debug_file(&[1, 2, 3]).is_none());
    assert!(files.fetch_debug_file(&[1, 2, 3]).is_none(), "the answer is kept");
    let fetched = files.fetch_debug_file(&build_id).unwrap();
    assert!(Symbols::read(&*fetched).unwrap().has_lines);
    let again = start().fetch_debug_file(&build_id).unwrap();
    assert_eq!(bytes_of(&*again), bytes_of(&*fetched), "out of the cache");
    assert_eq!(REQUESTS.load(Ordering::SeqCst), 2);
    let printed = PRINTED.lock().unwrap();
    assert!(printed.len() == 1 && printed[0].contains("reveals the build ids"), "{printed:?}");
}

fn bytes_of(file: &dyn ReadAt) -> Vec<u8> {
    let mut bytes = vec![0; file.bytes() as usize];
    assert!(file.read_at(0, &mut bytes));
    bytes
}

#[test]
fn a_server_that_does_not_answer_is_not_asked_again() {
    static PRINTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let notice: fn(&str) = |text| PRINTED.lock().unwrap().push(text.to_owned());
    if !has_curl() {
        return;
    }
    let folder = Folder::new("debuginfod-silent").unwrap();
    // It accepts connections and sends nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut files = HostFiles::with_debuginfod(Debuginfod::new(&url, folder.file("cache"), 1, notice));
    assert!(files.fetch_debug_file(&[1, 2, 3]).is_none());
    assert!(files.fetch_debug_file(&[4, 5, 6]).is_none());
    let printed = PRINTED.lock().unwrap();
    assert_eq!(printed.iter().filter(|text| text.contains("gets no further requests")).count(), 1, "{printed:?}");
    listener.set_nonblocking(true).unwrap();
    let connections = std::iter::from_fn(|| listener.accept().ok()).count();
    assert_eq!(connections, 1);
}
