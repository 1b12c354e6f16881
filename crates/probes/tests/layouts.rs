//! The structures that BPF programs and Rust share lie in memory as the Rust side reads them. The offsets here are those of
//! the readers (in probes, tracer, recording and guest), whose tests read records with different values in all fields; the
//! programs' are in the objects' BTF.

#![allow(clippy::unwrap_used)]

use libbpf_rs::btf::types::{Composite, MemberAttr, Struct, Var};
use libbpf_rs::btf::{Btf, HasSize, ReferencesType};

/// Fields without padding, with their offsets in bytes, and the size.
fn layout(structure: Struct<'_>) -> String {
    let composite = Composite::from(structure);
    let mut text = String::new();
    for member in composite.iter() {
        let name = member.name.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let MemberAttr::Normal { offset } = member.attr else { panic!("{name} is a bit-field") };
        if !name.contains("pad") {
            text += &format!("{name} {}, ", offset / 8);
        }
    }
    text + &composite.size().to_string()
}

#[test]
fn structures_lie_as_rust_reads_them() {
    let btf = Btf::from_raw("layouts", bpf::LAYOUTS).unwrap().unwrap();
    let check = |name: &str, expected: &str| {
        let found: Struct<'_> = btf.type_by_name(name).unwrap();
        assert_eq!(layout(found), expected, "struct {name}");
    };
    check(
        "sample",
        "time_ns 0, host_ip 8, guest_ip 16, guest_cr3 24, guest_fs_base 32, halted_ns 40, polled_ns 48, \
         runnable_ns 56, pid 64, tid 68, vcpu 72, exit_reason 76, exit_info 80, stack 84, flags 88, cpl 89, \
         asid 90, guest_stack 92, guest_pid 96, guest_tid 100, 104",
    );
    check(
        "stack",
        "kernel_bytes 0, user_bytes 4, kernel 8, user 520, guest 1032, chunks 1036, registers 1040, entry 1168, 1336",
    );
    check("stack_chunk", "address 0, bytes 8, 1032");
    check("ring", "head 0, dropped 8, read_errors 16, unknown 24, tail 64, 128");
    check("vcpu_ref", "tid 0, row 4, vcpu 8, vmcb 16, kicked 24, view 28, 32");
    check(
        "guest_view",
        "current 0, direct_map 8, image 16, irq_stack 24, mm 32, stack 36, fs_base 40, pid 44, comm 48, start_time 52, \
         pgd 56, tree 60, area_start 64, area_offset 68, area_file 72, file_path 76, file_inode 80, file_pages 84, \
         task_bytes 88, paging_levels 92, slot 96, page 192, 704",
    );
    check("guest_page", "address 0, root 8, entry 16, shift 24, 32");
    check("guest_slot", "start 0, bytes 8, shift 16, 24");
    check(
        "guest_code",
        "time_ns 0, cr3 8, fs_base 16, stack 24, start_ns 32, start 40, end 48, offset 56, file 64, mount 72, \
         dentry 80, inode 88, pages 96, vcpu 104, pid 108, tid 112, comm 120, 136",
    );
    check(
        "interpreter",
        "root 0, runtime 8, vmm 16, threads 20, next 24, thread 28, frame 32, inner 36, code 40, caller 41, mark 42, 48",
    );
    check(
        "vcpu_found",
        "vcpu 0, kvm 8, vmcb 16, time_ns 24, halted_ns 32, polled_ns 40, runnable_ns 48, pid 56, tid 60, \
         number 64, cpu 68, exit_reason 72, protected_state 76, waits 77, off_cpu 78, 80",
    );
    check(
        "switch_event",
        "time_ns 0, guest_ip 8, guest_cr3 16, guest_fs_base 24, vcpu 32, cpu 36, pid 40, tid 44, \
         exit_reason 48, kind 52, off_cpu 53, cpl 54, flags 55, guest_stack 56, 64",
    );
    check("quota_event", "from_ns 0, to_ns 8, group 16, cpu 20, 24");
    check("memory_slot_found", "kvm 0, first_page 8, pages 16, address 24, pid 32, flags 36, 40");
    check(
        "vcpu_clock_found",
        "kvm 0, tsc_offset 8, tsc_ratio 16, pid 24, tid 28, number 32, protected_state 36, 40",
    );
    check("trace_slot", "tag 0, payload 8, 16");
    check("trace_ring", "head 0, mark 8, first 16, room 24, tail 64, lost 128, 512");
    check("user_stack", "hash 0, time 8, process 16, depth 20, addresses 24, 280");
    check(
        "guest_process_event",
        "time_ns 0, pgd 8, fs_base 16, kind 24, pid 28, tid 32, parent 36, name 40, 56",
    );
}

/// Rust passes these as arrays of words, in this order.
#[test]
fn configurations_have_the_order_that_rust_passes() {
    let check = |object: &[u8], expected: &str| {
        let btf = Btf::from_raw("config", object).unwrap().unwrap();
        let config: Var<'_> = btf.type_by_name("config").unwrap();
        let found = Struct::try_from(config.referenced_type().skip_mods_and_typedefs());
        assert_eq!(layout(found.unwrap()), expected);
    };
    check(bpf::SAMPLER, "slot_mask 0, call_graph 4, vendor 8, trigger 12, 16");
    check(bpf::SWITCHES, "slot_mask 0, vendor 4, 8");
    check(bpf::QUOTAS, "slot_mask 0, cpus 4, 8");
    check(bpf::EXITS, "rows 0, vendor 4, 8");
    check(
        bpf::TRACER,
        "base_ns 0, slots_shift 8, slots_mask 16, filter 24, filter_id 32, filter_level 40, exclude 48, \
         stacks 56, user_stacks_mask 64, enter_type 72, exit_type 80, files_mask 88, 96",
    );
}
