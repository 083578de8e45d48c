//! `glass snapshot` and `glass run --from`: copies of a VM are each itself, and what cannot be copied is refused.

use glass_tests::content::Content;
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::limit::within;
use glass_tests::netns::Namespace;
use glass_tests::port::{free_port, free_ports};
use glass_tests::process::{Process, descendants};
use glass_tests::programs;
use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const LIMIT: Duration = Duration::from_secs(480);
/// Copies that live at once, also in a long run, and connections to each: more than 10,000 random words.
const COPIES: u16 = 64;
const COPIES_LONG: u16 = 1000;
const CONNECTIONS: usize = 10;
/// What the clocks of a busy host may be apart.
const LATE: Duration = Duration::from_secs(5);

/// What `apps/faults/src/copied.rs` reports.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) generation: u64,
    now: Duration,
    wall: Duration,
    pub(crate) failed: u64,
    pub(crate) words: Vec<u64>,
}

/// A new connection, and what it received.
fn connect(port: u16) -> (BufReader<TcpStream>, Report) {
    connect_to((Ipv4Addr::LOCALHOST, port).into())
}

fn connect_to(address: SocketAddr) -> (BufReader<TcpStream>, Report) {
    let end = Instant::now() + LIMIT;
    let stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < end, "{address}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let (mut reader, mut line) = (BufReader::new(stream), String::new());
    reader.read_line(&mut line).unwrap();
    let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().unwrap());
    let mut next = || numbers.next().unwrap_or_else(|| panic!("`{line}` is too short"));
    let (generation, now_us, wall_us, failed) = (next(), next(), next(), next());
    let (now, wall) = (Duration::from_micros(now_us), Duration::from_micros(wall_us));
    (reader, Report { generation, now, wall, failed, words: numbers.collect() })
}

pub(crate) fn report(port: u16) -> Report {
    connect(port).1
}

pub(crate) fn report_of(address: SocketAddr) -> Report {
    connect_to(address).1
}

/// A VM that can be copied, and where it answers.
pub(crate) struct Template {
    process: Process,
    pub(crate) port: u16,
    pub(crate) glass: PathBuf,
    image: PathBuf,
    pub(crate) folder: Folder,
}

impl Template {
    /// Boots one under its own name, with more options; `None` where that is not possible, with the reason printed.
    pub(crate) fn boot(name: &str, options: &[&str]) -> Option<Template> {
        Template::boot_image("faults", name, options, &["copied"])
    }

    pub(crate) fn boot_image(image: &str, name: &str, options: &[&str], words: &[&str]) -> Option<Template> {
        if !programs::has_kvm() {
            programs::skip("there is no KVM");
            return None;
        }
        let (glass, image) = (programs::built("glass")?, programs::image(image)?);
        let folder = Folder::new("copies").unwrap();
        // `glass snapshot` finds it by the name of its file.
        let own = folder.file(name);
        std::os::unix::fs::symlink(&image, &own).unwrap();
        let port = free_port().unwrap();
        let mut command = Command::new(&glass);
        command.arg("run").arg(&own).args(["--vmm", "own", "--port", &format!("{port}:8080")]).args(options);
        let mut process = Process::spawn(command.arg("--").args(words), &folder.file("template.log")).unwrap();
        process.wait_for_text("listening", LIMIT, || ());
        Some(Template { process, port, glass, image, folder })
    }

    /// Boots one behind `tap0` of a namespace, with these options.
    pub(crate) fn boot_in(namespace: &Namespace, name: &str, options: &[&str]) -> Option<Template> {
        let (glass, image) = (programs::built("glass")?, programs::image("faults")?);
        let folder = Folder::new("copies").unwrap();
        let own = folder.file(name);
        std::os::unix::fs::symlink(&image, &own).unwrap();
        let mut command = namespace.command(&glass);
        command.arg("run").arg(&own).args(["--vmm", "own", "--net", "tap=tap0"]).args(options);
        let mut process = Process::spawn(command.args(["--", "copied"]), &folder.file("template.log")).unwrap();
        process.wait_for_text("listening", LIMIT, || ());
        Some(Template { process, port: 8080, glass, image, folder })
    }

