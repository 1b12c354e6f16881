//! The network of the VMs that are started.

use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use testbed::Identity;

use crate::error::Error;

/// The bridge of the VMs and its address. VM n is n addresses further.
pub(crate) const BRIDGE: &str = "vmscope-lab";
pub(crate) const NETWORK: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const PREFIX: u8 = 16;

/// Who a VM is.
pub(crate) fn identity(number: usize, name: &str) -> Result<Identity, Error> {
    let random = Path::new("/dev/urandom");
    let mut seed = [0; 32];
    fs::File::open(random)
        .and_then(|mut file| file.read_exact(&mut seed))
        .map_err(Error::io("read", random))?;
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let [_, _, high, low] = vm_address(number).octets();
    Ok(Identity {
        name: name.to_owned(),
        mac: [0x52, 0x54, 0x00, 0x77, high, low],
        address: vm_address(number),
        prefix: PREFIX,
        unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(0),
        seed,
    })
}

/// A VM's address for requests.
pub(crate) fn address(number: usize) -> SocketAddr {
    SocketAddr::from((vm_address(number), 80))
}

/// The template is number 0.
pub(crate) fn vm_address(number: usize) -> Ipv4Addr {
    let offset = u32::try_from(number).unwrap_or(0) + 1;
    Ipv4Addr::from(u32::from(NETWORK) + offset)
}
