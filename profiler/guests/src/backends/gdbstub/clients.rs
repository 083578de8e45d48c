//! Whether another client is connected to a socket that a process listens on, without connecting to it: a gdbstub and a monitor serve one client at a
//! time, and a gdbstub stops its VM for one.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use crate::stream::SocketAddress;

/// The most descriptors of a process, and lines of a table of sockets, that are looked at.
const ENTRIES_MAX: usize = 65_536;
/// How long a connection that its client has closed may still be there: a loaded host may not run QEMU for a while.
const CLOSING: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// States in the tables of `/proc/PID/net`: connected (`SS_CONNECTED` of a unix socket, `TCP_ESTABLISHED`).
const UNIX_CONNECTED: &str = "03";
const TCP_CONNECTED: &str = "01";

/// Whether a process has a connection at a socket that it listens on; `None` if its descriptors cannot be listed.
fn is_connected(pid: u32, address: &SocketAddress) -> Option<bool> {
    let inode = |link: &str| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().take(ENTRIES_MAX);
    let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    let sockets: HashSet<u64> = links.filter_map(|link| inode(&link.to_string_lossy())).collect();
    let is_in = |table: &str, inode: &dyn Fn(&str) -> Option<u64>| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().skip(1).take(ENTRIES_MAX).filter_map(inode).any(|inode| sockets.contains(&inode))
    };
    Some(match address {
        SocketAddress::Unix(path) => {
            let path = path.to_string_lossy();
            is_in("unix", &|line| unix_connection(line, &path))
        }
        SocketAddress::Tcp(_, port) => {
            ["tcp", "tcp6"].iter().any(|table| is_in(table, &|line| tcp_connection(line, *port)))
        }
    })
}

/// The inode of a connection in a line of `/proc/PID/net/unix`, if it was made to the socket at this path. A process has its own name for it: from its
/// folder, or in its container.
fn unix_connection(line: &str, path: &str) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace().skip(5);
    let (state, inode, own) = (fields.next()?, fields.next()?, fields.next()?);
    let is_it = state == UNIX_CONNECTED && path.ends_with(own.trim_start_matches("./"));
    is_it.then(|| inode.parse().ok())?
}

/// The same of `/proc/PID/net/tcp` and a port.
fn tcp_connection(line: &str, port: u16) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, _, state) = (fields.next()?, fields.next()?, fields.next()?);
    let is_it = state == TCP_CONNECTED && u16::from_str_radix(local.rsplit_once(':')?.1, 16) == Ok(port);
    is_it.then(|| fields.nth(5)?.parse().ok())?
}

/// Whether another client is connected, and stays so for a moment: the last one may only just have gone. False where that cannot be seen.
pub(super) fn has_client(pid: u32, address: &SocketAddress) -> bool {
    let start = Instant::now();
    while is_connected(pid, address) == Some(true) {
        if start.elapsed() > CLOSING {
            return true;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    false
}

/// Whether no client is connected at this moment, as far as that can be seen.
pub(super) fn is_free(pid: u32, address: &SocketAddress) -> bool {
    is_connected(pid, address) == Some(false)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::{UnixListener, UnixStream};

    use glass_tests::folder::Folder;

    use super::*;

    #[test]
    fn a_connection_is_seen_from_its_start_to_its_end() {
        let (folder, own) = (Folder::new("clients").unwrap(), std::process::id());
        let path = folder.file("socket");
        let (listener, other) = (UnixListener::bind(&path).unwrap(), UnixListener::bind(folder.file("other")).unwrap());
        let address = SocketAddress::Unix(path.clone());
        assert!(is_free(own, &address) && !has_client(own, &address));
        let client = UnixStream::connect(&path).unwrap();
        let _others = (UnixStream::connect(folder.file("other")).unwrap(), other.accept().unwrap());
        let (accepted, _) = listener.accept().unwrap();
        assert!(!is_free(own, &address) && has_client(own, &address));
        drop((client, accepted));
        assert!(is_free(own, &address) && !has_client(own, &address));

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let address = SocketAddress::Tcp("127.0.0.1".to_owned(), port);
        assert!(is_free(own, &address));
        let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let _accepted = listener.accept().unwrap();
        assert!(!is_free(own, &address) && has_client(own, &address));
        assert!(!is_free(1 << 22 | 1, &address) && !has_client(1 << 22 | 1, &address), "nothing can be seen");
    }

    #[test]
    fn lines_of_the_tables() {
        let line = "00000000fa449570: 00000003 00000000 00000000 0001 03 4963961 gdb/socket";
        assert_eq!(unix_connection(line, "/run/vm/gdb/socket"), Some(4_963_961));
        assert_eq!(unix_connection(&line.replace("gdb/", "./gdb/"), "/run/vm/gdb/socket"), Some(4_963_961));
        assert_eq!(unix_connection(&line.replace(" 03 ", " 01 "), "/run/vm/gdb/socket"), None, "it listens");
        assert_eq!(unix_connection(line, "/run/vm/qmp/socket"), None);
        assert_eq!(unix_connection("00000000fa449570: 00000003 00000000 00000000 0001 03 4963961", "/x"), None);
        let line =
            "   2: 0100007F:04D2 0100007F:D2F0 01 00000000:00000000 00:00000000 00000000  1000        0 777 1 0 20 4";
        assert_eq!(tcp_connection(line, 1234), Some(777));
        assert_eq!(tcp_connection(line, 1235), None);
        assert_eq!(tcp_connection(&line.replace(" 01 ", " 0A "), 1234), None, "it listens");
        assert_eq!([unix_connection("", "/x"), tcp_connection("", 1)], [None; 2]);
    }
}