    /// Takes a snapshot of the VM with this name: whether that succeeded, and what was printed.
    pub(crate) fn snapshot(&self, name: &str, to: &Path) -> (bool, String) {
        let output = Command::new(&self.glass).args(["snapshot", name, "-o"]).arg(to).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub(crate) fn run_from(&self, snapshot: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(&self.glass);
        command.arg("run").args(words).arg("--from").arg(snapshot);
        command
    }

    /// What a start of copies reports that fails.
    pub(crate) fn refusal(&self, snapshot: &Path, words: &[&str]) -> String {
        let output = self.run_from(snapshot, words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && !text.contains("panicked"), "{text}");
        text
    }
}

#[test]
fn copies_are_each_themselves() {
    within(LIMIT * 2, || {
        let count = if programs::is_long() { COPIES_LONG } else { COPIES };
        let name = format!("template-{}", std::process::id());
        let Some(template) = Template::boot(&name, &[]) else { return };
        let (mut open, before) = connect(template.port);
        let at = Instant::now();
        assert_eq!((before.generation, before.failed), (0, 0));
        let snapshot = template.folder.file("snapshot");
        let (is_taken, text) = template.snapshot(&name, &snapshot);
        assert!(is_taken, "{text}");
        assert_eq!(fs::metadata(&snapshot).unwrap().mode() & 0o777, 0o600);
        // The template continues, and its connections too.
        let after = report(template.port);
        assert_eq!((after.generation, after.failed), (0, 0));
        open.get_mut().write_all(b"x").unwrap();

        let first = free_ports(count).unwrap();
        let mut command = template.run_from(&snapshot, &["--copies", &count.to_string()]);
        command.args(["--port", &format!("{first}:8080")]);
        let mut copies = Process::spawn(&mut command, &template.folder.file("copies.log")).unwrap();
        let (mut words, mut generations) = (HashSet::new(), HashSet::new());
        let mut add =
            |report: &Report| report.words.iter().for_each(|word| assert!(words.insert(*word), "{word} twice"));
        add(&before);
        add(&after);
        for port in first..first + count {
            let reports: Vec<Report> = (0..CONNECTIONS).map(|_| report(port)).collect();
            reports.iter().for_each(&mut add);
            let [first, .., last] = &reports[..] else { panic!("there are several") };
            assert!(generations.insert(first.generation) && first.generation != 0, "{first:?}");
            // The clock continues, without the time in which there was no copy.
            assert!(first.now > before.now && last.now < before.now + at.elapsed() + LATE, "{last:?} {before:?}");
            let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            assert!(wall.abs_diff(last.wall) < LATE, "{wall:?} {last:?}");
            // The template's connection has ended in each copy.
            assert_eq!(last.failed, 1, "{last:?}");
        }
        assert!(words.len() > 10_000);
        // Each is a process of its own, which ends with the others' parent.
        let pids = descendants(copies.pid());
        assert!(pids.len() > count.into(), "{pids:?}");
        assert!(copies.ended().is_none() && !copies.output().contains("glass: copy"), "{}", copies.output());
        copies.kill();
        assert!(pids.iter().all(|pid| !glass_tests::process::is_alive(*pid)));
        // Its connection is as it was all the time.
        assert_eq!(report(template.port).failed, 0);
        open.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        open.read_to_end(&mut rest).unwrap();
    });
}

#[test]
fn what_cannot_be_copied_is_refused_in_a_sentence() {
    within(LIMIT, || {
        let name = format!("refused-{}", std::process::id());
        let Some(mut template) = Template::boot(&name, &[]) else { return };
        let snapshot = template.folder.file("snapshot");
        let (is_taken, text) = template.snapshot(&name, &snapshot);
        assert!(is_taken, "{text}");
        // Another image; no image; a snapshot of another kind, cut off, of others, and none.
        let other = programs::image("hello").expect("it was built with the other images");
        let text = template.refusal(&snapshot, &[other.to_str().unwrap()]);
        assert!(text.contains("is another build than the one in the snapshot"), "{text}");
        let whole = fs::read(&snapshot).unwrap();
        let changed = template.folder.file("changed");
        let write = |bytes: &[u8], mode| {
            fs::write(&changed, bytes).unwrap();
            fs::set_permissions(&changed, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (bytes, mode, sentence) in [
            (&b"no snapshot"[..], 0o600, "it is no snapshot"),
            (&whole[..whole.len() - 4096], 0o600, "it is cut off"),
            (&whole, 0o620, "chmod 600"),
        ] {
            write(bytes, mode);
            let text = template.refusal(&changed, &[template.image.to_str().unwrap()]);
            assert!(text.contains(sentence), "{text}");
        }
        // A state that no processor has: KVM refuses it, or the guest ends. CR0 is in the state behind the general registers.
        let mut wrong = whole.clone();
        wrong[4096..64 << 10].iter_mut().skip(300).step_by(7).for_each(|byte| *byte ^= 0x55);
        write(&wrong, 0o600);
        template.refusal(&changed, &[]);
        // Options that the VM has already.
        let text = template.refusal(&snapshot, &["--memory", "128M"]);
        assert!(text.contains("--memory") && text.contains("--from"), "{text}");
        template.process.kill();

        let Some(cores) = Template::boot(&format!("{name}-cores"), &["--cores", "2"]) else { return };
        let (is_taken, text) = cores.snapshot(&format!("{name}-cores"), &snapshot);
        assert!(!is_taken && text.contains("it has 2 cores, and a template has one"), "{text}");
    });
}

/// Uploads an item, and returns the status.
fn upload(port: u16, item: Content) -> u16 {
    let mut client = Client::connect((Ipv4Addr::LOCALHOST, port).into()).unwrap();
    client.put("/uploader", item.length_bytes, &mut item.reader()).unwrap().status()
}

/// Takes all items from a queue.
fn take_all(port: u16) -> Vec<Vec<u8>> {
    let mut items = Vec::new();
    loop {
        let mut client = Client::connect((Ipv4Addr::LOCALHOST, port).into()).unwrap();
        let mut item = Vec::new();
        let response = client.get_into("/downloader?wait=0", &mut item).unwrap();
        if response.status() != 200 {
            return items;
        }
        items.push(item);
        assert_eq!(client.request_if_match("DELETE", "/downloader", response.etag()).unwrap().status(), 200);
    }
}

/// A queue that has an item, copies of it that get others, and a power cut of all: each disk has what its queue has acknowledged.
#[test]
fn copies_of_a_queue_keep_what_they_acknowledge() {
    const QUEUES: u16 = 3;
    within(LIMIT * 2, || {
        let name = format!("queue-{}", std::process::id());
        let item = |seed: u64| Content { seed, length_bytes: 50_000 };
        let folder = Folder::new("copied-queues").unwrap();
        let options =
            ["--disk", &folder.file("own.img").display().to_string(), "--disk-size", "16M"].map(str::to_owned);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let Some(mut template) = Template::boot_image("upload-queue", &name, &options, &["--port", "8080"]) else {
            return;
        };
        assert_eq!(upload(template.port, item(1)), 200);
        let snapshot = folder.file("snapshot");
        let (is_taken, text) = template.snapshot(&name, &snapshot);
        assert!(is_taken, "{text}");
        assert_eq!(fs::metadata(folder.file("snapshot.disk")).unwrap().mode() & 0o777, 0o600);
        assert_eq!(upload(template.port, item(2)), 200);

        let text = template.refusal(&snapshot, &[]);
        assert!(text.contains("--disk copy-{}.img"), "{text}");
        let disks = folder.file("copy-{}.img").display().to_string();
        let one = folder.file("copy.img").display().to_string();
        let text = template.refusal(&snapshot, &["--copies", "2", "--disk", &one]);
        assert!(text.contains("write {} in --disk"), "{text}");
        let first = free_ports(QUEUES).unwrap();
        let mut command = template.run_from(&snapshot, &["--copies", &QUEUES.to_string(), "--disk", &disks]);
        command.args(["--port", &format!("{first}:8080")]);
        let mut copies = Process::spawn(&mut command, &folder.file("copies.log")).unwrap();
        for index in 0..QUEUES {
            let port = first + index;
            let end = Instant::now() + LIMIT;
            while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
                assert!(Instant::now() < end && copies.ended().is_none(), "{}", copies.output());
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(upload(port, item(10 + u64::from(index))), 200, "{}", copies.output());
        }
        copies.kill();
        template.process.kill();
        // The memory of the snapshot does not fit to a disk that has changed.
        let text = template.refusal(&snapshot, &["--disk", &folder.file("copy-0.img").display().to_string()]);
        assert!(text.contains("is a disk") && text.contains("already"), "{text}");

        let disks = (0..QUEUES).map(|index| (format!("copy-{index}.img"), 10 + u64::from(index)));
        for (disk, own) in disks.chain([("own.img".to_owned(), 2)]) {
            let options = ["--disk", &folder.file(&disk).display().to_string()].map(str::to_owned);
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let again = Template::boot_image("upload-queue", &name, &options, &["--port", "8080"]).unwrap();
            let expected = [1, own].map(|seed| item(seed).bytes());
            assert!(take_all(again.port) == expected, "{disk} has other items: {}", again.process.output());
        }
    });
}
