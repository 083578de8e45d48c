//! Responses whose length is unknown: chunks, bodies until the end of the connection, events, fields after a body, interim responses.

use crate::world::{End, Outcome, Server, World, exchange, pair};
use core::time::Duration;
use glass_api::{Clock, NetError, Stream};
use glass_lib_http::{Connection, Event, HttpError, Limits, Request, Response, Status};
use std::cell::Cell;
use std::rc::Rc;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const GET_OLD: &str = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";

fn ok() -> Response {
    Response::new(Status::OK)
}

/// Two pieces, an empty one between them, and a field after them.
async fn two(connection: &mut Server, _: Request) -> Result<(), HttpError> {
    connection.start_streamed(ok()).await?;
    connection.write_body(b"hello ").await?;
    connection.write_body(b"").await?;
    connection.write_body(b"world").await?;
    connection.end_body_with(&[("Digest", "abc")]).await
}

#[test]
fn a_streamed_response_is_chunks_and_the_connection_is_kept() {
    let outcome = exchange(GET.repeat(2), usize::MAX, true, two);
    let response =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n0\r\nDigest: abc\r\n\r\n";
    assert_eq!((outcome.text.as_str(), outcome.end, outcome.served), (response.repeat(2).as_str(), Ok(()), Ok(())));
}

