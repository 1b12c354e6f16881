//! Intervals of vCPUs as CSV (RFC 4180): a line for each.

use std::io::{self, Write};

use model::IntervalRow;
use table::field;

use crate::Chart;

const HEAD: &str = "from_ns,ns,vm,vcpu,state,process,pid,thread,tid,function,module,build_id,exit_reason,thief,\
                    thief_kind,thief_vm,thief_pid,samples\r\n";

/// Writes the intervals of `chart` as CSV.
///
/// # Errors
/// Only the writer's.
pub fn write(chart: Chart<'_>, mut out: impl Write) -> io::Result<()> {
    out.write_all(HEAD.as_bytes())?;
    chart.for_each_interval(&mut |interval| write_line(&interval, &mut out))?;
    out.flush()
}

fn write_line(interval: &IntervalRow, out: &mut impl Write) -> io::Result<()> {
    let IntervalRow { from_ns, time, .. } = interval;
    let (code, thief) = (&time.code, time.thief_is.as_ref());
    let text = |text: Option<&String>| text.map_or_else(String::new, |text| field(text));
    let number = |number: Option<u32>| number.map_or_else(String::new, |it| it.to_string());
    let fields = [
        from_ns.to_string(),
        time.ns.to_string(),
        field(&time.vm),
        time.vcpu.to_string(),
        time.state.clone(),
        text(code.process.as_ref()),
        number(code.pid),
        text(code.thread.as_ref()),
        number(code.tid),
        text(code.function.as_ref()),
        text(code.module.as_ref()),
        text(code.build_id.as_ref()),
        text(time.exit_reason.as_ref()),
        text(time.thief.as_ref()),
        thief.map_or("", |thief| thief.kind.name()).to_owned(),
        text(time.thief_vm.as_ref()),
        number(thief.and_then(|thief| thief.pid)),
        time.samples.to_string(),
    ];
    write!(out, "{}\r\n", fields.join(","))
}

#[cfg(test)]
mod test {
    use super::*;
    use model::{ResultCode, VcpuTimeRow};

    #[test]
    fn lines_have_a_field_for_each_column() {
        let code =
            ResultCode { process: Some("a,\"b".to_owned()), tid: Some(8), ..ResultCode::default() };
        let time = VcpuTimeRow {
            vm: "=web".to_owned(),
            vcpu: 1,
            state: "guest_user".to_owned(),
            code,
            ns: 30,
            samples: 2,
            ..VcpuTimeRow::default()
        };
        let mut out = Vec::new();
        write_line(&IntervalRow { from_ns: 5, from_unix_us: 0, time }, &mut out).unwrap();
        let (head, line) = (HEAD, String::from_utf8(out).unwrap());
        assert_eq!(line, "5,30,'=web,1,guest_user,\"a,\"\"b\",,,8,,,,,,,,,2\r\n");
        // One comma is in a name.
        assert_eq!(head.matches(',').count() + 1, line.matches(',').count());
    }
}
