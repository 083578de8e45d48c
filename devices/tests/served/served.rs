//! Serves a device as `glass disk` and `glass tap` do: `device-server disk PATH SOCKET [direct]` or `device-server tap NAME SOCKET`.

use glass_devices::DiskOptions;
use std::path::Path;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, name, socket, options @ ..] = &arguments[..] else { anyhow::bail!("give a kind, a name and a socket") };
    let socket = Path::new(socket);
    match kind.as_str() {
        "disk" => {
            let options = DiskOptions { is_direct: options.contains(&"direct".to_owned()), is_read_only: false };
            glass_devices::serve_disk(Path::new(name), options, socket)
        }
        _ => glass_devices::serve_tap(name, socket),
    }
}