#[test]
fn an_old_client_gets_a_body_that_ends_with_the_connection() {
    let outcome = exchange(GET_OLD.repeat(2), usize::MAX, true, two);
    assert_eq!(outcome.text, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello world");
    assert_eq!((outcome.end, outcome.served), (Ok(()), Ok(())));
}

#[test]
fn a_head_and_statuses_without_a_body_get_none() {
    let outcome = exchange(GET.replace("GET", "HEAD").repeat(2), usize::MAX, true, two);
    assert_eq!(outcome.text, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".repeat(2));
    let omit = async |connection: &mut Server, _| {
        connection.start_streamed(ok()).await?;
        connection.omit_body();
        Ok(())
    };
    let outcome = exchange(GET.replace("GET", "HEAD").repeat(2), usize::MAX, true, omit);
    assert_eq!((outcome.text.matches("HTTP/1.1 200").count(), outcome.served), (2, Ok(())));
    let unmodified = async |connection: &mut Server, _| {
        connection.start_streamed(Response::new(Status::NOT_MODIFIED)).await?;
        connection.write_body(b"x").await?;
        connection.end_body().await
    };
    let outcome = exchange(GET.repeat(2), usize::MAX, true, unmodified);
    assert_eq!(outcome.text, "HTTP/1.1 304 Not Modified\r\n\r\n".repeat(2));
}

#[test]
fn a_large_piece_is_one_chunk() {
    let send = async |connection: &mut Server, _| {
        connection.start_streamed(ok()).await?;
        connection.write_body(&[b'x'; 70_000]).await?;
        connection.end_body().await
    };
    for piece in [1000, usize::MAX] {
        let outcome = exchange(GET, piece, true, send);
        let body = outcome.text.split_once("\r\n\r\n").unwrap().1;
        assert_eq!(body, format!("11170\r\n{}\r\n0\r\n\r\n", "x".repeat(70_000)));
    }
}

#[test]
fn a_body_that_fails_in_the_middle_is_never_a_clean_end() {
    let fail = async |connection: &mut Server, _| {
        connection.start_streamed(ok()).await?;
        connection.write_body(b"a part").await?;
        Err(HttpError::OutOfMemory)
    };
    let forget = async |connection: &mut Server, _| {
        connection.start_streamed(ok()).await?;
        connection.write_body(b"a part").await
    };
    let check = |outcome: Outcome, served| {
        assert!(!outcome.text.contains("\r\n0\r\n"), "{}", outcome.text);
        assert_eq!((outcome.end, outcome.served), (Err(NetError::Reset), Err(served)));
    };
    for request in [GET, GET_OLD] {
        check(exchange(request, usize::MAX, false, fail), HttpError::OutOfMemory);
        check(exchange(request, usize::MAX, false, forget), HttpError::NotEnded);
    }
}

#[test]
fn fields_after_a_body_are_checked() {
    let bad = async |connection: &mut Server, _| {
        connection.start_streamed(ok()).await?;
        connection.end_body_with(&[("Content-Length", "5")]).await
    };
    let outcome = exchange(GET, usize::MAX, false, bad);
    assert_eq!((outcome.end, outcome.served), (Err(NetError::Reset), Err(HttpError::BadResponseHeader)));
    let read = async |connection: &mut Server, _| {
        assert!(connection.trailers().get("digest").is_none());
        let count = connection.fill_from_body(&mut [0; 100]).await?;
        let digest = String::from_utf8_lossy(connection.trailers().get("digest").unwrap_or_default()).into_owned();
        connection.respond_text(Status::OK, &format!("{count} {digest}")).await
    };
    let put = |trailer: &str| {
        format!("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n{trailer}\r\n")
    };
    let requests = put("A: b\r\nDigest: xyz\r\n") + &put("");
    for piece in [1, usize::MAX] {
        let outcome = exchange(requests.clone(), piece, true, read);
        assert!(outcome.text.contains("5 xyzHTTP") && outcome.text.ends_with("5 "), "{}", outcome.text);
    }
    let outcome = exchange(put("not a field\r\n"), usize::MAX, true, read);
    assert!(outcome.text.starts_with("HTTP/1.1 400"), "{}", outcome.text);
}

#[test]
fn interim_responses_come_before_the_response() {
    let inform = async |connection: &mut Server, _| {
        connection.inform(Response::new(Status::EARLY_HINTS).header("Link", "</a>; rel=preload")).await?;
        connection.inform(Response::new(Status(104)).header("Location", "/b")).await?;
        connection.respond(ok(), b"").await
    };
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\nHTTP/1.1 104 Upload Resumption Supported\r\nLocation: /b\r\n\r\n";
    let outcome = exchange(GET, usize::MAX, true, inform);
    assert_eq!(outcome.text, format!("{interim}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
    let outcome = exchange(GET_OLD, usize::MAX, true, inform);
    assert!(outcome.text.starts_with("HTTP/1.1 200 OK\r\n"), "{}", outcome.text);
}

/// Serves one connection whose client `use_client` is.
fn serve<F: Future<Output = ()> + 'static>(
    handler: impl AsyncFnMut(&mut Server, World) -> Result<(), HttpError> + 'static,
    use_client: impl FnOnce(World, End) -> F,
) -> Result<(), HttpError> {
    let world = World::new();
    let (server, client) = pair(usize::MAX);
    let connection = Connection::new(server, world.clone(), Limits::default());
    let served = Rc::new(Cell::new(None));
    let (result, clock, mut handler) = (served.clone(), world.clone(), handler);
    world.run_task(async move {
        let handle = async |connection: &mut Server, _| handler(connection, clock.clone()).await;
        result.set(Some(connection.serve(handle).await));
    });
    world.run_task(use_client(world.clone(), client));
    world.run();
    served.get().expect("the server ended")
}

/// An event each minute, and a heartbeat between two.
async fn events(connection: &mut Server, world: World) -> Result<(), HttpError> {
    connection.start_events().await?;
    for number in 0..3 {
        world.sleep(Duration::from_secs(30)).await;
        connection.send_heartbeat().await?;
        world.sleep(Duration::from_secs(30)).await;
        let id = format!("{number}");
        connection.send_event(&Event { id: &id, name: "tick", ..Event::new("a\nb") }).await?;
    }
    connection.end_body().await
}

#[test]
fn events_arrive_when_they_are_sent() {
    let served = serve(events, async |world: World, mut end: End| {
        end.write_all(GET.as_bytes()).await.unwrap();
        let mut part = [0; 1000];
        let mut next = async || {
            let count = end.read(&mut part).await.unwrap();
            (world.now().0 / 1_000_000_000, String::from_utf8(part[..count].to_vec()).unwrap())
        };
        let (secs, head) = next().await;
        assert_eq!(secs, 0);
        assert!(head.contains("Content-Type: text/event-stream\r\nCache-Control: no-store\r\n"), "{head}");
        for number in 0..3 {
            assert_eq!(next().await, (30 + 60 * number, "3\r\n:\n\n\r\n".into()));
            let event = format!("event: tick\nid: {number}\ndata: a\ndata: b\n\n");
            let end = if number == 2 { "0\r\n\r\n" } else { "" };
            assert_eq!(next().await, (60 + 60 * number, format!("{:x}\r\n{event}\r\n{end}", event.len())));
        }
        end.close().await.unwrap();
    });
    assert_eq!(served, Ok(()));
}

/// The rule for slow clients is that of other responses: a stream whose client does not read ends, however short its events are.
#[test]
fn a_client_that_does_not_read_its_events_is_reset() {
    let flood = async |connection: &mut Server, _| {
        connection.start_events().await?;
        loop {
            connection.send_event(&Event::new("again")).await?;
        }
    };
    let served = serve(flood, |world: World, mut end: End| {
        end.bound_incoming(4096);
        async move {
            end.write_all(GET.as_bytes()).await.unwrap();
            world.sleep(Duration::from_secs(60)).await;
            assert_eq!(end.read_all().await.1, Err(NetError::Reset));
        }
    });
    let limits = Limits::DEFAULT;
    assert_eq!(
        served,
        Err(HttpError::Stalled { bytes_min: limits.progress_bytes_min, window: limits.progress_window })
    );
}
