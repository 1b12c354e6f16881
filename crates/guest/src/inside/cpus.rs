//! Which CPUs are online, and who is notified when that changes: a thread that sleeps until the kernel says so.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{self, AddressFamily, RecvFlags, SocketFlags, SocketType};

/// A thread that waits for CPUs to come and go. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct CpuWatch {
    end: Arc<OwnedFd>,
}

impl CpuWatch {
    /// Calls `changed` after each change. The kernel says that a CPU is online just after it has begun to run tasks.
    pub(crate) fn start(changed: impl Fn() + Send + 'static) -> io::Result<Self> {
        /// Everything that the kernel itself says of devices.
        const OF_THE_KERNEL: u32 = 1;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            flags,
            Some(KOBJECT_UEVENT),
        )?;
        net::bind(&socket, &SocketAddrNetlink::new(0, OF_THE_KERNEL))?;
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let ended = Arc::clone(&end);
        thread::Builder::new().spawn(move || {
            while wait(&socket, &ended) {
                if is_about_cpus(&socket) {
                    changed();
                }
            }
        })?;
        Ok(Self { end })
    }
}

impl Drop for CpuWatch {
    fn drop(&mut self) {
        // The counter can't overflow by one.
        let _ = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
    }
}

/// Waits for a message; false: it is to end.
fn wait(socket: &OwnedFd, ended: &OwnedFd) -> bool {
    let flags = PollFlags::IN;
    let mut polled =
        [socket, ended].map(|descriptor| PollFd::from_borrowed_fd(descriptor.as_fd(), flags));
    match poll(&mut polled, None) {
        Ok(_) => polled[1].revents().is_empty(),
        Err(rustix::io::Errno::INTR) => true,
        Err(_) => false,
    }
}

/// Takes all messages. One that was lost for want of room may have been about CPUs.
fn is_about_cpus(socket: &OwnedFd) -> bool {
    let mut message = [0; 4096];
    let mut about_cpus = false;
    loop {
        match net::recv(socket, &mut message, RecvFlags::empty()) {
            Ok((length, _)) => about_cpus |= is_about_a_cpu(&message[..length]),
            Err(rustix::io::Errno::NOBUFS) => about_cpus = true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return about_cpus,
        }
    }
}

/// `online@/devices/system/cpu/cpu1\0ACTION=online\0...`
fn is_about_a_cpu(message: &[u8]) -> bool {
    let first = message.split(|byte| *byte == 0).next().unwrap_or_default();
    let Some(at) = first.iter().position(|byte| *byte == b'@') else { return false };
    let (action, device) = first.split_at(at);
    matches!(action, b"online" | b"offline") && device.starts_with(b"@/devices/system/cpu/cpu")
}

/// The CPUs that are online; CPU 0 if unknown.
pub(crate) fn online_cpus(sys: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(sys.join("devices/system/cpu/online")).unwrap_or_default();
    let cpus = parse_cpu_list(text.trim());
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// The kernel's lists: `0-3,5`.
fn parse_cpu_list(text: &str) -> Vec<u32> {
    const MAX_CPUS: u32 = 8192;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last < MAX_CPUS).then_some(first..=last)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn cpu_lists() {
        for (text, expected) in
            [("0", &[0][..]), ("0-2,5", &[0, 1, 2, 5]), ("", &[]), ("3-1,x,0-4294967295,7", &[7])]
        {
            assert_eq!(parse_cpu_list(text), expected, "{text}");
        }
    }

    #[test]
    fn messages_about_cpus() {
        for (message, expected) in [
            (&b"online@/devices/system/cpu/cpu1\0ACTION=online\0"[..], true),
            (b"offline@/devices/system/cpu/cpu12\0", true),
            (b"add@/devices/system/cpu/cpu1\0", false),
            (b"online@/devices/system/memory/memory40\0", false),
            (b"libudev\0online@/devices/system/cpu/cpu1\0", false),
            (b"", false),
        ] {
            assert_eq!(is_about_a_cpu(message), expected, "{message:?}");
        }
    }

    #[test]
    fn a_watch_that_is_dropped_ends() {
        let (sender, gone) = std::sync::mpsc::channel::<()>();
        let watch = match CpuWatch::start(move || {
            let _ = sender.send(());
        }) {
            Ok(watch) => watch,
            Err(error) => return skip::skip(error),
        };
        drop(watch);
        // The thread's end of the channel goes with it.
        while gone.recv().is_ok() {}
    }
}
