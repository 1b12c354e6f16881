//! A running server, what agents and users say to it over TLS, and real windows.

#![allow(dead_code, unused_imports)]

pub(crate) mod outside;
#[path = "../../../../crates/recording/tests/common/mod.rs"]
pub(crate) mod recordings;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};

use model::{BootId, HostNs};
use recording::window::{HostName, Template, WindowId, pack};
use serde_json::{Value, json};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, SendBody};

pub(crate) const BOOT: &str = "0123456789abcdef0123456789abcdef";
pub(crate) const NS: u64 = 1_000_000_000;
/// For everything that ends by itself, on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A server's folders: they stay when it is killed.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    pub(crate) fn config(&self, number: usize, more: &str) -> PathBuf {
        let state = self.dir.path().join(format!("state{number}"));
        let text = format!(
            "listen = '127.0.0.1:0'\nstore = '{}'\nstate = '{}'\n{more}\n",
            self.store().display(),
            state.display()
        );
        let file = self.dir.path().join(format!("server{number}.toml"));
        fs::write(&file, text).unwrap();
        file
    }

    pub(crate) fn start(&self, more: &str) -> Server {
        self.start_number(0, more)
    }

    /// Starts one of several over this store.
    pub(crate) fn start_number(&self, number: usize, more: &str) -> Server {
        Server::start(self.config(number, more))
    }

    /// Objects whose name begins so.
    pub(crate) fn objects(&self, prefix: &str) -> Vec<String> {
        let mut found = Vec::new();
        walk(&self.store(), &mut found);
        let root = format!("{}/", self.store().display());
        let mut names: Vec<_> =
            found.iter().filter_map(|path| path.strip_prefix(&root)).map(str::to_owned).collect();
        names.retain(|name| name.starts_with(prefix));
        names.sort();
        names
    }

    pub(crate) fn wait_for_results(&self, n: usize) {
        wait_until("results", || self.objects("results/v1/hosts/").len() == n);
    }
}

fn walk(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path.display().to_string());
        }
    }
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A running server; killed when it is dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) fingerprint: String,
    config: PathBuf,
    agent: Agent,
    lines: std::sync::Mutex<Receiver<String>>,
}

