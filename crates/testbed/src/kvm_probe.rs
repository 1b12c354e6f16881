//! Whether this machine's KVM really runs guests. A device that opens proves nothing: some hosts
//! offer one that interprets, or hangs. So a small guest is run, with a time limit.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::cache::Cache;
use crate::error::Error;
use crate::process::{self, Bound};
use crate::qemu;

/// What a trial showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvmVerdict {
    /// A guest ran, at a useful speed.
    Works,
    /// KVM can't be used; the reason, as a clause.
    Unusable(String),
    /// There is no KVM here.
    Absent,
}

/// How long the trial may take by default.
const LIMIT: Duration = Duration::from_secs(5);

/// Boots a trivial guest under /dev/kvm, within this time.
pub fn probe_kvm(limit: Duration) -> KvmVerdict {
    let device = Path::new("/dev/kvm");
    if !device.exists() {
        return KvmVerdict::Absent;
    }
    if let Err(error) = fs::File::options().read(true).write(true).open(device) {
        return KvmVerdict::Unusable(format!("failed to open /dev/kvm: {error}"));
    }
    trial(limit).unwrap_or_else(|error| KvmVerdict::Unusable(model::error_chain(&error)))
}

/// The verdict, from the cache if this boot has one.
pub(crate) fn cached(cache: &Cache) -> KvmVerdict {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let path = cache.path(&format!("kvm-{}", boot.trim()));
    if let Ok(text) = fs::read_to_string(&path) {
        return match text.as_str() {
            "works" => KvmVerdict::Works,
            "absent" => KvmVerdict::Absent,
            reason => KvmVerdict::Unusable(reason.to_owned()),
        };
    }
    let verdict = probe_kvm(LIMIT);
    let text = match &verdict {
        KvmVerdict::Works => "works",
        KvmVerdict::Absent => "absent",
        KvmVerdict::Unusable(reason) => reason,
    };
    // Without the file the next run tries again.
    let _ = fs::write(&path, text);
    verdict
}

/// What the firmware boots: counts to 2^27 in 32-bit mode with paging, then tells QEMU to exit. Real
/// KVM takes a tenth of a second; interpreting it takes minutes.
///
/// ```text
///  7c00  cli; xor ax,ax; mov ds,ax; lgdt [7c80]
///        mov eax,cr0; or al,1; mov cr0,eax; jmp 0008:7c20
///  7c20  (32 bit) mov ax,0x10; mov ds,ax; mov es,ax
///        mov edi,0x9000; mov eax,0x83; mov ecx,1024     a page directory of 4 MiB pages,
///  7c38  stosd; add eax,0x400000; loop 7c38             everything where it is
///        mov eax,0x9000; mov cr3,eax; mov eax,cr4; or eax,0x10; mov cr4,eax
///        mov eax,cr0; or eax,0x80000000; mov cr0,eax
///        mov ecx,0x8000000
///  loop: dec ecx; jnz loop
///        mov dx,0x501; mov al,0x15; out dx,al; hlt; jmp $-1
///  7c80  dw 0x17; dd 7c88
///  7c88  null, flat code, flat data
/// ```
const BOOT_SECTOR: &[(usize, &[u8])] = &[
    (0x00, &[0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0x0f, 0x01, 0x16, 0x80, 0x7c]),
    (0x0a, &[0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0, 0xea, 0x20, 0x7c, 0x08, 0x00]),
    (0x20, &[0x66, 0xb8, 0x10, 0x00, 0x8e, 0xd8, 0x8e, 0xc0]),
    (
        0x28,
        &[
            0xbf, 0x00, 0x90, 0x00, 0x00, 0xb8, 0x83, 0x00, 0x00, 0x00, 0xb9, 0x00, 0x04, 0x00,
            0x00, 0x90,
        ],
    ),
    (0x38, &[0xab, 0x05, 0x00, 0x00, 0x40, 0x00, 0xe2, 0xf8]),
    (0x40, &[0xb8, 0x00, 0x90, 0x00, 0x00, 0x0f, 0x22, 0xd8]),
    (0x48, &[0x0f, 0x20, 0xe0, 0x83, 0xc8, 0x10, 0x0f, 0x22, 0xe0]),
    (0x51, &[0x0f, 0x20, 0xc0, 0x0d, 0x00, 0x00, 0x00, 0x80, 0x0f, 0x22, 0xc0]),
    (0x5c, &[0xb9, 0x00, 0x00, 0x00, 0x08, 0x49, 0x75, 0xfd]),
    (0x64, &[0x66, 0xba, 0x01, 0x05, 0xb0, 0x15, 0xee, 0xf4, 0xeb, 0xfd]),
    (0x80, &[0x17, 0x00, 0x88, 0x7c, 0x00, 0x00]),
    (
        0x90,
        &[
            0xff, 0xff, 0x00, 0x00, 0x00, 0x9a, 0xcf, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x92,
            0xcf, 0x00,
        ],
    ),
    (0x1fe, &[0x55, 0xaa]),
];

