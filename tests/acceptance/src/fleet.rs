//! A server of a store of its own, and what its programs say to it.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::vmscope;

/// A running server; ended when it is dropped.
#[derive(Debug)]
pub struct Server {
    programs: PathBuf,
    child: Child,
    folder: tempfile::TempDir,
    /// SHA-256 of its certificate authority.
    pub fingerprint: String,
    /// Where it listens on loopback.
    pub port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(programs: &Path) -> anyhow::Result<PathBuf> {
    let server = programs.join("vmscope-server");
    if !server.is_file() {
        bail!("{} is not built: run `cargo build --workspace --bins` first", server.display());
    }
    Ok(server)
}

impl Server {
    /// Starts one. `names`: further addresses that it is reached by; `more`: further lines of its configuration.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(names: &[&str], more: &str) -> anyhow::Result<Self> {
        Self::start_of(&vmscope()?.with_file_name(""), names, more)
    }

    /// Starts the one in the folder `programs`, for figures of optimised programs.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_of(programs: &Path, names: &[&str], more: &str) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("failed to make a folder")?;
        // Nobody else takes it within the moments that it is free.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let (store, state) = (folder.path().join("store"), folder.path().join("state"));
        let config = format!(
            "listen = \"127.0.0.1:{port}\"\nstore = {store:?}\nstate = {state:?}\nnames = {names:?}\n{more}\n"
        );
        std::fs::write(folder.path().join("server.toml"), config)?;
        let (child, fingerprint) = started(programs, folder.path())?;
        Ok(Self { programs: programs.to_owned(), child, folder, fingerprint, port })
    }

    /// Its address on loopback.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it by SIGKILL.
    ///
    /// # Errors
    /// When it can't be ended.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again, where it was.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        self.child = started(&self.programs, self.folder.path())?.0;
        Ok(())
    }

    /// A token with this role.
    ///
    /// # Errors
    /// When there is none.
    pub fn token(&self, role: &str) -> anyhow::Result<String> {
        let output = Command::new(program(&self.programs)?)
            .args(["token", "--role", role, "--name", "test", "--config"])
            .arg(self.folder.path().join("server.toml"))
            .output()?;
        if !output.status.success() {
            bail!("vmscope-server token: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// `vmscope`, whose login is of this server.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn vmscope(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(self.programs.join("vmscope"));
        command.args(arguments).env("XDG_CONFIG_HOME", self.folder.path().join("config"));
        command.output().context("failed to run vmscope")
    }

    /// What `vmscope replay` and `vmscope query login` want to know of the server.
    ///
    /// # Errors
    /// When there is no token.
    pub fn address(&self, role: &str) -> anyhow::Result<[String; 6]> {
        let (url, token) = (self.url(), self.token(role)?);
        let fingerprint = self.fingerprint.clone();
        Ok(["--server".into(), url, "--token".into(), token, "--fingerprint".into(), fingerprint])
    }

    /// Its objects.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// The stored objects under a prefix.
    #[must_use]
    pub fn objects(&self, prefix: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        walk(&self.store().join(prefix), &mut found);
        found.sort();
        found
    }

    /// Waits until so many windows have results.
    ///
    /// # Errors
    /// When they don't come.
    pub fn wait_for_results(&self, windows: usize) -> anyhow::Result<()> {
        for _ in 0..3000 {
            if windows <= self.objects("results/v1/hosts").len() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("{} of {windows} windows have results", self.objects("results/v1/hosts").len())
    }
}

fn started(programs: &Path, folder: &Path) -> anyhow::Result<(Child, String)> {
    let mut child = Command::new(program(programs)?)
        .arg("--config")
        .arg(folder.join("server.toml"))
        .stderr(Stdio::piped())
        .spawn()
        .context("failed to start vmscope-server")?;
    let mut lines = BufReader::new(child.stderr.take().context("no standard error")?).lines();
    let mut fingerprint = None;
    loop {
        let line = lines.next().context("vmscope-server has ended")??;
        eprintln!("{line}");
        if let Some((_, hex)) = line.split_once("authority SHA-256 ") {
            fingerprint = Some(hex.to_owned());
        }
        if line.contains("listening on") {
            break;
        }
    }
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
    Ok((child, fingerprint.context("the server says no fingerprint")?))
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => walk(&path, found),
            path => found.push(path),
        }
    }
}
