//! Services as their authors wrote them for earlier versions: they have to compile as they are. What is here is never changed, only added
//! to; a change of the API that refuses it has to be another one.
#![forbid(unsafe_code)]

/// Of November 21, 2026: before there was vsock.
mod streams {
    use core::net::SocketAddr;
    use glasshouse::http::{Connection, HttpError, Limits, Method, Request, Response, Status};
    use glasshouse::{Datagrams, Error, Listener, Net, Platform, Stream};

    const GREETING: &str = "Hello\n";

    pub async fn serve(platform: impl Platform) -> Result<(), Error> {
        let port = match platform.args() {
            [] => 8080,
            [option, port] if option == "--port" => port.parse().map_err(|_| format!("{port} is not a port"))?,
            _ => return Err("the arguments are: [--port NUMBER]".into()),
        };
        let address = platform.net().up().await?.address;
        let mut listener = platform.net().listen(port).await?;
        platform.print(format_args!("hello listens on {address} port {}", listener.port()));
        loop {
            let Ok(stream) = listener.accept().await else { continue };
            let connection = Connection::new(stream, platform.clone(), Limits::default());
            // A client beyond the limit is reset by the drop of its connection.
            let _ = platform.spawn("connection", async move { _ = connection.serve(greet).await });
        }
    }

    async fn greet<S: Stream, P: Platform>(
        connection: &mut Connection<S, P>,
        request: Request,
    ) -> Result<(), HttpError> {
        if let Method::Get | Method::Head = request.method() {
            return connection.respond_text(Status::OK, GREETING).await;
        }
        let refusal = Response::new(Status::METHOD_NOT_ALLOWED).header("Allow", "GET, HEAD");
        connection.respond(refusal, b"only GET and HEAD are answered\n").await
    }

    /// Reads what a server sends, whose address is an argument.
    pub async fn fetch<P: Platform>(platform: P) -> Result<Vec<u8>, Error> {
        let [text] = platform.args() else { return Err("the argument is ADDRESS:PORT".into()) };
        let mut stream = platform.net().connect(text.parse().map_err(|_| "no address")?).await?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        let (mut received, mut buf) = (Vec::new(), [0; 1000]);
        while let count @ 1.. = stream.read(&mut buf).await? {
            received.extend_from_slice(&buf[..count]);
        }
        stream.close().await?;
        Ok(received)
    }

    pub async fn echo(platform: impl Platform) -> Result<(), Error> {
        let mut listener = platform.net().listen(7).await?;
        let mut stream = listener.accept().await?;
        let port = platform.net().bind(7).await?;
        let mut buf = [0; 100];
        let count = stream.read(&mut buf).await?;
        let (bytes, sender) = port.recv_from(&mut buf).await?;
        let sender: SocketAddr = sender;
        port.send_to(&buf[..bytes.min(count)], sender).await?;
        Ok(())
    }
}

/// Of November 25, 2026: with vsock.
mod vsock {
    use glasshouse::{Address, Error, Listener, Net, Platform, Port, Stream, VsockAddress};

    pub async fn serve(platform: impl Platform) -> Result<(), Error> {
        let port = match platform.args() {
            [] => Port::Tcp(8080),
            [option, port] if option == "--port" => port.parse().map_err(|_| format!("{port} is no port"))?,
            _ => return Err("the arguments are: [--port PORT]".into()),
        };
        let mut listener = platform.net().listen(port).await?;
        platform.print(format_args!("listens on {}", listener.port()));
        let _other = platform.net().listen(Port::Vsock(80)).await?;
        let stream = listener.accept().await?;
        match stream.peer() {
            Address::Ip(peer) => platform.print(format_args!("{}", peer.ip())),
            Address::Vsock(VsockAddress { cid, .. }) => platform.print(format_args!("{cid}")),
        }
        Ok(())
    }
}

/// Of November 28, 2026: with a store, a client of HTTP, and panics that are contained.
mod durable {
    use core::time::Duration;
    use glasshouse::future::{Either, select};
    use glasshouse::http::client::{Client, Limits, Options, Request};
    use glasshouse::http::{self, Connection, Connections, HttpError, Status};
    use glasshouse::store::{self, Batch, Map, Store};
    use glasshouse::trace::{Counter, Name};
    use glasshouse::tracing::{Instrument, info_span, warn};
    use glasshouse::{Block, Error, Net, Panicked, Platform, Stream};

    static CONNECTIONS: Name = Name::new("connections");
    static CALLS: Counter = Counter::new("calls");

    pub async fn serve(platform: impl Platform) -> Result<(), Error> {
        let disk = platform.block(0).ok_or("there is no disk")?;
        let (store, recovery) = Store::open(disk, &platform, store::Options::default()).await?;
        platform.print(format_args!("{recovery}"));
        let (visits, log) = (store.map("visits")?, store.log("starts")?);
        log.append("a start").await?;
        let mut batch = Batch::new();
        batch.put(&visits, "first", "0");
        store.commit(batch).await?;
        let network = platform.net().up().await?;
        let listener = platform.net().listen(8080).await?;
        let connections = Connections::new(Connections::bound(100, &network), &CONNECTIONS);
        let accept = connections.accept(&platform, "durable", listener, http::Limits::default(), |_connected| {
            let visits = visits.clone();
            async move |connection: &mut _, request| answer(connection, request, &visits).await
        });
        if let Either::Second(()) = select(accept, platform.shutdown()).await {
            platform.timeout(Duration::from_secs(5), connections.finish()).await?;
        }
        Ok(())
    }

    async fn answer<S: Stream, P: Platform, B: Block>(
        connection: &mut Connection<S, P>,
        request: http::Request,
        visits: &Map<B>,
    ) -> Result<(), HttpError> {
        let counted = visits.update(request.path(), |before| Ok(Some(before.unwrap_or_default().to_vec())));
        match counted.instrument(info_span!("count")).await {
            Ok(_) => connection.respond_text(Status::OK, "counted\n").await,
            Err(error) => {
                warn!("not counted: {error}");
                connection.respond_text(Status::INTERNAL_SERVER_ERROR, "not counted\n").await
            }
        }
    }

    /// Calls a hook in a task whose panic does not end the service.
    pub async fn call(platform: impl Platform) -> Result<(), Error> {
        let limits = Limits { total: Duration::from_secs(9), ..Limits::default() };
        let client = Client::new(&platform, Options { limits, ..Options::default() });
        let hook = async move {
            let request = Request::post("http://10.0.0.1/hook")?.header("Content-Type", "application/json");
            let mut response = client.send(request, b"{}").await?;
            CALLS.add(1);
            response.read_all(1000).await
        };
        let ended = platform.spawn("hook", platform.contain(hook))?.await?;
        ended.map_err(|Panicked { message, place }| format!("{place}: {message}"))??;
        Ok(())
    }
}

/// They are compiled for the platform of this test, and not run.
#[test]
fn services_of_earlier_versions_compile() {
    use glasshouse::Error;
    fn compiled<T>(_: impl AsyncFn(Linux) -> Result<T, Error>) {}
    type Linux = glasshouse::platform_linux::LinuxPlatform;
    compiled(streams::serve);
    compiled(streams::fetch);
    compiled(streams::echo);
    compiled(vsock::serve);
    compiled(durable::serve);
    compiled(durable::call);
}
