//! Tests of finding and parsing heads.

use super::*;
use alloc::vec::Vec;

fn head(text: &str) -> Result<Request, HttpError> {
    parse_head(text.as_bytes())
}

#[test]
fn a_request_keeps_everything_it_was_sent() {
    let request =
        head("PATCH /a/b?c=d?e HTTP/1.1\r\nHost: x\r\nX-Empty:\r\nx-twice: 1\r\nX-Twice: 2 \r\n\r\n").unwrap();
    assert_eq!((request.method(), request.method_name()), (Method::Patch, "PATCH"));
    assert_eq!(request.target(), "/a/b?c=d?e");
    assert_eq!((request.path(), request.query()), ("/a/b", Some("c=d?e")));
    assert_eq!(request.header("X-TWICE"), Some(&b"1"[..]));
    assert_eq!(request.header("x-empty"), Some(&b""[..]));
    assert_eq!(request.header("x"), None);
    let names: Vec<_> = request.headers().map(|(name, _)| name).collect();
    assert_eq!(names, ["Host", "X-Empty", "x-twice", "X-Twice"]);
    assert_eq!(request.body(), RequestBody::None);
}

#[test]
fn targets_come_in_four_forms() {
    for (line, path, query) in [
        ("GET / HTTP/1.1", "/", None),
        ("GET /? HTTP/1.1", "/", Some("")),
        ("GET http://host HTTP/1.1", "/", None),
        ("GET HTTP://host:80/a?b HTTP/1.1", "/a", Some("b")),
        ("GET https://host/a://b HTTP/1.1", "/a://b", None),
        ("GET /a://b HTTP/1.1", "/a://b", None),
        ("GET http://host?b HTTP/1.1", "/", None),
        ("OPTIONS * HTTP/1.1", "*", None),
        ("CONNECT host:80 HTTP/1.1", "host:80", None),
    ] {
        let request = head(&alloc::format!("{line}\r\nHost: x\r\n\r\n")).unwrap();
        assert_eq!((request.path(), request.query()), (path, query), "{line}");
    }
}

#[test]
fn lengths_are_digits_that_fit() {
    for (value, expected) in [
        ("0", Some(0)),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", None),
        ("99999999999999999999999", None),
        ("000000000000000000000000000000", Some(0)),
        ("", None),
        ("-1", None),
        ("+1", None),
        ("1 ", None),
        ("0x1", None),
        ("1,1", None),
        ("１", None),
    ] {
        assert_eq!(content_length(value.as_bytes()), expected, "{value:?}");
    }
}

#[test]
fn connections_are_kept_as_the_versions_say() {
    for (version, fields, kept) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: keep-alive\r\nConnection: upgrade , CLOSE\r\n", false),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
        // Repeating an option does not take it back.
        ("1.1", "Connection: close, close\r\n", false),
        ("1.0", "Connection: keep-alive\r\nConnection: keep-alive\r\n", true),
    ] {
        let request = head(&alloc::format!("GET / HTTP/{version}\r\nHost: x\r\n{fields}\r\n")).unwrap();
        assert_eq!(request.keep_alive, kept, "{version} {fields}");
    }
}

#[test]
fn each_byte_of_a_head_is_scanned_once() {
    let limits = Limits::default();
    let head = b"GET / HTTP/1.1\r\nHost: a\r\nX: \n\r\n";
    let mut scan = HeadScan::default();
    for length in 0..head.len() {
        assert_eq!(scan.find_end(&head[..length], &limits), Ok(None), "{length}");
        // At most an undecided line end is checked again.
        assert!(scan.scanned + 2 >= length);
    }
    assert_eq!(scan.find_end(head, &limits), Ok(Some(head.len())));
}

#[test]
fn a_version_is_refused_at_the_end_of_its_line_and_not_before() {
    let limits = Limits::default();
    let mut scan = HeadScan::default();
    assert_eq!(scan.find_end(b"GET / HTTP/2.0", &limits), Ok(None));
    assert_eq!(scan.find_end(b"GET / HTTP/2.0\r\n", &limits), Err(HttpError::Version));
}

#[test]
fn a_line_is_parsed_when_it_begins_and_when_it_ends_however_often_a_part_of_it_arrives() {
    let limits = Limits::default();
    let mut scan = HeadScan::default();
    assert_eq!(scan.find_end(b"GET", &limits), Ok(None));
    // It cannot become a request, but a client that sends byte by byte must not cost a parse for each.
    assert_eq!(scan.find_end(b"GET /\0", &limits), Ok(None));
    assert!(scan.find_end(b"GET /\0\n", &limits).is_err());
}

#[test]
fn expectations_are_lists_in_which_repetitions_change_nothing_and_old_clients_have_none() {
    for (version, fields, expected) in [
        ("1.1", "", Ok(false)),
        ("1.1", "Expect: 100-continue\r\n", Ok(true)),
        ("1.1", "Expect: 100-continue\r\nExpect: 100-Continue\r\n", Ok(true)),
        ("1.1", "Expect: 100-continue, rain\r\n", Err(HttpError::Expectation)),
        ("1.1", "Expect: rain, snow\r\n", Err(HttpError::Expectation)),
        ("1.0", "Expect: 100-continue, rain\r\n", Ok(false)),
    ] {
        let request = head(&alloc::format!("GET / HTTP/{version}\r\nHost: x\r\n{fields}\r\n"));
        assert_eq!(request.map(|request| request.expects_continue), expected, "{version} {fields}");
    }
}
