//! What has no name, and why.

use std::fmt::Write as _;

use super::cut::{Keep, cut};
use super::fit::NAME_CHARS;
use super::{Width, clean, n_samples, percent};
use crate::By;
use crate::profile::{Profile, Unnamed, Unresolved};

/// Lines of each kind; the rest is one line.
const REASONS: usize = 10;
/// Reasons may come from guests: longer ones are cut.
const REASON_CHARS: usize = 200;
/// The number before a reason.
const INDENT: usize = 9;

/// Says nothing where no row could be without a name.
pub(super) fn unnamed(out: &mut String, profile: &Profile, width: Width) {
    let is_stripped = |u: &&Unresolved| u.what == Unnamed::Stripped;
    let (stripped, unknown): (Vec<_>, Vec<_>) = profile.unresolved.iter().partition(is_stripped);
    let (stripped, unknown) = match profile.query.by {
        By::Function => (stripped, unknown),
        By::Process | By::Thread | By::Module => (Vec::new(), unknown),
        By::Vm | By::Cpu => return,
    };
    title(out, "stripped", &stripped, profile);
    list(out, &stripped, "modules", |u| {
        let module = u.module.as_deref().unwrap_or(crate::label::UNKNOWN);
        sentence(&u.subject, Some(module), "", width)
    });
    title(out, "unknown", &unknown, profile);
    list(out, &unknown, "reasons", |u| {
        let part = if u.what == Unnamed::Process { "process" } else { "function" };
        let subject = format!("{part:<8}  {}", u.subject);
        sentence(&subject, u.module.as_deref(), &u.reason, width)
    });
}

fn title(out: &mut String, kind: &str, list: &[&Unresolved], profile: &Profile) {
    if !list.is_empty() {
        let (samples, share) = (n_samples(sum(list)), percent(sum(list), profile.total));
        let _ = writeln!(out, "\nNot named, {kind}: {samples} ({share}%)");
    }
}

fn list(
    out: &mut String,
    unnamed: &[&Unresolved],
    rest: &str,
    sentence: impl Fn(&Unresolved) -> String,
) {
    // One more line costs no more than saying that there is one.
    let shown = if unnamed.len() == REASONS + 1 { unnamed.len() } else { REASONS };
    let (first, others) = unnamed.split_at(shown.min(unnamed.len()));
    for unresolved in first {
        let _ = writeln!(out, "{:>7}  {}", unresolved.samples, sentence(unresolved));
    }
    if !others.is_empty() {
        let _ = writeln!(out, "{:>7}  (other {} {rest})", sum(others), others.len());
    }
}

fn sum(list: &[&Unresolved]) -> u64 {
    list.iter().map(|u| u.samples).sum()
}

/// `subject: path: reason`. A path gives way from its start, to no less than the file's name; a reason
/// stays whole, terminals wrap it.
fn sentence(subject: &str, module: Option<&str>, reason: &str, width: Width) -> String {
    let (subject, reason) = (clean(subject), cut(&clean(reason), REASON_CHARS, Keep::Start));
    let Some(module) = module.map(clean) else {
        return format!("{subject}: {reason}");
    };
    let reason = if reason.is_empty() { reason } else { format!(": {reason}") };
    let path_chars = match width {
        Width::Unlimited => NAME_CHARS,
        Width::Columns(columns) => {
            let others = INDENT + subject.chars().count() + 2 + reason.chars().count();
            let name = module.rsplit('/').next().unwrap_or_default().chars().count();
            columns.saturating_sub(others).clamp(NAME_CHARS.min(name + 2), NAME_CHARS)
        }
    };
    format!("{subject}: {}{reason}", cut(&module, path_chars, Keep::PathEnd))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_path_gives_way_from_its_start() {
        let check = |columns: Option<usize>, expected: &str| {
            let path = "/root/.rustup/toolchains/stable/lib/librustc_driver.so";
            let width = columns.map_or(Width::Unlimited, Width::Columns);
            assert_eq!(sentence("host", Some(path), "larger than 1 GiB", width), expected);
        };
        let whole = "host: /root/.rustup/toolchains/stable/lib/librustc_driver.so: \
                     larger than 1 GiB";
        check(None, whole);
        check(Some(88), whole);
        check(
            Some(87),
            "host: …/.rustup/toolchains/stable/lib/librustc_driver.so: larger than 1 GiB",
        );
        check(Some(70), "host: …/stable/lib/librustc_driver.so: larger than 1 GiB");
        check(Some(10), "host: …/librustc_driver.so: larger than 1 GiB");
    }
}
