//! What has no name, and why.

use std::fmt::Write as _;

use serde_json::{Value, json};
use table::{Keep, NAME_CHARS, Width, clean, cleaned, cut, percent};

use crate::report::recording::n_samples;
use crate::{By, Profile, Unnamed, Unresolved};

/// Lines of each kind; the rest is one line.
const REASONS: usize = 10;
/// Reasons may come from guests: longer ones are cut.
const REASON_CHARS: usize = 200;
/// The number before a reason.
const INDENT: usize = 9;

pub(super) fn json(profile: &Profile) -> Value {
    let unresolved = |unresolved: &Unresolved| {
        let Unresolved { what, subject, module, reason, samples } = unresolved;
        json!({
            "part": part(*what),
            "stripped": *what == Unnamed::Stripped,
            "subject": cleaned(subject),
            "module": module.as_deref().map(cleaned),
            "reason": cleaned(reason),
            "samples": samples,
        })
    };
    profile.unresolved.iter().map(unresolved).collect()
}

fn part(what: Unnamed) -> &'static str {
    match what {
        Unnamed::Stripped | Unnamed::Function => "function",
        Unnamed::Process => "process",
    }
}

/// Nothing where no row could be without a name.
pub(super) fn lists(profile: &Profile, width: Width) -> Vec<String> {
    let is_stripped = |u: &&Unresolved| u.what == Unnamed::Stripped;
    let (stripped, unknown): (Vec<_>, Vec<_>) = profile.unresolved.iter().partition(is_stripped);
    let (stripped, unknown) = match profile.query.by {
        By::Function | By::Address => (stripped, unknown),
        By::Process | By::Thread | By::Module => (Vec::new(), unknown),
        By::Vm | By::Cpu | By::Node => return Vec::new(),
    };
    let stripped = list(profile, "stripped", &stripped, "modules", |u| {
        let module = u.module.as_deref().unwrap_or("[unknown]");
        sentence(&u.subject, Some(module), "", width)
    });
    let unknown = list(profile, "unknown", &unknown, "reasons", |u| {
        let subject = format!("{:<8}  {}", part(u.what), u.subject);
        sentence(&subject, u.module.as_deref(), &u.reason, width)
    });
    stripped.into_iter().chain(unknown).collect()
}

fn list(
    profile: &Profile,
    kind: &str,
    unnamed: &[&Unresolved],
    rest: &str,
    sentence: impl Fn(&Unresolved) -> String,
) -> Option<String> {
    let all = unnamed.first().map(|_| sum(unnamed))?;
    let share = percent(all, profile.total, 2);
    let mut out = format!("Not named, {kind}: {} ({share}%)\n", n_samples(all));
    // One more line costs no more than saying that there is one.
    let shown = if unnamed.len() == REASONS + 1 { unnamed.len() } else { REASONS };
    let (first, others) = unnamed.split_at(shown.min(unnamed.len()));
    for unresolved in first {
        let _ = writeln!(out, "{:>7}  {}", unresolved.samples, sentence(unresolved));
    }
    if !others.is_empty() {
        let _ = writeln!(out, "{:>7}  (other {} {rest})", sum(others), others.len());
    }
    Some(out)
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
        let whole =
            "host: /root/.rustup/toolchains/stable/lib/librustc_driver.so: larger than 1 GiB";
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
