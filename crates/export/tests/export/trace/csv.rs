//! Views as CSV.

use export::trace::{View, csv};

use super::drawn;
use super::make::make;
use crate::fixture::HOSTILE;
use crate::formats::golden;

#[test]
fn every_view_of_a_small_trace() {
    let drawing = drawn::small();
    let views = View::ALL.map(|view| format!("{view:?}\r\n{}", csv(drawing.run("small"), view)));
    golden("trace/small.csv", &views.join("\r\n"));
}

/// Lines of as many fields as the header has.
#[test]
fn lines_have_all_fields() {
    let drawing = make(2, 6);
    for view in View::ALL {
        let text = csv(drawing.run("make"), view);
        let mut lines = text.split_terminator("\r\n").map(|line| line.matches(',').count());
        let fields = lines.next().unwrap();
        assert!(lines.clone().count() > 0, "{view:?}");
        assert!(lines.all(|n| n == fields), "{view:?}: {text}");
    }
}

#[test]
fn hostile_names_are_quoted() {
    for name in HOSTILE {
        let drawing = drawn::hostile(name);
        for view in View::ALL {
            let text = csv(drawing.run("hostile"), view);
            let lines = text.split_terminator("\r\n");
            assert!(lines.clone().all(|line| !line.contains(['\n', '\r', '\u{1b}', '\u{202e}'])));
            assert!(1 < lines.count(), "{view:?}");
        }
    }
}
