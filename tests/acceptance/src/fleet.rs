//! A server of a store of its own, and what its programs say to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// Where its objects are, if not in a folder of its own.
    pub service: Option<Service>,
}

/// A real S3-compatible service (versitygw), which keeps objects as files; killed when it is dropped.
#[derive(Debug)]
pub struct Service {
    program: PathBuf,
    address: SocketAddr,
    folder: PathBuf,
    child: Option<Child>,
    /// Between servers and it.
    pub line: Line,
}

/// What happens on a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: what is said is passed on.
    None,
    /// It breaks while a request is being sent.
    Breaks,
    /// The client gets an error of the service.
    Fails,
    /// A piece of a request arrives every few hundred milliseconds.
    Slow,
}

/// A line to an address, which may be faulty.
#[derive(Debug, Clone)]
pub struct Line {
    address: SocketAddr,
    fault: Arc<Mutex<(Fault, [usize; 4])>>,
}

impl Line {
    /// Bytes of a request that arrive before it breaks.
    const PIECE: usize = 2000;

    fn to(service: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let line = Self { address, fault: Arc::new(Mutex::new((Fault::None, [0; 4]))) };
        let of_connections = line.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let line = of_connections.clone();
                // A hang-up ends it.
                std::thread::spawn(move || line.pass(client, service));
            }
        });
        Ok(line)
    }

    /// Sets the fault of all later requests.
    pub fn set(&self, fault: Fault) {
        self.lock().0 = fault;
    }

    /// How many pieces of requests met each fault.
    #[must_use]
    pub fn met(&self) -> [usize; 4] {
        self.lock().1
    }

    fn lock(&self) -> MutexGuard<'_, (Fault, [usize; 4])> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, mut client: TcpStream, service: SocketAddr) -> std::io::Result<()> {
        let mut service = TcpStream::connect(service)?;
        let (mut answers, mut to_client) = (service.try_clone()?, client.try_clone()?);
        std::thread::spawn(move || {
            let copied = std::io::copy(&mut answers, &mut to_client);
            let _ = to_client.shutdown(Shutdown::Both);
            copied
        });
        let mut piece = [0; Self::PIECE];
        loop {
            let read = client.read(&mut piece)?;
            let fault = {
                let mut state = self.lock();
                let (fault, met) = &mut *state;
                met[*fault as usize] += 1;
                *fault
            };
            match fault {
                Fault::None => {}
                Fault::Slow => std::thread::sleep(Duration::from_millis(300)),
                Fault::Breaks | Fault::Fails => {
                    if fault == Fault::Fails {
                        let head =
                            "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
                        client.write_all(head.as_bytes())?;
                    } else {
                        service.write_all(&piece[..read])?;
                    }
                    client.shutdown(Shutdown::Both)?;
                    return service.shutdown(Shutdown::Both);
                }
            }
            if read == 0 {
                return service.shutdown(Shutdown::Write);
            }
            service.write_all(&piece[..read])?;
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Nothing is left to be said to anybody.
        let _ = self.kill();
    }
}

impl Service {
    const KEY: &str = "test";
    const SECRET: &str = "secret-of-test";
    const BUCKET: &str = "fleet";

    fn start(program: &Path, folder: PathBuf) -> anyhow::Result<Self> {
        let address = free_address()?;
        std::fs::create_dir_all(folder.join(Self::BUCKET))?;
        let line = Line::to(address)?;
        let mut service = Self { program: program.to_owned(), address, folder, child: None, line };
        service.start_again()?;
        Ok(service)
    }

    /// Ends it by SIGKILL.
    ///
    /// # Errors
    /// When it can't be ended.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Starts it where it was, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        let child = Command::new(&self.program)
            .args(["--quiet", "--port", &self.address.to_string(), "posix"])
            .arg(&self.folder)
            .envs([("ROOT_ACCESS_KEY_ID", Self::KEY), ("ROOT_SECRET_ACCESS_KEY", Self::SECRET)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("failed to run {}", self.program.display()))?;
        self.child = Some(child);
        for _ in 0..300 {
            if TcpStream::connect(self.address).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("{} does not answer on {}", self.program.display(), self.address)
    }

    /// What a server that keeps its objects here has in its environment.
    fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ACCESS_KEY_ID", Self::KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", Self::SECRET.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ENDPOINT", format!("http://{}", self.line.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ]
    }
}

/// No other process takes it within the moments that it is free.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
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
        Self::start_over(programs, names, more, None)
    }

    /// Starts one whose objects are kept by an S3-compatible service, which this `program` is. `more`: further lines of its
    /// configuration.
    ///
    /// # Errors
    /// When one of them does not start.
    pub fn start_over_service(program: &Path, more: &str) -> anyhow::Result<Self> {
        Self::start_over(&vmscope()?.with_file_name(""), &[], more, Some(program))
    }

    fn start_over(
        programs: &Path,
        names: &[&str],
        more: &str,
        service: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("failed to make a folder")?;
        let start = |program| Service::start(program, folder.path().join("service"));
        let service = service.map(start).transpose()?;
        let port = free_address()?.port();
        let store = match service {
            Some(_) => format!("s3://{}", Service::BUCKET),
            None => folder.path().join("store").display().to_string(),
        };
        let state = folder.path().join("state");
        let config = format!(
            "listen = \"127.0.0.1:{port}\"\nstore = {store:?}\nstate = {state:?}\nnames = {names:?}\n{more}\n"
        );
        std::fs::write(folder.path().join("server.toml"), config)?;
        let (child, fingerprint) = started(programs, folder.path(), service.as_ref())?;
        Ok(Self { programs: programs.to_owned(), child, folder, fingerprint, port, service })
    }

    /// Its address on loopback.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The process id.
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
        self.child = started(&self.programs, self.folder.path(), self.service.as_ref())?.0;
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
            .envs(self.service.iter().flat_map(Service::environment))
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

    /// The folder of the server's objects.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        match &self.service {
            Some(service) => service.folder.join(Service::BUCKET),
            None => self.folder.path().join("store"),
        }
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

fn started(
    programs: &Path,
    folder: &Path,
    service: Option<&Service>,
) -> anyhow::Result<(Child, String)> {
    let mut child = Command::new(program(programs)?)
        .arg("--config")
        .arg(folder.join("server.toml"))
        .envs(service.into_iter().flat_map(Service::environment))
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
