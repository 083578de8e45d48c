//! Tries something in a jail: `prisoner WALLS FILE ATTEMPT VALUE`, where FILE is what the walls `files` and `written` leave open. Its exit code is 0 if it could, and 3 if it got an error.

use glass_lib_jail::{Jail, SystemCalls, older};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};

/// The jail without the walls that are not named.
fn jail(walls: &str, file: &str) -> Option<Jail> {
    let everything = || Jail::new().read_write("/");
    Some(match walls {
        "none" => return None,
        "files" => Jail::new().read_only(file),
        "written" => Jail::new().read_write(file),
        "user" => everything().own_user(),
        "calls" => everything().system_calls(SystemCalls::of_every_program().with_threads()),
        "refused" => everything().system_calls(SystemCalls::of_every_program().refuse(&[libc::SYS_socket])),
        "opens" => {
            let calls = SystemCalls::of_every_program().allow(&[libc::SYS_openat, libc::SYS_statx]).allow(older::OPEN);
            everything().system_calls(calls)
        }
        "limits" => everything().memory_bytes(64 << 20).descriptors(16),
        "all" => {
            let calls = SystemCalls::of_every_program().with_threads();
            Jail::new().own_user().memory_bytes(64 << 20).descriptors(16).system_calls(calls)
        }
        other => panic!("there are no walls {other}"),
    })
}

fn attempt(name: &str, value: &str, child: Option<u32>) -> io::Result<()> {
    match name {
        "nothing" => Ok(()),
        "read" => fs::read(value).map(|_| ()),
        "write" => File::create(value)?.write_all(b"x"),
        "remove" => fs::remove_file(value),
        "connect" => TcpStream::connect(value).map(|_| ()),
        "connect-unix" => UnixStream::connect(value).map(|_| ()),
        "run" => Command::new("/bin/true").status().map(|_| ()),
        "thread" => std::thread::Builder::new().name("named".into()).spawn(|| ()).map(|thread| thread.join().unwrap()),
        "allocate" => {
            let mut bytes = Vec::<u8>::new();
            bytes.try_reserve_exact(256 << 20).map_err(io::Error::other)?;
            bytes.resize(256 << 20, 1);
            drop(std::hint::black_box(bytes));
            Ok(())
        }
        "descriptors" => {
            let first = io::stdin();
            let copies: io::Result<Vec<_>> = (0..100).map(|_| rustix::io::dup(&first).map_err(Into::into)).collect();
            copies.map(drop)
        }
        // The right to this is the right to ptrace.
        "trace" => {
            let mut memory = File::open(format!("/proc/{}/mem", child.expect("there is a child")))?;
            let error = memory.read(&mut [0; 1]).unwrap_err();
            // There is nothing at address 0.
            if error.raw_os_error() == Some(libc::EIO) { Ok(()) } else { Err(error) }
        }
        "signal" => {
            let parent = rustix::process::getppid().expect("there is a parent");
            Ok(rustix::process::test_kill_process(parent)?)
        }
        "signal-of-parent" => {
            let signal = rustix::process::parent_process_death_signal()?;
            println!("{:?}", signal.map(|signal| signal.as_raw()));
            Ok(())
        }
        other => panic!("there is no attempt {other}"),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, walls, file, name, value] = &arguments[..] else { panic!("give WALLS FILE ATTEMPT VALUE") };
    let mut child = (name == "trace").then(|| Command::new("cat").stdin(Stdio::piped()).spawn().unwrap());
    if let Some(jail) = jail(walls, file) {
        let report = jail.enter().unwrap();
        for missing in report.missing {
            println!("{missing:?}");
        }
        println!("in");
    }
    let outcome = attempt(name, value, child.as_ref().map(|child| child.id()));
    // It ends with its input.
    drop(child.as_mut().and_then(|child| child.stdin.take()));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(3)
        }
    }
}
