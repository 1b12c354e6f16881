//! What the guests of a plan are, as the testbed boots them.

use lab::{GuestSettings, Plan};
use testbed::{Channel, Guest, GuestKernel, Size, Workload};

/// The guest of a ladder.
///
/// # Panics
/// Never: the workload is one of the testbed's own.
#[must_use]
pub fn guest(plan: &Plan, settings: &GuestSettings) -> Guest {
    Guest {
        migrates: false,
        name: "template".to_owned(),
        cpus: plan.vm.cpus,
        max_cpus: None,
        memory: Size::mebibytes(plan.vm_memory_mib()),
        pin: Vec::new(),
        quota: None,
        kernel: plan.vm.kernel.clone().map_or(GuestKernel::Default, GuestKernel::Version),
        cmdline: settings.cmdline.clone(),
        reboot: false,
        network: true,
        workload: vec![Workload::parse("shop").expect("a workload of the testbed")],
        channel: Channel::None,
        root: None,
        packages: Vec::new(),
        host_disk: false,
        init: None,
        start: testbed::When::Before,
        stop: None,
    }
}