impl Server {
    fn start(config: PathBuf) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vmscope-server"))
            .arg("--config")
            .arg(&config)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let (mut fingerprint, mut said) = (String::new(), Vec::new());
        let address = loop {
            let line = lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("it does not start: {said:?}"));
            if let Some((_, hash)) = line.split_once("authority SHA-256 ") {
                fingerprint = hash.to_owned();
            }
            if let Some((_, address)) = line.split_once("listening on https://") {
                break address.parse().unwrap();
            }
            said.push(line);
        };
        let roots = RootCerts::Specific(Arc::new(vec![authority(address, &fingerprint)]));
        let tls = TlsConfig::builder().root_certs(roots).build();
        let (agent, lines) = (agent(tls), lines.into());
        Self { child, address, fingerprint, config, agent, lines }
    }

    /// `vmscope-server` with its configuration.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_vmscope-server"))
            .args(arguments)
            .arg("--config")
            .arg(&self.config)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn token(&self, role: &str) -> String {
        self.run(&["token", "--role", role, "--name", "test"])
    }

    /// Enrols a host: its token.
    pub(crate) fn enroll(&self, host: &str) -> String {
        let token = self.token("agent");
        let reply =
            self.ask("POST", "/v1/enroll", "", Some(&json!({"token": token, "host": host})));
        assert_eq!(reply.status, 201, "{reply:?}");
        reply.json()["host_token"].as_str().unwrap().to_owned()
    }

    /// A request with a token, if it is not empty.
    pub(crate) fn ask(&self, method: &str, path: &str, token: &str, body: Option<&Value>) -> Reply {
        let text = body.map(ToString::to_string);
        let bytes = text.as_deref().map_or(&b""[..], str::as_bytes);
        self.try_send(method, path, token, SendBody::from_reader(&mut &*bytes), body.is_some())
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// A request with these headers: its status.
    pub(crate) fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> u16 {
        let request = self.agent.get(format!("https://{}{path}", self.address));
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.call().unwrap().status().as_u16()
    }

    pub(crate) fn get(&self, path: &str, token: &str) -> Reply {
        self.ask("GET", path, token, None)
    }

    pub(crate) fn put(&self, window: &Window, token: &str) -> Reply {
        self.try_put(window, token).unwrap()
    }

    pub(crate) fn try_put(&self, window: &Window, token: &str) -> Result<Reply, ureq::Error> {
        let body = SendBody::from_owned_reader(std::io::Cursor::new(window.bytes.clone()));
        self.try_send("PUT", &window.put_path(), token, body, true)
    }

    pub(crate) fn try_send(
        &self,
        method: &str,
        path: &str,
        token: &str,
        body: SendBody<'_>,
        has_body: bool,
    ) -> Result<Reply, ureq::Error> {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.address))
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json");
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = if has_body {
            self.agent.run(request.body(body).unwrap())?
        } else {
            self.agent.run(request.body(()).unwrap())?
        };
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let mut content = Vec::new();
        response.into_body().into_reader().read_to_end(&mut content)?;
        Ok(Reply { status, headers, content })
    }

    /// A counter of `/metrics`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = String::from_utf8(self.get("/metrics", "").content).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    /// A field of its process's memory.
    pub(crate) fn memory_kib(&self, field: &str) -> u64 {
        memory_kib(self.child.id(), field).unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Tells it to stop, and waits for that: what it said.
    pub(crate) fn stop(mut self) -> Vec<String> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(pid).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
        self.lines.lock().unwrap().iter().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A field of a process's memory; `None`: the process has ended.
pub(crate) fn memory_kib(process: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

fn agent(tls: TlsConfig) -> Agent {
    Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .timeout_global(Some(PATIENCE))
        .build()
        .into()
}

/// As an agent enrols: the certificate is taken from the server, and trusted for its fingerprint.
fn authority(address: SocketAddr, fingerprint: &str) -> Certificate<'static> {
    use sha2::Digest;
    let unchecked = agent(TlsConfig::builder().disable_verification(true).build());
    let mut response = unchecked.get(format!("https://{address}/v1/ca")).call().unwrap();
    let pem = response.body_mut().read_to_string().unwrap();
    let certificate = Certificate::from_pem(pem.as_bytes()).unwrap().to_owned();
    let hash = sha2::Sha256::digest(certificate.der());
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hash, fingerprint);
    certificate
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: ureq::http::HeaderMap,
    pub(crate) content: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.content);
        serde_json::from_slice(&self.content).unwrap_or_else(|_| panic!("{}: {text}", self.status))
    }

    /// That it is an error, in words.
    #[track_caller]
    pub(crate) fn check(&self, status: u16, text: &str) {
        let error = self.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(self.status == status && error.contains(text), "{}: {error:?}", self.status);
    }
}

/// A packed recording.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    pub(crate) id: WindowId,
    pub(crate) bytes: Vec<u8>,
}

impl Window {
    pub(crate) fn put_path(&self) -> String {
        format!("/v1/windows/{}/{}", self.id.boot, self.id.start_text())
    }

    pub(crate) fn with(&self, bytes: impl Into<Vec<u8>>) -> Self {
        Self { id: self.id.clone(), bytes: bytes.into() }
    }
}

pub(crate) fn now_ns() -> u64 {
    u64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos()).unwrap()
}

/// A window of a host that begins so many seconds after it was booted, just now.
pub(crate) fn window(host: &str, start_s: u64) -> Window {
    window_at(host, start_s, now_ns() - 60 * NS, |_| {})
}

