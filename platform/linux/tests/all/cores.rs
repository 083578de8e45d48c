//! Cores of a process: threads that run tasks of their own and send each other values.

use glass_api::{Cancelled, Clock, Cores, Spawn, SpawnOnError};
use glass_lib_cores::channel;
use glass_platform_linux::{LinuxPlatform, Options};
use std::thread;
use std::time::Duration;

const MESSAGES: usize = 20_000;

fn platform(cores: usize) -> LinuxPlatform {
    LinuxPlatform::new(&Options::parse(["--cores".into(), cores.to_string().into()]).unwrap()).unwrap()
}

/// Runs `task`; panics when it hangs.
fn run<T: 'static>(platform: &LinuxPlatform, task: impl Future<Output = T> + 'static) -> T {
    let deadline = platform.sleep(Duration::from_secs(60));
    let watchdog = async move {
        deadline.await;
        panic!("the test hangs");
    };
    platform.spawn("watchdog", watchdog).unwrap();
    platform.run(task).unwrap()
}

#[test]
fn each_core_is_a_thread_and_talks_to_the_first_one() {
    let platform = platform(4);
    let own = platform.clone();
    let threads = run(&platform, async move {
        let mut threads = Vec::new();
        for number in 0..own.cores() {
            let (mut to_core, mut from_here) = channel(7);
            let (mut to_here, mut from_core) = channel(2);
            let task = own.spawn_on(number, "echo", move |core| async move {
                while let Some(value) = from_here.recv().await {
                    let value: Box<usize> = value;
                    if value.is_multiple_of(5000) {
                        // Asleep when the next one comes.
                        core.sleep(Duration::from_millis(2)).await;
                    }
                    to_here.send(Box::new(*value + 1)).await.unwrap();
                }
                (core.core(), thread::current().id())
            });
            for value in 0..MESSAGES {
                to_core.send(Box::new(value)).await.unwrap();
                assert_eq!(from_core.recv().await, Some(Box::new(value + 1)));
            }
            drop(to_core);
            let (core, thread) = task.unwrap().await.unwrap();
            assert_eq!(core, number);
            threads.push(thread);
        }
        threads
    });
    assert_eq!(threads[0], thread::current().id());
    assert!((1..4).all(|core| !threads[..core].contains(&threads[core])), "{threads:?}");
}

#[test]
fn a_task_elsewhere_is_cancelled_and_what_it_holds_is_dropped_there() {
    struct Noted(std::sync::mpsc::Sender<thread::ThreadId>);
    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }
    let platform = platform(2);
    let own = platform.clone();
    run(&platform, async move {
        let (sender, dropped) = std::sync::mpsc::channel();
        let noted = Noted(sender);
        let task = own.spawn_on(1, "sleeper", move |core| async move {
            let _noted = noted;
            core.sleep(Duration::from_secs(3600)).await;
        });
        let task = task.unwrap();
        assert!(!task.is_finished());
        task.cancel();
        assert_eq!(task.await, Err(Cancelled));
        assert_ne!(dropped.try_recv().unwrap(), thread::current().id());
        let error = own.spawn_on(2, "nowhere", |_core| async {}).unwrap_err();
        assert_eq!(error, SpawnOnError::NoCore { core: 2, cores: 2 });
        assert_eq!(error.to_string(), "there is no core 2: the machine has 2, numbered from 0 on");
    });
}
