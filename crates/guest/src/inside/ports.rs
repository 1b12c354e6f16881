//! Finds this guest's virtio-serial port by its name.

use std::path::{Path, PathBuf};

/// The device of the virtio-serial port called `name`: udev links it by name; without udev, sysfs tells.
pub(crate) fn find_serial_port(root: &Path, name: &str) -> Option<PathBuf> {
    let link = root.join("dev/virtio-ports").join(name);
    if link.exists() {
        return Some(link);
    }
    let ports = std::fs::read_dir(root.join("sys/class/virtio-ports")).ok()?;
    ports.flatten().find_map(|port| {
        let found = std::fs::read_to_string(port.path().join("name")).ok()?;
        (found.trim_end() == name).then(|| root.join("dev").join(port.file_name()))
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_port_is_found_by_name() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (port, name) in [("vport1p1", "com.redhat.spice.0\n"), ("vport1p2", "org.vmscope\n")] {
            let directory = root.join("sys/class/virtio-ports").join(port);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("name"), name).unwrap();
        }
        assert_eq!(find_serial_port(root, "org.vmscope"), Some(root.join("dev/vport1p2")));
        assert_eq!(find_serial_port(root, "org.other"), None);
        assert_eq!(find_serial_port(&root.join("nowhere"), "org.vmscope"), None);
    }
}
