//! Uses each crate of docs/guides/crates.md once.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::string::{String, ToString};
use glasshouse::{Error, Platform};

glasshouse::main!(serve);

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    item: String,
    count: u32,
}

async fn serve(platform: impl Platform) -> Result<(), Error> {
    let order: Order = serde_json::from_str(r#"{"item": "glass", "count": 3}"#)?;
    platform.print(format_args!("serde_json: {}", serde_json::to_string(&order)?));
    platform.print(format_args!("toml: {}", toml::from_str::<Order>("item = \"house\"\ncount = 2")?.item));
    platform.print(format_args!("postcard: {} bytes", postcard::to_allocvec(&order)?.len()));
    let word = regex::Regex::new(r"^\p{L}+$").map_err(|error| error.to_string())?;
    platform.print(format_args!("regex: {}", word.is_match("Häuser")));
    let date = chrono::DateTime::from_timestamp(1_700_000_000, 0).ok_or("no date")?;
    platform.print(format_args!("chrono: {}", date.to_rfc3339()));
    let hash = <sha2::Sha256 as sha2::Digest>::digest(b"glass");
    platform.print(format_args!("sha2: {:02x}", hash[0]));
    let url = url::Url::parse("https://example.org/a?b=c").map_err(|error| error.to_string())?;
    platform.print(format_args!("url: {:?}", url.host_str()));
    platform.print(format_args!("uuid: {}", uuid::Uuid::from_u128(7)));
    let version = semver::Version::parse("1.2.3").map_err(|error| error.to_string())?;
    platform.print(format_args!("semver: {}", version.minor));
    platform.print(format_args!("bytes: {}", bytes::Bytes::from_static(b"glass").slice(1..3).len()));
    let text = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, b"glass");
    platform.print(format_args!("base64: {text}"));
    let map: hashbrown::HashMap<&str, u32> = [("glass", 1)].into_iter().collect();
    platform.print(format_args!("hashbrown: {}", map["glass"]));
    platform.print(format_args!("all crates were used"));
    Ok(())
}
