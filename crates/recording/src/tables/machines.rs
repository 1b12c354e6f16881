//! Virtual machines, vCPUs, images and threads.

use std::iter::zip;

use model::{
    Clock, Cr3, Guest, GuestVirt, HostNs, Image, ImageId, ImageKind, Pid, Thread, Tid, Vcpu, Vm,
    VmId,
};

use super::{check_ids, id_column, owner_of, vm_of};
use crate::columns::{Column, TableReader};
use crate::error::Error;

const KERNEL: &str = "kernel";
const PROCESS: &str = "process";

pub(super) fn vms_columns(vms: &[Vm]) -> Vec<Column> {
    let mapped = |vm: &Vm| match &vm.guest {
        Guest::Mapped { clock, .. } => Some(*clock),
        Guest::Unmapped { .. } => None,
    };
    let via = |vm| match vm {
        &Vm { guest: Guest::Mapped { ref via, .. }, .. } => Some(via.as_str()),
        _ => None,
    };
    let reason = |vm| match vm {
        &Vm { guest: Guest::Unmapped { ref reason }, .. } => Some(reason.as_str()),
        _ => None,
    };
    vec![
        id_column(vms.len()),
        Column::text("name", vms.iter().map(|vm| vm.name.as_str())),
        Column::u32("pid", vms.iter().map(|vm| vm.pid.0)),
        time_column("started_ns", vms.iter().map(|vm| vm.started)),
        time_column("ended_ns", vms.iter().map(|vm| vm.ended)),
        Column::optional_text("map_via", vms.iter().map(via)),
        Column::optional_i64(
            "host_minus_guest_ns",
            vms.iter().map(|vm| mapped(vm).map(|clock| clock.host_minus_guest_ns)),
        ),
        Column::optional_u64(
            "clock_error_ns",
            vms.iter().map(|vm| mapped(vm).map(|clock| clock.error_ns)),
        ),
        Column::optional_text("no_map_reason", vms.iter().map(reason)),
    ]
}

pub(super) fn read_vms(table: &TableReader) -> Result<Vec<Vm>, Error> {
    check_ids(table)?;
    let mut started = times(table, "started_ns")?.into_iter();
    let mut ended = times(table, "ended_ns")?.into_iter();
    let mut guests = read_guests(table)?.into_iter();
    let mut pids = table.u32("pid")?.into_iter();
    let row = |name| {
        Some(Vm {
            name,
            pid: Pid(pids.next()?),
            started: started.next()?,
            ended: ended.next()?,
            guest: guests.next()?,
        })
    };
    Ok(table.text("name")?.into_iter().map_while(row).collect())
}

fn read_guests(table: &TableReader) -> Result<Vec<Guest>, Error> {
    let clocks =
        zip(table.optional_i64("host_minus_guest_ns")?, table.optional_u64("clock_error_ns")?);
    let texts = zip(table.optional_text("map_via")?, table.optional_text("no_map_reason")?);
    let row = |((offset, error), texts)| match (texts, offset, error) {
        ((Some(via), None), Some(host_minus_guest_ns), Some(error_ns)) => {
            Ok(Guest::Mapped { via, clock: Clock { host_minus_guest_ns, error_ns } })
        }
        ((None, Some(reason)), None, None) => Ok(Guest::Unmapped { reason }),
        _ => Err(table.damaged("a guest is neither mapped nor unmapped")),
    };
    zip(clocks, texts).map(row).collect()
}

pub(super) fn vcpus_columns(vcpus: &[Vcpu]) -> Vec<Column> {
    vec![
        id_column(vcpus.len()),
        Column::u32("vm", vcpus.iter().map(|vcpu| vcpu.vm.0)),
        Column::u32("number", vcpus.iter().map(|vcpu| vcpu.number)),
        Column::u32("tid", vcpus.iter().map(|vcpu| vcpu.tid.0)),
    ]
}

pub(super) fn read_vcpus(table: &TableReader) -> Result<Vec<Vcpu>, Error> {
    check_ids(table)?;
    let rows = zip(table.u32("vm")?, zip(table.u32("number")?, table.u32("tid")?));
    let row = |(vm, (number, tid))| Vcpu { vm: VmId(vm), number, tid: Tid(tid) };
    Ok(rows.map(row).collect())
}

pub(super) fn images_columns(images: &[Image]) -> Vec<Column> {
    let kind = |image: &Image| match image.kind {
        ImageKind::Kernel => KERNEL,
        ImageKind::Process => PROCESS,
    };
    vec![
        id_column(images.len()),
        Column::optional_u32("vm", images.iter().map(|image| vm_of(image.owner))),
        Column::text("kind", images.iter().map(kind)),
        Column::u32("pid", images.iter().map(|image| image.pid.0)),
        Column::text("name", images.iter().map(|image| image.name.as_str())),
        Column::optional_u64("guest_cr3", images.iter().map(|image| image.cr3.map(Cr3::base))),
        time_column("start_ns", images.iter().map(|image| image.start)),
        time_column("end_ns", images.iter().map(|image| image.end)),
    ]
}

pub(super) fn read_images(table: &TableReader) -> Result<Vec<Image>, Error> {
    check_ids(table)?;
    let ids =
        zip(table.optional_u32("vm")?, zip(table.u32("pid")?, table.optional_u64("guest_cr3")?));
    let texts = zip(table.text("kind")?, table.text("name")?);
    let times = zip(times(table, "start_ns")?, times(table, "end_ns")?);
    let row = |((vm, (pid, cr3)), ((kind, name), (start, end)))| {
        let kind = match String::as_str(&kind) {
            KERNEL => ImageKind::Kernel,
            PROCESS => ImageKind::Process,
            _ => return Err(table.damaged("an image is neither kernel nor process")),
        };
        let (owner, pid, cr3) = (owner_of(vm), Pid(pid), Option::map(cr3, Cr3::new));
        Ok(Image { owner, kind, pid, name, cr3, start, end })
    };
    zip(ids, zip(texts, times)).map(row).collect()
}

pub(super) fn threads_columns(threads: &[Thread]) -> Vec<Column> {
    vec![
        Column::u32("image", threads.iter().map(|thread| thread.image.0)),
        Column::u32("tid", threads.iter().map(|thread| thread.tid.0)),
        Column::text("name", threads.iter().map(|thread| thread.name.as_str())),
        Column::optional_u64(
            "guest_fs_base",
            threads.iter().map(|thread| thread.fs_base.map(|base| base.0)),
        ),
    ]
}

pub(super) fn read_threads(table: &TableReader) -> Result<Vec<Thread>, Error> {
    let ids = zip(table.u32("image")?, table.u32("tid")?);
    let rows = zip(ids, zip(table.text("name")?, table.optional_u64("guest_fs_base")?));
    let row = |((image, tid), (name, fs_base))| Thread {
        image: ImageId(image),
        tid: Tid(tid),
        name,
        fs_base: Option::map(fs_base, GuestVirt),
    };
    Ok(rows.map(row).collect())
}

fn time_column(name: &'static str, times: impl Iterator<Item = Option<HostNs>>) -> Column {
    Column::optional_u64(name, times.map(|time| time.map(|time| time.0)))
}

fn times(table: &TableReader, name: &str) -> Result<Vec<Option<HostNs>>, Error> {
    Ok(table.optional_u64(name)?.into_iter().map(|time| time.map(HostNs)).collect())
}
