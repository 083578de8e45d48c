//! Tests of arguments and of the file.

use super::*;

fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| arg.to_string()).collect()
}

fn parse(args: &[&str]) -> Result<Config, String> {
    Config::from_args(&owned(args)).map_err(|error| error.to_string())
}

/// With a file `queue.toml`.
fn file(text: &str, args: &[&str]) -> Result<Config, String> {
    let args = [&["--config", "queue.toml"], args].concat();
    Config::from_args_and_file(&owned(&args), text.as_bytes()).map_err(|error| error.to_string())
}

fn all() -> Config {
    Config {
        ports: vec![Port::Tcp(0), Port::Vsock(80)],
        item_bytes_max: Some(7),
        format: false,
        grow: true,
        discard: true,
        scrub_days: 30,
        delete_by_connection: true,
        store: None,
        tls: Some(("a.pem".into(), "b.pem".into())),
        tokens: Some("tokens".into()),
        tries: 3,
        access_log: Some("access.log".into()),
        origins: vec!["https://a.example".into(), "http://localhost:3000".into()],
    }
}

#[test]
fn arguments_are_read_or_refused_by_name() {
    let default = Config {
        ports: vec![Port::Tcp(8080)],
        item_bytes_max: None,
        format: false,
        grow: false,
        discard: false,
        scrub_days: 0,
        delete_by_connection: false,
        store: None,
        tls: None,
        tokens: None,
        tries: TRIES,
        access_log: None,
        origins: vec![],
    };
    assert_eq!(parse(&[]), Ok(default));
    let words = ["--port", "0", "--port=vsock:80", "--max-item-bytes=7", "--format", "--discard"];
    let tls = ["--delete-by-connection", "--tls-chain", "a.pem", "--tls-key=b.pem", "--tokens=tokens", "--tries=3"];
    let more =
        ["--access-log", "access.log", "--cors-origin=https://a.example", "--cors-origin", "http://localhost:3000"];
    let disk = ["--grow", "--scrub=30"];
    assert_eq!(parse(&[&words[..], &tls, &more, &disk].concat()), Ok(Config { format: true, ..all() }));
    let one = parse(&["--tls-chain=both.pem"]).unwrap();
    assert_eq!(one.tls, Some(("both.pem".into(), "both.pem".into())));
    assert!(parse(&["--tls-key=b.pem"]).unwrap_err().contains("takes --tls-chain"));
    assert!(parse(&["--tls-chain"]).unwrap_err().contains("must follow"));
    assert_eq!(parse(&["--store=nats://a/b"]).unwrap().store, Some("nats://a/b".into()));
    for disk in ["--format", "--grow", "--discard", "--scrub=1"] {
        assert!(parse(&["--store=nats://a/b", disk]).unwrap_err().contains("about a disk"), "{disk}");
    }
    for bad in [&["--port"][..], &["--store"], &["--port", "65536"], &["--port=+1"], &["--port="], &["--access-log="]] {
        assert!(parse(bad).unwrap_err().contains("must follow"), "{bad:?}");
    }
    for bad in ["", "-1", "+1", "1k", "99999999999999999999"] {
        assert!(parse(&["--max-item-bytes", bad]).unwrap_err().contains("a number of bytes must follow"), "{bad:?}");
    }
    for bad in ["", "-1", "+1", "1d", "1001"] {
        assert!(parse(&["--scrub", bad]).unwrap_err().contains("a number of days up to 1000"), "{bad:?}");
    }
    for bad in ["--prot", "--format=yes", "", "8080"] {
        assert!(parse(&[bad]).unwrap_err().contains("no such argument"), "{bad:?}");
    }
    for bad in ["site.example", "https://", "https://a.example/", "https://A.example", "ftp://a.example", "https://a b"]
    {
        assert!(parse(&["--cors-origin", bad]).unwrap_err().contains("an origin such as"), "{bad:?}");
    }
}

#[test]
fn a_file_has_the_same_settings_and_arguments_count_more() {
    let text = "# A queue.\n\nport = [0, \"vsock:80\"]   # two\nmax-item-bytes = 7\ndiscard = true\r\ndelete-by-connection=true\n\
                tls-chain = \"a.pem\"\ntls-key = \"b.pem\"\ntokens = \"tokens\"\ntries = 3\naccess-log = \"access.log\"\n\
                grow = true\nscrub = 30\n\
                cors-origin = [ \"https://a.example\", \"http://localhost:3000\", ]\n";
    assert_eq!(file(text, &[]), Ok(all()));
    let changed = Config { ports: vec![Port::Tcp(9)], tries: 0, format: true, ..all() };
    assert_eq!(file(text, &["--port=9", "--tries", "0", "--format"]), Ok(changed));
    // A chain of the arguments has its own key.
    assert_eq!(file(text, &["--tls-chain=c.pem"]).unwrap().tls, Some(("c.pem".into(), "c.pem".into())));
    assert_eq!(
        file("discard = false\nport = 1", &["--discard"]).map(|it| (it.discard, it.ports)),
        Ok((true, vec![Port::Tcp(1)]))
    );
}

#[test]
fn a_mistake_in_a_file_has_its_line_and_its_key() {
    for (line, expected) in [
        ("prot = 8080", "queue.toml, line 2: prot: there is no such key"),
        ("port 8080", "queue.toml, line 2: port 8080: a line is KEY = VALUE"),
        ("port = 65536", "queue.toml, line 2: port: a number from 0 to 65535"),
        ("port = []  x", "queue.toml, line 2: port: the value is"),
        ("port = [1, 2", "queue.toml, line 2: port: the value is"),
        ("port = [1 2]", "queue.toml, line 2: port: the value is"),
        ("tries = [1]", "queue.toml, line 2: tries: it takes one value"),
        ("tries = -1", "queue.toml, line 2: tries: the value is"),
        ("tries = true", "queue.toml, line 2: tries: it is not true or false"),
        ("tries = \"x\"", "queue.toml, line 2: tries: a number must follow"),
        ("tokens = tokens", "queue.toml, line 2: tokens: the value is"),
        ("tokens = \"a\\n\"", "queue.toml, line 2: tokens: the value is"),
        ("tokens = \"", "queue.toml, line 2: tokens: the value is"),
        ("tokens = \"\"", "queue.toml, line 2: tokens: the name of a file of --share must follow"),
        ("discard = 1", "queue.toml, line 2: discard: true or false must follow"),
        ("grow = 1", "queue.toml, line 2: grow: true or false must follow"),
        ("scrub = true", "queue.toml, line 2: scrub: it is not true or false"),
        ("discard = [true]", "queue.toml, line 2: discard: the value is"),
        ("format = true", "queue.toml, line 2: format: it would erase the disk"),
        ("config = \"x\"", "queue.toml, line 2: config: a file names no other file"),
        ("cors-origin = \"a.example\"", "queue.toml, line 2: cors-origin: an origin such as"),
    ] {
        let error = file(&format!("# comment\n{line}\n"), &[]).unwrap_err();
        assert!(error.starts_with(expected) && !error.contains("(arguments"), "{line}: {error}");
    }
    assert!(file("tries = 1\ntries = 2", &[]).unwrap_err().starts_with("queue.toml, line 2: tries: it is there twice"));
    let error = Config::from_args_and_file(&owned(&["--config=q"]), b"\xff").unwrap_err();
    assert_eq!(error.to_string(), "q: it is not UTF-8");
    assert!(file("tls-key = \"b.pem\"", &[]).unwrap_err().contains("takes --tls-chain"));
}
