//! Why it took so long, on one page.

use table::Part;

use super::{Context, causes, host_side, kernel, path, profile, states, waits};

/// Rows of each table.
const ROWS: Option<usize> = Some(6);

pub(super) fn parts(context: &Context<'_>) -> Vec<Part> {
    let findings = &context.findings;
    let path = findings.path();
    let kernel = findings.kernel();
    let mut lines = format!("CPU and disk: {}\n", profile::line(&findings.profile().machine));
    lines += &format!("All CPUs: {}\n", kernel::line(&kernel.total()));
    if !findings.is_everyone() {
        let line = kernel::line(&kernel.times_of(&findings.tasks));
        lines += &format!("CPU time of {}: {line}\n", context.whose());
    }
    lines += &profile::network_line(context).unwrap_or_default();
    let life = findings.life();
    let mut causes = causes(&life, ROWS);
    causes.title = waits::summary(context, &life);
    let mut parts: Vec<Part> =
        path.map(|path| Part::Prose(path::why(context, &path.summary))).into_iter().collect();
    parts.push(Part::Prose(lines));
    parts.extend(host_side::overview(context).map(Part::from));
    parts.extend([states::total(context).into(), causes.into()]);
    let Some(path) = path else {
        let hint = "No command was traced: --process P --view critical-path explains a process";
        parts.push(Part::Prose(hint.to_owned()));
        return parts;
    };
    let mut categories = path::categories(&path.summary, ROWS);
    categories.title = "The critical path is made of".to_owned();
    categories.notes.extend(host_side::path(context, path));
    let improvements = path::improvements(&path.summary, ROWS);
    parts.extend([categories.into(), improvements.into()]);
    parts
}