/// What QEMU exits with when the guest writes 0x15 to its exit port.
const EXIT_CODE: i32 = 0x15 << 1 | 1;

fn trial(limit: Duration) -> Result<KvmVerdict, Error> {
    let folder =
        tempfile::tempdir().map_err(Error::io("create a folder in", &std::env::temp_dir()))?;
    let disk = folder.path().join("disk");
    fs::write(&disk, boot_sector()).map_err(Error::io("write", &disk))?;
    let log = folder.path().join("log");
    let file = fs::File::create(&log).map_err(Error::io("create", &log))?;
    let mut command = Command::new(qemu::program()?);
    command.args(["-accel", "kvm", "-cpu", "host", "-m", "16M", "-nodefaults", "-no-user-config"]);
    command.args([
        "-display",
        "none",
        "-no-reboot",
        "-device",
        "isa-debug-exit,iobase=0x501,iosize=1",
    ]);
    command.arg("-drive").arg(format!("file={},format=raw,if=ide,readonly=off", disk.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    let mut qemu = Bound(
        process::spawn_bound(&mut command, Vec::new())
            .map_err(Error::io("run", Path::new(qemu::PROGRAM)))?,
    );
    let start = Instant::now();
    while start.elapsed() < limit {
        match qemu.0.try_wait().map_err(Error::io("wait for", Path::new(qemu::PROGRAM)))? {
            None => std::thread::sleep(Duration::from_millis(20)),
            Some(status) if status.code() == Some(EXIT_CODE) => return Ok(KvmVerdict::Works),
            Some(status) => {
                let said = fs::read(&log).ok().and_then(|text| process::last_lines(&text, 1));
                return Ok(KvmVerdict::Unusable(match said {
                    Some(said) => format!("QEMU ended: {}", without_places(&said)),
                    None => format!("QEMU ended: {status}"),
                }));
            }
        }
    }
    Ok(KvmVerdict::Unusable(format!("a trial guest did not finish in {} s", limit.as_secs())))
}

fn boot_sector() -> Vec<u8> {
    let mut sector = vec![0; 512];
    for (at, bytes) in BOOT_SECTOR {
        sector[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    // Firmware looks for a disk of at least a cylinder.
    sector.resize(1 << 20, 0);
    sector
}

/// What QEMU said, without its own name and the places in its source.
fn without_places(line: &str) -> String {
    let is_place = |part: &&str| part.starts_with(qemu::PROGRAM) || part.contains(".c:");
    line.split(": ").filter(|part| !is_place(part)).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_qemu_said() {
        let check = |line, expected| assert_eq!(without_places(line), expected);
        check(
            "qemu-system-x86_64: failed to initialize kvm: Busy",
            "failed to initialize kvm: Busy",
        );
        check("qemu-system-x86_64: ../accel/kvm/kvm-all.c:2593: no irqchip: x", "no irqchip: x");
        check("KVM: entry failed", "KVM: entry failed");
    }
}
