//! What was counted beside the samples: throttled time of VMs, VM exits.

use std::iter::zip;

use model::{ExitCount, HostNs, Throttling, VcpuId, VmId};

use crate::columns::{Column, TableReader};
use crate::error::Error;

pub(super) fn throttling_columns(throttling: &[Throttling]) -> Vec<Column> {
    vec![
        Column::u32("vm", throttling.iter().map(|reading| reading.vm.0)),
        Column::u64("time_ns", throttling.iter().map(|reading| reading.time.0)),
        Column::u64("throttled_ns", throttling.iter().map(|reading| reading.throttled_ns)),
    ]
}

pub(super) fn read_throttling(table: &TableReader) -> Result<Vec<Throttling>, Error> {
    let rows = zip(table.u32("vm")?, zip(table.u64("time_ns")?, table.u64("throttled_ns")?));
    let row =
        |(vm, (time, throttled_ns))| Throttling { vm: VmId(vm), time: HostNs(time), throttled_ns };
    Ok(rows.map(row).collect())
}

pub(super) fn exits_columns(exits: &[ExitCount]) -> Vec<Column> {
    vec![
        Column::u32("vcpu", exits.iter().map(|exit| exit.vcpu.0)),
        Column::u32("exit_reason", exits.iter().map(|exit| exit.reason)),
        Column::u64("count", exits.iter().map(|exit| exit.count)),
    ]
}

pub(super) fn read_exits(table: &TableReader) -> Result<Vec<ExitCount>, Error> {
    let rows = zip(table.u32("vcpu")?, zip(table.u32("exit_reason")?, table.u64("count")?));
    let row = |(vcpu, (reason, count))| ExitCount { vcpu: VcpuId(vcpu), reason, count };
    Ok(rows.map(row).collect())
}
