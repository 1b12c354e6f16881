//! `vmscope steal` as the published JSON type. Names are cleaned: they may come from guests.

use analysis::axis::Account;
use analysis::steal::{Balance, Victim, VictimTime};
use api::steal as json;

use super::super::scene::json::{reasons, recording, stolen, thieves};
use super::super::scene::{Scene, cleaned};
use super::{By, Findings, VmTime};

pub(super) fn steal(findings: &Findings<'_>) -> json::Steal {
    json::Steal {
        version: json::VERSION,
        recording: recording(findings.scene),
        vms: findings.vms.iter().map(|found| vm(findings, found)).collect(),
    }
}

fn vm(findings: &Findings<'_>, found: &VmTime) -> json::Vm {
    let scene = findings.scene;
    let row = scene.vm_row(found.vm);
    let vcpu = |(number, vcpu, balance): &(u32, model::VcpuId, Balance)| json::Vcpu {
        number: *number,
        tid: scene.recording.tables.vcpus[vcpu.index()].tid.0,
        time: time(scene, balance),
    };
    let by = match findings.by {
        Some(By::Process) => Some("process"),
        Some(By::Function) => Some("function"),
        Some(By::Thief | By::Reason) | None => None,
    };
    let limit = findings.limit.unwrap_or(usize::MAX);
    let rows = found.victims.iter().flat_map(|victims| &victims.rows);
    json::Vm {
        name: cleaned(&row.name),
        pid: row.pid.0,
        time: time(scene, &found.sum),
        vcpus: found.vcpus.iter().map(vcpu).collect(),
        by: by.map(str::to_owned),
        victims: rows.take(limit).map(victim).collect(),
        unattributed: found.victims.as_ref().map(|victims| stolen(&victims.unattributed)),
    }
}

fn time(scene: &Scene, balance: &Balance) -> json::Time {
    let ns = |account| balance.accounts.get(account);
    let wall_ns = balance.accounts.total();
    json::Time {
        wall_ns,
        guest_ns: ns(Account::Guest),
        halt_ns: ns(Account::Halt),
        halt_polling_ns: ns(Account::HaltPolling),
        steal_outside_ns: ns(Account::StealOutside),
        steal_vmm_ns: ns(Account::StealVmm),
        throttled_ns: ns(Account::Throttled),
        not_sampled_ns: ns(Account::NotSampled),
        unknown_ns: ns(Account::Unknown),
        thieves: thieves(scene, &balance.thieves, wall_ns),
        reasons: reasons(scene, &balance.reasons, wall_ns),
        interrupts_ns: balance.interrupts_ns(scene.recording.header.vendor),
    }
}

fn victim((victim, time): &(Victim, VictimTime)) -> json::Victim {
    json::Victim {
        process: cleaned(&victim.process),
        pid: victim.pid,
        function: victim.function.as_deref().map(cleaned),
        module: victim.module.as_deref().map(cleaned),
        own_ns: time.own_ns,
        not_sampled_ns: time.not_sampled_ns,
        stolen: stolen(&time.stolen),
        samples: time.samples,
    }
}
