//! Two runs' figures with their differences, as tables.

use table::escape;
use trace_analysis::compare::{Group, Kind, Side, compare};
use trace_analysis::findings::Findings;
use trace_analysis::report::group_table;

use crate::trace::Run;
use crate::trace::names::{Names, short};

/// Rows of a table at most.
const ROWS: usize = 60;

/// A section when there are two runs with machines to compare; nothing otherwise.
pub(super) fn section(runs: &[Run<'_>], found: &[&[Findings<'_>]]) -> String {
    let ([a, b], [of_a, of_b]) = (runs, found) else { return String::new() };
    let labels = [short(a.label), short(b.label)];
    let several = 1 < of_a.len().max(of_b.len());
    let both = pairs(of_a, of_b).into_iter().map(|(a, b)| {
        let heading = match several {
            true => format!("<h3>{}</h3>\n", escape(&Names::new(a).machine_name())),
            false => String::new(),
        };
        heading + &tables(&labels, &compare(&side(a), &side(b)).groups)
    });
    let body: String = both.collect();
    crate::page::section("Side by side", "", &body)
}

fn side<'a>(findings: &'a Findings<'_>) -> Side<'a> {
    let Findings { timeline, classifier, scope, .. } = findings;
    Side { timeline, classifier, scope: *scope }
}

/// Machines of one name; if each run has but one machine, these.
fn pairs<'f, 'a>(
    a: &'f [Findings<'a>],
    b: &'f [Findings<'a>],
) -> Vec<(&'f Findings<'a>, &'f Findings<'a>)> {
    if let ([a], [b]) = (a, b) {
        return vec![(a, b)];
    }
    let name = |findings: &Findings<'_>| Names::new(findings).machine_name();
    let other = |one: &'f Findings<'a>| Some((one, b.iter().find(|two| name(two) == name(one))?));
    a.iter().filter_map(other).collect()
}

/// Times and counts, and behind them all else.
fn tables(labels: &[String; 2], groups: &[Group]) -> String {
    let (first, rest): (Vec<&Group>, Vec<&Group>) =
        groups.iter().partition(|group| matches!(group.kind, Kind::Time | Kind::Counts));
    let titles = [&labels[0], &labels[1], "difference", "ratio"];
    let html = |groups: Vec<&Group>| -> String {
        groups.into_iter().map(|group| group_table(group, titles, None).html(ROWS)).collect()
    };
    let (first, rest) = (html(first), html(rest));
    if rest.is_empty() {
        return first;
    }
    format!("{first}<details><summary>All differences</summary>\n{rest}</details>\n")
}
