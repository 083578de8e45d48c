//! Helpers of the tests of the simulated network.

use glass_api::{Listener, Net, NetError, Platform, Stream};
use glass_platform_sim::Node;

pub const PORT: u16 = 80;

/// Bytes that depend on their place, so that a lost, repeated or exchanged piece is detected.
pub fn pattern(seed: u64, range: core::ops::Range<usize>) -> Vec<u8> {
    let byte = |place: usize| {
        let word = (place as u64 / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
        word.to_le_bytes()[place % 8]
    };
    range.map(byte).collect()
}

pub async fn read_to_end(stream: &mut impl Stream, buf_bytes: usize) -> Result<Vec<u8>, NetError> {
    let mut all = Vec::new();
    let mut buf = vec![0; buf_bytes];
    loop {
        match stream.read(&mut buf).await? {
            0 => return Ok(all),
            count => all.extend_from_slice(&buf[..count]),
        }
    }
}

/// Serves each connection with `serve`, in a separate task.
pub fn listen<S, F>(node: &Node, serve: S)
where
    S: Fn(<<Node as Platform>::Net as Net>::Stream) -> F + Clone + 'static,
    F: Future<Output = ()> + 'static,
{
    let here = node.clone();
    node.run("listen", async move {
        let mut listener = here.net().listen(PORT).await.unwrap();
        loop {
            let stream = listener.accept().await.unwrap();
            here.run("serve", serve(stream));
        }
    });
}

/// Echoes the received bytes, with random pauses.
pub async fn echo(mut stream: impl Stream) {
    let mut buf = vec![0; 5000];
    loop {
        match stream.read(&mut buf).await {
            Ok(0) => {
                let _ = stream.close().await;
                return;
            }
            Ok(count) => {
                if stream.write_all(&buf[..count]).await.is_err() {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}
