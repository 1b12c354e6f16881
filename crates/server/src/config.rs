//! The configuration file.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use axum::http::HeaderName;
use axum::http::header::AUTHORIZATION;
use recording::window::MAX_WINDOW_BYTES;
use serde::Deserialize;
use url::Url;

use crate::alerts::Format;
use crate::destination::Destination;

/// The server's configuration, in TOML. Every key may be absent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub listen: SocketAddr,
    /// The object store: a folder, or `s3://BUCKET/PREFIX`.
    pub store: String,
    /// For the certificate authority and for what is being received.
    pub state: PathBuf,
    /// Names and addresses that the own certificate is for.
    pub names: Vec<String>,
    /// A certificate (chain) and its key, PEM, instead of the own.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Bytes of a window at most.
    pub max_window_bytes: u64,
    /// Windows that are received at the same time; others must come again.
    pub max_receiving: usize,
    /// Connections at the same time, of agents and users together.
    pub max_connections: usize,
    /// Those of one address, but a proxy's.
    pub max_connections_of_address: usize,
    /// Windows analysed at the same time. 0: one for each CPU.
    pub workers: usize,
    /// Days that windows are kept.
    pub raw_days: u32,
    /// Days that results are kept.
    pub result_days: u32,
    /// When results are rolled up.
    pub roll_up: RollUp,
    pub query: QueryLimits,
    /// A proxy that says who asks. Absent: no one is believed.
    pub proxy: Option<Proxy>,
    /// The server's address for users, in links to it.
    pub public_url: Option<String>,
    /// Alertmanagers that get findings.
    pub alertmanager: Vec<Destination>,
    /// Webhooks that get findings.
    pub webhook: Vec<Destination>,
    /// OpenTelemetry collectors that get profiles.
    pub otlp: Vec<Destination>,
    /// VMs that have metrics of their own.
    pub metrics_vms: usize,
}

/// Destinations of one kind.
const MAX_DESTINATIONS: usize = 8;

/// Days after which results have longer time slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RollUp {
    pub minute_days: u32,
    pub ten_minutes_days: u32,
    pub hour_days: u32,
}

impl RollUp {
    /// The slices of a day that is so old; `None`: as they were made.
    pub(crate) fn slice_s(&self, days: i64) -> Option<u32> {
        let steps = [(self.hour_days, 3600), (self.ten_minutes_days, 600), (self.minute_days, 60)];
        steps.into_iter().find(|(after, _)| i64::from(*after) <= days).map(|(_, slice_s)| slice_s)
    }
}

impl Default for RollUp {
    fn default() -> Self {
        Self { minute_days: 30, ten_minutes_days: 90, hour_days: 180 }
    }
}

/// A proxy that users log in at, and that names them in headers of their requests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proxy {
    /// Its addresses: other senders of such headers are not believed.
    pub addresses: Vec<IpAddr>,
    /// The header with the user's name. A request without it needs a token.
    pub user_header: String,
    /// The header with the user's groups, separated by commas.
    pub groups_header: String,
    #[serde(default)]
    pub read_groups: Vec<String>,
    /// Groups that may read, and give and take tokens.
    #[serde(default)]
    pub admin_groups: Vec<String>,
}

/// Limits of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueryLimits {
    pub seconds: u64,
    /// Memory of all queries together, MiB.
    pub memory_mib: usize,
    /// Rows of an answer.
    pub rows: usize,
    /// Queries at the same time.
    pub concurrent: usize,
}

impl Default for QueryLimits {
    fn default() -> Self {
        Self { seconds: 30, memory_mib: 1024, rows: 10_000, concurrent: 4 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([0; 8], 8443)),
            store: "/var/lib/vmscope-server/store".to_owned(),
            state: PathBuf::from("/var/lib/vmscope-server"),
            names: Vec::new(),
            certificate: None,
            key: None,
            max_window_bytes: 128 << 20,
            max_receiving: 8,
            max_connections: 2048,
            max_connections_of_address: 256,
            workers: 0,
            raw_days: 14,
            result_days: 400,
            roll_up: RollUp::default(),
            query: QueryLimits::default(),
            proxy: None,
            public_url: None,
            alertmanager: Vec::new(),
            webhook: Vec::new(),
            otlp: Vec::new(),
            metrics_vms: 2000,
        }
    }
}

