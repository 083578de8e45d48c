//! From a listener to connections that are served.

use crate::{Connected, Connection, Connections, HttpError, Limits, Request};
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use core::pin::pin;
use core::time::Duration;
use embassy_futures::select::select;
use glass_api::{Listener, Platform, Stream};

/// Pause after a connection could not be accepted, so that a lasting failure costs next to nothing.
const PAUSE: Duration = Duration::from_millis(50);

impl Connections {
    /// Accepts connections and serves each in a task of its own, without end. `handler` makes what answers the requests of one
    /// connection; [`Connection::serve`] has its rules, also for panics. A connection that makes room for another one is reset. Connections that cannot be
    /// accepted or served are reported on the console as those of `service`, once for a reason that repeats.
    pub async fn accept<P: Platform, L: Listener, H>(
        &self,
        platform: &P,
        service: &str,
        mut listener: L,
        limits: Limits,
        handler: impl Fn(Rc<Connected>) -> H,
    ) where
        H: AsyncFnMut(&mut Connection<L::Stream, P>, Request) -> Result<(), HttpError> + 'static,
    {
        let mut last_error = String::new();
        loop {
            let error = match listener.accept().await {
                Ok(stream) => {
                    let connected = Rc::new(self.add(stream.peer().machine()).await);
                    let mut connection = Connection::new(stream, platform.clone(), limits);
                    if self.ends_by_panic() {
                        connection = connection.ended_by_panics();
                    }
                    let task = serve(connection, connected.clone(), handler(connected));
                    platform.spawn("connection", task).map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = error {
                if last_error != error {
                    platform.print(format_args!("{service}: a connection was not accepted: {error}"));
                }
                last_error = error;
                platform.sleep(PAUSE).await;
            }
        }
    }
}

async fn serve<S: Stream, P: Platform>(
    connection: Connection<S, P>,
    connected: Rc<Connected>,
    mut handler: impl AsyncFnMut(&mut Connection<S, P>, Request) -> Result<(), HttpError>,
) {
    let handle = async |connection: &mut Connection<S, P>, request: Request| {
        let _begun = connected.begin();
        let answered = handler(connection, request).await;
        if connected.end() {
            connection.close_after_response();
        }
        answered
    };
    // Errors of a client are reported to the client. Pinned here, so that the stack has no second copy of it while it runs.
    let serve = pin!(connection.serve(handle));
    let _ = select(serve, connected.ended()).await;
}
