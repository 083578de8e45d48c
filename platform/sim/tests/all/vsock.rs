//! Vsock between simulated machines.

use crate::common::{echo, pattern, read_to_end};
use core::time::Duration;
use glass_api::{
    JoinHandle, Listener, MessageListener, Messages, Net, NetError, Platform, Port, Split, Stream, VsockAddress,
    WriteHalf,
};
use glass_platform_sim::{Node, NodeConfig, World, for_seeds};

const LIMIT: Duration = Duration::from_secs(60);
const PORT: u32 = 80;

fn all_complete_and_nothing_is_left(world: &mut World, server: &Node, client: &Node, tasks: Vec<JoinHandle<()>>) {
    let all = async move {
        for task in tasks {
            task.await.unwrap();
        }
    };
    world.complete(client, LIMIT, all).unwrap();
    world.run_for(Duration::from_secs(20)).unwrap();
    assert_eq!((world.vsock_connection_count(server), world.vsock_connection_count(client)), (0, 0));
}

#[test]
fn every_byte_is_echoed_over_many_connections_at_once() {
    for_seeds(0..20, |seed| {
        let mut world = World::new(seed);
        let [server, client] = ["server", "client"].map(|name| world.node(name, NodeConfig::default()));
        let (here, remote) = (server.clone(), server.vsock(PORT));
        server.run("listen", async move {
            let mut listener = here.net().listen(Port::Vsock(PORT)).await.unwrap();
            loop {
                let stream = listener.accept().await.unwrap();
                here.run("echo", echo(stream));
            }
        });
        let node = client.clone();
        let tasks: Vec<_> = (0..30u64)
            .map(|tag| {
                let net = node.net();
                let sender = node.clone();
                node.run("transfer", async move {
                    // More than a window.
                    let sent = pattern(tag, 0..400_000);
                    let (mut reader, mut writer) = net.connect_to(remote.into()).await.unwrap().split();
                    let data = sent.clone();
                    sender.run("sender", async move {
                        writer.write_all(&data).await.unwrap();
                        writer.close().await.unwrap();
                    });
                    let mut received = Vec::new();
                    let mut part = [0; 3000];
                    while let count @ 1.. = glass_api::ReadHalf::read(&mut reader, &mut part).await.unwrap() {
                        received.extend_from_slice(&part[..count]);
                    }
                    assert!(received == sent, "connection {tag}");
                })
            })
            .collect();
        all_complete_and_nothing_is_left(&mut world, &server, &client, tasks);
    });
}

#[test]
fn machines_and_ports_that_are_not_there_are_errors() {
    let mut world = World::new(1);
    let [server, client] = ["server", "client"].map(|name| world.node(name, NodeConfig::default()));
    let (net, remote) = (client.net(), server.vsock(PORT));
    let failed = world.complete(&client, LIMIT, async move {
        let nowhere = VsockAddress { cid: 77, port: PORT };
        (net.connect_to(remote.into()).await.err(), net.connect_to(nowhere.into()).await.err())
    });
    assert_eq!(failed.unwrap(), (Some(NetError::Reset), Some(NetError::TimedOut)));
}

#[test]
fn a_stream_that_is_dropped_resets_and_what_was_sent_before_an_end_is_read() {
    let mut world = World::new(2);
    let [server, client] = ["server", "client"].map(|name| world.node(name, NodeConfig::default()));
    let (net, other, remote) = (server.net(), client.net(), server.vsock(PORT));
    server.run("server", async move {
        let mut listener = net.listen(Port::Vsock(PORT)).await.unwrap();
        let mut closed = listener.accept().await.unwrap();
        closed.write_all(b"whole").await.unwrap();
        closed.close().await.unwrap();
        drop(closed);
        let dropped = listener.accept().await.unwrap();
        drop(dropped);
    });
    let read = world.complete(&client, LIMIT, async move {
        let mut whole = other.connect_to(remote.into()).await.unwrap();
        let first = read_to_end(&mut whole, 100).await;
        // The reset may come before the task has seen that the connection is open.
        let cut = match other.connect_to(remote.into()).await {
            Ok(mut stream) => read_to_end(&mut stream, 100).await,
            Err(error) => Err(error),
        };
        (first, cut)
    });
    assert_eq!(read.unwrap(), (Ok(b"whole".to_vec()), Err(NetError::Reset)));
}

#[test]
fn messages_are_echoed_whole_over_many_connections_at_once() {
    for_seeds(0..10, |seed| {
        let mut world = World::new(seed);
        let [server, client] = ["server", "client"].map(|name| world.node(name, NodeConfig::default()));
        let (here, remote) = (server.clone(), server.vsock(PORT));
        server.run("listen", async move {
            let mut listener = here.net().listen_messages(PORT).await.unwrap();
            loop {
                let mut messages = listener.accept().await.unwrap();
                here.run("echo", async move {
                    while let Some(message) = messages.receive().await.unwrap() {
                        messages.send(&message).await.unwrap();
                    }
                    messages.close().await.unwrap();
                });
            }
        });
        let node = client.clone();
        let tasks: Vec<_> = (0..20u64)
            .map(|tag| {
                let net = node.net();
                node.run("transfer", async move {
                    let mut messages = net.connect_messages(remote).await.unwrap();
                    let sent: Vec<_> = (0..20).map(|at| pattern(tag, 0..at * at * tag as usize % 9000)).collect();
                    for message in &sent {
                        messages.send(message).await.unwrap();
                    }
                    messages.close().await.unwrap();
                    for message in &sent {
                        assert!(messages.receive().await.unwrap().unwrap()[..] == message[..], "connection {tag}");
                    }
                    assert!(messages.receive().await.unwrap().is_none());
                })
            })
            .collect();
        all_complete_and_nothing_is_left(&mut world, &server, &client, tasks);
    });
}
