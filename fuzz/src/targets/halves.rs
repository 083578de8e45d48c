//! Both halves of HTTP against each other: requests and responses of a script, over a connection that cuts or changes them.
//!
//! Without a fault each exchange succeeds with the bytes of the script. A response that its service or the connection has cut is never
//! taken for whole. Changed bytes may mean anything, but each request ends within its limit.

use std::rc::Rc;
use std::time::Duration;

use glass_api::{Address, Clock, Listener, Net, NetError, Platform, Stream};
use glass_lib_http::client::{Client, Error, Limits, Options, Request};
use glass_lib_http::{Connection, Fields, HttpError, Response, Status};
use glass_platform_sim::{Node, NodeConfig, World};

use super::Target;

const PORT: u16 = 80;
/// Exchanges of a script at most.
const EXCHANGES_MAX: usize = 8;
/// Pieces of a body at most.
const PIECES_MAX: usize = 5;
/// Bytes of a body are fewer.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Of a request.
const TOTAL: Duration = Duration::from_secs(30);
/// Of a run, in the simulation.
const LIMIT: Duration = Duration::from_secs(3600);
const TRAILER: (&str, &str) = ("X-End", "whole");

/// The bytes of a script, each of which is a choice. Behind its end all choices are the first one.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn below(&mut self, count: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % count
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn body(&mut self) -> Body {
        let has_length = self.below(2) == 0;
        let pieces = (0..self.below(PIECES_MAX + 1)).map(|_| self.below(256) * self.of(&[1, 3, 40, 300])).collect();
        Body { has_length, pieces, has_trailer: self.below(2) == 1 }
    }
}

struct Body {
    has_length: bool,
    /// Their lengths.
    pieces: Vec<usize>,
    has_trailer: bool,
}

impl Body {
    fn piece(&self, index: usize) -> Vec<u8> {
        (0..self.pieces[index]).map(|place| (place * 7 + index) as u8).collect()
    }

    fn bytes(&self) -> Vec<u8> {
        (0..self.pieces.len()).flat_map(|index| self.piece(index)).collect()
    }

    fn trailers(&self) -> &'static [(&'static str, &'static str)] {
        if self.has_trailer { &[TRAILER] } else { &[] }
    }

    fn check_trailers(&self, found: &Fields) {
        let expected = (self.has_trailer && !self.has_length).then_some(TRAILER.1.as_bytes());
        assert_eq!(found.get(TRAILER.0), expected);
    }
}

struct Exchange {
    method: &'static str,
    request: Body,
    /// Whether the service reads the request's body.
    reads: bool,
    interim: usize,
    status: u16,
    response: Body,
    /// The service fails before this piece of the response's body.
    fails_at: Option<usize>,
}

impl Exchange {
    fn of(script: &mut Script) -> Exchange {
        Exchange {
            method: script.of(&["GET", "PUT", "POST", "HEAD", "DELETE", "X-OTHER"]),
            request: script.body(),
            reads: script.below(8) != 7,
            interim: script.below(3),
            status: script.of(&[200, 201, 204, 304, 404, 500]),
            response: script.body(),
            fails_at: script.below(8).checked_sub(2),
        }
    }

    fn has_body(&self) -> bool {
        self.method != "HEAD" && ![204, 304].contains(&self.status)
    }

    /// Whether the service fails before the end of the response.
    fn fails(&self) -> bool {
        self.fails_at.is_some_and(|at| at <= self.response.pieces.len())
    }

    /// Whether that leaves a body unfinished for which the client waits.
    fn is_cut(&self) -> bool {
        let misses = |at: usize| self.response.pieces[at..].iter().any(|bytes| *bytes > 0);
        self.fails() && self.has_body() && (!self.response.has_length || self.fails_at.is_some_and(misses))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The server's connection breaks after so many bytes that it sends, with a reset or with an end.
    Cut {
        after: usize,
        is_reset: bool,
    },
    /// The client seems to end after so many bytes that the server receives.
    CutRequests {
        after: usize,
    },
    /// One byte of either direction is another one.
    Change {
        at: usize,
        to: u8,
        is_request: bool,
    },
}

impl Fault {
    fn of(script: &mut Script) -> Fault {
        let place = |script: &mut Script| script.below(256) * script.of(&[1, 1, 4, 100]);
        match script.below(8) {
            0..=2 => Fault::None,
            kind @ 3..=4 => Fault::Cut { after: place(script), is_reset: kind == 3 },
            5 => Fault::CutRequests { after: place(script) },
            kind => Fault::Change { at: place(script), to: script.below(256) as u8, is_request: kind == 6 },
        }
    }

