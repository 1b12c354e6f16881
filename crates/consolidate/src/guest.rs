//! What the guests of a plan are, as the testbed boots them.

use lab::{Application, GuestSettings, Plan};
use testbed::{Channel, Guest, GuestKernel, Size, Workload};

/// What the real application is made of.
const WEB_PACKAGES: [&str; 4] = ["nginx-light", "gunicorn", "python3-psycopg2", "postgresql"];

/// The guest of a ladder.
///
/// # Panics
/// Never: the workload is one of the testbed's own.
#[must_use]
pub fn guest(plan: &Plan, settings: &GuestSettings) -> Guest {
    let (workload, packages) = match plan.vm.application {
        Application::Shop => ("shop", &[][..]),
        Application::Web => ("web", &WEB_PACKAGES[..]),
    };
    Guest {
        migrates: false,
        name: "template".to_owned(),
        cpus: plan.vm.cpus,
        max_cpus: None,
        memory: Size::mebibytes(plan.vm_memory_mib()),
        pin: Vec::new(),
        quota: None,
        kernel: plan.vm.kernel.clone().map_or(GuestKernel::Default, GuestKernel::Version),
        timer_hz: settings.timer_hz,
        cmdline: settings.cmdline.clone(),
        modules: Vec::new(),
        reboot: false,
        network: true,
        workload: vec![Workload::parse(workload).expect("a workload of the testbed")],
        channel: Channel::None,
        is_microvm: false,
        root: None,
        packages: packages.iter().map(|name| (*name).to_owned()).collect(),
        host_disk: false,
        init: None,
        start: testbed::When::Before,
        stop: None,
    }
}