impl Config {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// When it can't be read, is no TOML, or says what can't be.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let parse = |text: &str| Self::parse(text).map_err(|error| format!("{error:#}"));
        Ok(cli::config_file::read(path, parse)?)
    }

    /// Parses and checks the file's text.
    ///
    /// # Errors
    /// When it is no TOML, or says what can't be.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let config: Self = cli::config_file::parse(text).map_err(anyhow::Error::msg)?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> anyhow::Result<()> {
        let in_range = |name: &str, value: u64, from: u64, to: u64| {
            ensure!((from..=to).contains(&value), "{name} must be from {from} to {to}");
            Ok(())
        };
        let is_place = self.store.starts_with("s3://") || !self.store.contains("://");
        ensure!(is_place, "store: {:?} is neither a folder nor s3://BUCKET/PREFIX", self.store);
        in_range("max_window_bytes", self.max_window_bytes, 1 << 16, MAX_WINDOW_BYTES)?;
        in_range("max_receiving", self.max_receiving as u64, 1, 1024)?;
        in_range("max_connections", self.max_connections as u64, 16, 65_536)?;
        let of_address = self.max_connections_of_address as u64;
        in_range("max_connections_of_address", of_address, 8, 65_536)?;
        in_range("workers", self.workers as u64, 0, 1024)?;
        in_range("raw_days", self.raw_days.into(), 1, 36_500)?;
        in_range("result_days", self.result_days.into(), 1, 36_500)?;
        in_range("query.seconds", self.query.seconds, 1, 3600)?;
        in_range("query.memory_mib", self.query.memory_mib as u64, 64, 1 << 20)?;
        in_range("query.rows", self.query.rows as u64, 1, 1_000_000)?;
        in_range("query.concurrent", self.query.concurrent as u64, 1, 256)?;
        if self.result_days < self.raw_days {
            // The server would analyse old windows again and again.
            bail!("result_days must not be less than raw_days");
        }
        let RollUp { minute_days, ten_minutes_days, hour_days } = self.roll_up;
        in_range("roll_up.minute_days", minute_days.into(), 1, 36_500)?;
        ensure!(
            minute_days <= ten_minutes_days && ten_minutes_days <= hour_days,
            "roll_up: days must not be less for longer slices"
        );
        ensure!(
            self.certificate.is_some() == self.key.is_some(),
            "certificate and key must be given together"
        );
        if let Some(proxy) = &self.proxy {
            ensure!(!proxy.addresses.is_empty(), "proxy.addresses must name an address");
            let mut groups = proxy.read_groups.iter().chain(&proxy.admin_groups);
            ensure!(
                !groups.any(|group| group.trim().is_empty()),
                "proxy: a group's name must not be empty"
            );
            for name in [&proxy.user_header, &proxy.groups_header] {
                let is_header = HeaderName::try_from(name).is_ok_and(|name| name != AUTHORIZATION);
                ensure!(is_header, "proxy: {name:?} can't be a header of its own");
            }
        }
        if let Some(url) = &self.public_url {
            let is_web = Url::parse(url).is_ok_and(|url| ["http", "https"].contains(&url.scheme()));
            ensure!(is_web, "public_url: {url:?} is not a web address");
        }
        in_range("metrics_vms", self.metrics_vms as u64, 0, 100_000)?;
        for (key, destinations) in
            [("alertmanager", &self.alertmanager), ("webhook", &self.webhook), ("otlp", &self.otlp)]
        {
            ensure!(destinations.len() <= MAX_DESTINATIONS, "{key}: at most {MAX_DESTINATIONS}");
            for (number, destination) in destinations.iter().enumerate() {
                // A URL may hold a secret.
                destination.check().with_context(|| format!("{key} number {}", number + 1))?;
            }
        }
        let has_secret = |destination: &Destination| destination.secret_file.is_some();
        let has_format = |destination: &Destination| destination.format != Format::Generic;
        let mut others = self.alertmanager.iter().chain(&self.otlp);
        ensure!(!others.clone().any(has_secret), "secret_file is for webhooks");
        ensure!(!others.any(has_format), "format is for webhooks");
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_empty_file_is_a_configuration() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
    }

    #[test]
    fn the_file_of_the_package_has_the_defaults() {
        let file = include_str!("../../../deploy/server.toml");
        assert_eq!(Config::parse(file).unwrap(), Config::default());
        let all: String =
            file.lines().map(|line| line.trim_start_matches('#').to_owned() + "\n").collect();
        let keys = all.lines().filter(|line| line.contains(" = ")).count();
        assert_eq!(keys, 34, "a key is missing in deploy/server.toml");
    }

    #[test]
    fn what_can_not_be_is_refused_and_named() {
        let check = |text: &str, expected: &str| {
            let error = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hidden"), "{error}");
        };
        check("store = 'gs://x'", "store: \"gs://x\" is neither a folder nor");
        check("raw_days = 0", "raw_days must be from 1");
        check("raw_days = 10\nresult_days = 9", "result_days must not be less");
        check("certificate = 'a'", "given together");
        check("stroe = 'a'", "unknown field `stroe`");
        check("max_window_bytes = 1", "max_window_bytes must be from 65536");
        check("[query]\nseconds = 0", "query.seconds");
        check("[roll_up]\nhour_days = 2", "must not be less for longer");
        let proxy = |addresses: &str, user: &str| {
            format!("[proxy]\naddresses = {addresses}\nuser_header = '{user}'\ngroups_header = 'g'")
        };
        check(&proxy("[]", "u"), "proxy.addresses must name");
        check(&proxy("['localhost']", "u"), "invalid IP address");
        check(&proxy("['::1']", "a b"), "can't be a header");
        check(&proxy("['::1']", "Authorization"), "can't be a header");
        check("public_url = 'fleet'", "public_url: \"fleet\" is not a web address");
        check("[[alertmanager]]\nurl = 'am:9093'", "alertmanager number 1: not a web address");
        check("[[alertmanager]]\nurl = 'http://am'\nsecret_file = 'a'", "is for webhooks");
        check("[[otlp]]\nurl = 'http://am'\nsecret_file = 'a'", "is for webhooks");
        check("[[otlp]]\nurl = 'http://am'\nformat = 'slack'", "format is for webhooks");
        let signed = "[[webhook]]\nurl = 'https://teams.example/?sig=hidden'";
        check(signed, "webhook number 1");
        check("[[webhook]]\nurl = 'http://am'\nformat = 'irc'", "unknown variant `irc`");
        check("metrics_vms = 100001", "metrics_vms must be from 0");
        check("[[webhook]]\nurl = 'http://am'\ntoken = 'a'", "unknown field `token`");
        check(&"[[webhook]]\nurl = 'http://am'\n".repeat(9), "webhook: at most 8");
    }
}
