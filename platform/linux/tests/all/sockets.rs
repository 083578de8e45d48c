//! Sockets over loopback, with clients on threads that use the standard library.

use glass_api::{
    Address, Clock, Listener, Net, NetError, Platform, Port, Random, ReadHalf, Spawn, Split, Stream, WallSource,
    WriteHalf,
};
use glass_lib_http::{Connection, HttpError, Limits, Request, Response, Status};
use glass_platform_linux::{HostStream, LinuxPlatform, Options};
use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Tests here count the descriptors of the process, so they take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn platform() -> LinuxPlatform {
    LinuxPlatform::new(&Options::parse(["--bind".into(), "127.0.0.1".into()]).unwrap()).unwrap()
}

fn tcp_port(listener: &impl Listener) -> u16 {
    let Port::Tcp(port) = listener.port() else { panic!("{}", listener.port()) };
    port
}

/// Runs `task` with a listener, fails when it takes more than 30 seconds.
fn run<F: Future<Output = ()> + 'static>(
    task: impl FnOnce(LinuxPlatform, <<LinuxPlatform as Platform>::Net as Net>::Listener) -> F + 'static,
) {
    let platform = platform();
    let handle = platform.clone();
    let body = async move {
        let listener = handle.net().listen(0_u16).await.unwrap();
        let (done, seen) = (Rc::new(Cell::new(false)), handle.clone());
        let (flag, task) = (done.clone(), task(handle.clone(), listener));
        handle
            .spawn("body", async move {
                task.await;
                flag.set(true);
            })
            .unwrap();
        for _ in 0..6000 {
            if done.get() {
                return;
            }
            seen.sleep(Duration::from_millis(5)).await;
        }
        panic!("the test hangs");
    };
    platform.run(body).unwrap();
}

fn client<T: Send + 'static>(port: u16, body: impl FnOnce(TcpStream) -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::spawn(move || {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        body(stream)
    })
}

async fn join<T>(platform: &LinuxPlatform, thread: thread::JoinHandle<T>) -> T {
    while !thread.is_finished() {
        platform.sleep(Duration::from_millis(2)).await;
    }
    thread.join().unwrap()
}

