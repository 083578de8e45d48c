//! Peers that are slow, rude, or gone.

use crate::world::{End, Server, World, echo, exchange, pair};
use core::time::Duration;
use glass_api::{Clock, Instant, NetError, Stream};
use glass_lib_executor::sync::Notify;
use glass_lib_http::{Connection, HttpError, Limits, Request, Response, Status};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Runs a server with `handler` against `client` and returns the result of `serve`.
fn run<F: Future<Output = ()> + 'static>(
    handler: impl AsyncFnMut(&mut Server, Request) -> Result<(), HttpError> + 'static,
    client: impl FnOnce(World, End) -> F,
) -> Result<(), HttpError> {
    let world = World::new();
    let (server, end) = pair(usize::MAX);
    let connection = Connection::new(server, world.clone(), Limits::default());
    let served = Rc::new(Cell::new(None));
    let result = served.clone();
    world.run_task(async move { result.set(Some(connection.serve(handler).await)) });
    world.run_task(client(world.clone(), end));
    world.run();
    served.get().expect("the server ended")
}

async fn drip(world: &World, end: &mut End, text: &[u8], pause: Duration) {
    for byte in text {
        world.sleep(pause).await;
        if end.write(&[*byte]).await.is_err() {
            return;
        }
    }
}

#[test]
fn a_head_has_ten_seconds() {
    let served = run(echo, async |world: World, mut end: End| {
        drip(&world, &mut end, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Duration::from_millis(300)).await;
        drip(&world, &mut end, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Duration::from_millis(500)).await;
        let (bytes, outcome) = end.read_all().await;
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("HTTP/1.1 408"), "{text}");
        assert_eq!(outcome, Ok(()));
    });
    assert_eq!(served, Err(HttpError::HeadTimeout(Duration::from_secs(10))));
}

#[test]
fn an_idle_connection_is_closed_without_a_word() {
    for request in ["", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let outcome = exchange(request, usize::MAX, false, echo);
        assert_eq!(outcome.served, Ok(()));
        assert_eq!(outcome.end, Ok(()));
        assert_eq!(outcome.text.matches("HTTP/1.1 ").count(), usize::from(!request.is_empty()));
        assert_eq!(outcome.took, Duration::from_secs(60));
    }
}

#[test]
fn a_body_must_move() {
    let served = run(echo, async |world: World, mut end: End| {
        end.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 600\r\n\r\n").await.unwrap();
        drip(&world, &mut end, &[b'x'; 500], Duration::from_secs(1)).await;
        let (bytes, _) = end.read_all().await;
        assert!(bytes.starts_with(b"HTTP/1.1 408"));
        assert!(world.now().0 < 600_000_000_000);
    });
    assert_eq!(served, Err(HttpError::Stalled { bytes_min: 8192, window: Duration::from_secs(30) }));
}

