//! A profile as the published JSON type.

use analysis::{Label, Profile, Row, Side, Unnamed, Unresolved, VmSummary, clean};
use api::report as json;
use model::{Guest, Note, Trigger, Vendor};

/// The published form of a profile. Names are cleaned: they may come from guests, and end on terminals.
pub(super) fn report(profile: &Profile) -> json::Report {
    json::Report {
        version: json::VERSION,
        query: query(profile),
        recording: recording(profile),
        totals: totals(profile),
        rows: profile.rows.iter().map(|r| row(r, profile.total)).collect(),
        other: json::Other { rows: profile.other.rows as u64, samples: profile.other.samples },
        unresolved: profile.unresolved.iter().map(unresolved).collect(),
        counters: profile.counters.iter().map(|(name, n)| (cleaned(name), *n)).collect(),
        notes: profile.notes.iter().map(note).collect(),
    }
}

fn cleaned(text: &str) -> String {
    clean(text).into_owned()
}

fn query(profile: &Profile) -> json::Query {
    let selection = &profile.query.selection;
    json::Query {
        view: selection.view().name().to_owned(),
        by: profile.query.by.name().to_owned(),
        vm: profile.vm.as_deref().map(cleaned),
        vcpu: selection.vcpu(),
        process: selection.process().map(|process| cleaned(process.text())),
        limit: profile.query.limit.map(|limit| limit as u64),
    }
}

fn recording(profile: &Profile) -> json::Recording {
    let header = &profile.header;
    let vendor = match header.vendor {
        Vendor::Amd => "amd",
        Vendor::Intel => "intel",
        Vendor::Other => "other",
    };
    let trigger = match header.trigger {
        Trigger::CpuClock => "cpu-clock",
        Trigger::Cycles => "cycles",
    };
    json::Recording {
        vmscope_version: cleaned(&header.vmscope_version),
        hostname: cleaned(&header.hostname),
        kernel: cleaned(&header.kernel),
        vendor: vendor.to_owned(),
        trigger: trigger.to_owned(),
        period_ns: header.period_ns,
        cpus: header.cpus.clone(),
        start_unix_ns: header.start_unix_ns,
        duration_ns: header.end.since(header.start),
        complete: header.complete,
        vms: profile.vms.iter().map(vm).collect(),
    }
}

fn vm(summary: &VmSummary) -> json::Vm {
    let (map_via, no_map_reason, clock_error_ns) = match &summary.vm.guest {
        Guest::Mapped { via, clock } => (Some(cleaned(via)), None, Some(clock.error_ns)),
        Guest::Unmapped { reason } => (None, Some(cleaned(reason)), None),
    };
    json::Vm {
        name: cleaned(&summary.vm.name),
        pid: summary.vm.pid.0,
        vcpus: summary.n_vcpus as u64,
        map_via,
        no_map_reason,
        clock_error_ns,
    }
}

fn totals(profile: &Profile) -> json::Totals {
    let shares = profile.shares;
    json::Totals {
        samples: profile.total,
        os: shares.os,
        user: shares.user,
        vm: shares.vm,
        idle: shares.idle,
        halt: shares.halt,
        halt_polling: shares.halt_polling,
        steal_outside: shares.steal_outside,
        steal_own_vcpu: shares.steal_own_vcpu,
        steal_vmm: shares.steal_vmm,
        throttled: shares.throttled,
        not_sampled: shares.not_sampled,
        unknown: shares.unknown,
    }
}

fn row(Row { samples, label }: &Row, total: u64) -> json::Row {
    let Label { function, process, pid, thread, tid, module, offset, vm, side, cpu, vcpu } = label;
    let text = |field: &Option<String>| field.as_deref().map(cleaned);
    json::Row {
        samples: *samples,
        share: share(*samples, total),
        side: side.map(|side: Side| side.name().to_owned()),
        vm: text(vm),
        process: text(process),
        pid: *pid,
        thread: text(thread),
        tid: *tid,
        module: text(module),
        offset: *offset,
        function: text(function),
        cpu: *cpu,
        vcpu: *vcpu,
        thief_vcpu: side.and_then(Side::thief_vcpu),
    }
}

/// To six decimals.
fn share(samples: u64, total: u64) -> f64 {
    (samples as f64 / total.max(1) as f64 * 1e6).round() / 1e6
}

fn unresolved(unresolved: &Unresolved) -> json::Unresolved {
    let Unresolved { what, subject, module, reason, samples } = unresolved;
    let part = match what {
        Unnamed::Stripped | Unnamed::Function => "function",
        Unnamed::Process => "process",
    };
    json::Unresolved {
        part: part.to_owned(),
        stripped: *what == Unnamed::Stripped,
        subject: cleaned(subject),
        module: module.as_deref().map(cleaned),
        reason: cleaned(reason),
        samples: *samples,
    }
}

fn note(note: &Note) -> json::Note {
    json::Note { subject: cleaned(&note.subject), text: cleaned(&note.text) }
}
