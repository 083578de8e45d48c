//! Serves a device as `glass disk` and `glass tap` do: `device-server disk PATH SOCKET [direct] [log=PATH]` or `device-server tap NAME SOCKET`.

use glass_devices::{DiskOptions, WriteLog};
use std::path::Path;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, name, socket, options @ ..] = &arguments[..] else { anyhow::bail!("give a kind, a name and a socket") };
    let socket = Path::new(socket);
    match kind.as_str() {
        "disk" => {
            let log = options.iter().find_map(|option| option.strip_prefix("log="));
            let write_log = log.map(|path| WriteLog { path: path.into(), bytes_max: 8 << 30 });
            let options =
                DiskOptions { write_log, is_direct: options.contains(&"direct".to_owned()), ..DiskOptions::default() };
            glass_devices::serve_disk(Path::new(name), &options, socket)
        }
        _ => glass_devices::serve_tap(name, socket),
    }
}
