//! What `bench-tls` answers: a greeting for `/`, `N` bytes for `/N`, for `/stream/N` in chunks, for `/cut/N` in chunks of which the second half is
//! missing, and `N` server-sent events for `/events/N`.

use alloc::format;
use glasshouse::http::{Connection, Event, HttpError, Method, Request, Response, Status};
use glasshouse::{Platform, Stream};

/// Bytes of a body that are written at once.
static PIECE: [u8; 64 << 10] = [b'g'; 64 << 10];

pub(crate) async fn answer<S: Stream, P: Platform>(
    connection: &mut Connection<S, P>,
    request: Request,
) -> Result<(), HttpError> {
    let (Method::Get | Method::Head) = request.method() else {
        return connection
            .respond(Response::new(Status::METHOD_NOT_ALLOWED).header("Allow", "GET, HEAD"), b"only GET and HEAD\n")
            .await;
    };
    let path = request.path().trim_start_matches('/');
    let (kind, count) = path.split_once('/').unwrap_or(("whole", path));
    match (kind, count.parse::<u64>()) {
        _ if path.is_empty() => connection.respond_text(Status::OK, "Hello over TLS\n").await,
        ("whole", Ok(bytes)) => send(connection, bytes, request.method() == Method::Head).await,
        ("stream", Ok(bytes)) => {
            connection.start_streamed(Response::new(Status::OK)).await?;
            write(connection, bytes).await?;
            connection.end_body_with(&[("X-End", "whole")]).await
        }
        ("cut", Ok(bytes)) => {
            connection.start_streamed(Response::new(Status::OK)).await?;
            write(connection, bytes / 2).await?;
            // As a service whose disk fails: the client must not take the part for the whole.
            Err(HttpError::NotEnded)
        }
        ("events", Ok(count)) => events(connection, count).await,
        _ => connection.respond_text(Status::NOT_FOUND, "the path is a number of bytes\n").await,
    }
}

/// Sends a body, which a HEAD does not get.
async fn send<S: Stream, P: Platform>(
    connection: &mut Connection<S, P>,
    bytes: u64,
    is_head: bool,
) -> Result<(), HttpError> {
    connection.start(Response::new(Status::OK), bytes).await?;
    if is_head {
        connection.omit_body();
        return Ok(());
    }
    write(connection, bytes).await
}

async fn write<S: Stream, P: Platform>(connection: &mut Connection<S, P>, bytes: u64) -> Result<(), HttpError> {
    let mut left = bytes;
    while left > 0 {
        let piece = &PIECE[..PIECE.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        connection.write_body(piece).await?;
        left -= piece.len() as u64;
    }
    Ok(())
}

async fn events<S: Stream, P: Platform>(connection: &mut Connection<S, P>, count: u64) -> Result<(), HttpError> {
    connection.start_events().await?;
    for number in 0..count {
        let id = format!("{number}");
        connection.send_event(&Event { id: &id, ..Event::new("first\nsecond") }).await?;
        connection.send_heartbeat().await?;
    }
    connection.end_body().await
}
