//! Where the bootable image is.

use std::path::{Path, PathBuf};

use cli::Usage;

/// What QEMU's `-kernel` and GRUB boot.
const PROGRAM: &str = "vmscope-boot.elf";
/// What real machines boot, from a CD or a USB stick.
const DISC: &str = "vmscope-boot.iso";

/// The image that was named, or the one beside this program, or the one that `make boot` built.
///
/// # Errors
/// A usage error: there is none.
pub(super) fn find(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        let is_file = path.metadata().is_ok_and(|found| found.is_file());
        return match path.canonicalize() {
            Ok(path) if is_file => Ok(path),
            _ => {
                Err(Usage(format!("{} is not a file: name the image with --image", path.display()))
                    .into())
            }
        };
    }
    let program = std::env::current_exe().ok().and_then(|path| path.canonicalize().ok());
    let folder = program.as_deref().and_then(Path::parent);
    folder.into_iter().flat_map(places).find(|path| path.is_file()).ok_or_else(|| {
        Usage("the boot image is not built: run `make boot`, or name it with --image".to_owned())
            .into()
    })
}

/// Beside the program, and where cargo's folder for builds is two levels up from it.
fn places(folder: &Path) -> [PathBuf; 2] {
    let target = folder.parent().unwrap_or(folder);
    [folder.join(PROGRAM), target.join("boot").join(PROGRAM)]
}

/// Where it is, and what to do with it.
pub(super) fn how_to_boot(program: &Path) -> String {
    let disc = program.with_file_name(DISC);
    let (program, disc_is_there) = (program.display(), disc.is_file());
    let disc = disc.display();
    let mut text = format!("image  {program}\n");
    if disc_is_there {
        text += &format!("disc   {disc}\n");
    }
    text += &format!(
        "
In QEMU, or any VMM that boots Multiboot or PVH kernels:
  qemu-system-x86_64 -kernel {program} -append 'plan=short' -serial file:serial.log
"
    );
    if disc_is_there {
        text += &format!(
            "
On a real machine or in any other VM: boot the disc image, as a CD or from a USB stick (which loses all that is on it):
  dd if={disc} of=/dev/YOUR-USB-STICK bs=4M conv=fsync
"
        );
    } else {
        text += "\nThe disc image for real machines is not built: make boot needs grub-mkrescue for it.\n";
    }
    text += "
Its results come over the first serial port (115200 8n1); without one, as QR codes on the screen. Then:
  vmscope bench read serial.log -o real.json         the log, or the codes' texts, a line each
";
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_the_build_is_known() {
        let places = places(Path::new("/src/target/debug"));
        assert_eq!(places[0], Path::new("/src/target/debug/vmscope-boot.elf"));
        assert_eq!(places[1], Path::new("/src/target/boot/vmscope-boot.elf"));
    }

    #[test]
    fn a_named_image_must_be_there() {
        let error = find(Some(Path::new("/no/such/image"))).unwrap_err();
        assert!(error.is::<Usage>());
        assert!(error.to_string().contains("/no/such/image is not a file"), "{error}");
    }
}
