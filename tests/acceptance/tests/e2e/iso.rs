//! The bootable disc as people see it: booted by BIOS and UEFI in QEMU's emulation, pictures taken of the screen. Says that
//! no hypervisor is there, as the image then waits at the end instead of switching off.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use acceptance::{run, text};
use serde_json::{Value, json};

const OVMF: &str = "/usr/share/ovmf/OVMF.fd";
/// A boot takes 10 to 20 s, most of them in firmware and menu; a busy machine may take longer.
const PATIENCE: Duration = Duration::from_secs(150);
const GLYPH_HEIGHT: usize = 16;

pub(crate) fn by_bios_the_table_is_on_the_screen() {
    check_table("bios", &[]);
}

pub(crate) fn by_uefi_the_table_is_on_the_screen() {
    if !Path::new(OVMF).exists() {
        return skip::skip(format_args!("{OVMF} is missing: apt-get install ovmf"));
    }
    check_table("uefi", &["-bios", OVMF]);
}

pub(crate) fn without_a_port_for_lines_qr_codes_are_on_the_screen() {
    let folder = tempfile::tempdir().unwrap();
    let mut machine = Machine::boot(folder.path(), &[]);
    machine.wait_for("text", Picture::has_table);
    loop {
        machine.press("spc");
        sleep(Duration::from_secs(1));
        if machine.picture().has_qr_codes() {
            return;
        }
        machine.wait("QR codes behind the pages of the table");
    }
}

fn check_table(firmware: &str, options: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let port = format!("file:{}", log.display());
    let mut machine = Machine::boot(folder.path(), &[options, &["-debugcon", &port]].concat());
    let lines = machine.lines_to_the_end(&log);
    assert_eq!(text(&lines[0], "firmware"), firmware);
    assert_eq!(text(&lines[0], "loader"), "multiboot");
    assert_eq!(lines[0]["cpu"]["hypervisor"], Value::Null);
    let first = machine.wait_for("the table", Picture::has_table);
    machine.press("spc");
    let is_other = |picture: &Picture| picture.has_table() && picture.pixels != first.pixels;
    machine.wait_for("the second page", is_other);
    machine.press("esc");
    machine.wait_for_reboot();
}

