//! Who is a web server, and who a database.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// An address, a port, or both; what is `None` may be anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    pub ip: Option<IpAddr>,
    pub port: Option<u16>,
}

impl Endpoint {
    fn matches(self, address: SocketAddr) -> bool {
        self.ip.is_none_or(|ip| ip == address.ip())
            && self.port.is_none_or(|port| port == address.port())
    }
}

impl FromStr for Endpoint {
    type Err = String;

    /// `10.0.0.2`, `10.0.0.2:80`, `[fd00::2]:80`, `:80`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no ADDRESS, ADDRESS:PORT or :PORT");
        if let Some(Ok(port)) = text.strip_prefix(':').map(str::parse) {
            return Ok(Self { ip: None, port: Some(port) });
        }
        if let Ok(ip) = text.parse() {
            return Ok(Self { ip: Some(ip), port: None });
        }
        let both: SocketAddr = text.parse().map_err(|_| wrong())?;
        Ok(Self { ip: Some(both.ip()), port: Some(both.port()) })
    }
}

/// What the user said about roles. Where nothing was said, the protocol of a connection tells.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Roles {
    /// Web servers; empty: all that answer HTTP requests.
    pub web: Vec<Endpoint>,
    /// Databases; empty: all that answer in a database's protocol, or listens at its usual port.
    pub db: Vec<Endpoint>,
    /// Further addresses of web servers' hosts: the address that requests go to, then the one that queries come from.
    pub aliases: Vec<(IpAddr, IpAddr)>,
}

/// Where PostgreSQL and MySQL usually listen.
const DB_PORTS: [u16; 2] = [5432, 3306];

impl Roles {
    /// Whether requests to this server count.
    pub(crate) fn is_web(&self, server: SocketAddr) -> bool {
        self.web.is_empty() || self.web.iter().any(|web| web.matches(server))
    }

    /// Whether this is a database's, as far as addresses say.
    pub(crate) fn is_db(&self, server: SocketAddr) -> bool {
        match self.db.as_slice() {
            [] => DB_PORTS.contains(&server.port()),
            some => some.iter().any(|db| db.matches(server)),
        }
    }

    /// Whether a connection that speaks a database's protocol counts.
    pub(crate) fn may_be_db(&self, server: SocketAddr) -> bool {
        self.db.is_empty() || self.is_db(server)
    }

    /// The address by which requests know the host from which these queries come.
    pub(crate) fn web_host(&self, client: IpAddr) -> IpAddr {
        let alias = self.aliases.iter().find(|(_, other)| *other == client);
        alias.map_or(client, |(web, _)| *web)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn endpoints() {
        let check = |text: &str, matching: &str, other: &str| {
            let endpoint: Endpoint = text.parse().unwrap();
            assert!(endpoint.matches(matching.parse().unwrap()), "{text}");
            assert!(!endpoint.matches(other.parse().unwrap()), "{text}");
        };
        check(":80", "10.0.0.1:80", "10.0.0.1:81");
        check("10.0.0.1", "10.0.0.1:80", "10.0.0.2:80");
        check("10.0.0.1:80", "10.0.0.1:80", "10.0.0.1:81");
        check("fd00::1", "[fd00::1]:80", "[fd00::2]:80");
        check("[fd00::1]:80", "[fd00::1]:80", "[fd00::1]:8");
        for wrong in ["", ":", "a", "10.0.0.1:", ":65536", "10.0.0.1:80:80"] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }
}
