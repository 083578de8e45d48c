//! Requests and their responses, in one piece and byte by byte.

use crate::world::{Server, ask, echo, exchange};
use glass_lib_http::{Exchange, HttpError, Method, Response, Status};

const PIECES: [usize; 4] = [1, 2, 7, usize::MAX];

fn status(text: &str) -> u16 {
    text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

#[test]
fn answers_a_get() {
    for piece in PIECES {
        let outcome = ask("GET /path?query HTTP/1.1\r\nHost: a\r\n\r\n", piece);
        let expected =
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 10\r\n\r\nGET /path\n";
        assert_eq!(outcome.text, expected);
        assert_eq!((outcome.served, outcome.end), (Ok(()), Ok(())));
    }
}

#[test]
fn answers_pipelined_requests_in_order() {
    let requests = "PUT /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nfirst\
        \r\n\nGET /2 HTTP/1.1\nHost: a\n\nHEAD /3 HTTP/1.1\r\nHost: a\r\n\r\nDELETE /4 HTTP/1.1\r\nHost: a\r\n\r\n";
    for piece in PIECES {
        let text = ask(requests, piece).text;
        let bodies: Vec<_> = text.split("\r\n\r\n").skip(1).collect();
        assert_eq!(bodies.len(), 4, "{text}");
        assert!(bodies[0].starts_with("firstHTTP/1.1 200"), "{text}");
        assert!(bodies[1].starts_with("GET /2\nHTTP/1.1 200"), "{text}");
        assert!(bodies[2].starts_with("HTTP/1.1 200"), "{text}");
        assert_eq!(bodies[3], "DELETE /4\n");
    }
}

#[test]
fn a_thousand_requests_sent_ahead_are_answered_in_order() {
    let request = |number| format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n");
    let requests: String = (0..1000).map(request).collect();
    for piece in [1000, usize::MAX] {
        let text = ask(requests.clone(), piece).text;
        let found: Vec<_> = text.split("GET /").skip(1).map(|rest| rest.split('\n').next().unwrap()).collect();
        assert_eq!(found, (0..1000).map(|number| number.to_string()).collect::<Vec<_>>());
    }
}

#[test]
fn an_empty_body_is_not_asked_for() {
    let text = ask("PUT /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nExpect: 100-continue\r\n\r\n", 1).text;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}

#[test]
fn a_few_empty_lines_before_a_request_are_skipped() {
    for (line_end, most) in [("\r\n", 8), ("\n", 16)] {
        for (lines, expected) in [(0, 200), (1, 200), (most, 200), (most + 1, 400)] {
            for piece in PIECES {
                let text = ask(line_end.repeat(lines) + "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n", piece).text;
                assert_eq!(status(&text), expected, "{lines} lines {line_end:?} in pieces of {piece}: {text}");
            }
        }
    }
}

#[test]
fn head_has_the_length_and_no_body() {
    let text = ask("HEAD /12 HTTP/1.1\r\nHost: a\r\n\r\n", 1).text;
    assert!(text.ends_with("Content-Length: 9\r\n\r\n"), "{text}");
}

#[test]
fn closes_when_the_client_says_so() {
    let close = "GET /1 HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n";
    let old = "GET /1 HTTP/1.0\r\n\r\nGET /2 HTTP/1.0\r\n\r\n";
    for request in [close, old] {
        let outcome = exchange(request, usize::MAX, false, echo);
        assert_eq!(outcome.text.matches("HTTP/1.1 200").count(), 1);
        assert!(outcome.text.contains("\r\nConnection: close\r\n"), "{}", outcome.text);
    }
    let kept = "GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /2 HTTP/1.0\r\n\r\n";
    let text = ask(kept, usize::MAX).text;
    assert_eq!(text.matches("HTTP/1.1 200").count(), 2);
    assert_eq!(text.matches("\r\nConnection: keep-alive\r\n").count(), 1);
    assert_eq!(text.matches("\r\nConnection: close\r\n").count(), 1);
}

#[test]
fn refuses_what_is_malformed() {
    let line_of = |bytes: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(bytes - 16));
    let head_of = |bytes: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(bytes - 32));
    let (long_line, long_head) = (line_of(8192 + 16), head_of(16384 + 32));
    // Of the largest that is accepted there is another test.
    assert_eq!((line_of(8193).find('\n'), head_of(16385).len()), (Some(8192), 16385));
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(64));
    let with = |fields: &str| format!("PUT / HTTP/1.1\r\nHost: a\r\n{fields}\r\nhello");
    let cases: Vec<(String, u16)> = vec![
        (long_line.clone(), 414),
        (long_line[..8193].into(), 414),
        (long_head.clone(), 431),
        (long_head[..16384].into(), 431),
        (line_of(8193), 414),
        (head_of(16385), 431),
        (many, 431),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), 505),
        ("GET / HTTP/3\r\nHost: a\r\n\r\n".into(), 505),
        ("GET /\r\n".into(), 400),
        ("GET / HTTPS\r\nHost: a\r\n\r\n".into(), 400),
        ("\x16\x03\x01\x02\0".into(), 400),
        ("\r\n".repeat(9), 400),
        ("GET / HTTP/1.1\r\n\r\n".into(), 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n".into(), 400),
        ("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n".into(), 400),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n".into(), 400),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n".into(), 400),
        ("GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n".into(), 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n".into(), 400),
        ("GET nowhere HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400),
        (with("Content-Length: -5\r\n"), 400),
        (with("Content-Length: +5\r\n"), 400),
        (with("Content-Length: 0x5\r\n"), 400),
        (with("Content-Length:\r\n"), 400),
        (with("Content-Length: 5, 5\r\n"), 400),
        (with("Content-Length: 5\r\nContent-Length: 5\r\n"), 400),
        (with("Content-Length: 5 5\r\n"), 400),
        (with("Content-Length: 18446744073709551616\r\n"), 400),
        (with("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), 400),
        (with("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), 400),
        (with("Transfer-Encoding: gzip, chunked\r\n"), 411),
        (with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 411),
        // Its body is `hello`, which is no chunk.
        (with("Transfer-Encoding: chunked\r\n"), 400),
        ("PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".into(), 400),
        (with("Expect: the worst\r\n"), 417),
        (with("Content-Length: 9\r\n"), 400),
    ];
    for (request, expected) in cases {
        for piece in PIECES {
            let outcome = exchange(request.clone(), piece, true, async |connection: &mut Server, request| {
                // Reads at least one byte, so that an unknown length is detected.
                let mut body = [0; 100];
                while connection.read_body(&mut body).await? > 0 {}
                echo(connection, request).await
            });
            assert_eq!(
                status(&outcome.text),
                expected,
                "{:?} in pieces of {piece}: {}",
                request.get(..60),
                outcome.text
            );
            assert!(outcome.text.contains("\r\nConnection: close\r\n"), "{}", outcome.text);
            assert!(outcome.served.is_err());
            assert_eq!(outcome.end, Ok(()), "{:?}", request.get(..60));
            assert_eq!(outcome.text.matches("\r\nContent-Length: ").count(), 1, "{}", outcome.text);
        }
    }
}

#[test]
fn accepts_the_largest_of_everything() {
    let start = "GET / HTTP/1.1\r\nHost: a\r\n";
    let line = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(8192 - 16));
    let head = format!("{start}X: {}\r\n\r\n", "x".repeat(16384 - start.len() - 7));
    assert_eq!(head.len(), 16384);
    let fields = format!("{start}{}\r\n", "X: y\r\n".repeat(63));
    let absolute = "GET http://a/x?y HTTP/1.1\r\nHost: a\r\n\r\n".to_string();
    let length = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length:  005\t\r\n\r\nhello".to_string();
    for request in [line, head, fields, absolute, length] {
        for piece in [1, usize::MAX] {
            let outcome = ask(request.clone(), piece);
            assert_eq!(status(&outcome.text), 200, "{:?}: {}", request.get(..60), outcome.text);
            assert_eq!(outcome.served, Ok(()));
        }
    }
}

#[test]
fn methods_are_known_by_their_names_as_they_are() {
    let known = [
        ("GET", Method::Get),
        ("HEAD", Method::Head),
        ("PUT", Method::Put),
        ("POST", Method::Post),
        ("DELETE", Method::Delete),
        ("OPTIONS", Method::Options),
        ("PATCH", Method::Patch),
        ("TRACE", Method::Trace),
        ("get", Method::Other),
        ("BREW", Method::Other),
    ];
    for (name, method) in known {
        let outcome =
            exchange(format!("{name} / HTTP/1.1\r\nHost: a\r\n\r\n"), 1, true, async move |connection, request| {
                assert_eq!((request.method(), request.method_name()), (method, name));
                echo(connection, request).await
            });
        assert_eq!(outcome.served, Ok(()), "{name}");
    }
}

#[test]
fn a_chunked_body_comes_back_whole_and_the_next_request_after_it() {
    let put = "PUT /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let plain = "5\r\nfirst\r\n1\r\n \r\n6;name=value\r\nsecond\r\n0\r\n\r\n";
    // A line end in the data is data, and fields may follow the last chunk.
    let fields = "c\r\nfirst second\r\n0\r\nA: b\r\nC: d\r\n\r\n";
    for body in [plain, fields] {
        let requests = format!("{put}{body}GET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
        for piece in PIECES {
            let outcome = exchange(requests.clone(), piece, true, async |connection: &mut Server, request| {
                if request.path() != "/1" {
                    return echo(connection, request).await;
                }
                let (mut body, mut part) = (Vec::new(), [0; 4]);
                while let count @ 1.. = connection.read_body(&mut part).await? {
                    body.extend_from_slice(&part[..count]);
                }
                connection.respond_text(Status::OK, &String::from_utf8(body).unwrap()).await
            });
            let bodies: Vec<&str> = outcome.text.split("\r\n\r\n").skip(1).collect();
            assert!(bodies[0].starts_with("first secondHTTP/1.1 200"), "in pieces of {piece}: {}", outcome.text);
            assert_eq!(bodies[1], "GET /2\n", "in pieces of {piece}");
            assert_eq!((outcome.served, outcome.end), (Ok(()), Ok(())));
        }
    }
}

#[test]
fn a_chunked_body_that_nobody_reads_ends_the_connection() {
    let handler = async |connection: &mut Server, _| connection.respond_text(Status::OK, "ignored").await;
    let request = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let outcome = exchange(request.repeat(2), usize::MAX, true, handler);
    assert_eq!(outcome.text.matches("ignored").count(), 1, "{}", outcome.text);
    assert!(outcome.text.contains("\r\nConnection: close\r\n"), "{}", outcome.text);
}

#[test]
fn the_version_is_judged_when_all_of_it_is_here() {
    // Pieces of two and seven bytes end after the dot.
    for piece in PIECES {
        let outcome = ask("GET /a HTTP/3.1\r\nHost: a\r\n\r\n", piece);
        assert_eq!(status(&outcome.text), 505, "in pieces of {piece}: {}", outcome.text);
    }
}

#[test]
fn a_read_into_no_memory_takes_nothing_and_waits_for_nothing() {
    let chunked = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n";
    let counted = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde";
    for request in [chunked, counted] {
        for piece in PIECES {
            let outcome = exchange(request, piece, true, async |connection: &mut Server, _| {
                let (mut body, mut byte) = (Vec::new(), [0]);
                loop {
                    assert_eq!(connection.read_body(&mut []).await, Ok(0));
                    if connection.read_body(&mut byte).await? == 0 {
                        break;
                    }
                    body.push(byte[0]);
                }
                connection.respond_text(Status::OK, &String::from_utf8(body).unwrap()).await
            });
            assert_eq!(outcome.served, Ok(()), "{request:?} in pieces of {piece}");
            assert!(outcome.text.ends_with("\r\n\r\nabcde"), "{}", outcome.text);
        }
    }
}

#[test]
fn a_body_with_an_unknown_coding_can_be_left_unread() {
    let request = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\nhello";
    for piece in PIECES {
        // Its length counts as 0, so the service reads nothing.
        let outcome = ask(request, piece);
        assert_eq!((status(&outcome.text), outcome.served), (200, Ok(())), "{}", outcome.text);
        assert!(outcome.text.contains("\r\nConnection: close\r\n"), "{}", outcome.text);
    }
}

#[test]
fn the_body_of_an_answer_to_head_can_be_left_out() {
    let requests = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let outcome = exchange(requests, usize::MAX, true, async |connection: &mut Server, request| {
        connection.start(Response::new(Status::OK), 5).await?;
        connection.omit_body();
        if request.method() == Method::Get {
            connection.write_body(b"whole").await?;
        }
        Ok(())
    });
    assert_eq!(outcome.served, Ok(()));
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(outcome.text, format!("{head}{head}whole"));
}

#[test]
fn a_service_sees_whether_it_has_answered() {
    let requests = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2);
    let outcome = exchange(requests, usize::MAX, true, async |connection: &mut Server, _| {
        assert!(!connection.is_answered());
        connection.start(Response::new(Status::OK), 5).await?;
        assert!(connection.is_answered());
        connection.write_body(b"whole").await?;
        assert!(connection.is_answered());
        Ok(())
    });
    assert_eq!(outcome.served, Ok(()));
    assert_eq!(outcome.text.matches("whole").count(), 2);
}

#[test]
fn a_service_can_make_any_response_the_last() {
    let requests = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3);
    let mut answered = 0;
    let outcome = exchange(requests, usize::MAX, false, async move |connection: &mut Server, request| {
        answered += 1;
        if answered == 2 {
            connection.close_after_response();
        }
        echo(connection, request).await
    });
    assert_eq!((outcome.served, outcome.end), (Ok(()), Ok(())));
    assert_eq!(outcome.text.matches("HTTP/1.1 200").count(), 2);
    let (_, second) = outcome.text.split_once("GET /1\n").unwrap();
    assert!(second.contains("\r\nConnection: close\r\n"), "{second}");
}

#[test]
fn a_client_that_closes_and_leaves_its_body_out_is_told_that_the_connection_ends() {
    let request = "PUT / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\n";
    let outcome = exchange(request, usize::MAX, false, async |connection: &mut Server, _| {
        connection.respond_text(Status::INSUFFICIENT_STORAGE, "full").await
    });
    assert!(outcome.text.contains("\r\nConnection: close\r\n"), "{}", outcome.text);
    assert_eq!((outcome.served, outcome.end), (Ok(()), Ok(())));
}

#[test]
fn an_exchange_counts_bodies_and_an_added_field_is_in_one_answer() {
    let requests = "PUT /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\n\r\n\
        HEAD /2 HTTP/1.1\r\nHost: a\r\n\r\nGET /3 HTTP/1.1\r\nHost: a\r\n\r\n";
    for piece in PIECES {
        let outcome = exchange(requests, piece, false, async |connection: &mut Server, request| {
            assert_eq!(connection.exchange(), Exchange::default());
            let mut body = [0; 10];
            let count = connection.fill_from_body(&mut body).await? as u64;
            match request.path() {
                "/1" => connection.add_field("X-Added", "yes"),
                "/3" => connection.add_field("X-Added", "a\nb"),
                _ => {}
            }
            let answered = connection.respond_text(Status::OK, "answer").await;
            let status = Some(Status::OK).filter(|_| answered.is_ok());
            // The body of an answer to HEAD is not sent.
            let sent_bytes = if request.path() == "/1" { 6 } else { 0 };
            assert_eq!(connection.exchange(), Exchange { status, received_bytes: count, sent_bytes });
            assert_eq!(count, if request.path() == "/1" { 5 } else { 0 });
            answered
        });
        assert_eq!(outcome.text.matches("X-Added: yes\r\n").count(), 1, "{}", outcome.text);
        assert_eq!(outcome.served, Err(HttpError::BadResponseHeader));
    }
}
