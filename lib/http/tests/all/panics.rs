//! Handlers that panic, in a simulation: their clients get 500 or a reset, and those of others a response.

use crate::client::{LIMIT, Site, Tcp};
use glass_api::Clock;
use glass_lib_http::client::{self, Error, Limits};
use glass_lib_http::{Connection, Connections, HttpError, Request, Response, Status};
use glass_lib_trace::Name;
use glass_platform_sim::{LinkConfig, Node, for_seeds};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

static CONNECTIONS: Name = Name::new("connections of a test");

async fn answer(connection: &mut Connection<Tcp, Node>, request: Request) -> Result<(), HttpError> {
    match request.path() {
        "/early" => panic!("on purpose"),
        // Some of its body was read.
        "/body" => {
            assert_eq!(connection.read_body(&mut [0; 3]).await, Ok(3));
            panic!("on purpose")
        }
        "/interim" => {
            connection.inform(Response::new(Status(103))).await?;
            panic!("on purpose")
        }
        "/head" => {
            connection.start(Response::new(Status::OK), 5).await?;
            panic!("on purpose")
        }
        "/half" => {
            connection.start_streamed(Response::new(Status::OK)).await?;
            connection.write_body(b"half").await?;
            panic!("on purpose")
        }
        "/late" => {
            connection.respond_text(Status::OK, "whole").await?;
            panic!("on purpose")
        }
        _ => connection.respond_text(Status::OK, "fine").await,
    }
}

/// A site whose server accepts by [`Connections`].
fn site(seed: u64, ended_by_panics: bool) -> Site {
    let site = Site::new(seed, LinkConfig::default());
    let here = site.server.clone();
    site.server.run("listen", async move {
        let mut connections = Connections::new(8, &CONNECTIONS);
        if ended_by_panics {
            connections = connections.ended_by_panics();
        }
        let listener = glass_api::Net::listen(&glass_api::Platform::net(&here), 80).await.unwrap();
        connections.accept(&here, "test", listener, glass_lib_http::Limits::default(), |_| answer).await;
    });
    site
}

#[test]
fn a_handler_that_panics_gives_500_or_a_reset_and_others_go_on() {
    for_seeds(0..10, |seed| {
        let mut site = site(seed, false);
        // Begun before the panics, and continued after each.
        let (client, other) = (site.client(Limits::default()), site.client(Limits::default()));
        let url = |path: &str| site.url(path);
        let cases: Vec<(String, Option<(u16, &str)>)> = [
            ("/early", Some((500, "the service failed at this request\n"))),
            ("/body", Some((500, "the service failed at this request\n"))),
            ("/interim", Some((500, "the service failed at this request\n"))),
            ("/head", None),
            ("/half", None),
            ("/late", Some((200, "whole"))),
        ]
        .map(|(path, expected)| (url(path), expected))
        .into();
        let (fine, count) = (url("/"), cases.len());
        let clock = site.client.clone();
        site.complete(async move {
            let get =
                async |client: &glass_lib_http::client::Client<Node>, url: &str| -> Result<(u16, Vec<u8>), Error> {
                    let mut response = client.send(client::Request::post(url)?, &[b'x'; 1000]).await?;
                    Ok((response.status().0, response.read_all(1000).await?))
                };
            for (url, expected) in cases {
                assert_eq!(get(&other, &fine).await, Ok((200, b"fine".to_vec())));
                let outcome = get(&client, &url).await;
                match expected {
                    Some((status, text)) => assert_eq!(outcome, Ok((status, text.as_bytes().to_vec())), "{url}"),
                    None => assert!(outcome.is_err(), "{url}: {outcome:?}"),
                }
            }
            assert_eq!(get(&other, &fine).await, Ok((200, b"fine".to_vec())));
            // Until the ends of the connections above have lingered.
            clock.sleep(Duration::from_secs(10)).await;
        });
        let panics = site.server.take_panics();
        assert_eq!(panics.len(), count);
        assert!(
            panics.iter().all(|panicked| panicked.message == "on purpose" && panicked.place.contains("panics.rs:"))
        );
        let warnings = site.server.console();
        assert_eq!(warnings.len(), count, "{warnings:?}");
        assert!(warnings[0].contains("WARN panic: the task connection has panicked at "), "{}", warnings[0]);
        // The one that is kept by the client remains.
        assert_eq!(site.world.connection_count(&site.server), 1);
    });
}

#[test]
fn a_connection_that_panics_end_ends_the_service() {
    let mut site = site(1, true);
    let (client, url, node) = (site.client(Limits::default()), site.url("/early"), site.client.clone());
    let ended = Rc::new(Cell::new(false));
    let flag = ended.clone();
    let world = AssertUnwindSafe(|| {
        site.world.complete(&node, LIMIT, async move {
            let _ = client.get(&url).await;
            flag.set(true);
        })
    });
    assert!(catch_unwind(world).is_err() && !ended.get(), "the panic leaves the loop of the platform");
}