#[test]
fn bytes_go_both_ways_and_ends_arrive() {
    let _turn = turn();
    run(async |platform, mut listener| {
        let sent: Vec<u8> = (0..5_000_000u32).map(|number| (number / 251) as u8).collect();
        let expected = sent.clone();
        let thread = client(tcp_port(&listener), move |mut stream| {
            let mut writer = stream.try_clone().unwrap();
            let sender = thread::spawn(move || {
                writer.write_all(&sent).unwrap();
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            sender.join().unwrap();
            got
        });
        let mut stream = listener.accept().await.unwrap();
        let Address::Ip(peer) = stream.peer() else { panic!("{}", stream.peer()) };
        assert!(peer.ip().is_loopback() && peer.port() != 0);
        let mut part = vec![0; 65536];
        loop {
            match stream.read(&mut part).await.unwrap() {
                0 => break,
                count => stream.write_all(&part[..count]).await.unwrap(),
            }
        }
        stream.close().await.unwrap();
        assert!(join(&platform, thread).await == expected);
    });
}

#[test]
fn what_is_skipped_is_missing_and_nothing_else() {
    let _turn = turn();
    run(async |platform, mut listener| {
        const TOTAL: usize = 1_000_000;
        let thread = client(tcp_port(&listener), |mut stream| {
            let bytes: Vec<u8> = (0..TOTAL).map(|place| (place / 251) as u8).collect();
            stream.write_all(&bytes).unwrap();
        });
        let mut stream = listener.accept().await.unwrap();
        assert_eq!(stream.skip(0).await, Ok(0));
        let (mut place, mut buffer) = (0, [0; 777]);
        loop {
            // More than one call drops at the most, and less.
            let max_bytes = if place < TOTAL / 2 { 1000 } else { usize::MAX };
            let skipped = stream.skip(max_bytes).await.unwrap();
            assert!(skipped <= max_bytes);
            place += skipped;
            if skipped == 0 {
                break;
            }
            let count = stream.read(&mut buffer).await.unwrap();
            assert!((0..count).all(|index| buffer[index] == ((place + index) / 251) as u8), "at {place}");
            place += count;
        }
        assert_eq!(place, TOTAL);
        join(&platform, thread).await;
    });
}

#[test]
fn what_is_made_is_received_in_its_place() {
    let _turn = turn();
    run(async |platform, mut listener| {
        const TOTAL: usize = 1_000_000;
        let byte = |place: usize| (place / 251) as u8;
        let thread = client(tcp_port(&listener), |mut stream| {
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let mut stream = listener.accept().await.unwrap();
        assert_eq!(stream.write_with(0, |piece| assert!(piece.is_empty())).await, Ok(0));
        let mut place = 0;
        while place < TOTAL {
            let fill =
                |piece: &mut [u8]| piece.iter_mut().enumerate().for_each(|(index, made)| *made = byte(place + index));
            place += stream.write_with(TOTAL - place, fill).await.unwrap();
        }
        stream.close().await.unwrap();
        assert!(join(&platform, thread).await == (0..TOTAL).map(byte).collect::<Vec<_>>());
    });
}

#[test]
fn a_dropped_stream_is_reset_and_a_closed_one_is_not() {
    let _turn = turn();
    run(async |platform, mut listener| {
        for close in [true, false] {
            let thread = client(tcp_port(&listener), |mut stream| stream.read(&mut [0]).map_err(|error| error.kind()));
            let mut stream = listener.accept().await.unwrap();
            if close {
                stream.close().await.unwrap();
            }
            drop(stream);
            let expected = if close { Ok(0) } else { Err(ErrorKind::ConnectionReset) };
            assert_eq!(join(&platform, thread).await, expected);
        }
    });
}

#[test]
fn connects_and_says_why_not() {
    let _turn = turn();
    run(async |platform, mut listener| {
        let address = SocketAddr::from(([127, 0, 0, 1], tcp_port(&listener)));
        let mut ours = platform.net().connect(address).await.unwrap();
        let mut theirs = listener.accept().await.unwrap();
        ours.write_all(b"ping").await.unwrap();
        let mut four = [0; 4];
        assert_eq!(theirs.read(&mut four).await, Ok(4));
        drop(ours);
        assert_eq!(theirs.read(&mut four).await, Err(NetError::Reset));
        let again = platform.net().listen(listener.port()).await.err();
        assert_eq!(again, Some(NetError::PortInUse(listener.port())));
        drop(listener);
        assert_eq!(platform.net().connect(address).await.err(), Some(NetError::Reset));
        assert_eq!(platform.net().up().await.unwrap().address, address.ip());
    });
}

#[test]
fn sleeps_cost_no_time_and_end_when_they_should() {
    let _turn = turn();
    run(async |platform, _| {
        let (wall, cpu) = (Instant::now(), cpu_ticks());
        for ms in [1, 10, 200] {
            let began = platform.now();
            platform.sleep(Duration::from_millis(ms)).await;
            assert!(platform.now() - began >= Duration::from_millis(ms));
        }
        assert!(wall.elapsed() < Duration::from_secs(5));
        assert!(cpu_ticks() - cpu <= 5, "{} ticks of 10 ms", cpu_ticks() - cpu);
        let (mut one, mut two) = ([0; 32], [0; 32]);
        platform.fill_random(&mut one);
        platform.fill_random(&mut two);
        assert_ne!(one, two);
    });
}

/// User and system time of the process.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Sockets of this process. Only the tests of this file have any, one test at a time.
fn sockets() -> usize {
    let targets = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| std::fs::read_link(entry.unwrap().path()));
    targets.filter(|target| target.as_ref().is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))).count()
}

/// Answers with 8 MiB, more than the kernel's buffers take from a service whose client does not read.
async fn large(connection: &mut Connection<HostStream, LinuxPlatform>, _: Request) -> Result<(), HttpError> {
    let mut body = [0; 4096];
    while connection.read_body(&mut body).await? > 0 {}
    connection.start(Response::new(Status::OK), 8 << 20).await?;
    for _ in 0..8 {
        connection.write_body(&vec![b'x'; 1 << 20]).await?;
    }
    Ok(())
}

#[test]
fn clients_that_vanish_or_stand_still_leave_nothing_behind() {
    let _turn = turn();
    run(async |platform, mut listener| {
        let limits = Limits {
            head_timeout: Duration::from_millis(200),
            idle_timeout: Duration::from_millis(200),
            progress_window: Duration::from_millis(300),
            linger_timeout: Duration::from_millis(100),
            ..Limits::default()
        };
        let port = tcp_port(&listener);
        let served = Rc::new(Cell::new(0));
        let (spawner, count) = (platform.clone(), served.clone());
        let accept = async move {
            while let Ok(stream) = listener.accept().await {
                let connection = Connection::new(stream, spawner.clone(), limits);
                let count = count.clone();
                let task = async move {
                    let _ = connection.serve(large).await;
                    count.set(count.get() + 1);
                };
                spawner.spawn("connection", task).unwrap();
            }
        };
        platform.spawn("accept", accept).unwrap();
        platform.sleep(Duration::from_millis(1)).await;
        let before = sockets();
        // Client threads wait (as a stopped process would) until all was counted.
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let mut still = Vec::new();
            for round in 0..300 {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                let request: &[u8] = match round % 6 {
                    0 => b"",
                    1 => b"GET / HT",
                    2 => b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nabc",
                    3 => b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                    4 => b"\0\0\0\0",
                    _ => b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
                };
                stream.write_all(request).unwrap();
                // The others vanish here, those with unread data with a reset.
                if round % 4 == 0 {
                    still.push(stream);
                } else if round % 4 == 1 {
                    let _ = stream.read(&mut [0; 100]);
                }
            }
            let _ = held.recv();
            still.len()
        });
        for _ in 0..4000 {
            if served.get() == 300 {
                break;
            }
            platform.sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(served.get(), 300);
        // Only the 75 clients that wait have theirs.
        assert_eq!(sockets(), before + 75);
        drop(hold);
        assert_eq!(join(&platform, thread).await, 75);
    });
}

