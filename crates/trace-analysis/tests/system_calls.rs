//! The table of system calls against the kernel's own header, where it is installed.

#![allow(clippy::disallowed_methods)]

use trace_analysis::kernel::syscall_name;

const HEADER: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
/// The table ends here; newer headers have newer calls.
const LAST: u16 = 469;

#[test]
fn every_call_of_the_header_is_in_the_table_under_its_name() {
    let Ok(header) = std::fs::read_to_string(HEADER) else {
        return skip::skip(format_args!("{HEADER} is not installed"));
    };
    let calls = header.lines().filter_map(|line| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        Some((name, number.trim().parse::<u16>().ok()?))
    });
    let calls: Vec<(&str, u16)> = calls.collect();
    assert!(300 < calls.len(), "{} calls in {HEADER}", calls.len());
    for (name, number) in calls.into_iter().filter(|(_, number)| *number <= LAST) {
        assert_eq!(syscall_name(number), Some(name), "{number}");
    }
}
