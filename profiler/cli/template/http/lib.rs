//! Answers every GET with a greeting.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::format;
use core::pin::pin;
use glasshouse::future::{Either, select};
use glasshouse::http::{Connection, HttpError, Limits, Method, Request, Response, Status};
use glasshouse::tracing::{Instrument, debug, info_span, warn};
use glasshouse::{Error, Listener, Net, Platform, Stream};

/// Serves until its end is requested.
pub async fn serve(platform: impl Platform) -> Result<(), Error> {
    let port = match platform.args() {
        [] => 8080,
        [option, port] if option == "--port" => port.parse().map_err(|_| format!("{port} is no port"))?,
        _ => return Err("the arguments are: [--port NUMBER]".into()),
    };
    let address = platform.net().up().await?.address;
    let mut listener = platform.net().listen(port).await?;
    platform.print(format_args!("my-service listens on {address} {}", listener.port()));
    let mut shutdown = pin!(platform.shutdown());
    loop {
        match select(listener.accept(), shutdown.as_mut()).await {
            Either::First(Ok(stream)) => {
                debug!(peer = %stream.peer(), "a client has connected");
                let connection = Connection::new(stream, platform.clone(), Limits::default());
                // At the limit of tasks the connection is dropped, which resets it.
                let _ = platform.spawn("connection", async move { connection.serve(greet).await });
            }
            Either::First(Err(error)) => warn!("a connection was not accepted: {error}"),
            Either::Second(()) => return Ok(()),
        }
    }
}

async fn greet<S: Stream, P: Platform>(connection: &mut Connection<S, P>, request: Request) -> Result<(), HttpError> {
    if let Method::Get | Method::Head = request.method() {
        let answer = connection.respond_text(Status::OK, "Hello from my-service\n");
        return answer.instrument(info_span!("greet")).await;
    }
    let refusal = Response::new(Status::METHOD_NOT_ALLOWED).header("Allow", "GET, HEAD");
    connection.respond(refusal, b"only GET and HEAD are answered\n").await
}