#[test]
fn two_tasks_use_the_halves_of_a_stream() {
    let _turn = turn();
    const BYTES: usize = 8 << 20;
    run(|platform, mut listener| async move {
        let echo = client(tcp_port(&listener), |mut stream| {
            let mut back = stream.try_clone().unwrap();
            std::io::copy(&mut stream, &mut back).unwrap();
            back.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let (mut reader, mut writer) = listener.accept().await.unwrap().split();
        assert_eq!(reader.peer(), writer.peer());
        // More than all buffers on the way hold.
        let sender = platform.spawn("sender", async move {
            for _ in 0..BYTES / 65_536 {
                writer.write_all(&[7; 65_536]).await?;
            }
            writer.close().await
        });
        let (mut received, mut buf) = (0, vec![0; 100_000]);
        while let count @ 1.. = reader.read(&mut buf).await.unwrap() {
            received += count;
        }
        assert_eq!((received, sender.unwrap().await), (BYTES, Ok(Ok(()))));
        echo.join().unwrap();
    });
}

#[test]
fn a_write_half_that_is_dropped_resets_at_once() {
    let _turn = turn();
    run(|_, mut listener| async move {
        let peer = client(tcp_port(&listener), |mut stream| stream.read(&mut [0; 10]).unwrap_err().kind());
        let (mut reader, writer) = listener.accept().await.unwrap().split();
        drop(writer);
        assert_eq!(reader.read(&mut [0; 10]).await, Err(NetError::Reset));
        assert_eq!(peer.join().unwrap(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn time_and_memory_are_the_hosts() {
    let _turn = turn();
    run(|platform, _| async move {
        let wall = platform.wall().unwrap();
        let host = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert!(wall.source == WallSource::Host && host - wall.since_epoch < Duration::from_secs(30), "{wall}");
        let memory = platform.memory();
        assert!(0 < memory.used_bytes && memory.used_bytes <= memory.peak_bytes, "{memory:?}");
        assert!(memory.peak_bytes < memory.total_bytes, "{memory:?}");
    });
}

#[test]
fn names_have_the_hosts_addresses() {
    let _turn = turn();
    run(async |platform, _| {
        let net = platform.net();
        let local = net.resolve("localhost").await.unwrap();
        assert!(!local.is_empty() && local.iter().all(|address| address.is_loopback()), "{local:?}");
        assert_eq!(net.resolve("192.0.2.7").await, Ok(vec![[192, 0, 2, 7].into()]));
        for name in ["", "a\0b", &"x".repeat(300)] {
            assert_eq!(net.resolve(name).await, Err(NetError::InvalidName));
        }
    });
}
