//! The service in a simulation, over a network that loses and reorders.

use core::time::Duration;
use glass_platform_sim::{NodeConfig, World, for_seeds};
use glasshouse::{Net, Platform, Stream};

#[test]
fn greets_whoever_asks() {
    for_seeds(0..10, |seed| {
        let mut world = World::new(seed);
        let server = world.node("server", NodeConfig::default());
        let client = world.node("client", NodeConfig::default());
        let service = server.run("service", my_service::serve(server.clone()));
        let (net, remote) = (client.net(), server.endpoint(8080));
        let answer = world.complete(&client, Duration::from_secs(60), async move {
            let mut stream = net.connect(remote).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
            let (mut answer, mut buf) = (Vec::new(), [0; 1000]);
            while let count @ 1.. = stream.read(&mut buf).await.unwrap() {
                answer.extend_from_slice(&buf[..count]);
            }
            String::from_utf8(answer).unwrap()
        });
        let answer = answer.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("Hello from my-service\n"), "{answer}");

        server.shut_down();
        let ended = world.complete(&client, Duration::from_secs(60), service).unwrap();
        assert!(ended.is_ok_and(|outcome| outcome.is_ok()));
    });
}