    /// Changes bytes that start at `from` of their direction.
    fn change(self, bytes: &mut [u8], from: usize, of_request: bool) {
        if let Fault::Change { at, to, is_request } = self
            && is_request == of_request
            && let Some(byte) = at.checked_sub(from).and_then(|at| bytes.get_mut(at))
        {
            *byte = to;
        }
    }
}

/// The server's stream, with a fault.
struct Rough<S> {
    stream: S,
    fault: Fault,
    /// Bytes of one call at most.
    piece: usize,
    sent: usize,
    received: usize,
}

impl<S: Stream> Stream for Rough<S> {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, NetError> {
        let mut wanted = buf.len().min(self.piece);
        if let Fault::CutRequests { after } = self.fault {
            wanted = wanted.min(after.saturating_sub(self.received));
        }
        let count = self.stream.read(&mut buf[..wanted]).await?;
        self.fault.change(&mut buf[..count], self.received, true);
        self.received += count;
        Ok(count)
    }

    async fn write(&mut self, data: &[u8]) -> Result<usize, NetError> {
        let mut bytes = data[..data.len().min(self.piece)].to_vec();
        if let Fault::Cut { after, is_reset } = self.fault {
            bytes.truncate(after.saturating_sub(self.sent));
            if bytes.is_empty() {
                if !is_reset {
                    self.stream.close().await?;
                }
                return Err(NetError::Reset);
            }
        }
        self.fault.change(&mut bytes, self.sent, false);
        let count = self.stream.write(&bytes).await?;
        self.sent += count;
        Ok(count)
    }

    async fn close(&mut self) -> Result<(), NetError> {
        self.stream.close().await
    }

    fn peer(&self) -> Address {
        self.stream.peer()
    }
}

async fn answer<S: Stream>(
    connection: &mut Connection<S, Node>,
    request: glass_lib_http::Request,
    exchanges: &[Exchange],
    fault: Fault,
) -> Result<(), HttpError> {
    let index = request.path()[1..].parse::<usize>();
    let Some(exchange) = index.ok().and_then(|index| exchanges.get(index)) else {
        assert!(matches!(fault, Fault::Change { .. }), "another path");
        return connection.respond_text(Status::NOT_FOUND, "changed").await;
    };
    if exchange.reads {
        let mut body = vec![0; BODY_BYTES_MAX];
        let count = connection.fill_from_body(&mut body).await?;
        if !matches!(fault, Fault::Change { .. }) {
            assert_eq!(request.method_name(), exchange.method);
            assert!(body[..count] == exchange.request.bytes(), "another body");
            exchange.request.check_trailers(connection.trailers());
        }
    }
    for _ in 0..exchange.interim {
        connection.inform(Response::new(Status::EARLY_HINTS).header("Link", "</style>; rel=preload")).await?;
    }
    let (response, body) = (Response::new(Status(exchange.status)), &exchange.response);
    if body.has_length {
        connection.start(response, body.pieces.iter().sum::<usize>() as u64).await?;
    } else {
        connection.start_streamed(response).await?;
    }
    for index in 0..=body.pieces.len() {
        if exchange.fails_at == Some(index) {
            return Err(HttpError::OutOfMemory);
        }
        if index < body.pieces.len() {
            connection.write_body(&body.piece(index)).await?;
        }
    }
    connection.end_body_with(body.trailers()).await
}

/// The status, the body and the fields after it.
async fn request(client: &Client<Node>, url: &str, exchange: &Exchange) -> Result<(u16, Vec<u8>, Fields), Error> {
    let request = Request::new(exchange.method, url)?;
    let mut response = if exchange.request.has_length {
        client.send(request, &exchange.request.bytes()).await?
    } else {
        let mut upload = client.open(request, None).await?;
        for index in 0..exchange.request.pieces.len() {
            // The server may have answered already.
            if upload.write(&exchange.request.piece(index)).await.is_err() {
                break;
            }
        }
        upload.finish_with(exchange.request.trailers()).await?
    };
    let body = response.read_all(BODY_BYTES_MAX).await?;
    Ok((response.status().0, body, response.trailers().clone()))
}

/// `is_after_failure`: the connection that the client has kept may be reset.
fn check(exchange: &Exchange, is_after_failure: bool, fault: Fault, outcome: Result<(u16, Vec<u8>, Fields), Error>) {
    match (outcome, fault) {
        (_, Fault::Change { .. }) => {}
        // The server may refuse a request whose end is missing.
        (Ok((400, ..)), Fault::CutRequests { .. }) => {}
        (Ok((status, body, trailers)), _) => {
            assert!(!exchange.is_cut(), "a response that was cut is taken for whole");
            assert_eq!(status, exchange.status);
            assert!(body == if exchange.has_body() { exchange.response.bytes() } else { Vec::new() }, "another body");
            if exchange.has_body() {
                exchange.response.check_trailers(&trailers);
            }
        }
        // A reset may overtake a response that was whole.
        (Err(error), Fault::None) => assert!(exchange.fails() || !exchange.reads || is_after_failure, "{error}"),
        (Err(_), _) => {}
    }
}

/// Exchanges by a script.
pub struct Halves;

impl Target for Halves {
    fn name(&self) -> &'static str {
        "halves"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let exchange = |method: u8, of_request: &[u8], reads: u8, status: u8, of_response: &[u8], fails: u8| {
            [&[method], of_request, &[reads, 1, status], of_response, &[fails]].concat()
        };
        let none: &[u8] = &[0, 0, 0];
        let known: &[u8] = &[0, 2, 200, 3, 7, 0, 0];
        let chunked: &[u8] = &[1, 3, 5, 0, 0, 1, 250, 2, 1];
        let get = exchange(0, none, 0, 0, known, 0);
        let put = exchange(1, chunked, 0, 1, chunked, 0);
        let head = exchange(3, none, 0, 0, chunked, 0);
        let empty = exchange(4, none, 0, 2, none, 0);
        let all = [get.clone(), put.clone(), head, empty, get.clone()].concat();
        let failing = [get, exchange(0, none, 0, 0, chunked, 4), put].concat();
        // The number of exchanges, the pieces of the stream, the fault.
        let with = |start: &[u8], exchanges: &[u8]| [start, exchanges].concat();
        vec![
            with(&[4, 255, 0], &all),
            with(&[4, 0, 0], &all),
            with(&[2, 30, 0], &failing),
            with(&[4, 255, 3, 120, 2], &all),
            with(&[4, 255, 4, 200, 1], &all),
            with(&[4, 9, 5, 150, 2], &all),
            with(&[4, 9, 6, 20, 0, b'\n'], &all),
            with(&[4, 255, 7, 90, 0, b'0'], &all),
        ]
    }