#[test]
fn a_slow_body_that_moves_is_fine_and_the_services_time_is_not_the_clients() {
    let world_time = Rc::new(Cell::new(0));
    let (time, clock) = (world_time.clone(), Rc::new(RefCell::new(None::<World>)));
    let service_clock = clock.clone();
    let served = run(
        async move |connection: &mut Server, _request| {
            let world = service_clock.borrow().clone().unwrap();
            let mut part = [0; 100];
            let mut total = 0;
            loop {
                match connection.read_body(&mut part).await? {
                    0 => break,
                    count => total += count,
                }
                world.sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(total, 10_000);
            connection.respond_text(Status::OK, "done").await
        },
        |world: World, mut end: End| {
            *clock.borrow_mut() = Some(world.clone());
            async move {
                end.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000\r\n\r\n").await.unwrap();
                drip(&world, &mut end, &[b'x'; 1000], Duration::from_millis(2)).await;
                end.write_all(&[b'x'; 9000]).await.unwrap();
                end.close().await.unwrap();
                assert!(end.read_all().await.0.ends_with(b"done"));
                time.set(world.now().0 / 1_000_000_000);
            }
        },
    );
    assert_eq!(served, Ok(()));
    assert!(world_time.get() >= 100, "took {} s", world_time.get());
}

#[test]
fn a_client_that_does_not_read_is_dropped() {
    let served = run(
        async |connection: &mut Server, _| {
            connection.start(Response::new(Status::OK), 1 << 20).await?;
            for _ in 0..16 {
                connection.write_body(&[b'x'; 65536]).await?;
            }
            Ok(())
        },
        |world: World, mut end: End| {
            end.bound_incoming(1000);
            async move {
                end.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                for _ in 0..1000 {
                    world.sleep(Duration::from_secs(1)).await;
                    if end.read(&mut [0]).await == Err(NetError::Reset) {
                        return;
                    }
                }
                panic!("the server kept the connection");
            }
        },
    );
    assert_eq!(served, Err(HttpError::Stalled { bytes_min: 8192, window: Duration::from_secs(30) }));
}

#[test]
fn the_hundred_comes_when_the_body_is_read_and_once() {
    let request = b"PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 5\r\n\r\n";
    let served = run(echo, async |world: World, mut end: End| {
        end.write_all(request).await.unwrap();
        let mut line = [0; 25];
        let mut got = 0;
        while got < line.len() {
            let count = end.read(&mut line[got..]).await.unwrap();
            assert!(count > 0, "the server closed");
            got += count;
        }
        assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
        end.write_all(b"he").await.unwrap();
        world.sleep(Duration::from_millis(1)).await;
        end.write_all(b"llo").await.unwrap();
        end.close().await.unwrap();
        let (bytes, _) = end.read_all().await;
        assert!(bytes.starts_with(b"HTTP/1.1 200") && bytes.ends_with(b"hello"));
    });
    assert_eq!(served, Ok(()));
    // An answer without reading: no 100, and the connection ends, since the body may follow or not.
    let refuse = async |connection: &mut Server, _| connection.respond_text(Status::INSUFFICIENT_STORAGE, "full").await;
    let outcome = exchange(request, usize::MAX, false, refuse);
    assert!(outcome.text.starts_with("HTTP/1.1 507 ") && outcome.text.contains("\r\nConnection: close\r\n"));
    // A body that arrived with its head needs no 100.
    let outcome = crate::world::ask([request, &b"hello"[..]].concat(), usize::MAX);
    assert!(outcome.text.starts_with("HTTP/1.1 200"), "{}", outcome.text);
}

#[test]
fn a_head_and_a_short_body_are_one_write() {
    // A long body is written from where it is.
    for (body_bytes, writes) in [(0, 1), (1, 1), (4096, 1), (4097, 2)] {
        let answer = async move |connection: &mut Server, _| {
            connection.respond(Response::new(Status::OK), &vec![7; body_bytes]).await
        };
        let served = run(answer, async move |_, mut end: End| {
            end.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            end.close().await.unwrap();
            let (bytes, _) = end.read_all().await;
            assert!(bytes.ends_with(&vec![7; body_bytes]));
            assert_eq!(end.incoming_writes(), writes, "of a body of {body_bytes} bytes");
        });
        assert_eq!(served, Ok(()));
    }
}

#[test]
fn an_answer_before_the_body_is_not_lost_to_a_reset() {
    let served = run(
        async |connection: &mut Server, _| connection.respond_text(Status::PAYLOAD_TOO_LARGE, "too large").await,
        async |_, mut end: End| {
            end.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n").await.unwrap();
            for _ in 0..100 {
                end.write_all(&[b'x'; 10_000]).await.unwrap();
            }
            let (bytes, outcome) = end.read_all().await;
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.starts_with("HTTP/1.1 413") && text.contains("\r\nConnection: close\r\n"), "{text}");
            assert_eq!(outcome, Ok(()));
        },
    );
    assert_eq!(served, Ok(()));
}

