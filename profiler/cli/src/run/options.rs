//! What the options of `glass run` say: sizes, ports, networks.

/// How guest code runs.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Accel {
    Auto,
    Kvm,
    Tcg,
}

#[derive(Clone, Copy)]
pub(super) struct Port {
    pub(super) host: u16,
    pub(super) guest: u16,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Network {
    User,
    None,
    Tap(String),
}

pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        "T" | "TIB" => 1 << 40,
        unit => return Err(format!("`{unit}` is no unit: use K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no size: write for example 512M"))?;
    number.checked_mul(factor).ok_or(format!("{text} is too large"))
}

pub(super) fn parse_memory(text: &str) -> Result<u64, String> {
    let with_unit = if text.bytes().all(|byte| byte.is_ascii_digit()) { format!("{text}M") } else { text.to_owned() };
    match parse_size(&with_unit)? {
        bytes if bytes < 8 << 20 => Err("an image needs at least 8M".to_owned()),
        bytes => Ok(bytes),
    }
}

pub(super) fn parse_port(text: &str) -> Result<Port, String> {
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no port number"));
    match text.split_once(':') {
        Some((host, guest)) => Ok(Port { host: number(host)?, guest: number(guest)? }),
        None => number(text).map(|port| Port { host: port, guest: port }),
    }
}

pub(super) fn parse_network(text: &str) -> Result<Network, String> {
    match text.split_once('=') {
        _ if text == "user" => Ok(Network::User),
        _ if text == "none" => Ok(Network::None),
        Some(("tap", name)) if !name.is_empty() => Ok(Network::Tap(name.to_owned())),
        _ => Err("use user, none or tap=NAME".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("1G"), Ok(1 << 30));
        assert_eq!(parse_memory("32"), Ok(32 << 20));
        for bad in ["", "G", "1X", "-1M", "99999999999T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert!(parse_memory("4").is_err());
    }
}