    fn bytes_max(&self) -> usize {
        1000
    }

    fn cost(&self) -> u64 {
        4
    }

    fn run(&self, input: &[u8]) {
        let mut script = Script(input);
        let count = 1 + script.below(EXCHANGES_MAX);
        let piece = 1 + script.below(256).pow(2);
        let fault = Fault::of(&mut script);
        let exchanges: Rc<Vec<Exchange>> = Rc::new((0..count).map(|_| Exchange::of(&mut script)).collect());

        let mut world = World::new(1);
        let [server, client] = ["server", "client"].map(|name| world.node(name, NodeConfig::default()));
        let (here, script) = (server.clone(), exchanges.clone());
        server.run("listen", async move {
            let mut listener = here.net().listen(PORT).await.expect("the port is free");
            loop {
                let Ok(stream) = listener.accept().await else { continue };
                let stream = Rough { stream, fault, piece, sent: 0, received: 0 };
                let connection = Connection::new(stream, here.clone(), glass_lib_http::Limits::default());
                let script = script.clone();
                here.run("serve", async move {
                    let answer = async |connection: &mut Connection<_, _>, request| {
                        answer(connection, request, &script, fault).await
                    };
                    // Any end is allowed.
                    let _ = connection.serve(answer).await;
                });
            }
        });
        let (here, server) = (client.clone(), server.endpoint(PORT));
        let work = async move {
            let limits = Limits { total: TOTAL, ..Limits::default() };
            let client = Client::new(&here, Options { limits, ..Options::default() });
            for (index, exchange) in exchanges.iter().enumerate() {
                let start = here.now();
                let outcome = request(&client, &format!("http://{server}/{index}"), exchange).await;
                assert!(here.now().since(start) <= TOTAL + Duration::from_secs(1), "a request had no end");
                let is_after_failure = index.checked_sub(1).is_some_and(|earlier| exchanges[earlier].fails());
                check(exchange, is_after_failure, fault, outcome);
            }
        };
        world.complete(&client, LIMIT, work).expect("each request ends");
    }
}
