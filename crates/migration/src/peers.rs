//! The file of other hosts: `NAME ADDRESS:PORT FINGERPRINT`, a line each.

use std::path::Path;

use api::Fingerprint;
use cli::config_file::ConfigError;

/// Other hosts at most.
const MAX_PEERS: usize = 4096;

/// Another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    /// Where its daemon listens: `HOST:PORT`.
    pub address: String,
    /// Its daemon's certificate.
    pub fingerprint: Fingerprint,
}

/// Reads the file; without one there are none.
///
/// # Errors
/// When it can't be read, or a line is not as it should be.
pub fn read_peers(path: &Path) -> Result<Vec<Peer>, ConfigError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    cli::config_file::read(path, parse_peers)
}

/// Of the file's text. `#` begins a comment.
///
/// # Errors
/// Which line is wrong.
pub fn parse_peers(text: &str) -> Result<Vec<Peer>, String> {
    let mut peers: Vec<Peer> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let wrong = |what: &str| format!("line {number}: {what}");
        let peer = match words[..] {
            [] => continue,
            [name, address, fingerprint] => Peer {
                name: name.to_owned(),
                address: address.to_owned(),
                fingerprint: fingerprint
                    .parse()
                    .map_err(|error: api::BadFingerprint| wrong(&error.to_string()))?,
            },
            _ => return Err(wrong("it must be NAME ADDRESS:PORT FINGERPRINT")),
        };
        let address = peer.address.rsplit_once(':');
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
        if !address.is_some_and(|(host, port)| !host.is_empty() && is_port(port)) {
            return Err(wrong(&format!("{}: it must be ADDRESS:PORT", peer.address)));
        }
        if peers.iter().any(|other| other.name == peer.name) {
            return Err(wrong(&format!("peer {} is there twice", peer.name)));
        }
        if peers.iter().any(|other| other.fingerprint == peer.fingerprint) {
            return Err(wrong("another peer has this fingerprint"));
        }
        if MAX_PEERS <= peers.len() {
            return Err(format!("at most {MAX_PEERS} peers are allowed"));
        }
        peers.push(peer);
    }
    Ok(peers)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_line_is_a_peer() {
        let (a, b) = ("0a".repeat(32), "0b".repeat(32));
        let text = format!("# hosts\n\nkvm1 10.0.0.1:9277 {a}\nkvm2 [::1]:9277 {b} # second\n");
        let peers = parse_peers(&text).unwrap();
        let names: Vec<_> = peers.iter().map(|peer| (&*peer.name, &*peer.address)).collect();
        assert_eq!(names, [("kvm1", "10.0.0.1:9277"), ("kvm2", "[::1]:9277")]);
        let check = |text: String, expected: &str| {
            let error = parse_peers(&text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check("kvm1 10.0.0.1:9277".to_owned(), "line 1: it must be NAME");
        check("kvm1 10.0.0.1:9277 12".to_owned(), "64 hexadecimal digits");
        for address in ["10.0.0.1", ":9277", "10.0.0.1:0", "10.0.0.1:x"] {
            check(format!("kvm1 {address} {a}"), "it must be ADDRESS:PORT");
        }
        check(format!("x a:1 {a}\nx b:1 {b}"), "line 2: peer x is there twice");
        check(format!("x a:1 {a}\ny b:1 {a}"), "another peer has this fingerprint");
        assert_eq!(read_peers(Path::new("/none/peers")).unwrap(), []);
    }
}
