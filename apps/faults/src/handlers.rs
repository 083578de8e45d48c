//! A server whose handlers panic: before their response and within it.

use core::pin::pin;
use glasshouse::future::select;
use glasshouse::http::{Connection, Connections, HttpError, Limits, Request, Response, Status};
use glasshouse::trace::Name;
use glasshouse::{Error, Listener, Net, Platform, Stream};

static CONNECTIONS: Name = Name::new("connections of faults");

/// Serves on the port that the second argument gives, until its end is requested.
pub async fn serve(platform: &impl Platform) -> Result<(), Error> {
    let port: u16 = platform.args().get(1).and_then(|port| port.parse().ok()).ok_or("give a port after `handlers`")?;
    platform.net().up().await?;
    let listener = platform.net().listen(port).await?;
    platform.print(format_args!("faults listens on {}", listener.port()));
    let connections = Connections::new(20, &CONNECTIONS);
    let accept = pin!(connections.accept(platform, "faults", listener, Limits::default(), |_| answer));
    select(accept, platform.shutdown()).await;
    Ok(())
}

async fn answer<S: Stream, P: Platform>(connection: &mut Connection<S, P>, request: Request) -> Result<(), HttpError> {
    match request.path() {
        "/panic" => panic!("on purpose, for {}", request.path()),
        "/half" => {
            connection.start_streamed(Response::new(Status::OK)).await?;
            connection.write_body(b"half").await?;
            panic!("on purpose, for {}", request.path())
        }
        _ => connection.respond_text(Status::OK, "fine\n").await,
    }
}
