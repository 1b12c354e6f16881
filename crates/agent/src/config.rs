//! The configuration file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cli::config_file::{ConfigError, within};
use model::OffCpuSource;
use serde::Deserialize;

/// What the agent is to do: `docs/fleet.md` explains each key.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where windows are sent: `https://HOST[:PORT]`. Without it they stay in the spool.
    pub server: Option<String>,
    /// Folder of everything that the agent keeps.
    pub state: PathBuf,
    /// Length of a window, seconds: 10 to 600.
    pub window_s: u64,
    /// Time between samples of a CPU, microseconds: 100 to 100000.
    pub period_us: u64,
    /// Which data shows when a vCPU lost and got its CPU: `samples` or `switches`.
    pub offcpu_source: Source,
    /// Count VM exits by vCPU and reason.
    pub exits: bool,
    /// Record call stacks of host and guests.
    pub call_graph: bool,
    /// How long a guest may take for one answer, seconds: 1 to 600.
    pub guest_timeout_s: u64,
    /// Bytes of windows that are kept while they can't be sent; the oldest make room.
    pub spool_bytes: u64,
    /// Windows that may wait to be finished: 1 to 100; the oldest makes room.
    pub pending_windows: usize,
    /// CPU time that the agent may use, per cent of one CPU. Beyond it it samples less often.
    pub max_cpu_percent: f64,
    /// Address that `/metrics` is served on; must be a loopback address. Without it: nowhere.
    pub metrics: Option<SocketAddr>,
}

/// `OffCpuSource` as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Samples,
    Switches,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server: None,
            state: PathBuf::from("/var/lib/vmscope"),
            window_s: 60,
            period_us: 1000,
            offcpu_source: Source::Samples,
            exits: false,
            call_graph: false,
            guest_timeout_s: 10,
            spool_bytes: 4 << 30,
            pending_windows: 3,
            max_cpu_percent: 1.0,
            metrics: None,
        }
    }
}

/// Which windows are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// 10 to 600 s.
    Usual,
    /// From 1 s on: for tests.
    Short,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// When it can't be read, or what it says can't be done.
    pub fn read(path: &Path, windows: Windows) -> Result<Self, ConfigError> {
        cli::config_file::read(path, |text| Self::parse(text, windows))
    }

    /// Reads a text. The error is one line.
    ///
    /// # Errors
    /// When it is none, or what it says can't be done.
    pub fn parse(text: &str, windows: Windows) -> Result<Self, String> {
        let config: Self = cli::config_file::parse(text)?;
        config.check(windows)?;
        Ok(config)
    }

    fn check(&self, windows: Windows) -> Result<(), String> {
        let shortest = match windows {
            Windows::Usual => 10,
            Windows::Short => 1,
        };
        within("window_s", self.window_s, shortest..=600)?;
        within("period_us", self.period_us, 100..=100_000)?;
        within("guest_timeout_s", self.guest_timeout_s, 1..=600)?;
        within("pending_windows", self.pending_windows as u64, 1..=100)?;
        within("spool_bytes", self.spool_bytes, 1 << 20..=1 << 50)?;
        if !(0.01..=10_000.0).contains(&self.max_cpu_percent) {
            return Err("max_cpu_percent lies between 0.01 and 10000".to_owned());
        }
        if !self.state.is_absolute() {
            return Err("state must be an absolute path".to_owned());
        }
        if let Some(server) = &self.server {
            check_server(server)?;
        }
        if let Some(address) = self.metrics
            && !address.ip().is_loopback()
        {
            return Err("metrics must be a loopback address, such as 127.0.0.1:9188".to_owned());
        }
        Ok(())
    }

    pub(crate) fn window(&self) -> Duration {
        Duration::from_secs(self.window_s)
    }

    pub(crate) fn period_ns(&self) -> u64 {
        self.period_us * 1000
    }

    pub(crate) fn off_cpu_source(&self) -> OffCpuSource {
        match self.offcpu_source {
            Source::Samples => OffCpuSource::Samples,
            Source::Switches => OffCpuSource::Switches,
        }
    }
}

/// A server's address. Windows say what runs on a host: they only go out encrypted.
pub(crate) fn check_server(server: &str) -> Result<(), String> {
    let host = server.strip_prefix("https://").unwrap_or_default();
    let is_host = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
    if host.is_empty() || !host.chars().all(is_host) {
        return Err("server must be https://HOST or https://HOST:PORT".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;

    fn check(text: &str, expected: Result<(), &str>) {
        match (Config::parse(text, Windows::Usual), expected) {
            (Ok(_), Ok(())) => {}
            (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
            (got, _) => panic!("{text}: {got:?}"),
        }
    }

    #[test]
    fn the_example_has_the_defaults() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/agent.toml");
        assert_eq!(Config::read(&file, Windows::Usual).unwrap(), Config::default());
    }

    #[test]
    fn what_can_not_be_done_is_refused_with_the_key() {
        check("", Ok(()));
        check("window_s = 10\nperiod_us = 100\nserver = \"https://kvm.example:8443\"", Ok(()));
        check("server = \"https://[::1]:8443\"", Ok(()));
        check("window_s = 9", Err("window_s lies between 10 and 600"));
        check("window_s = 601", Err("window_s"));
        check("period_us = 99", Err("period_us lies between 100 and 100000"));
        check("\nwindows = 60", Err("line 2: unknown field `windows`"));
        check("window_s = \"60\"", Err("line 1: invalid type"));
        check("window_s", Err("line 1: "));
        check("server = \"http://kvm.example\"", Err("https://"));
        check("server = \"https://user@kvm.example/x\"", Err("https://"));
        check("metrics = \"0.0.0.0:9188\"", Err("loopback"));
        check("metrics = \"[::1]:9188\"", Ok(()));
        check("max_cpu_percent = nan", Err("max_cpu_percent"));
        check("state = \"var\"", Err("absolute"));
        check("offcpu_source = \"switches\"", Ok(()));
        check("offcpu_source = \"guess\"", Err("unknown variant"));
        assert!(Config::parse("window_s = 1", Windows::Short).is_ok());
        assert!(Config::parse("window_s = 0", Windows::Short).is_err());
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Config::read(Path::new("/none/vmscope.toml"), Windows::Usual).unwrap_err();
        assert!(error.to_string().contains("/none/vmscope.toml"));
    }
}
