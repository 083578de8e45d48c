//! Two simulated machines, one of which listens, and the certificates of the tests.

use core::time::Duration;
use glass_api::{Listener, Net, NetError, Platform, Stream};
use glass_lib_tls::{Client, ClientOptions, Identity, Roots, Server, ServerOptions, TlsStream};
use glass_platform_sim::{LinkConfig, Node, NodeConfig, World};

pub const PORT: u16 = 443;
/// No simulation takes longer.
pub const LIMIT: Duration = Duration::from_secs(300);
/// The name in the certificates.
pub const NAME: &str = "server.test";

pub type Connection = TlsStream<<<Node as Platform>::Net as Net>::Stream, Node>;

/// A file of the folder `data`.
pub fn data(file: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub fn identity(name: &str) -> Identity {
    Identity::from_pem(&data(&format!("{name}.pem")), &data(&format!("{name}.key"))).unwrap()
}

pub fn roots(name: &str) -> Roots {
    Roots::from_pem(&data(&format!("{name}.pem"))).unwrap()
}

pub struct Site {
    pub world: World,
    pub server: Node,
    pub client: Node,
}

impl Site {
    pub fn new(seed: u64, link: LinkConfig) -> Site {
        let mut world = World::new(seed);
        let config = || NodeConfig { link: link.clone(), ..NodeConfig::default() };
        let (server, client) = (world.node("server", config()), world.node("client", config()));
        Site { world, server, client }
    }

    /// A server on the server's machine.
    pub fn tls_server(&self, identity: Identity, options: ServerOptions) -> Server<Node> {
        Server::new(&self.server, identity, options).unwrap()
    }

    /// A client that trusts `root`.
    pub fn tls_client(&self, root: &str, options: ClientOptions) -> Client<Node> {
        Client::new(&self.client, roots(root), options).unwrap()
    }

    /// Serves each connection in a task of its own.
    pub fn serve<F: Future<Output = ()> + 'static>(
        &self,
        server: &Server<Node>,
        serve: impl Fn(Connection) -> F + 'static,
    ) {
        let (here, server) = (self.server.clone(), server.clone());
        self.server.run("listen", async move {
            let mut listener = server.listen(here.net().listen(PORT).await.unwrap());
            loop {
                let stream = listener.accept().await.unwrap();
                here.run("serve", serve(stream));
            }
        });
    }

    /// Has the client do something with a connection to the server.
    pub fn call<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        client: &Client<Node>,
        name: &'static str,
        call: impl FnOnce(Connection) -> F + 'static,
    ) -> T {
        let (net, remote, client) = (self.client.net(), self.server.endpoint(PORT), client.clone());
        let done = async move { call(client.connect(net.connect(remote).await.unwrap(), name).unwrap()).await };
        self.world.complete(&self.client, LIMIT, done).unwrap()
    }
}

/// Bytes that depend on their place.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|place| ((place / 7).wrapping_mul(0x9e37_79b9) ^ seed ^ place) as u8).collect()
}

pub async fn read_to_end(stream: &mut impl Stream, buf_bytes: usize) -> Result<Vec<u8>, NetError> {
    let (mut all, mut buf) = (Vec::new(), vec![0; buf_bytes]);
    loop {
        match stream.read(&mut buf).await? {
            0 => return Ok(all),
            count => all.extend_from_slice(&buf[..count]),
        }
    }
}

/// Returns what it receives, and ends when the peer does.
pub async fn echo(mut stream: Connection) {
    let mut buf = vec![0; 5000];
    loop {
        match stream.read(&mut buf).await {
            Ok(0) => {
                let _ = stream.close().await;
                return;
            }
            Ok(count) if stream.write_all(&buf[..count]).await.is_ok() => {}
            _ => return,
        }
    }
}
