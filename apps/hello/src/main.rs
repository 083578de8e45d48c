//! The smallest service: answers every GET with a greeting.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::format;
use glasshouse::http::{Connection, HttpError, Limits, Method, Request, Response, Status};
use glasshouse::{Error, Listener, Net, Platform, Port, Stream};

const GREETING: &str = concat!("Hello from ", env!("CARGO_PKG_NAME"), "\n");

glasshouse::main!(serve);

async fn serve(platform: impl Platform) -> Result<(), Error> {
    let port = match platform.args() {
        [] => Port::Tcp(8080),
        [option, port] if option == "--port" => port.parse().map_err(|error| format!("{port}: {error}"))?,
        _ => return Err("the arguments are: [--port NUMBER] or --port vsock:NUMBER".into()),
    };
    let mut listener = platform.net().listen(port).await?;
    match port {
        Port::Tcp(_) => {
            let address = platform.net().up().await?.address;
            platform.print(format_args!("hello listens on {address} {}", listener.port()));
        }
        Port::Vsock(_) => platform.print(format_args!("hello listens on {}", listener.port())),
    }
    loop {
        let Ok(stream) = listener.accept().await else { continue };
        let connection = Connection::new(stream, platform.clone(), Limits::default());
        // A client beyond the limit is reset by the drop of its connection.
        let _ = platform.spawn("connection", async move { _ = connection.serve(greet).await });
    }
}

async fn greet<S: Stream, P: Platform>(connection: &mut Connection<S, P>, request: Request) -> Result<(), HttpError> {
    if let Method::Get | Method::Head = request.method() {
        return connection.respond_text(Status::OK, GREETING).await;
    }
    let refusal = Response::new(Status::METHOD_NOT_ALLOWED).header("Allow", "GET, HEAD");
    connection.respond(refusal, b"only GET and HEAD are answered\n").await
}