/// Ended with its owner.
struct Machine {
    qemu: Child,
    monitor: BufReader<UnixStream>,
    picture: PathBuf,
    start: Instant,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Machine {
    fn boot(folder: &Path, options: &[&str]) -> Self {
        let socket = folder.join("monitor");
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-M", "q35", "-cpu", "max,-hypervisor", "-smp", "2", "-m", "256"]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
        command.args(["-vga", "std", "-display", "none", "-cdrom"]).arg(disc());
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", socket.display()));
        let start = Instant::now();
        let mut qemu = command.args(options).stdin(Stdio::null()).spawn().unwrap();
        let monitor = loop {
            match UnixStream::connect(&socket) {
                Ok(monitor) => break monitor,
                Err(error) if start.elapsed() < Duration::from_secs(10) => {
                    assert!(qemu.try_wait().unwrap().is_none(), "QEMU ended: {error}");
                    sleep(Duration::from_millis(20));
                }
                Err(error) => panic!("no answer from QEMU: {error}"),
            }
        };
        monitor.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let picture = folder.join("picture.ppm");
        let mut machine = Self { qemu, monitor: BufReader::new(monitor), picture, start };
        machine.order("qmp_capabilities", &json!({}));
        machine
    }

    fn order(&mut self, order: &str, arguments: &Value) {
        let line = json!({ "execute": order, "arguments": arguments }).to_string() + "\n";
        self.monitor.get_mut().write_all(line.as_bytes()).unwrap();
        loop {
            let mut line = String::new();
            self.monitor.read_line(&mut line).unwrap();
            let answer: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(answer.get("error"), None, "{order}: {answer}");
            if answer.get("return").is_some() {
                return;
            }
        }
    }

    fn press(&mut self, key: &str) {
        let keys = json!({ "keys": [{ "type": "qcode", "data": key }] });
        self.order("send-key", &keys);
    }

    fn picture(&mut self) -> Picture {
        let path = self.picture.clone();
        self.order("screendump", &json!({ "filename": path }));
        Picture::parse(&std::fs::read(path).unwrap()).unwrap()
    }

    fn wait(&self, what: &str) {
        assert!(self.start.elapsed() < PATIENCE, "no sign of {what}");
        sleep(Duration::from_millis(300));
    }

    fn wait_for(&mut self, what: &str, is_it: impl Fn(&Picture) -> bool) -> Picture {
        loop {
            let picture = self.picture();
            if is_it(&picture) {
                eprintln!("iso: {what} after {:.1} s", self.start.elapsed().as_secs_f64());
                return picture;
            }
            self.wait(what);
        }
    }

    fn lines_to_the_end(&mut self, log: &Path) -> Vec<Value> {
        loop {
            let text = std::fs::read(log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<Value> =
                text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            if lines.last().is_some_and(|line| line["end"] == "complete") {
                return lines;
            }
            self.wait("the end of the run");
        }
    }

    /// QEMU is stopped then.
    fn wait_for_reboot(mut self) {
        while self.qemu.try_wait().unwrap().is_none() {
            self.wait("a reboot");
        }
    }
}

/// As `vmscope bench` says.
fn disc() -> PathBuf {
    let output = run(&["bench", "run", "--target", "image"]).unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let disc = said.lines().find_map(|line| line.strip_prefix("disc "));
    PathBuf::from(disc.expect("the ISO is built: run `make boot` first").trim())
}

/// A picture of the screen: whether each pixel is light.
struct Picture {
    width: usize,
    pixels: Vec<bool>,
}

impl Picture {
    /// A PPM file with three bytes a pixel.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = bytes.splitn(4, |byte| *byte == b'\n');
        let (b"P6", size, b"255", bytes) =
            (lines.next()?, lines.next()?, lines.next()?, lines.next()?)
        else {
            return None;
        };
        let width = std::str::from_utf8(size).ok()?.split(' ').next()?.parse().ok()?;
        let is_light = |pixel: &[u8]| pixel.iter().all(|&colour| 100 < colour);
        Some(Self { width, pixels: bytes.chunks_exact(3).map(is_light).collect() })
    }

    /// How much of each row of characters is light, in percent.
    fn light_of_rows(&self) -> Vec<usize> {
        let rows = self.pixels.chunks_exact(self.width * GLYPH_HEIGHT);
        rows.map(|row| row.iter().filter(|light| **light).count() * 100 / row.len()).collect()
    }

    /// Rows of text from the top on, and what page it is, black on light, at the bottom.
    fn has_table(&self) -> bool {
        let rows = self.light_of_rows();
        let n_text = rows.iter().take_while(|light| (1..40).contains(*light)).count();
        20 <= n_text && rows.last().is_some_and(|light| (70..100).contains(light))
    }

    /// Two of the squares that a code has in its upper corners, beside each other in as many rows as their middles have.
    fn has_qr_codes(&self) -> bool {
        let n_squares = self.pixels.chunks_exact(self.width).map(squares);
        12 <= n_squares.filter(|n| 2 <= *n).count()
    }
}

/// How often dark, light, dark, light, dark come in a row as 1 : 1 : 3 : 1 : 1.
fn squares(row: &[bool]) -> usize {
    let runs: Vec<(bool, usize)> =
        row.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect();
    let is_square = |runs: &&[(bool, usize)]| {
        let lengths: Vec<usize> = runs.iter().map(|(_, length)| *length).collect();
        let n = lengths[0];
        let is_dark_outside = !runs[0].0;
        is_dark_outside && 4 <= n && lengths == [n, n, 3 * n, n, n]
    };
    runs.windows(5).filter(is_square).count()
}