#[test]
fn a_client_that_takes_no_answer_is_given_one_window() {
    let served = run(echo, |world: World, mut end: End| {
        end.bound_incoming(10);
        async move {
            end.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            while end.write(&[]).await.is_ok() {
                world.sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(world.now().since(Instant(0)).as_secs(), 30);
        }
    });
    assert!(matches!(served, Err(HttpError::Stalled { .. })), "{served:?}");
}

#[test]
fn a_client_that_announced_its_last_request_is_not_waited_for() {
    // A line end after it may be the start of more.
    for (behind, seconds) in [("", 0), ("\r\n", 5)] {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n{behind}");
        let served = run(echo, async move |world: World, mut end: End| {
            end.write_all(request.as_bytes()).await.unwrap();
            assert_eq!(end.read_all().await.1, Ok(()));
            let begin = world.now();
            // The client does not close; once the server has closed, it can write nothing.
            while end.write(&[]).await.is_ok() {
                world.sleep(Duration::from_millis(100)).await;
            }
            assert_eq!(world.now().since(begin).as_millis() / 500, seconds * 2, "{behind:?}");
        });
        assert_eq!(served, Ok(()));
    }
}

#[test]
fn lingering_is_bounded() {
    let served = run(
        async |connection: &mut Server, _| connection.respond_text(Status::PAYLOAD_TOO_LARGE, "too large").await,
        async |world: World, mut end: End| {
            end.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n").await.unwrap();
            let mut taken_bytes = 0;
            while end.write_all(&[b'x'; 10_000]).await.is_ok() {
                taken_bytes += 10_000;
                assert!(taken_bytes < 5_000_000, "the server reads forever");
                world.sleep(Duration::from_micros(1)).await;
            }
            assert!(taken_bytes >= 4 << 20, "only {taken_bytes} bytes were taken");
        },
    );
    assert_eq!(served, Ok(()));
}

#[test]
fn an_unread_body_that_is_here_keeps_the_connection() {
    let handler = async |connection: &mut Server, _| connection.respond_text(Status::OK, "ignored").await;
    let request = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".repeat(3);
    let outcome = exchange(request, usize::MAX, true, handler);
    assert_eq!(outcome.text.matches("ignored").count(), 3);
    assert!(!outcome.text.contains("close"));
}

#[test]
fn a_short_body_is_told_with_the_number_of_missing_bytes() {
    let outcome = crate::world::ask("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhello", usize::MAX);
    assert_eq!(outcome.served, Err(HttpError::BodyCut { missing_bytes: 45 }));
    assert!(outcome.text.ends_with("the body ended 45 bytes early\n"));
}

#[test]
fn a_service_that_breaks_its_word_is_noticed() {
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let nothing = exchange(get, usize::MAX, false, async |_: &mut Server, _| Ok(()));
    assert_eq!(nothing.served, Err(HttpError::NoResponse));
    assert!(nothing.text.starts_with("HTTP/1.1 500"));
    let short = exchange(get, usize::MAX, false, async |connection: &mut Server, _| {
        connection.start(Response::new(Status::OK), 10).await?;
        connection.write_body(b"short").await
    });
    assert_eq!(short.served, Err(HttpError::WrongLength { missing_bytes: 5 }));
    assert_eq!(short.end, Err(NetError::Reset));
    let long = exchange(get, usize::MAX, false, async |connection: &mut Server, _| {
        connection.start(Response::new(Status::OK), 10).await?;
        connection.write_body(b"longer than that").await
    });
    assert_eq!(long.served, Err(HttpError::WrongLength { missing_bytes: 0 }));
    assert_eq!(long.end, Err(NetError::Reset));
    let late = exchange(get, usize::MAX, false, async |connection: &mut Server, _| {
        connection.start(Response::new(Status::OK), 5).await?;
        connection.write_body(b"whole").await?;
        connection.write_body(b"!").await
    });
    assert_eq!(late.served, Err(HttpError::WrongLength { missing_bytes: 0 }));
    assert_eq!(late.end, Err(NetError::Reset));
    // Even if the service ignores it: no other request is answered.
    let calls = Rc::new(Cell::new(0));
    let counted = calls.clone();
    let ignored = exchange(get.repeat(2), usize::MAX, false, async move |connection: &mut Server, _| {
        counted.set(counted.get() + 1);
        connection.respond(Response::new(Status::OK), b"whole").await?;
        assert!(connection.write_body(b"!").await.is_err());
        Ok(())
    });
    assert_eq!((ignored.served, ignored.end, calls.get()), (Ok(()), Err(NetError::Reset), 1));
    // The service fails while it sends a body: the client must not mistake the part for the whole.
    let failed = exchange(get, usize::MAX, false, async |connection: &mut Server, _| {
        connection.start(Response::new(Status::OK), 10).await?;
        connection.write_body(b"short").await?;
        Err(HttpError::OutOfMemory)
    });
    assert_eq!((failed.served, failed.end), (Err(HttpError::OutOfMemory), Err(NetError::Reset)));
    let bad = exchange(get, usize::MAX, false, async |connection: &mut Server, _| {
        connection.respond(Response::new(Status::OK).header("X", "a\r\nb"), b"").await
    });
    assert_eq!(bad.served, Err(HttpError::BadResponseHeader));
    assert!(bad.text.starts_with("HTTP/1.1 500"));
}

#[test]
fn responses_without_a_body_have_none() {
    for (status, length) in [(Status::NO_CONTENT, false), (Status::NOT_MODIFIED, false), (Status::OK, true)] {
        let outcome =
            crate::world::exchange("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 1, true, async move |c: &mut Server, _| {
                c.respond(Response::new(status), b"").await
            });
        assert_eq!(outcome.text.contains("Content-Length"), length, "{}", outcome.text);
        assert!(outcome.text.ends_with("\r\n\r\n"));
    }
}