/// The same, at a time of the world, whose files are changed before it is packed.
pub(crate) fn window_at(
    host: &str,
    start_s: u64,
    start_unix_ns: u64,
    change: impl FnOnce(&Path),
) -> Window {
    window_of(recordings::small(), host, start_s, start_unix_ns, change)
}

/// A window whose VMs, processes and functions have names that a hostile guest could choose.
pub(crate) fn hostile_window(host: &str, start_s: u64) -> Window {
    const EVIL: &str = "<img src=x onerror=alert(1)>\u{1b}[31m\u{202e}gpj.exe\u{200b}'\"\\{}\r\n";
    let (header, mut tables, cpus) = recordings::small();
    let long = EVIL.repeat(200);
    for (number, vm) in tables.vms.iter_mut().enumerate() {
        vm.name = format!("{number}{EVIL}");
    }
    for image in &mut tables.images {
        image.name = EVIL.to_owned();
    }
    for module in &mut tables.modules {
        module.path = format!("/{EVIL}");
    }
    for symbol in &mut tables.symbols {
        symbol.name = model::SymbolName::Function(long.clone());
    }
    window_of((header, tables, cpus), host, start_s, now_ns() - 60 * NS, |_| {})
}

/// A window with so many VMs of one vCPU besides its own.
pub(crate) fn crowded_window(host: &str, start_s: u64, n_vms: u32) -> Window {
    let (header, mut tables, cpus) = recordings::small();
    for number in 0..n_vms {
        let pid = 1_000_000 + number;
        let vm = model::VmId::from_index(tables.vms.len());
        let name = format!("crowd-{number:06}");
        tables.vms.push(model::Vm { name, pid: model::Pid(pid), ..tables.vms[0].clone() });
        let tid = model::Tid(2_000_000 + number);
        tables.vcpus.push(model::Vcpu { vm, number: 0, tid, started: None, ended: None });
    }
    window_of((header, tables, cpus), host, start_s, now_ns() - 60 * NS, |_| {})
}

fn window_of(
    (mut header, tables, cpus): (model::Header, model::Tables, Vec<Vec<model::Sample>>),
    host: &str,
    start_s: u64,
    start_unix_ns: u64,
    change: impl FnOnce(&Path),
) -> Window {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("window");
    let (begin, length) = (header.start, header.end.since(header.start));
    header.hostname = host.to_owned();
    header.boot = Some(BOOT.parse().unwrap());
    header.start = HostNs(start_s * NS);
    header.end = HostNs(start_s * NS + length);
    header.start_unix_ns = start_unix_ns;
    let moved = |time: HostNs| HostNs(header.start.0 + time.since(begin));
    let cpus: Vec<Vec<_>> = cpus
        .into_iter()
        .map(|samples| {
            samples.into_iter().map(|s| model::Sample { time: moved(s.time), ..s }).collect()
        })
        .collect();
    recordings::write_with_switches(&folder, &(header, tables, cpus), &[]);
    change(&folder);
    let file = dir.path().join("packed");
    pack(&folder, &file).unwrap();
    let id = format!("{host}/{BOOT}/{:020}", start_s * NS).parse().unwrap();
    Window { id, bytes: fs::read(file).unwrap() }
}

/// The window of a real recording in which two VMs compete for the CPUs of a host, as one of the host's boots of this number.
pub(crate) fn replayed(host: &str, number: u64, start_unix_ns: u64) -> Window {
    let dir = tempfile::tempdir().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui/tests/recording");
    let template = Template::new(&folder, &dir.path().join("packed")).unwrap();
    let boot: BootId = format!("{:032x}", number + 1).parse().unwrap();
    let name: HostName = host.parse().unwrap();
    let mut bytes = Vec::new();
    let mut window = template.window(&name, boot, start_unix_ns).unwrap();
    window.content.read_to_end(&mut bytes).unwrap();
    let start = template.header().start.0;
    Window { id: format!("{host}/{boot}/{start:020}").parse().unwrap(), bytes }
}
