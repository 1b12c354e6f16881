//! The virtual host's kernel as it lies in memory. Debian compresses kernels with XZ: under emulation unpacking takes
//! longer than all the rest of the boot. QEMU boots an ELF kernel by its PVH entry.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::cache::{Cache, Key};
use crate::error::Error;
use crate::process;

const XZ: &[u8] = b"\xfd7zXZ\0";

/// The unpacked kernel, from the cache; `image` itself if it is compressed otherwise.
pub(crate) fn of_image(cache: &Cache, image: &Path) -> Result<PathBuf, Error> {
    let bytes = std::fs::read(image).map_err(Error::io("read", image))?;
    let Some(payload) = payload(&bytes).filter(|payload| payload.starts_with(XZ)) else {
        return Ok(image.to_owned());
    };
    let mut key = Key::new("vmlinux");
    key.add(payload);
    let folder = cache.folder(&key, |folder| unpack(payload, &folder.join("vmlinux")))?;
    Ok(folder.join("vmlinux"))
}

/// The compressed kernel in a bzImage: Linux, Documentation/arch/x86/boot.rst, from protocol 2.08 on.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| -> Option<usize> {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let version = u16::from_le_bytes(image.get(0x206..0x208)?.try_into().ok()?);
    if image.get(0x202..0x206)? != b"HdrS" || version < 0x208 {
        return None;
    }
    let setup_sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let begin = (setup_sectors + 1) * 512 + word(0x248)?;
    image.get(begin..begin.checked_add(word(0x24c)?)?)
}

/// The payload ends with four bytes that are not XZ's.
fn unpack(payload: &[u8], to: &Path) -> Result<(), Error> {
    let mut xz = process::tool("xz", "xz-utils")?;
    let status = run_xz(xz.args(["-dc", "--single-stream"]), payload, to).and_then(|status| {
        status.success().then_some(()).ok_or_else(|| std::io::Error::other(format!("xz: {status}")))
    });
    status.map_err(Error::io("unpack the kernel to", to))
}

fn run_xz(xz: &mut Command, payload: &[u8], to: &Path) -> std::io::Result<ExitStatus> {
    let file = std::fs::File::create(to)?;
    let mut child = xz.stdin(Stdio::piped()).stdout(file).stderr(Stdio::null()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // What follows the stream may not be read any more.
        let _ = input.write_all(payload);
    }
    child.wait()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage with one sector of setup and this payload.
    fn image(version: u16, payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&version.to_le_bytes());
        image[0x248] = 16;
        image[0x24c] = u8::try_from(payload.len()).unwrap();
        image.extend([0; 16]);
        image.extend(payload);
        image
    }

    #[test]
    fn payloads_lie_where_the_header_says() {
        assert_eq!(payload(&image(0x20f, b"kernel")), Some(&b"kernel"[..]));
        assert_eq!(payload(&image(0x207, b"kernel")), None);
        assert_eq!(payload(&image(0x20f, b"kernel")[..1042]), None);
        assert_eq!(payload(b"\x7fELF"), None);
    }

    #[test]
    fn other_compressions_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let path = folder.path().join("vmlinuz");
        std::fs::write(&path, image(0x20f, b"\x28\xb5\x2f\xfd")).unwrap();
        assert_eq!(of_image(&cache, &path).unwrap(), path);
    }
}