/// A service that answers after a minute, unless the client leaves.
async fn wait(connection: &mut Server, gone: &Cell<bool>, world: &World) -> Result<(), HttpError> {
    let minute = core::pin::pin!(world.sleep(Duration::from_secs(60)));
    let left = {
        let left = core::pin::pin!(connection.wait_gone());
        let (mut left, mut minute) = (left, minute);
        core::future::poll_fn(|context| {
            if left.as_mut().poll(context).is_ready() {
                return core::task::Poll::Ready(true);
            }
            minute.as_mut().poll(context).map(|()| false)
        })
        .await
    };
    gone.set(left);
    if left { Err(HttpError::Net(NetError::Reset)) } else { connection.respond_text(Status::OK, "late").await }
}

#[test]
fn a_departure_is_noticed_while_waiting_and_what_is_sent_ahead_is_kept() {
    for leaves in [true, false] {
        let (gone, clock) = (Rc::new(Cell::new(false)), Rc::new(RefCell::new(None::<World>)));
        let (seen, service_clock) = (gone.clone(), clock.clone());
        let served = run(
            async move |connection: &mut Server, request: Request| {
                if request.path() == "/now" {
                    return connection.respond_text(Status::OK, "now").await;
                }
                let world = service_clock.borrow().clone().unwrap();
                wait(connection, &seen, &world).await
            },
            |world: World, mut end: End| {
                *clock.borrow_mut() = Some(world.clone());
                async move {
                    end.write_all(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                    world.sleep(Duration::from_secs(10)).await;
                    end.write_all(b"GET /now HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
                    world.sleep(Duration::from_secs(10)).await;
                    if leaves {
                        end.close().await.unwrap();
                        assert_eq!(end.read_all().await.0, b"");
                        assert_eq!(world.now().0, 20_000_000_000);
                    } else {
                        let text = String::from_utf8(end.read_all().await.0).unwrap();
                        assert!(text.contains("lateHTTP/1.1 200") && text.ends_with("now"), "{text}");
                    }
                }
            },
        );
        assert_eq!(gone.get(), leaves);
        assert_eq!(served.is_err(), leaves);
    }
}

#[test]
fn an_unread_chunked_body_ends_the_connection() {
    let handler = async |connection: &mut Server, _| connection.respond_text(Status::OK, "ignored").await;
    let request = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".repeat(2);
    let outcome = exchange(request, usize::MAX, true, handler);
    assert_eq!(outcome.served, Ok(()));
    assert_eq!(outcome.text.matches("ignored").count(), 1);
    assert!(outcome.text.contains("\r\nConnection: close\r\n"), "{}", outcome.text);
}

#[test]
fn each_body_has_its_own_window() {
    let served = run(echo, async |world: World, mut end: End| {
        for _ in 0..3 {
            end.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n").await.unwrap();
            world.sleep(Duration::from_secs(20)).await;
            end.write_all(b"x").await.unwrap();
        }
        end.close().await.unwrap();
        let text = String::from_utf8(end.read_all().await.0).unwrap();
        assert_eq!(text.matches("HTTP/1.1 200").count(), 3, "{text}");
    });
    assert_eq!(served, Ok(()));
}

#[test]
fn each_answer_has_its_own_window() {
    let served = run(echo, |world: World, mut end: End| {
        end.bound_incoming(10);
        async move {
            let (mut text, mut part) = (Vec::new(), [0; 10]);
            for _ in 0..3 {
                end.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                world.sleep(Duration::from_secs(20)).await;
                text.clear();
                while !text.ends_with(b"GET /\n") {
                    let count = end.read(&mut part).await.unwrap();
                    assert!(count > 0, "the server closed");
                    text.extend_from_slice(&part[..count]);
                }
            }
            end.close().await.unwrap();
        }
    });
    assert_eq!(served, Ok(()));
}

#[test]
fn a_head_without_a_body_is_sent_at_once() {
    let cases = [("GET", Status::OK, 0), ("HEAD", Status::OK, 5), ("GET", Status::NO_CONTENT, 5)];
    for (method, status, body_bytes) in cases {
        let seen = Notify::new();
        let is_seen = seen.clone();
        let answer = async move |connection: &mut Server, _| {
            connection.start(Response::new(status), body_bytes).await?;
            is_seen.notified().await;
            connection.write_body(&b"whole"[..body_bytes as usize]).await
        };
        let served = run(answer, async move |_, mut end: End| {
            end.write_all(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
            let mut head = [0; 1000];
            let count = end.read(&mut head).await.unwrap();
            let head = str::from_utf8(&head[..count]).unwrap();
            assert!(head.starts_with("HTTP/1.1 20") && head.ends_with("\r\n\r\n"), "{head}");
            seen.notify_one();
            end.close().await.unwrap();
            assert_eq!(end.read_all().await, (Vec::new(), Ok(())), "no body follows");
        });
        assert_eq!(served, Ok(()), "{method} {status:?}");
    }
}

#[test]
fn a_line_end_behind_the_last_body_does_not_cost_the_answer() {
    let served = run(echo, async |world: World, mut end: End| {
        end.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\n").await.unwrap();
        // So it is in the stream, and not in the memory of the connection.
        world.sleep(Duration::from_millis(1)).await;
        end.write_all(b"hello\r\n").await.unwrap();
        let (bytes, outcome) = end.read_all().await;
        assert!(bytes.ends_with(b"hello"), "{}", String::from_utf8_lossy(&bytes));
        assert_eq!(outcome, Ok(()));
    });
    assert_eq!(served, Ok(()));
}

#[test]
fn lingering_ends_with_the_last_byte_that_it_may_discard() {
    let linger_bytes_max = usize::try_from(Limits::DEFAULT.linger_bytes_max).unwrap();
    for (sent_bytes, seconds) in [(linger_bytes_max, 0), (linger_bytes_max - 1, 5)] {
        let refuse = async |connection: &mut Server, _| connection.respond_text(Status::PAYLOAD_TOO_LARGE, "").await;
        let served = run(refuse, async move |world: World, mut end: End| {
            end.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n").await.unwrap();
            assert_eq!(end.read_all().await.1, Ok(()));
            let begin = world.now();
            end.write_all(&vec![b'x'; sent_bytes]).await.unwrap();
            // Once the server has closed, the client can write nothing.
            while end.write(&[]).await.is_ok() {
                world.sleep(Duration::from_millis(100)).await;
            }
            assert_eq!(world.now().since(begin).as_millis() / 500, seconds * 2, "after {sent_bytes} bytes");
        });
        assert_eq!(served, Ok(()));
    }
}

#[test]
fn a_client_that_sends_ahead_more_than_is_kept_is_not_taken_for_gone() {
    let clock = Rc::new(RefCell::new(None::<World>));
    let service_clock = clock.clone();
    let served = run(
        async move |connection: &mut Server, request: Request| {
            if request.path() == "/now" {
                return connection.respond_text(Status::OK, "now").await;
            }
            let world = service_clock.borrow().clone().unwrap();
            wait(connection, &Cell::new(false), &world).await
        },
        |world: World, mut end: End| {
            *clock.borrow_mut() = Some(world);
            async move {
                let ahead = "GET /now HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000);
                assert!(ahead.len() > Limits::DEFAULT.head_bytes_max);
                end.write_all(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                end.write_all(ahead.as_bytes()).await.unwrap();
                end.close().await.unwrap();
                let text = String::from_utf8(end.read_all().await.0).unwrap();
                assert_eq!(text.matches("lateHTTP/1.1 200").count(), 1, "{text}");
                assert_eq!(text.matches("now").count(), 1000);
            }
        },
    );
    assert_eq!(served, Ok(()));
}

#[test]
fn a_client_that_has_sent_its_last_can_be_answered() {
    let answer = async |connection: &mut Server, _| {
        connection.wait_gone().await;
        assert!(!connection.is_broken());
        connection.respond_text(Status::OK, "late").await
    };
    let outcome = exchange("GET / HTTP/1.1\r\nHost: a\r\n\r\n", usize::MAX, true, answer);
    assert!(outcome.text.ends_with("late"), "{}", outcome.text);
    assert_eq!((outcome.served, outcome.end), (Ok(()), Ok(())));
}

/// Has a client reset its connection one second after `request` while the service does what `handler` does. At most
/// `bound` bytes of an answer are sent until then; 0 is no bound.
fn reset_within(
    request: &'static str,
    bound: usize,
    mut handler: impl AsyncFnMut(&mut Server) + 'static,
) -> Result<(), HttpError> {
    let checked = async move |connection: &mut Server, _| {
        assert!(!connection.is_broken());
        handler(connection).await;
        assert!(connection.is_broken());
        Ok(())
    };
    run(checked, |world: World, mut end: End| {
        end.bound_incoming(bound);
        async move {
            end.write_all(request.as_bytes()).await.unwrap();
            world.sleep(Duration::from_secs(1)).await;
        }
    })
}

#[test]
fn a_reset_is_noticed_wherever_it_is_met() {
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let put = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
    let reset = Err(HttpError::Net(NetError::Reset));
    let reading = reset_within(put, 0, async move |connection| {
        assert_eq!(connection.read_body(&mut [0]).await, reset);
        assert!(connection.is_broken());
        assert_eq!(connection.read_body(&mut [0]).await, reset);
    });
    assert_eq!(reading, Err(HttpError::NoResponse));
    let waiting = reset_within(get, 0, async |connection| connection.wait_gone().await);
    assert_eq!(waiting, Err(HttpError::NoResponse));
    let writing = reset_within(get, 10, async |connection| {
        let written = connection.respond_text(Status::OK, "hello").await;
        assert_eq!(written, Err(HttpError::Net(NetError::Reset)));
    });
    assert_eq!(writing, Err(HttpError::WrongLength { missing_bytes: 5 }));
    let between_requests = reset_within(get, 0, async |connection| {
        connection.respond_text(Status::OK, "hello").await.unwrap();
        assert!(connection.next_request().await.unwrap().is_none());
    });
    assert_eq!(between_requests, Ok(()));
}
